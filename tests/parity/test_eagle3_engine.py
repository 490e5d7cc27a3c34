"""Whole EAGLE-3 decodes through the engine's own loop, against the traces of DeepSpec's loop (golden sections 3, 4)."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import eagle3_kit as kit
import pytest
import torch
from agentbench_spec_drafters.eagle3 import make
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentbench_spec.conformance.kit import check
from agentbench_spec.drafting import Drafter, Proposal, Span, TargetInfo
from agentbench_spec.engine.loop import Turn, decode
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY, RowSampler, Sampling, generator
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock

CPU = torch.device("cpu")


@cache
def target() -> Target:
    model = AutoModelForCausalLM.from_pretrained(kit.DATA / "target", dtype=torch.float32).eval()
    return Target(model, name="golden", capacity=400)


@dataclass
class Witness(Drafter):
    """Passes everything on to a drafter and notes what it proposed, and where."""

    inner: Drafter
    drafted: list[list[int]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    inputs: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spec = self.inner.spec

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        self.inner.open(target, rows=rows, capacity=capacity)

    def observe(self, span: Span) -> None:
        self.inner.observe(span)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        self.inner.sampler = self.sampler
        proposal = self.inner.propose(anchor, position, k)
        count = k if proposal.count is None else int(proposal.count[0])
        ids = proposal.ids[0, :count].tolist()
        self.drafted.append(ids)
        self.inputs.append([int(anchor[0]), *ids])
        self.starts.append(int(position[0]))
        return proposal

    def truncate(self, row: int, length: int) -> None:
        self.inner.truncate(row, length)


def decoded(
    case: dict[str, Any], folder: Path = kit.DRAFT, *, sampling: Sampling = GREEDY, chunk: int = 512
) -> tuple[Witness, Any]:
    """Decode one case as recorded: the official loop tests the anchor's position, so its limit lies one further."""
    stops = case["stop_token_ids"] or []
    witness = Witness(make(folder, stop_ids=stops))
    witness.open(target().info, rows=1, capacity=400)
    session = Session(target(), {"eagle3": witness}, chunk_tokens=chunk)
    session.prefill(case["prompt_ids"], lambda logits: int(logits.argmax()))
    limits = Limits(k=7, max_new_tokens=case["max_new_tokens"] + 1, stop_ids=frozenset(stops))
    sampler = RowSampler(sampling, [generator(CPU, 0)])
    turn, _, _ = session.decode("eagle3", limits, sampler, Clock(CPU))
    assert session.failed == {}
    return witness, turn


@pytest.mark.parametrize("case_id", kit.CASES)
def test_whole_trace(case_id: str) -> None:
    """Output, drafts, verify inputs and accepted counts of every round of every recorded case, exactly."""
    case = kit.CASES[case_id]
    witness, turn = decoded(case, chunk=7 if case_id in ("c06", "c11") else 512)
    rounds = case["rounds"]
    assert witness.starts == rounds["start"]
    assert witness.drafted == rounds["draft_tokens"]
    assert witness.inputs == rounds["verify_input_ids"]
    assert [r.matched for r in turn.rounds] == rounds["accepted_draft"]
    assert [r.proposed for r in turn.rounds] == [len(ids) for ids in rounds["draft_tokens"]]
    output = turn.output[: case["max_new_tokens"]]
    assert case["prompt_ids"] + output == case["output_ids"]
    lengths = [r.matched + 1 for r in turn.rounds]
    if case.get("stopped_inside_draft"):  # there the official count is what was emitted
        lengths[-1] = turn.rounds[-1].emitted
    assert lengths == case["accept_lengths"]


def test_four_ragged_rows_decode_as_recorded() -> None:
    """Four cases of very different length in one batch: every row repeats its own trace."""
    cases = [kit.CASES[case_id] for case_id in ("c00", "c05", "c07", "c10")]
    batch = Target(target().model, name="golden", capacity=400, rows=4)
    drafter = make(kit.DRAFT)
    drafter.open(batch.info, rows=4, capacity=400)
    turns: list[Turn | None] = []
    for row, case in enumerate(cases):
        session = Session(batch, {"eagle3": drafter}, row=row, chunk_tokens=50)
        first = session.prefill(case["prompt_ids"], lambda logits: int(logits.argmax()))
        turns.append(Turn(position=len(case["prompt_ids"]), output=[first.anchor]))
    sampler = RowSampler(GREEDY, [generator(CPU, row) for row in range(4)])
    decode(batch, drafter, turns, Limits(k=7, max_new_tokens=40), sampler, Clock(CPU))
    for turn, case in zip(turns, cases, strict=True):
        assert turn is not None
        assert case["prompt_ids"] + turn.output == case["output_ids"][: len(case["prompt_ids"]) + 40]
        assert [r.matched for r in turn.rounds] == case["rounds"]["accepted_draft"][: len(turn.rounds)]


@pytest.mark.parametrize(("layers", "same"), [([0, 1, 2, 3, 4], True), ([-1, 0, 1, 2, 3], False)])
def test_tapped_layers_one_off_break_the_trace(layers: list[int], same: bool, tmp_path: Path) -> None:
    """One layer off still gives the same text, and only the trace tells; the control uses the right layers."""
    folder = Path(shutil.copytree(kit.DRAFT, tmp_path / "draft"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "target_layer_ids": layers}))
    case = kit.CASES["c06"]
    witness, turn = decoded(case, folder)
    assert case["prompt_ids"] + turn.output[: case["max_new_tokens"]] == case["output_ids"]
    assert (witness.drafted == case["rounds"]["draft_tokens"]) is same


def test_conformance() -> None:
    """Every law of the kit that applies to a target of this size holds of the golden pair."""
    laws = ("spec", "lossless", "incremental", "no-trace", "rows", "padding", "truncate")
    long = Target(target().model, name="golden", capacity=1024)
    report = check(lambda: make(kit.DRAFT), target=long, only=laws)
    assert {finding.law: finding.outcome for finding in report.findings if finding.law in laws} == dict.fromkeys(
        laws, "passed"
    ), report.failed


def test_sampled_output_follows_the_target() -> None:
    """T > 0 with a drawn draft: the first two tokens over many seeds are distributed as the target's own samples."""
    case = kit.CASES["c04"]
    sampling = Sampling(temperature=1.0, top_k=3)
    drafter = make(kit.DRAFT)
    drafter.open(target().info, rows=1, capacity=400)
    session = Session(target(), {"eagle3": drafter}, chunk_tokens=512)
    session.prefill(case["prompt_ids"], lambda logits: int(logits.argmax()))
    limits, draws, seen = Limits(k=3, max_new_tokens=2), 250, torch.zeros(160)
    for seed in range(draws):
        turn, _, _ = session.decode("eagle3", limits, RowSampler(sampling, [generator(CPU, seed)]), Clock(CPU))
        seen[turn.output[1]] += 1
    text = torch.tensor([[*case["prompt_ids"], turn.output[0]]])
    with torch.no_grad():
        scores = target().model(text).logits[0, -1]
    best = scores.topk(3)
    expected = best.values.softmax(-1) * draws
    observed = seen[best.indices]
    assert observed.sum() == draws
    assert ((observed - expected).square() / expected).sum() < 13.8  # chi-square, 2 degrees of freedom, p = 0.001
