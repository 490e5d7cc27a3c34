"""One engine row over the turns of a rollout: a text that grows, one prefill per turn, any number of decoders on it.

Works on token ids only. Between turns the target keeps every position whose token, and whose following token, the new
prompt repeats; only the rest is run again. Each drafter observes exactly what the target ran.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.loop import Turn, decode
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import RowSampler
from agentbench_spec.engine.spans import Numbers, host_span, sent, span_of, stays_on_host
from agentbench_spec.engine.target import EMBEDDING, Target
from agentbench_spec.engine.timing import Clock, Stopwatch, Times
from agentbench_spec.engine.verify import sound
from agentbench_spec.errors import ConfigError, MeasurementError, NotFinite, caught
from agentbench_spec.rollouts.render import common_prefix

Choose = Callable[[Tensor], int | Tensor]
"""Logits [V] -> the token that follows."""


@dataclass(slots=True)
class Prefill:
    """What bringing the row to the end of a turn's prompt took."""

    context_tokens: int
    new_tokens: int
    reused_tokens: int
    anchor: int
    """First token of the turn, chosen from the prompt's last logits; shared by all decoders."""
    prefill_s: float = 0.0
    ingest_s: dict[str, float] = field(default_factory=dict)
    """Seconds each drafter's observe of the new positions took, and of what it had to be shown again."""


class Session:
    """The text of one engine row, and the state that target and drafters hold of it."""

    def __init__(self, target: Target, drafters: Mapping[str, Drafter], *, row: int = 0, chunk_tokens: int = 512):
        """Start on an empty text. The drafters must be open; several sessions may share them, one row each.

        One drafter may stand under several names, to be decoded with in several ways: it is shown everything once.
        Raises ConfigError if a drafter wants states of layers that the target does not have.
        """
        for name, drafter in drafters.items():
            _check_layers(name, drafter, target)
        self._target, self._row, self._chunk_tokens = target, row, chunk_tokens
        self._drafters = dict(drafters)
        self.failed: dict[str, Exception] = {}
        """Drafters that raised, and what; they take no further part."""
        self._text: list[int] = []
        self.reset()

    @torch.inference_mode()
    def reset(self) -> None:
        """Forget everything: the next prefill is cold."""
        self._text = []
        self._cut(0)

    @property
    def taking_part(self) -> list[str]:
        """Names of the drafters that are still in, in the order given."""
        return list(self._drafters)

    def drop(self, name: str, why: Exception | SystemExit) -> None:
        """Take a drafter out for the rest of this session, under all its names."""
        for own in self._sharing(name):
            self.failed[own] = caught(why)
            del self._drafters[own]

    @torch.inference_mode()
    def prefill(self, prompt: Sequence[int], choose: Choose) -> Prefill:
        """Bring the row to the end of `prompt`, running only what earlier turns left undone.

        choose: last logits [V] -> the anchor, best as a tensor [], which is read back with the check of the logits.
        Raises MeasurementError on an empty prompt, NotFinite if the last logits are not.
        """
        if not prompt:
            raise MeasurementError("a turn needs at least one prompt token")
        # the last common position is run again: for its logits, or since a drafter learns it with the token after it
        kept = max(common_prefix(self._text, prompt) - 1, 0)
        done = Prefill(len(prompt), len(prompt) - kept, kept, anchor=-1, ingest_s=dict.fromkeys(self._drafters, 0.0))
        self._text = list(prompt[:kept])  # what stands if anything below fails
        for name, start in self._cut(kept, done.ingest_s).items():
            self._show_again(name, prompt, start, kept, done)
        for start in range(kept, len(prompt), self._chunk_tokens):
            self._run_chunk(prompt, start, min(start + self._chunk_tokens, len(prompt)), choose, done, self.taking_part)
        self._text = [*prompt, done.anchor]
        return done

    @torch.inference_mode()
    def decode(
        self,
        name: str,
        limits: Limits,
        sampler: RowSampler,
        clock: Clock,
        reference: Sequence[int] | None = None,
        heard: Callable[[Turn], None] = lambda turn: None,
    ) -> tuple[Turn, Times, int]:
        """Decode one turn with one drafter from the state the last prefill left, and put that state back.

        heard: gets the turn after every round; what it raises ends the turn, and the next prefill takes the rest back.
        What a drafter must be shown again after a turn longer than it can take back is in nobody's times.
        Returns the finished turn, its times, and the drafter's state in bytes at the turn's end.
        """
        position = len(self._text) - 1
        turn = Turn(position=position, output=[self._text[-1]], reference=reference)
        drafter = self._drafters[name]
        turns: list[Turn | None] = [None] * self._target.rows
        turns[self._row] = turn
        try:
            clock.begin()
            decode(self._target, drafter, turns, limits, sampler, clock, lambda: heard(turn))
            times = clock.end()
            state_bytes = drafter.state_bytes(self._row)
            again = drafter.truncate(self._row, position)
        except NotFinite:
            drafter.truncate(self._row, position)  # no fault of its own: it goes on with the next turn
            raise
        finally:
            self._target.truncate(self._row, position)
        if again is not None:
            nobody_s = dict.fromkeys(self._drafters, 0.0)
            self._show_again(name, self._text, again, position, Prefill(0, 0, 0, anchor=-1, ingest_s=nobody_s))
        return turn, times, state_bytes

    def _show_again(self, name: str, text: Sequence[int], start: int, end: int, done: Prefill) -> None:
        """Run positions start .. end - 1 of `text` once more for one drafter, at its own expense."""
        others_s = done.prefill_s
        for first in range(max(start, 0), end, self._chunk_tokens):
            self._run_chunk(text, first, min(first + self._chunk_tokens, end), None, done, [name])
        for own in self._sharing(name):
            done.ingest_s[own] += done.prefill_s - others_s
        done.prefill_s = others_s

    def _run_chunk(
        self, prompt: Sequence[int], start: int, end: int, choose: Choose | None, done: Prefill, names: Sequence[str]
    ) -> None:
        """Run positions start .. end - 1 and show them to some drafters; choose: the anchor, where the prompt ends."""
        target = self._target
        fed = prompt[start:end]
        device = target.info.device
        shown = self._distinct(names)
        wanted = {layer for drafter in shown.values() for layer in drafter.spec.hidden_layers}
        with Stopwatch(device) as watch:
            # the text with the token after it, which is not known yet where the prompt ends
            text, *there = sent([[*fed, *(prompt[end : end + 1] or (0,))], [self._row], [start], [len(fed)]], device)
            row, at, count = map(Numbers, ([self._row], [start], [len(fed)]), there)
            evaluated = target.evaluate(self._row, at, text[None, :-1], keep=1, taps=wanted)
            target.commit(self._row, end)
            if choose is not None and end == len(prompt):
                choice = torch.as_tensor(choose(evaluated.logits[0, -1]), device=device)
                done.anchor, finite = torch.stack([choice, sound(evaluated.logits[:, -1:])[0]]).tolist()
                if not finite:
                    raise target.not_finite(self._row, done.reused_tokens, end - 1)
                text[-1] = choice
        done.prefill_s += watch.seconds
        after = [*fed[1:], prompt[end] if end < len(prompt) else done.anchor]
        for name, drafter in shown.items():
            with self._ingesting(name, done.ingest_s):
                if stays_on_host(drafter, device):
                    span = host_span(row, at, count, [fed], [after])
                else:
                    span = span_of(drafter, row, at, count, text[None, :-1], text[None, 1:], evaluated, [fed])
                drafter.observe(span)

    def _cut(self, length: int, ingest_s: dict[str, float] | None = None) -> dict[str, int]:
        """Cut the row everywhere; returns from where to show it again to those drafters that cannot go back so far."""
        self._target.truncate(self._row, length)
        again = {}
        for name, drafter in self._distinct(self._drafters).items():
            with self._ingesting(name, dict.fromkeys(self._drafters, 0.0) if ingest_s is None else ingest_s):
                start = drafter.truncate(self._row, length)
                if start is not None:
                    again[name] = int(start)
        return again

    def _sharing(self, name: str) -> list[str]:
        """The names under which the drafter of this one takes part; none if it is out."""
        return [own for own, drafter in self._drafters.items() if drafter is self._drafters.get(name)]

    def _distinct(self, names: Iterable[str]) -> dict[str, Drafter]:
        """The drafters of these names that take part, each once, under the first of its names."""
        first: dict[int, str] = {}
        for name in names:
            if name in self._drafters:
                first.setdefault(id(self._drafters[name]), name)
        return {name: self._drafters[name] for name in first.values()}

    def _ingesting(self, name: str, ingest_s: dict[str, float]) -> _Ingesting:
        return _Ingesting(self, name, ingest_s, self._target.info.device)


def _check_layers(name: str, drafter: Drafter, target: Target) -> None:
    last = target.info.num_layers - 1
    for layer in drafter.spec.hidden_layers:
        if not EMBEDDING <= layer <= last:
            raise ConfigError(
                f"drafter {name!r} wants the states of layer {layer}; target {target.info.name!r} has layers "
                f"0..{last}, and {EMBEDDING} for its embedding"
            )


class _Ingesting(Stopwatch):
    """Times a drafter's upkeep, and takes the drafter out if it raises: its fault is not the others'."""

    def __init__(self, session: Session, name: str, ingest_s: dict[str, float], device: torch.device):
        super().__init__(device)
        self._session, self._name, self._ingest_s = session, name, ingest_s

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool | None:
        super().__exit__(kind, error, trace)
        for own in self._session._sharing(self._name):
            self._ingest_s[own] += self.seconds
        if isinstance(error, Exception | SystemExit):  # a plugin that ends the process would end the others' run
            self._session.drop(self._name, error)
            return True
        return None
