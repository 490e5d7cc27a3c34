"""One row per (drafter, concurrency): what a pass of continuous batching took and gave."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.row_formats import refuse_newer
from agentbench_spec.results.rows import SCHEMA
from agentbench_spec.writing import write_bytes

ROWS = "throughput.jsonl"
PassClock = Literal["host", "wall", "attribution"]


@dataclass(slots=True, kw_only=True)
class ThroughputRow:
    """One pass. None: not measured. Decoding is counted without the prefills, as the paper's harness counts it.

    A pass through servers is counted from the first send to the last byte: a client cannot take its prefills out.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    schema: int = SCHEMA
    target: str
    workload: str
    drafter: str
    k: int
    thinking: bool | None
    concurrency: int
    """Engine rows."""
    repeat: int = 0
    """Which of the passes at this concurrency, each with its own order of drafters."""
    clock: PassClock = "wall"
    """Speed comes from host and wall; attribution, an extra pass on a GPU, gives phases only."""
    graphs: bool = False
    """Rounds of our own engine were replayed from CUDA graphs."""
    status: Literal["ok", "error"] = "ok"
    error: str | None = None
    turns: int = 0
    """Turns served."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Turns not served, by reason."""
    degenerate_turns: int = 0
    """Turns served whose output is a repetition loop: they count, because the batch decoded them."""
    output_tokens: int | None = None
    emitted: int | None = None
    """Tokens emitted after the prefill tokens, clipped."""
    emitted_raw: int | None = None
    rounds: int | None = None
    """Rounds of all turns; a step of the batch is a round of every busy row."""
    steps: int | None = None
    busy_rows: float | None = None
    """Mean rows at work in a step, of the whole pass: the batch drains once the queue is empty."""
    decode_s: float | None = None
    full_steps: int | None = None
    """Steps in which every row was at work: those that speed is taken from."""
    full_emitted: int | None = None
    full_s: float | None = None
    other_cores: float | None = None
    """Cores that other work on the machine kept busy meanwhile."""
    contended: bool = False
    """True if that was more than the pass could spare: its seconds are doubtful."""
    prefill_s: float | None = None
    draft_ingest_s: float | None = None
    draft_append_s: float | None = None
    """Of the whole pass; None on the wall clock, and for a drafter that fuses it."""
    windows: list[tuple[int, float]] = field(default_factory=list)
    """(tokens, seconds) of up to 20 consecutive stretches of the pass, for whoever looks for a drift."""
    rollouts: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """(emitted, emitted_raw, rounds) of each rollout."""
    outputs: dict[str, str] = field(default_factory=dict)
    """Digest of each turn's output."""
    backend: str = "engine"
    """engine, or the serving engine."""
    engine_version: str | None = None
    async_scheduling: bool | None = None
    """As in the rows of turns."""
    servers: int | None = None
    """Servers that shared the rollouts, each at this concurrency; None: our own engine."""
    served_s: float | None = None
    """Wall seconds from the first send to the last byte, times servers."""

    @property
    def draft_kv_share(self) -> float | None:
        """Share of the whole pass (prefill, ingest, decoding) that went into draft-KV maintenance."""
        parts = (self.prefill_s, self.draft_ingest_s, self.draft_append_s, self.decode_s)
        if self.drafter == "none" or any(part is None for part in parts):
            return None
        prefill, ingest, append, decode = (part or 0.0 for part in parts)
        return (ingest + append) / (prefill + ingest + decode)

    @property
    def tokens_per_s(self) -> float | None:
        """Emitted tokens per second of the steps with every row busy; of servers, output tokens per second of each.

        None where no such step was measured: in a pass with fewer rollouts than rows, on the attribution clock, and in
        rows of older versions.
        """
        if self.clock == "attribution":
            return None
        if self.backend != "engine":
            return self.output_tokens / self.served_s if self.output_tokens and self.served_s else None
        return self.full_emitted / self.full_s if self.full_emitted and self.full_s else None


CLOCK_FIELDS = frozenset(f.name for f in fields(ThroughputRow) if f.name.endswith("_s")) | {
    "windows",
    "other_cores",
    "contended",
}
"""Columns that differ between two runs of the same settings on our own engine; all others are reproducible."""


def identical_to(row: ThroughputRow, plain: Mapping[str, str]) -> tuple[int, int]:
    """(turns whose output is plain decoding's, turns compared). plain: outputs of the baseline."""
    shared = row.outputs.keys() & plain.keys()
    return sum(row.outputs[name] == plain[name] for name in shared), len(shared)


_ROW = TypeAdapter(ThroughputRow)


def append_row(folder: Path, row: ThroughputRow) -> None:
    """Add a line to the folder's rows."""
    with (folder / ROWS).open("a", encoding="utf-8") as file:
        file.write(row_text(row))


def row_text(row: ThroughputRow) -> str:
    """The row as its line."""
    return json.dumps(asdict(row), allow_nan=False) + "\n"


def read_rows(folder: Path) -> list[ThroughputRow]:
    """All rows of a folder; a torn last line is dropped. Raises ConfigError naming file, line and field."""
    path = folder / ROWS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [_parse(line, path, n) for n, line in enumerate(lines, 1) if line.endswith(b"\n")]


def drop_torn_line(folder: Path) -> None:
    """Cut what a killed run left of its last line."""
    path = folder / ROWS
    if path.exists() and not (content := path.read_bytes()).endswith(b"\n"):
        write_bytes(path, content[: content.rfind(b"\n") + 1])


def _parse(line: bytes, path: Path, number: int) -> ThroughputRow:
    try:
        refuse_newer(json.loads(line).get("schema"), f"{path}:{number}")
        return _ROW.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}:{number}: field {'.'.join(map(str, first['loc']))!r}: {first['msg']}") from error
    except ValueError as error:
        raise ConfigError(f"{path}:{number}: not JSON ({error})") from error


Cell = tuple[str, int]
"""(drafter, concurrency)."""


def by_pass(rows: Iterable[ThroughputRow]) -> dict[tuple[str, int, int, str], ThroughputRow]:
    """(drafter, concurrency, repeat, clock) -> its row."""
    return {pass_of(row): row for row in rows}


def pass_of(row: ThroughputRow) -> tuple[str, int, int, str]:
    """What names a pass in its folder."""
    return row.drafter, row.concurrency, row.repeat, row.clock


def by_cell(rows: Iterable[ThroughputRow]) -> dict[Cell, list[ThroughputRow]]:
    """(drafter, concurrency) -> its passes, in order."""
    cells: dict[Cell, list[ThroughputRow]] = {}
    for row in sorted(rows, key=lambda row: row.repeat):
        cells.setdefault((row.drafter, row.concurrency), []).append(row)
    return cells
