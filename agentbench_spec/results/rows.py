"""The row schema: one row per (rollout, turn, drafter), and nothing that was not measured."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict

SCHEMA = 5
"""Version of the row schema. Readers refuse newer ones; an older row is read as one of today's, with nulls for what it
did not record. 2: rounds timed, attempts, others' work. 3: tool calls judged. 4: machines, graphs. 5: versions."""

Status = Literal["ok", "oversized", "draft_limit", "no_reference", "invalid", "retracted", "not_reached", "error"]
StopReason = Literal["stop", "length", "end_of_record"]
Divergence = Literal["none", "tie", "error"]
Ended = Literal["done", "turns", "tokens", "loop", "context", "error"]
"""How a live session ended: by itself, at a limit, in a loop of calls, at the target's window, or with an error."""

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(slots=True, kw_only=True)
class TurnRow:
    """One turn of one rollout decoded by one drafter.

    None means "not measured" or "does not apply", never zero. Times in seconds, sizes in bytes, lengths in tokens.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

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
    """Place of this drafter in the turn's balanced order, 0 first."""
    synthetic: bool = False
    """The recorded reply is not a record but a placeholder of ours."""
    labels: dict[str, str] = field(default_factory=dict)

    # under which conditions; rows that differ here never mix
    target: str | None = None
    """Name of the target model."""
    k: int
    """Draft tokens asked for in a round; at most, where k_policy is auto."""
    k_policy: Literal["fixed", "auto"] = "fixed"
    """auto: each round asked for what was expected to take the least time per token."""
    temperature: float
    top_k: int | None = None
    """None: the sampler is not cut to the k likeliest tokens."""
    top_p: float | None = None
    """None: the sampler is not cut to a nucleus."""
    decode_mode: Literal["generate", "forced"]
    history_mode: Literal["recorded", "self", "live"]
    prefix_mode: Literal["kept", "cold"]
    thinking: bool | None
    """The template's enable_thinking flag; None: the template has no such flag."""
    clock: Literal["host", "wall", "attribution", "both"]
    """host: one pass serves both clocks (no device to synchronise); both: two passes."""
    graphs: bool = False
    """Rounds of our own engine were replayed from CUDA graphs, those of all drafters."""

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
    """Accepted drafts of each round, before any stop rule, in order; of servers, rounds without a draft stand last."""
    proposed_lengths: list[int] | None = None
    """Verified drafts of each round, in the same order."""
    asked_lengths: list[int] | None = None
    """Drafts asked for in each round, in order; None: k of all, or as many as the drafter can propose."""
    output_ids: list[int] | None = None

    # clocks
    prefill_s: float | None = None
    """Target over the turn's new positions; one prefill serves all drafters."""
    draft_ingest_s: float | None = None
    """This drafter's observe of the turn's new positions."""
    decode_s: float | None = None
    """Wall time from the anchor to the end of the turn; the source of every speed-up."""
    round_s: list[float] | None = None
    """Wall time of each round, its share of the harness included; they sum to decode_s."""
    attributed_decode_s: float | None = None
    """Wall time of the pass in which the phases below were measured; they and other_s sum to it."""
    draft_s: float | None = None
    verify_s: float | None = None
    accept_s: float | None = None
    draft_append_s: float | None = None
    other_s: float | None = None

    # what disturbed the clocks, in the attempt whose clocks these are
    attempts: int | None = None
    """Times the turn was decoded by all drafters: while something disturbed it, up to `measure.repeats` times more."""
    attempt: int | None = None
    """The attempt whose clocks these are, 0 first; the same for all drafters of the turn."""
    attempts_s: list[float] | None = None
    """decode_s of every attempt."""
    disturbed: bool | None = None
    """Rounds far above their like took much of the time, in the best attempt, too; the clocks then weigh nothing."""
    slow_rounds: int | None = None
    """Rounds far above the median of their like."""
    waiting_s: float | None = None
    """Seconds that our threads were ready to run and others ran, all threads together."""
    cpu_pressure_s: float | None = None
    """Seconds in which some task of the machine waited for a core."""
    memory_pressure_s: float | None = None
    """Seconds in which some task waited for memory."""
    io_pressure_s: float | None = None
    """Seconds in which some task waited for a disk."""
    steal_s: float | None = None
    """Seconds of core time that a hypervisor gave to other machines."""
    other_cores: float | None = None
    """Cores that other processes kept busy."""
    gpu_clock_mhz: int | None = None
    """Clock of the GPU's cores at the end of the turn."""
    gpu_throttle: int | None = None
    """Why it was held back, as NVML's bits; 0: it was not."""
    gpu_others: int | None = None
    """Other processes computing on it."""
    machine: str | None = None
    """Which machine, and GPU of it, the clocks are of, as a digest; None: a server's, or not recorded."""

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
    ceiling: float | None = None
    """Mean of the target's own largest probability at temperature 1 over the emitted tokens; None: not asked for."""

    # the calls of the output; None: it makes none, the turn has no tools, or nobody could judge
    call_valid: bool | None = None
    """Every call that was meant can be read."""
    call_known: bool | None = None
    """Every call that can be read names a tool in force."""
    call_args_valid: bool | None = None
    """The arguments of every call of a known tool fit its schema."""
    call_same: bool | None = None
    """The calls are those of the record (live: of plain decoding), names and arguments in order; None: no calls."""

    # a live session; all None in replay
    env_s: float | None = None
    """Wall time in which the environment carried the turn's calls out; in process one for all drafters."""
    env_error: str | None = None
    """Why the environment did not carry them out; a tool that answers with an error has done its work."""
    ended: Ended | None = None
    """On the last turn: how the session ended."""
    solved: bool | None = None
    """On the last turn: whether the task is solved."""

    # memory
    draft_state_bytes: int | None = None
    """Drafter state that grows with the text, at the end of the turn."""
    target_kv_bytes: int | None = None

    # served by another engine; all None for our own
    backend: str = "engine"
    """engine: our own loop; else the serving engine, as `--backend` names it."""
    engine_version: str | None = None
    """Of that engine, as its server says."""
    async_scheduling: bool | None = None
    """The server prepares a step while the one before runs; None: not told."""
    client: Literal["generate", "chat"] | None = None
    """Route the answers were asked for on."""
    server: str | None = None
    concurrency: int | None = None
    """Rollouts in flight on that server."""
    scope: Literal["request", "server"] | None = None
    """Where acceptance is known: for this request, or only as a total of the server, which no turn's row may hold."""
    ttft_s: float | None = None
    """From sending the request to its first token, queueing included."""
    tpot_s: float | None = None
    """From the first to the last token, per token after the first chunk."""
    step_s: float | None = None
    """From the first to the last token, per verify step."""
    chunk_tokens: list[int] | None = None
    """New tokens of each chunk, in order; None where the route does not tell."""
    chunk_gaps_s: list[float] | None = None
    """Seconds between the chunks, one fewer."""
    server_ttft_s: float | None = None
    """The server's own time to the first token."""
    server_queue_s: float | None = None
    """The server's own time in its queue."""
    server_decode_s: float | None = None
    """The server's own time from the first to the last token."""
    server_accept_length: float | None = None
    """The server's own acceptance length: SGLang's has the prefill token in it, vLLM's no round without a draft."""
    matched_histogram: list[int] | None = None
    """Element m: rounds in which m drafts were accepted; servers tell no order."""
    trimmed: int | None = None
    """Tokens the last round accepted beyond the stop point: emitted_raw - emitted."""
    expected_reused_tokens: int | None = None
    """Prefix tokens that this rollout's earlier turns should have left in the server's cache."""
    retractions: int | None = None
    """Times the server threw the request out of its batch and began it again."""

    @property
    def k_asked(self) -> int | str:
        """What was asked for in a round, in words where it varied."""
        return self.k if self.k_policy == "fixed" else f"auto, up to {self.k}"

    @property
    def greedy(self) -> bool:
        """True if the target's likeliest token was always taken."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(slots=True, kw_only=True)
class RoundRow:
    """One round of one turn, written to `rounds.jsonl` on request; times come from the attribution clock."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    schema: int = SCHEMA
    rollout: str
    turn: int
    drafter: str
    round: int
    """Rounds of the turn counted from 0."""
    asked: int | None = None
    """Draft tokens the drafter was asked for."""
    proposed: int
    matched: int
    """Draft tokens verified, and of these accepted, before any stop rule."""
    emitted: int
    """Tokens the round added to the output, clipped at stop tokens and at the length cap."""
    source: str | None = None
    """Name of the part that guessed, of a drafter made of several; null for one without parts."""
    draft_s: float | None = None
    verify_s: float | None = None
    accept_s: float | None = None
    draft_append_s: float | None = None


NOISE_FIELDS = (
    *["waiting_s", "cpu_pressure_s", "memory_pressure_s", "io_pressure_s"],
    *["steal_s", "other_cores", "gpu_clock_mhz", "gpu_throttle", "gpu_others"],
)
"""What others took while a drafter decoded a turn; null where the system does not tell."""

CLOCK_FIELDS = frozenset(f.name for f in fields(TurnRow) if f.name.endswith("_s")) | {
    *NOISE_FIELDS,
    *["attempts", "attempt", "disturbed", "slow_rounds", "speedup", "speedup_e2e", "chunk_tokens", "machine"],
}
"""Columns that differ between two runs of the same settings; all others are reproducible."""


def _plain_type(name: str) -> Any:
    hint = get_type_hints(TurnRow)[name]
    union = get_origin(hint) in (UnionType, Union)  # `Literal[...] | None` is a typing.Union until Python 3.14
    parts = [part for part in get_args(hint) if part is not type(None)] if union else [hint]
    return str if any(get_origin(part) is Literal for part in parts) else parts[0]


COLUMNS: dict[str, Any] = {f.name: _plain_type(f.name) for f in fields(TurnRow)}
"""Column name -> Python type, in the order of the row."""
