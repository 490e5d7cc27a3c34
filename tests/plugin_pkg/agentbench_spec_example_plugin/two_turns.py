"""A workload of one rollout with two decode points."""

from __future__ import annotations

from collections.abc import Iterable

from agentbench_spec.rollout import Message, Rollout

MESSAGES = (
    Message(role="user", content="Say yes."),
    Message(role="assistant", content="Yes."),
    Message(role="user", content="Again."),
    Message(role="assistant", content="Yes."),
)


class TwoTurns:
    """The same two turns every time."""

    name = "two_turns"

    def rollouts(self, *, limit: int | None = None, seed: int = 0) -> Iterable[Rollout]:
        return [Rollout(id="two-turns/0", workload=self.name, messages=MESSAGES)][:limit]


def make() -> TwoTurns:
    """The workload; takes no options."""
    return TwoTurns()
