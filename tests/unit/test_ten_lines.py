"""The ten-line promise: a drafter is one file and one entry-point line, and nothing else has to know its name."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from agentbench_spec.plugins import available

ROOT, CORE = Path(__file__).parents[2], "agentbench_spec"
LATE = ("hybrid", "dflash2", "pard", "draft_lm", "peagle")
"""Drafters that came when the core was there: it was not changed for them."""
OTHER_MEANINGS = {
    "agentbench_spec/engine/unsupported.py": "what transformers calls a kind of layer",
    "agentbench_spec/serving/engines/sglang_drafts.py": "what SGLang loads for a drafter",
    "agentbench_spec/serving/engines/sglang_server.py": "what SGLang says of itself",
    "agentbench_spec/serving/engines/vllm.py": "what vLLM is told for a drafter",
    "agentbench_spec/serving/engines/vllm_server.py": "what vLLM says of itself",
}
"""Files of the core in which the word is another program's."""


def files_of(*folders: str) -> dict[str, str]:
    """Path from the root -> text, of the Python files in the folders named, and of the core's in those below."""
    paths = (path for folder in folders for path in (ROOT / folder).glob("**/*.py" if folder == CORE else "*.py"))
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}


def who_knows(name: str, files: Mapping[str, str]) -> list[str]:
    """Files that say the drafter's name as a text of their own, or import its module; its own file is none of them."""
    return [
        path
        for path, text in files.items()
        if Path(path).stem != name and path not in OTHER_MEANINGS and name in _words(ast.parse(text))
    ]


def _words(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.ImportFrom):
            yield from [(node.module or "").rpartition(".")[2], *(each.name for each in node.names)]
        elif isinstance(node, ast.Import):
            yield from (each.name.rpartition(".")[2] for each in node.names)


@pytest.mark.parametrize("name", LATE)
def test_a_drafter_is_one_file_and_one_line(name: str) -> None:
    """Fails if a drafter needs a second line, lies elsewhere, or the core or another drafter was taught its name."""
    lines = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    assert lines["agentbench_spec.drafters"][name] == f"agentbench_spec_drafters.{name}:make"
    assert [group for group, own in lines.items() if name in own] == ["agentbench_spec.drafters"]
    assert (ROOT / "drafters" / f"{name}.py").is_file() and name in available("drafter")
    assert who_knows(name, files_of(CORE, "drafters", "workloads")) == []


@pytest.mark.parametrize(
    "planted",
    [
        'SLOW = {"peagle", "eagle3"}',
        "from agentbench_spec_drafters.peagle import make",
        "import agentbench_spec_drafters.peagle",
        "from . import peagle",
    ],
)
def test_a_core_that_knows_a_drafter_is_seen(planted: str) -> None:
    """The control: a search that finds nothing here would find nothing anywhere."""
    assert who_knows("peagle", {"agentbench_spec/engine/loop.py": planted}) == ["agentbench_spec/engine/loop.py"]
    assert who_knows("peagle", {"drafters/peagle.py": planted}) == []


@pytest.mark.parametrize("path", OTHER_MEANINGS)
def test_the_exceptions_are_still_needed(path: str) -> None:
    """Fails if a file that may say such a word no longer does: the exception would hide the next one."""
    words = set(_words(ast.parse((ROOT / path).read_text("utf-8"))))
    assert words & set(LATE)
