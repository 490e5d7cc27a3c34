"""Continuous batching over engine rows: how many tokens a second come out when C turns decode at once.

One pass serves all conversations with one drafter: whenever a row's turn ends, the next turn of its rollout, or the
next rollout in the queue, is prefilled there while the other rows wait; then all busy rows decode a round together, by
the same `loop.step` that decodes a single turn. Greedy only, as the throughput table of the paper is.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.loop import Turn, step
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY, RowSampler
from agentbench_spec.engine.session import Prefill, Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.errors import ConfigError, MeasurementError


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to serve."""

    rollout: str
    turn: int
    prompt: Sequence[int]

    @property
    def id(self) -> str:
        """Names the turn among all requests."""
        return f"{self.rollout}#{self.turn}"


Conversation = Sequence[Request]
"""The turns of one rollout, in order; they stay on one row, so that their common prefix is kept."""


@dataclass(frozen=True, slots=True)
class Served:
    """A finished turn."""

    request: Request
    turn: Turn
    prefill: Prefill

    @property
    def digest(self) -> str:
        """Of the emitted ids; equal digests are equal outputs."""
        return ids_digest(self.turn.output)


def ids_digest(ids: Iterable[int]) -> str:
    """Names a sequence of token ids."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]


@dataclass(slots=True)
class Pass:
    """What serving all conversations once, with one drafter, took."""

    rows: int
    """Engine rows: the concurrency."""
    served: list[Served] = field(default_factory=list)
    steps: list[tuple[float, int, int]] = field(default_factory=list)
    """(seconds, tokens emitted, busy rows) of each round, in order."""
    phases_s: dict[str, float] | None = None
    """Seconds per phase; None on the wall clock."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Turns that were not served, by reason."""

    @property
    def full(self) -> list[tuple[float, int, int]]:
        """The steps in which every row was busy.

        While requests are queued all steps are. When the queue is empty the batch drains, and a method that ends the
        turns at different steps drains with fewer rows than one that does not: what that takes says how many requests
        there were, not how fast the method is.
        """
        return [step for step in self.steps if step[2] == self.rows]

    @property
    def decode_s(self) -> float:
        """Seconds of all rounds: prefill is not in it."""
        return sum(seconds for seconds, _, _ in self.steps)

    @property
    def emitted(self) -> int:
        """Tokens emitted after the prefill tokens."""
        return sum(tokens for _, tokens, _ in self.steps)


class Server:
    """Serves conversations on the first `rows` rows of a target, with one drafter that is open for as many."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        limits: Limits,
        *,
        rows: int,
        chunk_tokens: int = 512,
        clock: type[Clock] = Clock,
    ):
        """clock: times each round. Raises ConfigError if the target has fewer rows."""
        if not 0 < rows <= target.rows:
            raise ConfigError(f"concurrency {rows}: the engine has {target.rows} rows")
        self._target, self._drafter, self._limits, self._clock = target, drafter, limits, clock
        self._sessions = [Session(target, {"": drafter}, row=row, chunk_tokens=chunk_tokens) for row in range(rows)]
        self._sampler = RowSampler(GREEDY, [])  # greedy needs no generators

    def serve(self, conversations: Iterable[Conversation]) -> Pass:
        """Serve all of them. Raises MeasurementError if the drafter fails over a new context."""
        done = Pass(rows=len(self._sessions))
        waiting = deque(deque(own) for own in conversations if own)
        slots = [_Slot(session) for session in self._sessions]
        while True:
            for slot in slots:
                while slot.free and self._admit(slot, waiting, done):
                    pass
            if all(slot.free for slot in slots):
                return done
            self._round(slots, done)

    def _admit(self, slot: _Slot, waiting: deque[deque[Request]], done: Pass) -> bool:
        """Take the next turn to a free row; False if there is none.

        The row may be free again at once: the turn was left out, or ended on its prefill token.
        """
        if not slot.queue:
            slot.session.reset()  # an idle row must not make the others attend far
            if not waiting:
                return False
            slot.queue = waiting.popleft()
        request = slot.queue.popleft()
        reason = self._refusal(request)
        if reason is not None:
            done.left_out[reason] = done.left_out.get(reason, 0) + 1
            return True
        prefill = slot.session.prefill(request.prompt, _likeliest)
        for error in slot.session.failed.values():
            raise MeasurementError(f"{self._drafter.spec.name}: {request.id}: {error}") from error
        turn = Turn(position=prefill.context_tokens, output=[prefill.anchor])
        slot.serving = Served(request, turn, prefill)
        turn.end(self._limits)
        self._retire(slot, done)
        return True

    def _refusal(self, request: Request) -> str | None:
        need = len(request.prompt) + self._limits.max_new_tokens
        limit = self._drafter.spec.max_positions
        if need > min(self._target.capacity, self._target.info.max_positions):
            return "oversized"
        return "draft_limit" if limit is not None and need > limit else None

    def _round(self, slots: Sequence[_Slot], done: Pass) -> None:
        turns = [None if slot.serving is None else slot.serving.turn for slot in slots]
        clock = self._clock(self._target.info.device)
        clock.begin()
        step(self._target, self._drafter, turns, self._limits, self._sampler, clock)
        times = clock.end()
        if times.phases_s is not None:
            before = done.phases_s or {}
            done.phases_s = {name: before.get(name, 0.0) + spent for name, spent in times.phases_s.items()}
        busy = [turn for turn in turns if turn is not None]
        done.steps.append((times.total_s, sum(turn.rounds[-1].emitted for turn in busy), len(busy)))
        for slot in slots:
            self._retire(slot, done)

    def _retire(self, slot: _Slot, done: Pass) -> None:
        if slot.serving is not None and slot.serving.turn.stop_reason is not None:
            done.served.append(slot.serving)
            slot.serving = None


@dataclass(slots=True)
class _Slot:
    """An engine row, the rest of the rollout it works on, and the turn it decodes."""

    session: Session
    queue: deque[Request] = field(default_factory=deque)
    serving: Served | None = None

    @property
    def free(self) -> bool:
        return self.serving is None


def _likeliest(logits: Tensor) -> Tensor:
    return logits.argmax()


def row_bytes(config: Any, dtype: torch.dtype, capacity: int, k: int) -> int:
    """Bytes a row of the target needs: its KV over `capacity` tokens, and its logits in a round of k drafts."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    per_token = 2 * config.num_hidden_layers * kv_heads * head_dim
    return int((per_token * capacity + (k + 1) * config.vocab_size) * dtype.itemsize)


def rows_that_fit(
    wanted: Sequence[int], bytes_per_row: int, free_bytes: int | None, who: str = ""
) -> tuple[list[int], list[str]]:
    """The concurrencies whose rows fit into free memory, and a line for each that does not.

    free_bytes: None where the memory is unknown; who: what begins the lines, where they are about one drafter.
    """
    fit, notes = [], []
    for rows in wanted:
        need = rows * bytes_per_row
        if free_bytes is None or need <= free_bytes:
            fit.append(rows)
        else:
            notes.append(
                f"{who}concurrency {rows} was not run: {rows} rows x {bytes_per_row / 1e6:,.0f} MB = "
                f"{need / 1e9:.1f} GB, and {free_bytes / 1e9:.1f} GB are free; "
                "use a smaller target.capacity_tokens or decode.max_new_tokens"
            )
    return fit, notes


def free_memory_bytes(device: torch.device) -> int | None:
    """Memory that can still be allocated on `device`; None where the machine does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as facts:  # noqa: PTH123
            line = next(line for line in facts if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    return int(line.split()[1]) * 1024
