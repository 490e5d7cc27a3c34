"""Verdicts on the calls of an output: readable, of known tools, with arguments that fit, and the same as another's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentbench_spec.rollout import Rollout, ToolCall
from agentbench_spec.rollouts.toolcalls.families import Family
from agentbench_spec.rollouts.toolcalls.schema_faults import call_faults, declared, same_value
from agentbench_spec.rollouts.toolcalls.spoken import Spoken, Tools


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of the calls of one output; None: there was nothing to judge."""

    valid: bool | None = None
    """Every call that was meant can be read; None: none was made."""
    known: bool | None = None
    """Every call that can be read names a tool in force."""
    args_valid: bool | None = None
    """The arguments of every call of a known tool fit its schema."""
    same: bool | None = None
    """The calls are those of the reference, names and arguments, in order; None: neither makes one."""


def judge(spoken: Spoken, tools: Tools, reference: Sequence[ToolCall] | None) -> Verdict:
    """The verdict on an output under these tools; reference: the calls it is held against, None: nothing is.

    Without tools nothing is judged: a text that looks like a call is then a text.
    """
    if not tools:
        return Verdict()
    known = [call for call in spoken.calls if declared(tools, call.name) is not None]
    return Verdict(
        valid=not spoken.faults if spoken.called else None,
        known=len(known) == len(spoken.calls) if spoken.calls else None,
        args_valid=not any(call_faults(call, tools) for call in known) if known else None,
        same=_same(spoken, reference),
    )


def _same(spoken: Spoken, reference: Sequence[ToolCall] | None) -> bool | None:
    if reference is None or not (spoken.called or reference):
        return None
    return not spoken.faults and same_calls(spoken.calls, reference)


def same_calls(one: Sequence[ToolCall], other: Sequence[ToolCall]) -> bool:
    """True if two lists of calls have the same names and arguments, whatever their ids."""
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(a.name == b.name and same_value(a.arguments, b.arguments) for a, b in pairs)


@dataclass(frozen=True, slots=True)
class CallJudge:
    """Judges outputs of one target against what a rollout recorded."""

    family: Family
    text: Callable[[Sequence[int]], str]
    """Output ids -> what was said, without the stop token."""

    def of_ids(self, rollout: Rollout, message: int, ids: Sequence[int], other: Sequence[int] | None = None) -> Verdict:
        """The verdict on an output that stands for message `message`; other: what it is held against, not the record.

        A record may hold its calls as text.
        """
        tools, reference = reference_of(rollout, message)
        if other is not None:
            reference = self.family.spoken(self.text(other), tools).calls
        elif reference == ():
            reference = self.family.spoken(rollout.messages[message].content, tools).calls
        return judge(self.family.spoken(self.text(ids), tools), tools, reference)


def reference_of(rollout: Rollout, message: int) -> tuple[Tools, Sequence[ToolCall] | None]:
    """The tools in force at message `message` and the calls it records; None: it is a placeholder of ours."""
    recorded = rollout.messages[message]
    return rollout.tools_at(message), None if recorded.synthetic else recorded.tool_calls
