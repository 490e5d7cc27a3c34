"""Every rollout of a run, or of a shard of it, replayed one after the other into a run folder."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from agentbench_spec.config import RunConfig
from agentbench_spec.results.rows import RoundRow, TurnRow
from agentbench_spec.rollout import Rollout
from agentbench_spec.runs.progress import Progress
from agentbench_spec.runs.replay import Replayer
from agentbench_spec.runs.setup import Tell


class Writes(Protocol):
    """What `replay_all` fills: a `RunWriter`, or what stands before one."""

    @property
    def completed(self) -> frozenset[str]:
        """Rollouts that need not be decoded again."""
        ...

    def turn(self, rows: Sequence[TurnRow], rounds: Sequence[RoundRow] = ()) -> None:
        """The rows of one turn."""
        ...

    def rollout_done(self, rollout: str, *, status: str = "ok", error: str | None = None) -> None:
        """No turn of the rollout follows."""
        ...


def replay_all(
    writer: Writes,
    replayer: Replayer,
    rollouts: Sequence[Rollout],
    config: RunConfig,
    tell: Tell | None,
    own: Collection[str] | None,
) -> None:
    """Replay every rollout that is missing. own: those of the shard; None: all.

    Turns count over all rollouts, since a turn's number sets the order of its decoders.
    """
    turns = {rollout.id: len(rollout.decode_points()[: config.replay.max_turns]) for rollout in rollouts}
    wanted = {name: count for name, count in turns.items() if own is None or name in own}
    with Progress(wanted, done=writer.completed, tell=tell) as progress:
        replayer.tell(progress.doing)
        first = 0
        for rollout in rollouts:
            if rollout.id in wanted and rollout.id not in writer.completed:
                with progress.rollout(rollout.id):
                    _replay_into(writer, replayer, rollout, first, progress, rounds=config.measure.rounds)
            first += turns[rollout.id]


def _replay_into(
    writer: Writes, replayer: Replayer, rollout: Rollout, first: int, progress: Progress, *, rounds: bool
) -> None:
    """Replay one rollout and declare it complete, failed or not: a failed one is not tried again on resume."""
    if not rollout.decode_points():
        writer.rollout_done(rollout.id, status="empty", error="no assistant message after another message")
        return
    failure: str | None = None
    for turn in replayer.replay(rollout, first):
        writer.turn(turn.rows, turn.rounds if rounds else ())
        progress.turn(turn.rows)
        failure = failure or next((row.error for row in turn.rows if row.status == "error"), None)
    writer.rollout_done(rollout.id, status="error" if failure else "ok", error=failure)
