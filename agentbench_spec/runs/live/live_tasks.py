"""Tasks of a live run by name: an installed live workload or "module:factory", checked before anything long begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from agentbench_spec import plugins
from agentbench_spec.errors import AgentBenchError, ConfigError, ContractError, cause_of
from agentbench_spec.rollouts.environments import Environment, LiveWorkload

_METHODS = ("tools", "start", "step", "state", "score")


def open_live(name: str, options: Mapping[str, Any]) -> LiveWorkload:
    """The live workload called `name`, made with `options`. Raises what loading a plugin raises."""
    return cast("LiveWorkload", plugins.load("environment", name, _lacks, options))


def _lacks(made: Any) -> list[str]:
    lacking = [] if isinstance(getattr(made, "name", None), str) else ["name (a string)"]
    return lacking + ([] if callable(getattr(made, "environments", None)) else ["environments()"])


def each_task(workload: LiveWorkload, *, limit: int | None, seed: int) -> Iterator[Environment]:
    """The tasks of a live workload, at most `limit`.

    Raises ConfigError if there are none, ContractError if one is no environment, two share an id, or listing fails.
    """
    seen: set[str] = set()
    try:
        for task in workload.environments(limit=limit, seed=seed):
            lacking = [f"{method}()" for method in _METHODS if not callable(getattr(task, method, None))]
            lacking += [] if isinstance(getattr(task, "id", None), str) and task.id else ["id (a text)"]
            if lacking:
                raise ContractError(f"environment {workload.name}: a task lacks {', '.join(lacking)}")
            if task.id in seen:
                raise ContractError(f"environment {workload.name}: two tasks have the id {task.id!r}")
            seen.add(task.id)
            yield task
    except (AgentBenchError, OSError, GeneratorExit):
        raise
    except (Exception, SystemExit) as error:
        raise ContractError(f"environment {workload.name}: listing its tasks failed: {cause_of(error)}") from error
    if not seen:
        raise ConfigError(f"environment {workload.name!r} gave no tasks")
