"""Plugins: found by name, made with options, refused with a reason; and a third-party package, really installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal, SequenceDrafter
from agentbench_spec.errors import ConfigError, ContractError
from agentbench_spec.plugins import available, load_drafter, load_workload

PLUGIN_PACKAGE = Path(__file__).parents[1] / "plugin_pkg"


class Fixed(SequenceDrafter):
    """A drafter that remembers its options, for the tests to look at."""

    spec = DrafterSpec(name="fixed")

    def __init__(self, **options: Any) -> None:
        self.options = options

    def propose_one(self, row: int, text: Any, k: int) -> list[int]:
        return []


def make_fixed(checkpoint: str = "none given", width: int = 1) -> Fixed:
    return Fixed(checkpoint=checkpoint, width=width)


def make_from_anything(**options: Any) -> Fixed:
    return Fixed(**options)


def make_needing_width(width: int) -> Fixed:
    return Fixed(width=width)


class NoProposeOne(SequenceDrafter):
    spec = DrafterSpec(name="silent")


class NoPropose(Drafter):
    spec = DrafterSpec(name="mute")


class NoSpec(Drafter):
    def propose(self, anchor: Any, position: Any, k: int) -> Proposal:
        raise NotImplementedError


class NamelessWorkload:
    def rollouts(self) -> list[Any]:
        return []


def make_importing_late() -> Fixed:
    import a_package_nobody_has.models  # type: ignore[import-not-found]  # noqa: F401

    return Fixed()


NOT_A_FACTORY = 3


def test_builtin_drafters_are_found_through_entry_points() -> None:
    """Fails if a built-in one bypasses the public door, or its distribution is not told."""
    found = available("drafter")
    assert {"none", "ngram", "suffix"} <= set(found)
    assert found["ngram"].startswith("agentbench-spec ")
    assert "ngram" not in available("workload")


@pytest.mark.parametrize("name", ["none", "ngram", "suffix"])
def test_entry_point_name_is_the_drafters_own_name(name: str) -> None:
    """Rows are keyed by spec.name: a drafter that calls itself something else would be lost in the tables."""
    assert load_drafter(name).spec.name == name


def test_options_reach_the_factory() -> None:
    drafter = load_drafter(f"{__name__}:make_fixed", width=3)
    assert isinstance(drafter, Fixed)
    assert drafter.options == {"checkpoint": "none given", "width": 3}


def test_equals_is_short_for_the_checkpoint_option() -> None:
    """Only the first '=' splits: a checkpoint path may hold more of them."""
    drafter = load_drafter(f"{__name__}:make_fixed=org/name=v2", width=3)
    assert isinstance(drafter, Fixed)
    assert drafter.options == {"checkpoint": "org/name=v2", "width": 3}


def test_factory_path_may_be_dotted() -> None:
    assert isinstance(load_drafter(f"{__name__}:Holder.make"), Fixed)


class Holder:
    @staticmethod
    def make() -> Fixed:
        return Fixed()


def test_factory_with_open_keywords_takes_any_option() -> None:
    drafter = load_drafter(f"{__name__}:make_from_anything", anything=1)
    assert isinstance(drafter, Fixed)
    assert drafter.options == {"anything": 1}


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("ngarm", {}, ["'ngarm'", "did you mean 'ngram'", "suffix"]),
        ("ngram", {"max_m": 3}, ["ngram", "'max_m'", "did you mean 'max_n'", "min_n"]),
        ("none", {"width": 3}, ["none", "'width'", "no options"]),
        ("ngram=some/checkpoint", {}, ["ngram", "'checkpoint'", "max_n, min_n"]),
        ("ngram=", {}, ["'ngram='", "NAME=CHECKPOINT"]),
        (f"{__name__}:make_fixed=a", {"checkpoint": "b"}, ["'checkpoint'", "given too"]),
        (f"{__name__}:make_needing_width", {}, ["needs the option 'width'"]),
        (f"{__name__}:nothing_here", {}, [__name__, "'nothing_here'"]),
        (f"{__name__}:NOT_A_FACTORY", {}, ["'NOT_A_FACTORY'", "not callable"]),
        ("no_such_package.part:make", {}, ["'no_such_package'", "PYTHONPATH"]),
        (":make", {}, ["package.module:factory"]),
        (f"{__name__}:make_importing_late", {}, ["'a_package_nobody_has'", "not installed"]),
    ],
)
def test_wrong_input_is_a_config_error_that_names_it(name: str, options: dict[str, Any], words: list[str]) -> None:
    """Each way to type it wrong: the message holds the culprit and the way out."""
    with pytest.raises(ConfigError) as caught:
        load_drafter(name, **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("factory", "lacking"),
    [
        ("NoProposeOne", "propose_one()"),
        ("NoPropose", "propose()"),
        ("NoSpec", "spec (a DrafterSpec)"),
        ("dict", "truncate()"),
    ],
)
def test_what_is_not_a_drafter_is_refused(factory: str, lacking: str) -> None:
    """Without the check the fault would surface in the middle of a run."""
    module = "builtins" if factory == "dict" else __name__
    with pytest.raises(ContractError, match="lacking") as caught:
        load_drafter(f"{module}:{factory}")
    assert lacking in str(caught.value)


def test_what_is_not_a_workload_is_refused() -> None:
    with pytest.raises(ContractError, match=r"lacking name \(a string\)$"):
        load_workload(f"{__name__}:NamelessWorkload")


def test_unknown_workload_is_not_looked_up_among_drafters() -> None:
    with pytest.raises(ConfigError, match="unknown workload 'ngram'"):
        load_workload("ngram")


def run_python(code: str, *search: Path) -> Any:
    """What `code`, run in a fresh interpreter with `search` on its path, prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, search))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the third-party package; the environment stays as it was."""
    source = tmp_path_factory.mktemp("source") / "plugin_pkg"
    shutil.copytree(PLUGIN_PACKAGE, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    target = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_third_party_package_is_found_and_used_like_a_builtin(site: Path) -> None:
    """Fails if the door that outside packages come through differs from the one in our own tests."""
    seen = run_python(
        """
        import json, torch
        from agentbench_spec.plugins import available, load_drafter, load_workload
        from agentbench_spec.runs.live.live_tasks import each_task, open_live
        drafter = load_drafter("echo", times=3)
        drafter.open(None, rows=1, capacity=8)
        guess = drafter.propose(torch.tensor([5]), torch.tensor([0]), 3)
        rollout, = load_workload("two_turns").rollouts()
        print(json.dumps({
            "drafters": available("drafter"),
            "workloads": available("workload"),
            "max_tokens": drafter.spec.max_tokens,
            "guess": guess.ids.tolist(),
            "decode_points": rollout.decode_points(),
            "environments": available("environment"),
            "tasks": [task.id for task in each_task(open_live("guessing", {}), limit=2, seed=0)],
        }))
        """,
        site,
    )
    assert seen["drafters"]["echo"] == "agentbench-spec-example-plugin 0.3.0"
    assert seen["workloads"]["two_turns"] == "agentbench-spec-example-plugin 0.3.0"
    assert "ngram" in seen["drafters"]
    assert seen["max_tokens"] == 3
    assert seen["guess"] == [[5, 5, 5]]
    assert seen["decode_points"] == [1, 3]
    assert seen["environments"]["guessing"] == "agentbench-spec-example-plugin 0.3.0"
    assert {"bfcl_v3", "synthetic_agent", "agent_memory_bench"} <= seen["environments"].keys()
    assert seen["tasks"] == ["guessing/1", "guessing/38"]


def test_third_party_package_is_not_found_where_it_is_not_installed(site: Path) -> None:
    """The control of the test above: the names come from the installed package and from nowhere else."""
    found = run_python(
        "import json; from agentbench_spec.plugins import available as a; print(json.dumps(a('drafter')))"
    )
    assert "echo" not in found


def plant(site: Path, distribution: str, entry: str, **modules: str) -> Path:
    """A hand-made installed distribution with one drafter entry point, in a folder of its own."""
    info = site / f"{distribution}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[agentbench_spec.drafters]\n{entry}\n", encoding="utf-8")
    for name, source in modules.items():
        (site / f"{name}.py").write_text(source, encoding="utf-8")
    return site


def error_of(name: str, *search: Path) -> list[str]:
    """Class and message of the error that loading drafter `name` raises with `search` on the path."""
    code = f"""
    import json
    from agentbench_spec.plugins import load_drafter
    try:
        load_drafter({name!r})
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
    """
    found: list[str] = run_python(code, *search)
    return found


def test_missing_dependency_of_a_plugin_is_named(tmp_path: Path) -> None:
    """The plugin is there, what it imports is not: the user must be told which package to install."""
    site = plant(tmp_path, "needy", "needy = needy_plugin:make", needy_plugin="import a_package_nobody_has.sub\n")
    kind, message = error_of("needy", site)
    assert kind == "ConfigError"
    assert "'a_package_nobody_has'" in message
    assert "needy 1.0" in message


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("import json\n\nraise RuntimeError('no licence')\n", "RuntimeError: no licence (at lame_plugin.py:3)"),
        ("import sys\nsys.exit()\n", "it called sys.exit() (at lame_plugin.py:2)"),
        ("import sys\nsys.exit('usage: lame')\n", "it called sys.exit('usage: lame') (at lame_plugin.py:2)"),
        ("def make(:\n", "SyntaxError: "),
        ("{}['x']\n", "KeyError: 'x' (at lame_plugin.py:1)"),
    ],
)
def test_a_plugin_whose_import_fails_is_named_with_its_entry_point_and_cause(
    tmp_path: Path, source: str, cause: str
) -> None:
    """Fails if an import that raises, or ends the process, looks like success or like a fault of ours; by entry point
    and by path."""
    site = plant(tmp_path, "lame", "lame = lame_plugin:make", lame_plugin=source)
    kind, message = error_of("lame", site)
    assert kind == "ContractError"
    assert message.startswith(
        "drafter 'lame' of lame 1.0: importing lame_plugin (entry point lame_plugin:make) failed: "
    )
    assert cause in message and "\n" not in message.strip()
    kind, message = error_of("lame_plugin:make", site)
    assert kind == "ContractError" and message.startswith("drafter 'lame_plugin:make': importing lame_plugin")


def test_the_traceback_of_a_plugin_stays_in_the_chained_error(tmp_path: Path) -> None:
    """Fails if the author of a broken plugin cannot see where it broke, but only our summary of it."""
    site = plant(tmp_path, "lame", "lame = lame_plugin:make", lame_plugin="def f():\n    1 / 0\n\nf()\n")
    code = """
    import json, traceback
    from agentbench_spec.plugins import load_drafter
    try:
        load_drafter("lame")
    except Exception as error:
        print(json.dumps([frame.lineno for frame in traceback.extract_tb(error.__cause__.__traceback__)][-2:]))
    """
    assert run_python(code, site) == [4, 2]


def test_entry_point_to_a_module_that_is_not_there_is_the_authors_fault(tmp_path: Path) -> None:
    """Not the user's input: nobody can install the missing module."""
    site = plant(tmp_path, "hollow", "hollow = hollow_plugin.missing:make")
    kind, message = error_of("hollow", site)
    assert kind == "ContractError"
    assert "hollow 1.0" in message


def test_a_name_that_two_packages_claim_is_refused(tmp_path: Path) -> None:
    """Which of the two is measured must not depend on the order of the path."""
    one = plant(tmp_path / "one", "first", "twin = first_plugin:make", first_plugin="")
    two = plant(tmp_path / "two", "second", "twin = second_plugin:make", second_plugin="")
    kind, message = error_of("twin", one, two)
    assert kind == "ConfigError"
    assert "first_plugin:make (first 1.0)" in message
    assert "second_plugin:make (second 1.0)" in message


def test_example_in_the_documentation_runs(tmp_path: Path) -> None:
    """What a newcomer copies must work as printed: saved as a file, named by path, asked for three tokens."""
    document = PLUGIN_PACKAGE.parents[1] / "docs" / "drafters.md"
    source = document.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    (tmp_path / "my_drafter.py").write_text(source, encoding="utf-8")
    code = """
    import torch
    from agentbench_spec.plugins import load_drafter
    drafter = load_drafter("my_drafter:make")
    drafter.open(None, rows=1, capacity=8)
    print(drafter.propose(torch.tensor([5]), torch.tensor([0]), 3).ids.tolist())
    """
    assert run_python(code, tmp_path) == [[5, 5, 5]]
