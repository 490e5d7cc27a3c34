"""Measure speculative decoding where it is used today: inside agents.

`import agentbench_spec as ab` is the whole suite in Python: docs/python.md. A name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentbench_spec.api import build_rollouts as build_rollouts
    from agentbench_spec.api import check as check
    from agentbench_spec.api import compare as compare
    from agentbench_spec.api import load as load
    from agentbench_spec.api import load_drafter as load_drafter
    from agentbench_spec.api import load_target as load_target
    from agentbench_spec.api import measure_rollouts as measure_rollouts
    from agentbench_spec.api import paper_table as paper_table
    from agentbench_spec.api import reproduce_table as reproduce_table
    from agentbench_spec.api import run as run
    from agentbench_spec.api import token_counter as token_counter
    from agentbench_spec.api import write_report as write_report
    from agentbench_spec.engine.loading import load_tokenizer as load_tokenizer
    from agentbench_spec.errors import AgentBenchError as AgentBenchError
    from agentbench_spec.errors import ConfigError as ConfigError
    from agentbench_spec.errors import ContractError as ContractError
    from agentbench_spec.errors import MeasurementError as MeasurementError
    from agentbench_spec.plugins import available as available
    from agentbench_spec.report import plots as plots
    from agentbench_spec.report.figure_files import write_figures as write_figures
    from agentbench_spec.results.forms import as_frame as as_frame
    from agentbench_spec.results.forms import as_latex as as_latex
    from agentbench_spec.results.forms import as_markdown as as_markdown
    from agentbench_spec.results.forms import export as export
    from agentbench_spec.results.loaded import Run as Run
    from agentbench_spec.results.machines.merge import merge as merge
    from agentbench_spec.results.paper import paper_facts as paper_facts
    from agentbench_spec.rollout import Message as Message
    from agentbench_spec.rollout import Rollout as Rollout
    from agentbench_spec.rollout import ToolCall as ToolCall
    from agentbench_spec.rollout import read_rollouts as read_rollouts
    from agentbench_spec.rollout import write_rollouts as write_rollouts
    from agentbench_spec.rollouts.environments import Environment as Environment
    from agentbench_spec.rollouts.environments import LiveWorkload as LiveWorkload
    from agentbench_spec.rollouts.importing import import_rollouts as import_rollouts
    from agentbench_spec.rollouts.sizes import validate_rollouts as validate_rollouts
    from agentbench_spec.runs.scale.planning import plan as plan
    from agentbench_spec.runs.scale.planning import plan_fleet as plan_fleet

_HOMES = {
    "api": (
        "build_rollouts",
        "check",
        "compare",
        "load",
        "load_drafter",
        "load_target",
        "measure_rollouts",
        "paper_table",
        "reproduce_table",
        "run",
        "token_counter",
        "write_report",
    ),
    "engine.loading": ("load_tokenizer",),
    "errors": ("AgentBenchError", "ConfigError", "ContractError", "MeasurementError"),
    "plugins": ("available",),
    "report": ("plots",),
    "report.figure_files": ("write_figures",),
    "results.forms": ("as_frame", "as_latex", "as_markdown", "export"),
    "results.loaded": ("Run",),
    "results.machines.merge": ("merge",),
    "results.paper": ("paper_facts",),
    "rollout": ("Message", "Rollout", "ToolCall", "read_rollouts", "write_rollouts"),
    "rollouts.environments": ("Environment", "LiveWorkload"),
    "rollouts.importing": ("import_rollouts",),
    "rollouts.sizes": ("validate_rollouts",),
    "runs.scale.planning": ("plan", "plan_fleet"),
}
_MODULES = {name: f"{__name__}.{module}" for module, names in _HOMES.items() for name in names}

__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    try:
        value = getattr(import_module(module), name)
    except AttributeError:
        value = import_module(f"{module}.{name}")  # a module, such as plots
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
