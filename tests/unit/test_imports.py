"""Imports run one way. Read from the source with `ast`, so that a module need not be importable to be judged.

Each rule is a function from sources to the offences it finds; each has a test on the house and one on planted sources
that must be caught.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import agentbench_spec_drafters
import agentbench_spec_workloads
import pytest

import agentbench_spec

CORE, DRAFTERS, WORKLOADS = "agentbench_spec", "agentbench_spec_drafters", "agentbench_spec_workloads"
PLUGIN_PACKAGES = {DRAFTERS, WORKLOADS, "drafters", "workloads"}
ENGINE = {f"{CORE}.engine.{part}" for part in ("target", "cache", "attention", "verify", "sampling")}
"""What runs the target and judges a proposal. It must be unable to tell one drafter from another."""


@dataclass(frozen=True)
class Import:
    """One imported thing: `name` is "module" or "module.attribute", whichever the statement says."""

    name: str
    at_module_level: bool

    def inside(self, package: str) -> bool:
        return f"{self.name}.".startswith(f"{package}.")


Sources = dict[str, str]
"""Module name -> source text."""


def read(package: str, folder: Path) -> Sources:
    """All modules under `folder`, which is installed as `package`."""
    sources = {}
    for path in folder.rglob("*.py"):
        parts = [package, *path.relative_to(folder).with_suffix("").parts]
        sources[".".join(parts).removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return sources


def house() -> Sources:
    """Every module of the three packages."""
    sources = {}
    for module in (agentbench_spec, agentbench_spec_drafters, agentbench_spec_workloads):
        assert module.__file__ is not None
        sources |= read(module.__name__, Path(module.__file__).parent)
    return sources


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(module: str, source: str) -> Iterator[Import]:
    """Every import in `source`, wherever it stands; those that run when the module is imported are marked."""
    stack: list[tuple[ast.AST, bool]] = [(ast.parse(source), True)]
    while stack:
        node, runs = stack.pop()
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, runs) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node)
            yield from (Import(f"{base}.{alias.name}", runs) for alias in node.names)
        inner = runs and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not is_type_checking(node)
        stack += [(child, inner) for child in ast.iter_child_nodes(node)]


def absolute(module: str, node: ast.ImportFrom) -> str:
    """The module a `from` statement names; relative ones are resolved as in a plain module, not a package."""
    if not node.level:
        return node.module or ""
    parent = module.rsplit(".", node.level)[0]
    return f"{parent}.{node.module}" if node.module else parent


def offences(sources: Sources, package: str, allowed: Callable[[Import], bool]) -> list[str]:
    """ "module -> import" for each import in modules of `package` that is not `allowed`."""
    return [
        f"{module} -> {found.name}"
        for module, source in sorted(sources.items())
        if f"{module}.".startswith(f"{package}.")
        for found in imports(module, source)
        if not allowed(found)
    ]


def ours(found: Import) -> bool:
    return any(found.inside(package) for package in (CORE, *PLUGIN_PACKAGES))


def core_imports_plugins(sources: Sources) -> list[str]:
    return offences(sources, CORE, lambda found: not any(found.inside(package) for package in PLUGIN_PACKAGES))


def core_names_plugins(sources: Sources) -> list[str]:
    """The same rule for names in strings, which importlib could import."""
    return [
        f"{module}: {node.value!r}"
        for module, source in sorted(sources.items())
        if f"{module}.".startswith(f"{CORE}.")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if any(node.value.split(":")[0].split(".")[0] == package for package in (DRAFTERS, WORKLOADS))
    ]


def drafters_import_too_much(sources: Sources) -> list[str]:
    public = (f"{CORE}.drafting", f"{CORE}.train.interface")
    return offences(sources, DRAFTERS, lambda f: any(map(f.inside, public)) or f.inside(DRAFTERS) or not ours(f))


def workloads_import_too_much(sources: Sources) -> list[str]:
    public = (f"{CORE}.rollout", f"{CORE}.rollouts.importing")
    return offences(sources, WORKLOADS, lambda f: any(map(f.inside, public)) or f.inside(WORKLOADS) or not ours(f))


def engine_sees_drafters(sources: Sources) -> list[str]:
    """The engine imports nothing of the drafter interface; the target alone builds the TargetInfo it shows."""
    found = []
    for part in sorted(ENGINE):
        exempt = {f"{CORE}.drafting.TargetInfo"} if part == f"{CORE}.engine.target" else set()
        found += offences(sources, part, lambda f, e=exempt: not f.inside(f"{CORE}.drafting") or f.name in e)  # type: ignore[misc]
    return found


def drafter_interface_sees_engine(sources: Sources) -> list[str]:
    """The other way round: what drafter authors import must not reach the target."""
    reached = (f"{CORE}.errors", f"{CORE}.drafting")
    return [
        line
        for public in (f"{CORE}.drafting", f"{CORE}.train.interface")
        for line in offences(sources, public, lambda f: not f.inside(CORE) or any(map(f.inside, reached)))
    ]


def something_imports_cli(sources: Sources) -> list[str]:
    cli = f"{CORE}.cli"
    outside = {m: s for m, s in sources.items() if not f"{m}.".startswith(f"{cli}.") and m != f"{CORE}.__main__"}
    return [
        line
        for package in (CORE, DRAFTERS, WORKLOADS)
        for line in offences(outside, package, lambda f: not f.inside(cli))
    ]


def cycles(sources: Sources) -> list[str]:
    """A cycle among the modules of the core, by the imports that run when a module is imported."""
    graph = {
        module: {
            target for found in imports(module, source) if (target := imported(found, sources)) not in (None, module)
        }
        for module, source in sources.items()
        if f"{module}.".startswith(f"{CORE}.")
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def imported(found: Import, sources: Sources) -> str | None:
    """The module of `sources` that `found` loads, if it does so at once: "a.b.c" may be the name c in module a.b."""
    if not found.at_module_level:
        return None
    if found.name in sources:
        return found.name
    parent = found.name.rpartition(".")[0]
    return parent if parent in sources else None


RULES = [
    core_imports_plugins,
    core_names_plugins,
    drafters_import_too_much,
    workloads_import_too_much,
    engine_sees_drafters,
    drafter_interface_sees_engine,
    something_imports_cli,
    cycles,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_house_keeps(rule: Callable[[Sources], list[str]]) -> None:
    """Fails with "module -> import" for whoever turned a dependency round."""
    assert rule(house()) == []


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        (
            core_imports_plugins,
            {"agentbench_spec.engine.loop": "def f():\n    from agentbench_spec_drafters.ngram import make"},
        ),
        (core_imports_plugins, {"agentbench_spec.runs.replay": "import workloads.bfcl_v3"}),
        (core_names_plugins, {"agentbench_spec.cli": "BUILTIN = {'ngram': 'agentbench_spec_drafters.ngram:make'}"}),
        (
            drafters_import_too_much,
            {"agentbench_spec_drafters.new": "from agentbench_spec.engine.target import Target"},
        ),
        (drafters_import_too_much, {"agentbench_spec_drafters.new": "from agentbench_spec import loop"}),
        (drafters_import_too_much, {"agentbench_spec_drafters.new": "import agentbench_spec_workloads"}),
        (
            workloads_import_too_much,
            {"agentbench_spec_workloads.new": "from agentbench_spec.errors import ConfigError"},
        ),
        (engine_sees_drafters, {"agentbench_spec.engine.verify": "from agentbench_spec.drafting import TargetInfo"}),
        (
            engine_sees_drafters,
            {"agentbench_spec.engine.target": "from agentbench_spec.drafting import Drafter, TargetInfo"},
        ),
        (engine_sees_drafters, {"agentbench_spec.engine.cache": "from ..drafting import Span"}),
        (engine_sees_drafters, {"agentbench_spec.engine.sampling": "import agentbench_spec.drafting"}),
        (
            drafter_interface_sees_engine,
            {"agentbench_spec.drafting": "from agentbench_spec.engine.target import Target"},
        ),
        (drafters_import_too_much, {"agentbench_spec_drafters.training.new": "from agentbench_spec.train import step"}),
        (drafter_interface_sees_engine, {"agentbench_spec.train.interface": "from agentbench_spec.train import step"}),
        (something_imports_cli, {"agentbench_spec.report.page": "from agentbench_spec import cli"}),
        (something_imports_cli, {"agentbench_spec_drafters.new": "from agentbench_spec.cli import app"}),
        (
            cycles,
            {"agentbench_spec.a": "from agentbench_spec import b", "agentbench_spec.b": "import agentbench_spec.a"},
        ),
        (
            cycles,
            {
                "agentbench_spec.a": "try:\n    from .b import x\nexcept E:\n    y = 1",
                "agentbench_spec.b": "from .a import y",
            },
        ),
    ],
)
def test_planted_offence_is_caught(rule: Callable[[Sources], list[str]], planted: Sources) -> None:
    """The control: a rule that finds nothing here would find nothing anywhere."""
    assert len(rule(planted)) == 1


@pytest.mark.parametrize(
    ("rule", "planted"),
    [
        (engine_sees_drafters, {"agentbench_spec.engine.target": "from agentbench_spec.drafting import TargetInfo"}),
        (engine_sees_drafters, {"agentbench_spec.engine.loop": "from agentbench_spec.drafting import Drafter"}),
        (
            drafters_import_too_much,
            {"agentbench_spec_drafters.new": "import torch\nfrom agentbench_spec.drafting import Span"},
        ),
        (something_imports_cli, {"agentbench_spec.__main__": "from agentbench_spec.cli import app"}),
        (
            cycles,
            {
                "agentbench_spec.a": "import agentbench_spec.b",
                "agentbench_spec.b": "def f():\n    import agentbench_spec.a",
            },
        ),
        (
            cycles,
            {
                "agentbench_spec.a": "import agentbench_spec.b",
                "agentbench_spec.b": "if TYPE_CHECKING:\n    import agentbench_spec.a",
            },
        ),
    ],
)
def test_what_is_allowed_is_not_an_offence(rule: Callable[[Sources], list[str]], planted: Sources) -> None:
    """A rule that forbade these would be worked round and then ignored."""
    assert rule(planted) == []


def test_sources_of_all_three_packages_are_read() -> None:
    """The rules above hold trivially for an empty house."""
    assert {"agentbench_spec.drafting", f"{DRAFTERS}.ngram", WORKLOADS} <= set(house())


def loaded_by(statement: str) -> set[str]:
    """Names of the modules that are loaded after `statement` in a fresh interpreter."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("module", ["agentbench_spec", "agentbench_spec.plugins", "agentbench_spec.errors"])
def test_import_is_light_and_loads_no_plugin(module: str) -> None:
    """`agentbench-spec list` and --help must not wait for torch; a broken plugin must not break the core."""
    loaded = loaded_by(f"import {module}")
    assert module in loaded
    assert not {"torch", "transformers", DRAFTERS, WORKLOADS} & loaded


def test_the_probe_for_light_imports_sees_torch() -> None:
    """The control: the drafter interface does load torch."""
    assert "torch" in loaded_by("import agentbench_spec.drafting")
