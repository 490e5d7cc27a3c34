"""DFlash, DSpark and DFlash 2 in the speculators layout, and DFlash 2 in z-lab's, against traces of the public code."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agentbench_spec_drafters import dflash, dflash2, dspark
from golden_block import (
    DATA,
    engine,
    ingest,
    make_drafter,
    open_drafter,
    recorded,
    span_of,
    target_info,
    tensors,
    trace_of,
)
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentbench_spec.conformance.bench import Bench
from agentbench_spec.conformance.kit import check
from agentbench_spec.drafting import ConfigError, Drafter, TargetInfo
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.timing import Clock
from agentbench_spec.testing import play_turns, row_sampler, toy_turns

SPEC_SETS = ("dflash-spec", "dspark-spec", "dflash2-spec")
NEW_SETS = (*SPEC_SETS, "dflash2-zlab")
MAKERS: dict[str, Any] = {
    "dflash-spec": dflash.make, "dspark-spec": dspark.make, "dflash2-spec": dflash2.make, "dflash2-zlab": dflash2.make
}  # fmt: skip


@pytest.mark.parametrize("name", SPEC_SETS)
def test_the_engine_accepts_what_the_recorded_loop_accepted(name: str) -> None:
    """Fails if rounds, accepted lengths or the text differ when the engine drafts, verifies and rolls back."""
    case = next(case for case in recorded(name)["cases"] if case["stop_token_ids"] is None)
    target = engine(1, 600)
    drafter = make_drafter(name, case)
    drafter.open(target.info, rows=1, capacity=600)
    played = play_turns(target, {"own": drafter}, [case["prompt_ids"]], k=7, max_new_tokens=case["max_new_tokens"])
    turn = played[0].turns["own"]
    ours = [done.matched for done in turn.rounds]
    assert case["prompt_ids"] + turn.output == case["output_ids"]
    assert ours == case["rounds"]["accepted_draft"][: len(ours)]
    assert len(ours) >= len(case["accept_lengths"]) - 1 > 3  # the recorded loop runs one round for the anchor alone


class Uniforms:
    """Draws by inverse CDF over the candidates, likeliest logit first, from given uniforms."""

    greedy = False

    def __init__(self, order: Tensor, uniforms: list[float], temperature: float) -> None:
        self.order, self.uniforms, self.temperature, self.step = order, uniforms, temperature, 0
        self.q: list[Tensor] = []

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        full = (logits / self.temperature).softmax(-1)
        q = full[0, self.order[self.step]]
        at = min(int((q.cumsum(0) <= self.uniforms[self.step]).sum()), len(q) - 1)
        chosen = self.order[self.step, at]
        self.q.append(q)
        self.step += 1
        return chosen[None], full


@pytest.mark.parametrize("name", ["dflash2-spec", "dflash2-zlab"])
def test_recorded_walks_at_a_temperature_are_reproduced(name: str) -> None:
    """Fails if q is not the softmax of scores given the token drawn before, over the candidates alone."""
    blocks = recorded(name)["sampled_path_blocks"]
    by_id = {case["id"]: case for case in recorded(name)["cases"]}
    played = [block for block in blocks if block["from_case"] in by_id]
    assert len(played) >= 3
    for block in played:
        case = by_id[block["from_case"]]
        drafter: Any = open_drafter(name, case)
        trace = trace_of(case, drafter.spec.hidden_layers)
        step = trace.rounds[block["round"]]
        ingest(drafter, trace, step.start)
        order, q = (tensors(name)[f"{block['id']}.{key}"] for key in ("candidate_ids", "q"))
        drafter.sampler = Uniforms(order, block["uniforms"], block["temperature"])
        guess = drafter.propose(torch.tensor([step.anchor]), torch.tensor([step.start]), len(block["tokens"]))
        assert guess.ids[0].tolist() == block["tokens"]
        assert float((torch.stack(drafter.sampler.q) - q).abs().max()) < 1e-4
        assert torch.allclose(guess.probs.gather(2, order[None]), q[None], atol=1e-4)
        assert torch.allclose(guess.probs.sum(-1), torch.ones(1, len(order)))


BEHIND = 16
"""A small reserve, so that the tests' texts outgrow what sliding layers hold."""


WINDOWS = {"dspark-spec": (0, 24), "dflash2-zlab": (1, 23)}
"""Full layers, and context positions that a block sees in the sliding ones, of a set."""


def bounded(name: str, case: dict[str, Any] | None = None, *, rows: int = 1, info: TargetInfo | None = None) -> Any:
    """A drafter whose sliding layers forget, opened for more text than they hold."""
    drafter: Any = make_drafter(name, case)
    drafter.behind = BEHIND
    drafter.open(info or target_info(), rows=rows, capacity=512)
    return drafter


def longest(name: str) -> dict[str, Any]:
    return max(recorded(name)["cases"], key=lambda case: len(case["prompt_ids"]))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", WINDOWS)
def test_draft_kv_of_sliding_layers_is_freed(name: str) -> None:
    """Fails if the buffers of a sliding layer, or the bytes told of it, grow with the text, or a full layer forgets."""
    case, (full, window) = longest(name), WINDOWS[name]
    drafter, token_bytes = bounded(name), 2 * 2 * 16 * 4
    slots = drafter._context.held[1]
    most = window + BEHIND + 256
    assert slots.size == most and slots.keys.shape[3] == most + drafter.config.block_size + 1
    trace = trace_of(case, drafter.spec.hidden_layers)
    for turn in range(5):  # the same text behind itself: positions go on, what is said of them does not matter
        for first in range(0, 100, 20):
            span = span_of(trace, first, 20, "all")
            drafter.observe(replace(span, start=span.start + 100 * turn))
            held = min(100 * turn + first + 20, most)
            told = drafter.state_bytes(0) - full * (100 * turn + first + 20) * token_bytes
            assert (window + BEHIND if held == most else held) * token_bytes * (2 - full) <= told
            assert told <= held * token_bytes * (2 - full)


@pytest.mark.parametrize("name", NEW_SETS)
def test_drafts_are_those_of_a_cache_that_keeps_all(name: str) -> None:
    """Fails if a position is lost, moved or seen twice when old ones go, or a cut within the reserve is not exact."""
    case = longest(name)
    keeps: Any = make_drafter(name, case)
    keeps.open(target_info(), rows=2, capacity=512)
    frees = bounded(name, case, rows=2)
    trace = trace_of(case, keeps.spec.hidden_layers)
    anchor, position = trace.text[:1].repeat(2), -torch.ones(2, dtype=torch.int64)
    for at in range(0, 480, 12):
        for drafter in (keeps, frees):
            for row in (0, 1) if at % 24 else (0,):  # ragged rows
                end = int(drafter._context.lengths.on_device[row])
                span = span_of(trace, at % 80, 12, "all", row=row)
                drafter.observe(replace(span, start=torch.tensor([end])))
                if at % 36 == 0:
                    drafter.truncate(row, end + 12 - 9)  # a turn is thrown away
                position[row] = int(drafter._context.lengths.on_device[row])
        ours, theirs = (drafter.propose(anchor, position, 3).ids for drafter in (frees, keeps))
        assert torch.equal(ours, theirs)
    assert int(frees._context.held[1].base[0]) > 0


@pytest.mark.parametrize("name", WINDOWS)
def test_a_cut_beyond_the_reserve_says_where_to_begin_again(name: str) -> None:
    """Fails if a cut leaves blocks that see less than they should in silence, or asks where nothing is missing."""
    drafter, again, window = bounded(name), bounded(name), WINDOWS[name][1]
    trace = trace_of(longest(name), drafter.spec.hidden_layers)

    def show(to: Any, start: int, upto: int) -> None:
        """The same text behind itself, every hundred positions."""
        while start < upto:
            count = min(100 - start % 100, upto - start)
            to.observe(replace(span_of(trace, start % 100, count, "all"), start=torch.tensor([start])))
            start += count

    show(drafter, 0, 400)
    assert drafter.truncate(0, 390) is None and drafter.truncate(0, 200) == 200 - window
    assert drafter.truncate(0, 200) == 200 - window, "it is told anew until it is done"
    assert drafter.snapshot(0)["window_keys"].shape[2] < window
    show(drafter, 200 - window, 200)
    assert drafter.truncate(0, 200) is None
    show(again, 0, 200)
    whole, fresh = drafter.snapshot(0), again.snapshot(0)
    assert whole.keys() == fresh.keys()
    assert all(torch.allclose(whole[part], fresh[part], atol=1e-5) for part in whole)
    assert drafter.truncate(0, 0) is None, "an empty row lacks nothing"


@pytest.mark.parametrize("name", WINDOWS)
def test_a_session_drafts_as_if_nothing_had_been_forgotten(name: str) -> None:
    """Fails if a turn longer than the reserve, or a history told anew, changes what is proposed later."""
    target = engine(rows=1, capacity=512)
    frees, keeps = bounded(name, info=target.info), make_drafter(name)
    keeps.open(target.info, rows=1, capacity=512)
    session = Session(target, {"frees": frees, "keeps": keeps})
    text = torch.randint(3, 150, (270,), generator=torch.Generator().manual_seed(3)).tolist()
    for prompt in (text, [*text[:120], *text[:20]]):
        done = session.prefill(prompt, lambda logits: logits.argmax())
        anchor, position = torch.tensor([done.anchor]), torch.tensor([len(prompt)])
        for _ in range(2):
            assert torch.equal(*(each.propose(anchor, position, 3).ids for each in (frees, keeps)))
            for label in session.taking_part:
                sampler, clock = row_sampler(target, GREEDY), Clock(target.info.device)
                session.decode(label, Limits(3, 40), sampler, clock)
        assert frees._context.held[1].first[0] > 0
    assert session.failed == {}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "dspark-spec" else pytest.mark.slow) for n in NEW_SETS]
)
def test_every_law_that_applies_holds(name: str) -> None:
    """Fails if state after rewrites, ragged rows, padding, or a thrown-away turn differs from a fresh start."""
    report = check(lambda: make_drafter(name), target=engine(1, 400))
    assert {f.law: f.message for f in report.findings if f.outcome == "failed"} == {}
    passed = {f.law for f in report.findings if f.outcome == "passed"}
    assert passed >= {"spec", "lossless", "incremental", "no-trace", "rows", "padding", "truncate"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "dflash2-spec" else pytest.mark.slow) for n in NEW_SETS]
)
def test_rejection_sampling_follows_the_target_exactly(name: str) -> None:
    """Fails if the distribution handed over is not the one drawn from, mapped to the target's ids."""

    def make() -> Drafter:
        return MAKERS[name](DATA / name / "draft", verification="rejection")  # type: ignore[no-any-return]

    prompts = [[token + 1 for token in toy_turns(vocab=64)[0]]]
    one, many = engine(1, 400), engine(256, 64)
    report = check(make, benches={"golden": Bench(make, one, prompts, sampling_target=many)}, only={"distribution"})
    assert [(f.outcome, f.message) for f in report.findings if f.outcome != "passed"] == []


CONFIG_FAULTS = {
    "another kind": ({"speculators_model_type": "xpress"}, "speculators_model_type is 'xpress'.*not implemented"),
    "no layer ids": ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids"),
    "layer ids beyond the target": ({"aux_hidden_state_layer_ids": [1, 3, 9]}, "target_layer_ids"),
    "no mask": ({"mask_token_id": None}, "mask_token_id"),
    "a flag that is none": ({"sample_from_anchor": "yes"}, "sample_from_anchor is 'yes'"),
    "vocabulary above the target's": ({"draft_vocab_size": 400}, "draft_vocab_size is 400"),
}


def damaged(name: str, folder: Path, *, config: dict[str, Any] | None = None, drop: str = "") -> Path:
    """A copy of a set's checkpoint with config fields replaced and one tensor left out."""
    shutil.copytree(DATA / name / "draft", folder, dirs_exist_ok=True)
    own = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**own, **(config or {})}))
    weights = load_file(folder / "model.safetensors")
    save_file({key: value for key, value in weights.items() if key != drop}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
@pytest.mark.parametrize("name", SPEC_SETS)
def test_a_damaged_config_is_refused(name: str, fault: str, tmp_path: Path) -> None:
    """Fails if a config that cannot be right is read as if it were, and the draft would only look weak."""
    changes, message = CONFIG_FAULTS[fault]
    with pytest.raises(ConfigError, match=message):
        MAKERS[name](damaged(name, tmp_path, config=changes)).open(target_info(), rows=1, capacity=64)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("dspark-spec", "lm_head.weight"),
        ("dspark-spec", "d2t"),
        ("dspark-spec", "markov_head.markov_w2.weight"),
        ("dflash-spec", "layers.1.self_attn.k_norm.weight"),
        ("dflash2-spec", "candidate_selector.successor_codebook"),
        ("dflash2-zlab", "layers.0.mlp_conv.base_kernel"),
    ],
)
def test_a_missing_tensor_is_named(name: str, tensor: str, tmp_path: Path) -> None:
    """Fails if a file without it loads: the part would be left at nothing, or lent by the target in silence."""
    with pytest.raises(ConfigError, match=f"missing tensor.*{tensor}"):
        MAKERS[name](damaged(name, tmp_path, drop=tensor)).open(target_info(), rows=1, capacity=64)


def test_dflash_and_dflash2_refuse_each_other() -> None:
    """Fails if DFlash 2's convolutions and selector are dropped by loading it as plain DFlash, or the reverse."""
    for make, name in ((dflash.make, "dflash2-spec"), (dflash.make, "dflash2-zlab"), (dflash2.make, "dflash-zlab")):
        with pytest.raises(ConfigError, match="dflash"):
            make(DATA / name / "draft")
    with pytest.raises(ConfigError, match="load it as dspark="):
        dflash.make(DATA / "dspark-spec" / "draft")
