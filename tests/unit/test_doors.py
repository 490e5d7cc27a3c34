"""Notebooks and documents come in by the front door: what they import is public, so it may be copied and relied on."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import agentbench_spec

ROOT = Path(__file__).parents[2]
DOORS = {
    f"agentbench_spec.{name}" for name in ("config", "drafting", "errors", "rollout", "testing", "train.interface")
}
DOCUMENTS = ("*.md", "docs/*.md", "drafters/*.md", "workloads/*.md", "results/*.md", "notebooks/*.ipynb")


def codes(path: Path, text: str) -> Iterator[str]:
    """The Python of a notebook's cells, or of a document's python blocks."""
    if path.suffix == ".md":
        yield from re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        return
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "code":
            yield re.sub(r"^[%!].*$", "", "".join(cell["source"]), flags=re.MULTILINE)


def imported(code: str) -> Iterator[tuple[str, str | None]]:
    """Each import in `code`: the module, and the name taken out of it if one is."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def beneath_the_doors(code: str) -> list[str]:
    """What `code` imports or takes of the package that is not public."""
    found = [
        f"{module}: {name}" if name else module
        for module, name in imported(code)
        if module.split(".")[0].startswith("agentbench_spec") and module not in DOORS
        if module != "agentbench_spec" or not (name is None or name in agentbench_spec.__all__)
    ]
    return found + [f"ab.{name}" for name in re.findall(r"\bab\.(\w+)", code) if name not in agentbench_spec.__all__]


def test_notebooks_and_documents_use_public_names_only() -> None:
    """Fails naming the page that shows a reader something deeper, which the next regrouping would break."""
    pages = [path for pattern in DOCUMENTS for path in ROOT.glob(pattern)]
    found = {
        path.name: offences
        for path in pages
        for code in codes(path, path.read_text("utf-8"))
        if (offences := beneath_the_doors(code))
    }
    assert found == {}
    assert {"python.md", "README.md", "add_a_drafter.ipynb"} <= {path.name for path in pages}


def test_what_lies_deeper_is_found() -> None:
    """The control: a rule that finds nothing here would find nothing anywhere."""
    for planted in (
        "from agentbench_spec.results.folder import read_run",
        "import agentbench_spec.engine.loading",
        "from agentbench_spec import engine",
        "import agentbench_spec_drafters.ngram",
        "import agentbench_spec as ab\nab.engine.loop",
    ):
        assert len(beneath_the_doors(planted)) == 1, planted
    assert beneath_the_doors("import agentbench_spec as ab\nfrom agentbench_spec import load\nab.run") == []
    page = "text\n```python\nimport agentbench_spec.runs\n```\n"
    assert list(codes(Path("page.md"), page)) == ["import agentbench_spec.runs\n"]
