"""What a run, or a fleet, will take, told before it is paid for: `plan` and `plan_fleet`, as Python has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from agentbench_spec.errors import ConfigError

if TYPE_CHECKING:
    from agentbench_spec.config import RunConfig
    from agentbench_spec.results.loaded import Run
    from agentbench_spec.results.throughput.pass_rows import ThroughputRow
    from agentbench_spec.runs.keywords import PathLike, Settings
    from agentbench_spec.runs.scale.dry_run import DryRun
    from agentbench_spec.runs.scale.fleet import Asked, Need, PassCheck


def plan(
    settings: RunConfig | Mapping[str, Any] | PathLike | None = None,
    *,
    speeds: PathLike | None = None,
    shard: str | None = None,
    begun: PathLike | None = None,
    tell: Callable[[str], None] = lambda line: None,
    **keywords: Unpack[Settings],
) -> DryRun:
    """What `run` with these settings and keywords will take: downloads, memory, tokens by context, time by method.

    Nothing is decoded or written. speeds: a run folder, or "prefill=640,none=23.5" in tokens per second; None: no time
    is told; shard: "i/n", of this part; begun: folder of a killed run, of what is left of it. Raises ConfigError for
    what the run would refuse.
    """
    from agentbench_spec.results.folder import completed_rollouts
    from agentbench_spec.results.machines.store import reading
    from agentbench_spec.runs.early import check_drafters
    from agentbench_spec.runs.keywords import resolve
    from agentbench_spec.runs.scale.dry_run import dry_run
    from agentbench_spec.runs.scale.shards import Shard, refuse_shard
    from agentbench_spec.runs.scale.speeds import read_speeds

    place = None if begun is None else reading(str(begun))
    config = resolve(settings, keywords, begun=place)
    part = Shard.parse(shard) if shard else None
    if part is not None:
        refuse_shard(config)
    if config.backend == "engine":
        check_drafters(config.drafters)
    known = None if speeds is None else read_speeds(str(speeds))
    return dry_run(config, known, done=completed_rollouts(place) if place else (), shard=part, tell=tell)


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What so many sessions need by each method, and how far the estimate can be held against measurements."""

    asked: Asked
    needs: list[Need]
    """By method, plain decoding first."""
    contexts: list[dict[str, Any]]
    """Stretch of contexts -> its share of the turns, GPU seconds of a turn by method."""
    checked: list[PassCheck]
    """Measured points of `batches`, each simulated; empty without them."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        checked = [{**asdict(own), "inside": own.inside} for own in self.checked]
        plain = [asdict(own) for own in self.needs]
        return {"asked": asdict(self.asked), "needs": plain, "contexts": self.contexts, "checked": checked}


def plan_fleet(
    run: Run | PathLike,
    *,
    sessions: int,
    turn_rate: float,
    batches: PathLike | None = None,
    mix: Mapping[str, float] | None = None,
    first_token_s: float | None = None,
    gpu_hour: float | None = None,
    gpu_memory_gb: float | None = None,
    seed: int = 0,
) -> FleetPlan:
    """How many GPUs serve `sessions` agents at `turn_rate` turns a minute each, by method: an estimate.

    run: its rows say how long turns take. batches: throughput run of the same target and machine; None: a GPU serves
    one turn at a time. mix: stretch of contexts -> its share; None: as in the run. first_token_s: what 95 of 100 first
    tokens come within; gpu_hour: price of a GPU hour; gpu_memory_gb: None: as the run found it. Raises ConfigError for
    numbers that are none, a run that cannot be planned from, and where simpy is missing.
    """
    _refuse(sessions=sessions, turn_rate=turn_rate)
    _refuse(first_token_s=first_token_s, gpu_hour=gpu_hour, gpu_memory_gb=gpu_memory_gb)
    if mix is not None:
        refuse_shares(mix)
    from agentbench_spec.results.loaded import Run
    from agentbench_spec.runs.scale.fleet import Asked, by_context, check_passes, needs, with_mix
    from agentbench_spec.runs.scale.service import services_of

    read = run if isinstance(run, Run) else Run.load(run)
    manifest, rows = read.manifest, read.rows
    passes = _passes(batches, manifest)
    services = services_of(rows, passes)
    if mix is not None:
        services = with_mix(services, mix)
    memory_bytes = int(gpu_memory_gb * 1e9) if gpu_memory_gb else _memory_bytes(manifest)
    weight_bytes = int((manifest.get("card") or {}).get("weight_bytes") or 0)
    asked = Asked(sessions, 60 / turn_rate, first_token_s, gpu_hour, memory_bytes, weight_bytes, seed)
    return FleetPlan(asked, needs(services, asked), by_context(services), check_passes(passes))


def _refuse(**numbers: float | None) -> None:
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} {value:g}: expected a number above 0")


def refuse_shares(mix: Mapping[str, float]) -> None:
    """Raises ConfigError for shares of contexts that are negative, no numbers, or all 0."""
    for name, share in mix.items():
        if not name or not 0 <= share < math.inf:
            raise ConfigError(f"--mix {name}={share:g}: expected CONTEXT=SHARE, such as '4K-8K=0.7,16K-32K=0.3'")
    if not sum(mix.values()):
        raise ConfigError("--mix: all shares are 0")


def _passes(batches: PathLike | None, manifest: Mapping[str, Any]) -> Sequence[ThroughputRow]:
    """Raises ConfigError if the throughput run is none, or of another target."""
    if batches is None:
        return ()
    from agentbench_spec.results.folder import read_manifest
    from agentbench_spec.results.throughput.pass_rows import read_rows

    own, passes = read_manifest(Path(batches)), read_rows(Path(batches))
    if not passes:
        raise ConfigError(f"--batches {batches}: no passes of a throughput run; make one with `reproduce table4`")
    sources = [((each.get("settings") or {}).get("target") or {}).get("source") for each in (manifest, own)]
    if sources[0] != sources[1]:
        raise ConfigError(f"--batches {batches}: measured with {sources[1]}, and the run with {sources[0]}")
    return passes


def _memory_bytes(manifest: Mapping[str, Any]) -> int | None:
    gpus = (manifest.get("host") or {}).get("gpus") or []
    return int(gpus[0]["memory_bytes"]) if gpus and gpus[0].get("memory_bytes") else None
