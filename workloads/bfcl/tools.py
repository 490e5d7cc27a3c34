"""Which functions a rollout offers, as JSON-schema declarations, and when the list changes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .apis import class_modules, doc_stem
from .reader import BfclData, Entry

ToolsForm = Literal["full", "involved"]

_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_JSON_TYPES = ("object", "number", "array", "string", "integer", "boolean", "null")


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """The tool lists of one rollout."""

    start: tuple[dict[str, Any], ...]
    from_turn: dict[int, tuple[dict[str, Any], ...]]
    """User turn -> the whole list in force from its message on."""
    note: str | None
    """How the list differs from the benchmark's own."""


def plan_tools(entry: Entry, data: BfclData, called: Iterable[str], *, form: ToolsForm, distractors: int) -> ToolPlan:
    """The tool lists of `entry`, whose gold calls use the functions `called`.

    form "full": all functions of the involved classes, as the benchmark does. "involved": the called functions and
    `distractors` others of the same classes, drawn by the row's id. Raises RowFault if a needed function has no doc.
    """
    docs = {doc["name"]: doc for doc in _docs(entry, data) if doc["name"] not in entry.excluded}
    missed = [name for names in entry.missed.values() for name in names]
    needed = dict.fromkeys([*called, *missed])
    for name in needed:
        if name not in docs:
            raise entry.fault("function", f"the row needs {name!r}, which is excluded or has no doc")
    note = None
    if form == "involved":
        offered = needed.keys() | set(_distractors(entry, docs, needed, distractors))
        note = (
            f"tools cut to the {len(needed)} functions the row needs and {len(offered) - len(needed)} distractors; "
            f"the benchmark offers {len(docs)}"
        )
        docs = {name: doc for name, doc in docs.items() if name in offered}
    declared = {name: declaration(doc) for name, doc in docs.items()}
    return _schedule(entry, declared, missed, note)


def _schedule(entry: Entry, declared: dict[str, dict[str, Any]], missed: list[str], note: str | None) -> ToolPlan:
    """Held-out functions come back at the end of the list, as in the benchmark's own runner."""
    in_force = tuple(tool for name, tool in declared.items() if name not in missed)
    start, from_turn = in_force, {}
    for turn in sorted(entry.missed):
        in_force += tuple(declared[name] for name in entry.missed[turn])
        from_turn[turn] = in_force
    return ToolPlan(start, from_turn, note)


def _distractors(entry: Entry, docs: Iterable[str], needed: Iterable[str], count: int) -> list[str]:
    """Drawn by the row's id alone, so a rollout is the same whatever sample it is in."""
    others = sorted(set(docs) - set(needed))
    random.Random(f"bfcl_v3:{entry.id}").shuffle(others)
    return others[:count]


def _docs(entry: Entry, data: BfclData) -> list[dict[str, Any]]:
    if entry.function is not None:
        return _own_docs(entry, entry.function)
    docs: list[dict[str, Any]] = []
    for name in entry.involved_classes:
        if name not in class_modules():
            raise entry.fault("involved_classes", f"unknown API class {name!r}; known: {', '.join(class_modules())}")
        if doc_stem(name) not in data.docs:
            path = data.docs_folder / f"{doc_stem(name)}.json"
            raise entry.fault("function", f"is missing and cannot be rebuilt from {name}: {path} does not exist")
        docs += data.docs[doc_stem(name)]
    return docs


def _own_docs(entry: Entry, docs: list[Any]) -> list[dict[str, Any]]:
    for i, doc in enumerate(docs):
        if not (isinstance(doc, dict) and isinstance(doc.get("name"), str) and isinstance(doc.get("parameters"), dict)):
            raise entry.fault(f"function[{i}]", "expected a function doc with name and parameters")
    return docs


def declaration(doc: dict[str, Any]) -> dict[str, Any]:
    """A BFCL function doc as a JSON-schema declaration, without its `response` part, which is no part of one."""
    function = {
        "name": doc["name"],
        "description": doc.get("description", ""),
        "parameters": _schema(doc["parameters"]),
    }
    return {"type": "function", "function": function}


def _schema(doc: dict[str, Any]) -> dict[str, Any]:
    schema = dict(doc)
    if "type" in doc:
        schema["type"] = _TYPES.get(doc["type"], doc["type"])
        if schema["type"] not in _JSON_TYPES:
            del schema["type"]  # "any" and the like: no constraint
    if "properties" in doc:
        schema["properties"] = {name: _schema(sub) for name, sub in doc["properties"].items()}
    if isinstance(doc.get("items"), dict):
        schema["items"] = _schema(doc["items"])
    return schema
