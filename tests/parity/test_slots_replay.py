"""What the SGLang plugin keeps for a request slot, against traces of the official DLite, without SGLang."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from agentbench_spec_drafters.nets.checkpoint import open_checkpoint
from agentbench_spec_drafters.nets.dlite import DLiteConfig, open_net
from agentbench_spec_sglang.draft_block import DraftBlock
from agentbench_spec_sglang.slots import Slots, accepted, emitted, last_rows, tail
from golden_block import DATA, Round, Trace, recorded, target_info, trace_of
from torch import Tensor

SETS = ("dlite-g1", "dlite-g2", "dlite-g3")
ROWS, VOID = 4, -1


class Seam:
    """The plugin's part of a server: slots, and the block that drafts from them."""

    def __init__(self, name: str, tokens: int | None = None, device: str = "cpu") -> None:
        checkpoint = open_checkpoint(DATA / name / "draft")
        self.config = config = DLiteConfig.from_config(checkpoint.config, checkpoint.where)
        embed = deepcopy(target_info().embed_tokens).to(device)  # a shared module would go along with it
        target = target_info(device=torch.device(device), embed_tokens=embed)
        net = open_net(checkpoint, config, target)
        width = len(config.target_layer_ids)
        self.slots = Slots(ROWS, width, target.hidden_size, config.group, dtype=target.dtype, device=target.device)
        self.block = DraftBlock(net, self.slots, tokens or config.max_tokens)

    def prefill(self, traces: list[Trace], at: list[int]) -> None:
        """Prompts end to end, as one batch of the server."""
        lengths = [trace.prompt for trace in traces]
        states = torch.cat([trace.hidden[: trace.prompt].flatten(1) for trace in traces])
        before = [tail(trace.text[: trace.prompt].tolist(), self.config.group - 1) for trace in traces]
        previous = torch.tensor(before, dtype=torch.int64)
        self.slots.filled(torch.tensor(at), states, torch.tensor(last_rows(lengths)), previous)

    def draft(self, steps: list[Round], at: list[int]) -> Tensor:
        anchors, places = ([getattr(step, name) for step in steps] for name in ("anchor", "start"))
        return self.block(torch.tensor(at), torch.tensor(anchors), torch.tensor(places))

    def advance(self, traces: list[Trace], steps: list[Round], blocks: Tensor, at: list[int]) -> None:
        """States of rejected drafts are not in a trace: NaN stands there, so that whoever reads them is found."""
        states = blocks.new_full((*blocks.shape, self.slots.pivots[0].numel()), torch.nan, dtype=torch.float32)
        for row, (trace, step) in enumerate(zip(traces, steps, strict=True)):
            states[row, : step.committed] = trace.hidden[step.start : step.start + step.committed].flatten(1)
        kept = torch.tensor([step.committed - 1 for step in steps])
        self.slots.advanced(torch.tensor(at), states.flatten(0, 1), blocks, kept)


def played(name: str) -> list[tuple[dict[str, Any], Trace]]:
    layers = DLiteConfig.from_config(open_checkpoint(DATA / name / "draft").config, name).target_layer_ids
    cases = [case for case in recorded(name)["cases"] if case["rounds"]["start"]]
    return [(case, trace_of(case, layers)) for case in cases]


@pytest.mark.parametrize("name", SETS)
def test_every_recorded_draft_comes_from_the_slots(name: str) -> None:
    """Fails if the pivot is one row off, a group loses a token, or a short text is not seen to be short."""
    seam = Seam(name)
    for case, trace in played(name):
        seam.prefill([trace], [2])
        for step in trace.rounds:
            drafts = seam.draft([step], [2])
            assert drafts[0, : len(step.drafted)].tolist() == step.drafted, case["id"]
            seam.advance([trace], [step], torch.cat((torch.tensor([[step.anchor]]), drafts), 1), [2])


def test_requests_of_a_batch_do_not_see_each_other() -> None:
    """Three requests of other lengths, prefilled end to end and drafted together, in slots that are not in order."""
    seam, at = Seam("dlite-g2"), [3, 1, 2]
    traces = [trace for case, trace in played("dlite-g2") if len(case["prompt_ids"]) in (5, 17, 31)][:3]
    seam.prefill(traces, at)
    for number in range(min(len(trace.rounds) for trace in traces)):
        steps = [trace.rounds[number] for trace in traces]
        drafts = seam.draft(steps, at)
        assert [row.tolist() for row in drafts] == [step.drafted for step in steps]
        anchors = torch.tensor([[step.anchor] for step in steps])
        seam.advance(traces, steps, torch.cat((anchors, drafts), 1), at)


@pytest.mark.parametrize("name", SETS)
def test_a_slot_forgets_the_request_before(name: str) -> None:
    """A slot with what an aborted request left in it, here NaN, drafts like a fresh one after a prefill."""
    seam = Seam(name)
    _, trace = played(name)[4]
    seam.slots.pivots[2] = torch.nan
    seam.slots.previous[2] = 7
    seam.prefill([trace], [2])
    assert seam.draft([trace.rounds[0]], [2])[0].tolist() == trace.rounds[0].drafted


def test_fewer_tokens_are_the_first_of_the_block() -> None:
    """Fails if a narrower verification draws another block than the checkpoint was trained with."""
    seam = Seam("dlite-g2", tokens=3)
    _, trace = played("dlite-g2")[4]
    seam.prefill([trace], [1])
    assert seam.draft([trace.rounds[0]], [1])[0].tolist() == trace.rounds[0].drafted[:3]


@pytest.mark.parametrize("name", SETS)
def test_the_recorded_drafts_are_accepted(name: str) -> None:
    """Fails if a draft is compared with the target's token of another position, or the bonus is taken from one."""
    compared = 0
    for _, trace in played(name):
        for step, following in zip(trace.rounds, trace.rounds[1:], strict=False):
            block = torch.tensor([step.verified])  # the anchor and what the recording verified of its drafts
            own = trace.picks[step.start : step.start + step.committed]
            chosen = torch.full_like(block, VOID)
            chosen[0, : len(own)] = own
            count, bonus = accepted(block, chosen)
            assert (int(count), int(bonus)) == (step.committed - 1, following.anchor)
            assert emitted(chosen, count)[0].tolist() == [*own.tolist(), *[0] * (block.shape[1] - len(own))]
            compared += 1
    assert compared > 200


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", SETS)
def test_graphs_draft_what_the_eager_block_does(name: str) -> None:
    """Batches of one to three rows on graphs of one and four: padding, static inputs, other rows in the same graph."""
    seam = Seam(name, device="cuda")
    torch.manual_seed(0)
    seam.slots.pivots.normal_()
    seam.slots.previous.random_(150)
    slots, anchors, at = (torch.tensor(each, device="cuda") for each in ([3, 1, 2], [5, 6, 7], [1, 9, 40]))
    batches = [(slots[:count], anchors[:count], at[:count]) for count in (3, 1, 2)]
    eager = [seam.block(*batch).tolist() for batch in batches]
    seam.block.capture([1, 4])
    assert [seam.block(*batch).tolist() for batch in batches] == eager
    seam.slots.pivots[3].zero_()
    assert seam.block(*batches[1]).tolist() != eager[1]
