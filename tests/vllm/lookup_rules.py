"""Each engine's n-gram rule in a few lines, played over a text that is known beforehand.

Written from the engines' sources: vLLM 0.32.0 v1/spec_decode/ngram_proposer.py; SGLang 0.5.23
kernels/jit/csrc/ngram_corpus/trie.cpp (match type BFS) and srt/speculative/ngram_worker.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Steps = list[tuple[int, int]]
"""(accepted, drafted) of each decode step, before any stop rule."""


def play(prompt: Sequence[int], text: Sequence[int], emitted: int, draft: Callable[[list[int]], list[int]]) -> Steps:
    """The steps in which `emitted` tokens of `text` are decoded after its first, the prefill's.

    text: the target's greedy answer, longer than what is emitted by more than a draft. draft: context -> chain.
    """
    steps, done = [], 1
    while done < emitted:
        chain = draft([*prompt, *text[:done]])
        accepted = next((i for i, token in enumerate(chain) if token != text[done + i]), len(chain))
        steps.append((accepted, len(chain)))
        done += accepted + 1
    return steps


def places(context: Sequence[int], most: int, least: int) -> list[int]:
    """Positions after the earlier occurrences of the longest n-gram at the end of `context`, in order."""
    for n in range(min(most, len(context) - 1), least - 1, -1):
        gram = list(context[-n:])
        found = [at + n for at in range(len(context) - n) if list(context[at : at + n]) == gram]
        if found:
            return found
    return []


def first_place(context: list[int], *, most: int, least: int, k: int) -> list[int]:
    """vLLM: what followed the first occurrence, as far as the text goes; nothing where there is none."""
    found = places(context, most, least)
    return context[found[0] : found[0] + k] if found else []


def last_place(context: list[int], *, most: int, least: int, k: int) -> list[int]:
    """Ours: what followed the last occurrence; where the text ends the copy goes on with itself."""
    found = places(context, most, least)
    return [context[found[-1] + i % (len(context) - found[-1])] for i in range(k)] if found else []


@dataclass(eq=False)
class Node:
    """A token of the trie; children in order of last use, the latest at the end."""

    children: dict[int, Node] = field(default_factory=dict)


class Trie:
    """SGLang: a tree of continuations out of all that it generated since its cache was emptied.

    It never sees a prompt but for its last tokens, and it learns what a step accepted at the next one.
    """

    def __init__(self, width: int, depth: int = 18, breadth: tuple[int, int] = (1, 10)) -> None:
        self._root, self._drafts, self._depth = Node(), width - 1, depth
        self._least, self._scale = breadth[0], (breadth[1] - breadth[0]) / max(1, depth - 1)
        self._anchors: list[Node | None] = []
        self._matched_to = 0

    def play(self, prompt: Sequence[int], text: Sequence[int], emitted: int) -> list[int]:
        """Accepted tokens of each step of one request; what it says is learnt."""
        accepted, done = [], 1
        self._matched_to = 0
        while done < emitted:
            context = [*prompt, *text[:done]]
            tree, depth = self._tree(context), 0
            while (child := tree.children.get(text[done + depth])) is not None:
                tree, depth = child, depth + 1
            self._learn(context[-self._depth :])
            accepted.append(depth)
            done += depth + 1
        return accepted

    def _learn(self, tail: Sequence[int]) -> None:
        for start in range(len(tail)):
            node = self._root
            for token in tail[start:]:
                child = node.children.pop(token, None) or Node()
                node.children[token] = child  # the latest at the end
                node = child

    def _match(self, context: Sequence[int]) -> None:
        """For each length, the node of the context's last tokens. Nodes that a step did not find are not looked for
        again until the request ends."""
        new = len(context) - self._matched_to
        if self._matched_to and new <= self._depth:
            for token in context[len(context) - new :]:
                longer = [None if node is None else node.children.get(token) for node in self._anchors]
                self._anchors = [self._root.children.get(token), *longer][: self._depth]
        else:
            tails = [context[-length:] for length in range(1, min(self._depth, len(context)) + 1)]
            self._anchors = [self._find(tail) for tail in tails]
        self._matched_to = len(context)

    def _find(self, tail: Sequence[int]) -> Node | None:
        node: Node | None = self._root
        for token in tail:
            node = None if node is None else node.children.get(token)
        return node

    def _tree(self, context: Sequence[int]) -> Node:
        """The draft: the continuations of the longest known tail first, breadth first, the latest of each first."""
        self._match(context)
        root, left = Node(), self._drafts
        for depth in range(len(self._anchors), 0, -1):
            anchor = self._anchors[depth - 1]
            width = (max(1, self._depth - 1) - depth) * self._scale + self._least
            queue = [] if anchor is None or not anchor.children else [(root, width, anchor)]
            while queue and left > 0:
                parent, width, known = queue.pop(0)
                for token in list(reversed(known.children))[: max(1, int(width))]:
                    if left <= 0:
                        break
                    left -= token not in parent.children
                    child = parent.children.setdefault(token, Node())
                    queue.append((child, width - self._scale, known.children[token]))
        if left:
            root.children.setdefault(0, Node())  # drafts that are missing are padded with token 0
        return root
