"""`--on ray`: the shards of a run as Ray tasks with a GPU each, on one machine's GPUs or on a cluster.

The rollouts travel through Ray, and complete ones come back to a collector on the machine that asked; workers write
nothing that must outlive them. A task whose node is lost is started again elsewhere and goes on behind what is kept.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_spec.bars import Bar
from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.engine.loading import load_tokenizer
from agentbench_spec.errors import AgentBenchError, ConfigError, MeasurementError
from agentbench_spec.results.folder import MANIFEST, finished_manifest
from agentbench_spec.results.machines.merge import merge
from agentbench_spec.results.writer import refuse_early
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.render import Renderer
from agentbench_spec.runs.execute import Finished
from agentbench_spec.runs.scale.collector import Collector, Turn, replay_share
from agentbench_spec.runs.scale.shards import (
    Shard,
    Share,
    all_shares,
    begun_shards,
    begun_share,
    refuse_on_ray,
    shard_folder,
)
from agentbench_spec.runs.setup import Tell, method_names
from agentbench_spec.runs.source import Source, read_source

_RETRIES = 8
"""Times a task is started again after its node, or its process, died."""
_POLL_S = 1.0


@dataclass(frozen=True, slots=True)
class Joined(Finished):
    """A run that was made in shards and joined."""

    notes: list[str]
    card: None = None
    """Each shard has its own, in the manifest."""


def _ray() -> Any:
    """The library, which tells nobody that it is used."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    return ray


def run_on_ray(
    config: RunConfig,
    folder: Path,
    *,
    shards: int | None = None,
    resume: bool = False,
    argv: Sequence[str] | None = None,
    tell: Tell = lambda line: None,
    bar: bool = True,
) -> Joined:
    """Replay the configured rollouts in shards on Ray and write the run folder.

    shards: how many; None: as many as GPUs, or, of a run on CPUs, as tasks fit at once. A killed run goes on with
    `resume`. Raises ConfigError for what cannot be run, MeasurementError if a shard failed: what is there is kept.
    """
    refuse_on_ray(config)
    refuse_begun(config, folder, resume=resume)
    ray = _ray()
    source = read_source(config, tell=tell, bar=bar)
    with _connected(ray):
        cluster = ray.cluster_resources()
        needs = needs_of(config, cluster)
        cut = _cut(config, folder, source, shards or _tasks_at_once(needs, cluster))
        tell(f"{len(cut)} shards on {sum(node['Alive'] for node in ray.nodes())} nodes, each with {_words(needs)}")
        _run_all(ray, config, cut, source, folder, needs, list(sys.argv if argv is None else argv), bar=bar)
    run = merge([shard_folder(folder, share.shard.index) for share in cut], folder)
    return Joined(folder, run.summary, run.rows, list(run.manifest.get("notes") or ()))


@contextmanager
def _connected(ray: Any) -> Iterator[None]:
    """Within: a node of the cluster that is there, or of one on this machine alone; left as it was found."""
    if ray.is_initialized():
        yield
        return
    ray.init(log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def refuse_begun(config: RunConfig, folder: Path, *, resume: bool) -> None:
    """Raises ConfigError if the folder holds a finished run, one of other settings, or one not asked to go on."""
    if (folder / MANIFEST).exists():
        raise ConfigError(f"{folder} already holds a run; choose another folder")
    begun = begun_shards(folder)
    if begun and not resume:
        raise ConfigError(f"{folder} holds shards of a run: go on with it (--resume), or choose another folder")
    if resume and not begun:
        raise ConfigError(f"{folder} holds no shards of a run on Ray; leave --resume out")
    if begun:
        refuse_early(begun[0], config.model_dump(mode="json"), resume=True)


def needs_of(config: RunConfig, cluster: Mapping[str, float]) -> dict[str, float]:
    """What a task takes of a node: a GPU; of a run on CPUs, the cores of its threads.

    Raises ConfigError if the cluster has no GPU and one is asked for.
    """
    gpus, device = cluster.get("GPU", 0), config.target.device
    if device == "cuda" and not gpus:
        raise ConfigError("target.device=cuda, and no node of the Ray cluster has a GPU; set target.device=auto or cpu")
    if device != "cpu" and gpus:
        return {"num_gpus": 1, "num_cpus": 1}
    return {"num_gpus": 0, "num_cpus": config.measure.threads or 1}


def _tasks_at_once(needs: Mapping[str, float], cluster: Mapping[str, float]) -> int:
    kind = "GPU" if needs["num_gpus"] else "CPU"
    return max(1, int(cluster.get(kind, 1) // max(needs["num_gpus"] or needs["num_cpus"], 1)))


def _words(needs: Mapping[str, float]) -> str:
    return "a GPU" if needs["num_gpus"] else f"{needs['num_cpus']:g} CPU cores"


def _cut(config: RunConfig, folder: Path, source: Source, of: int) -> list[Share]:
    """The shares of a new run, at most one a rollout; of one that was begun, as it was cut."""
    begun = begun_shards(folder)
    if begun and (share := begun_share(begun[0], None)):
        of = share.shard.of
    tokenizer = load_tokenizer(config.target.source, revision=config.target.revision)
    renderer = Renderer(tokenizer, config.replay.thinking)
    of = min(of, len(source.rollouts))
    return all_shares(of, source.rollouts, renderer, config, len(method_names(config)))


def _run_all(
    ray: Any,
    config: RunConfig,
    cut: Sequence[Share],
    source: Source,
    folder: Path,
    needs: Mapping[str, float],
    argv: Sequence[str],
    *,
    bar: bool,
) -> None:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    collector = ray.remote(num_cpus=0, scheduling_strategy=here)(Collector).remote(folder.absolute())
    task = ray.remote(max_retries=_RETRIES, **needs)(_task)
    data = ray.put((source.rollouts, source.name, source.facts))
    settings, paths = config.model_dump(mode="json"), [str(Path.cwd())]
    missing = [share for share in cut if not finished_manifest(shard_folder(folder, share.shard.index))]
    pending = {task.remote(settings, share, data, collector, paths, argv): share for share in missing}
    turns = sum(len(r.decode_points()[: config.replay.max_turns]) for r in source.rollouts)
    failed: dict[Shard, AgentBenchError] = {}
    try:
        with Bar(total=turns, unit="turn", disable=not bar) as progress:
            while pending:
                done, _ = ray.wait(list(pending), timeout=_POLL_S)
                _show(progress, ray.get(collector.progress.remote()), len(source.rollouts))
                for reference in done:
                    share = pending.pop(reference)
                    if error := _outcome(ray, reference):
                        failed[share.shard] = error
    finally:
        for reference in pending:
            ray.cancel(reference, force=True)
        ray.kill(collector)  # which frees the folders of shards that were not ended
    if failed:
        raise _failure(failed, folder)


def _show(progress: Bar, kept: tuple[int, int], of: int) -> None:
    turns, rollouts = kept
    progress.set_description(f"rollout {rollouts}/{of}", refresh=False)
    progress.update(turns - progress.n)


def _outcome(ray: Any, reference: Any) -> AgentBenchError | None:
    """Why a task failed; None if it did not."""
    try:
        ray.get(reference)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)  # of a task's own error, what its code raised
        return cause if isinstance(cause, AgentBenchError) else MeasurementError(str(error))
    return None


def _failure(failed: Mapping[Shard, AgentBenchError], folder: Path) -> AgentBenchError:
    """One error for all shards that failed; a mistake of the user's stays one."""
    reasons = {f"shard {shard}": " ".join(str(error).split())[-500:] for shard, error in failed.items()}
    way_on = f"what is complete is kept: go on with agentbench-spec run --on ray --resume --out {folder}"
    text = "; ".join(f"{name}: {why}" for name, why in reasons.items())
    kind = ConfigError if all(isinstance(error, ConfigError) for error in failed.values()) else MeasurementError
    return kind(f"{text}; {way_on}")


@dataclass(frozen=True, slots=True)
class _Remote:
    """The collector as a task sees it: every call waits until it is done."""

    actor: Any

    def kept(self, index: int) -> frozenset[str]:
        return frozenset(self._ask("kept", index))

    def begin(self, index: int, manifest: Mapping[str, Any]) -> None:
        self._ask("begin", index, dict(manifest))

    def keep(self, index: int, rollout: str, turns: Sequence[Turn], status: str, error: str | None) -> None:
        self._ask("keep", index, rollout, list(turns), status, error)

    def end(self, index: int, facts: Mapping[str, Any]) -> None:
        self._ask("end", index, dict(facts))

    def _ask(self, name: str, *arguments: Any) -> Any:
        ray = _ray()
        try:
            return ray.get(getattr(self.actor, name).remote(*arguments))
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, AgentBenchError) else error) from None


def _task(
    settings: Mapping[str, Any],
    share: Share,
    data: tuple[list[Rollout], str, dict[str, Any]],
    collector: Any,
    paths: Sequence[str],
    argv: Sequence[str],
) -> None:
    """What a worker does: one share, from where it was left. paths: where plugins of the asker's folder lie."""
    sys.path[:0] = [path for path in paths if path not in sys.path]
    rollouts, workload, facts = data
    replay_share(load_config(base=settings), share, rollouts, workload, facts, _Remote(collector), argv=argv)
