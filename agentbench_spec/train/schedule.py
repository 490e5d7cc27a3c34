"""When training does what: stages over steps, the cosine cross-fade, the learning rate. Pure functions of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentbench_spec.errors import ConfigError
from agentbench_spec.train.interface import Loss, Phase, Stage

__all__ = ["Place", "fade", "learning_rate", "objective", "place_of", "stage_steps"]


def learning_rate(step: int, total: int, *, peak: float, warmup: float) -> float:
    """Linear warm-up to `peak` over floor(warmup * total) steps, then a cosine to 0 at `total`; step is 0-based."""
    warm = int(warmup * total)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(total - warm, 1)))


def stage_steps(total: int, stages: Sequence[Stage]) -> list[int]:
    """How many of `total` steps each stage gets, by share; they add up to `total`.

    Raises ConfigError if a stage would get none.
    """
    whole = sum(stage.share for stage in stages)
    ends = [round(total * sum(s.share for s in stages[: i + 1]) / whole) for i in range(len(stages))]
    counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    if min(counts) < 1:
        name = stages[counts.index(min(counts))].name
        raise ConfigError(f"{total} steps are too few: stage {name!r} gets none; raise steps")
    return counts


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the training a step is."""

    phase: Phase
    phase_index: int
    stage: Stage
    stage_index: int
    step: int
    """Step within the phase, 0-based."""
    total: int
    """Steps of the phase."""
    stage_step: int
    stage_total: int


def place_of(step: int, phases: Sequence[Phase], totals: Sequence[int]) -> Place:
    """The place of a global step; totals: steps of each phase."""
    for index, (phase, total) in enumerate(zip(phases, totals, strict=True)):
        if step < total:
            at = step
            for stage_index, count in enumerate(stage_steps(total, phase.stages)):
                if at < count:
                    stage = phase.stages[stage_index]
                    return Place(phase, index, stage, stage_index, step, total, at, count)
                at -= count
        step -= total
    raise IndexError("step is beyond the last phase")


def fade(step: int, total: int) -> float:
    """How far a cross-fade of `total` steps has come: 0 at the first, 1 at the last; 1/2 if there is only one."""
    return 0.5 if total == 1 else 0.5 * (1 - math.cos(math.pi * step / (total - 1)))


def objective(place: Place) -> dict[Loss, float]:
    """Loss -> factor at this step; numerators are blended in a cross-fade (all losses share one denominator)."""
    stage = place.stage
    if stage.fade_to is None:
        return dict(stage.losses)
    new = fade(place.stage_step, place.stage_total)
    names = [*stage.losses, *(name for name in stage.fade_to if name not in stage.losses)]
    return {name: (1 - new) * stage.losses.get(name, 0.0) + new * stage.fade_to.get(name, 0.0) for name in names}
