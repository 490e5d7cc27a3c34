"""PARD and a plain draft model against traces of PARD's own loop, on the target both share a vocabulary with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from agentbench_spec_drafters import draft_lm, pard
from golden_block import DATA, Trace, engine, ingest, recorded, span_of, target_info, tensors, trace_of
from safetensors.torch import load_file, save_file

from agentbench_spec.conformance.bench import Bench
from agentbench_spec.conformance.kit import check
from agentbench_spec.drafting import ConfigError, Drafter
from agentbench_spec.testing import toy_turns

FOLDER = DATA / "pard" / "draft"
CASES: list[dict[str, Any]] = recorded("pard")["cases"]
MAKERS = {"pard": pard.make, "draft_lm": draft_lm.make}


def opened(case: dict[str, Any]) -> Any:
    drafter = (pard if case["parallel"] else draft_lm).make(FOLDER)
    drafter.open(target_info(), rows=1, capacity=512)
    return drafter


def trace(case: dict[str, Any]) -> Trace:
    """The case from its first round on, whose anchor is the last token of the prompt."""
    return trace_of({**case, "prompt_ids": case["prompt_ids"][:-1]}, (0,))


@pytest.mark.parametrize("parallel", [True, False])
def test_every_recorded_round_is_proposed_exactly(parallel: bool) -> None:
    """Fails if masks, positions, the cache after a round, or the steps of the plain model differ from the loop's."""
    played = [case for case in CASES if case["parallel"] is parallel]
    wrong = {}
    for case in played:
        drafter = opened(case)
        text = trace(case)
        ingest(drafter, text, text.prompt)
        for index, step in enumerate(text.rounds):
            guess = drafter.propose(torch.tensor([step.anchor]), torch.tensor([step.start]), case["draft_k"])
            if guess.ids[0].tolist() != step.drafted:
                wrong[case["id"], index] = guess.ids[0].tolist()
            drafter.observe(span_of(text, step.start, step.committed, "all"))
    assert wrong == {}
    assert len(played) >= 3


def test_recorded_logits_are_reproduced() -> None:
    """Fails if a logit is off by more than 1e-4: a fault that the argmax of these prompts happens to hide."""
    case = next(case for case in CASES if f"{case['id']}.round0.draft_logits" in tensors("pard"))
    drafter, text = opened(case), trace(case)
    step = text.rounds[0]
    ingest(drafter, text, step.start)
    ids = torch.tensor([[step.anchor, *[recorded_mask()] * (case["draft_k"] - 1)]])
    ours = drafter.logits_of(ids, torch.tensor([step.start]))[0]
    assert torch.allclose(ours, tensors("pard")[f"{case['id']}.round0.draft_logits"], atol=1e-4, rtol=1e-4)


def recorded_mask() -> int:
    return int(json.loads((FOLDER / "config.json").read_text())["pard_token"])


@pytest.mark.parametrize("name", MAKERS)
def test_every_law_that_applies_holds(name: str) -> None:
    """Fails if state after rewrites, ragged rows, padding, or a thrown-away turn differs from a fresh start."""
    report = check(lambda: MAKERS[name](FOLDER), target=engine(1, 400))
    assert {f.law: f.message for f in report.findings if f.outcome == "failed"} == {}
    passed = {f.law for f in report.findings if f.outcome == "passed"}
    assert passed >= {"spec", "lossless", "incremental", "no-trace", "rows", "padding", "truncate"}


@pytest.mark.parametrize("name", MAKERS)
def test_rejection_sampling_follows_the_target_exactly(name: str) -> None:
    """Fails if the distribution handed over is not the one drawn from."""

    def make() -> Drafter:
        return MAKERS[name](FOLDER)

    prompts = [[token + 1 for token in toy_turns(vocab=64)[0]]]
    bench = Bench(make, engine(1, 400), prompts, sampling_target=engine(256, 64))
    report = check(make, benches={"golden": bench}, only={"distribution"})
    assert [(f.outcome, f.message) for f in report.findings if f.outcome != "passed"] == []


def test_another_vocabulary_is_refused_unless_vouched_for() -> None:
    """Fails if ids of different tables are mixed in silence, or one that the target lacks can be proposed."""
    wider, narrower = target_info(vocab_size=170), target_info(vocab_size=150)
    for info in (wider, narrower):
        with pytest.raises(ConfigError, match=r"vocab_size is 160.*same_tokenizer"):
            pard.make(FOLDER).open(info, rows=1, capacity=64)
    drafter = pard.make(FOLDER, same_tokenizer=True)
    drafter.open(narrower, rows=1, capacity=64)
    assert drafter.logits_of(torch.tensor([[5]]), torch.tensor([0])).shape == (1, 1, 150)
    drafter.open(wider, rows=1, capacity=64)
    assert bool(torch.isinf(drafter.logits_of(torch.tensor([[5]]), torch.tensor([0]))[..., 160:]).all())


@pytest.mark.parametrize(
    ("changes", "drop", "message"),
    [
        ({"pard_token": None}, "", "no pard_token.*draft_lm="),
        ({"pard_token": 400}, "", "pard_token 400"),
        ({"model_type": "gemma"}, "", "model_type is 'gemma'"),
        ({"attention_bias": True}, "", "attention_bias"),
        ({}, "model.layers.1.self_attn.q_norm.weight", "missing tensor.*q_norm"),
    ],
)
def test_a_damaged_checkpoint_is_refused(changes: dict[str, Any], drop: str, message: str, tmp_path: Path) -> None:
    """Fails if a file that cannot be right loads, and the draft would only look weak."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps({**json.loads((FOLDER / "config.json").read_text()), **changes}))
    weights = load_file(FOLDER / "model.safetensors")
    save_file({name: value for name, value in weights.items() if name != drop}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=message):
        pard.make(tmp_path).open(target_info(), rows=1, capacity=64)
