"""The diff that a recorded session submitted, wherever its format keeps it; rollouts have it in `source`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["submission_of"]

_PLACES = (
    *("info.submission", "test_result.git_patch"),  # SWE-agent and mini-swe-agent; OpenHands
    *("submission", "model_patch", "generated_patch", "patch"),  # columns of published sets
)
_OF_AN_INSTANCE = ("test_patch", "base_commit", "problem_statement", "FAIL_TO_PASS")
"""Columns of a SWE-bench instance: the `patch` beside one of them is its solution, and was submitted by nobody."""


def submission_of(value: Any) -> str | None:
    """What the session in a row submitted, as recorded; None: nothing, or its format does not tell."""
    if not isinstance(value, Mapping):
        return _closing(value)
    texts = (_at(value, place) for place in _PLACES if place != "patch" or value.keys().isdisjoint(_OF_AN_INSTANCE))
    found = next((text for text in texts if isinstance(text, str) and text.strip()), None)
    return found or _closing(value.get("messages"))


def _at(value: Any, place: str) -> Any:
    for key in place.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _closing(messages: Any) -> str | None:
    """What a closing message of role `exit` holds (mini-swe-agent 2)."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    if not isinstance(last, Mapping) or last.get("role") != "exit":
        return None
    found = _at(last, "extra.submission")
    return found if isinstance(found, str) and found.strip() else None
