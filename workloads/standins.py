"""How a workload offers its stand-in: only if `offline_standin=true`, and never beside data."""

from __future__ import annotations

from typing import Any

from agentbench_spec.rollout import ConfigError, Workload

from .synthetic.standin import stand_in

__all__ = ["requested_standin"]


def requested_standin(workload: str, offline_standin: bool, **data_options: Any) -> Workload | None:
    """The stand-in if it is asked for. Raises ConfigError if an option that chooses data is given with it."""
    if not offline_standin:
        return None
    for name, value in data_options.items():
        if value is not None:
            raise ConfigError(
                f"offline_standin holds generated rollouts, so {name} does not apply; give one of the two"
            )
    return stand_in(workload)
