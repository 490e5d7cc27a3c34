"""A BFCL-v3 row as a rollout, by running its gold calls on the simulated APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentbench_spec.rollout import Message, Rollout, ToolCall

from .apis import GoldCall, World, parse_call
from .reader import BfclData, Entry
from .tools import ToolPlan, ToolsForm, plan_tools

ADDED_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
"""The benchmark's own sentence (bfcl_eval.constants.default_prompts) at the turn that adds functions."""
CLOSING = "Done."
ASKING_FUNCTION = "I have no function that does this. Can you make one available?"
ASKING_DETAILS = "I need more details before I can act. What exactly should I do?"

_JOINED_TURNS = {
    ("multi_turn_base_154", "6ea6bf48a2fc6067"): 1,
}
"""(row, start of the answer file's sha256) -> gold turn that is one with the turn after it."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """How rows become rollouts."""

    tools: ToolsForm = "full"
    distractors: int = 4
    parallel_calls: bool = False
    strict: bool | None = None
    """True: stop at every fault; None: but repair the one known in the pinned data; False: cut what does not match."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user sends and the calls that answer it."""

    question: list[dict[str, Any]]
    calls: list[GoldCall]


def build_rollout(entry: Entry, data: BfclData, options: BuildOptions, *, executor: str) -> Rollout:
    """Run the row's gold calls and return the conversation; raises RowFault naming file, line, id and field."""
    turns, notes = turns_of(entry, options.strict)
    if late := [turn for turn in entry.missed if turn >= len(turns)]:
        raise entry.fault(f"missed_function.{late[0]}", f"names a turn that does not exist; there are {len(turns)}")
    called = [call.name for turn in turns for call in turn.calls]
    plan = plan_tools(entry, data, called, form=options.tools, distractors=options.distractors)
    script = _Script(entry, parallel_calls=options.parallel_calls)
    messages: list[Message] = []
    for number, turn in enumerate(turns):
        messages += user_messages(entry, number, turn, plan.from_turn.get(number))
        messages += script.answer(number, turn)
    return Rollout(
        id=entry.id,
        workload="bfcl_v3",
        source=source_of(entry, data, executor),
        tools=plan.start,
        messages=tuple(messages),
        labels=labels_of(entry, options),
        notes=(*notes, *([plan.note] if plan.note else []), *_calls_too_early(turns, plan), *script.notes()),
    )


def labels_of(entry: Entry, options: BuildOptions) -> dict[str, str]:
    """What rows of the four categories are grouped by."""
    return {"category": entry.category, "scenario": entry.id.rpartition("_")[2], "tools": options.tools}


def _calls_too_early(turns: list[Turn], plan: ToolPlan) -> Iterator[str]:
    """Gold calls of functions that are still held out; miss_func row 49 of the pinned data has one."""
    in_force = plan.start
    for number, turn in enumerate(turns):
        in_force = plan.from_turn.get(number, in_force)
        offered = {tool["function"]["name"] for tool in in_force}
        for name in dict.fromkeys(call.name for call in turn.calls if call.name not in offered):
            yield f"gold turn {number} calls {name}, which is not offered before a later turn"


def source_of(entry: Entry, data: BfclData, executor: str) -> dict[str, Any]:
    """Where a row comes from, and what carries its calls out."""
    return {
        "name": data.name,
        "version": data.version,
        "file": entry.data.path.name,
        "row": entry.id,
        "sha256": entry.data.sha256,
        "gold_sha256": entry.gold_data.sha256,
        "executor": executor,
    }


def turns_of(entry: Entry, strict: bool | None) -> tuple[list[Turn], list[str]]:
    """The row's user turns with their gold calls, and what was repaired; raises RowFault."""
    gold, notes = entry.gold, []
    joined = _JOINED_TURNS.get((entry.id, entry.gold_data.sha256[:16]))
    if joined is not None and strict is not True:
        gold = [*gold[:joined], gold[joined] + gold[joined + 1], *gold[joined + 2 :]]
        notes = [f"gold turns {joined} and {joined + 1} joined: the answer file splits one user turn in two"]
    asked, answered = len(entry.question), len(gold)
    if asked != answered:
        if strict is not False:
            raise entry.fault(
                "question",
                f"has {asked} turns, but {entry.gold_data.path} has {answered} for it; "
                "correct the row, or cut it to the shorter one with strict=False",
            )
        notes = [*notes, f"cut to {min(asked, answered)} turns: {asked} questions, {answered} gold turns"]
    calls = [[_parsed(entry, t, c, text) for c, text in enumerate(texts)] for t, texts in enumerate(gold)]
    return [Turn(q, c) for q, c in zip(entry.question, calls, strict=False)], notes


def _parsed(entry: Entry, turn: int, place: int, text: str) -> GoldCall:
    try:
        return parse_call(text)
    except ValueError as error:
        raise entry.fault(f"ground_truth[{turn}][{place}]", str(error)) from error


def user_messages(entry: Entry, number: int, turn: Turn, tools: tuple[dict[str, Any], ...] | None) -> Iterator[Message]:
    """What the user sends at turn `number`; tools: the list that comes into force with it. Raises RowFault."""
    if tools is not None:
        if turn.question:
            raise entry.fault(f"question[{number}]", "must be empty, because missed_function adds functions here")
        yield Message(role="user", content=ADDED_FUNCTIONS, tools=tools)
        return
    if not turn.question:
        raise entry.fault(f"question[{number}]", "is empty, but missed_function adds no function here")
    for place, message in enumerate(turn.question):
        role, content = message.get("role"), message.get("content")
        if role not in ("system", "user") or not isinstance(content, str):
            raise entry.fault(f"question[{number}][{place}]", "expected role user or system and a text content")
        yield Message(role=role, content=content)


class _Script:
    """Runs the calls of one rollout in order and writes the assistant's and the tools' messages."""

    def __init__(self, entry: Entry, *, parallel_calls: bool) -> None:
        self._entry = entry
        self._world = World(entry)
        self._parallel_calls = parallel_calls
        self._calls = 0
        self._unanswered = 0

    def answer(self, number: int, turn: Turn) -> Iterator[Message]:
        """The steps of one user turn and the reply that closes it, which is ours."""
        steps = [turn.calls] if self._parallel_calls and turn.calls else [[call] for call in turn.calls]
        place = 0
        for step in steps:
            ran = [self._run(number, place + i, call) for i, call in enumerate(step)]
            place += len(step)
            yield Message(role="assistant", tool_calls=tuple(call for call, _ in ran))
            yield from (Message(role="tool", content=r, tool_call_id=c.id, name=c.name) for c, r in ran)
        self._unanswered += not steps
        asking = ASKING_FUNCTION if number + 1 in self._entry.missed else ASKING_DETAILS
        yield Message(role="assistant", content=CLOSING if steps else asking, synthetic=True)

    def notes(self) -> list[str]:
        """What of the conversation is not from the benchmark."""
        closing = "the reply that closes each user turn is synthetic"
        if self._unanswered:
            closing += f"; where a user turn has no gold call ({self._unanswered} here), the reply asks back"
        return [closing]

    def _run(self, number: int, place: int, call: GoldCall) -> tuple[ToolCall, str]:
        try:
            arguments = self._world.arguments(call)
            shown = json.loads(json.dumps(arguments, allow_nan=False))  # what a model writes: tuples become arrays
        except (TypeError, ValueError) as error:
            raise self._entry.fault(f"ground_truth[{number}][{place}]", str(error)) from error
        self._calls += 1
        return ToolCall(name=call.name, arguments=shown, id=f"call_{self._calls}"), self._world.result(
            call.name, arguments
        )
