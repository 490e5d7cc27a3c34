"""docs/python.md against the API: the page runs, and says of every public name how it is used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import agentbench_spec

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")


def blocks(text: str) -> list[str]:
    """The python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def unused(text: str) -> list[str]:
    """Public names that no block uses, and that the text does not show with `ab.` or in backticks either."""
    shown = "\n".join(blocks(text))
    return [
        name
        for name in agentbench_spec.__all__
        if not re.search(rf"\bab\.{name}\b", shown) and f"`ab.{name}(" not in text and f"`{name}`" not in text
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the page says it needs: recorded results and traces."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "results").mkdir()
    (folder / "results" / "recorded").symlink_to(ROOT / "results" / "recorded")
    (folder / "traces").mkdir()
    shutil.copy(ROOT / "tests" / "importing" / "data" / "openai_chat.jsonl", folder / "traces")
    return folder


def test_the_page_runs_as_one_script(folder: Path, tiny: Path) -> None:
    """Fails if a name, a keyword or a returned field on the page is not what the code has."""
    script = "\n".join(blocks(PAGE)).replace('"smollm2-135m"', repr(str(tiny)))
    (folder / "page.py").write_text(script, "utf-8")
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, "page.py"], cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = [line for line in re.split(r"[\r\n]+", done.stderr) if line and "Loading weights" not in line]
    assert told == []  # but for transformers' own bar, nothing is told that was not asked for
    assert "files [1, 3]" in done.stdout and "'__main__:Again'" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("unknown setting 'limits'; did you mean 'limit'?")
    assert (folder / "report.html").is_file() and (folder / "figures" / "tau-context.svg").is_file()


def test_every_public_name_is_on_the_page() -> None:
    """Fails if a name becomes public without a word on how it is used."""
    assert unused(PAGE) == []


def test_a_page_that_forgets_a_name_is_found() -> None:
    """The control of the test above."""
    assert unused(PAGE.replace("ab.token_counter", "counter")) == ["token_counter"]
