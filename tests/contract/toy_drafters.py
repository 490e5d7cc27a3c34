"""The drafter families in a few lines each, right and with planted bugs. Weights are random: only state matters here.

Every network drafter says, in `logits`, what follows its row's state, the anchor and what it has drafted so far, and
recomputes that from scratch; only `take` and `truncate` change state. `bug` names what is wrong with it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal, SequenceDrafter, Span, TargetInfo

_LONGEST = 600


class NetDrafter(Drafter):
    """Loops over rows; each row's state is a list of input vectors `[len, H]`, one per position."""

    def __init__(self, bug: str = "") -> None:
        self.bug = bug

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        draw = torch.Generator().manual_seed(17)
        width, vocab = target.hidden_size, target.vocab_size

        def matrix(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw, dtype=torch.float64) / shape[-1] ** 0.5

        self.embed = 4 * matrix(vocab, width)
        self.positions, self.masks = matrix(_LONGEST, width), 3 * matrix(16, width)
        self.query, self.key, self.value, self.fuse = (3 * matrix(width, width) for _ in range(4))
        self.state = [torch.zeros(0, width, dtype=torch.float64) for _ in range(rows)]

    def attend(self, inputs: Tensor, asking: Tensor) -> Tensor:
        """One attention layer: what `asking` [H] sees of `inputs` [len, H]."""
        placed = inputs + self.positions[: len(inputs)]
        scores = (placed @ self.key.T) @ (self.query @ asking) / len(asking) ** 0.5
        return asking + scores.softmax(0) @ (placed @ self.value.T)

    def say(self, feature: Tensor) -> Tensor:
        """Logits [V] of moderate size, so that drawn drafts vary."""
        return 2 * self.embed @ feature / feature.norm()

    def observe(self, span: Span) -> None:
        for b, row in enumerate(span.rows.tolist()):
            if count := int(span.count[b]):
                hidden = span.hidden[b] if span.hidden is not None else None
                self.take(row, int(span.start[b]), count, span.input_ids[b], span.next_ids[b], hidden)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        live, rows = position.tolist(), range(len(anchor))
        nothing = torch.zeros(len(self.embed), dtype=torch.float64)
        ids, probs = anchor.new_empty(len(anchor), 0), []
        for _ in range(k):
            said = [self.logits(r, int(anchor[r]), ids[r].tolist()) if live[r] >= 0 else nothing for r in rows]
            drawn, q = self.sampler.draw(torch.stack(said))
            ids, probs = torch.cat([ids, drawn[:, None]], 1), [*probs, q]
        return Proposal(ids, torch.stack(probs, 1) if k and probs[0] is not None else None)

    def put(self, row: int, start: int, vectors: Tensor) -> None:
        """Positions >= start are void; these follow."""
        self.state[row] = torch.cat([self.state[row][:start], vectors])

    def truncate(self, row: int, length: int) -> None:
        self.state[row] = self.state[row][:length]

    def state_bytes(self, row: int) -> int:
        return self.state[row].numel() * 8

    def snapshot(self, row: int) -> dict[str, Tensor] | None:
        return None

    def take(self, row: int, start: int, count: int, ids: Tensor, after: Tensor, hidden: Tensor | None) -> None:
        raise NotImplementedError

    def logits(self, row: int, anchor: int, drafted: list[int]) -> Tensor:
        raise NotImplementedError


class DraftLM(NetDrafter):
    """A small language model of its own: one attention layer over embeddings."""

    spec = DrafterSpec(name="toy-draft-lm")

    def take(self, row: int, start: int, count: int, ids: Tensor, after: Tensor, hidden: Tensor | None) -> None:
        if self.bug == "reads padding":
            count = len(ids)
        if self.bug == "misses the bonus-step token" and 1 < count == len(ids):
            count -= 1  # all drafts accepted: it proposed the last one, but never ran it
        self.put(row, start, self.embed[ids[:count]])

    def logits(self, row: int, anchor: int, drafted: list[int]) -> Tensor:
        inputs = torch.cat([self.state[row], self.embed[[anchor, *drafted]]])
        return self.say(self.attend(inputs, inputs[-1]))


class Chain(NetDrafter):
    """EAGLE-like: rows pair the target's state at i with token i + 1; drafted rows use its own features."""

    spec = DrafterSpec(name="toy-chain", hidden_layers=(1, 3), hidden_scope="all")

    def take(self, row: int, start: int, count: int, ids: Tensor, after: Tensor, hidden: Tensor | None) -> None:
        assert hidden is not None
        tokens = ids if self.bug == "pairs hidden with the wrong token" else after
        rows = hidden[:count].sum(1) @ self.fuse.T + self.embed[tokens[:count]]
        if self.bug == "keeps drafted rows" and hasattr(self, "drafted_rows"):
            kept = self.drafted_rows[: count - 1]
            rows = torch.cat([kept, rows[len(kept) :]])
        self.put(row, start, rows)

    def logits(self, row: int, anchor: int, drafted: list[int]) -> Tensor:
        inputs = self.state[0 if self.bug == "mixes rows" and len(self.state[0]) else row]
        feature = self.attend(inputs, inputs[-1])
        for token in drafted:
            inputs = torch.cat([inputs, (self.fuse @ feature + self.embed[token])[None]])
            feature = self.attend(inputs, inputs[-1])
        if self.bug == "keeps drafted rows":
            self.drafted_rows = inputs[len(self.state[row]) :]
        return self.say(feature)

    def truncate(self, row: int, length: int) -> None:
        super().truncate(row, 0 if self.bug == "reset at every turn" else length)


class Block(NetDrafter):
    """DFlash-like: the context is projected as it comes; anchor and masks attend to it, all at once."""

    spec = DrafterSpec(name="toy-block", hidden_layers=(0, 2), hidden_scope="all", max_tokens=5)

    def take(self, row: int, start: int, count: int, ids: Tensor, after: Tensor, hidden: Tensor | None) -> None:
        assert hidden is not None
        at = len(self.state[row]) if self.bug == "ignores a history rewrite" else start
        self.put(row, at, hidden[:count].sum(1) @ self.fuse.T)

    def logits(self, row: int, anchor: int, drafted: list[int]) -> Tensor:
        inputs = torch.cat([self.state[row], self.embed[[anchor]], self.masks])
        return self.say(self.attend(inputs, self.masks[len(drafted)]))

    def truncate(self, row: int, length: int) -> None:
        if self.bug != "ignores a history rewrite":
            super().truncate(row, length)

    def snapshot(self, row: int) -> dict[str, Tensor]:
        return {"context": self.state[row]}


class Pivot(NetDrafter):
    """DLite-like: only the state of the last committed position counts (older ones are kept to go back to)."""

    spec = DrafterSpec(name="toy-pivot", hidden_layers=(-1, 2, 3), hidden_scope="all")

    def take(self, row: int, start: int, count: int, ids: Tensor, after: Tensor, hidden: Tensor | None) -> None:
        assert hidden is not None
        vectors = hidden[:count].sum(1)
        if self.bug == "reads the wrong row":
            vectors = torch.cat([vectors[:-1], hidden[-1:].sum(1)])
        self.put(row, start, vectors)

    def logits(self, row: int, anchor: int, drafted: list[int]) -> Tensor:
        inputs = torch.cat([self.state[row][-1:] @ self.fuse.T, self.embed[[anchor, *drafted]]])
        return self.say(self.attend(inputs, inputs[-1]))


class LastPivot(Pivot):
    """The same with the engine's "last" scope, which hands over one state per span."""

    spec = replace(Pivot.spec, name="toy-pivot-last", hidden_scope="last")

    def take(self, row: int, start: int, count: int, ids: Tensor, after: Tensor, hidden: Tensor | None) -> None:
        assert hidden is not None
        if self.bug == "cannot go back":
            self.state[row] = torch.zeros_like(self.state[row][:0])
        self.put(row, start, hidden.sum(1).expand(count, -1))

    def truncate(self, row: int, length: int) -> None:
        if self.bug != "cannot go back":
            super().truncate(row, length)


class Bigram(SequenceDrafter):
    """Look-up of the last two tokens, then of the last one."""

    spec = DrafterSpec(name="toy-ngram")

    def __init__(self, bug: str = "") -> None:
        self.bug = bug

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        super().open(target, rows=rows, capacity=capacity)
        self.seen: list[list[list[int]]] = [[] for _ in range(rows)]

    def observe(self, span: Span) -> None:
        super().observe(span)
        if self.bug == "indexes rejected guesses":
            for b, row in enumerate(span.rows.tolist()):
                if span.count[b] < span.input_ids.shape[1]:
                    self.seen[row].append(span.input_ids[b].tolist())

    def propose_one(self, row: int, text: list[int], k: int) -> list[int]:
        for n in (2, 1):
            for told in [*self.seen[row], text]:
                for at in range(len(told) - 1, n - 1, -1):
                    if list(told[at - n : at]) == list(text[-n:]):
                        return list(told[at : at + k])
        return []


class Table(Drafter):
    """Draws the next token from a table of the last one; no state at all."""

    spec = DrafterSpec(name="toy-table", history_free=True)

    def __init__(self, bug: str = "") -> None:
        self.bug = bug

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        draw = torch.Generator().manual_seed(23)
        self.table = torch.randn(target.vocab_size, target.vocab_size, generator=draw, dtype=torch.float64)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        ids, probs = anchor[:, None], []
        for _ in range(k):
            drawn, q = self.sampler.draw(self.table[ids[:, -1]])
            ids, probs = torch.cat([ids, drawn[:, None]], 1), [*probs, q]
        if not k or probs[0] is None:
            return Proposal(ids[:, 1:])
        said = torch.stack(probs, 1)
        return Proposal(
            ids[:, 1:], said.sqrt() / said.sqrt().sum(-1, keepdim=True) if self.bug == "misreports" else said
        )


class Restless(Bigram):
    """Answers differently each time, as a drafter with a generator of its own does."""

    spec = DrafterSpec(name="toy-restless")
    asked = 0

    def propose_one(self, row: int, text: list[int], k: int) -> list[int]:
        self.asked += 1
        return [self.asked % 8] * k


class Boastful(Bigram):
    """Breaks its own spec in the way `bug` says."""

    spec = DrafterSpec(name="toy-boastful", history_free=True)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        said = super().propose(anchor, position, k)
        if self.bug == "proposes too many":
            return Proposal(torch.zeros(len(anchor), k + 1, dtype=torch.int64))
        if self.bug == "proposes beyond the vocabulary":
            return Proposal(said.ids + 10**6, count=said.count)
        if self.bug == "counts too many":
            return replace(said, count=torch.full_like(anchor, k + 5))
        if self.bug == "gives no distribution":
            q = torch.full((*said.ids.shape, len(self.embed)), 0.25, dtype=torch.float32)
            return replace(said, probs=q)
        return said

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        super().open(target, rows=rows, capacity=capacity)
        self.embed = target.embed_tokens.weight

    def state_bytes(self, row: int) -> int:
        return 8 * len(self._texts[row]) if self.bug == "grows in secret" else 0


class SelfDraft(Drafter):
    """The target itself as the drafter, on its own cache: every guess is what the target will say."""

    spec = DrafterSpec(name="self-draft")

    def __init__(self, target: object) -> None:
        self.target = target

    def observe(self, span: Span) -> None:
        for b, row in enumerate(span.rows.tolist()):
            if count := int(span.count[b]):
                self.target.evaluate(row, [int(span.start[b])], span.input_ids[b : b + 1, :count])
                self.target.commit(row, int(span.start[b]) + count)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        ids = anchor[:, None]
        for step in range(k):
            start = [max(at, 0) + step for at in position.tolist()]
            for row, at in enumerate(start):
                self.target.lengths[row] = max(self.target.lengths[row], at)
            logits = self.target.evaluate(0, start, ids[:, -1:]).logits[:, -1]
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
        return Proposal(ids[:, 1:])

    def truncate(self, row: int, length: int) -> None:
        self.target.truncate(row, length)
