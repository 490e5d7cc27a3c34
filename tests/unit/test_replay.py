"""Rollouts turn by turn: what each row says, and what one fault may cost."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from replaykit import (
    END,
    Forgetful,
    Ids,
    as_text,
    by_drafter,
    continuations,
    replayed,
    replayer,
    rollout,
    said,
    three_turns,
)
from torch import Tensor, nn

from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal, Span
from agentbench_spec.engine.lossless import TIE_TOLERANCE
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import Sampling
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import Evaluated, Target
from agentbench_spec.engine.timing import Stopwatch
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.rollout import Message
from agentbench_spec.runs.fill import Conditions
from agentbench_spec.runs.replay import Replayer
from agentbench_spec.testing import PlainDrafter, greedy_text, toy_model, toy_target


class Knows(Drafter):
    """Knows how every text of a list goes on; told apart by position, as the turns' prompts differ in length."""

    spec = DrafterSpec(name="knows", history_free=True)

    def __init__(self, texts: Sequence[Sequence[int]], wrong: Collection[int] = ()):
        self._texts, self._wrong = [list(text) for text in texts], wrong
        self._heard: list[int] = []
        self.asked = 0

    def observe(self, span: Span) -> None:
        if count := int(span.count[0]):
            self._heard[int(span.start[0]) :] = span.input_ids[0, :count].tolist()

    def truncate(self, row: int, length: int) -> None:
        del self._heard[length:]

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        self.asked += 1
        text = [*self._heard, int(anchor[0])]
        known = next((t for t in self._texts if t[: len(text)] == text), [])
        guesses = known[len(text) : len(text) + k]
        guesses = [(g + 1) % 64 if len(text) + i in self._wrong else g for i, g in enumerate(guesses)]
        return Proposal(torch.tensor([guesses], dtype=torch.int64).view(1, -1))


@cache
def texts_of_three_turns() -> list[list[int]]:
    return continuations(three_turns())


def knowing(**options: Any) -> Knows:
    return Knows(texts_of_three_turns(), **options)


def facts(rows: Sequence[TurnRow]) -> list[tuple[Any, ...]]:
    """What must not hang on the machine: ids, counts, statuses."""
    return [(r.turn, r.status, r.output_ids, r.rounds, r.matched_lengths, r.tau, r.tau_raw) for r in rows]


def test_every_row_of_a_rollout() -> None:
    """Fails if turns, prompts, counts or comparisons are filled from the wrong turn."""
    each, texts = three_turns(), texts_of_three_turns()
    turns = replayed(replayer({"knows": knowing()}, stop=frozenset()), each)
    prompts = [Ids().prompt(each, point) for point in each.decode_points()]
    assert [row.message for row in by_drafter(turns, "none")] == [1, 3, 5]
    for name in ("none", "knows"):
        rows = by_drafter(turns, name)
        assert [row.context_tokens for row in rows] == list(map(len, prompts))
        assert [row.output_ids for row in rows] == [t[len(p) :][:12] for t, p in zip(texts, prompts, strict=True)]
        assert [(row.status, row.identical, row.divergence) for row in rows] == [("ok", True, "none")] * 3
    assert [(row.tau, row.tau_raw, row.rounds) for row in by_drafter(turns, "knows")] == [(11 / 3, 5.0, 3)] * 3
    assert [(row.tau, row.tau_raw, row.rounds) for row in by_drafter(turns, "none")] == [(1.0, 1.0, 11)] * 3
    assert all(row.speedup == 1.0 for row in by_drafter(turns, "none"))
    # kept: all of the last prompt but its last position, whose follower is the record and not the target's choice
    assert [row.reused_tokens for row in by_drafter(turns, "none")] == [0, len(prompts[0]) - 1, len(prompts[1]) - 1]


def test_a_turn_that_ends_on_its_first_token_keeps_its_row() -> None:
    """Field case 3: fails if the row is dropped, or given a tau of 0 or 1."""
    first = texts_of_three_turns()[0][len(Ids().prompt(three_turns(), 1))]
    turns = replayed(replayer({"knows": knowing()}, stop=frozenset([first])), three_turns())
    row = by_drafter(turns, "knows")[0]
    assert (row.status, row.rounds, row.tau, row.tau_raw, row.output_tokens) == ("ok", 0, None, None, 1)
    assert (row.speedup, row.identical, row.stop_reason) == (None, True, "stop")


class Rounding(nn.Module):
    """An output head where one token gains a rounding error as soon as several positions are computed at once."""

    def __init__(self, head: nn.Linear, token: int):
        super().__init__()
        self.weight, self.token = head.weight, token

    def forward(self, x: Tensor) -> Tensor:
        logits = x @ self.weight.T
        if x.shape[1] > 1:
            logits[..., self.token] += 1e-10
        return logits


def test_a_planted_tie_is_a_tie_and_not_a_failure() -> None:
    """Field case 7: fails if two equal logits that a block's rounding tells apart void the run."""
    each = three_turns()
    start = len(Ids().prompt(each, 1))
    text = continuations(each)[0]
    at = 3
    top = text[start + at]
    twin = next(token for token in range(top + 1, END) if token not in text[start : start + 12])
    model = toy_model()
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[top]  # plain decoding takes the lower id of equals
    model.lm_head = Rounding(model.lm_head, twin)
    target = Target(model, name="toy", capacity=256)
    [turn] = replayed(replayer({"knows": knowing()}, target=target, stop=frozenset(), max_turns=1), each)
    baseline, row = turn.rows
    assert baseline.output_ids is not None and row.output_ids is not None
    assert (baseline.output_ids[at], row.output_ids[at]) == (top, twin)
    assert (row.status, row.identical, row.divergence, row.divergence_at) == ("ok", False, "tie", at)
    assert row.divergence_margin is not None and row.divergence_margin <= TIE_TOLERANCE[torch.float64]


class Dropping(Target):
    """A planted bug: the choices of a verified block are read one position too late, so an accepted token is lost."""

    def evaluate(
        self, first_row: int, start: Sequence[int], input_ids: Tensor, *, keep: int = 0, taps: Collection[int] = ()
    ) -> Evaluated:
        sound = super().evaluate(first_row, start, input_ids, keep=keep, taps=taps)
        return Evaluated(sound.logits.roll(-1, dims=1), sound.states)


def test_a_planted_bug_is_an_error() -> None:
    """Field case 7: fails if a loop that drops an accepted token is excused as rounding."""
    target = Dropping(toy_model(), name="toy", capacity=256)
    turns = replayed(replayer({"knows": knowing()}, target=target, stop=frozenset()), three_turns())
    for row in by_drafter(turns, "knows"):
        assert (row.identical, row.divergence, row.divergence_at) == (False, "error", 1)
        assert row.divergence_margin is not None and row.divergence_margin > 0.01


class Limited(PlainDrafter):
    spec = replace(PlainDrafter.spec, name="limited", max_positions=50)


def test_draft_limits_and_oversized_prompts_keep_their_rows() -> None:
    """Field case 18: fails if a turn that cannot be measured has no row, stops the run, or hides from the others."""
    long = rollout(
        said("user", *range(1, 13)),
        said("assistant", 20),
        said("tool", *range(1, 40)),
        said("assistant", 21),
        said("tool", *[3] * 200),
        said("assistant", 22),
        name="long",
    )
    replays = replayer({"limited": Limited(), "knows": knowing()}, target=toy_target(capacity=128))
    turns = replayed(replays, long, rollout(*three_turns().messages[:2], name="short"))
    statuses = {name: [row.status for row in by_drafter(turns, name)] for name in ("none", "limited", "knows")}
    assert statuses["none"] == statuses["knows"] == ["ok", "ok", "oversized", "ok"]
    assert statuses["limited"] == ["ok", "draft_limit", "oversized", "ok"]
    limited, oversized = by_drafter(turns, "limited")[1:3]
    assert limited.error is not None and "71 positions needed, the drafter supports 50" in limited.error
    assert (limited.tau, limited.decode_s, limited.output_ids) == (None, None, None)
    assert limited.context_tokens == 59
    assert oversized.error is not None and "engine capacity 128" in oversized.error
    assert oversized.context_tokens is None


class Sleepy(PlainDrafter):
    """Sleeps 200 ms in its first proposal ever, and 20 ms over each turn's new context."""

    spec = replace(PlainDrafter.spec, name="sleepy", max_tokens=None)

    def __init__(self) -> None:
        self.first_calls, self.turns = 0, 0
        self._ingesting = True

    def truncate(self, row: int, length: int) -> None:
        self._ingesting = True

    def observe(self, span: Span) -> None:
        if self._ingesting:
            self.turns += 1
            time.sleep(0.02)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        self._ingesting = False
        if not self.first_calls:
            self.first_calls += 1
            time.sleep(0.2)
        return super().propose(anchor, position, k)


@pytest.mark.parametrize("stop_at_once", [False, True])
def test_warm_up_is_kept_out_and_ingest_is_kept_in(stop_at_once: bool) -> None:
    """Field case 22: fails if a first call lands in a turn, or if work at a turn's start is in no column.

    It did where the rehearsal's first token was a stop token: the drafter was never asked before the first turn.
    """
    each, drafter = three_turns(), Sleepy()
    prompt = Ids().prompt(each, 1)
    first = continuations(each)[0][len(prompt)]
    replays = replayer({"sleepy": drafter}, stop=frozenset([first]) if stop_at_once else frozenset())
    with Stopwatch(torch.device("cpu")) as warm_up:
        session = Session(replays.target, {"sleepy": drafter})
        replays.rehearse(session, each, "sleepy", prompt)
        session.reset()
    assert drafter.first_calls == 1 and warm_up.seconds >= 0.2
    drafter.turns = 0
    rows = by_drafter(replayed(replays, each), "sleepy")
    assert drafter.turns == 3
    for row in rows:
        assert row.draft_ingest_s is not None and row.draft_ingest_s >= 0.02
        assert row.speedup is None or row.speedup_e2e is None or row.speedup_e2e < row.speedup
    assert [row.speedup is None for row in rows] == [stop_at_once, False, False]


def test_a_rehearsal_raises_what_the_drafter_raised() -> None:
    """Fails if a drafter that dies while it ingests ends the run as a KeyError of its name."""

    class Dies(PlainDrafter):
        def observe(self, span: Span) -> None:
            raise RuntimeError("no kernel for this shape")

    replays = replayer({"dies": Dies()})
    session = Session(replays.target, {"dies": replays.drafters["dies"]})
    with pytest.raises(RuntimeError, match="no kernel"):
        replays.rehearse(session, three_turns(), "dies", [1, 2, 3])


def test_cold_and_kept_prefixes_say_the_same() -> None:
    """Field case 28: fails if a kept prefix changes ids or tau, or if the row does not say which it was."""
    kept, cold = (
        by_drafter(replayed(replayer({"knows": knowing()}, prefix_mode=mode), three_turns()), "knows")
        for mode in ("kept", "cold")
    )
    assert facts(kept) == facts(cold)
    assert {row.prefix_mode for row in kept} == {"kept"} and {row.prefix_mode for row in cold} == {"cold"}
    assert [row.reused_tokens for row in cold] == [0, 0, 0]
    assert [row.new_tokens for row in cold] == [row.context_tokens for row in kept]


def thoughtful() -> tuple[Message, ...]:
    messages = list(three_turns().messages)
    messages[1] = messages[1].model_copy(update={"reasoning": "11 12 13"})
    return tuple(messages)


def test_a_template_that_rewrites_history_is_cut_and_logged() -> None:
    """Field case 16: fails if dropped thoughts pass for a full hit, or if the drift is not in the row."""
    each = rollout(*thoughtful())
    turns = replayed(replayer({"knows": Knows(continuations(each, Forgetful()))}, renderer=Forgetful()), each)
    rows = by_drafter(turns, "none")
    first = len(Ids().prompt(each, 1))
    assert [row.drift_tokens for row in rows] == [0, 3 + 4 + 1, 0]  # thought, reply and END stand elsewhere
    assert rows[1].reused_tokens == first - 1
    assert [row.output_ids for row in rows] == [
        text[len(Forgetful().prompt(each, point)) :][: len(row.output_ids or [])]
        for text, point, row in zip(continuations(each, Forgetful()), each.decode_points(), rows, strict=True)
    ]
    kept = by_drafter(replayed(replayer(renderer=Ids()), each), "none")
    assert [row.drift_tokens for row in kept] == [0, 0, 0]


class Breaks(PlainDrafter):
    """Raises once a text is longer than `limit`, in the call named."""

    spec = replace(PlainDrafter.spec, name="breaks")

    def __init__(self, call: str, limit: int):
        self._call, self._limit = call, limit

    def observe(self, span: Span) -> None:
        self._check("observe", int(span.start[0] + span.count[0]))

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        self._check("propose", int(position[0]))
        return super().propose(anchor, position, k)

    def _check(self, call: str, length: int) -> None:
        if call == self._call and length > self._limit:
            raise RuntimeError(f"cannot {call} at {length}")


@pytest.mark.parametrize(("call", "limit"), [("observe", 26), ("observe", 30), ("propose", 30)])
def test_one_drafters_fault_is_its_own(call: str, limit: int) -> None:
    """Fails if a drafter that dies in mid-rollout takes the others, its own earlier rows or later rollouts with it."""
    short = rollout(said("user", 1, 2), said("assistant", 3), name="short")
    sound = by_drafter(replayed(replayer({"knows": knowing()}), three_turns()), "knows")
    turns = replayed(replayer({"breaks": Breaks(call, limit), "knows": knowing()}), three_turns(), short)
    assert facts(by_drafter(turns, "knows")[:3]) == facts(sound)
    rows = by_drafter(turns, "breaks")
    assert [row.status for row in rows] == ["ok", "error", "error", "ok"]
    assert all(row.error is not None and f"RuntimeError: cannot {call} at" in row.error for row in rows[1:3])
    assert [row.output_ids for row in rows[1:3]] == [None, None]


def test_a_target_fault_ends_one_rollout() -> None:
    """Fails if a fault of the target ends the run, leaves no row, or spoils the next rollout."""
    model = toy_model()

    def poison(_module: nn.Module, inputs: tuple[Tensor], _output: Tensor) -> None:
        if (inputs[0] == 59).any():
            raise RuntimeError("token 59 kills this target")

    model.get_input_embeddings().register_forward_hook(poison)  # type: ignore[operator]
    bad = rollout(*three_turns().messages[:2], said("tool", 59), *three_turns().messages[3:], name="bad")
    target = Target(model, name="toy", capacity=256)
    turns = replayed(replayer({"knows": knowing()}, target=target), bad, three_turns())
    for name in ("none", "knows"):
        rows = by_drafter(turns, name)
        assert [(row.rollout, row.status) for row in rows] == [
            *(("bad", status) for status in ("ok", "error", "not_reached")),
            *[("r", "ok")] * 3,
        ]
        assert rows[1].error == "RuntimeError: token 59 kills this target"
    fresh = replayed(replayer({"knows": knowing()}), three_turns())
    assert facts(by_drafter(turns, "knows")[3:]) == facts(by_drafter(fresh, "knows"))


def test_a_refused_message_ends_one_rollout() -> None:
    """Fails if a rollout that cannot be rendered has no row that says why, or ends the run."""
    bad = rollout(*three_turns().messages[:2], Message(role="tool", content="broken"), said("assistant", 4), name="bad")
    turns = replayed(replayer(), bad, three_turns())
    rows = by_drafter(turns, "none")
    assert [row.status for row in rows] == ["ok", "error", "ok", "ok", "ok"]
    assert rows[1].error == "ConfigError: the template refuses this message"


def test_a_baseline_that_fails_ends_one_rollout() -> None:
    """Fails if a turn without its baseline is compared with nothing: that was a KeyError that ended the run."""
    replays = replayer({"knows": knowing()})
    replays.drafters["none"] = Breaks("observe", 26)  # the second prompt: no decoding gets that far
    turns = replayed(replays, three_turns())
    assert [[row.status for row in turn.rows] for turn in turns] == [["ok"] * 2, ["error"] * 2, ["not_reached"] * 2]


def test_self_history_goes_on_with_what_the_target_said() -> None:
    """Fails if the next prompt holds the recorded reply, or runs more than what is new."""
    each, seen = three_turns(), list[list[int]]()

    class Recording(Ids):
        def prompt(self, rollout: Any, index: int) -> list[int]:
            seen.append(super().prompt(rollout, index))
            return seen[-1]

    turns = replayed(replayer(renderer=Recording(), history_mode="self", stop=frozenset()), each)
    rows = by_drafter(turns, "none")
    text = list(Ids().prompt(each, 1))
    for row, prompt, message in zip(rows, seen, (2, 4, None), strict=True):
        assert prompt == text
        assert row.output_ids == greedy_text(toy_target(), prompt, 12)[len(prompt) :]
        if message is not None:
            text = [*text, *row.output_ids, END, *Ids()._message(each.messages[message]), 62]
    assert [row.drift_tokens for row in rows] == [0, 0, 0]
    assert [row.reused_tokens for row in rows[1:]] == [len(prompt) for prompt in seen[:2]]


def test_forced_turns_emit_the_record_and_skip_placeholders() -> None:
    """Fails if a weak target's own words leak into a forced turn, or if a placeholder is replayed as a record."""
    messages = list(three_turns().messages)
    messages[3] = said("assistant", 20, 21, synthetic=True)
    each = rollout(*messages)
    record = [*Ids().prompt(each, 1), *Ids().reply(each, 1)]
    turns = replayed(replayer({"knows": Knows([record])}, decode_mode="forced"), each)
    for name, rounds in (("none", 4), ("knows", 1)):
        rows = by_drafter(turns, name)
        assert [row.status for row in rows] == ["ok", "no_reference", "ok"]
        assert [row.output_ids for row in rows] == [[20, 21, 22, 23, END], None, [50, 51, END]]
        assert rows[0].rounds == rounds
        assert [row.synthetic for row in rows] == [False, True, False]
    free = replayed(replayer(), each)
    assert [row.status for row in by_drafter(free, "none")] == ["ok"] * 3


@pytest.mark.parametrize(("cap", "turns"), [(None, 3), (2, 2), (9, 3)])
def test_max_turns(cap: int | None, turns: int) -> None:
    """Fails if the cap counts messages, or cuts a rollout that is shorter."""
    assert len(replayed(replayer(max_turns=cap), three_turns())) == turns


PHASE_COLUMNS = ("draft_s", "verify_s", "accept_s", "draft_append_s", "other_s")


@pytest.mark.parametrize(
    ("mode", "wall", "phases", "passes"),
    [("host", True, True, 1), ("wall", True, False, 1), ("attribution", False, True, 1), ("both", True, True, 2)],
)
def test_clock_modes(mode: str, wall: bool, phases: bool, passes: int) -> None:
    """Fails if a mode fills a column it did not measure, leaves one empty, or changes what is decoded."""
    drafter = knowing()
    turns = replayed(replayer({"knows": drafter}, clock=mode), three_turns())
    rows = by_drafter(turns, "knows")
    assert facts(rows) == facts(by_drafter(replayed(replayer({"knows": knowing()}), three_turns()), "knows"))
    assert drafter.asked == passes * sum(row.rounds or 0 for row in rows)
    for row in rows:
        assert row.clock == mode
        assert (row.decode_s is not None, row.speedup is not None) == (wall, wall)
        columns = [getattr(row, name) for name in (*PHASE_COLUMNS, "attributed_decode_s")]
        assert [value is not None for value in columns] == [phases] * 6
        if phases:
            assert row.other_s is not None and row.other_s >= -1e-9
            assert sum(columns[:5]) == pytest.approx(columns[5])
    for turn in turns:
        assert len(turn.rounds) == sum(row.rounds or 0 for row in turn.rows)
        assert all((done.verify_s is not None) == phases for done in turn.rounds)


def test_two_passes_that_differ_void_the_drafters_turn() -> None:
    """Fails if one pass's phases are printed beside another's rounds; where these were fewer, the run ended."""

    class Moody(Knows):
        def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
            return super().propose(anchor, position, k if self.asked < 2 else 1)

    moody = Moody(texts_of_three_turns())
    turns = replayed(replayer({"moody": moody, "knows": knowing()}, clock="both"), three_turns())
    rows = by_drafter(turns, "moody")
    assert [row.status for row in rows] == ["error"] * 3
    assert rows[0].error is not None and "MeasurementError: two passes over one turn differ" in rows[0].error
    assert [row.status for row in by_drafter(turns, "knows")] == ["ok"] * 3


class Fused(PlainDrafter):
    spec = replace(PlainDrafter.spec, name="fused", fused_ingest=True)


def test_fused_upkeep_is_null_and_not_zero() -> None:
    """Fails if a drafter that does its upkeep inside propose is shown with none (field case 14)."""
    turns = replayed(replayer({"fused": Fused(), "plain": PlainDrafter()}), three_turns())
    assert all((row.draft_ingest_s, row.draft_append_s) == (None, None) for row in by_drafter(turns, "fused"))
    assert all(row.draft_ingest_s is not None for row in by_drafter(turns, "plain"))


SAMPLED = {"k": 4, "max_new_tokens": 20, "stop": frozenset[int]()}


def test_sampled_turns_hang_on_the_seed_and_not_on_the_company() -> None:
    """Fails if a drafter's sampled text changes with the drafters beside it, or is not reproducible."""

    def ids(seed: int, *others: str) -> list[list[int] | None]:
        drafters: dict[str, Drafter] = {name: knowing() for name in (*others, "knows")}
        replays = replayer(drafters, sampling=Sampling(1.0), seed=seed, **SAMPLED)
        rows = by_drafter(replayed(replays, three_turns()), "knows")
        assert {row.identical for row in rows} == {None}  # drawn at random: they need not agree
        return [row.output_ids for row in rows]

    assert ids(0) == ids(0) == ids(0, "a", "b")
    assert ids(0) != ids(1)


def test_contradicting_conditions_are_refused() -> None:
    """Fails if a run starts whose numbers could mean nothing."""
    target, limits = toy_target(), Limits(4, 8)
    with pytest.raises(ConfigError, match="baseline 'none' must be among"):
        Replayer(target, {"x": PlainDrafter()}, Ids(), Conditions(limits=limits), "w")
    with pytest.raises(ConfigError, match="history_mode must be recorded"):
        replayer(decode_mode="forced", history_mode="self")
    with pytest.raises(ConfigError, match="temperature"):
        replayer(decode_mode="forced", sampling=Sampling(0.5))


def test_scripted_rows_name_their_text() -> None:
    """Fails if the renderer of these tests says other ids than the messages hold, which would hide a replay fault."""
    each = three_turns()
    assert as_text(Ids().prompt(each, 1)) == "61 1 2 3 4 5 6 7 8 9 10 11 12 63 62"
    assert [*Ids().prompt(each, 1), *Ids().reply(each, 1)] == Ids().prompt(each, 3)[: 15 + 5]
