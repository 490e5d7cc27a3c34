"""Sizes of rollouts, and what is wrong with a rollout file: pure functions behind `agentbench-spec rollouts`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from agentbench_spec.rollout import BadLine, Message, Rollout, file_sha256, read_rollouts

__all__ = [
    "PromptTokens",
    "Rewrite",
    "ValidationReport",
    "rewrite",
    "rollout_sizes",
    "rollout_stats",
    "summarize",
    "validate_rollouts",
]

PromptTokens = Callable[[Rollout, int], int]
"""(rollout, index of a decode point) -> tokens of its prompt, as the target's renderer counts them."""

Rewrite = Literal["history", "tools"]
"""Why a prompt is not the one before it with more behind: earlier messages were shown otherwise, or tools changed."""


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """What a rollout file holds, line by line."""

    path: Path
    sha256: str
    rollouts: int
    """Lines that can be replayed."""
    decode_points: int
    viewed: int = 0
    """Rollouts with views: the model saw earlier messages otherwise than recorded."""
    views: int = 0
    rewritten_turns: int = 0
    """Decode points whose prompt is not the one before it with more behind."""
    bad: tuple[BadLine, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    """Oddities of good rollouts that a replay survives but a reader should know, one line a kind and tool."""

    @property
    def sections(self) -> int:
        """Stretches of decode points over which the context only grew."""
        return self.rollouts + self.rewritten_turns

    @property
    def ok(self) -> bool:
        """True if every line can be replayed."""
        return not self.bad


def validate_rollouts(path: str | Path) -> ValidationReport:
    """Read every line of `path` and say which are bad and why.

    Raises ConfigError if there is no such file or not one line in it.
    """
    path, bad = Path(path), list[BadLine]()
    oddities = _Oddities()
    counts = dict.fromkeys(("rollouts", "decode_points", "viewed", "views", "rewritten_turns"), 0)
    for rollout in read_rollouts(path, on_bad=bad.append):
        counts["rollouts"] += 1
        counts["decode_points"] += len(rollout.decode_points())
        counts["viewed"] += bool(rollout.views)
        counts["views"] += len(rollout.views)
        counts["rewritten_turns"] += sum(why is not None for _, why in _rewrites(rollout))
        oddities.add(rollout)
    return ValidationReport(path, file_sha256(path), **counts, bad=tuple(bad), warnings=oddities.lines())


def rewrite(rollout: Rollout, before: int, point: int) -> Rewrite | None:
    """Why the prompt of decode point `point` does not begin with all the model saw at `before` and said there.

    before: the decode point before it. None: it does, so that only a chat template can lose tokens.
    """
    between = [message.tools for message in rollout.messages[before:point]]
    if any(before < view.at <= point for view in rollout.views):
        seen = (*rollout.context_at(before), rollout.messages[before])
        if rollout.context_at(point)[: len(seen)] != seen:
            return "history"
    changed = any(tools is not None for tools in between) and rollout.tools_at(point) != rollout.tools_at(before)
    return "tools" if changed else None


def _rewrites(rollout: Rollout) -> Iterator[tuple[int, Rewrite | None]]:
    """(decode point, why its prompt is not append-only) of every decode point but the first."""
    return ((point, rewrite(rollout, before, point)) for before, point in pairwise(rollout.decode_points()))


class _Oddities:
    """Oddities by kind and tool: the first of each in words, how often it was met, and in how many rollouts."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], str] = {}
        self._times: Counter[tuple[str, str]] = Counter()
        self._rollouts: Counter[tuple[str, str]] = Counter()

    def add(self, rollout: Rollout) -> None:
        met = Counter[tuple[str, str]]()
        for kind, text in _oddities(rollout):
            self._first.setdefault(kind, f"{rollout.id}: {text}")
            met[kind] += 1
        self._times += met
        self._rollouts.update(met.keys())

    def lines(self) -> tuple[str, ...]:
        """One line a kind and tool."""
        return tuple(text + self._count(kind) for kind, text in self._first.items())

    def _count(self, kind: tuple[str, str]) -> str:
        times, rollouts = self._times[kind], self._rollouts[kind]
        return f" ({times:,} times in {rollouts:,} rollout{'s' * (rollouts > 1)})" if times > 1 else ""


def _oddities(rollout: Rollout) -> Iterator[tuple[tuple[str, str], str]]:
    """((kind, tool), what is odd in which message) of everything that a replay survives."""
    declared = _declared(rollout.tools)
    open_calls: dict[str, tuple[int, str]] = {}
    for i, message in enumerate(rollout.messages):
        if message.tools is not None:
            declared = _declared(message.tools)
        for call in message.tool_calls:
            open_calls[call.id] = i, call.name
            if call.name not in declared:
                yield ("tool", call.name), f"messages[{i}] calls {call.name!r}, which is not among the tools in force"
        if message.role == "tool" and open_calls.pop(message.tool_call_id or "", None) is None:
            yield ("result", message.name or ""), f"messages[{i}] is the result of no open call"
    for name, (i, tool) in open_calls.items():
        yield ("open", tool), f"messages[{i}] makes the call {name!r}, which has no result"


def _declared(tools: Iterable[dict[str, Any]]) -> set[str]:
    return {tool["function"]["name"] for tool in tools}


def rollout_sizes(rollout: Rollout, *, prompt_tokens: PromptTokens | None = None) -> dict[str, Any]:
    """One row of sizes; the token columns are None unless `prompt_tokens` counts them.

    turns: decode points. references: those with a recorded reply. characters: content, reasoning and calls as JSON, of
    the whole record. views: places where the model saw earlier messages otherwise. rewritten_turns: those whose prompt
    is not the one before it with more behind. sections: stretches of turns over which the context only grew.
    max_prompt_characters: of the messages the model saw at once, which views may have cut, tools not counted.
    """
    points = rollout.decode_points()
    rewritten = sum(why is not None for _, why in _rewrites(rollout))
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
        "views": len(rollout.views),
        "rewritten_turns": rewritten,
        "sections": min(1, len(points)) + rewritten,
        "tools_characters": len(_json(rollout.tools)),
        "characters": sum(map(_characters, rollout.messages)),
        "max_prompt_characters": _max_prompt_characters(rollout, points),
        "largest_result_characters": max((len(m.content) for m in rollout.messages if m.role == "tool"), default=0),
        "first_prompt_tokens": tokens[0] if tokens else None,
        "last_prompt_tokens": tokens[-1] if tokens else None,
        "max_prompt_tokens": max(tokens, default=None),
    }


def _max_prompt_characters(rollout: Rollout, points: Sequence[int]) -> int:
    if not rollout.views:
        return sum(map(_characters, rollout.messages[: points[-1]])) if points else 0
    known: dict[int, int] = {}  # by identity: views show the same messages again and again

    def counted(message: Message) -> int:
        if id(message) not in known:
            known[id(message)] = _characters(message)
        return known[id(message)]

    return max(sum(map(counted, rollout.context_at(point))) for point in points)


def _characters(message: Message) -> int:
    calls = sum(len(call.name) + len(_json(call.arguments)) for call in message.tool_calls)
    return len(message.content) + len(message.reasoning or "") + calls


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def rollout_stats(rollouts: Iterable[Rollout], *, prompt_tokens: PromptTokens | None = None) -> pd.DataFrame:
    """One row per rollout, columns as in `rollout_sizes`."""
    return pd.DataFrame([rollout_sizes(rollout, prompt_tokens=prompt_tokens) for rollout in rollouts])


def summarize(stats: pd.DataFrame, by: str = "category") -> pd.DataFrame:
    """Count of rollouts; totals of turns, references, calls, rewrites; min, median, max of the sizes; by group."""
    groups = stats.groupby(by, sort=False, dropna=False)
    totals = groups[["turns", "references", "tool_calls", "views", "rewritten_turns", "sections"]].sum()
    totals.insert(0, "rollouts", groups.size())
    for column in ("characters", "max_prompt_characters", "first_prompt_tokens", "max_prompt_tokens"):
        if stats[column].notna().all():
            for name in ("min", "median", "max"):
                totals[f"{column}_{name}"] = groups[column].agg(name)
    return totals
