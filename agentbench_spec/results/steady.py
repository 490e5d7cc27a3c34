"""Seconds of decoding as a quiet machine would have had them.

Tokens and rounds of a turn are exact whatever else the machine does; only the time of a round can be hit, and it is
then far above that of its like. Such a round takes the time of its like, so that its turn keeps its weight. Chosen by
benchmarks/robust_headline.py; defined in docs/metrics.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median, median_low
from typing import Any, NamedTuple

import numpy as np

from agentbench_spec.results.rows import TurnRow

FAR_ABOVE = 2.0
"""Times what its like take from which on a round was stalled."""
_FAR_ABOVE_UNTIMED = 5.0
"""As `FAR_ABOVE`, where rounds were not timed: the mean round of a turn varies with what its rounds were."""
_FAR_ABOVE_PREFILL = 4.0
"""As `FAR_ABOVE`, of prefills: as many tokens take longer behind a long text than behind a short one."""
_FEWEST = 5
"""Turns from which on a line can be told from a stall."""
_MOST = 400
"""Turns a line is laid through, evenly spread; more add nothing."""


def steady_decode_s(rows: Sequence[TurnRow], *, far_above: float = FAR_ABOVE) -> list[float | None]:
    """Decode seconds of each row with stalled rounds at the time of their like; None where nothing was timed.

    rows: turns of one drafter. What a round should take grows with the drafts it verifies, as it does within turns, and
    with the context, along a line through the turns; of fewer than five turns, each is compared with itself. Where
    rounds were not timed, a turn's mean round stands for all. All rounds of a turn marked `disturbed` count as stalled.
    A server's seconds stay as they are: from outside, its stalls cannot be told from its queue.
    """
    judged = [i for i, row in enumerate(rows) if row.backend == "engine" and row.decode_s and _rounds(row)]
    steps = [_steps(rows[i]) for i in judged]
    found = [row.decode_s for row in rows]
    for i, turn, expected_s in zip(judged, steps, _expected_s([rows[i] for i in judged], steps), strict=True):
        limit = far_above if len(turn) > 1 or turn[0].rounds == 1 else max(far_above, _FAR_ABOVE_UNTIMED)
        pairs = list(zip(turn, expected_s, strict=True))
        stalled = [bool(rows[i].disturbed) or step.seconds > limit * e for step, e in pairs]
        if any(stalled):
            spent = (e if hit else step.seconds for (step, e), hit in zip(pairs, stalled, strict=True))
            found[i] = sum(step.rounds * s for step, s in zip(turn, spent, strict=True))
    return found


def _expected_s(rows: Sequence[TurnRow], turns: Sequence[Sequence[_Step]]) -> list[list[float]]:
    """What each step of each turn should take."""
    places, doubtful = [row.context_tokens or 0 for row in rows], [bool(row.disturbed) for row in rows]
    slope = _width_slope(turns, places, doubtful)
    plain = [median(step.seconds / (1 + slope * step.width) for step in turn) for turn in turns]
    like = _line(places, plain, doubtful)
    few = len(rows) < _FEWEST
    base = [own if few and not doubt else like(p) for p, own, doubt in zip(places, plain, doubtful, strict=True)]
    return [[b * (1 + slope * step.width) for step in turn] for b, turn in zip(base, turns, strict=True)]


def steadied(rows: Sequence[TurnRow]) -> list[TurnRow]:
    """The rows as a quiet machine would have timed them: steady `decode_s`, `prefill_s` and `draft_ingest_s`.

    Rows that nothing disturbed are the same objects. Prefill and ingest are compared with those of as many tokens.
    """
    changed: dict[int, dict[str, Any]] = defaultdict(dict)
    for own in _places_by_drafter(rows).values():
        for i, decode_s in zip(own, steady_decode_s([rows[i] for i in own]), strict=True):
            if decode_s != rows[i].decode_s:
                changed[i]["decode_s"] = decode_s
        for name in ("prefill_s", "draft_ingest_s"):
            timed = [i for i in own if rows[i].backend == "engine" and rows[i].new_tokens and getattr(rows[i], name)]
            tokens, spent_s = [float(rows[i].new_tokens or 0) for i in timed], [getattr(rows[i], name) for i in timed]
            like = _line(tokens, spent_s, [False] * len(timed))
            for j, s in enumerate(spent_s if len(timed) >= _FEWEST else ()):
                if s > _FAR_ABOVE_PREFILL * like(tokens[j]):
                    changed[timed[j]][name] = like(tokens[j])
    return [replace(row, **changed[i]) if i in changed else row for i, row in enumerate(rows)]


def _places_by_drafter(rows: Sequence[TurnRow]) -> dict[tuple[str, str], list[int]]:
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        places[row.workload, row.drafter].append(i)
    return places


def _rounds(row: TurnRow) -> int:
    return row.rounds or row.emitted or 0


class _Step(NamedTuple):
    width: float
    """Drafts verified."""
    seconds: float
    """Of one such round."""
    rounds: int
    """Such rounds."""


def _steps(row: TurnRow) -> list[_Step]:
    widths = row.proposed_lengths or [0]
    if row.round_s and len(row.round_s) == len(widths):
        return [_Step(width, s, 1) for width, s in zip(widths, row.round_s, strict=True)]
    return [_Step(fmean(widths), (row.decode_s or 0.0) / _rounds(row), _rounds(row))]


def _width_slope(turns: Sequence[Sequence[_Step]], places: Sequence[float], doubtful: Sequence[bool]) -> float:
    """By what part of an empty round one draft prolongs a round.

    Taken within turns, where a stall hits all rounds alike; between turns of like contexts where rounds were not timed.
    """
    slopes = []
    for turn in turns:
        low, high = min(turn)[0], max(turn)[0]
        if low < high:
            short, long = (median(s for width, s, _ in turn if width == end) for end in (low, high))
            if room := max(high * short - low * long, 1e-9 * short):
                slopes.append((long - short) / room)
    if not slopes:
        steps = [median(s for _, s, _ in turn) for turn in turns]
        like = _line(places, steps, doubtful)
        widths = [fmean(width for width, *_ in turn) for turn in turns]
        start, rise = _straight(widths, [s / like(place) for s, place in zip(steps, places, strict=True)])
        slopes = [rise / start if start > 0 else 0.0]
    return max(median(slopes), 0.0)


def _line(places: Sequence[float], values: Sequence[float], doubtful: Sequence[bool]) -> Callable[[float], float]:
    """Place -> value on a straight line through the points, never below the lowest of them.

    doubtful [n]: points to be left out where others are left.
    """
    kept = [i for i, doubt in enumerate(doubtful) if not doubt] or range(len(values))
    start, slope = _straight([places[i] for i in kept], [values[i] for i in kept])
    lowest = min((values[i] for i in kept), default=0.0)
    return lambda place: max(start + slope * place, lowest)


def _straight(places: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """(start, slope) of the line that less than half of the points cannot move: repeated medians (Siegel, 1982).

    Of fewer than five points a line and a stall cannot be told apart: their lower median, without a slope.
    """
    if len(values) < _FEWEST:
        return (median_low(values) if values else 0.0), 0.0
    x, y = np.array([places, values])[:, np.argsort(places, kind="stable")]
    some = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MOST)).round().astype(int))
    x, y = x[some], y[some]
    apart = x[:, None] != x
    slopes = np.divide(y[:, None] - y, x[:, None] - x, out=np.full(apart.shape, np.nan), where=apart)
    known = slopes[apart.any(1)]
    slope = float(np.median(np.nanmedian(known, axis=1))) if len(known) else 0.0
    return float(np.median(y - slope * x)), slope
