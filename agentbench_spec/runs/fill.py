"""From a decoded turn to its row: conditions, counts, clocks and comparisons, each filled in one place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from agentbench_spec.engine.loop import Turn
from agentbench_spec.engine.lossless import Comparison
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY, Sampling
from agentbench_spec.engine.session import Prefill
from agentbench_spec.engine.timing import ClockMode, Times
from agentbench_spec.errors import AgentBenchError
from agentbench_spec.results.costs import turn_speedup, turn_speedup_e2e
from agentbench_spec.results.metrics import is_degenerate
from agentbench_spec.results.rows import RoundRow, Status, TurnRow
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.toolcalls.verdicts import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Everything that decides what a turn's numbers mean; the same for all rows of a run."""

    limits: Limits
    sampling: Sampling = GREEDY
    decode_mode: Literal["generate", "forced"] = "generate"
    history_mode: Literal["recorded", "self", "live"] = "recorded"
    prefix_mode: Literal["kept", "cold"] = "kept"
    thinking: bool | None = None
    template_form: str | None = None
    """How messages were bent to the chat template, in words; None: not at all."""
    clock: ClockMode = "host"
    seed: int = 0
    chunk_tokens: int = 512
    max_turns: int | None = None
    """Turns replayed per rollout; None: all."""
    tie_tolerance: float | None = None
    """Logit gap that counts as a tie; None: by dtype."""
    beyond_window: Literal["refuse", "flag"] = "refuse"
    """What becomes of turns that are longer than the target's trained window."""
    ceiling: bool = False
    """Fill in the rows' `ceiling`."""
    repeats: int = 0
    """Times more that a turn is decoded while something disturbs its clocks."""
    machine: str | None = None
    """Which machine, and GPU of it, the clocks are of."""
    graphs: bool = False
    """Rounds are replayed from CUDA graphs."""


@dataclass(slots=True)
class Decoded:
    """One decoder's turn: the wall pass, and the attribution pass if that was another one."""

    turn: Turn
    order: int
    state_bytes: int
    wall: Times | None = None
    attributed: Times | None = None
    noise: dict[str, Any] = field(default_factory=dict)
    """What others took in the wall pass: columns of the row."""
    slow_rounds: int = 0
    """Rounds far above what such rounds take."""
    lost_s: float = 0.0
    """What they took beyond that."""
    disturbed: bool = False
    """That is much of the time."""


@dataclass(slots=True)
class TurnState:
    """What the rows of one turn share."""

    index: int
    message: int
    number: int = 0
    """Of the turn in the run, over all rollouts."""
    prefill: Prefill | None = None
    drift_tokens: int | None = None
    attempts: list[dict[str, Decoded]] = field(default_factory=list)
    """Every drafter's decoding, each time the turn was decoded."""
    failed: dict[str, Exception] = field(default_factory=dict)
    """Drafters that could not decode this turn, and go on with the next."""
    attempt: int = 0
    """The attempt whose clocks count."""

    @property
    def decoded(self) -> dict[str, Decoded]:
        """Every drafter's decoding that counts."""
        return self.attempts[self.attempt] if self.attempts else {}


class DraftLimit(AgentBenchError):
    """The text has outgrown what a drafter supports."""


def identity(target: str, workload: str, conditions: Conditions, rollout: Rollout, state: TurnState) -> dict[str, Any]:
    """The fields all rows of a turn share: what was decoded, and under which conditions."""
    sampling = conditions.sampling
    return {
        "workload": workload,
        "rollout": rollout.id,
        "turn": state.index,
        "message": state.message,
        "synthetic": rollout.messages[state.message].synthetic,
        "labels": {
            **{key: str(value) for key, value in rollout.labels.items()},
            **({"template": conditions.template_form} if conditions.template_form else {}),
        },
        "target": target,
        "k": conditions.limits.k,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k or None,
        "top_p": None if sampling.top_p == 1 else sampling.top_p,
        "decode_mode": conditions.decode_mode,
        "history_mode": conditions.history_mode,
        "prefix_mode": conditions.prefix_mode,
        "thinking": conditions.thinking,
        "clock": conditions.clock,
        "machine": conditions.machine,
        "graphs": conditions.graphs,
    }


def describe(error: BaseException) -> str:
    """An error in one line, as a row carries it."""
    return f"{type(error).__name__}: {error}"


def status_of(error: Exception) -> Status:
    """The row status an exception stands for."""
    return "draft_limit" if isinstance(error, DraftLimit) else "error"


def fill_prefill(row: TurnRow, state: TurnState, kv_bytes_per_token: int) -> None:
    """What the turn's one prefill did, on every row of the turn."""
    done = state.prefill
    if done is None:
        return
    row.context_tokens, row.new_tokens, row.reused_tokens = done.context_tokens, done.new_tokens, done.reused_tokens
    row.drift_tokens = state.drift_tokens
    row.prefill_s = done.prefill_s
    row.draft_ingest_s = done.ingest_s.get(row.drafter)
    row.target_kv_bytes = done.context_tokens * kv_bytes_per_token


def fill_counts(row: TurnRow, turn: Turn) -> None:
    """Tokens and rounds, counted on what the loop emitted."""
    rounds = turn.rounds
    row.stop_reason = turn.stop_reason
    row.output_ids, row.output_tokens = list(turn.output), len(turn.output)
    row.degenerate = is_degenerate(turn.output)
    row.rounds = len(rounds)
    row.emitted = sum(r.emitted for r in rounds)
    row.emitted_raw = sum(r.matched + 1 for r in rounds)
    row.proposed = sum(r.proposed for r in rounds)
    row.matched = sum(r.matched for r in rounds)
    row.proposed_lengths = [r.proposed for r in rounds]
    row.matched_lengths = [r.matched for r in rounds]
    if row.k_policy == "auto":
        row.asked_lengths = [r.asked for r in rounds if r.asked is not None]
    row.tau = row.emitted / row.rounds if rounds else None
    row.tau_raw = row.emitted_raw / row.rounds if rounds else None


def fill_times(row: TurnRow, decoded: Decoded, *, fused_ingest: bool) -> None:
    """Wall and attributed seconds; a drafter that fuses upkeep into propose has none of its own to show."""
    if decoded.wall is not None:
        row.decode_s, row.round_s = decoded.wall.total_s, decoded.wall.round_s
    if decoded.attributed is not None and decoded.attributed.phases_s is not None:
        spent = decoded.attributed.phases_s
        row.attributed_decode_s = decoded.attributed.total_s
        row.draft_s, row.verify_s, row.accept_s = spent["draft"], spent["verify"], spent["accept"]
        row.draft_append_s = spent["draft_append"]
        row.other_s = decoded.attributed.other_s
    if fused_ingest:
        row.draft_ingest_s = row.draft_append_s = None


def fill_noise(row: TurnRow, state: TurnState) -> None:
    """What disturbed the clocks, and how often the turn was decoded for it."""
    decoded = state.decoded[row.drafter]
    made = [attempt[row.drafter].wall for attempt in state.attempts]
    row.attempts, row.attempt = len(state.attempts), state.attempt
    row.attempts_s = [times.total_s for times in made if times] or None
    if decoded.wall is not None:
        row.slow_rounds, row.disturbed = decoded.slow_rounds, decoded.disturbed
    for name, value in decoded.noise.items():
        setattr(row, name, value)


def fill_comparison(row: TurnRow, baseline: TurnRow, found: Comparison | None) -> None:
    """Speed-up and losslessness against the baseline of the same turn."""
    row.speedup, row.speedup_e2e = turn_speedup(baseline, row), turn_speedup_e2e(baseline, row)
    if found is not None:
        row.identical, row.divergence = found.kind == "none", found.kind
        row.divergence_at, row.divergence_margin = found.at, found.margin


def fill_calls(row: TurnRow, verdict: Verdict) -> None:
    """What is said of the calls of the output."""
    row.call_valid, row.call_known = verdict.valid, verdict.known
    row.call_args_valid, row.call_same = verdict.args_valid, verdict.same


def round_rows(row: TurnRow, decoded: Decoded) -> list[RoundRow]:
    """The turn's rounds, one row each, with the attribution clock's phases where it ran."""
    spent = (decoded.attributed.rounds_s if decoded.attributed else None) or {}
    seconds: list[dict[str, Any]] = [{f"{name}_s": s[i] for name, s in spent.items()} for i in range(row.rounds or 0)]
    return [
        RoundRow(
            rollout=row.rollout,
            turn=row.turn,
            drafter=row.drafter,
            round=i,
            asked=done.asked,
            proposed=done.proposed,
            matched=done.matched,
            emitted=done.emitted,
            source=done.source,
            **seconds[i],
        )
        for i, done in enumerate(decoded.turn.rounds)
    ]


def said_ids(rollout: Rollout, message: int, target: str) -> list[int]:
    """Ids that this target emitted for a message of a live session; empty if it is none, or another target's.

    A text may have more than one way to be tokens, or none: bytes that are no text.
    """
    live = rollout.source.get("live")
    if not isinstance(live, dict) or live.get("target") != target:
        return []
    return list(live.get("output_ids", {}).get(str(message), ()))
