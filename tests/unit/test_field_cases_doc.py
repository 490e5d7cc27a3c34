"""docs/field-cases.md names tests; a name that has gone stale would promise what nobody checks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs/field-cases.md").read_text(encoding="utf-8"))


def test_every_named_test_exists() -> None:
    """Fails if a test listed for a field case was renamed or removed."""
    assert len(NAMED) >= 18
    missing = [f"{file}::{name}" for file, name in NAMED if name not in functions(ROOT / file)]
    assert not missing


def functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
