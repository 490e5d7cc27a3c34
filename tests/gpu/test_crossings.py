"""What a round costs on a GPU besides kernels, counted on a pretended one: one copy in, one read-back, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch
from pretended import CUDA, DeviceMixed, PretendedDevice
from pretendkit import CHECKPOINTS, CPU, LOOK_UPS, MIXED, Bench, forgetting, made, outputs, text
from torch import Tensor

from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal, SequenceDrafter, Span
from agentbench_spec.engine.loop import Turn
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.spans import Asked, kept_of
from agentbench_spec.errors import ContractError


def assert_one_crossing_each_way(device: PretendedDevice) -> None:
    copies, reads = device.events("copy in"), device.events("read back")
    assert len(copies) == 1, copies
    assert not copies[0].waits, "the host waits for its copy: not from pinned memory, or blocking"
    assert len(reads) == 1, reads


@pytest.mark.parametrize("name", [*LOOK_UPS, *CHECKPOINTS])
@pytest.mark.parametrize("forced", [False, True])
def test_a_round_crosses_once_each_way(name: str, forced: bool) -> None:
    """Fails if a list is copied to the device on its own, a value is read back, or the host waits for its copy."""
    with PretendedDevice() as device:
        bench = Bench.on(device, made(name), forced=[text(9, 60), text(8, 50)] if forced else None)
        bench.round()
        device.log.clear()
        bench.round()
        assert_one_crossing_each_way(device)


@pytest.mark.parametrize("name", [*LOOK_UPS, *CHECKPOINTS])
def test_the_device_says_what_the_cpu_says(name: str) -> None:
    """Fails if a value is taken from the wrong place, rows are mixed, or host and device tensors meet."""
    with PretendedDevice() as device:
        found = outputs(device, made(name))
    assert found == outputs(None, made(name))


@pytest.mark.parametrize(("rows", "guessing"), [(1, {"suffix"}), (2, {"suffix", "dflash"})])
def test_a_hybrid_crosses_once_too(rows: int, guessing: set[str]) -> None:
    """Fails if what is looked up, or for which rows, goes to the device on its own: one row copies, the other not."""
    records = [text(0, 100)[40:], text(9, 60)][:rows]
    with PretendedDevice() as device:
        bench = Bench.on(device, made(MIXED), rows=rows, forced=records)
        for _ in range(2):
            device.log.clear()
            bench.round()
            assert_one_crossing_each_way(device)
        assert {turn.rounds[-1].source for turn in bench.turns} == guessing
    on_cpu = Bench.on(None, made(MIXED), rows=rows, forced=records)
    for _ in range(2):
        on_cpu.round()
    assert [turn.rounds for turn in on_cpu.turns] == [turn.rounds for turn in bench.turns]


@pytest.mark.parametrize("name", ["dspark-spec", "dflash2-zlab"])
def test_forgetting_crosses_no_more_often(name: str) -> None:
    """Fails if the device is asked what sliding layers may forget, or told so on its own, or forgets what they need."""
    rounds = 12
    with PretendedDevice() as device:
        bench = Bench.on(device, forgetting(name), prompt=290)
        for _ in range(rounds):
            device.log.clear()
            bench.round()
            assert_one_crossing_each_way(device)
        assert all(bench.drafter._context.held[1].first)  # type: ignore[attr-defined]
    on_cpu = Bench.on(None, forgetting(name), prompt=290)
    for _ in range(rounds):
        on_cpu.round()
    assert [turn.output for turn in on_cpu.turns] == [turn.output for turn in bench.turns]


class Nothing(Drafter):
    """Proposes nothing, on the device."""

    spec = DrafterSpec(name="nothing")

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        return Proposal(anchor.new_empty((len(anchor), 0)))


class CopiesIn(Nothing):
    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        torch.tensor([0] * len(anchor), device=anchor.device)
        return super().propose(anchor, position, k)


class ReadsBack(Nothing):
    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        return super().propose(anchor, position, k if int(position.max()) >= 0 else 0)


class ReadsTheSpan(Nothing):
    def observe(self, span: Span) -> None:
        span.count.tolist()


class Branches(Nothing):
    def observe(self, span: Span) -> None:
        if (span.count > 0).all():
            self.seen = True


class Selects(Nothing):
    def observe(self, span: Span) -> None:
        self.kept = span.input_ids[span.count > 0]


class ReadsAnchors(SequenceDrafter):
    """A look-up that works on the device's tensors, as all did once."""

    spec = DrafterSpec(name="reads anchors")
    host_only = False

    def propose_one(self, row: int, text: Sequence[int], k: int) -> Sequence[int]:
        return text[-1:] * k


@pytest.mark.parametrize("offence", [CopiesIn, ReadsBack, ReadsTheSpan, Branches, Selects])
def test_a_planted_crossing_is_seen(offence: Callable[[], Drafter]) -> None:
    """Fails if the log misses a copy, a read-back, a branch on a value or a shape that depends on one."""
    with PretendedDevice() as device:
        honest, bench = Bench.on(device, Nothing()), Bench.on(device, offence())
        for each in (honest, bench):
            device.log.clear()
            each.round()
            if each is honest:
                assert_one_crossing_each_way(device)
        with pytest.raises(AssertionError):
            assert_one_crossing_each_way(device)


def test_a_copy_that_the_host_waits_for_is_seen() -> None:
    """Fails if pageable memory, or a blocking copy from pinned memory, passes for a copy that runs by itself."""
    with PretendedDevice() as device:
        for pinned, non_blocking in ((False, False), (False, True), (True, False), (True, True)):
            torch.tensor([1, 2], pin_memory=pinned).to(CUDA, non_blocking=non_blocking)
        assert [event.waits for event in device.events("copy in")] == [True, True, True, False]


def test_a_look_up_on_the_device_would_read_back() -> None:
    """Fails if the count of read-backs does not tell a look-up that is given lists from one that reads tensors."""
    with PretendedDevice() as device:
        bench = Bench.on(device, ReadsAnchors())
        device.log.clear()
        bench.round()
        assert len(device.events("read back")) == 3  # anchors and positions, besides the round's own


class OnTheHost(Nothing):
    """Gives its ids where the anchor is not."""

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        return Proposal(torch.zeros(len(anchor), k, dtype=torch.int64))


class Mixes(Nothing):
    def observe(self, span: Span) -> None:
        self.seen = span.count + torch.ones(len(span.count), dtype=torch.int64)


def test_tensors_of_two_devices_do_not_meet() -> None:
    """Fails if host and device tensors may be mixed, which a CPU never notices and a GPU refuses."""
    with PretendedDevice() as device:
        with pytest.raises(ContractError, match="ids on cpu: the anchor is on cuda"):
            Bench.on(device, OnTheHost()).round()
        with pytest.raises(DeviceMixed, match="add: a tensor of the host"):
            Bench.on(device, Mixes())


@pytest.mark.parametrize("stop_ids", [(), (7,), (7, 3, 9)])
def test_the_device_counts_the_kept_tokens_as_the_turn_does(stop_ids: tuple[int, ...]) -> None:
    """Fails if the clip at a stop token, at the cap or at the record's end differs between host and device."""
    for ids in product((1, 3, 7), repeat=3):
        for matched, room in product(range(3), range(1, 5)):
            turn, limits = Turn(5, [1]), Limits(k=2, max_new_tokens=1 + room, stop_ids=frozenset(stop_ids))
            kept = turn.take(list(ids[: matched + 1]), 2, limits)
            asked = Asked([1], [5], [5], [room], None, stop_ids)
            feed = replace(
                asked.feed(CPU, 2), room=torch.tensor([room]), stop_ids=torch.tensor(stop_ids, dtype=torch.int64)
            )
            assert kept_of(torch.tensor([ids]), torch.tensor([matched]), feed).tolist() == [kept]
