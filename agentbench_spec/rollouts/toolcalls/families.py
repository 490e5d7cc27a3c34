"""The registry: which family of calls a chat template teaches, told by the marks in it, and the parser of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentbench_spec.errors import ConfigError, unknown_name
from agentbench_spec.rollouts.toolcalls.json_families import (
    bare,
    deepseek,
    granite,
    harmony,
    hermes,
    kimi,
    llama3,
    mistral,
)
from agentbench_spec.rollouts.toolcalls.marked_families import glm, qwen3_coder
from agentbench_spec.rollouts.toolcalls.pythonic import pythonic
from agentbench_spec.rollouts.toolcalls.spoken import Parse, Spoken, Tools, gathered

__all__ = ["Family", "families", "family", "family_of", "register"]


@dataclass(frozen=True, slots=True)
class Family:
    """One way to write calls."""

    name: str
    marks: tuple[tuple[str, ...], ...]
    """A template that holds all words of one of these tuples teaches this family."""
    parse: Parse

    def spoken(self, text: str, tools: Tools = ()) -> Spoken:
        """`text` taken apart; tools: those in force, whose schemas give tagged arguments their types."""
        return gathered(text, self.parse, tools)


_FAMILIES: dict[str, Family] = {}


def register(own: Family, *, first: bool = False) -> None:
    """Add a family; first: its marks are looked for before those of the others. Raises ConfigError if it is there."""
    if own.name in _FAMILIES:
        raise ConfigError(f"a family of tool calls is called {own.name!r} already; choose another name")
    others = dict(_FAMILIES)
    _FAMILIES.clear()
    _FAMILIES.update({own.name: own} | others if first else others | {own.name: own})


def families() -> tuple[Family, ...]:
    """All families, in the order in which their marks are looked for."""
    return tuple(_FAMILIES.values())


def family(name: str) -> Family:
    """The family called `name`. Raises ConfigError for an unknown one."""
    if name not in _FAMILIES:
        raise unknown_name("family of tool calls", name, _FAMILIES)
    return _FAMILIES[name]


def family_of(template: str) -> Family:
    """The first family whose marks a chat template holds; bare JSON where it holds none."""
    return next((own for own in families() if _holds(template, own.marks)), family("json"))


def _holds(template: str, marks: Iterable[tuple[str, ...]]) -> bool:
    return any(all(mark in template for mark in each) for each in marks)


for _own in (
    Family("glm", (("<tool_call>", "<arg_key>"),), glm),
    Family("qwen3_coder", (("<function=", "<parameter="),), qwen3_coder),
    Family("kimi", (("<|tool_call_argument_begin|>",),), kimi),
    Family("deepseek", (("<｜tool▁call▁begin｜>",), ("<｜tool▁calls▁begin｜>",)), deepseek),
    Family("harmony", (("<|channel|>", "to=functions."), ("<|channel|>", "<|call|>")), harmony),
    Family("mistral", (("[TOOL_CALLS]",),), mistral),
    Family("granite", (("<|tool_call|>",),), granite),
    Family("hermes", (("<tool_call>",),), hermes),
    Family("pythonic", (("func_name1(params_name1=",), ("<|python_start|>",), ("<|tool_call_start|>",)), pythonic),
    Family("llama3", (("<|python_tag|>",), ("<|start_header_id|>", '"parameters"')), llama3),
    Family("json", (), bare),
):
    register(_own)
