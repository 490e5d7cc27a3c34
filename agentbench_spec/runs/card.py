"""The benchmark card: what the machine allows, so that a reader can judge the baseline before any speed-up.

A plain decode step reads every weight once; it cannot be faster than that read. A speed-up over a baseline far above
this floor is worth little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from agentbench_spec.results.clock_checks import TapsCost, clock_lines
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.steady import steadied

if TYPE_CHECKING:  # readers of a card need no torch
    from agentbench_spec.engine.target import Target


@dataclass(frozen=True, slots=True)
class Card:
    """Sizes of the target and speed of the memory it lies in."""

    target: str
    dtype: str
    device: str
    weight_bytes: int
    """Bytes of weights a decode step reads, an untied embedding, which is looked up, not among them."""
    kv_bytes_per_token: int
    read_bytes_per_s: float
    """Measured sequential read of device memory."""
    phase_cost_s: float
    """What the attribution clock costs the host per phase."""
    taps_cost: TapsCost | None = None
    """None: no drafter takes hidden states."""
    launches: dict[str, Any] | None = None
    """How a GPU is given its work, as `launches_of` tells; None: the work is done on the host."""

    @property
    def floor_s(self) -> float:
        """Seconds a decode step takes at least, by memory speed, on a short context."""
        return self.weight_bytes / self.read_bytes_per_s

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the manifest."""
        return {**asdict(self), "floor_s": self.floor_s}

    def lines(self, rows: Sequence[TurnRow]) -> list[str]:
        """The card in words: two lines known before the run, and the baseline's step once one was timed."""
        step_s = baseline_step_s(rows)
        lines = [
            f"{self.target} {self.dtype} on {self.device}: {_size(self.weight_bytes)} of weights, "
            f"{self.kv_bytes_per_token:,} bytes of KV per token",
            f"memory reads {self.read_bytes_per_s / 1e9:.1f} GB/s: a plain step takes at least "
            f"{1e3 * self.floor_s:.3g} ms",
            *([f"rounds: {launches_text(self.launches)}"] if self.launches else []),
        ]
        if step_s is not None:
            share = self.floor_s / step_s
            lines.append(f"the baseline took {1e3 * step_s:.3g} ms a step: {share:.1%} of the speed the memory allows")
        if step_s is not None and self.taps_cost is not None:
            lines.append(
                f"hidden states for the drafters add to the shared prefill: {self.taps_cost.text}; end to end, the "
                "baseline is charged for them, too"
            )
        return lines + (clock_lines(rows) if rows else [])


def measure_card(target: Target, taps: Collection[int] = ()) -> Card:
    """Measure the machine under `target`; takes seconds.

    taps: layers whose hidden states the prefill keeps for drafters.
    """
    from agentbench_spec.engine.timing import phase_cost_s
    from agentbench_spec.runs.taps import taps_cost

    info = target.info
    return Card(
        target=info.name,
        dtype=str(info.dtype).removeprefix("torch."),
        device=str(info.device),
        weight_bytes=target.weight_bytes,
        kv_bytes_per_token=target.cache.bytes_per_token,
        read_bytes_per_s=_read_bytes_per_s(str(info.device)),
        phase_cost_s=phase_cost_s(info.device),
        taps_cost=taps_cost(target, taps) if taps else None,
        launches=launches_of(target) if info.device.type == "cuda" else None,
    )


def launches_of(target: Target) -> dict[str, Any]:
    """Whether rounds are captured, how they attend, cuDNN's version, and the kernels of a plain step."""
    import torch

    from agentbench_spec.engine.machine import kernels_of

    static, device = target.static, target.info.device
    token, start = torch.zeros(1, 1, dtype=torch.int64, device=device), torch.zeros(1, dtype=torch.int64, device=device)

    def step() -> None:
        with torch.inference_mode():
            if static is None:
                target.evaluate(0, [0], token)
            else:
                static.evaluate(target, start, token, ())

    return {
        "captured": static is not None and static.graphs.on,
        "attention": "sdpa" if static is None else static.attention.kind,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        "kernels_per_step": kernels_of(step),
    }


def launches_text(launches: Mapping[str, Any]) -> str:
    """The same in words."""
    captured, kernels = launches.get("captured"), launches.get("kernels_per_step")
    return (
        f"{'CUDA graphs' if captured else 'launched kernel by kernel'}, attention {launches.get('attention')}, "
        f"cuDNN {launches.get('cudnn')}; a plain step is {'?' if kernels is None else f'{kernels:,}'} kernels"
        f"{' in one graph' if captured else ''}"
    )


@cache
def _read_bytes_per_s(device: str) -> float:
    from agentbench_spec.engine.machine import measure_bandwidth_bytes_per_s

    return measure_bandwidth_bytes_per_s(device)["read"]  # a fact of the machine: once per process


def _size(count_bytes: int) -> str:
    return f"{count_bytes / 1e6:,.0f} MB" if count_bytes >= 1e7 else f"{count_bytes / 1e3:,.1f} kB"


def baseline_step_s(rows: Iterable[TurnRow]) -> float | None:
    """Mean wall seconds of one plain decode step, from steady seconds; None if no baseline turn was timed."""
    plain = steadied([row for row in rows if row.drafter == BASELINE])
    timed = [row for row in plain if row.decode_s is not None and row.rounds]
    rounds = sum(row.rounds or 0 for row in timed)
    return sum(row.decode_s or 0.0 for row in timed) / rounds if rounds else None
