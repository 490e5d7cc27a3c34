"""Write the lists of docs/architecture.md and README.md anew: one sentence a file, taken from its docstring.

usage: python scripts/list_files.py

What is not Python keeps the sentence it has on the page; a new one gets "?", which a test refuses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs" / "architecture.md", ROOT / "README.md"
PARTS = ("agentbench_spec", "drafters", "workloads", "sglang_plugin/agentbench_spec_sglang")
_BEGIN, _END = "<!-- begin: written by scripts/list_files.py -->\n", "<!-- end -->\n"
_ROW = re.compile(r"^\| \[`(?P<name>[^`]+)`\]\((?P<link>[^)]+)\) \| (?P<sentence>.*) \|$", re.MULTILINE)


def files(root: Path = ROOT) -> list[str]:
    """Every file of the parts, by its path from the root; a folder of plain data stands for its files."""
    found = [path for part in PARTS for path in (root / part).rglob("*") if path.is_file()]
    kept = [
        path.relative_to(root) for path in found if "__pycache__" not in path.parts and not path.name.startswith(".")
    ]
    return sorted({_listed_as(path) for path in kept})


def _listed_as(path: Path) -> str:
    parts = path.parts
    if "data" in parts and len(parts) > parts.index("data") + 2:
        return "/".join(parts[: parts.index("data") + 2]) + "/"
    return path.as_posix()


def _part_of(folder: str) -> int:
    return next(index for index, part in enumerate(PARTS) if f"{folder}/".startswith(f"{part}/"))


def sentence_of(source: str) -> str:
    """The first sentence of a module's docstring, as one line of a table."""
    first = " ".join((ast.get_docstring(ast.parse(source)) or "?").partition("\n\n")[0].split())
    return re.split(r"(?<=[.?!])\s", first, maxsplit=1)[0].replace("|", "\\|")


def listed(page: str) -> dict[str, str]:
    """Path from the root -> sentence, as a page has them."""
    return {row["link"].removeprefix("../"): row["sentence"] for row in _ROW.finditer(page)}


def architecture(page: str, root: Path = ROOT) -> str:
    """The page with its list of files as they are under `root`."""
    known, packages = listed(page), dict[str, list[str]]()
    for file in files(root):
        packages.setdefault(str(Path(file).parent), []).append(file)
    lines: list[str] = []
    for folder in sorted(packages, key=_part_of):
        lines += ["", f"### `{folder}/`", "", "| file | what |", "|---|---|"]
        for file in packages[folder]:
            path = root / file
            said = sentence_of(path.read_text("utf-8")) if file.endswith(".py") else known.get(file, "?")
            lines.append(f"| [`{file.removeprefix(folder + '/')}`](../{file}) | {said} |")
    return _between(page, "\n".join([*lines[1:], ""]))


def packages(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """Each package of the core, and the sentence of its `__init__`."""
    for init in sorted(root.glob("agentbench_spec/*/__init__.py")):
        yield f"agentbench_spec/{init.parent.name}", sentence_of(init.read_text("utf-8"))


def readme(page: str, root: Path = ROOT) -> str:
    """The README with a row for each package of the core."""
    rows = [f"| [`{Path(name).name}/`]({name}) | {said} |" for name, said in packages(root)]
    return _between(page, "\n".join(["| package | what |", "|---|---|", *rows, ""]))


def _between(page: str, text: str) -> str:
    before, _, rest = page.partition(_BEGIN)
    return before + _BEGIN + text + _END + rest.partition(_END)[2]


if __name__ == "__main__":
    for path, write in ((PAGE, architecture), (README, readme)):
        path.write_text(write(path.read_text("utf-8")), "utf-8")
