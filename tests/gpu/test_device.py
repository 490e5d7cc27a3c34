"""The engine on a device: the same checks on the CPU (default tier) and on CUDA (`-m gpu`)."""

from __future__ import annotations

import pytest
import torch

from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.attention import causal_mask
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import PHASES, clocks
from agentbench_spec.testing import (
    PlainDrafter,
    ScriptedDrafter,
    every,
    greedy_text,
    play_turns,
    row_sampler,
    toy_model,
    toy_turns,
)

PROMPT = toy_turns()[0]


def devices() -> list[object]:
    """The CPU always; CUDA behind the gpu marker, skipped by name where there is none."""
    absent = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    return [pytest.param("cpu"), pytest.param("cuda", marks=[pytest.mark.gpu, absent])]


def target_on(device: str, rows: int = 1) -> Target:
    return Target(toy_model(dtype=torch.float32).to(device), name="toy", capacity=512, rows=rows)


@pytest.mark.parametrize("device", devices())
def test_speculation_on_the_device_says_what_float64_on_the_cpu_says(device: str) -> None:
    """Fails if masks, rounded-up reads or KV writes differ between devices."""
    expected = greedy_text(Target(toy_model(), name="toy", capacity=512), PROMPT, 24)
    target = target_on(device)
    scripted = ScriptedDrafter([expected], errs=every(5))
    drafters: dict[str, Drafter] = {"plain": PlainDrafter(), "scripted": scripted}
    for drafter in drafters.values():
        drafter.open(target.info, rows=1, capacity=512)
    played = play_turns(target, drafters, [PROMPT], k=7, max_new_tokens=24, chunk_tokens=7)
    for turn in played[0].turns.values():
        assert turn.output == expected[len(PROMPT) :]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("mode", ["attribution", "wall"])
def test_a_clock_splits_a_turn_into_one_entry_per_phase_and_round(device: str, mode: str) -> None:
    """Fails if a phase is timed twice or not at all, or if phases exceed the turn they are part of."""
    target = target_on(device)
    drafter = PlainDrafter()
    session = Session(target, {"plain": drafter})
    session.prefill(PROMPT, lambda logits: int(logits.argmax()))
    [(wall, clock)] = clocks(mode, target.info.device)  # type: ignore[arg-type]
    limits = Limits(k=0, max_new_tokens=9)
    turn, times, _ = session.decode("plain", limits, row_sampler(target, GREEDY, 0), clock(target.info.device))
    assert times.total_s > 0 and wall == (mode == "wall")
    if mode == "wall":
        assert times.rounds_s is None
        return
    assert times.rounds_s is not None and times.phases_s is not None and times.other_s is not None
    assert {name: len(spent) for name, spent in times.rounds_s.items()} == dict.fromkeys(PHASES, len(turn.rounds))
    assert sum(times.phases_s.values()) <= times.total_s


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_reads_are_rounded_up_on_a_gpu_and_masked() -> None:
    """Fails if few kernel shapes come at the price of attending to positions that do not count."""
    target = target_on("cuda")
    ids = torch.tensor([PROMPT], device="cuda")
    extent = target.cache.aim(0, [0], len(PROMPT), torch.arange(len(PROMPT), device="cuda")[None])
    assert extent == 256
    mask = causal_mask(torch.tensor([0], device="cuda"), len(PROMPT), extent, 1, torch.float32)
    assert bool((mask[0, 0, :, len(PROMPT) :] == float("-inf")).all())
    stock = toy_model(dtype=torch.float32).to("cuda")
    expected = stock(input_ids=ids, use_cache=False).logits
    assert torch.allclose(target.evaluate(0, [0], ids).logits, expected, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_stays_within_the_self_check(dtype: torch.dtype) -> None:
    """Fails if a half-precision target differs from the stock model by more than rounding."""
    Target(toy_model(dtype=dtype).to("cuda"), name="toy", capacity=512).self_check()
