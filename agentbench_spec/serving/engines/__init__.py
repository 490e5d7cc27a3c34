"""Serving engines: each a file of its own, found by its name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentbench_spec.serving.engines.base_engine import Engine


def engine_of(backend: str) -> Engine:
    """The engine that a run's `backend` names. Loads no torch."""
    engine: Engine = import_module(f"{__name__}.{backend}").ENGINE
    return engine
