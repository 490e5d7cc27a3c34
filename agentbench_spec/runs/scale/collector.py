"""Where shards that run elsewhere leave their rows: one run folder for each, filled rollout by rollout.

Whoever decodes a shard sends each rollout when it is complete. If that process, or its machine, dies, it costs the
rollout it was at; the next one that begins the shard is told what is kept already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from agentbench_spec.config import RunConfig
from agentbench_spec.results.folder import MANIFEST, completed_rollouts, read_manifest
from agentbench_spec.results.machines.merge import refuse_unlike_shards
from agentbench_spec.results.rows import RoundRow, TurnRow
from agentbench_spec.results.writer import RunWriter
from agentbench_spec.rollout import Rollout
from agentbench_spec.runs.all_rollouts import replay_all
from agentbench_spec.runs.execute import Bench, measure
from agentbench_spec.runs.scale.shards import Share, begun_shards, shard_folder

Turn = tuple[Sequence[TurnRow], Sequence[RoundRow]]
"""The rows of one turn, and its rounds where they are asked for."""
_KNOWN_AT_THE_END = ("notes", "other_cores", "contended")
"""Entries of a manifest that a run fills in when all its rollouts are done."""


class Keeps(Protocol):
    """What a shard sends its rows to."""

    def kept(self, index: int) -> frozenset[str]:
        """Rollouts of shard `index` that are kept already."""
        ...

    def begin(self, index: int, manifest: Mapping[str, Any]) -> None:
        """Whoever calls decodes shard `index` from now on, under `manifest`. Raises ConfigError for unlike machines."""
        ...

    def keep(self, index: int, rollout: str, turns: Sequence[Turn], status: str, error: str | None) -> None:
        """Keep a rollout that is complete; one that is kept already is passed over."""
        ...

    def end(self, index: int, facts: Mapping[str, Any]) -> None:
        """All rollouts of the shard are sent; facts: what else its manifest holds."""
        ...


class Collector:
    """Keeps the shards of the run in `folder` below it."""

    def __init__(self, folder: Path) -> None:
        self._run = folder
        self._writers: dict[int, RunWriter] = {}

    def kept(self, index: int) -> frozenset[str]:
        """See `Keeps`."""
        return frozenset(completed_rollouts(shard_folder(self._run, index)))

    def begin(self, index: int, manifest: Mapping[str, Any]) -> None:
        """See `Keeps`."""
        folder = shard_folder(self._run, index)
        for other in begun_shards(self._run):
            refuse_unlike_shards(other, read_manifest(other), folder, manifest)
        if before := self._writers.pop(index, None):
            before.close()
        begun = (folder / MANIFEST).is_file()
        self._writers[index] = (RunWriter.resume if begun else RunWriter.create)(folder, manifest)

    def keep(self, index: int, rollout: str, turns: Sequence[Turn], status: str, error: str | None) -> None:
        """See `Keeps`."""
        writer = self._writers[index]
        if rollout in writer.completed:
            return  # sent twice: by a machine that was thought dead, or before the answer was lost
        for rows, rounds in turns:
            writer.turn(rows, rounds)
        writer.rollout_done(rollout, status=status, error=error)

    def end(self, index: int, facts: Mapping[str, Any]) -> None:
        """See `Keeps`."""
        folder = shard_folder(self._run, index)
        writer, manifest = self._writers.pop(index, None), read_manifest(folder)
        if manifest.get("finished"):
            return  # told twice
        if writer is None:  # nothing was left to decode: it only was not closed
            writer = RunWriter.resume(folder, manifest)
        writer.manifest.update(facts)
        writer.finish(include_degenerate=writer.manifest["settings"]["measure"]["include_degenerate"])

    def close(self) -> None:
        """Release the folders; shards that are not ended can be begun again."""
        while self._writers:
            self._writers.popitem()[1].close()

    def progress(self) -> tuple[int, int]:
        """(turns, rollouts) that are kept, of all shards."""
        done = [completed_rollouts(folder) for folder in begun_shards(self._run)]
        return sum(sum(own.values()) for own in done), sum(map(len, done))


@dataclass(slots=True)
class _Sending:
    """A run writer that also sends each complete rollout on."""

    writer: RunWriter
    index: int
    keeper: Keeps
    turns: list[Turn] = field(default_factory=list)

    @property
    def completed(self) -> frozenset[str]:
        return self.writer.completed

    def turn(self, rows: Sequence[TurnRow], rounds: Sequence[RoundRow] = ()) -> None:
        self.writer.turn(rows, rounds)
        self.turns.append((list(rows), list(rounds)))

    def rollout_done(self, rollout: str, *, status: str = "ok", error: str | None = None) -> None:
        self.writer.rollout_done(rollout, status=status, error=error)
        self.keeper.keep(self.index, rollout, self.turns, status, error)
        self.turns = []


def replay_share(
    config: RunConfig,
    share: Share,
    rollouts: Sequence[Rollout],
    workload: str,
    facts: dict[str, Any],
    keeper: Keeps,
    *,
    argv: Sequence[str] | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Decode what is missing of a share and send it to `keeper`, rollout by rollout.

    rollouts, facts: of the whole run; workload: its name in rows. Raises ConfigError as a run does.
    """
    index = share.shard.index
    if keeper.kept(index) >= set(share.own):
        keeper.end(index, {})
        return
    bench = Bench.open(config, tell, workload=workload)

    def work(writer: RunWriter) -> None:
        keeper.begin(index, writer.manifest)
        missing = frozenset(share.own) - keeper.kept(index)
        replay_all(_Sending(writer, index, keeper), bench.replayer, rollouts, config, tell, missing)

    with TemporaryDirectory(prefix="agentbench-spec-shard-") as place:
        folder = Path(place) / "run"
        more = {"shard": share.as_dict()}
        measure(config, folder, bench, rollouts, facts, work, resume=False, argv=argv, tell=tell, more=more)
        manifest = read_manifest(folder)
    keeper.end(index, {name: manifest[name] for name in _KNOWN_AT_THE_END if name in manifest})
