"""What sessions submitted, as the predictions file that the package `swebench` grades: instance, model and diff."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from agentbench_spec.errors import ConfigError, ContractError
from agentbench_spec.jsonl import write_json_lines
from agentbench_spec.rollout import Rollout
from agentbench_spec.writing import write_bytes

__all__ = ["Prediction", "Predictions", "predictions_of", "read_by_swebench", "write_predictions"]

SUFFIXES = (".jsonl", ".json")
"""What the package's loader reads."""
_INSTANCE = re.compile(r"[A-Za-z0-9][\w.-]*?__[\w.-]+?-\d+(?![\w-])")
_DIFF = re.compile(r"^(?:diff --git |--- \S.*\n\+\+\+ \S)", re.MULTILINE)
_MARKED = re.compile(r"<<SWE_AGENT_SUBMISSION>>\n?(.*?)<<SWE_AGENT_SUBMISSION>>", re.DOTALL)
"""How the tool `submit` of SWE-agent prints what it hands in."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One line of the file, in the package's own words."""

    instance_id: str
    model_name_or_path: str
    model_patch: str


@dataclass(slots=True)
class Predictions:
    """What can be graded, and what cannot."""

    found: list[Prediction] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """(instance, or session that names none; why)."""


def predictions_of(rollouts: Iterable[Rollout], model: str | None = None) -> Predictions:
    """The submitted diff of each instance, as it was submitted; model: its name, None: as each session says.

    An instance is graded once: its first session counts, with a diff or without. Raises ConfigError for a session with
    a diff that says no model.
    """
    made, first = Predictions(), dict[str, str]()
    for rollout in rollouts:
        instance = _instance_of(rollout)
        if instance is None:
            made.left_out.append((rollout.id, "the session names no instance"))
        elif instance in first:
            made.left_out.append((instance, f"{rollout.id} is a further session; the first, {first[instance]}, counts"))
        else:
            first[instance] = rollout.id
            diff = _submission_of(rollout)
            if diff is None:
                made.left_out.append((instance, "the session submitted nothing"))
            elif not _DIFF.search(diff):
                made.left_out.append((instance, f"what was submitted is no diff: {diff.strip()[:40]!r}"))
            else:
                made.found.append(Prediction(instance, model or _model_of(rollout), diff))
    return made


def _instance_of(rollout: Rollout) -> str | None:
    """What labels or source call it; else the one instance that the session's id names."""
    for facts in (rollout.labels, rollout.source):
        if isinstance(named := facts.get("instance_id"), str) and named:
            return named
    named_in_id = set(_INSTANCE.findall(rollout.id))
    return named_in_id.pop() if len(named_in_id) == 1 else None


def _submission_of(rollout: Rollout) -> str | None:
    kept = rollout.source.get("submission")
    if isinstance(kept, str) and kept.strip():
        return kept
    results = (message.content for message in reversed(rollout.messages) if message.role in ("tool", "user"))
    return next((found[1] for text in results if (found := _MARKED.search(text))), None)


def _model_of(rollout: Rollout) -> str:
    live = rollout.source.get("live")
    named = live.get("target") if isinstance(live, dict) else None
    named = named or rollout.labels.get("model") or rollout.labels.get("model_name")
    if not named:
        raise ConfigError(f"session {rollout.id!r} does not say which model it is of; give --model NAME")
    return str(named)


def write_predictions(path: Path, predictions: Iterable[Prediction]) -> None:
    """Write the file, JSON lines or one JSON list by its name. Raises ConfigError for a name that swebench refuses."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--out {path}: name it {' or '.join(SUFFIXES)}, or swebench does not read it")
    lines = [asdict(prediction) for prediction in predictions]
    if path.suffix == ".jsonl":
        write_json_lines(path, lines)
    else:
        write_bytes(path, (json.dumps(lines, ensure_ascii=False, indent=1) + "\n").encode())


Load = Callable[[str, str, str], list[dict[str, Any]]]
"""swebench's `get_predictions_from_file`: (path, data set, split) -> predictions."""


def read_by_swebench(path: Path, predictions: Iterable[Prediction], load: Load | None = None) -> str | None:
    """Have the package's own loader read the file; returns why it was not asked, None if it was.

    load: None for the installed one. Raises ContractError if it reads anything but `predictions`.
    """
    if load is None:
        try:
            load = import_module("swebench.harness.utils").get_predictions_from_file
        except Exception as error:  # the harness imports docker and modal, each with conditions of its own
            return f"{error}; pip install swebench==5.0.2, with what it depends on"
    try:
        read: Any = load(str(path), "", "")
    except (OSError, ValueError) as error:
        raise ContractError(f"{path}: swebench refuses the file: {error}") from error
    if read != [asdict(prediction) for prediction in predictions]:
        raise ContractError(f"{path}: swebench reads something else in it than was written")
    return None
