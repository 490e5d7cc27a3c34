"""The bar of a replay: turns, because one rollout may take minutes and a bar of rollouts would look dead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from agentbench_spec.bars import Bar
from agentbench_spec.results.rows import TurnRow


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
        self._bar = Bar(
            total=sum(turns.values()),
            initial=sum(turns.get(rollout, 0) for rollout in done),
            unit="turn",
            disable=tell is not None,
        )
        self._tell = tell

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    @contextmanager
    def rollout(self, rollout: str) -> Iterator[None]:
        """Name the rollout at work; turns that it does not reach are counted off at its end."""
        self._done += 1
        self._turn, self._of = 0, self._turns[rollout]
        end = self._bar.n + self._of
        self._bar.set_description(f"rollout {self._done}/{len(self._turns)}")
        if self._tell:
            self._tell(f"rollout {self._done}/{len(self._turns)}: {self._of} turns")
        yield
        self._bar.update(end - self._bar.n)

    def doing(self, what: str) -> None:
        """Show what the turn at work is at: a turn on a slow machine takes minutes."""
        self._bar.set_postfix_str(f"turn {self._turn + 1}/{self._of}: {what}")

    def turn(self, rows: Sequence[TurnRow]) -> None:
        """One turn is measured: its rows."""
        row = rows[0]
        self._turn = row.turn + 1
        context = row.status if row.context_tokens is None else f"{row.context_tokens:,} tokens"
        self._bar.set_postfix_str(f"turn {self._turn}/{self._of}, {context}", refresh=False)
        self._bar.update()
