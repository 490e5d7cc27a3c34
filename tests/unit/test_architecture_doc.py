"""docs/architecture.md against the tree: every file once, every function in its place, every number as recorded."""

from __future__ import annotations

import ast
import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

import agentbench_spec as ab

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
RUN_ANEW = "run: python scripts/list_files.py"


@pytest.fixture(scope="module")
def lists() -> ModuleType:
    """scripts/list_files.py."""
    spec = importlib.util.spec_from_file_location("list_files_script", ROOT / "scripts" / "list_files.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def faults(page: str, files: list[str]) -> list[str]:
    """Files that a page lists not at all, twice, without a sentence, or that are gone."""
    rows = re.findall(r"^\| \[`[^`]+`\]\(\.\./([^)]+)\) \| (.*) \|$", page.split("## Every file")[1], re.MULTILINE)
    names = [name for name, _ in rows]
    return [
        *(f"{file}: is missing" for file in files if file not in names),
        *(f"{name}: is listed twice" for name in sorted({n for n in names if names.count(n) > 1})),
        *(f"{name}: is gone" for name in names if name not in files),
        *(f"{name}: has no sentence" for name, said in rows if said in ("", "?")),
    ]


def doors(page: str) -> list[tuple[str, str]]:
    """(file, function) of every door that the followed turn goes through."""
    part = page.split("## Every file")[0]
    return [(file, name) for name, file in re.findall(r"\[`([\w.]+)`\]\(\.\./(\S+\.py)\)", part) if name[0] not in "."]


def defined(source: str) -> set[str]:
    """Functions of a module, methods as Class.method."""
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{own.name}" for own in node.body if isinstance(own, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


def test_every_file_is_listed_once(lists: ModuleType) -> None:
    """Fails if a file is added, moved or dropped and the list does not follow."""
    assert faults(PAGE, lists.files()) == [], RUN_ANEW


def test_lists_say_what_the_docstrings_say(lists: ModuleType) -> None:
    """Fails if a docstring changed, or a package is new, and the page or the README tells the old."""
    assert lists.architecture(PAGE) == PAGE, RUN_ANEW
    readme = (ROOT / "README.md").read_text("utf-8")
    assert lists.readme(readme) == readme, RUN_ANEW


def test_a_list_that_is_wrong_is_found(lists: ModuleType, tmp_path: Path) -> None:
    """The control: a missing, a doubled and a vanished file, and one without a sentence."""
    row = "| [`none.py`](../drafters/none.py) | Plain. |\n"
    page = f"## Every file\n{row}"
    assert faults(page, ["drafters/none.py"]) == []
    assert faults(page, ["drafters/none.py", "drafters/new.py"]) == ["drafters/new.py: is missing"]
    assert faults(page + row, ["drafters/none.py"]) == ["drafters/none.py: is listed twice"]
    assert faults(page, []) == ["drafters/none.py: is gone"]
    assert faults(page.replace("Plain.", "?"), ["drafters/none.py"]) == ["drafters/none.py: has no sentence"]
    (tmp_path / "drafters" / "data" / "weights").mkdir(parents=True)
    for name in ("new.py", "data/weights/a.bin", "data/weights/b.bin", "data/table.csv"):
        (tmp_path / "drafters" / name).write_text('"""One thing. More of it."""', "utf-8")
    shutil.copytree(tmp_path / "drafters", tmp_path / "drafters" / "__pycache__")
    assert lists.files(tmp_path) == ["drafters/data/table.csv", "drafters/data/weights/", "drafters/new.py"]
    written = lists.architecture(
        "a\n<!-- begin: written by scripts/list_files.py -->\nold\n<!-- end -->\nz\n", tmp_path
    )
    assert "| [`new.py`](../drafters/new.py) | One thing. |" in written
    assert "| [`table.csv`](../drafters/data/table.csv) | ? |" in written and "old" not in written
    assert written.startswith("a\n") and written.endswith("z\n")


def test_every_door_is_where_the_page_says() -> None:
    """Fails if a function that a turn goes through is renamed or moved: the reader would look in vain."""
    found = doors(PAGE)
    assert len(found) > 15
    gone = [f"{file} {name}" for file, name in found if name not in defined((ROOT / file).read_text("utf-8"))]
    assert gone == []
    assert defined("class A:\n    def b(self): ...\ndef c(): ...") == {"A.b", "c"}  # the control


def test_the_numbers_of_the_turn_are_those_of_the_recorded_run() -> None:
    """Fails if the run was recorded anew, or a figure is counted otherwise, and the page tells the old numbers."""
    run = ab.load(ROOT / "results" / "recorded" / "bfcl-v3-smollm2-135m")
    turn = {row.drafter: row for row in run.rows if (row.rollout, row.turn) == ("multi_turn_base_92", 1)}
    row, plain = turn["ngram"], turn["none"]
    own = next(own for own in run.summary.drafters if own.drafter == "ngram")
    assert row.decode_s and plain.decode_s and row.speedup and row.matched_lengths and own.tau.pooled
    nth = ("first", "second", "third", "fourth", "fifth", "sixth", "last")
    assert row.order is not None and plain.order is not None
    for words in (
        f"`none` {nth[plain.order]}, `ngram` {nth[row.order]}",
        f"turn {row.turn}, message {row.message}",
        f"{row.context_tokens:,} tokens",
        f"{row.reused_tokens:,} kept, {row.new_tokens} run",
        f"{row.rounds} rounds",
        f"{', '.join(map(str, row.matched_lengths))} accepted",
        f"{row.emitted} tokens in {row.rounds} rounds: τ {row.tau:.2f}",
        f"identical; {plain.decode_s:.3f} s / {row.decode_s:.3f} s: {row.speedup:.2f}",
        f"{len(turn)} rows",
        f"{len(run.rows)} rows",
        f"τ {own.tau.pooled:.2f} over {own.turns} of {own.turns + sum(own.left_out.values())} turns",
    ):
        assert words in PAGE
    assert row.identical
