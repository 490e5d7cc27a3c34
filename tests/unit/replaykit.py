"""Rollouts of token ids, a renderer for them, and a replayer over the toy target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentbench_spec_drafters.none import NoDrafter

from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.invariants import check_row
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.rollout import Message, Rollout
from agentbench_spec.runs.fill import Conditions
from agentbench_spec.runs.replay import Measured, Replayer
from agentbench_spec.testing import greedy_text, toy_target

HEADERS = {"system": 60, "user": 61, "tool": 61, "assistant": 62}
END = 63
"""Ends every message; the stop token."""


class Ids:
    """Renders messages whose content is token ids in decimal: header, ids, END. Fails on messages that say "broken"."""

    def prompt(self, rollout: Rollout, index: int) -> list[int]:
        before = rollout.messages[:index]
        return [token for message in before for token in self._message(message)] + [HEADERS["assistant"]]

    def reply(self, rollout: Rollout, index: int) -> list[int]:
        message = rollout.messages[index]
        return [*ids_of(message.reasoning or ""), *ids_of(message.content), END]

    def text(self, ids: Sequence[int]) -> str:
        said = list(ids)
        return as_text(said[: said.index(END)] if END in said else said)

    def _message(self, message: Message) -> list[int]:
        if message.content == "broken":
            raise ConfigError("the template refuses this message")
        return [HEADERS[message.role], *self._thought(message), *ids_of(message.content), END]

    def _thought(self, message: Message) -> list[int]:
        return ids_of(message.reasoning or "")


class Forgetful(Ids):
    """Drops what earlier replies thought, as Qwen3's template does."""

    def _thought(self, message: Message) -> list[int]:
        return []


def ids_of(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def as_text(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def said(role: Any, *ids: int, **options: Any) -> Message:
    return Message(role=role, content=as_text(ids), **options)


def rollout(*messages: Message, name: str = "r") -> Rollout:
    return Rollout(id=name, workload="w", messages=messages)


def three_turns(name: str = "r") -> Rollout:
    """User, call, result, call, result, answer."""
    return rollout(
        said("user", *range(1, 13)),
        said("assistant", 20, 21, 22, 23),
        said("tool", 5, 6, 7, 8, 9),
        said("assistant", 20, 21, 30, 31, 32),
        said("user", 40, 41, 42),
        said("assistant", 50, 51),
        name=name,
    )


def replayer(
    drafters: Mapping[str, Drafter] | None = None,
    *,
    target: Target | None = None,
    renderer: Ids | None = None,
    k: int = 4,
    max_new_tokens: int = 12,
    stop: frozenset[int] = frozenset([END]),
    **conditions: Any,
) -> Replayer:
    """A replayer over the toy target, with the baseline and the drafters given, all opened."""
    target = target or toy_target()
    everyone = {"none": NoDrafter(), **(drafters or {})}
    for drafter in everyone.values():
        drafter.open(target.info, rows=target.rows, capacity=target.capacity)
    limits = Limits(k, max_new_tokens, stop)
    return Replayer(target, everyone, renderer or Ids(), Conditions(limits=limits, **conditions), "w")


def replayed(replays: Replayer, *rollouts: Rollout) -> list[Measured]:
    """Every turn of the rollouts; fails if a row breaks an invariant of the row schema."""
    turns = [turn for each in rollouts for turn in replays.replay(each)]
    for turn in turns:
        for row in turn.rows:
            check_row(row)
    return turns


def by_drafter(turns: Sequence[Measured], name: str) -> list[TurnRow]:
    """The rows of one drafter, turn by turn."""
    return [row for turn in turns for row in turn.rows if row.drafter == name]


def continuations(each: Rollout, renderer: Ids | None = None, new_tokens: int = 40) -> list[list[int]]:
    """Prompt and greedy continuation of every turn, on a toy target of its own."""
    target, renders = toy_target(), renderer or Ids()
    return [greedy_text(target, renders.prompt(each, point), new_tokens) for point in each.decode_points()]
