"""One row per (context, concurrency, method, k) of a geometry: what a round with a scripted acceptance takes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.writing import write_bytes

ROWS = "geometry.jsonl"
SCHEMA = 1


@dataclass(slots=True, kw_only=True)
class GeometryRow:
    """Rounds of one method at one context and concurrency. None: not measured. τ is an input here, never a result."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    schema: int = SCHEMA
    geometry: str
    thin: bool
    """True: the layers of the geometry in another width, to try the code; no figure of it says anything of a model."""
    dtype: str
    device: str
    graphs: bool
    """Whether rounds were replayed from CUDA graphs."""
    context_tokens: int
    concurrency: int
    """Rows that decode together."""
    drafter: str
    """none: a plain step; lookup: guesses that cost nothing; else the learned drafter, with random weights."""
    k: int
    """Tokens drafted a round: the target is fed k + 1 a row."""
    tau_scripted: float
    """Tokens a round emits in each row, because the script says so."""
    status: Literal["ok", "out_of_memory", "error"] = "ok"
    reason: str | None = None
    rounds: int | None = None
    """Of one timed pass."""
    emitted_tokens: int | None = None
    """Of all rows in those rounds."""
    round_s: float | None = None
    """Wall seconds of a round, the median pass."""
    plain_round_s: float | None = None
    """The same of plain steps, in turns with the method's passes."""
    draft_s: float | None = None
    """Per round, as all phases: `propose`."""
    verify_s: float | None = None
    accept_s: float | None = None
    draft_append_s: float | None = None
    """`observe` after a round: draft-KV maintenance while decoding."""
    draft_ingest_s: float | None = None
    """`observe` of one row's whole context: draft-KV maintenance of a prefill."""
    state_bytes: int | None = None
    """Of one row's draft state at the context's end, what does not grow with the text left out."""
    kv_bytes: int | None = None
    """Keys and values of the target that a round reads, of all rows."""
    verify_floor_s: float | None = None
    """Reading the target's weights and those keys and values once, at the speed the memory was measured at."""
    draft_floor_s: float | None = None
    """Reading the draft's weights as often as a round does: once, a chain or a serial head once a token."""

    other_cores: float | None = None
    """Cores that other work on the machine kept busy in the passes."""

    @property
    def speedup_at_script(self) -> float | None:
        """Tokens a second over those of plain steps, if rounds emitted the scripted τ."""
        tokens, plain_s = self.row_tokens_per_round, self.plain_round_s
        return None if tokens is None or plain_s is None or not self.round_s else tokens * plain_s / self.round_s

    @property
    def memory_share(self) -> float | None:
        """Share of the memory's speed that the target's pass reaches."""
        spent = self.round_s if self.drafter == BASELINE else self.verify_s
        return self.verify_floor_s / spent if self.verify_floor_s and spent else None

    @property
    def row_tokens_per_round(self) -> float | None:
        """Tokens a row emitted per round: the script's τ, but for where the passes ended."""
        return (
            None
            if not self.rounds or self.emitted_tokens is None
            else self.emitted_tokens / (self.rounds * self.concurrency)
        )


Key = tuple[int, int, str, int]

_ROW = TypeAdapter(GeometryRow)


def key_of(row: GeometryRow) -> Key:
    """What names a row in its folder."""
    return row.context_tokens, row.concurrency, row.drafter, row.k


def append_row(folder: Path, row: GeometryRow) -> None:
    """Add a line to the folder's rows."""
    with (folder / ROWS).open("a", encoding="utf-8") as file:
        file.write(_line(row))


def read_geometry(folder: Path) -> list[GeometryRow]:
    """All rows of a folder; a torn last line is dropped. Raises ConfigError naming file and line."""
    path = folder / ROWS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [_parse(line, path, n) for n, line in enumerate(lines, 1) if line.endswith(b"\n")]


def drop_what_is_tried_again(folder: Path) -> None:
    """Take out rows that end in an error, and what a killed run left of its last line."""
    kept = [row for row in read_geometry(folder) if row.status != "error"]
    write_bytes(folder / ROWS, "".join(map(_line, kept)).encode())


def _line(row: GeometryRow) -> str:
    return json.dumps(asdict(row), allow_nan=False) + "\n"


def _parse(line: bytes, path: Path, number: int) -> GeometryRow:
    try:
        return _ROW.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}:{number}: field {'.'.join(map(str, first['loc']))!r}: {first['msg']}") from error
