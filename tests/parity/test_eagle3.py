"""EAGLE-3 against rounds recorded from DeepSpec's own code (golden vectors, section 5)."""

from __future__ import annotations

import eagle3_kit as kit
import pytest
import torch
from agentbench_spec_drafters.eagle3 import Eagle3Drafter, make
from torch import Tensor

CLOSE = {"atol": 1e-4, "rtol": 1e-4}


class Recorder:
    """Wraps a net's step to keep what it was given and gave."""

    def __init__(self, drafter: Eagle3Drafter) -> None:
        self.hidden: list[Tensor] = []
        self.logits: list[Tensor] = []
        self._step = drafter.net.step
        drafter.net.step = self  # type: ignore[method-assign]

    def __call__(self, *arguments: object) -> tuple[Tensor, Tensor]:
        carried, logits = self._step(*arguments)  # type: ignore[arg-type]
        self.hidden.append(carried[0])
        self.logits.append(logits[0])
        return carried, logits


def mismatches(drafter: Eagle3Drafter, case_id: str) -> list[str]:
    """Names of everything in the recorded rounds of a case that the drafter does not reproduce."""
    wrong = []
    for index, round_ in enumerate(kit.recorded_rounds(case_id)):
        drafter.observe(round_.span)
        recorder = Recorder(drafter)
        proposal = drafter.propose(round_.anchor, round_.position, len(round_.drafted))
        drafter.net.step = recorder._step  # type: ignore[method-assign]
        found = {
            "context_projected": drafter.net.fuse(round_.span.hidden)[0],
            "extend_last_hidden": recorder.hidden[0],
            "step_hidden": torch.stack(recorder.hidden),
            "draft_logits": torch.stack(recorder.logits),
        }
        wrong += [
            f"round {index}: {name}"
            for name, tensor in found.items()
            if not torch.allclose(tensor, round_.recorded[name], **CLOSE)
        ]
        if proposal.ids[0].tolist() != round_.drafted:
            wrong.append(f"round {index}: draft tokens")
    return wrong


@pytest.mark.parametrize("case_id", kit.TRACED)
def test_recorded_rounds(case_id: str) -> None:
    """Projection, every step's state and logits, and the drafted ids: fails if any part of the maths is off."""
    assert mismatches(kit.opened(make(kit.DRAFT)), case_id) == []
