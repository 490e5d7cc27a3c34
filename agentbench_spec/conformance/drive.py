"""How the conformance kit drives a drafter: it decides itself what the target "chose", so every outcome is tried.

A drafter cannot tell who chose. Steering the outcome exercises partly rejected blocks, where state goes wrong, even
for a drafter whose guesses a toy target never accepts. Hidden states are the target's own, or a puppet's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from agentbench_spec.conformance.answers import TOLERANCE, Guess, View, difference
from agentbench_spec.drafting import Drafter, Proposal, Span
from agentbench_spec.engine.proposals import checked
from agentbench_spec.engine.sampling import GREEDY, RowSampler, Sampling, generator
from agentbench_spec.engine.spans import span_of
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import ConfigError, ContractError, raise_interrupt
from agentbench_spec.rollouts.render import common_prefix

__all__ = ["DRAWN", "TOLERANCE", "Broken", "Driver", "Guess", "NotApplicable", "Seat", "View", "difference"]

DRAWN = Sampling(temperature=1.0)


class Broken(Exception):
    """A law does not hold; the message says at which call and how."""


class NotApplicable(Exception):
    """A law says nothing about this drafter; the message says why."""


class Seat:
    """An opened drafter and the text each of its rows has been told; counts the calls made to it."""

    def __init__(self, drafter: Drafter, target: Target, rows: int, *, alter: Callable[[Span], Span] | None = None):
        """alter: what to do to spans before the drafter sees them, where a law is about what must not matter.

        Raises NotApplicable if the drafter does not fit the target.
        """
        self.drafter, self.target, self.rows, self._alter = drafter, target, rows, alter
        self.texts: list[list[int]] = [[] for _ in range(rows)]
        self._hidden: list[list[Tensor]] = [[] for _ in range(rows)]
        self.rejected: list[list[int]] = [[] for _ in range(rows)]
        """First rejected drafts of each row's last round: where traces of them would show."""
        self.calls, self.where = 0, ""
        self._k: int | None = None
        self._cuts: dict[int, tuple[int, int]] = {}
        try:
            drafter.open(target.info, rows=rows, capacity=target.capacity)
        except ConfigError as error:
            raise NotApplicable(f"the drafter does not fit target {target.info.name!r}: {error}") from error

    def broken(self, what: str, row: int = 0) -> Broken:
        """`what`, with the place where it happened, the k last asked for, the row's text and its last cut."""
        known = [] if self._k is None else [f"k {self._k}"]
        known.append(f"row {row} has {len(self.texts[row])} tokens")
        if row in self._cuts:
            before, after = self._cuts[row]
            known.append(f"last cut from {before} to {after} positions")
        return Broken(f"{self.where or 'at the start'}, call {self.calls} ({', '.join(known)}): {what}")

    def call(self, what: str, act: Callable[[], Any]) -> Any:
        """Make one call of the drafter's interface; an error of the drafter breaks the law at hand."""
        self.calls += 1
        try:
            with torch.inference_mode():  # as the engine calls it
                return act()
        except (Exception, SystemExit) as error:
            raise_interrupt(error)
            raise self.broken(f"{what} raised {type(error).__name__}: {error}") from error

    def observe(self, span: Span) -> None:
        """Show a span and note what it told."""
        shown = span if self._alter is None else self._alter(span)
        counts = span.count.tolist()
        what = f"observe(rows {span.rows.tolist()}, start {span.start.tolist()}, count {counts})"
        self.call(what, lambda: self.drafter.observe(shown))
        for b, row in enumerate(span.rows.tolist()):
            if counts[b]:
                self._note(span, b, row, int(span.start[b]), counts[b])

    def _note(self, span: Span, b: int, row: int, start: int, count: int) -> None:
        self.texts[row][start:] = [*span.input_ids[b, :count].tolist(), int(span.next_ids[b, count - 1])]
        if span.hidden is not None:
            kept = span.hidden[b, :count] if self.drafter.spec.hidden_scope == "all" else span.hidden[b]
            self._hidden[row][start:] = list(kept if len(kept) == count else kept.expand(count, -1, -1))

    def truncate(self, row: int, length: int) -> int | None:
        """Cut a row; returns the position from which the drafter asks to observe it again, if it does."""
        held = max(len(self.texts[row]) - 1, 0)
        if length < held:
            self._cuts[row] = held, length
        what = f"truncate(row {row}, length {length})"
        asked: int | None = self.call(what, lambda: self.drafter.truncate(row, length))
        del self.texts[row][length + 1 :], self._hidden[row][length:]
        return asked

    def propose(self, k: int, *, idle: Sequence[int] = (), sampling: Sampling = GREEDY) -> list[Guess | None]:
        """Ask every row that is not idle, with its own anchor."""
        live = [row for row in range(self.rows) if self.texts[row] and row not in idle]
        anchors = [self.texts[row][-1] if row in live else 0 for row in range(self.rows)]
        return self._ask(anchors, live, k, sampling)

    def probe(self, row: int, anchors: Sequence[int], k: int, sampling: Sampling) -> View:
        """Ask one row what it would say after each of `anchors`; only its own anchor it must take."""
        answers: View = []
        for token in anchors:
            own = token == self.texts[row][-1]
            drawn = "greedy" if sampling is GREEDY else "drawn"
            asked = f"k {self.asked(k)}, {drawn}, after {'its' if own else 'another'} anchor {token}"
            try:
                [guess] = [g for g in self._ask([token] * self.rows, [row], k, sampling) if g is not None]
                answers.append((asked, guess))
            except Broken as broken:
                if own or not isinstance(broken.__cause__, ContractError):
                    raise
                answers.append((asked, f"refusal of anchor {token}"))
        return answers

    def view(self, row: int, k: int, rejected: Sequence[int] | None = None) -> View:
        """What can be seen of a row's state from outside: its proposals after several anchors, greedy and drawn.

        rejected: drafts that another seat's row had rejected, to ask the same questions; None: this row's own.
        """
        rejected = self.rejected[row] if rejected is None else rejected
        own, vocab = self.texts[row][-1], self.target.info.vocab_size
        near, spread = [own, *rejected], [(own + 1 + i * vocab // 6) % vocab for i in range(6)]
        anchors = list(dict.fromkeys([*near, *self.texts[row][-4:-1], *spread]))
        drawn = self.probe(row, anchors, k, DRAWN) + self.probe(row, [own], 1, DRAWN)
        # where sums are rounded, a greedy near tie means nothing and the probabilities say more
        weighted = any(isinstance(answer, Guess) and answer.probs is not None for _, answer in drawn)
        rounded = self.target.info.dtype != torch.float64 and weighted
        return drawn if rounded else drawn + self.probe(row, near, k, GREEDY)

    def asked(self, k: int) -> int:
        """k as the engine would ask for it."""
        return k if self.drafter.spec.max_tokens is None else min(k, self.drafter.spec.max_tokens)

    def state_bytes(self, row: int) -> int:
        """The drafter's own account of its memory."""
        return int(self.call(f"state_bytes(row {row})", lambda: self.drafter.state_bytes(row)))

    def snapshot(self, row: int) -> dict[str, Tensor]:
        """The drafter's optional account of its state."""
        take = getattr(self.drafter, "snapshot", None)
        kept = None if take is None else self.call(f"snapshot(row {row})", lambda: take(row))
        return {} if kept is None else {name: tensor.clone() for name, tensor in kept.items()}

    def replay(self, row: int, drafter: Drafter) -> Seat:
        """A fresh drafter that saw this row's text, with the same hidden states, in one span."""
        seat = Seat(drafter, self.target, 1)
        text, hidden = self.texts[row], self._hidden[row]
        seen = None if not hidden else torch.stack(hidden)[None]
        if seen is not None and self.drafter.spec.hidden_scope == "last":
            seen = seen[:, -1:]
        ids, one = torch.tensor([text], device=self.target.info.device), torch.ones(1, dtype=torch.int64)
        one = one.to(ids.device)
        seat.where = f"{self.where} (fresh drafter)"
        seat.observe(Span(one * 0, one * 0, one * (len(text) - 1), ids[:, :-1], ids[:, 1:], seen))
        return seat

    def _ask(self, anchors: list[int], live: Sequence[int], k: int, sampling: Sampling) -> list[Guess | None]:
        device = self.target.info.device
        asked = self._k = self.asked(k)
        anchor = torch.tensor(anchors, device=device)
        at = [len(self.texts[row]) - 1 if row in live else -1 for row in range(self.rows)]
        position = torch.tensor(at, device=device)
        draws = [
            generator(device, "conformance") for _ in range(self.rows)
        ]  # alike, so that a row's place is no matter
        self.drafter.sampler = RowSampler(sampling, draws)
        what = f"propose(anchor {anchors}, position {at}, k {asked})"
        proposal = self.call(what, lambda: self.drafter.propose(anchor, position, asked))
        try:
            checked(proposal, self.drafter, self.rows, asked, self.target)
        except ContractError as error:
            raise self.broken(str(error)) from error
        return [self._guess(proposal, row) if row in live else None for row in range(self.rows)]

    def _guess(self, proposal: Proposal, row: int) -> Guess:
        width = proposal.ids.shape[1]
        count = width if proposal.count is None else int(proposal.count[row])
        if not 0 <= count <= width:
            raise self.broken(f"row {row} counts {count} of {width} drafts")
        ids = proposal.ids[row, :count].tolist()
        if any(not 0 <= token < self.target.info.vocab_size for token in ids):
            raise self.broken(f"row {row} proposed {ids}, outside the vocabulary of {self.target.info.vocab_size}")
        if proposal.probs is None:
            return Guess(ids, None)
        probs = proposal.probs[row, :count].detach().clone()
        self._check_probs(row, ids, probs)
        return Guess(ids, probs)

    def _check_probs(self, row: int, ids: list[int], probs: Tensor) -> None:
        for i, (token, q) in enumerate(zip(ids, probs, strict=True), 1):
            mass = float(q.sum())
            if not (bool((q >= 0).all()) and abs(mass - 1) < 1e-3):
                raise self.broken(f"row {row}: probabilities of draft {i} are no distribution (sum {mass:.4g})")
            if float(q[token]) <= 0:
                raise self.broken(f"row {row}: draft {i} is token {token}, which its own probabilities exclude")


class Driver(Seat):
    """A seat at a target: prefill and rounds as the engine does them, with outcomes decided by the caller."""

    def __init__(self, drafter: Drafter, target: Target, *, followers: Sequence[Seat] = ()):
        """followers: seats that are told everything this one is told."""
        super().__init__(drafter, target, target.rows)
        self.followers = list(followers)
        for row in range(target.rows):
            target.truncate(row, 0)

    def prefill(self, row: int, prompt: Sequence[int], chunk_tokens: int) -> None:
        """Bring a row to the end of `prompt`; what it shares with the text so far is kept."""
        kept = max(common_prefix(self.texts[row], prompt) - 1, 0)
        self.rewind(row, kept)
        self.rejected[row] = []
        following = [*prompt[1:], _invented(prompt)]
        for start in range(kept, len(prompt), chunk_tokens):
            end = min(start + chunk_tokens, len(prompt))
            ids, after = self._tensor([list(prompt[start:end])]), self._tensor([following[start:end]])
            self._run(row, [start], [end - start], ids, after)

    def rewind(self, row: int, length: int) -> None:
        """Forget positions >= length of a row, everywhere, and show the text again from where a drafter asks for it."""
        text = self.texts[row][: length + 1]
        self.target.truncate(row, length)
        asked = [seat.truncate(row, length) for seat in (self, *self.followers)]
        start = min((at for at in asked if at is not None), default=length)
        if start < length:
            ids, after = self._tensor([text[start:length]]), self._tensor([text[start + 1 :]])
            self._run(row, [start], [length - start], ids, after)

    def empty(self, row: int) -> None:
        """Free a row, as an engine does whose request has ended: it has no text until it is filled anew."""
        self.rewind(row, 0)
        for seat in (self, *self.followers):
            seat.texts[row].clear()
        self.rejected[row] = []

    def round(self, k: int, matched: Sequence[int | None], sampling: Sampling = GREEDY) -> list[Guess | None]:
        """One round: matched[row] of the drafts are taken (at most as many as there are); None: the row is idle.

        The block is as wide as the engine makes it: no wider than the longest proposal.
        """
        idle = [row for row, m in enumerate(matched) if m is None or not self.texts[row]]
        guesses = self.propose(k, idle=idle, sampling=sampling)
        width = max(0 if guess is None else len(guess.ids) for guess in guesses)
        block, after, counts, start = [], [], [], []
        for row, guess in enumerate(guesses):
            text, ids = self.texts[row] or [0], [] if guess is None else guess.ids
            taken = min(matched[row] or 0, len(ids))
            self.rejected[row] = ids[taken:][:2] if guess is not None else self.rejected[row]
            chosen = _invented([*text, *ids[:taken]], not_this=ids[taken] if taken < len(ids) else None)
            block.append([text[-1], *ids, *[0] * (width - len(ids))])
            after.append([*ids[:taken], chosen, *[0] * (width - taken)])
            counts.append(0 if guess is None else taken + 1)
            start.append(self.target.lengths[row])
        self._run(0, start, counts, self._tensor(block), self._tensor(after))
        return guesses

    def at(self, where: str) -> None:
        """Say where in the law we are, for messages."""
        for seat in (self, *self.followers):
            seat.where = where

    def _run(self, row: int, start: list[int], counts: list[int], ids: Tensor, after: Tensor) -> None:
        seats = [self, *self.followers]
        taps = {layer for seat in seats for layer in seat.drafter.spec.hidden_layers}
        evaluated = self.target.evaluate(row, start, ids, taps=taps)
        rows = range(row, row + len(start))
        for b, each in enumerate(rows):
            self.target.commit(each, start[b] + counts[b])
        for seat in seats:
            seat.observe(span_of(seat.drafter, rows, start, counts, ids, after, evaluated))

    def _tensor(self, values: list[list[int]]) -> Tensor:
        return torch.tensor(values, device=self.target.info.device)


def _invented(text: Sequence[int], not_this: int | None = None) -> int:
    """A token that might follow `text`: some token of the text, so that look-ups find matches, but never the draft
    that is to be rejected."""
    at = (7919 * len(text) + 31 * text[-1]) % len(text)
    for token in [*text[at:], *text[:at]]:
        if token != not_this:
            return token
    return text[0] + 1 if text[0] == 0 else text[0] - 1
