"""The block drafters against traces of the official implementations, round by round, without the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from agentbench_spec_drafters import dlite
from agentbench_spec_drafters.nets.dlite import layout
from agentbench_spec_drafters.nets.dspark import confident_prefix
from agentbench_spec_drafters.nets.qwen3 import Rotary
from golden_block import (
    SETS,
    ingest,
    open_drafter,
    recorded,
    replay,
    span_of,
    trace_of,
    wrong_rounds,
)

from agentbench_spec.drafting import ConfigError, Drafter

DSPARK = ("dspark-vanilla", "dspark-gated", "dspark-rnn")


@pytest.mark.parametrize("name", ["dflash-zlab", "dspark-rnn", "dlite-g3"])
@pytest.mark.parametrize("chunk", [1, 7])
def test_prefill_in_chunks_changes_nothing(name: str, chunk: int) -> None:
    """Fails if a chunk's start or padding leaks into the context, or a group straddling two chunks loses a token."""
    case = next(case for case in recorded(name)["cases"] if len(case["prompt_ids"]) == 31)
    drafter = open_drafter(name, case)
    rounds = replay(drafter, trace_of(case, drafter.spec.hidden_layers), chunk=chunk)
    assert [got for _, got in rounds] == case["rounds"]["draft_tokens"]


@pytest.mark.parametrize("name", ["dflash", "dflash-zlab", "dspark-gated", "dlite-g2"])
def test_joined_projections_propose_the_same(name: str) -> None:
    """Fails if the joined products, which only a GPU uses by itself, mix up layers, keys and values, or gate and up."""
    drafter: Any = open_drafter(name)
    drafter.net.prepare()
    case = next(case for case in recorded(name)["cases"] if len(case["prompt_ids"]) == 96)
    assert wrong_rounds(drafter, case) == 0
    assert not any("k_proj" in key or "up_proj" in key for key in drafter.net.state_dict())


@pytest.mark.parametrize("name", DSPARK)
def test_confident_prefix_at_every_recorded_threshold(name: str) -> None:
    """Fails if the cut is cumulative, not strict, or one position off."""
    played = [case for case in recorded(name)["cases"] if case["rounds"]["start"]]
    assert len(played) > 20
    for case in played:
        logits = torch.tensor(case["rounds"]["confidence_logits"])
        for threshold, lengths in case["rounds"]["confident_prefix"].items():
            assert confident_prefix(logits, float(threshold)).tolist() == lengths


@pytest.mark.parametrize("name", SETS)
def test_four_ragged_rows_equal_four_single_runs(name: str) -> None:
    """Fails if a row reads another's context, or the mask of unequal lengths is wrong."""
    cases = [case for case in recorded(name)["cases"] if len(case["prompt_ids"]) in (1, 5, 64, 200)][:4]
    drafter = open_drafter(name, rows=4)
    traces = [trace_of(case, drafter.spec.hidden_layers) for case in cases]
    for row in (2, 0, 3, 1):  # rows fill in any order
        ingest(drafter, traces[row], traces[row].prompt, row=row, chunk=50)
    for index in range(8):
        steps = [trace.rounds[index] for trace in traces]
        anchor, position = (torch.tensor([getattr(s, key) for s in steps]) for key in ("anchor", "start"))
        proposal = drafter.propose(anchor, position, len(steps[0].drafted))
        assert proposal.ids.tolist() == [step.drafted for step in steps]
        for row, (trace, step) in enumerate(zip(traces, steps, strict=True)):
            drafter.observe(span_of(trace, step.start, step.committed, drafter.spec.hidden_scope, row=row))


def swap_features(drafter: Any) -> None:
    """Concatenate the target states in another order."""
    width = drafter.net.config.geometry.hidden_size
    drafter.net.fc.weight = torch.nn.Parameter(drafter.net.fc.weight.roll(width, 1))


def swap_slots(drafter: Any) -> None:
    drafter.net._depth = drafter.net.depth().flip(0)


def swap_gate(drafter: Any) -> None:
    """Embedding before hidden state in the gated head."""
    gate = drafter.net.markov_head.gate_proj
    gate.weight = torch.nn.Parameter(gate.weight.roll(drafter.config.markov_rank, 1))


def swap_state(drafter: Any) -> None:
    """Embedding before state in DLite's recurrence."""
    state = drafter.net.sequential_head.state_proj
    state.weight = torch.nn.Parameter(state.weight.roll(drafter.config.rank, 1))


def shift_offset(drafter: Any) -> None:
    """Read the block with the other family's offset."""
    other = {"own-slot": "next-token", "next-token": "own-slot"}[drafter.net.config.family]
    drafter.net.config = replace(drafter.net.config, family=other)


def drop_norm(name: str) -> Callable[[Any], None]:
    def plant(drafter: Any) -> None:
        setattr(drafter.net, name, torch.nn.Identity())

    return plant


def drop_query_norm(drafter: Any) -> None:
    for layer in drafter.net.layers:
        layer.self_attn.q_norm = torch.nn.Identity()


def shift_rope(drafter: Any) -> None:
    """Rope base 1e6 where the draft was trained with 1e4."""
    geometry = replace(drafter.config.geometry, rope_theta=1e6)
    rotary = Rotary(geometry, device=torch.device("cpu"), dtype=torch.float32)
    if isinstance(drafter, dlite.DLiteDrafter):
        whole = layout(drafter.config, torch.tensor([drafter.config.group - 1]))
        drafter._block._rotary, drafter._block._whole_rope = rotary, rotary(whole.positions)
    else:
        drafter._rotary = rotary


FAULTS: list[tuple[str, Callable[[Any], None]]] = [
    ("dflash", shift_offset),
    ("dflash-zlab", shift_offset),
    ("dflash", swap_features),
    ("dflash-zlab", swap_features),
    ("dspark-gated", swap_gate),
    ("dlite-g1", swap_slots),
    ("dlite-g2", swap_state),
    ("dflash", drop_norm("hidden_norm")),
    ("dspark-vanilla", drop_norm("norm")),
    ("dlite-g1", drop_norm("context_norm")),
    ("dflash-zlab", drop_query_norm),
    ("dflash", shift_rope),
    ("dspark-rnn", shift_rope),
    ("dlite-g3", shift_rope),
]


@pytest.mark.parametrize(("name", "plant"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_fault_is_caught(name: str, plant: Callable[[Any], None]) -> None:
    """Fails if parity would pass with this fault in place: then the golden comparison proves nothing about it."""
    cases = [case for case in recorded(name)["cases"] if len(case["prompt_ids"]) in (17, 96)]

    def misses(planted: bool) -> int:
        drafters: list[Drafter] = [open_drafter(name, case) for case in cases]
        if planted:
            for drafter in drafters:
                plant(drafter)
        return sum(wrong_rounds(drafter, case) for drafter, case in zip(drafters, cases, strict=True))

    assert misses(planted=False) == 0
    assert misses(planted=True) > 0


@pytest.mark.parametrize("name", ["dflash", "dflash-zlab", "dspark-rnn", "dlite-g1"])
def test_more_tokens_than_the_trained_block_are_refused(name: str) -> None:
    """Fails if k above the block is fed: rows attend to masks never seen in training and acceptance collapses."""
    drafter = open_drafter(name)
    assert drafter.spec.max_tokens == {"dflash-zlab": 15}.get(name, 7)
    with pytest.raises(ConfigError, match="trained with blocks"):
        drafter.propose(torch.tensor([5]), torch.tensor([0]), drafter.spec.max_tokens + 1)


@pytest.mark.parametrize("name", SETS)
def test_fewer_tokens_are_the_first_of_the_full_block(name: str) -> None:
    """Fails if a smaller k shortens the block: its rows would then see other neighbours and propose other tokens."""
    case = recorded(name)["cases"][5]
    drafter = open_drafter(name, case)
    trace = trace_of(case, drafter.spec.hidden_layers)
    ingest(drafter, trace, trace.prompt)
    anchor, position = torch.tensor([trace.rounds[0].anchor]), torch.tensor([trace.prompt])
    for k in (0, 1, 4):
        assert drafter.propose(anchor, position, k).ids.tolist() == [trace.rounds[0].drafted[:k]]
