"""The functions behind `import agentbench_spec as ab`: each opens one package, and imports it when it is called.

What the command line does is here under the same names: settings, checks and errors are one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from agentbench_spec.errors import ConfigError

if TYPE_CHECKING:
    from agentbench_spec.config import RunConfig
    from agentbench_spec.conformance.kit import Report
    from agentbench_spec.drafting import Drafter
    from agentbench_spec.engine.target import Target
    from agentbench_spec.reproduce.tables123 import Reproduced
    from agentbench_spec.results.compare import Comparison
    from agentbench_spec.results.loaded import Run
    from agentbench_spec.results.paper import TableName
    from agentbench_spec.results.tables import Table
    from agentbench_spec.rollout import Rollout, TokenCounter
    from agentbench_spec.rollouts.growth import Measured
    from agentbench_spec.runs.keywords import Named, PathLike, Settings

Tell: TypeAlias = Callable[[str], None]
"""Takes one line that says what is going on, such as `print`."""


def _quiet(line: str) -> None:
    pass


def run(
    settings: RunConfig | Mapping[str, Any] | PathLike | None = None,
    *,
    out: PathLike | None = None,
    resume: bool = False,
    api_key: str | None = None,
    shard: str | None = None,
    on: str | None = None,
    shards: int | None = None,
    tell: Tell | None = None,
    **keywords: Unpack[Settings],
) -> Run:
    """Replay rollouts turn by turn with every drafter; returns the finished run, read from its folder.

    settings: a TOML file, a tree or a `RunConfig`; keywords come on top of it, and those that are None were not given.
    out: the run folder; None: results/<time>-<target>-<workload>. resume: go on with the killed run in `out`, with its
    own settings. shard: "i/n", only this part of the rollouts; join the folders with `merge`. on: "ray", spread over
    GPUs and machines, in so many `shards` (None: one a GPU). tell: hears what is going on; None: silence. Read
    `Run.faults` before you quote a figure. Raises ConfigError for what cannot be used, MeasurementError if the run is
    void before its end.
    """
    if resume and out is None:
        raise ConfigError("resume needs out, the folder of the run to continue")
    from agentbench_spec.results.machines.store import writing
    from agentbench_spec.runs.keywords import resolve
    from agentbench_spec.runs.scale.shards import Shard, begun_at
    from agentbench_spec.serving.anywhere import How, run_anywhere

    part = Shard.parse(shard) if shard else None
    how = How(resume=resume, api_key=api_key, shard=part, on=on, shards=shards, bar=False)
    place = None if out is None else writing(Path(out))
    config = resolve(settings, keywords, begun=begun_at(place) if resume and place is not None else None)
    how.refuse(config, place)
    from agentbench_spec.runs.early import check_drafters, check_hub

    if config.backend == "engine":
        check_drafters(config.drafters)
    else:
        from agentbench_spec.serving.needs import refuse_without_httpx

        refuse_without_httpx(config.backend)
    check_hub(config, tell or _quiet)
    from agentbench_spec.runs.execute import new_folder

    folder = place or new_folder(config.named_target or config.backend, config.workload.name)
    run_anywhere(config, folder, how, tell or _quiet)
    return load(folder)


def load(folder: PathLike) -> Run:
    """The run in a folder, finished or not: `rows`, `frame`, `manifest`, `summary`, `faults`.

    Raises ConfigError naming file, line and field for what cannot be read.
    """
    from agentbench_spec.results.loaded import Run

    return Run.load(folder)


def _runs(given: Run | PathLike | Iterable[Run | PathLike]) -> list[Path]:
    from agentbench_spec.results.loaded import Run, several

    return [own.folder if isinstance(own, Run) else Path(own) for own in several(given)]


def _loaded(given: Run | PathLike) -> Run:
    return load(given) if isinstance(given, str | os.PathLike) else given


def compare(
    old: Run | PathLike, new: Run | PathLike, *, tolerance: float = 0.05, all_drafters: bool = False
) -> Comparison:
    """What fell between two runs of the same settings, by workload, drafter and context length.

    tolerance: a relative fall that is not one yet; all_drafters: a drafter that the new run lacks is a loss. Raises
    ConfigError if the runs did not measure the same thing.
    """
    from agentbench_spec.results.compare import compare_runs

    before, after = _loaded(old), _loaded(new)
    runs = (before.manifest, before.rows), (after.manifest, after.rows)
    return compare_runs(*runs, tolerance=tolerance, all_drafters=all_drafters)


def write_report(runs: Run | PathLike | Iterable[Run | PathLike], out: PathLike) -> Path:
    """Write one HTML page over the runs to `out`; returns `out`. Raises ConfigError for a run that cannot be used."""
    from agentbench_spec.report import page

    return page.write_report(_runs(runs), Path(out))


def paper_table(
    name: TableName,
    columns: Mapping[str, Run | PathLike],
    *,
    title: str = "",
    drafters: Sequence[str] | None = None,
    figures: Sequence[str] = ("speedup", "tau_raw"),
    target: str | None = None,
    paper_target: str | None = None,
    comparable: bool = False,
) -> Table:
    """Runs in the layout of a table of the DLite paper: our value and its interval beside the paper's.

    columns: the paper's name of a workload -> the run on it; target, drafters: None: as the first run has them;
    paper_target: whose published values stand beside ours; comparable: the settings are the paper's, so that a verdict
    means something. Raises MeasurementError for runs of different conditions.
    """
    from agentbench_spec.results.tables import Column, replay_table

    runs = {column: _loaded(run) for column, run in columns.items()}
    if not runs:
        raise ConfigError("a table needs at least one column, {workload: run}")
    first = next(iter(runs.values()))
    return replay_table(
        name,
        title or name,
        [Column(column, run.rows, paper_workload=column) for column, run in runs.items()],
        first.drafters if drafters is None else drafters,
        figures,
        target=target or str(first.rows[0].target),
        paper_target=paper_target,
        comparable=comparable,
    )


def reproduce_table(
    table: str,
    *,
    out: PathLike | None = None,
    results: PathLike = "results/reproduce",
    target: str | None = None,
    embedded: bool = False,
    drafters: Sequence[str] = (),
    limit: int | None = None,
    concurrency: Sequence[int] = (),
    settings: Sequence[str] = (),
    presets: PathLike | None = None,
    on: str | None = None,
    tell: Tell | None = None,
) -> Reproduced:
    """Run, or reuse, what a table of the DLite paper needs; write table, figures and page to `out`.

    results: where runs are kept and found again; settings: "section.key=value" in place of the preset's; the others
    are the flags of `agentbench-spec reproduce`. Raises ConfigError if nothing of the table can be run.
    """
    from agentbench_spec.reproduce.output import write_everything
    from agentbench_spec.reproduce.plan import Request
    from agentbench_spec.reproduce.tables123 import reproduce, table_folder

    request = Request(
        target=target,
        embedded=embedded,
        drafters=drafters,
        limit=limit,
        concurrency=concurrency,
        assignments=settings,
        presets=Path(presets) if presets is not None else None,
        results=Path(results),
        on=on,
    )
    done = reproduce(table, request, tell or _quiet)
    write_everything(done, Path(out) if out is not None else table_folder(Path(results), done.plan))
    return done


def check(
    drafter: Named,
    *,
    on: str | Sequence[str] | None = None,
    target: str | Target | None = None,
    reference: Named | None = None,
    floor: float | None = None,
    options: Mapping[str, Any] | None = None,
    tell: Tell | None = None,
) -> Report:
    """Does a drafter keep its contract? `failed` names the laws that broke, `findings` says where.

    on: "toy", "embedded" or both; None: both, or "embedded" alone for a drafter shipped for it; target: check on
    this model instead, by name or loaded with `load_target`; reference: a plain drafter that must propose the same;
    floor: least tau on the embedded model; tell: hears each law before it is tried. Raises ConfigError for an unknown
    drafter, target or option.
    """
    from agentbench_spec.engine.hub_reach import check_models
    from agentbench_spec.runs.early import checkpoints
    from agentbench_spec.runs.keywords import name_of

    named = [name_of(drafter), *([] if reference is None else [name_of(reference)])]
    check_models(target if isinstance(target, str) else None, *checkpoints(named), tell=tell or _quiet)
    from agentbench_spec.conformance.kit import check_drafter

    return check_drafter(
        named[0],
        on=(on,) if isinstance(on, str) else on,
        target=load_target(target) if isinstance(target, str) else target,
        reference=None if reference is None else named[1],
        floor=floor,
        options=options,
        progress=tell or _quiet,
    )


def load_target(source: str, *, capacity: int = 512) -> Target:
    """A target (hub id, local folder or smollm2-135m) with room for one text of `capacity` tokens.

    Raises ConfigError if it cannot be loaded or does not fit the engine.
    """
    from agentbench_spec.engine.loading import load_model
    from agentbench_spec.engine.target import Target

    return Target(load_model(source)[0], name=source, capacity=capacity)


def load_drafter(name: str, /, *, target: str = "", **options: Any) -> Drafter:
    """The drafter called `name`, made with `options` and not opened; target: whose shipped checkpoint it takes.

    Raises ConfigError for an unknown name or option, ContractError if what is called so is no drafter.
    """
    from agentbench_spec.engine.embedded import shipped_drafter
    from agentbench_spec.plugins import load_drafter, with_checkpoints

    return load_drafter(name, **with_checkpoints(name, options, partial(shipped_drafter, target=target)))


def token_counter(target: str) -> TokenCounter:
    """Counts tokens with a target's tokenizer and template, loaded at the first count (ConfigError if they cannot)."""
    from agentbench_spec.engine.token_counts import TargetTokens

    return TargetTokens(target)


def build_rollouts(
    workload: str, *, limit: int | None = None, seed: int = 0, target: str | None = None, **options: Any
) -> list[Rollout]:
    """The rollouts of a workload or file, at most `limit`; target: whose tokens it counts, if it counts any.

    options: of the workload, such as data=PATH or offline_standin=True. Raises ConfigError naming file, row and field.
    """
    from agentbench_spec.runs.source import load_rollouts, open_workload

    return load_rollouts(open_workload(workload, options, target=target), limit=limit, seed=seed, bar=False)


def measure_rollouts(rollouts: Iterable[Rollout], target: str | None = None) -> Measured:
    """Sizes of rollouts as data frames: `rollouts`, and, counted in tokens of `target`, `turns`.

    Raises ConfigError if the target's tokenizer cannot be loaded.
    """
    from agentbench_spec.engine.loading import load_tokenizer
    from agentbench_spec.rollouts.growth import measure_rollouts
    from agentbench_spec.rollouts.render import Renderer

    return measure_rollouts(rollouts, Renderer(load_tokenizer(target)) if target else None)
