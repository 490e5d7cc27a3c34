"""From one answer to its row: the same columns as our own engine's, filled with what a client can know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from agentbench_spec.engine.sampling import Sampling
from agentbench_spec.results.metrics import BASELINE, is_degenerate
from agentbench_spec.results.rows import Status, StopReason, TurnRow
from agentbench_spec.rollout import Rollout
from agentbench_spec.serving.servers import Acceptance, Server
from agentbench_spec.serving.stream import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Under which conditions all answers of a run are asked for."""

    workload: str
    target: str
    sampling: Sampling
    history_mode: Literal["recorded", "self", "live"]
    prefix_mode: Literal["kept", "cold"]
    thinking: bool | None
    client: Literal["generate", "chat"]
    concurrency: int
    max_new_tokens: int
    max_turns: int | None = None
    template_form: str | None = None
    """How messages were bent to the chat template, in words; None: not at all, or by the server."""


def blank_row(served: Served, server: Server, rollout: Rollout, turn: int, message: int, **fields: Any) -> TurnRow:
    """The row of one turn before anything was asked."""
    return TurnRow(
        workload=served.workload,
        rollout=rollout.id,
        turn=turn,
        message=message,
        drafter=server.drafter,
        synthetic=rollout.messages[message].synthetic,
        labels={
            **{key: str(value) for key, value in rollout.labels.items()},
            **({"template": served.template_form} if served.template_form else {}),
        },
        target=served.target,
        k=server.k,
        temperature=served.sampling.temperature,
        top_k=served.sampling.top_k or None,
        top_p=None if served.sampling.top_p == 1 else served.sampling.top_p,
        decode_mode="generate",
        history_mode=served.history_mode,
        prefix_mode=served.prefix_mode,
        thinking=served.thinking,
        clock="wall",
        backend=server.backend,
        engine_version=server.version,
        async_scheduling=server.async_scheduling,
        client=served.client,
        server=server.base_url,
        concurrency=served.concurrency,
        **fields,
    )


def fill_answer(row: TurnRow, answer: Answer, server: Server) -> None:
    """Everything one answer tells; a row whose counts contradict each other is invalid and says which."""
    _fill_context(row, answer)
    _fill_output(row, answer)
    broken = [*_fill_acceptance(row, answer, server), *_broken_output(answer)]
    _fill_clocks(row, answer)
    row.status, row.error = _status(row, answer, broken)
    if row.status not in ("ok", "retracted"):
        _void(row)


def _fill_context(row: TurnRow, answer: Answer) -> None:
    row.context_tokens = answer.prompt_tokens
    row.reused_tokens = answer.cached_tokens
    if answer.prompt_tokens is not None and answer.cached_tokens is not None:
        row.new_tokens = answer.prompt_tokens - answer.cached_tokens


def _fill_output(row: TurnRow, answer: Answer) -> None:
    row.output_ids, row.output_tokens = answer.output_ids, answer.completion_tokens
    row.degenerate = None if answer.output_ids is None else _looped(answer.output_ids)
    row.stop_reason = _STOPS.get(answer.finish or "")
    row.retractions = answer.details.get("num_retractions")


_MIN_ALIKE_TOKENS = 8
"""From so many on, one other token may stand before those that are all alike."""


def _looped(ids: Sequence[int]) -> bool:
    """True for a repetition loop, or one token over and over at any length: what logits that are not finite answer."""
    alike = len(ids) > 1 and len(set(ids[1:])) == 1
    return is_degenerate(ids) or (alike and (ids[0] == ids[-1] or len(ids) >= _MIN_ALIKE_TOKENS))


_STOPS: dict[str, StopReason] = {"stop": "stop", "length": "length"}


def _broken_output(answer: Answer) -> list[str]:
    ids, told, asked = answer.output_ids, answer.completion_tokens, answer.asked_tokens
    broken = []
    if ids is not None and told is not None and len(ids) != told:
        broken.append(f"{len(ids)} output ids, completion_tokens says {told}")
    if answer.finish == "length" and told is not None and asked is not None and told < asked:
        broken.append(f"cut at {told} of {asked} tokens, and said to have its length: the server's window is too short")
    return broken


def _fill_acceptance(row: TurnRow, answer: Answer, server: Server) -> list[str]:
    """Rounds and τ; returns the identities the server's counts break."""
    tokens = answer.completion_tokens
    if tokens is None:
        return ["the server told no completion_tokens"]
    told = server.acceptance(answer)
    if told is None:
        _fill_without_details(row, tokens, server)
        return []
    row.scope = "request"
    row.server_accept_length = told.server_accept_length
    row.emitted = max(tokens - 1, 0)
    row.retractions = row.retractions if told.retractions is None else told.retractions
    if told.rounds is not None:
        _fill_rounds(row, told, told.rounds)
    return list(told.broken)


def _fill_without_details(row: TurnRow, tokens: int, server: Server) -> None:
    """Plain decoding: each step gives one token. A drafter's answer of one token needed no step; else it is unknown."""
    row.scope = "request"
    if (row.drafter == BASELINE and server.plain_steps) or tokens <= 1:
        rounds = max(tokens - 1, 0)
        row.rounds = row.emitted = row.emitted_raw = rounds
        row.matched = row.proposed = row.trimmed = 0
        row.tau = row.tau_raw = 1.0 if rounds else None
    else:
        row.scope = "server"
        row.emitted = tokens - 1


def _fill_rounds(row: TurnRow, told: Acceptance, rounds: int) -> None:
    row.rounds, row.matched, row.proposed, row.trimmed = rounds, told.matched, told.proposed, told.trimmed
    if not row.k and told.proposed and rounds:  # the server did not tell its width
        row.k = -(-told.proposed // rounds)
    row.emitted_raw = None if told.matched is None else told.matched + rounds
    if rounds:
        row.tau = (row.emitted or 0) / rounds
        row.tau_raw = None if row.emitted_raw is None else row.emitted_raw / rounds
    row.matched_histogram = _listed(told.histogram)
    row.matched_lengths, row.proposed_lengths = _listed(told.matched_lengths), _listed(told.proposed_lengths)


def _listed(values: Sequence[int] | None) -> list[int] | None:
    return None if values is None else list(values)


def _fill_clocks(row: TurnRow, answer: Answer) -> None:
    row.server_ttft_s = answer.details.get("first_token_latency")
    row.server_queue_s = answer.details.get("queue_time")
    row.server_decode_s = answer.details.get("decode_time")
    if not answer.chunk_at:
        return
    first, last = answer.chunk_at[0], answer.chunk_at[-1]
    row.ttft_s = first - answer.sent_at
    row.chunk_tokens = answer.chunk_tokens
    row.chunk_gaps_s = [after - before for before, after in pairwise(answer.chunk_at)]
    in_first = answer.chunk_tokens[0] if answer.chunk_tokens else 1
    rest = (answer.completion_tokens or 0) - in_first
    if len(answer.chunk_at) < 2 or rest < 1:
        return
    row.tpot_s = (last - first) / rest
    if in_first == 1:  # else the clock did not see every token that the turn emitted after the prefill
        row.decode_s = last - first
        row.step_s = row.decode_s / row.rounds if row.rounds else None


def _status(row: TurnRow, answer: Answer, broken: list[str]) -> tuple[Status, str | None]:
    if answer.finish == "abort":
        return "error", f"the server aborted the request: {answer.finish_message or 'no reason given'}"
    if broken:
        return "invalid", "; ".join(broken)
    if row.retractions:
        return "retracted", f"begun anew {row.retractions} times: clocks and counts span more than one attempt"
    return "ok", None


def _void(row: TurnRow) -> None:
    """Leave nothing derived in a row whose sources cannot be trusted; what the server said stays in `error`."""
    row.tau = row.tau_raw = None
    row.rounds = row.emitted = row.emitted_raw = row.matched = row.proposed = row.trimmed = None
    row.matched_histogram = row.matched_lengths = row.proposed_lengths = None
    row.tpot_s = row.step_s = row.decode_s = None
