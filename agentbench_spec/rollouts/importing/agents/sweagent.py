"""SWE-agent .traj files: v0, v1, history alone, and steps alone; exact prompts where the steps hold their query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentbench_spec.messages import Message
from agentbench_spec.rollouts.importing.draft import Contexts, Draft, items_of
from agentbench_spec.rollouts.importing.jsontext import loads
from agentbench_spec.rollouts.importing.notes import RowFault, short
from agentbench_spec.rollouts.importing.prompts import PromptLog

__all__ = ["swe_agent"]

_KEEP_HISTORY = {"default", "cache_control"}
"""History processors that change no text of a prompt."""


def swe_agent(value: Any, draft: Draft) -> None:
    """{"trajectory": [steps], "history": [messages], "info": {...}}."""
    if not isinstance(value, Mapping):
        raise RowFault(None, f"expected an object, found {type(value).__name__}")
    steps = [_step(step, i) for i, step in enumerate(_optional(value, "trajectory", draft))]
    history = _history(_optional(value, "history", draft), draft)
    if any(map(_was_asked, steps)):
        _from_queries(steps, history, draft)
    elif history:
        draft.messages += [message for _, message in history]
        _note_processors(value.get("replay_config"), draft)
    else:
        _from_steps(steps, draft)
    if steps and (_was_asked(steps[-1]) or not draft.exact):
        _last_observation(steps[-1], draft)
    info = value.get("info")
    if isinstance(info, Mapping) and isinstance(info.get("exit_status"), str):
        draft.labels["exit_status"] = info["exit_status"]


def _optional(row: Mapping[str, Any], key: str, draft: Draft) -> list[Any]:
    return items_of(row, key, draft.notes) if row.get(key) is not None else []


def _step(step: Any, i: int) -> Mapping[str, Any]:
    if not isinstance(step, Mapping):
        raise RowFault(f"trajectory[{i}]", f"expected a step object, found {short(step)}")
    return step


def _was_asked(step: Mapping[str, Any]) -> bool:
    """True if the step holds the prompt of a model call; a step that only ends the run holds [{}] or nothing."""
    query = step.get("query")
    return isinstance(query, list) and bool(query) and query != [{}]


def _history(items: Sequence[Any], draft: Draft) -> list[tuple[bool, Message]]:
    """(is part of a demonstration, message) for each message of the log."""
    found: list[tuple[bool, Message]] = []
    for i, item in enumerate(items):
        demo = isinstance(item, Mapping) and bool(item.get("is_demo"))
        found += ((demo, message) for message in draft.read_logged(item, f"history[{i}]", len(found)))
    return found


def _from_queries(steps: Sequence[Mapping[str, Any]], history: list[tuple[bool, Message]], draft: Draft) -> None:
    """Replay the recorded prompts; replies come from the log, which has the calls, or else from the step."""
    log, contexts = PromptLog(), Contexts(draft)
    replies = _Replies(history, steps)
    for i, step in enumerate(steps):
        if not _was_asked(step):
            draft.notes.add("a step for which the model was not asked (the end of a run) was left out")
            continue
        context = contexts.read(step["query"], f"trajectory[{i}].query")
        reply = replies.of(i)
        if reply is None:
            draft.notes.add("the reply is not in the history: taken from the step's response", len(log.messages))
        log.turn(context, reply or _response(step, f"trajectory[{i}]", draft))
    for message in replies.rest():
        log.append(message)
    draft.use_prompts(log, exact=True)
    draft.notes.add("prompts are the recorded queries")


class _Replies:
    """Finds the logged message of each step: by order if there are as many, by text if not."""

    def __init__(self, history: list[tuple[bool, Message]], steps: Sequence[Mapping[str, Any]]) -> None:
        self._messages = [message for _, message in history]
        self._steps = steps
        spoken = [i for i, (demo, message) in enumerate(history) if message.role == "assistant" and not demo]
        self._by_order = spoken if len(spoken) == len(steps) else None
        self._spoken = spoken
        self._used = -1

    def of(self, step: int) -> Message | None:
        found = self._by_order[step] if self._by_order else next(self._matching(self._steps[step]), None)
        if found is None:
            return None
        self._used = found
        return self._messages[found]

    def _matching(self, step: Mapping[str, Any]) -> Iterator[int]:
        texts = {text for text in (step.get("response"), step.get("thought")) if isinstance(text, str)}
        return (i for i in self._spoken if i > self._used and self._messages[i].content in texts)

    def rest(self) -> list[Message]:
        """What the log holds behind the last reply, up to the next one."""
        behind = self._messages[self._used + 1 :] if self._used >= 0 else []
        return behind[: next((i for i, m in enumerate(behind) if m.role == "assistant"), len(behind))]


def _response(step: Mapping[str, Any], where: str, draft: Draft) -> Message:
    text = step.get("response") if step.get("response") is not None else step.get("thought")
    return draft.read_reply({"role": "assistant", "content": text}, where, len(draft.messages))


def _from_steps(steps: Sequence[Mapping[str, Any]], draft: Draft) -> None:
    """A file without a log: replies and observations alternate."""
    if steps:
        draft.notes.add("the file holds no history: rebuilt from its steps, without system prompt and task")
    for i, step in enumerate(steps):
        draft.messages.append(_response(step, f"trajectory[{i}]", draft))
        if i < len(steps) - 1:
            draft.add({"role": "user", "content": step.get("observation")}, f"trajectory[{i}].observation")


def _last_observation(step: Mapping[str, Any], draft: Draft) -> None:
    """What the last step saw is in the trajectory only."""
    text = step.get("observation")
    if not draft.messages or draft.messages[-1].role != "assistant" or not isinstance(text, str) or not text:
        return
    calls = draft.messages[-1].tool_calls
    role = "tool" if calls else "user"
    draft.notes.add("the last observation stands in the trajectory only: appended", len(draft.messages))
    draft.add({"role": role, "content": text, "tool_call_id": calls[0].id if calls else None}, "trajectory[-1]")


def _note_processors(config: Any, draft: Draft) -> None:
    """A log is unprocessed; say so where the run's prompts were not."""
    if isinstance(config, str):
        try:
            config = loads(config, lambda text: None)
        except RowFault:
            draft.notes.add("replay_config is text that is no JSON: not used")
            return
    agent = config.get("agent") if isinstance(config, Mapping) else None
    processors = agent.get("history_processors") if isinstance(agent, Mapping) else None
    kinds = [p.get("type") for p in processors or () if isinstance(p, Mapping)] if isinstance(processors, list) else []
    if rewriting := [str(kind) for kind in kinds if kind not in _KEEP_HISTORY]:
        draft.notes.add(
            f"the run rewrote its history ({', '.join(rewriting)}) and the file holds no exact prompts: "
            "the unprocessed history is replayed"
        )
