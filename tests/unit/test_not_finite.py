"""Logits that are not finite are an error of the turn, never a token; a masked vocabulary is none."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from localmodel import save_rollouts, session
from replaykit import by_drafter, replayed, replayer, three_turns
from rowkit import make_row
from runkit import replay, rows_of
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal
from agentbench_spec.engine.batching import Request, Server
from agentbench_spec.engine.loop import Turn, decode
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY, Sampling
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.engine.verify import sound
from agentbench_spec.errors import MeasurementError, NotFinite
from agentbench_spec.results.tables import column_notes
from agentbench_spec.results.verdict import not_finite
from agentbench_spec.serving.engines.sglang_server import SGLangServer
from agentbench_spec.serving.server_rows import fill_answer
from agentbench_spec.serving.stream import Answer
from agentbench_spec.testing import PlainDrafter, ScriptedDrafter, greedy_text, row_sampler, toy_target, toy_turns
from agentbench_spec.train.features import greedy_choices

PROMPT = toy_turns()[0]
AT = len(PROMPT)
NAN, INF = float("nan"), float("inf")
FAULTS = {"nan": [NAN], "inf": [INF], "nothing": [-INF] * 64}
"""What is written over the first logits of a position."""


def spoiled(at: int, values: Sequence[float], **options: Any) -> Target:
    """A toy target whose logits at text position `at` begin with `values`, whatever is fed there."""
    target = toy_target(**options)

    def spoil(_module: object, _args: object, given: dict[str, Any], out: Any) -> None:
        here = given["position_ids"][:, -out.logits.shape[1] :] == at
        out.logits[..., : len(values)] = torch.where(
            here[..., None], torch.tensor(values), out.logits[..., : len(values)]
        )

    target.model.register_forward_hook(spoil, with_kwargs=True)
    return target


@pytest.mark.parametrize(
    ("row", "finite"),
    [
        ([0.0, 1.0], True),
        ([-INF, 1.0], True),
        ([NAN, 1.0], False),
        ([1.0, NAN], False),
        ([INF, 1.0], False),
        ([-INF, -INF], False),
        ([-INF, NAN], False),
    ],
)
def test_what_names_a_choice(row: list[float], finite: bool) -> None:
    """Fails if a padded vocabulary is refused, or NaN, +inf or nothing at all passes for a choice."""
    good = [0.0, 0.0]
    assert sound(torch.tensor([[good, row, good]])).tolist() == [3 if finite else 1]


@pytest.mark.parametrize("mode", ["greedy", "sampled", "forced"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("ahead", [0, 3], ids=["at the anchor", "in the block"])
def test_every_mode_names_the_position(mode: str, fault: str, ahead: int) -> None:
    """Fails if a choice is read from logits that are not finite, or another position is named."""
    text = greedy_text(toy_target(), PROMPT, 20)
    sampling = Sampling(1.0) if mode == "sampled" else GREEDY
    drafter = PlainDrafter() if mode == "sampled" else ScriptedDrafter([text])
    target = spoiled(AT + ahead, FAULTS[fault])
    drafter.open(target.info, rows=1, capacity=target.capacity)
    target.evaluate(0, [0], torch.tensor([PROMPT]))
    target.commit(0, AT)
    turn = Turn(AT, [text[AT]], text[AT:] if mode == "forced" else None)
    with pytest.raises(NotFinite, match=rf"logits are not finite at position {AT + ahead}\b"):
        decode(target, drafter, [turn], Limits(5, 12), row_sampler(target, sampling, "x"), Clock(target.info.device))


def test_what_is_not_read_is_no_error() -> None:
    """Fails if logits behind a rejected draft, from which nothing is chosen, end a turn."""
    text = greedy_text(toy_target(), PROMPT, 8)
    wrong = [*text[: AT + 1], (text[AT + 1] + 1) % 64, *text[AT + 2 :]]
    target = spoiled(AT + 4, [NAN])
    drafter = ScriptedDrafter([wrong])
    drafter.open(target.info, rows=1, capacity=target.capacity)
    target.evaluate(0, [0], torch.tensor([PROMPT]))
    target.commit(0, AT)
    turn = Turn(AT, [text[AT]])
    decode(target, drafter, [turn], Limits(5, 2), row_sampler(target, GREEDY, "x"), Clock(target.info.device))
    assert turn.output == text[AT : AT + 2]


@pytest.mark.parametrize("forced", [False, True])
def test_the_first_token_is_checked_too(forced: bool) -> None:
    """Fails if the prompt's last logits are not looked at, the record's first token covering them."""
    row = Session(spoiled(AT - 1, [NAN]), {})

    def choose(logits: Tensor) -> int | Tensor:
        return 3 if forced else logits.argmax()

    with pytest.raises(NotFinite, match=rf"at position {AT - 1}\b"):
        row.prefill(PROMPT, choose)


def test_batches_are_checked_and_leave_no_bad_values_behind() -> None:
    """Fails if a pass of table 4 counts such tokens, or what they left in the cache gets through the next mask."""
    target = toy_target(rows=2)
    work = [[Request("a", 0, PROMPT)], [Request("b", 0, PROMPT[: AT // 2])]]
    drafter = PlainDrafter()
    drafter.open(target.info, rows=2, capacity=target.capacity)
    good = Server(target, drafter, Limits(0, 12), rows=2).serve(work)
    long, short = (served.turn.output for served in sorted(good.served, key=lambda each: each.request.rollout))
    fed = next(token for token in short[2:-1] if token not in {*PROMPT, *long})
    table = target.info.embed_tokens.weight
    kept = table[fed].clone()
    table[fed] = NAN
    with pytest.raises(MeasurementError, match="logits are not finite at position"):
        Server(target, drafter, Limits(0, 12), rows=2).serve(work)
    table[fed] = kept
    again = Server(target, drafter, Limits(0, 12), rows=2).serve(work)
    assert [served.digest for served in again.served] == [served.digest for served in good.served]


def test_a_masked_vocabulary_is_served() -> None:
    """Fails if entries that a model pads with -inf are taken for a fault, at the probe or in a turn."""
    plain = greedy_text(toy_target(), PROMPT, 12)
    unused = next(token for token in range(64) if token not in plain)
    target = toy_target()

    def mask(_module: object, _args: object, out: Any) -> None:
        out.logits[..., unused] = -INF

    target.model.register_forward_hook(mask)
    target.self_check()
    assert greedy_text(target, PROMPT, 12) == plain
    turns = replayed(replayer({"plain": PlainDrafter()}, target=target), three_turns())
    assert {row.status for turn in turns for row in turn.rows} == {"ok"}


def test_a_drafters_turn_costs_that_turn() -> None:
    """Fails if a drafter that leads the target into NaN takes the baseline with it, or is out for good."""
    target = toy_target()
    first, *_ = replayed(replayer(target=target), three_turns())
    said = {token for row in first.rows for token in row.output_ids or ()}
    bad = next(token for token in range(64) if token not in said | set(range(13)) | set(range(20, 64)))
    target.info.embed_tokens.weight[bad] = NAN

    class Leads(Drafter):
        """Proposes the bad token in the first turn only."""

        spec = DrafterSpec("leads")

        def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
            return Proposal(ids=torch.full((len(anchor), k), bad if int(position.max()) < 27 else 1))

    turns = replayed(replayer({"leads": Leads()}, target=target), three_turns())
    rows = by_drafter(turns, "leads")
    assert rows[0].status == "error" and "logits are not finite at position" in str(rows[0].error)
    assert [row.status for row in rows[1:]] == ["ok"] * (len(turns) - 1)
    assert {row.status for row in by_drafter(turns, "none")} == {"ok"}
    assert not_finite(row for turn in turns for row in turn.rows) is None


@pytest.fixture
def poisoned(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model with NaN for the letter Z, and a copy whose last norm has one."""
    for name, tensor, at in (("late", "model.embed_tokens.weight", 57), ("model", "model.norm.weight", 3)):
        shutil.copytree(tiny, tmp_path / name)
        weights = load_file(tmp_path / name / "model.safetensors")
        weights[tensor][at] = NAN
        save_file(weights, tmp_path / name / "model.safetensors", {"format": "pt"})
    return tmp_path


@pytest.mark.parametrize("mode", ["generate", "forced"])
def test_a_baseline_without_a_choice_voids_the_run(poisoned: Path, mode: str) -> None:
    """Fails if token 0 for ever passes for a lossless run with a fine speed-up and exit code 0."""
    data = poisoned / "r.jsonl"
    save_rollouts(data, session("Zoe", 2), session("b", 2))
    done = replay(poisoned / "late", data, poisoned / "run", "--drafter", "ngram", "--mode", mode)
    assert done.code == 1
    assert "void: the target's logits are not finite in " in done.err
    rows = rows_of(poisoned / "run")
    bad = [row for row in rows if row.rollout == "Zoe" and row.turn == 0]
    assert {row.drafter for row in bad} == {"none", "ngram"}
    assert all(row.status == "error" and "logits are not finite at position" in str(row.error) for row in bad)
    assert {row.status for row in rows if row.rollout == "b"} == {"ok"}


def test_a_table_over_such_a_run_says_void() -> None:
    """Fails if a table of the paper is printed over it without a word; a drafter's own error is no such thing."""
    error = "NotFinite: logits are not finite at position 9"
    bad = [make_row(drafter=name, status="error", error=error) for name in ("none", "ngram")]
    good = [make_row(turn=1, drafter=name, matched=[0]) for name in ("none", "ngram")]
    assert [line for line in column_notes([*bad, *good]) if line.startswith("none: VOID: the target's logits")]
    assert not [line for line in column_notes([bad[1], *good]) if "VOID" in line]


def test_the_load_probe_says_not_finite(poisoned: Path) -> None:
    """Fails if broken weights are called an architecture that is not supported."""
    save_rollouts(poisoned / "r.jsonl", session("b", 1))
    done = replay(poisoned / "model", poisoned / "r.jsonl", poisoned / "run", "--drafter", "ngram")
    assert done.code == 2
    assert "not finite" in done.error and "architecture" not in done.error


@pytest.mark.parametrize(("ids", "loops"), [([0] * 24, True), ([0, 0], True), ([5, *[0] * 23], True), ([5, 9], False)])
def test_a_server_that_answers_one_token_is_flagged(ids: list[int], loops: bool) -> None:
    """Fails if a short turn of one token over and over, a broken server's answer, counts as text."""
    row, answer = make_row(), Answer(sent_at=0.0, output_ids=ids, completion_tokens=len(ids))
    fill_answer(row, answer, SGLangServer("http://server"))
    assert row.degenerate is loops


def test_a_target_that_chooses_nothing_cannot_teach() -> None:
    """Fails if a drafter is trained towards the index of a NaN."""
    states, supervised = torch.tensor([[0.0, 1.0], [NAN, 1.0], [1.0, 0.0]]), torch.tensor([False, True, True])
    with pytest.raises(MeasurementError, match="logits are not finite"):
        greedy_choices(lambda rows: rows, states, supervised)
    supervised[2] = False
    assert greedy_choices(lambda rows: rows, states, supervised).tolist() == [1, -1, -1]
