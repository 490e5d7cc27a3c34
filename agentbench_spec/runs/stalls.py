"""Which decodings something else disturbed: their rounds stand far above what such rounds took in the run so far."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from statistics import median, median_low

import torch

from agentbench_spec.runs.fill import Decoded

_FAR_ABOVE = 4.0
"""Times the median of its kind from which on a round is a stall, and not one of many sizes."""
_SHARE = 0.2
"""Part of a turn's other time that stalls may take before the turn is disturbed."""
_LEAST_S = 0.01
"""Stalls that take less are the machine's own jitter."""
_WAITING = 0.25
"""Part of a turn that threads may wait for cores before it is disturbed, where nothing is known to compare it with."""
_KNOWN, _REMEMBERED = 3, 15
"""Turns from which on a kind is known, and turns of it that are remembered."""
_FEW = 5
"""Rounds of one kind from which on a turn has a median of its own."""


class Stalls:
    """Judges the decodings of a turn, all drafters together, by those of the turns before."""

    def __init__(self) -> None:
        self._known_s: dict[tuple[str, int], deque[float]] = defaultdict(lambda: deque(maxlen=_REMEMBERED))

    def judge(self, attempt: Mapping[str, Decoded]) -> None:
        """Fill in `slow_rounds`, `lost_s` and `disturbed` of each drafter's decoding.

        Where all drafters are slower than before it is the context, or something that hit them alike: only what is
        slow against the others counts.
        """
        usual = {name: self._usual(name, decoded) for name, decoded in attempt.items()}
        ratios = [
            median(s / usual[name][width] for width, s in rounds)
            for name, decoded in attempt.items()
            if (rounds := [(width, s) for width, s in _rounds(decoded) if width in usual[name]])
        ]
        level = max(median_low(ratios), 1.0) if ratios else 1.0
        for name, decoded in attempt.items():
            like = {width: level * s for width, s in usual[name].items()}
            own = {width: median(of_it) for width, of_it in _by_width(decoded).items() if len(of_it) >= _FEW}
            excess = [s - e for width, s in _rounds(decoded) if s > _FAR_ABOVE * (e := (own | like).get(width, s))]
            decoded.slow_rounds, decoded.lost_s = len(excess), sum(excess)
            rest_s = sum(s for _, s in _rounds(decoded)) - decoded.lost_s
            decoded.disturbed = decoded.lost_s > max(_LEAST_S, _SHARE * rest_s) or (not like and _waited(decoded))

    def learn(self, attempt: Mapping[str, Decoded]) -> None:
        """Remember what the rounds of a turn took."""
        for name, decoded in attempt.items():
            for width, seconds in _by_width(decoded).items():
                self._known_s[name, width].append(median(seconds))

    def _usual(self, name: str, decoded: Decoded) -> dict[int, float]:
        widths = {width for width, _ in _rounds(decoded)}
        return {w: median(known) for w in widths if len(known := self._known_s[name, w]) >= _KNOWN}


def _rounds(decoded: Decoded) -> list[tuple[int, float]]:
    seconds = decoded.wall.round_s if decoded.wall else []
    return [(done.proposed, s) for done, s in zip(decoded.turn.rounds, seconds, strict=True) if s] if seconds else []


def _by_width(decoded: Decoded) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for width, s in _rounds(decoded):
        found[width].append(s)
    return found


def _waited(decoded: Decoded) -> bool:
    waiting_s: float | None = decoded.noise.get("waiting_s")
    if waiting_s is None or decoded.wall is None:
        return False
    return waiting_s > max(_LEAST_S, _WAITING * torch.get_num_threads() * decoded.wall.total_s)
