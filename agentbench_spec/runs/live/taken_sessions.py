"""The sessions that a live run took: a file of rollouts that is whole at any moment."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from agentbench_spec.results.folder import LIVE
from agentbench_spec.rollout import Rollout, read_rollouts, write_rollouts


def read_taken(folder: Path) -> dict[str, Rollout]:
    """The sessions in a run folder by task; empty if it holds none."""
    path = folder / LIVE
    return {rollout.id: rollout for rollout in read_rollouts(path)} if path.is_file() else {}


class TakenSessions:
    """The sessions of the complete tasks of one run folder."""

    def __init__(self, folder: Path, completed: Collection[str]) -> None:
        """completed: tasks whose sessions a resumed run keeps."""
        self._path = folder / LIVE
        self._rollouts = [own for task, own in read_taken(folder).items() if task in completed]

    def keep(self, own: Rollout) -> None:
        """Add one."""
        self._rollouts.append(own)
        write_rollouts(self._path, self._rollouts)
