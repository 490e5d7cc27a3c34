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
SGLANG = "agentbench_spec_sglang"
"""DLite for SGLang: installed into SGLang's environment, so it is read where it lies."""
PLUGIN_PACKAGES = {DRAFTERS, WORKLOADS, SGLANG, "drafters", "workloads", "sglang_plugin"}
ENGINE = {f"{CORE}.engine.{part}" for part in ("target", "cache", "attention", "verify", "sampling")}
"""What runs the target and judges a proposal. It must be unable to tell one drafter from another."""


@dataclass(frozen=True)
class Import:
    """One imported thing: `name` is "module" or "module.attribute", whichever the statement says."""

    name: str
    for_types: bool
    """Under `if TYPE_CHECKING`: never runs."""

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
    """Every module of the packages."""
    sources = read(SGLANG, Path(__file__).parents[2] / "sglang_plugin" / SGLANG)
    for module in (agentbench_spec, agentbench_spec_drafters, agentbench_spec_workloads):
        assert module.__file__ is not None
        sources |= read(module.__name__, Path(module.__file__).parent)
    return sources


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(module: str, source: str) -> Iterator[Import]:
    """Every import in `source`, wherever it stands; those for types alone are marked."""
    stack: list[tuple[ast.AST, bool]] = [(ast.parse(source), False)]
    while stack:
        node, for_types = stack.pop()
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node)
            yield from (Import(f"{base}.{alias.name}", for_types) for alias in node.names)
        inner = for_types or is_type_checking(node)
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
    public = (f"{CORE}.rollout", f"{CORE}.rollouts.importing", f"{CORE}.rollouts.environments")
    return offences(sources, WORKLOADS, lambda f: any(map(f.inside, public)) or f.inside(WORKLOADS) or not ours(f))


def server_plugin_imports_too_much(sources: Sources) -> list[str]:
    """It takes nets and loaders, and what drafter authors take: SGLang's environment lacks what more would need."""
    public = (f"{CORE}.drafting", f"{DRAFTERS}.nets", SGLANG)
    return offences(sources, SGLANG, lambda f: any(map(f.inside, public)) or not ours(f))


def pure_parts_see_sglang(sources: Sources) -> list[str]:
    """What is tested without SGLang, and the guard, which runs before SGLang is trusted."""
    pure = ("slots", "draft_block", "relied_on")
    return [line for part in pure for line in offences(sources, f"{SGLANG}.{part}", lambda f: not f.inside("sglang"))]


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


MAY_IMPORT: dict[str, str] = {
    "data": "",
    "bars": "",
    "errors": "",
    "messages": "",
    "config": "errors",
    "writing": "errors",
    "jsonl": "errors writing",
    "drafting": "errors",
    "rollout": "errors jsonl messages",
    "plugins": "errors drafting rollout",
    "results": "errors writing",
    "rollouts": "bars errors writing jsonl messages rollout",
    "engine": "bars errors writing drafting rollout rollouts results",
    "testing": "errors drafting engine",
    "conformance": "errors drafting plugins rollouts engine testing",
    "train": "bars errors writing jsonl drafting rollout plugins rollouts results engine",
    "runs": "bars errors writing config drafting rollout plugins rollouts results engine",
    "report": "errors writing results runs.card",
    "serving": "bars errors writing config rollout rollouts results engine runs",
    "reproduce": "errors writing jsonl config rollout results runs serving report train",
    "cli": "*",
    "api": "*",
    "__main__": "cli",
}
"""Package or door of the core -> what it may import of the core besides itself, lazily or not; "*": everything.

Read from the top: a line names only what stands above it, so no ring of packages can be written down here.
"""


def packages_point_one_way(sources: Sources) -> list[str]:
    """Imports between the packages of the core that the table does not allow; those for types count, too."""
    found = []
    for module in sorted(m for m in sources if m.startswith(f"{CORE}.")):
        package = module.split(".")[1]
        if package not in MAY_IMPORT:
            found.append(f"{module} stands in no line of MAY_IMPORT")
            continue
        allowed = [f"{CORE}.{name}" for name in (package, *MAY_IMPORT[package].split())]
        if MAY_IMPORT[package] != "*":
            found += offences(
                {module: sources[module]}, module, lambda f, a=allowed: not core(f) or any(map(f.inside, a))
            )  # type: ignore[misc]
    return found


def core(found: Import) -> bool:
    return found.inside(CORE) and found.name not in (CORE, f"{CORE}.data")


def cycles(sources: Sources) -> list[str]:
    """A cycle among the modules of the core; imports inside functions count, those for types alone do not."""
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
    """The module of `sources` that `found` loads when it runs: "a.b.c" may be the name c in module a.b."""
    if found.for_types:
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
    server_plugin_imports_too_much,
    pure_parts_see_sglang,
    engine_sees_drafters,
    drafter_interface_sees_engine,
    something_imports_cli,
    packages_point_one_way,
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
        (server_plugin_imports_too_much, {f"{SGLANG}.worker": "from agentbench_spec_drafters.dlite import make"}),
        (server_plugin_imports_too_much, {f"{SGLANG}.worker": "from agentbench_spec.errors import ConfigError"}),
        (pure_parts_see_sglang, {f"{SGLANG}.slots": "def f():\n    from sglang.srt import runtime_context"}),
        (core_imports_plugins, {"agentbench_spec.serving.launch": "import agentbench_spec_sglang"}),
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
        (packages_point_one_way, {"agentbench_spec.results.tables": "import agentbench_spec.engine.target"}),
        (packages_point_one_way, {"agentbench_spec.results.rows": "from agentbench_spec.jsonl import BadLine"}),
        (
            packages_point_one_way,
            {"agentbench_spec.engine.loop": "def f():\n    from agentbench_spec.runs.setup import Tell"},
        ),
        (packages_point_one_way, {"agentbench_spec.report.page": "from agentbench_spec.runs.execute import run"}),
        (packages_point_one_way, {"agentbench_spec.plugins": "from agentbench_spec.train.interface import Trainee"}),
        (packages_point_one_way, {"agentbench_spec.lounge.sofa": "import torch"}),
        (
            cycles,
            {"agentbench_spec.a": "from agentbench_spec import b", "agentbench_spec.b": "import agentbench_spec.a"},
        ),
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
        (packages_point_one_way, {"agentbench_spec.report.page": "from agentbench_spec.runs.card import card_lines"}),
        (packages_point_one_way, {"agentbench_spec.runs.replay": "from agentbench_spec.engine import loop"}),
        (packages_point_one_way, {"agentbench_spec.cli.run": "from agentbench_spec.serving import sglang"}),
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


def test_the_table_of_packages_is_read_from_the_top() -> None:
    """Fails if a line names what stands below it: two such lines could allow a ring."""
    names = list(MAY_IMPORT)
    for name, allowed in MAY_IMPORT.items():
        above = names[: names.index(name)]
        assert allowed == "*" or {one.split(".")[0] for one in allowed.split()} <= set(above), name


def test_rows_are_read_without_torch() -> None:
    """Fails if a notebook or a third party that reads rows, and nothing else, has to wait for torch."""
    modules = sorted(m for m in house() if m.startswith(f"{CORE}.results"))
    assert len(modules) > 10
    assert not {"torch", "transformers"} & loaded_by("\n".join(f"import {module}" for module in modules))


@pytest.mark.parametrize("module", ["agentbench_spec", "agentbench_spec.plugins", "agentbench_spec.errors"])
def test_import_is_light_and_loads_no_plugin(module: str) -> None:
    """`agentbench-spec list` and --help must not wait for torch; a broken plugin must not break the core."""
    loaded = loaded_by(f"import {module}")
    assert module in loaded
    assert not {"torch", "transformers", DRAFTERS, WORKLOADS} & loaded


def test_the_probe_for_light_imports_sees_torch() -> None:
    """The control: the drafter interface does load torch."""
    assert "torch" in loaded_by("import agentbench_spec.drafting")
