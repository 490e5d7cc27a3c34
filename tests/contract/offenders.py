"""Drafters with one planted offence each, for laws about batches, cuts, rewrites and upkeep; bug "" is the right twin.

`Buffered` is the honest pattern of a fast drafter: buffers allocated ahead, work done in `observe`, rollback by length.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from toy_drafters import NetDrafter, Table

from agentbench_spec.drafting import DrafterSpec, Proposal, SequenceDrafter, Span, TargetInfo

PAGE = 16
HOARD: list[Tensor] = []


class Buffered(NetDrafter):
    """DFlash-like: the context is projected as it comes, into a buffer of `capacity` positions."""

    spec = DrafterSpec(name="toy-buffered", hidden_layers=(0, 2), hidden_scope="all", max_tokens=5)

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        super().open(target, rows=rows, capacity=capacity)
        self.query = self.query / 20  # so that every position has some weight
        self.buffer = torch.zeros(rows, capacity + PAGE, target.hidden_size, dtype=torch.float64)
        self.lengths = [0] * rows

    def take(self, row: int, start: int, count: int, ids: Tensor, after: Tensor, hidden: Tensor | None) -> None:
        assert hidden is not None
        if self.bug == "loses a span of one" and len(ids) == 1 and start:
            count = 0
        if self.bug == "loses a round in which nobody drafted" and count == 1 == len(ids) and self.asked:
            count = 0
        if self.bug == "takes padding where nothing was kept" and count == 1 < len(ids):
            count = 2
        if self.bug == "writes to the next page at a boundary" and start % PAGE == 0 and count == 1:
            start += 1
        self.buffer[row, start : start + count] = hidden[:count].sum(1) @ self.fuse.T
        self.lengths[row] = start + count
        if self.bug == "never shrinks once emptied":
            self.lengths[row] = max(self.lengths[row], self.longest.get(row, 0))
        self.asked = False

    asked = False

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        self.asked = True
        if self.bug == "all rows at the longest" and (position >= 0).sum() > 1:
            self.lengths, kept = [max(self.lengths)] * len(self.lengths), self.lengths
            said = super().propose(anchor, position, k)
            self.lengths = kept
            return said
        return super().propose(anchor, position, k)

    def logits(self, row: int, anchor: int, drafted: list[int]) -> Tensor:
        inputs = torch.cat([self.buffer[row, : self.lengths[row]], self.embed[[anchor]], self.masks])
        return self.say(self.attend(inputs, self.masks[len(drafted)]))

    @property
    def longest(self) -> dict[int, int]:
        return self.__dict__.setdefault("_longest", {})  # type: ignore[no-any-return]

    def truncate(self, row: int, length: int) -> None:
        if self.bug == "never shrinks once emptied" and not length:
            self.longest[row] = max(self.lengths[row], self.longest.get(row, 0))
        if self.bug == "clears its neighbours" and not length:
            self.buffer.zero_()
        if self.bug == "clears the page of a cut":
            self.buffer[row, length // PAGE * PAGE :] = 0
        if self.bug == "frees one position too many at 64" and length and length % 64 == 0:
            self.buffer[row, length - 1] = 0
        if self.bug == "frees the first position at 1" and length == 1:
            self.buffer[row, 0] = 0
        self.lengths[row] = min(self.lengths[row], length)

    def state_bytes(self, row: int) -> int:
        whole = self.lengths[row] * self.buffer.shape[2] * 8
        return {"hides its buffer": 0, "counts half": whole // 2, "counts the first page": min(whole, 4096)}.get(
            self.bug, whole
        )


class HistoryFree(Buffered):
    """Says that its state does not grow. Right: it reads the last position only, and keeps what a cut back needs."""

    spec = replace(Buffered.spec, name="toy-history-free", hidden_scope="last", history_free=True)

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        super().open(target, rows=rows, capacity=capacity)
        if self.bug in ("", "hoards in a list", "hoards in its module", "keeps all in NumPy"):
            self.buffer = torch.zeros(rows, 2, target.hidden_size, dtype=torch.float64)
        self.at = [[0, -1] for _ in range(rows)]
        self.tokens = torch.zeros(rows, capacity + 1, dtype=torch.int64)
        self.all: list[Tensor] = []
        self.array = np.zeros((capacity + 1, target.hidden_size))
        self.asking = False
        HOARD.clear()

    def take(self, row: int, start: int, count: int, ids: Tensor, after: Tensor, hidden: Tensor | None) -> None:
        assert hidden is not None
        self.tokens[row, start : start + count] = ids[:count]
        new = hidden.sum(1)[0] @ self.fuse.T
        if self.bug == "hoards in a list":
            self.all += [new] * count
        if self.bug == "hoards in its module":
            HOARD.extend([new] * count)
        if self.bug == "keeps all in NumPy":
            self.array[start : start + count] = new.numpy()
        if self.bug in ("reads all of a buffer", "reads a buffer under a mask", "writes all of a buffer"):
            self.buffer[row, start : start + count] = new
            self.lengths[row] = start + count
            return
        first, aside = self.at[row]
        if self.asking and aside < 0:
            self.buffer[row, 1], self.at[row][1] = self.buffer[row, 0], first
        elif not self.asking:
            self.at[row][1] = -1
        self.buffer[row, 0], self.at[row][0], self.asking = new, start + count, False

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        self.asking = True
        return super().propose(anchor, position, k)

    def logits(self, row: int, anchor: int, drafted: list[int]) -> Tensor:
        asking, known = self.embed[[anchor, *drafted]], self.buffer[row]
        if self.bug == "reads all of a buffer":
            return self.say(self.attend(torch.cat([known[: self.lengths[row]], asking]), asking[-1]))
        if self.bug == "reads a buffer under a mask":
            seen = torch.arange(len(known)) < self.lengths[row]
            scores = (known @ self.query) @ asking[-1]
            return self.say(asking[-1] + scores.masked_fill(~seen, -torch.inf).softmax(0) @ known)
        last = known[[self.lengths[row] - 1]] if self.bug == "writes all of a buffer" else known[:1]
        return self.say(self.attend(torch.cat([last, asking]), asking[-1]))

    def truncate(self, row: int, length: int) -> None:
        super().truncate(row, length)
        self.asking = False
        if self.at[row][1] == length:
            self.buffer[row, 0], self.at[row][0] = self.buffer[row, 1], length
        elif self.at[row][1] > length:
            self.at[row][1] = -1

    def state_bytes(self, row: int) -> int:
        return 0


class Deferring(Buffered):
    """Leaves what `observe` should do to the next `propose`, in the way `bug` says."""

    spec = replace(Buffered.spec, name="toy-deferring")

    def __init__(self, bug: str = "") -> None:
        super().__init__(bug)
        if bug == "says so":
            self.spec = replace(self.spec, fused_ingest=True)

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        super().open(target, rows=rows, capacity=capacity)
        self.raw = torch.zeros_like(self.buffer)
        self.done = [0] * rows
        self.stale = [False] * rows

    def take(self, row: int, start: int, count: int, ids: Tensor, after: Tensor, hidden: Tensor | None) -> None:
        if not self.bug:
            super().take(row, start, count, ids, after, hidden)
            return
        assert hidden is not None
        if self.bug == "keeps nothing of it":
            self._project(row, min(self.lengths[row], start))
        self.raw[row, start : start + count] = hidden[:count].sum(1)
        self.lengths[row], self.done[row], self.stale[row] = start + count, min(self.done[row], start), True
        if self.bug == "in rounds only" and count > PAGE:
            self._project(row, start + count)

    def _project(self, row: int, upto: int) -> None:
        new = slice(self.done[row], upto)
        self.buffer[row, new] = self.raw[row, new] @ self.fuse.T
        self.done[row] = max(upto, self.done[row])

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        kept = list(self.done)
        for row, at in enumerate(position.tolist()):
            if self.bug and at >= 0:
                if self.bug == "all of it anew" and self.stale[row]:
                    self.done[row], self.stale[row] = 0, False
                self._project(row, self.lengths[row])
        said = super().propose(anchor, position, k)
        if self.bug == "keeps nothing of it":
            self.done = kept
        return said

    def truncate(self, row: int, length: int) -> None:
        super().truncate(row, length)
        self.done[row] = min(self.done[row], length)


class TailReader(Buffered):
    """Bug "same length and tail": takes a history told anew for the old one if length and last tokens are alike."""

    spec = replace(Buffered.spec, name="toy-tail-reader")

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        super().open(target, rows=rows, capacity=capacity)
        self.told: list[list[int]] = [[] for _ in range(rows)]
        self.was: list[tuple[int, int, Tensor] | None] = [None] * rows

    def truncate(self, row: int, length: int) -> None:
        if length < self.lengths[row]:
            self.was[row] = self.lengths[row], sum(self.told[row]), self.buffer[row, : self.lengths[row]].clone()
        super().truncate(row, length)

    def take(self, row: int, start: int, count: int, ids: Tensor, after: Tensor, hidden: Tensor | None) -> None:
        before = self.told[row][-6:]
        self.told[row][start:] = ids[:count].tolist()
        super().take(row, start, count, ids, after, hidden)
        was = self.was[row]
        if was is not None and was[0] == self.lengths[row]:
            tail, total = self.told[row][-6:] == before, was[1] == sum(self.told[row])
            if {"same length and tail": tail, "same length and sum": total}.get(self.bug, False):
                self.buffer[row, : was[0]] = was[2]


class Indexed(SequenceDrafter):
    """Look-up of what followed each token last, in an index; bugs are about when it is built and what it says."""

    spec = DrafterSpec(name="toy-indexed")
    everywhere: dict[int, list[int]] = {}  # noqa: RUF012 (the bug)

    def __init__(self, bug: str = "") -> None:
        self.bug = bug
        if bug == "calls itself history-free":
            self.spec = replace(self.spec, history_free=True)

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        super().open(target, rows=rows, capacity=capacity)
        self.indices: list[dict[int, int]] = [{} for _ in range(rows)]
        self.built = [0] * rows

    def extend_one(self, row: int, tokens: list[int]) -> None:
        if self.bug != "indexes when asked":
            self._index(row, self._texts[row])

    def _index(self, row: int, text: list[int]) -> None:
        for at in range(self.built[row], len(text)):
            self.indices[row][text[at]] = at
        self.built[row] = len(text)

    def truncate_one(self, row: int, length: int) -> None:
        self.indices[row], self.built[row] = {}, 0
        self.extend_one(row, [])

    def propose_one(self, row: int, text: list[int], k: int) -> list[int]:
        if self.bug == "indexes when asked":
            self._index(row, text[:-1])
        at = self.indices[row].get(text[-1])
        return [] if at is None else list(text[at + 1 : at + 1 + k])

    def state_bytes(self, row: int) -> int:
        hidden = self.bug in ("calls itself history-free", "hides its text")
        return 0 if hidden else super().state_bytes(row) + 100 * len(self.indices[row])


class Drawing(Table):
    """Draws from a table of the last token; bugs bend what is drawn, from one place of the block on."""

    spec = DrafterSpec(name="toy-drawing", history_free=True)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        ids, probs = anchor[:, None], []
        count = torch.full((len(anchor),), k)
        for place in range(k):
            logits = self.table[ids[:, -1]]
            bent = (self.bug == "bends from the third draft" and place >= 2) or (
                self.bug == "bends the last draft" and place == k - 1 > 0
            )
            drawn, q = self.sampler.draw(1.5 * logits if bent else logits)
            if q is not None and bent:
                q = logits.softmax(-1).float()
            if self.bug == "says the probabilities of the draft before" and probs and place == 4:
                q = probs[-1]
            if self.bug == "drops drafts it drew unluckily" and q is not None:
                unlucky = q.gather(1, drawn[:, None])[:, 0] < 0.1
                count = torch.where(unlucky & (count == k), place, count)
            ids, probs = torch.cat([ids, drawn[:, None]], 1), [*probs, q]
        known = torch.stack(probs, 1) if k and probs[0] is not None else None
        if known is not None and self.bug == "says the probabilities of the draft before":
            known = known.clamp_min(1e-6) / known.clamp_min(1e-6).sum(-1, keepdim=True)
        return Proposal(ids[:, 1:], known, count)


class Turning(NetDrafter):
    """Keeps the last position's states, and a copy to go back to the turn's start; bugs go back wrongly."""

    spec = DrafterSpec(name="toy-turning", hidden_layers=(2,), hidden_scope="all", history_free=True)

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        super().open(target, rows=rows, capacity=capacity)
        self.now = torch.zeros(rows, target.hidden_size, dtype=torch.float64)
        self.start = torch.zeros_like(self.now)
        self.at = [-1] * rows
        self.asked = [False] * rows

    def observe(self, span: Span) -> None:
        for b, row in enumerate(span.rows.tolist()):
            if (count := int(span.count[b])) and span.hidden is not None:
                if self.asked[row] and self.at[row] < 0:
                    self.start[row], self.at[row] = self.now[row], int(span.start[b])
                elif not self.asked[row]:
                    self.at[row] = -1
                self.asked[row] = False
                last = -1 if self.bug == "takes the block's last state" and count == 1 else count - 1
                self.now[row] = span.hidden[b, last].sum(0)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        if k or self.bug != "forgets a round without drafts":
            self.asked = [was or at >= 0 for was, at in zip(self.asked, position.tolist(), strict=True)]
        return super().propose(anchor, position, k)

    def logits(self, row: int, anchor: int, drafted: list[int]) -> Tensor:
        inputs = torch.cat([self.now[row][None] @ self.fuse.T, self.embed[[anchor, *drafted]]])
        return self.say(self.attend(inputs, inputs[-1]))

    def truncate(self, row: int, length: int) -> None:
        self.asked[row] = False
        if self.at[row] == length:
            self.now[row] = self.start[row]
            if self.bug == "goes back once":
                self.start[row] = 0
        elif self.at[row] > length:
            self.at[row] = -1

    def state_bytes(self, row: int) -> int:
        return 0
