"""Every installed workload, whatever it is made from, through three chat templates with tools."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent
from typing import Any

import pytest
from template_kit import assert_renders

from agentbench_spec.plugins import available, load_workload
from agentbench_spec.rollout import Rollout

OURS = sorted(name for name, origin in available("workload").items() if origin.startswith("agentbench-spec "))
TOOL = {
    "type": "function",
    "function": {"name": "look_up", "description": "<&'é>", "parameters": {"type": "object", "properties": {}}},
}


def first(name: str) -> Rollout:
    """A rollout of the workload that needs no data: shipped, generated, or its stand-in."""
    offline: dict[str, dict[str, Any]] = {"bfcl_v3": {"subset": "shipped"}, "synthetic_agent": {"turns": 9}}
    return next(iter(load_workload(name, **offline.get(name, {"offline_standin": True})).rollouts(limit=1)))


def shortened(rollout: Rollout, turns: int) -> Rollout:
    """Its first turns, so that three byte-level templates take no time over it."""
    points = rollout.decode_points()
    return rollout.until(points[min(turns, len(points)) - 1] + 1)


@pytest.mark.parametrize("name", OURS)
def test_a_workload_renders_with_tools(name: str) -> None:
    """Fails if a template loses a message, a call or a tool of any workload, those without tools of their own too."""
    made = shortened(first(name), turns=9)
    assert made.decode_points()
    assert_renders(made)
    assert_renders(made.model_copy(update={"tools": (*made.tools, TOOL)}))


def test_no_workload_loads_a_library_of_data_sets_or_models() -> None:
    """Fails if a workload's module, read for its options alone, costs the seconds that `datasets` or torch take."""
    code = """
    import pkgutil, sys
    from importlib import import_module
    import agentbench_spec_workloads as ours
    for module in pkgutil.walk_packages(ours.__path__, f"{ours.__name__}."):
        import_module(module.name)
    print(sorted({"datasets", "huggingface_hub", "pandas", "pyarrow", "torch", "transformers"} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", dedent(code)], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
