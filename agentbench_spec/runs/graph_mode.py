"""Whether the rounds of a run are replayed from CUDA graphs: those of all its drafters, or of none."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from agentbench_spec.config import RunConfig
from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.sampling import RowSampler, Sampling, generator
from agentbench_spec.engine.spans import Board
from agentbench_spec.engine.steps.capturing import capture
from agentbench_spec.engine.steps.graphs import Graphs, cuda_capture
from agentbench_spec.engine.steps.round_attention import RoundAttention
from agentbench_spec.engine.steps.static_target import Static
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import ConfigError, cause_of
from agentbench_spec.runs.setup import Setup, drafter_makers

_OFF = "with graphs for some, the others would be measured against them: none is captured"


def static_rounds(
    config: RunConfig, drafters: Mapping[str, Drafter], device: torch.device
) -> tuple[Static | None, str | None]:
    """What makes the rounds of a run static, None if they are not; and why not, where that needs a word.

    Raises ConfigError if graphs are asked for and cannot be had.
    """
    asked = config.target.graphs
    if asked == "off":
        return None, None
    if device.type != "cuda":
        if asked == "on":
            raise ConfigError(f"target.graphs=on and device {device}: only CUDA has graphs; leave target.graphs out")
        return None, None
    if why := _why_not(config, drafters):
        if asked == "on":
            raise ConfigError(f"target.graphs=on: {why}; leave it out, or set target.graphs=off")
        return None, f"no CUDA graphs: {why}"
    return Static(RoundAttention("flex"), Graphs(cuda_capture(device)), Board(device), "inductor"), None


def _why_not(config: RunConfig, drafters: Mapping[str, Drafter]) -> str | None:
    if config.decode.k_policy == "auto":
        return "decode.k=auto drafts another number of tokens in every round"
    if config.decode.sweep:
        return "decode.sweep decodes with several k, and graphs hold rounds of one"
    unfit = [name for name, drafter in drafters.items() if not (drafter.static or drafter.host_only)]
    return f"drafter {unfit[0]!r} does not say that its rounds can be captured; {_OFF}" if unfit else None


def open_all(setup: Setup, drafters: dict[str, Drafter]) -> tuple[Target, dict[str, Drafter]]:
    """The target and the drafters of a run, open, every step of their rounds captured where graphs are on.

    drafters: made, not open; others are made where these cannot be captured. Raises ConfigError for what cannot be
    opened, or captured if that was asked for, ContractError for a drafter that fails.
    """
    config = setup.config
    static, why = static_rounds(config, drafters, setup.loaded.model.device)
    if static is not None:
        try:
            return _captured(setup, drafters, static), drafters
        except Exception as error:
            if config.target.graphs == "on":
                raise ConfigError(f"target.graphs=on: {error}") from error
            why = f"no CUDA graphs: {error}; {_OFF}"
        drafters = {label: make() for label, make in drafter_makers(config).items()}
    target = _open(setup, drafters, None)
    setup.notes.extend([why] if why else [])
    return target, drafters


def _captured(setup: Setup, drafters: Mapping[str, Drafter], static: Static) -> Target:
    target = _open(setup, drafters, static)
    for name, drafter in drafters.items():
        try:
            capture_rounds(setup, target, drafter, rows=1)
        except Exception as error:
            target.close()
            raise ConfigError(f"the rounds of drafter {name!r} cannot be captured: {cause_of(error)}") from error
    return target


def _open(setup: Setup, drafters: Mapping[str, Drafter], static: Static | None) -> Target:
    target = setup.engine(setup.capacity, static=static)
    for label, drafter in drafters.items():
        setup.open(label, drafter, target)
    return target


def capture_rounds(setup: Setup, target: Target, drafter: Drafter, *, rows: int) -> None:
    """Capture the rounds of an open drafter, as the run will have them. Raises what the drafter or the capture does."""
    decode, device = setup.config.decode, target.info.device
    sampling = Sampling(decode.temperature, decode.top_k, decode.top_p)

    def sampler() -> RowSampler:
        return RowSampler(sampling, [generator(device, "capture", row) for row in range(rows)])

    capture(target, drafter, setup.limits, sampler, rows=rows, forced=decode.mode == "forced")
