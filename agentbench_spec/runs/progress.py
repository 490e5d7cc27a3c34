"""The bar of a replay: turns and parts of them, because one rollout may take minutes and its bar would look dead.

A run of few turns, which somebody watches, also says a line about each: how fast every method was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from agentbench_spec.bars import Bar
from agentbench_spec.results.costs import turn_speedup
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow

_FEW_TURNS = 60
"""Turns of a run up to which each has a line."""


class Progress:
    """Counts turns over all rollouts of a run, those of an earlier process included."""

    def __init__(
        self,
        turns: Mapping[str, int],
        *,
        done: Collection[str] = (),
        tell: Callable[[str], None] | None = None,
    ) -> None:
        """turns: rollout id -> turns it has; done: rollouts that need no replay; tell: hears of each, without a bar."""
        self._turns, self._done = turns, len(done)
        self._turn, self._of = 0, 0
        self._over = sum(turns.get(rollout, 0) for rollout in done)
        self._bar = Bar(total=sum(turns.values()), initial=self._over, unit="turn", disable=tell is not None)
        self._tell = tell
        self._table: TurnTable | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    @property
    def done(self) -> float:
        """Turns that are over, and the part of the one at work that is."""
        return float(self._bar.n)

    @contextmanager
    def rollout(self, rollout: str) -> Iterator[None]:
        """Name the rollout at work; turns that it does not reach are counted off at its end."""
        self._done += 1
        self._turn, self._of = 0, self._turns[rollout]
        end = self._over + self._of
        self._bar.set_description(f"rollout {self._done}/{len(self._turns)}")
        if self._tell:
            self._tell(f"rollout {self._done}/{len(self._turns)}: {self._of} turns")
        yield
        self._over = end
        self._show(end)

    def doing(self, what: str, share: float) -> None:
        """Show what the turn at work is at, and which share of it is over: on a slow machine it takes minutes."""
        self._bar.set_postfix_str(f"turn {self._turn + 1}/{self._of}: {what}", refresh=False)
        self._show(self._over + share)

    def turn(self, rows: Sequence[TurnRow]) -> None:
        """One turn is measured: its rows."""
        row = rows[0]
        self._turn = row.turn + 1
        context = row.status if row.context_tokens is None else f"{row.context_tokens:,} tokens"
        self._over += 1
        self._bar.set_postfix_str(f"turn {self._turn}/{self._of}, {context}", refresh=False)
        self._show(self._over)
        if sum(self._turns.values()) <= _FEW_TURNS:
            if self._table is None:
                self._table = TurnTable([row.drafter for row in rows])
                self._bar.say(self._table.header)
            self._bar.say(self._table.line(self._over, rows))

    def _show(self, turns: float) -> None:
        self._bar.n = int(turns) if turns == int(turns) else round(turns, 1)
        self._bar.refresh()


class TurnTable:
    """A line a turn: number, context, milliseconds a token of plain decoding, and how many times as fast the others."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = [name for name in names if name != BASELINE]
        heads = ["turn", "context", f"{BASELINE} ms", *self._names]
        self._widths = [max(len(head), 7) for head in heads]
        self.header = self._set(heads)

    def line(self, number: int, rows: Sequence[TurnRow]) -> str:
        """The line of the turn of these rows; "-": not measured."""
        of = {row.drafter: row for row in rows}
        plain = of.get(BASELINE)
        plain_s = plain.decode_s if plain is not None and plain.emitted else None
        context = rows[0].context_tokens
        cells = [str(number), "-" if context is None else f"{context:,}"]
        cells.append("-" if plain is None or not plain_s else f"{1e3 * plain_s / (plain.emitted or 1):.1f}")
        speedups = [turn_speedup(plain, of[name]) if plain and name in of else None for name in self._names]
        return self._set([*cells, *("-" if faster is None else f"{faster:.2f}" for faster in speedups)])

    def _set(self, cells: Sequence[str]) -> str:
        return "  ".join(cell.rjust(width) for cell, width in zip(cells, self._widths, strict=True))
