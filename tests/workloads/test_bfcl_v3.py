"""The real BFCL-v3 data: all 800 rows against the package's own executor, and what happens without the package."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import agentbench_spec_workloads
import pytest
from agentbench_spec_workloads.bfcl_v3 import CATEGORIES, SHIPPED, make, write_shipped
from bfcl_fixtures import needs_bfcl

import agentbench_spec
from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Rollout, file_sha256, read_rollouts, write_rollouts
from agentbench_spec.rollouts.sizes import validate_rollouts


@pytest.fixture(scope="module")
def full() -> dict[str, Rollout]:
    return {r.id: r for r in make().rollouts()}


@needs_bfcl
def test_counts(full: dict[str, Rollout]) -> None:
    """Fails if rows or calls are lost: 4,700 calls as counted on the pinned data and the extra one of row 154."""
    assert Counter(r.labels["category"] for r in full.values()) == dict.fromkeys(CATEGORIES, 200)
    assert sum(len(m.tool_calls) for r in full.values() for m in r.messages) == 4701
    points = Counter(
        {c: sum(len(r.decode_points()) for r in full.values() if r.labels["category"] == c) for c in CATEGORIES}
    )
    assert points == {"base": 1906, "miss_func": 2104, "miss_param": 2104, "long_context": 1967}


@needs_bfcl
def test_results_equal_the_packages_executor(full: dict[str, Rollout]) -> None:
    """Fails if binding, state handling or the text form of a result differs from the benchmark's own for any call."""
    utils = importlib.import_module("bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils")
    data = Path(str(importlib.util.find_spec("bfcl_eval").origin)).parent / "data"  # type: ignore[union-attr]
    for category in CATEGORIES:
        name = f"BFCL_v3_multi_turn_{category}.json"
        gold = {g["id"]: g["ground_truth"] for g in map(json.loads, (data / "possible_answer" / name).open())}
        for row in map(json.loads, (data / name).open()):
            calls = [call for turn in gold[row["id"]] for call in turn]
            expected, _ = utils.execute_multi_turn_func_call(
                calls, row["initial_config"], row["involved_classes"], "test", row["id"], category == "long_context"
            )
            assert [m.content for m in full[row["id"]].messages if m.role == "tool"] == expected, row["id"]


@needs_bfcl
def test_row_154(full: dict[str, Rollout]) -> None:
    """Fails if the row with one gold turn too many has its calls under the wrong user turns, or passes strict mode."""
    built = full["multi_turn_base_154"]
    asked = [i for i, m in enumerate(built.messages) if m.role == "user"]
    after_budget = built.messages[asked[2] + 1]
    assert "set a budget" in built.messages[asked[2]].content
    assert after_budget.tool_calls[0].name == "set_budget_limit"
    assert "joined" in built.notes[0]
    with pytest.raises(ConfigError, match=r"multi_turn_base_154: question: has 5 turns, but .* has 6"):
        list(make(ids="multi_turn_base_154", strict=True).rollouts())


@needs_bfcl
def test_added_functions_sentence() -> None:
    """Fails if the user sentence at a tool change is not the benchmark's."""
    prompts = importlib.import_module("bfcl_eval.constants.default_prompts")
    (built,) = make(ids="multi_turn_miss_func_0").rollouts()
    changed = [m for m in built.messages if m.tools is not None]
    assert [m.content for m in changed] == [prompts.DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC]


@needs_bfcl
def test_only_known_oddity_in_the_data(full: dict[str, Rollout], tmp_path: Path) -> None:
    """Fails if a rollout calls what it does not offer, beyond the one row where the benchmark itself does."""
    write_rollouts(tmp_path / "all.jsonl", full.values())
    report = validate_rollouts(tmp_path / "all.jsonl")
    assert report.ok and report.rollouts == 800
    assert [w.partition(":")[0] for w in report.warnings] == ["multi_turn_miss_func_49"]
    assert any("calls tail, which is not offered" in note for note in full["multi_turn_miss_func_49"].notes)


@needs_bfcl
def test_800_rollouts_in_seconds() -> None:
    """Fails if building all rollouts takes more than 20 s (measured: 1 s), which would make every run wait."""
    started = time.perf_counter()
    assert sum(1 for _ in make(tools="involved").rollouts()) == 800
    assert time.perf_counter() - started < 20


@needs_bfcl
def test_samples_nest_and_spread(full: dict[str, Rollout]) -> None:
    """Fails if a smaller sample is no subset of a larger one, or a rollout differs with the sample it is in."""
    small, large = (list(make().rollouts(limit=n, seed=5)) for n in (4, 12))
    assert large[:4] == small
    assert {r.labels["category"] for r in small} == set(CATEGORIES)
    assert all(full[r.id] == r for r in large)


BUILD = """
import sys
from pathlib import Path
from agentbench_spec.rollout import write_rollouts
from agentbench_spec_workloads.bfcl_v3 import make
write_rollouts(Path(sys.argv[1]), make(tools="involved").rollouts())
"""


@needs_bfcl
def test_bytes_do_not_depend_on_the_process(tmp_path: Path) -> None:
    """Fails if set order, the process's hash seed or the local time zone reaches a rollout."""
    digests = set()
    for seed, zone in (("1", "UTC"), ("2", "America/New_York")):
        out = tmp_path / f"{seed}.jsonl"
        env = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}
        subprocess.run([sys.executable, "-c", BUILD, str(out)], env=env, check=True)
        digests.add(file_sha256(out))
    assert len(digests) == 1


@needs_bfcl
def test_shipped_file_is_what_the_builder_makes(tmp_path: Path) -> None:
    """Fails if the sample was edited by hand or the builder changed without building the sample again."""
    assert write_shipped(tmp_path / "again.jsonl") == 20
    assert (tmp_path / "again.jsonl").read_bytes() == SHIPPED.read_bytes()


def test_shipped_sample() -> None:
    """Fails if the sample lost a category, its label, its growing contexts, or its licence."""
    rollouts = list(make(subset="shipped").rollouts())
    assert Counter(r.labels["category"] for r in rollouts) == dict.fromkeys(CATEGORIES, 5)
    assert {r.labels["tools"] for r in rollouts} == {"involved"}
    assert len({r.labels["scenario"] for r in rollouts}) == 20
    assert all(len(r.decode_points()) >= 10 for r in rollouts)
    assert sum(any(m.tools is not None for m in r.messages) for r in rollouts) == 5
    assert list(read_rollouts(SHIPPED)) == rollouts
    assert "Apache License 2.0" in (SHIPPED.parent / "NOTICE.md").read_text()
    assert (SHIPPED.parent / "LICENSE-APACHE-2.0.txt").is_file()


def test_shipped_sample_takes_filters() -> None:
    """Fails if an option that cannot apply to finished rollouts is passed over in silence."""
    workload = make(subset="shipped", categories="base,miss_func")
    assert [r.labels["category"] for r in workload.rollouts(limit=4)] == ["base", "miss_func", "base", "miss_func"]
    with pytest.raises(ConfigError, match="no rollout in it matches"):
        list(make(subset="shipped", tools="full").rollouts())
    for option in ({"parallel_calls": True}, {"distractors": 2}):
        with pytest.raises(ConfigError, match="do not apply"):
            make(subset="shipped", **option)  # type: ignore[arg-type]


BAD_OPTIONS = [
    ({"categories": "bse"}, "categories: unknown 'bse'; known: base, "),
    ({"categories": []}, "categories: is empty"),
    ({"tools": "all"}, "tools: expected 'full' or 'involved', found 'all'"),
    ({"distractors": -1}, "distractors: expected 0 or more"),
    ({"subset": "small"}, "subset: expected 'shipped'"),
    ({"subset": "shipped", "data": "x"}, "exclude each other"),
]


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS)
def test_bad_option(options: dict[str, object], words: str) -> None:
    """Fails if a mistyped option is accepted or its error does not say what would be right."""
    with pytest.raises(ConfigError, match=words):
        make(**options)  # type: ignore[arg-type]


@needs_bfcl
def test_negative_limit() -> None:
    """Fails if a negative limit gives an empty run instead of an error."""
    with pytest.raises(ConfigError, match="limit: expected 0 or more, found -1"):
        list(make().rollouts(limit=-1))


@needs_bfcl
def test_unknown_row() -> None:
    """Fails if a mistyped row id gives a smaller run instead of an error."""
    with pytest.raises(ConfigError, match="no usable row multi_turn_base_999"):
        list(make(ids=["multi_turn_base_0", "multi_turn_base_999"]).rollouts())


@pytest.mark.parametrize("offline", ["0", "1"])
def test_missing_data_path_is_an_error(offline: str, tmp_path: Path) -> None:
    """Field case 24: fails if a missing path falls back to the package or the sample, hub switched off or on."""
    gone = tmp_path / "no" / "such" / "file.jsonl"
    code = f"from agentbench_spec_workloads.bfcl_v3 import make; make(data={str(gone)!r})"
    env = {**os.environ, "HF_HUB_OFFLINE": offline}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert run.returncode == 1
    assert f"ConfigError: data: {gone}: no such file or folder" in run.stderr


def test_folder_without_the_data(tmp_path: Path) -> None:
    """Fails if a folder that lacks the v3 files, or holds the other data set of newer wheels, is taken for it."""
    with pytest.raises(ConfigError, match=r"holds no BFCL_v3_multi_turn_\*\.json"):
        make(data=tmp_path)
    (tmp_path / "BFCL_v4_multi_turn_base.json").touch()
    with pytest.raises(ConfigError, match="BFCL_v4 files, which are another data set"):
        make(data=tmp_path)


def test_recorded_rollouts_as_data(tmp_path: Path) -> None:
    """Fails if `data=FILE` reads anything but that file."""
    shipped = list(read_rollouts(SHIPPED))
    write_rollouts(tmp_path / "mine.jsonl", shipped[:3])
    assert list(make(data=tmp_path / "mine.jsonl").rollouts()) == shipped[:3]
    with pytest.raises(ConfigError, match=r"expected a \.jsonl of rollouts, or the folder"):
        make(data=SHIPPED.parent / "NOTICE.md")


def run_without(hidden: str, code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run `code` in an interpreter that sees every installed package but those whose names begin with `hidden`."""
    site = Path(str(importlib.util.find_spec("pydantic").origin)).parents[1]  # type: ignore[union-attr]
    for entry in site.iterdir():
        if not entry.name.startswith((hidden, "agentbench_spec", "__editable__")):
            (tmp_path / entry.name).symlink_to(entry)
    for package in (agentbench_spec, agentbench_spec_workloads):
        (tmp_path / package.__name__).symlink_to(Path(str(package.__file__)).parent)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-S", "-c", f"from agentbench_spec_workloads.bfcl_v3 import make\n{code}"]
    return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)


def test_without_the_package(tmp_path: Path) -> None:
    """Fails if a missing package is replaced by the sample in silence, or the error lacks the command that adds it."""
    run = run_without("bfcl_eval", "print(len(list(make(subset='shipped').rollouts())), flush=True)\nmake()", tmp_path)
    assert run.stdout == "20\n"
    assert "ConfigError" in run.stderr
    assert "pip install --no-deps bfcl-eval==2025.7.9 mpmath==1.3.0" in run.stderr


@needs_bfcl
def test_without_mpmath(tmp_path: Path) -> None:
    """Fails if the missing half of the install command shows up as a bare ImportError in the middle of a run."""
    run = run_without("mpmath", "list(make().rollouts())", tmp_path)
    assert (
        "ConfigError: bfcl-eval: cannot import mpmath: run `pip install --no-deps bfcl-eval==2025.7.9 mpmath"
        in run.stderr
    )
