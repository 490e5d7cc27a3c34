"""Static rounds say what plain ones say, replayed from a recording too, and do the same at all positions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from typing import Any

import pytest
import torch
from pretended import CUDA, Event, PretendedDevice
from pretendkit import CHECKPOINTS, CPU, LOOK_UPS, MIXED, MODEL, Bench, K, forgetting, made, outputs, static, text

from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.batching import Request, Server
from agentbench_spec.engine.rounds import Limits, Round
from agentbench_spec.engine.sampling import GREEDY, RowSampler, Sampling, generator
from agentbench_spec.engine.spans import Board
from agentbench_spec.engine.steps.capturing import Guesses, capture
from agentbench_spec.engine.steps.graphs import Graphs, cuda_capture
from agentbench_spec.engine.steps.recorded import recorded
from agentbench_spec.engine.steps.round_attention import RoundAttention
from agentbench_spec.engine.steps.static_target import Static, width_for
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import ContractError, MeasurementError

ALL = [*LOOK_UPS, *CHECKPOINTS, MIXED]
RECORDS = [text(0, 100)[40:], text(9, 60)]
"""The first goes on as its prompt does, so that a look-up finds it; the second does not."""


def drawn(seed: int, rows: int = 2) -> RowSampler:
    return RowSampler(Sampling(temperature=1.0), [generator(CPU, seed, row) for row in range(rows)])


@pytest.mark.parametrize("forced", [None, RECORDS], ids=["free", "forced"])
@pytest.mark.parametrize("replayed", [False, True], ids=["launched", "replayed"])
@pytest.mark.parametrize("name", ALL)
def test_static_rounds_say_what_plain_ones_say(name: str, replayed: bool, forced: Any) -> None:
    """Fails if a position, a count or a state is taken from Python, or padding is taken for drafts."""
    expected = outputs(None, made(name), forced=forced)
    assert outputs(None, made(name), static=static(replayed=replayed), forced=forced) == expected


@pytest.mark.parametrize("name", ["dspark-spec", "dflash2-zlab"])
def test_static_rounds_keep_what_plain_ones_forget(name: str) -> None:
    """Fails if static rounds drop old positions, which the host decides and a graph could not, or see too many."""
    plain = outputs(None, forgetting(name), rounds=12, prompt=290)
    assert outputs(None, forgetting(name), rounds=12, prompt=290, static=static(replayed=True)) == plain


def served(name: str, kept: Static | None) -> dict[str, tuple[list[int], list[Round]]]:
    """Five conversations on three rows: output and rounds of each turn."""
    target, drafter = Target(deepcopy(MODEL), name="golden", capacity=1024, rows=3, static=kept), made(name)
    drafter.open(target.info, rows=3, capacity=1040)
    limits = Limits(k=K, max_new_tokens=12, stop_ids=frozenset({1, 2}))
    if kept is not None:
        capture(target, drafter, limits, lambda: RowSampler(GREEDY, []), rows=3, forced=False)
    talks = [[Request(f"r{i}", t, text(i, 30 + 17 * t + 5 * i)) for t in range(2)] for i in range(5)]
    done = Server(target, drafter, limits, rows=3, chunk_tokens=16).serve(talks)
    return {each.request.id: (each.turn.output, each.turn.rounds) for each in done.served}


@pytest.mark.parametrize("name", ["ngram", "dflash", "dspark-rnn", "eagle3", "dlite-g3", "pard", "peagle", MIXED])
def test_rows_are_filled_anew_between_replayed_rounds(name: str) -> None:
    """Fails if a prefill beside replayed rounds, an idle row or a row of another text disturbs what is replayed."""
    assert served(name, static(replayed=True)) == served(name, None)


@pytest.mark.parametrize("replayed", [False, True], ids=["launched", "replayed"])
@pytest.mark.parametrize("name", ["ngram", "dflash", "dspark-rnn", "eagle3", "dlite-g1", "pard"])
def test_static_rounds_draw_the_same_numbers(name: str, replayed: bool) -> None:
    """Fails if a captured step takes other random numbers, or the same ones again, in place of the round's own."""
    expected = outputs(None, made(name), sampler=drawn(3))
    sampler = drawn(3)
    bench = Bench.on(None, made(name), static=static(replayed=replayed), sampler=drawn(4))
    bench.sampler = sampler
    for _ in range(6):
        bench.round()
    assert [turn.output for turn in bench.turns] == expected


def test_a_static_step_has_the_logits_of_a_plain_one() -> None:
    """Fails if a static step masks, rotates or writes other positions: ragged rows, all widths, block boundaries."""
    plain = Target(deepcopy(MODEL), name="golden", capacity=400, rows=2)
    ours = Target(deepcopy(MODEL), name="golden", capacity=400, rows=2, static=static())
    fed = torch.tensor([text(0, 300), text(1, 300)])
    with torch.inference_mode():
        for target in (plain, ours):
            target.evaluate(0, [0, 0], fed)
            for row in range(2):
                target.commit(row, 300)
        for width in (1, 2, 4, 8, 16):
            for starts in ([3, 120], [127, 128], [250, 256], [300, 284]):
                block = torch.tensor([text(2, width), text(3, width)])
                expected = plain.evaluate(0, starts, block).logits
                assert ours.static is not None
                found = ours.static.evaluate(ours, torch.tensor(starts), block, ()).logits
                assert float((found - expected).abs().max()) < 1e-4
                for target in (plain, ours):
                    target.evaluate(0, [0, 0], fed)  # what was overwritten is written anew


@pytest.mark.parametrize(
    ("positions", "width"), [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16), (16, 16), (17, 32), (33, 64)]
)
def test_a_block_is_padded_to_one_of_few_widths(positions: int, width: int) -> None:
    """Fails if look-ups, whose guesses vary, would need a graph for each length."""
    assert width_for(positions) == width


def one_round(bench: Bench, device: PretendedDevice) -> list[Event]:
    device.log.clear()
    bench.round()
    return list(device.log)


def first_difference(name: str, kind: Callable[[], Static | None]) -> tuple[Event, Event] | None:
    """What a second round does otherwise than the first, the text having crossed a boundary of 128 in between."""
    with PretendedDevice() as device:
        bench = Bench.on(device, made(name), rows=1, static=kind(), prompt=124, forced=[text(9, 90)])
        bench.round()  # makes what it needs
        before = one_round(bench, device)
        for _ in range(5):
            bench.round()
        after = one_round(bench, device)
    assert len(before) == len(after)
    return next(((a, b) for a, b in zip(before, after, strict=True) if a != b), None)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_static_round_does_the_same_at_any_position(name: str) -> None:
    """Fails if a kernel, a shape, an offset or a constant depends on the position: a graph would hold a wrong one."""
    assert first_difference(name, lambda: static(CUDA)) is None


def test_a_plain_round_would_not_pass_for_static() -> None:
    """Fails if the comparison above sees no difference where keys are written into a Python slice."""
    found = first_difference("dflash", lambda: None)
    assert found is not None


@pytest.mark.parametrize("name", ALL)
def test_a_static_round_crosses_once_each_way(name: str) -> None:
    """Fails if the numbers of a static round need a copy of their own, or the host waits for it."""
    with PretendedDevice() as device:
        bench = Bench.on(device, made(name), static=static(CUDA))
        bench.round()
        events = one_round(bench, device)
    copies, reads = ([event for event in events if event.kind == kind] for kind in ("copy in", "read back"))
    assert [copy.waits for copy in copies] == [False], copies
    assert len(reads) == 1, reads


def test_a_step_that_was_not_captured_is_refused() -> None:
    """Fails if a step is launched, or captured, between the clocks of a run."""
    bench = Bench.on(None, made("dflash"), static=static(replayed=True))
    bench.round()
    bench.limits = Limits(k=K - 1, max_new_tokens=900)
    with pytest.raises(MeasurementError, match="not captured before the first clock"):
        bench.round()


def test_look_ups_share_their_steps() -> None:
    """Fails if each look-up is captured anew, or a width of its guesses is left out."""
    kept = static(replayed=True)
    bench = Bench.on(None, made("ngram"), static=kept)
    captured = kept.graphs.captured
    assert captured == 2 * len({width_for(n + 1) for n in range(K + 1)})  # verify and accept
    suffix: Drafter = made("suffix")
    suffix.open(bench.target.info, rows=2, capacity=1024)
    for row in range(2):
        bench.target.truncate(row, 0)
    capture(bench.target, suffix, bench.limits, lambda: bench.sampler, rows=2, forced=False)
    assert kept.graphs.captured == captured


@pytest.mark.parametrize(("name", "launches"), [("none", 2), ("suffix", 2), ("dflash", 4), ("eagle3", 4), (MIXED, 4)])
def test_a_captured_round_is_one_launch_a_step(name: str, launches: int) -> None:
    """Fails if a step is launched in parts, or a look-up, which works on the host, has steps of its own."""
    replays = []

    def counted(step: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        results, replay = recorded(step)

        def again() -> None:
            replays.append(1)
            replay()

        return results, again

    bench = Bench.on(None, made(name), static=Static(RoundAttention("masked"), Graphs(counted), Board(CPU)))
    replays.clear()
    bench.round()
    assert len(replays) == launches


def test_a_recording_refuses_what_a_graph_cannot_hold() -> None:
    """Fails if a value that is read, or a number that is sent, passes in a step that is captured."""
    x = torch.arange(4)
    for step, message in (
        (lambda: int(x.max()), "read values back"),
        (lambda: x[x > 1], "read values back"),
        (lambda: torch.where(x > 1), "read values back"),
        (lambda: x + torch.tensor([1]), "tensor of the host's numbers"),
    ):
        for mode in (nullcontext(), torch.inference_mode()):
            with mode, pytest.raises(ContractError, match=message):
                recorded(step)


def test_a_recording_is_run_again_on_the_same_memory() -> None:
    """Fails if a replay runs Python, reads old inputs, or puts results elsewhere."""
    x, total, calls = torch.tensor([1.0, 2.0]), torch.zeros(2), []

    def step() -> torch.Tensor:
        calls.append(1)
        total.add_(x)
        return (x.view(2, 1) * 2).sum(1)

    result, replay = recorded(step)
    x.copy_(torch.tensor([5.0, 7.0]))
    replay()
    assert (result.tolist(), total.tolist(), len(calls)) == ([10.0, 14.0], [6.0, 9.0], 1)


def test_one_compiled_body_serves_all_positions() -> None:
    """Fails if a position is a constant of the compiled body: it would be compiled in every round, then given up."""
    graphs = 0

    def counted(graph: Any, _inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return graph.forward

    kept = Static(RoundAttention("flex"), Graphs(None), Board(CPU), counted)
    ours = Target(deepcopy(MODEL), name="golden", capacity=400, static=kept)
    plain = Target(deepcopy(MODEL), name="golden", capacity=400)
    with torch.inference_mode():
        for target in (ours, plain):
            target.evaluate(0, [0], torch.tensor([text(0, 200)]))
            target.commit(0, 200)
        for start in (100, 117, 127, 128, 180, 200):
            block = torch.tensor([text(start, 8)])
            found = kept.evaluate(ours, torch.tensor([start]), block, (0, 2))
            expected = plain.evaluate(0, [start], block, taps=(0, 2))
            assert float((found.logits - expected.logits).abs().max()) < 1e-4
            for layer, state in expected.states.items():
                assert float((found.states[layer] - state).abs().max()) < 1e-4
    assert graphs == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("forced", [None, RECORDS], ids=["free", "forced"])
@pytest.mark.parametrize("name", ALL)
def test_cuda_graphs_say_what_the_cpu_says(name: str, forced: Any) -> None:
    """Fails if a captured step differs from the recorded one above: another stream, a kernel that cannot be held."""
    kept = Static(RoundAttention("flex"), Graphs(cuda_capture(CUDA)), Board(CUDA), "inductor")
    assert outputs(CUDA, made(name), static=kept, forced=forced) == outputs(None, made(name), forced=forced)


def test_guesses_stand_for_look_ups_of_any_length() -> None:
    """Fails if the stand-in with which widths are captured guesses more than it is asked for."""
    stand_in = Guesses(made("ngram").spec, 7)
    assert stand_in.propose(torch.zeros(2), torch.zeros(2), 3).ids.shape == (2, 3)
