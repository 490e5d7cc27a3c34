"""Plain decoding as a drafter: it proposes nothing, so every round is one target step. The baseline."""

from __future__ import annotations

from torch import Tensor

from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal


class NoDrafter(Drafter):
    """Proposes zero tokens."""

    spec = DrafterSpec(name="none", max_tokens=0, history_free=True)
    host_only = True

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        return Proposal(ids=anchor.new_empty((len(anchor), 0)))


def make() -> NoDrafter:
    """The baseline; takes no options."""
    return NoDrafter()
