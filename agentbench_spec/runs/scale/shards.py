"""A run cut into shards of rollouts: disjoint, the same wherever they are counted, balanced by tokens."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Rollout

if TYPE_CHECKING:
    from agentbench_spec.rollouts.growth import Renders

_SHARDS = "shards"
"""Folder of the shards of a run that is spread, below the run's own."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part of a run: `index` of `of`, counted from 1."""

    index: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard that "i/n" names. Raises ConfigError for anything else."""
        found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
        index, of = map(int, found.groups()) if found else (0, 0)
        if not 1 <= index <= of:
            raise ConfigError(f"--shard {text!r}: expected i/n with i from 1 to n, such as 1/4, 2/4, 3/4 and 4/4")
        return cls(index, of)

    def __str__(self) -> str:
        return f"{self.index}/{self.of}"


@dataclass(frozen=True, slots=True)
class Share:
    """The rollouts of one shard, by their ids."""

    shard: Shard
    own: list[str]
    all: list[str]
    """Of the whole run, in its order: rows are merged in it."""

    def as_dict(self) -> dict[str, Any]:
        """As the manifest holds it."""
        return {"index": self.shard.index, "of": self.shard.of, "rollouts": self.own, "all": self.all}


def shares(tokens: Sequence[int], of: int) -> list[list[int]]:
    """Places of the items of each of `of` shards, ascending: the largest first, each to the lightest shard so far.

    tokens [n]: of each item; none counts less than 1, so that no shard stays empty while there are `of` items. The
    heaviest shard has at most one item's tokens more than the lightest (Graham's longest processing time first, 1969).
    """
    heap = [(0, shard) for shard in range(of)]
    found: list[list[int]] = [[] for _ in range(of)]
    for place in sorted(range(len(tokens)), key=lambda place: (-tokens[place], place)):
        load, shard = heapq.heappop(heap)
        found[shard].append(place)
        heapq.heappush(heap, (load + max(tokens[place], 1), shard))
    return [sorted(own) for own in found]


def work_tokens(rollout: Rollout, renderer: Renders, config: RunConfig, methods: int) -> int:
    """Tokens the target runs for a rollout: its prompts once, and the replies of every method, as long as recorded.

    One that does not render counts as 1: it costs next to nothing, and its rows will say why.
    """
    points = rollout.decode_points()[: config.replay.max_turns]
    cap = config.decode.max_new_tokens
    last = points[-1:] if config.replay.prefix == "kept" else points
    try:
        prompts = sum(len(renderer.prompt(rollout, point)) for point in last)
        replies = [
            cap if rollout.messages[point].synthetic else min(len(renderer.reply(rollout, point)), cap)
            for point in points
        ]
    except Exception:
        return 1
    return max(1, prompts + methods * sum(replies))


def share_of(shard: Shard, rollouts: Sequence[Rollout], renderer: Renders, config: RunConfig, methods: int) -> Share:
    """The rollouts of a shard. Raises ConfigError if there are fewer rollouts than shards."""
    if len(rollouts) < shard.of:
        raise ConfigError(
            f"--shard {shard}: the run has {len(rollouts)} rollouts, so some shards would be empty; use at most "
            f"--shard i/{len(rollouts)}"
        )
    return all_shares(shard.of, rollouts, renderer, config, methods)[shard.index - 1]


def all_shares(of: int, rollouts: Sequence[Rollout], renderer: Renders, config: RunConfig, methods: int) -> list[Share]:
    """The rollouts of every shard of `of`, balanced by `work_tokens`."""
    tokens = [work_tokens(rollout, renderer, config, methods) for rollout in rollouts]
    names = [rollout.id for rollout in rollouts]
    cut = enumerate(shares(tokens, of), 1)
    return [Share(Shard(index, of), [names[place] for place in own], names) for index, own in cut]


def shard_folder(run: Path, index: int) -> Path:
    """Where a shard of a run that is spread lies, in the run's own folder."""
    return run / _SHARDS / str(index)


def begun_shards(run: Path) -> list[Path]:
    """Folders of the shards of a run that was spread and is not joined yet."""
    from agentbench_spec.results.folder import MANIFEST

    if (run / MANIFEST).exists():
        return []
    return sorted(path.parent for path in run.glob(f"{_SHARDS}/*/{MANIFEST}"))


def begun_at(run: Path) -> Path:
    """The folder whose manifest has the settings of a run that was begun: its own, or that of a shard below it."""
    return next(iter(begun_shards(run)), run)


def begun_share(folder: Path, shard: Shard | None) -> Share | None:
    """The share of a run that is continued, as its manifest holds it; None: the run is no shard.

    Raises ConfigError if another shard, or a shard of a whole run, is asked for.
    """
    from agentbench_spec.results.folder import read_manifest

    kept = read_manifest(folder).get("shard")
    share = Share(Shard(kept["index"], kept["of"]), kept["rollouts"], kept["all"]) if kept else None
    before = share.shard if share else None
    if shard is not None and shard != before:
        made = f"shard {before}" if before else "the whole run"
        raise ConfigError(f"{folder} holds {made}, not shard {shard}; leave --shard out, or name another folder")
    return share


def refuse_shard(config: RunConfig) -> None:
    """Raises ConfigError for runs that cannot be cut into shards."""
    if config.backend != "engine":
        raise ConfigError(
            f"shards (--shard, --on ray) and backend={config.backend}: servers share the rollouts of one run already; "
            "name several with --base-url, and leave the run whole"
        )
    if config.replay.history == "live":
        raise ConfigError(
            "shards (--shard, --on ray) and replay.history=live: how many turns a task takes is not known before it is "
            "walked, and they set the order of decoders; leave the run whole, or replay its live.jsonl in shards"
        )
    if config.decode.k_policy == "auto" or "auto" in config.decode.sweep:
        raise ConfigError(
            "shards (--shard, --on ray) and decode.k=auto: a chosen K follows from what came before in the run; set "
            "decode.k to a number"
        )


def refuse_on_ray(config: RunConfig) -> None:
    """Raises ConfigError for runs that cannot be spread by Ray, and where Ray is not installed."""
    refuse_shard(config)
    if config.target.device.startswith("cuda:"):
        raise ConfigError(
            f"--on ray and target.device={config.target.device}: Ray gives every task a GPU of its own; set "
            "target.device=cuda, or auto"
        )
    if find_spec("ray") is None:
        raise ConfigError("--on ray needs the package ray: pip install 'agentbench-spec[ray]'")
