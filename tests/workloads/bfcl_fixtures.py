"""Invented BFCL rows in the layout of the wheel, and where the real package is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

needs_bfcl = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None or importlib.util.find_spec("mpmath") is None,
    reason="bfcl-eval or mpmath is not installed: pip install --no-deps bfcl-eval==2025.7.9 mpmath==1.3.0",
)

CONFIG = {"GorillaFileSystem": {"root": {"home": {"type": "directory", "contents": {}}}}}
STRING = {"type": "string", "description": "A name."}


def doc(name: str, *parameters: str) -> dict[str, Any]:
    """A function doc in the benchmark's own schema dialect."""
    properties = dict.fromkeys(parameters, STRING)
    shape = {"type": "dict", "properties": properties, "required": list(parameters)}
    return {"name": name, "description": f"{name}.", "parameters": shape, "response": {"type": "dict"}}


DOCS = [doc("touch", "file_name"), doc("ls"), doc("cat", "file_name"), doc("echo", "content", "file_name"), doc("pwd")]


def row(**changes: Any) -> dict[str, Any]:
    """A good row with its gold turns under `ground_truth`; a value of ... drops the field."""
    good = {
        "id": "multi_turn_base_900",
        "question": [[{"role": "user", "content": "Make a.txt."}], [{"role": "user", "content": "Write hi in it."}]],
        "initial_config": CONFIG,
        "involved_classes": ["GorillaFileSystem"],
        "ground_truth": [["touch('a.txt')"], ["echo('hi', file_name='a.txt')", "cat(file_name='a.txt')"]],
    }
    return {key: value for key, value in {**good, **changes}.items() if value is not ...}


def write_folder(root: Path, *rows: dict[str, Any], category: str = "base", docs: bool = True) -> Path:
    """Write rows as data and answer files, and the docs beside them."""
    (root / "possible_answer").mkdir(parents=True, exist_ok=True)
    name = f"BFCL_v3_multi_turn_{category}.json"
    data = [{k: v for k, v in r.items() if k != "ground_truth"} for r in rows]
    gold = [{"id": r["id"], "ground_truth": r["ground_truth"]} for r in rows if "ground_truth" in r and "id" in r]
    (root / name).write_text("".join(json.dumps(r) + "\n" for r in data))
    (root / "possible_answer" / name).write_text("".join(json.dumps(r) + "\n" for r in gold))
    if docs:
        (root / "multi_turn_func_doc").mkdir(exist_ok=True)
        (root / "multi_turn_func_doc" / "gorilla_file_system.json").write_text("\n".join(map(json.dumps, DOCS)))
    return root
