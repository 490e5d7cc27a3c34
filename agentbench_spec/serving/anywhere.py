"""A run by whatever its settings and its asker name: our own engine, live sessions, shards on Ray, or servers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.runs.scale.shards import Shard, begun_shards, refuse_on_ray, refuse_shard

if TYPE_CHECKING:
    from agentbench_spec.runs.execute import Outcome
    from agentbench_spec.runs.scale.on_ray import Joined
    from agentbench_spec.runs.setup import Tell
    from agentbench_spec.serving.served_run import ServedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a run is carried out; nothing of it changes what is measured."""

    resume: bool = False
    api_key: str | None = None
    """Of servers."""
    shard: Shard | None = None
    """Only this part of the rollouts; None: all."""
    on: str | None = None
    """What spreads the run: "ray"; None: nothing."""
    shards: int | None = None
    """Into how many; None: one a GPU."""
    bar: bool = True

    def refuse(self, config: RunConfig, folder: Path | None) -> None:
        """Raises ConfigError for runs that cannot be cut, and for wishes of which one makes the other void."""
        if self.on not in (None, "ray"):
            raise ConfigError(f"--on {self.on}: expected ray")
        if self.shards is not None and self.on is None:
            raise ConfigError("--shards says into how many --on ray cuts the run; give it --on ray, or use --shard i/n")
        if self.shard is not None and self.on is not None:
            raise ConfigError(
                f"--shard {self.shard} and --on {self.on}: Ray cuts the run itself; leave one of them out"
            )
        if self.shard is not None:
            refuse_shard(config)
        if self.on is not None:
            refuse_on_ray(config)
        elif self.resume and folder is not None and begun_shards(folder):
            raise ConfigError(f"{folder} holds shards of a run on Ray: go on with --on ray --resume")


def run_anywhere(config: RunConfig, folder: Path, how: How, tell: Tell) -> Outcome | ServedRun | Joined:
    """Carry out the run. Raises what the way it takes does."""
    if how.on is not None:
        from agentbench_spec.runs.scale.on_ray import run_on_ray

        return run_on_ray(config, folder, shards=how.shards, resume=how.resume, tell=tell, bar=how.bar)
    if config.backend == "engine" and config.replay.history == "live":
        from agentbench_spec.runs.live.live_run import run_live

        return run_live(config, folder, resume=how.resume, tell=tell)
    if config.backend == "engine":
        from agentbench_spec.runs.execute import run

        return run(config, folder, resume=how.resume, tell=tell, bar=how.bar, shard=how.shard)
    from agentbench_spec.serving.served_run import run_served

    return run_served(config, folder, resume=how.resume, api_key=how.api_key, tell=tell)
