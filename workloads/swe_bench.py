"""Workloads `swe_bench` (growing agent rollouts) and `swe_bench_prompt` (one long prompt).

Origin: SWE-bench issues (MIT code; issues and patches carry each project's licence), solved by agents whose runs others
published. No package carries runs, and the `swebench` wheel carries no data at all, so runs come from a path (a
rollouts file, or files in any format of agentbench_spec.rollouts.importing: SWE-agent, mini-swe-agent, OpenHands and
the sets below) or from the hub:

| dataset | hub data set (rows) | licence (card) |
|---|---|---|
| swe-smith | SWE-bench/SWE-smith-trajectories, split tool (24,100) | MIT |
| openhands | nebius/SWE-rebench-openhands-trajectories (67,074; one file of 2 GB) | CC-BY-4.0 |
| nebius | nebius/SWE-agent-trajectories (80,036) | CC-BY-4.0 |
| swe-gym | SWE-Gym/OpenHands-Sampled-Trajectories (6,055) | none on the card |

Size: 15 to 50 steps and 10K to 60K tokens a run (few samples; shards are large, so the first file is read by default).
Instances: a run is labelled with what is known of its instance (`workloads/instances.py`). By the package `swebench`,
where it is installed: repository, language, log parser and kind of grading, told by the id. By `instances=PATH` (rows
of a SWE-bench set, or a task repository of swebench 5): also version, base commit, date, difficulty, and how many
tests decide. swebench 5.0.2 holds no versions and no test commands, so without that path they are not labels.
The paper: "SWE-Bench", 50 prompts at a 64K setting. A predecessor of its code reads a data set's ready `text` column,
so it was most likely one long prompt, which is `swe_bench_prompt`; `swe_bench` is the stronger, growing form. The two
have different names because their numbers cannot be compared.
What is ours: the cut to the window (`workloads/token_window.py`), at message boundaries and never inside a message.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentbench_spec.rollout import ConfigError, Rollout, TokenCounter, Workload

from .instances import Instances, known_instances
from .locate import HubSource, locate
from .questions import has_turns, question_rollout, turns_rollout
from .row_workload import Row, RowWorkload
from .standins import requested_standin
from .token_window import counter_for, cut_to_window

__all__ = ["DATASETS", "make", "make_prompt"]

NAME, PROMPT_NAME = "swe_bench", "swe_bench_prompt"
DATASETS = {
    "swe-smith": HubSource("SWE-bench/SWE-smith-trajectories", ("data/tool-00000-*.parquet",), "mit"),
    "openhands": HubSource("nebius/SWE-rebench-openhands-trajectories", ("*.parquet",), "cc-by-4.0"),
    "nebius": HubSource("nebius/SWE-agent-trajectories", ("data/train-00000-*.parquet",), "cc-by-4.0"),
    "swe-gym": HubSource("SWE-Gym/OpenHands-Sampled-Trajectories", ("data/train.raw-00000-*.parquet",), "not declared"),
}
"""Published agent runs, by the name the option `dataset` takes; first file of each."""
_PROMPTS = HubSource("princeton-nlp/SWE-bench_bm25_40K", ("data/test-*.parquet",), "not declared")


def make(
    *,
    data: str | Path | None = None,
    dataset: str = "swe-smith",
    revision: str | None = None,
    tokenizer: TokenCounter | None = None,
    window_tokens: int = 65_536,
    reserve_tokens: int = 1024,
    min_tokens: int = 0,
    count: int | None = 50,
    instances: str | Path | None = None,
    lenient: bool = False,
    offline_standin: bool = False,
) -> Workload:
    """Agent runs on SWE-bench-like issues, cut to a token window.

    data: a rollouts file, or files of rows; None: the hub's `dataset`. tokenizer: counts as the target does, in its
    template; window_tokens=0: whole runs, no counting. reserve_tokens: room left for an output. min_tokens: only runs
    whose last kept prompt has as many. count: rollouts where no limit is asked for; None: all. instances: rows of a
    SWE-bench set, or a task repository, for the labels; None: what the package `swebench` knows, if installed.

    Raises ConfigError if the data cannot be had, or a window is asked for without a tokenizer.
    """
    if standin := requested_standin(NAME, offline_standin, data=data, revision=revision, instances=instances):
        return standin
    if dataset not in DATASETS:
        raise ConfigError(f"dataset: unknown {dataset!r}; known: {', '.join(DATASETS)}")
    if window_tokens and not 0 <= reserve_tokens < window_tokens:
        raise ConfigError(f"reserve_tokens: expected 0 to less than {window_tokens}, found {reserve_tokens}")
    counter = counter_for(tokenizer, f"the window of {window_tokens} tokens") if window_tokens else None
    fit = Fit(counter, window_tokens, reserve_tokens, min_tokens)
    known = known_instances(instances)
    found = locate(NAME, data, DATASETS[dataset], revision=revision)

    def build(row: Row) -> Rollout | None:
        return fit(_labelled(_run(row), known))

    return _Limited(RowWorkload(NAME, found, build, lenient=lenient), count)


class Fit:
    """What a run must be cut to."""

    def __init__(self, counter: TokenCounter | None, window_tokens: int, reserve_tokens: int, min_tokens: int) -> None:
        self._counter, self._window, self._reserve, self._min = counter, window_tokens, reserve_tokens, min_tokens

    def __call__(self, rollout: Rollout) -> Rollout | None:
        """The run inside the window; None if it does not fit, or stays under the least length."""
        if self._counter is None:
            return rollout
        fitted = cut_to_window(rollout, self._counter.prompt, window_tokens=self._window, reserve_tokens=self._reserve)
        return fitted if fitted is not None and fitted.labels["last_prompt_tokens"] >= self._min else None


class _Limited:
    """A workload with a count of its own where no limit is asked for."""

    def __init__(self, rows: RowWorkload[Rollout], count: int | None) -> None:
        self.name, self._rows, self._count = rows.name, rows, count
        self.bad_lines, self.left_out = rows.bad_lines, rows.left_out

    def rollouts(self, *, limit: int | None = None, seed: int = 0) -> Iterator[Rollout]:
        """The rollouts that fit; a smaller limit gives the beginning of a larger one."""
        yield from self._rows.rollouts(limit=self._count if limit is None else limit, seed=seed)


def _run(row: Row) -> Rollout:
    """The run of a row in any format the importer knows; a line of a rollouts file keeps its id and source."""
    if {"id", "workload", "messages"} <= row.value.keys():
        return row.imported(row.value, workload=NAME, name="", format="rollout").model_copy(update={"workload": NAME})
    instance, run = row.optional("instance_id"), row.optional("traj_id", "trajectory_id", "run_id")
    name = "/".join([instance or row.file.name.partition(".")[0], run or str(row.number)])
    made = row.imported(row.value, workload=NAME, name=name)
    return made.model_copy(update={"labels": {"category": row.optional("repo") or NAME, **made.labels}})


def _labelled(rollout: Rollout, known: Instances) -> Rollout:
    """The run with what is known of its instance; what the run itself says stands."""
    instance, repo = (rollout.labels.get(name) for name in ("instance_id", "repo"))
    found = known.labels(str(instance or ""), str(repo) if repo else None)
    return rollout.model_copy(update={"labels": {**found, **rollout.labels}}) if found else rollout


def make_prompt(
    *,
    data: str | Path | None = None,
    revision: str | None = None,
    tokenizer: TokenCounter | None = None,
    window_tokens: int = 65_536,
    reserve_tokens: int = 1024,
    count: int | None = 50,
    lenient: bool = False,
    offline_standin: bool = False,
) -> Workload:
    """One long prompt a rollout: the `text` column of a prompt-style SWE-bench set, unchanged.

    data: rows with `text`, or {"turns": [...]} rows; None: princeton-nlp/SWE-bench_bm25_40K. tokenizer, window_tokens,
    reserve_tokens: prompts that do not fit are left out, never cut; window_tokens=0 takes all. The reference is the
    row's patch. Raises as `make` does.
    """
    if standin := requested_standin(PROMPT_NAME, offline_standin, data=data, revision=revision):
        return standin
    counter = counter_for(tokenizer, f"the window of {window_tokens} tokens") if window_tokens else None
    found = locate(PROMPT_NAME, data, _PROMPTS, revision=revision)

    def build(row: Row) -> Rollout | None:
        made = _prompt(row)
        fits = counter is None or counter.prompt(made, 1) <= window_tokens - reserve_tokens
        return made if fits else None

    return _Limited(RowWorkload(PROMPT_NAME, found, build, lenient=lenient), count)


def _prompt(row: Row) -> Rollout:
    if has_turns(row):
        return turns_rollout(row, PROMPT_NAME)
    if "text" not in row.value and "problem_statement" in row.value:
        raise row.fault(
            "text", "is missing: an issue alone is a short prompt; give a set that has the prompt as `text`"
        )
    instance = row.id("instance_id", "id")
    return question_rollout(
        row, PROMPT_NAME, instance, [row.text("text")], references=row.value.get("patch"), instance_id=instance
    )
