"""One uninterrupted stretch of measuring: its wall time, its tokens, and what the servers counted meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.serving import prometheus
from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.engines.base_engine import Engine
from agentbench_spec.serving.stream import Answer
from agentbench_spec.serving.traffic import ServedReplayer

WINDOWS = "windows.jsonl"
_STRETCHES = 20


class Traffic:
    """When tokens arrived, over all answers of a window; several threads add to it."""

    def __init__(self) -> None:
        self._sent: list[float] = []
        self._last: list[float] = []
        self._tokens: list[tuple[float, int]] = []
        self.heard: list[tuple[TurnRow, Answer]] = []
        """Each answer with its row."""

    def add(self, row: TurnRow, answer: Answer) -> None:
        """Take in an answer; its tokens count if its row does."""
        self.heard.append((row, answer))
        if answer.last_at is None:
            return
        arrived = answer.chunk_at or [answer.last_at]
        each = answer.chunk_tokens or _spread(answer.completion_tokens or 0, len(arrived))
        self._last.append(answer.last_at)
        if row.status == "ok":
            self._tokens.extend(zip(arrived, each, strict=True))
        self._sent.append(answer.sent_at)

    @property
    def wall_s(self) -> float | None:
        """Seconds from the first send to the last byte; None if nothing was answered."""
        return max(self._last) - min(self._sent) if self._sent else None

    def stretches(self) -> list[tuple[int, float]]:
        """(tokens that arrived, seconds) of 20 equal parts of the wall time."""
        wall_s = self.wall_s
        if not wall_s:
            return []
        start, tokens = min(self._sent), [0] * _STRETCHES
        for at, count in self._tokens:
            tokens[min(int((at - start) / wall_s * _STRETCHES), _STRETCHES - 1)] += count
        return [(count, wall_s / _STRETCHES) for count in tokens]


def _spread(tokens: int, chunks: int) -> list[int]:
    """Tokens shared evenly by chunks, for the chat route, which does not tell how many came in each."""
    return [tokens * (i + 1) // chunks - tokens * i // chunks for i in range(chunks)]


@contextmanager
def window(
    path: Path, config: RunConfig, replayers: Sequence[ServedReplayer], rows: Sequence[TurnRow], *, emptied: bool
) -> Iterator[None]:
    """Time the block and append what happened in it to `path`, also if it is left by an error.

    emptied: the servers' caches hold nothing of what was asked before.
    """
    engine = engine_of(config.backend)
    before = _counters(engine, replayers)
    traffic = Traffic()
    for replayer in replayers:
        replayer.heard = traffic.add
    start, spent_s = time.perf_counter(), time.process_time()
    whole = False
    try:
        yield
        whole = True
    finally:
        wall_s = traffic.wall_s or time.perf_counter() - start
        client_s = time.process_time() - spent_s
        after = _counters(engine, replayers) if whole else None
        grown = prometheus.difference(before, after) if before and after else None
        check = engine.cross_check(grown, traffic.heard) if grown else None
        entry = {
            "whole": whole,
            "emptied": emptied,
            "wall_s": wall_s,
            "stretches": traffic.stretches(),
            "client_cpu_share": client_s / wall_s,
            "concurrency": config.servers.concurrency,
            "servers": sum(replayer.server.size for replayer in replayers),
            "rollouts": len({row.rollout for row in rows}),
            "output_tokens": sum(row.output_tokens or 0 for row in rows if row.status == "ok"),
            "counters": check.as_dict() if check else None,
            "server_accept_length": {"scope": "server", "each": _server_lengths(engine, replayers) if whole else None},
        }
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")


def _counters(engine: Engine, replayers: Sequence[ServedReplayer]) -> list[dict[str, float]] | None:
    texts = [replayer.client.metrics() for replayer in replayers]
    return None if any(text is None for text in texts) else [engine.counters(text or "") for text in texts]


def _server_lengths(engine: Engine, replayers: Sequence[ServedReplayer]) -> list[float | None]:
    """The server-wide average since the flush, of the first rank of each server, as the server words it."""
    return [_server_length(engine, replayer) for replayer in replayers]


def _server_length(engine: Engine, replayer: ServedReplayer) -> float | None:
    try:
        return engine.describe(replayer.client).accept_length
    except (ConfigError, MeasurementError):  # it died after its last answer
        return None
