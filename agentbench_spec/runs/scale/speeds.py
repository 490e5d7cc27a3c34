"""Seconds a token of each method takes, by context: measured by a run, or given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.changes import WHOLE, bucket_of, bucket_order
from agentbench_spec.results.costs import state_bytes_per_token
from agentbench_spec.results.folder import read_turns
from agentbench_spec.results.machines.store import reading, url_of
from agentbench_spec.results.metrics import by_drafter, counted
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.steady import steadied

PREFILL = "prefill"
"""Names the target's prompt tokens a second among given speeds."""


@dataclass(frozen=True, slots=True)
class MethodSpeed:
    """What one method takes on the machine that measured it."""

    s_per_token: Mapping[str, float]
    """Stretch of contexts -> seconds of decoding per token; `WHOLE`: over all."""
    ingest_s_per_token: float | None = None
    """Of a new prompt token, taken in by the drafter; None: not known."""
    state_bytes_per_token: float | None = None
    """Of a text token, kept by the drafter; None: not known."""

    def at(self, context: str) -> float:
        """Seconds per token in a stretch of contexts; where it was not measured, those of the nearest that was."""
        known = [name for name in self.s_per_token if name != WHOLE]
        if not known:
            return self.s_per_token[WHOLE]
        place = _octave(context)
        return self.s_per_token[min(known, key=lambda name: (abs(_octave(name) - place), _octave(name)))]


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds of a target and of methods on it."""

    source: str
    """Where they come from, in words."""
    prefill_s_per_token: float | None
    methods: Mapping[str, MethodSpeed] = field(default_factory=dict)


def read_speeds(text: str) -> Speeds:
    """The speeds in a run folder, or those written as "prefill=640,none=23.5,ngram=40" (tokens per second).

    Raises ConfigError for what is neither, or a speed that is no number above 0.
    """
    if "=" in text and url_of(text) is None and not Path(text).is_dir():
        return _given(text)
    manifest, rows = read_turns(reading(text), lenient=True)
    card = manifest.get("card") or {}
    where = f"{card.get('target') or 'the target'} on {card.get('device') or 'an unknown device'}"
    return speeds_of(rows, f"measured in {text} ({where})")


def speeds_of(rows: Sequence[TurnRow], source: str) -> Speeds:
    """The speeds that rows were measured at, stalled rounds at the time of their like."""
    steady = steadied(counted(rows, include_degenerate=True))
    methods = {name: found for name, own in by_drafter(steady).items() if (found := _method(own))}
    return Speeds(source, _ratio(next(iter(by_drafter(steady).values()), []), "prefill_s", "new_tokens"), methods)


def _method(rows: Sequence[TurnRow]) -> MethodSpeed | None:
    stretches: dict[str, list[TurnRow]] = {}
    for row in rows:
        for context in (WHOLE, bucket_of(row.context_tokens)):
            stretches.setdefault(context, []).append(row)
    spent = {context: _ratio(own, "decode_s", "emitted") for context, own in stretches.items()}
    known = {context: s for context, s in spent.items() if s is not None and context != "unknown"}
    if WHOLE not in known:
        return None
    return MethodSpeed(known, _ratio(rows, "draft_ingest_s", "new_tokens"), state_bytes_per_token(rows))


def _ratio(rows: Sequence[TurnRow], seconds: str, tokens: str) -> float | None:
    timed = [
        (s, n) for row in rows if (s := getattr(row, seconds)) is not None and (n := getattr(row, tokens)) is not None
    ]
    total = sum(n for _, n in timed)
    return sum(s for s, _ in timed) / total if total else None


def _given(text: str) -> Speeds:
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.rpartition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            found[name.strip()] = 0.0
        if not name.strip() or not 0 < found[name.strip()] < float("inf"):
            raise ConfigError(
                f"--speeds {part!r}: expected a run folder, or NAME=TOKENS_PER_SECOND with commas between, such as "
                f"{PREFILL}=640,none=23.5,ngram=40"
            )
    prefill = found.pop(PREFILL, None)
    methods = {name: MethodSpeed({WHOLE: 1 / speed}) for name, speed in found.items()}
    return Speeds("given", 1 / prefill if prefill else None, methods)


def _octave(context: str) -> int:
    return bucket_order(context).bit_length()
