"""ATIF trajectories (Harbor, Terminal-Bench): steps of a system, a user and an agent, with calls and observations.

Calls of a step are an assistant message; each result of its observation follows, as the tool's where it names a call,
as the user's where the agent makes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentbench_spec.rollouts.importing.draft import Draft, items_of
from agentbench_spec.rollouts.importing.notes import RowFault, short

__all__ = ["atif", "is_atif"]

_STEP_FIELDS = frozenset(("step_id", "timestamp", "source", "message", "tool_calls", "observation", "model_name"))
_THOUGHTS = ("reasoning_content", "reasoning")


def is_atif(value: Any) -> bool:
    """True for a trajectory: a list of steps that say where they come from."""
    steps = value.get("steps") if isinstance(value, Mapping) else None
    if not isinstance(steps, list) or not steps:
        return False
    marked = str(value.get("schema_version", "")).startswith("ATIF")
    return marked or all(isinstance(s, Mapping) and isinstance(s.get("source"), str) and "message" in s for s in steps)


def atif(value: Any, draft: Draft) -> None:
    """{"schema_version": "ATIF-...", "agent": {...}, "steps": [...]}."""
    if not isinstance(value, Mapping):
        raise RowFault(None, f"expected an object, found {type(value).__name__}")
    agent = value.get("agent")
    if isinstance(agent, Mapping):
        draft.declare(agent.get("tool_definitions"), "agent.tool_definitions")
        if isinstance(agent.get("model_name"), str):
            draft.labels["model_name"] = agent["model_name"]
    for i, step in enumerate(items_of(value, "steps", draft.notes)):
        where = f"steps[{i}]"
        if not isinstance(step, Mapping):
            raise RowFault(where, f"expected a step object, found {short(step)}")
        _read_step(step, where, draft)


def _read_step(step: Mapping[str, Any], where: str, draft: Draft) -> None:
    source = step.get("source")
    if source not in ("system", "user", "agent"):
        raise RowFault(f"{where}.source", f"expected system, user or agent, found {short(source)}")
    role = "assistant" if source == "agent" else source
    calls = step.get("tool_calls") if source == "agent" else None
    first = len(draft.messages)
    thoughts = {"reasoning_content": next((step[key] for key in _THOUGHTS if step.get(key)), None)}
    rest = {key: value for key, value in step.items() if key not in (*_STEP_FIELDS, *_THOUGHTS)}
    message = {"role": role, "content": step.get("message"), "tool_calls": calls, **thoughts, **rest}
    draft.add({key: value for key, value in message.items() if value is not None or key == "content"}, where)
    if step.get("llm_call_count") == 0 and role == "assistant":
        draft.notes.add("a step that no model call made: marked synthetic, no reference", first)
        draft.messages[first:] = [m.model_copy(update={"synthetic": True}) for m in draft.messages[first:]]
    if step.get("is_copied_context"):
        draft.notes.add("a step copied from an earlier context: kept in its place", first)
    _read_observation(step.get("observation"), f"{where}.observation", bool(calls), draft)


def _read_observation(observation: Any, where: str, has_calls: bool, draft: Draft) -> None:
    if observation is None:
        return
    results = observation.get("results") if isinstance(observation, Mapping) else observation
    if isinstance(results, str):
        results = [{"content": results}]
    if not isinstance(results, list):
        raise RowFault(f"{where}.results", f"expected a list, found {short(results)}")
    for i, result in enumerate(results):
        if not isinstance(result, Mapping):
            raise RowFault(f"{where}.results[{i}]", f"expected a result object, found {short(result)}")
        place, name = f"{where}.results[{i}]", result.get("source_call_id")
        rest = {key: value for key, value in result.items() if key != "source_call_id" and value is not None}
        if result.get("content") is None and result.get("subagent_trajectory_ref") is not None:
            draft.notes.add("the work of a sub-agent, which stands elsewhere, is not part of this rollout")
            rest = {"content": ""}
        draft.add({"role": "tool" if name or has_calls else "user", "tool_call_id": name, "content": "", **rest}, place)
