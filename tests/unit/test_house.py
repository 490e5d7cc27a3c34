"""The size and the names of the house: what a stranger can hold in the head. CONTRIBUTING has the rules in words.

Each rule is a function from files to the offences it finds, tried on the house and on planted files.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORE = "agentbench_spec"
MOST_AT_TOP, MOST_IN_A_FOLDER, MOST_LINES, MOST_LINES_OF_A_FUNCTION, MOST_LINES_OF_THE_LOOP = 12, 25, 300, 60, 150
COUNTERPARTS = ("drafters", "drafters/nets", "drafters/training")
"""A drafter, its net and its trainer share a name on purpose: who knows one drafter finds the parts of all."""
PARTS = (
    CORE,
    "drafters",
    "workloads",
    "sglang_plugin/agentbench_spec_sglang",
    "benchmarks",
    "scripts",
    "tests",
    "examples",
)

Files = Mapping[str, str]
"""Path from the root -> text."""


def house() -> Files:
    """The Python files of the repository, data and what is installed beside it left out."""
    paths = [path for part in PARTS for path in (ROOT / part).rglob("*.py")]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}


def in_core(files: Files) -> Files:
    return {path: text for path, text in files.items() if path.startswith(f"{CORE}/")}


def crowded_folders(files: Files) -> list[str]:
    """Folders with too many files, the top of the core held to fewer."""
    counts = Counter(str(Path(path).parent) for path in files if not path.startswith("tests/"))
    return [
        f"{folder} has {count} files"
        for folder, count in counts.items()
        if count > (MOST_AT_TOP if folder == CORE else MOST_IN_A_FOLDER)
    ]


def long_files(files: Files) -> list[str]:
    """Files of the core with more than one idea in them, by their length; the loop fits on a page."""
    lines = {path: text.count("\n") for path, text in in_core(files).items()}
    most = {f"{CORE}/engine/loop.py": MOST_LINES_OF_THE_LOOP}
    return [f"{path} has {count} lines" for path, count in lines.items() if count > most.get(path, MOST_LINES)]


def long_functions(files: Files) -> list[str]:
    """Functions outside the tests that need a page of their own."""
    return [
        f"{path}:{node.lineno} {node.name}"
        for path, text in files.items()
        if not path.startswith("tests/")
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (node.end_lineno or node.lineno) - node.lineno + 1 > MOST_LINES_OF_A_FUNCTION
    ]


def names_that_say_two_things(files: Files) -> list[str]:
    """Names that two files share, or that repeat their folder's."""
    where: dict[str, list[str]] = {}
    for path in files:
        if Path(path).name not in ("__init__.py", "conftest.py", "__main__.py"):
            where.setdefault(Path(path).stem, []).append(str(Path(path).parent))
    twice = [
        f"{name}: {', '.join(sorted(folders))}"
        for name, folders in where.items()
        if len([folder for folder in folders if folder not in COUNTERPARTS]) > 1
        or (len(folders) > 1 and not set(folders) <= set(COUNTERPARTS))
    ]
    repeats = [
        f"{folder}/{name}"
        for name, folders in where.items()
        for folder in folders
        if folder.startswith(CORE) and name in (Path(folder).name, Path(folder).name.removesuffix("s"))
    ]
    return twice + repeats


RULES = [crowded_folders, long_files, long_functions, names_that_say_two_things]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_house_keeps(rule: Callable[[Files], list[str]]) -> None:
    """Fails naming the folder, file or function that has grown past what is read in one sitting."""
    assert rule(house()) == []


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        (crowded_folders, {f"{CORE}/door{i}.py": "" for i in range(13)}),
        (crowded_folders, {f"{CORE}/engine/part{i}.py": "" for i in range(26)}),
        (long_files, {f"{CORE}/engine/target.py": "x = 1\n" * 301}),
        (long_files, {f"{CORE}/engine/loop.py": "x = 1\n" * 151}),
        (long_functions, {"drafters/new.py": "def f():\n" + "    x = 1\n" * 60}),
        (names_that_say_two_things, {f"{CORE}/runs/replay.py": "", "benchmarks/replay.py": ""}),
        (names_that_say_two_things, {"drafters/dlite.py": "", f"{CORE}/engine/dlite.py": ""}),
        (names_that_say_two_things, {f"{CORE}/runs/run.py": ""}),
    ],
)
def test_planted_offence_is_caught(rule: Callable[[Files], list[str]], planted: Files) -> None:
    """The control: a rule that finds nothing here would find nothing anywhere."""
    assert len(rule(planted)) == 1


def test_counterparts_of_a_drafter_may_share_its_name() -> None:
    """A rule that forbade these would scatter one drafter over three names."""
    assert names_that_say_two_things({"drafters/dlite.py": "", "drafters/nets/dlite.py": ""}) == []


def test_the_house_is_read() -> None:
    """The rules above hold trivially for an empty house."""
    assert {f"{CORE}/engine/loop.py", "drafters/ngram.py", "workloads/bfcl_v3.py"} <= set(house())
