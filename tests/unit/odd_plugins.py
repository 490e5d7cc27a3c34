"""Drafters and workloads that misbehave on purpose, named on the command line as "odd_plugins:NAME"."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from localmodel import session
from torch import nn

from agentbench_spec.drafting import ConfigError, DrafterSpec, SequenceDrafter, TargetInfo
from agentbench_spec.rollout import Message, Rollout, TokenCounter

HOLD_FILE, HOLD_LINES = "ODD_HOLD_FILE", "ODD_HOLD_LINES"
"""Environment of `hold`: it stops for good once the file has that many lines."""
INTERRUPT_FILE = "ODD_INTERRUPT_FILE"
"""Environment of `interrupt`: it presses Ctrl-C once the file has a line."""


class Repeat(SequenceDrafter):
    """Guesses the anchor again, as often as the checkpoint says; runs `before` at each call."""

    def __init__(self, name: str, checkpoint: str = "", max_positions: int | None = None) -> None:
        self.spec = DrafterSpec(name=name, max_positions=max_positions)
        self.most = int(checkpoint or 100)

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        self.target = target
        super().open(target, rows=rows, capacity=capacity)

    def before(self) -> None:
        """Nothing."""

    def propose_one(self, row: int, text: Sequence[int], k: int) -> list[int]:
        self.before()
        return [text[-1]] * min(k, self.most)


class Hold(Repeat):
    def before(self) -> None:
        file = os.environ.get(HOLD_FILE)
        if file and Path(file).exists() and Path(file).read_bytes().count(b"\n") >= int(os.environ[HOLD_LINES]):
            time.sleep(600)


class Interrupt(Repeat):
    def before(self) -> None:
        file = os.environ.get(INTERRUPT_FILE)
        if file and Path(file).exists() and Path(file).stat().st_size:
            signal.raise_signal(signal.SIGINT)


class Vandal(Repeat):
    """Does what TargetInfo forbids: turns the target's head upside down, so that its choices are no longer its own."""

    def before(self) -> None:
        self.target.lm_head.weight.neg_()


class Broken(Repeat):
    def before(self) -> None:
        raise RuntimeError("this drafter [never] works")


class Netted(Repeat):
    """Has two networks and offers them to the engine; counts how often it was asked."""

    asked = 0

    def networks(self) -> Sequence[nn.Module]:
        Netted.asked += 1
        return nn.Linear(16, 48), nn.Sequential(nn.Linear(16, 24))


class Misfit(Repeat):
    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        raise ConfigError("made for another hidden size")


def misfit() -> SequenceDrafter:
    return Misfit("misfit")


def netted() -> SequenceDrafter:
    return Netted("netted")


def repeat(checkpoint: str = "") -> SequenceDrafter:
    return Repeat("repeat", checkpoint)


def hold() -> SequenceDrafter:
    return Hold("hold")


def interrupt() -> SequenceDrafter:
    return Interrupt("interrupt")


def vandal() -> SequenceDrafter:
    return Vandal("vandal")


def broken() -> SequenceDrafter:
    return Broken("broken")


class Quits(Repeat):
    """Ends the process from a call of the loop, as a library's argument parser would: with the code of success."""

    def before(self) -> None:
        sys.exit(0)


class QuitsAtOnce(Repeat):
    def observe(self, span: object) -> None:
        sys.exit(0)


class Counting(Repeat):
    """Counts how often it was asked for guesses."""

    asked = 0

    def before(self) -> None:
        Counting.asked += 1


class ShortSighted(Repeat):
    """Fails on any text of more than 300 tokens."""

    def propose_one(self, row: int, text: Sequence[int], k: int) -> list[int]:
        if len(text) > 300:
            raise RuntimeError("too long for me")
        return super().propose_one(row, text, k)


class Hoarder(Repeat):
    """Says that it keeps more than any machine has."""

    kept_bytes = 10**15

    def state_bytes(self, row: int) -> int:
        return self.kept_bytes


class MisfitForTwo(Repeat):
    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        if rows > 1:
            raise ConfigError("two rows are too many")
        super().open(target, rows=rows, capacity=capacity)


class NoOpening(Repeat):
    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        raise RuntimeError("no room [at all]")


def quits() -> SequenceDrafter:
    return Quits("quits")


def quits_at_once() -> SequenceDrafter:
    return QuitsAtOnce("quits_at_once")


def counting() -> SequenceDrafter:
    return Counting("counting")


def short_sighted() -> SequenceDrafter:
    return ShortSighted("short_sighted")


def hoarder() -> SequenceDrafter:
    return Hoarder("hoarder")


def misfit_for_two() -> SequenceDrafter:
    return MisfitForTwo("misfit_for_two")


def no_opening() -> SequenceDrafter:
    return NoOpening("no_opening")


def no_making() -> SequenceDrafter:
    return Repeat("no_making", checkpoint="not a number")


def quits_when_made() -> SequenceDrafter:
    sys.exit(0)


def short() -> SequenceDrafter:
    return Repeat("short", max_positions=330)


class Listed:
    """A workload of the rollouts given."""

    name = "listed"

    def __init__(self, *rollouts: object) -> None:
        self._rollouts = rollouts

    def rollouts(self, *, limit: int | None = None, seed: int = 0) -> Iterable[object]:
        return list(self._rollouts[:limit])


def with_empty() -> Listed:
    nothing = Rollout(id="nothing", workload="listed", messages=(Message(role="user", content="Hello?"),))
    return Listed(nothing, session("a", 1))


def only_empty() -> Listed:
    return Listed(Rollout(id="nothing", workload="listed", messages=(Message(role="user", content="Hello?"),)))


def counts_tokens(tokenizer: TokenCounter | None = None) -> Listed:
    """Counts the tokens of whatever target it is made for."""
    if tokenizer is None:
        raise ConfigError("tokenizer: whose tokens?")
    return Listed(session("a", 1, labels={"counted_with": tokenizer.source}))


def labels_an_object() -> Listed:
    """Its rollout holds what no JSON can."""
    return Listed(session("a", 1, labels={"made_by": object()}))


def twice() -> Listed:
    return Listed(session("a"), session("a"))


def not_rollouts() -> Listed:
    return Listed({"id": "a"})


def none_at_all() -> Listed:
    return Listed()


class Unreadable(Listed):
    """A workload whose reading fails after the first rollout."""

    def __init__(self, quit_: bool) -> None:
        super().__init__()
        self._quit = quit_

    def rollouts(self, *, limit: int | None = None, seed: int = 0) -> Iterable[object]:
        yield session("a", 1)
        if self._quit:
            sys.exit(0)
        raise KeyError("no such column")


def fails_reading() -> Listed:
    return Unreadable(False)


def quits_reading() -> Listed:
    return Unreadable(True)
