"""Sizes of rollouts, and what is wrong with a rollout file: pure functions behind `agentbench-spec rollouts`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from agentbench_spec.rollout import BadLine, Message, Rollout, file_sha256, read_rollouts

__all__ = ["PromptTokens", "ValidationReport", "rollout_sizes", "rollout_stats", "summarize", "validate_rollouts"]

PromptTokens = Callable[[Rollout, int], int]
"""(rollout, index of a decode point) -> tokens of its prompt, as the target's renderer counts them."""


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """What a rollout file holds, line by line."""

    path: Path
    sha256: str
    rollouts: int
    """Lines that can be replayed."""
    decode_points: int
    bad: tuple[BadLine, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    """Oddities of good rollouts that a replay survives but a reader should know."""

    @property
    def ok(self) -> bool:
        """True if every line can be replayed."""
        return not self.bad


def validate_rollouts(path: Path) -> ValidationReport:
    """Read every line of `path` and say which are bad and why.

    Raises ConfigError if there is no such file or not one line in it.
    """
    bad: list[BadLine] = []
    warnings: list[str] = []
    rollouts = decode_points = 0
    for rollout in read_rollouts(path, on_bad=bad.append):
        rollouts += 1
        decode_points += len(rollout.decode_points())
        warnings += (f"{rollout.id}: {text}" for text in _oddities(rollout))
    return ValidationReport(path, file_sha256(path), rollouts, decode_points, tuple(bad), tuple(warnings))


def _oddities(rollout: Rollout) -> Iterator[str]:
    declared = _declared(rollout.tools)
    open_calls: dict[str, int] = {}
    for i, message in enumerate(rollout.messages):
        if message.tools is not None:
            declared = _declared(message.tools)
        for call in message.tool_calls:
            open_calls[call.id] = i
            if call.name not in declared:
                yield f"messages[{i}] calls {call.name!r}, which is not among the tools in force"
        if message.role == "tool" and open_calls.pop(message.tool_call_id or "", None) is None:
            yield f"messages[{i}] is the result of no open call"
    for name, i in open_calls.items():
        yield f"messages[{i}] makes the call {name!r}, which has no result"


def _declared(tools: Iterable[dict[str, Any]]) -> set[str]:
    return {tool["function"]["name"] for tool in tools}


def rollout_sizes(rollout: Rollout, *, prompt_tokens: PromptTokens | None = None) -> dict[str, Any]:
    """One row of sizes; the token columns are None unless `prompt_tokens` counts them.

    turns: decode points. references: those with a recorded reply. characters: content, reasoning and calls as JSON.
    """
    points = rollout.decode_points()
    roles = [message.role for message in rollout.messages]
    tokens = [prompt_tokens(rollout, i) for i in points] if prompt_tokens else []
    return {
        "id": rollout.id,
        "workload": rollout.workload,
        "category": rollout.labels.get("category"),
        "messages": len(roles),
        "user_messages": roles.count("user"),
        "turns": len(points),
        "references": sum(not rollout.messages[i].synthetic for i in points),
        "tool_calls": sum(len(message.tool_calls) for message in rollout.messages),
        "tool_results": roles.count("tool"),
        "tools": len(rollout.tools),
        "tool_changes": sum(message.tools is not None for message in rollout.messages),
        "tools_characters": len(_json(rollout.tools)),
        "characters": sum(map(_characters, rollout.messages)),
        "largest_result_characters": max((len(m.content) for m in rollout.messages if m.role == "tool"), default=0),
        "first_prompt_tokens": tokens[0] if tokens else None,
        "last_prompt_tokens": tokens[-1] if tokens else None,
        "max_prompt_tokens": max(tokens, default=None),
    }


def _characters(message: Message) -> int:
    calls = sum(len(call.name) + len(_json(call.arguments)) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning or "") + calls


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def rollout_stats(rollouts: Iterable[Rollout], *, prompt_tokens: PromptTokens | None = None) -> pd.DataFrame:
    """One row per rollout, columns as in `rollout_sizes`."""
    return pd.DataFrame([rollout_sizes(rollout, prompt_tokens=prompt_tokens) for rollout in rollouts])


def summarize(stats: pd.DataFrame, by: str = "category") -> pd.DataFrame:
    """Count of rollouts, totals of turns, references and tool calls, and min, median, max of the sizes, by group."""
    groups = stats.groupby(by, sort=False, dropna=False)
    totals = groups[["turns", "references", "tool_calls"]].sum()
    totals.insert(0, "rollouts", groups.size())
    for column in ("characters", "first_prompt_tokens", "max_prompt_tokens"):
        if stats[column].notna().all():
            for name in ("min", "median", "max"):
                totals[f"{column}_{name}"] = groups[column].agg(name)
    return totals
