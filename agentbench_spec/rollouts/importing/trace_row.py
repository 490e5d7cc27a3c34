"""One value of a trace file, with where it stands: what the readers of files hand to the readers of formats."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Row"]


@dataclass(slots=True)
class Row:
    """One value of a file that should become one rollout."""

    path: Path
    number: int
    """Line of a JSON-lines file, or element of an array, or row of a parquet file; counted from 1."""
    value: Any
    alone: bool = False
    """True if it is the whole file."""
    member: str = ""
    """The member of an archive it stands in."""
    whole: bool = False
    """True if it cannot be a part of one rollout with the rows before it."""
    repairs: list[str] = field(default_factory=list)
    """What had to be repaired to read it."""
