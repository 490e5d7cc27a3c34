"""The row schema: one row per (rollout, turn, drafter), and nothing that was not measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

SCHEMA = 1
"""Version of the row schema; readers refuse newer ones."""

Status = Literal["ok", "oversized", "draft_limit", "no_reference", "error"]
StopReason = Literal["stop", "length", "end_of_record"]
Divergence = Literal["none", "tie", "error"]


@dataclass(slots=True, kw_only=True)
class TurnRow:
    """One turn of one rollout decoded by one drafter.

    None means "not measured" or "does not apply", never zero. Times in seconds, sizes in bytes, lengths in tokens.
    """

    # what was decoded
    schema: int = SCHEMA
    workload: str
    rollout: str
    turn: int
    """Decode points of the rollout counted from 0."""
    message: int
    """Index of the assistant message this turn stands for."""
    drafter: str
    order: int | None = None
    """Place of this drafter in the turn's rotated order, 0 first."""
    synthetic: bool = False
    """The recorded reply is not a record but a placeholder of ours."""
    labels: dict[str, str] = field(default_factory=dict)

    # under which conditions; rows that differ here never mix
    k: int
    temperature: float
    decode_mode: Literal["generate", "forced"]
    history_mode: Literal["recorded", "self", "live"]
    prefix_mode: Literal["kept", "cold"]
    thinking: bool | None
    """The template's enable_thinking flag; None: the template has no such flag."""
    clock: Literal["host", "wall", "attribution", "both"]
    """host: one pass serves both clocks (no device to synchronise); both: two passes."""

    # how it ended
    status: Status = "ok"
    error: str | None = None
    stop_reason: StopReason | None = None
    degenerate: bool | None = None
    """The output is a repetition loop; left out of headline τ."""

    # context
    context_tokens: int | None = None
    """Prompt length of the turn, before its first generated token."""
    new_tokens: int | None = None
    """Positions the target ran in this turn's prefill."""
    reused_tokens: int | None = None
    """Positions kept from earlier turns."""
    drift_tokens: int | None = None
    """Tokens of the earlier text that the template's new rendering did not keep; 0: strictly append-only."""

    # counts
    output_tokens: int | None = None
    """Tokens emitted in the turn, the prefill token included."""
    rounds: int | None = None
    emitted: int | None = None
    """Tokens emitted after the prefill token, clipped at stop tokens and the length cap: Σ of clipped rounds."""
    emitted_raw: int | None = None
    """Σ over rounds of (matched + 1), the last round unclipped."""
    tau: float | None = None
    """emitted / rounds; None when there was no round."""
    tau_raw: float | None = None
    """emitted_raw / rounds; what the paper's released loop counts."""
    proposed: int | None = None
    """Draft tokens verified."""
    matched: int | None = None
    """Draft tokens accepted, before any stop rule."""
    matched_lengths: list[int] | None = None
    """Accepted drafts of each round, before any stop rule, in order."""
    proposed_lengths: list[int] | None = None
    """Verified drafts of each round, in order."""
    output_ids: list[int] | None = None

    # clocks
    prefill_s: float | None = None
    """Target over the turn's new positions; one prefill serves all drafters."""
    draft_ingest_s: float | None = None
    """This drafter's observe of the turn's new positions."""
    decode_s: float | None = None
    """Wall time from the anchor to the end of the turn; the source of every speed-up."""
    attributed_decode_s: float | None = None
    """Wall time of the pass in which the phases below were measured; they and other_s sum to it."""
    draft_s: float | None = None
    verify_s: float | None = None
    accept_s: float | None = None
    draft_append_s: float | None = None
    other_s: float | None = None

    # against the baseline of the same turn
    speedup: float | None = None
    """Baseline decode seconds per token / this drafter's, same turn."""
    speedup_e2e: float | None = None
    """The same with prefill and ingest inside."""
    identical: bool | None = None
    """Emitted ids equal the baseline's (greedy or forced only)."""
    divergence: Divergence | None = None
    divergence_at: int | None = None
    """First output position that differs."""
    divergence_margin: float | None = None
    """Gap between the two top logits there."""

    # memory
    draft_state_bytes: int | None = None
    """Drafter state that grows with the text, at the end of the turn."""
    target_kv_bytes: int | None = None
