"""The law of capture: each way to break it is caught, and a drafter that keeps it passes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agentbench_spec.conformance.kit import check
from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal, SequenceDrafter, Span, TargetInfo


class Newest(Drafter):
    """Guesses from the newest state and the anchor, one token after the other; its state is written in place."""

    spec = DrafterSpec(name="toy-newest", hidden_layers=(1,), hidden_scope="last", max_tokens=5, history_free=True)
    static = True

    def __init__(self, bug: str = "") -> None:
        self.bug, self.rounds = bug, 0

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        draw = torch.Generator().manual_seed(3)
        shape = target.vocab_size, target.hidden_size
        self.tokens, self.says = (torch.randn(shape, generator=draw, dtype=target.dtype) for _ in range(2))
        self.state = torch.zeros(rows, target.hidden_size, dtype=target.dtype)
        self.seen = torch.zeros(rows, dtype=torch.int64)

    def observe(self, span: Span) -> None:
        assert span.hidden is not None
        counted = span.count > 0
        if self.bug == "branches on a count" and not bool(counted.any()):
            return
        newest = torch.where(counted[:, None], span.hidden[:, 0, 0], self.state[span.rows])
        if self.bug == "puts its state elsewhere" and len(span.rows) == len(self.state):
            self.state = newest
        else:
            self.state[span.rows] = newest
        self.seen[span.rows] = torch.where(counted, span.start + span.count, self.seen[span.rows])
        self.rounds += 1

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        if self.bug == "reads a position" and int(position.max()) < 0:
            return Proposal(anchor.new_empty((len(anchor), 0)))
        state, token, ids = self.state, anchor, []
        for step in range(k):
            state = state + self.tokens[token]
            if self.bug == "counts its rounds":
                state = state + self.rounds
            if self.bug == "sends a number":
                state = state + torch.tensor([step])
            token = (state @ self.says.T).argmax(-1)
            ids.append(token)
        return Proposal(torch.stack(ids, 1) if ids else anchor.new_empty((len(anchor), 0)))

    def snapshot(self, row: int) -> dict[str, Tensor]:
        return {"state": self.state[row]}


class OnTheHost(SequenceDrafter):
    spec = DrafterSpec(name="toy-host")

    def propose_one(self, row: int, text: list[int], k: int) -> list[int]:  # type: ignore[override]
        return text[-1:] * k


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("branches on a count", "read values back"),
        ("reads a position", "read values back"),
        ("sends a number", "tensor of the host's numbers"),
        ("puts its state elsewhere", "must be in tensors that are written in place|snapshot 'state'"),
        ("counts its rounds", "must be in tensors that are written in place"),
    ],
)
def test_what_a_graph_cannot_hold_breaks_the_law(bug: str, message: str) -> None:
    """Fails if a drafter may say `static` and still keep state in Python, or look at values."""
    report = check(lambda: Newest(bug), only=["capture"])
    assert report.failed == ["capture"], report.findings[0].message
    found = report.findings[0].message
    assert any(part in found for part in message.split("|")), found


def test_a_drafter_that_keeps_the_law_passes() -> None:
    """Fails if the law is broken by what every static drafter does."""
    finding = check(Newest, only=["capture"]).findings[0]
    assert finding.outcome == "passed", finding.message


def test_a_drafter_that_does_not_say_so_is_not_tried() -> None:
    """Fails if a drafter is blamed for what it does not claim: a look-up, and one that is never captured."""

    class Silent(Newest):
        static = False

    for make, why in ((Silent, "does not say"), (OnTheHost, "works on the host")):
        finding = check(make, only=["capture"]).findings[0]
        assert (finding.outcome, why in finding.message) == ("skipped", True)
