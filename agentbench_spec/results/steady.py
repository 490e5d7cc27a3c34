"""Seconds of decoding as a quiet machine would have had them.

Tokens and rounds of a turn are exact whatever else the machine does; only the time of a round can be hit, and it is
then far above that of its like. Such a round takes the time of its like, so that its turn keeps its weight. Chosen by
benchmarks/robust_headline.py; defined in docs/metrics.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median, median_low
from typing import Any, NamedTuple, TypeVar

import numpy as np

from agentbench_spec.results.metrics import BASELINE, turn_of
from agentbench_spec.results.rows import TurnRow

_Key = TypeVar("_Key", bound=Hashable)

FAR_ABOVE = 2.0
"""Times what its like take from which on a round was stalled."""
_FAR_ABOVE_UNTIMED = 3.0
"""As `FAR_ABOVE`, where rounds were not timed: the mean round of a turn varies with what its rounds were."""
_FAR_ABOVE_PREFILL = 4.0
"""As `FAR_ABOVE`, of prefills: as many tokens take longer behind a long text than behind a short one."""
_FAR_ABOVE_IN_STALL = 1.25
"""As `FAR_ABOVE`, in a turn that was too slow for all: each of them may have been by a factor of its own."""
_FEWEST = 5
"""Turns from which on a line can be told from a stall."""
_MOST = 400
"""Turns a line is laid through, evenly spread; more add nothing."""


def steady_decode_s(rows: Sequence[TurnRow], *, far_above: float = FAR_ABOVE) -> list[float | None]:
    """Decode seconds of each row with stalled rounds at the time of their like; None where nothing was timed.

    rows: turns, of one drafter or several. What a round should take is the level of its turn, which all its drafters
    share, times what its drafter takes of it at that context, more for more drafts. A level far above those of other
    turns is scaled down for all. So a machine that is slower for a while changes no ratio, and a stall of one drafter
    neither. Where rounds were not timed, a turn's mean round stands for all. All rounds of a row marked `disturbed`
    count as stalled, unless a few of them stand out. Seconds stay as they are where neither rounds nor a server's
    chunks are known, and of a server that had several rollouts in flight: its stalls cannot be told from what it did
    for the others.
    """
    found = [row.decode_s for row in rows]
    judged = [i for i, row in enumerate(rows) if _alone(row) and row.decode_s and _rounds(row)]
    steps = {i: _steps(rows[i]) for i in judged}
    slopes = {
        name: _width_slope([steps[i] for i in own], [_place(rows[i]) for i in own], [_doubtful(rows[i]) for i in own])
        for name, own in _by(judged, lambda i: rows[i].drafter).items()
    }
    plain = {i: median(s / (1 + slopes[rows[i].drafter] * w) for w, s, _ in steps[i]) for i in judged}
    shares = _shares(rows, plain)
    levels, scales = _levels(rows, plain, shares, far_above)
    for i in judged:
        limit = far_above if len(steps[i]) > 1 or steps[i][0].rounds == 1 else max(far_above, _FAR_ABOVE_UNTIMED)
        turn, row, doubtful = turn_of(rows[i]), rows[i], _doubtful(rows[i])
        limit = limit if scales[turn] == 1 else _FAR_ABOVE_IN_STALL
        base = levels[turn] * shares[i]
        spent = []
        for step in steps[i]:
            expected = base * (1 + slopes[row.drafter] * step.width)
            spent.append(expected if doubtful or step.seconds > limit * expected else step.seconds)
        if scales[turn] != 1 or any(s != step.seconds for s, step in zip(spent, steps[i], strict=True)):
            found[i] = scales[turn] * sum(s * step.rounds for s, step in zip(spent, steps[i], strict=True))
    return found


def _shares(rows: Sequence[TurnRow], plain: Mapping[int, float]) -> dict[int, float]:
    """Row -> what its drafter's empty round takes of the first drafter's in the same turn: a line in the context.

    Of fewer than five shared turns a line and a stall cannot be told apart: then each turn has its own.
    """
    first = BASELINE if any(rows[i].drafter == BASELINE for i in plain) else next((rows[i].drafter for i in plain), "")
    firsts = {turn_of(rows[i]): i for i in plain if rows[i].drafter == first}
    shares = {i: 1.0 for i in plain if rows[i].drafter == first}
    for name, own in _by(plain, lambda i: rows[i].drafter).items():
        if name == first:
            continue
        both = {i: firsts[turn_of(rows[i])] for i in own if turn_of(rows[i]) in firsts}
        ratios = [plain[i] / plain[j] for i, j in both.items()]
        doubtful = [_doubtful(rows[i]) or _doubtful(rows[j]) for i, j in both.items()]
        like = _line([_place(rows[i]) for i in both], ratios, doubtful)
        exact = dict(zip(both, ratios, strict=True)) if len(both) < _FEWEST and not any(doubtful) else {}
        shares |= {i: exact.get(i) or like(_place(rows[i])) or 1.0 for i in own}
    return shares


def _levels(
    rows: Sequence[TurnRow], plain: Mapping[int, float], shares: Mapping[int, float], far_above: float
) -> tuple[dict[_Turn, float], dict[_Turn, float]]:
    """Turn -> seconds of the first drafter's empty round, and the factor by which the whole turn was too slow."""
    turns = _by(plain, lambda i: turn_of(rows[i]))
    quiet = {turn: [i for i in own if not _doubtful(rows[i])] for turn, own in turns.items()}
    levels = {turn: median_low([plain[i] / shares[i] for i in quiet[turn] or own]) for turn, own in turns.items()}
    places = {turn: _place(rows[own[0]]) for turn, own in turns.items()}
    like = _line([places[t] for t in levels], list(levels.values()), [not quiet[t] for t in levels])
    timed = any(rows[i].round_s for i in plain)
    limit = far_above if timed else max(far_above, _FAR_ABOVE_UNTIMED)
    few = len(levels) < _FEWEST
    usual = {turn: level if few and quiet[turn] else like(places[turn]) for turn, level in levels.items()}
    far = {turn: level > limit * usual[turn] or not quiet[turn] for turn, level in levels.items()}
    return levels, {turn: usual[turn] / level if far[turn] else 1.0 for turn, level in levels.items()}


def _place(row: TurnRow) -> float:
    return float(row.context_tokens or 0)


def steadied(rows: Sequence[TurnRow]) -> list[TurnRow]:
    """The rows as a quiet machine would have timed them: steady `decode_s`, `prefill_s`, `draft_ingest_s`, `ttft_s`.

    Rows that nothing disturbed are the same objects. All but decoding is compared with that of as many tokens. Turns of
    another machine are not alike: each machine is a block of its own.
    """
    changed: dict[int, dict[str, Any]] = defaultdict(dict)
    for kin in _by(range(len(rows)), lambda i: (rows[i].workload, rows[i].machine)).values():
        for i, decode_s in zip(kin, steady_decode_s([rows[i] for i in kin]), strict=True):
            if decode_s != rows[i].decode_s:
                changed[i]["decode_s"] = decode_s
    for own in _by(range(len(rows)), lambda i: (rows[i].workload, rows[i].machine, rows[i].drafter)).values():
        for name in ("prefill_s", "draft_ingest_s", "ttft_s"):
            timed = [i for i in own if _alone(rows[i]) and rows[i].new_tokens and getattr(rows[i], name)]
            tokens, spent_s = [float(rows[i].new_tokens or 0) for i in timed], [getattr(rows[i], name) for i in timed]
            like = _line(tokens, spent_s, [False] * len(timed))
            for j, s in enumerate(spent_s if len(timed) >= _FEWEST else ()):
                if s > _FAR_ABOVE_PREFILL * like(tokens[j]):
                    changed[timed[j]][name] = like(tokens[j])
    return [replace(row, **changed[i]) if i in changed else row for i, row in enumerate(rows)]


_Turn = tuple[str, str, int]


def _by(places: Iterable[int], key: Callable[[int], _Key]) -> dict[_Key, list[int]]:
    groups: dict[_Key, list[int]] = defaultdict(list)
    for i in places:
        groups[key(i)].append(i)
    return groups


def _doubtful(row: TurnRow) -> bool:
    """True if something disturbed the row, and not just a few of its rounds, which can be told from the others."""
    few = row.round_s is not None and 0 < 3 * (row.slow_rounds or 0) < len(row.round_s)
    return bool(row.disturbed) and not few


def _alone(row: TurnRow) -> bool:
    """False if others were served at the same time."""
    return row.backend == "engine" or row.concurrency == 1


def _rounds(row: TurnRow) -> int:
    return row.rounds or len(row.chunk_gaps_s or ())  # a server sends a chunk a round


class _Step(NamedTuple):
    width: float
    """Drafts verified."""
    seconds: float
    """Of one such round."""
    rounds: int
    """Such rounds."""


def _steps(row: TurnRow) -> list[_Step]:
    widths = row.proposed_lengths or [0] * _rounds(row)
    seconds = row.round_s or row.chunk_gaps_s or ()
    if len(seconds) == len(widths):
        return [_Step(width, s, 1) for width, s in zip(widths, seconds, strict=True)]
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
