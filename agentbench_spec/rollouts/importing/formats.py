"""The formats by name, and the way from one row to one rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from agentbench_spec.errors import unknown_name
from agentbench_spec.jsonl import BadLine
from agentbench_spec.rollout import Rollout, parse_rollout
from agentbench_spec.rollouts.importing.agents.atif import atif
from agentbench_spec.rollouts.importing.agents.claude_code import claude_code
from agentbench_spec.rollouts.importing.agents.codex import codex
from agentbench_spec.rollouts.importing.agents.openhands import openhands
from agentbench_spec.rollouts.importing.agents.sweagent import swe_agent
from agentbench_spec.rollouts.importing.chat import inspect_ai, mini_swe_agent, nebius, openai_chat, sharegpt, turns
from agentbench_spec.rollouts.importing.completions import llm_completions
from agentbench_spec.rollouts.importing.detect import detect
from agentbench_spec.rollouts.importing.draft import Draft, labels_of
from agentbench_spec.rollouts.importing.exchanges.folding import requests
from agentbench_spec.rollouts.importing.jsontext import jsonable, without_nulls, without_surrogates
from agentbench_spec.rollouts.importing.notes import Notes, RowFault
from agentbench_spec.rollouts.importing.submissions import submission_of

__all__ = ["FORMATS", "check_format", "convert_row", "instance_of"]

_READERS: dict[str, Callable[[Any, Draft], None]] = {
    "swe_agent": swe_agent,
    "mini_swe_agent": mini_swe_agent,
    "openhands": openhands,
    "llm_completions": llm_completions,
    "swe_smith": openai_chat,
    "swe_gym": openai_chat,
    "nebius": nebius,
    "nebius_openhands": openai_chat,
    "tau_bench": openai_chat,
    "openai_chat": openai_chat,
    "claude_code": claude_code,
    "codex": codex,
    "atif": atif,
    "inspect_ai": inspect_ai,
    "requests": requests,
    "sharegpt": sharegpt,
    "turns": turns,
}
FORMATS = ("auto", "rollout", *_READERS)
"""Names of the formats; "auto" looks at each row, "rollout" is this package's own form."""
_IDS = tuple(
    tuple(names.split())
    for names in (
        *(
            "trajectory_id",
            "traj_id",
            "instance_id run_id",
            "instance_id",
            "id epoch",
            "id",
            "task_id trial",
            "task_id",
        ),
        *("question_id", "session_id", "conversation_id", "task index", "uuid", "trace_id", "thread_id"),
        *("chat_id", "sessionId"),
    )
)


def check_format(name: str) -> str:
    """`name` itself. Raises ConfigError if it is no format."""
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    return name


def instance_of(value: Any) -> str:
    """What a row calls itself, "" if it has no name."""
    if not isinstance(value, Mapping):
        return ""
    for keys in _IDS:
        parts = [value.get(key) for key in keys]
        if all(isinstance(part, str | int) and str(part) for part in parts):
            return "-".join(map(str, parts))
    return ""


def convert_row(
    value: Any,
    *,
    format: str = "auto",
    id: str | None = None,
    workload: str = "imported",
    source: Mapping[str, Any] | None = None,
    labels: Mapping[str, Any] | None = None,
    notes: Iterable[str] = (),
    clean: bool = False,
    padded: bool = False,
) -> Rollout:
    """The rollout in one row of any known format.

    id: None for what the row calls itself. source: where it comes from; the format's name is added. labels: added to
    the row's own. notes: repairs made before. clean: True for values of `read_rows`, whose text is sound.
    padded: True for rows of the `datasets` library, whose structs are padded with nulls (`read_rows` sees to its own).
    A row in this package's own form comes back as it is.

    Raises RowFault (a ConfigError) naming field and reason if the row is no rollout, ConfigError for an unknown format.
    """
    found = detect(value) if check_format(format) == "auto" else format
    draft = Draft()
    try:
        if found == "rollout":
            return _own(value)
        value = value if clean else without_surrogates(value, draft.notes.add)
        value = without_nulls(value, draft.notes.add) if padded else value
        _READERS[found](value, draft)
        own = labels_of(value, draft.notes) if isinstance(value, Mapping) else {}
        draft.labels = {**own, **draft.labels, **(labels or {})}
        name = id or instance_of(value)
        if not name:
            raise RowFault("id", "the row has no name of its own; pass one")
        submitted = submission_of(value)
        source = {"format": found, **(source or {}), **({"submission": submitted} if submitted else {})}
        return draft.finish(name=name, workload=workload, source=source, also=notes, row=value)
    except RecursionError as error:
        raise RowFault(None, "is nested too deeply to be read") from error


def _own(value: Any) -> Rollout:
    said = Notes()
    found = parse_rollout(Path(), 0, jsonable(dict(value), said.add)) if isinstance(value, Mapping) else None
    if isinstance(found, Rollout):
        return found.model_copy(update={"notes": (*found.notes, *said.lines())}) if said.lines() else found
    if isinstance(found, BadLine):
        raise RowFault(found.field, found.reason)
    raise RowFault(None, f"expected a rollout object, found {type(value).__name__}")
