"""A drafter that guesses that the anchor will be repeated."""

from __future__ import annotations

from collections.abc import Sequence

from agentbench_spec.drafting import DrafterSpec, SequenceDrafter


class Echo(SequenceDrafter):
    """Proposes the anchor, again and again."""

    def __init__(self, times: int) -> None:
        self.spec = DrafterSpec(name="echo", max_tokens=times)

    def propose_one(self, row: int, text: Sequence[int], k: int) -> Sequence[int]:
        return [text[-1]] * k


def make(times: int = 8) -> Echo:
    """An echo of at most `times` tokens."""
    return Echo(times)
