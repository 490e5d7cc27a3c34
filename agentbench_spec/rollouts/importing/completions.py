"""Logged model calls, {"messages", "response", "kwargs"}, one file each: OpenHands' llm_completions folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentbench_spec.messages import Message
from agentbench_spec.rollouts.importing.calls import tools_of
from agentbench_spec.rollouts.importing.draft import Contexts, Draft, items_of
from agentbench_spec.rollouts.importing.notes import RowFault, short
from agentbench_spec.rollouts.importing.prompts import PromptLog

__all__ = ["llm_completions", "response_message"]


def llm_completions(value: Any, draft: Draft) -> None:
    """One logged call, or {"llm_completions": [calls in order]}: the prompts are exact."""
    calls = value.get("llm_completions") if isinstance(value, Mapping) else None
    calls = [value] if calls is None else calls
    if not isinstance(calls, list):
        raise RowFault("llm_completions", f"expected a list of calls, found {short(calls)}")
    log, in_force = PromptLog(), None
    for i, (call, context) in enumerate(_main_thread(calls, draft)):
        tools = _tools(call, draft)
        if in_force is None:
            draft.tools = tools
        where = f"[{i}].response"
        at = log.turn(context, draft.read_reply(response_message(call.get("response"), where), where, len(context)))
        if in_force is not None and tools != in_force:
            log.messages[at - 1] = log.messages[at - 1].model_copy(update={"tools": tools})
            draft.notes.add("the tool list changes between calls", at)
        in_force = tools
    draft.use_prompts(log, exact=True)
    draft.notes.add("prompts are the recorded completions")


def _main_thread(calls: Sequence[Any], draft: Draft) -> list[tuple[Mapping[str, Any], list[Message]]]:
    """The calls that share the most frequent opening message: condensers and sub-agents open otherwise."""
    contexts = Contexts(draft)
    threads: dict[str, list[tuple[Mapping[str, Any], list[Message]]]] = {}
    for i, call in enumerate(calls):
        if not isinstance(call, Mapping):
            raise RowFault(f"[{i}]", f"expected a logged call, found {short(call)}")
        context = contexts.read(items_of(call, "messages", draft.notes), f"[{i}].messages")
        threads.setdefault(context[0].model_dump_json(), []).append((call, context))
    main = max(threads.values(), key=len, default=[])
    if others := len(calls) - len(main):
        draft.notes.add(f"{others} logged calls that open with another message (condenser, sub-agent) were left out")
    return main


def response_message(response: Any, where: str) -> Any:
    """The message in a recorded model response. Raises RowFault if there is none."""
    choices = response.get("choices") if isinstance(response, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, Mapping) else None
    if not isinstance(message, Mapping):
        raise RowFault(f"{where}.choices[0].message", f"expected a message, found {short(message)}")
    return {**message, "role": "assistant"}


def _tools(call: Mapping[str, Any], draft: Draft) -> tuple[dict[str, Any], ...]:
    kwargs = call.get("kwargs")
    raw = kwargs.get("tools") if isinstance(kwargs, Mapping) else call.get("tools")
    return tools_of(raw, "kwargs.tools", draft.notes)
