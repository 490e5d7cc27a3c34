"""Workload `longbench_v2`: one question about one long context; four subsets, prompts of 32K to 64K tokens.

Origin: LongBench v2, hub data set THUDM/LongBench-v2, data.json (465 MB, one JSON array, 503 rows); licence
Apache-2.0 (its card). Contexts run from 8K to 2M words.
Size: one decode point a rollout. The four subsets by `domain`, counts from memory of the card, checked by nobody here:
Multi-Document QA 125, Long In-context Learning 81, Code Repository Understanding 50, Long-dialogue History
Understanding 39.
The paper's long-context table uses four subsets; a predecessor of its code names shards after a 64000/32000 pair and
asks without the answer choices: context, blank line, question. That form is the default here.
What is ours: the shard is told by the target's own tokenizer, on the prompt in its chat template; with cut=true a
longer context loses its middle at line ends, and the rollout says so. The data's answer is a letter, which is no reply,
so no reference is given. The prompt is formatted once: a context that holds a placeholder is not damaged by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentbench_spec.rollout import ConfigError, Message, Rollout, TokenCounter, Workload

from .locate import HubSource, locate
from .questions import has_turns, question_rollout, turns_rollout
from .row_workload import Row, RowWorkload
from .standins import requested_standin
from .token_window import counter_for

__all__ = ["SUBSETS", "make"]

NAME = "longbench_v2"
SUBSETS = {
    "multi_document": "Multi-Document QA",
    "in_context": "Long In-context Learning",
    "code": "Code Repository Understanding",
    "dialogue": "Long-dialogue History Understanding",
}
"""Name of a subset -> its `domain` in the data, compared without regard to case."""
_HUB = HubSource("THUDM/LongBench-v2", ("data.json",), "apache-2.0", "2b48e494f2c7a2f0af81aae178e05c7e1dde0fe9")
_FORMS = ("question", "choices")
_CHARACTERS_PER_TOKEN = 8
"""A prefix this many times the shard's tokens is enough to see that most longer contexts are too long."""


def make(
    *,
    data: str | Path | None = None,
    revision: str | None = None,
    subsets: str | Sequence[str] = tuple(SUBSETS),
    tokenizer: TokenCounter | None = None,
    min_tokens: int = 32_768,
    max_tokens: int = 65_536,
    cut: bool = False,
    form: str = "question",
    lenient: bool = False,
    offline_standin: bool = False,
) -> Workload:
    """Long-context questions.

    subsets: names, or one text with commas. tokenizer: counts as the target does, whose prompts must have min_tokens to
    max_tokens tokens; max_tokens=0 takes every row and needs none. cut: shorten longer contexts to max_tokens instead
    of leaving them out. form: "question", or "choices" (question, choices and a request to reason).

    Raises ConfigError if the data cannot be had or an option is out of range.
    """
    if standin := requested_standin(NAME, offline_standin, data=data, revision=revision):
        return standin
    if form not in _FORMS:
        raise ConfigError(f"form: expected one of {', '.join(_FORMS)}, found {form!r}")
    counter = counter_for(tokenizer, f"the shard of {min_tokens} to {max_tokens} tokens") if max_tokens else None
    shard = None if counter is None else Shard(counter, min_tokens, max_tokens, cut)
    builder = _Builder(_domains(subsets), shard, form)
    found = locate(NAME, data, _HUB, revision=revision)
    return RowWorkload(NAME, found, builder.rollout, group=lambda row: str(row.get("domain", "")), lenient=lenient)


def _domains(subsets: str | Sequence[str]) -> dict[str, str]:
    names = [name.strip() for name in subsets.split(",")] if isinstance(subsets, str) else list(subsets)
    for name in names:
        if name not in SUBSETS:
            raise ConfigError(f"subsets: unknown {name!r}; known: {', '.join(SUBSETS)}")
    return {SUBSETS[name].lower(): name for name in names}


class Shard:
    """Which prompts are wanted, by their tokens."""

    def __init__(self, count: TokenCounter, min_tokens: int, max_tokens: int, cut: bool) -> None:
        """Raises ConfigError unless 0 <= min_tokens <= max_tokens."""
        if not 0 <= min_tokens <= max_tokens:
            raise ConfigError(f"min_tokens, max_tokens: expected 0 <= min <= max, found {min_tokens} and {max_tokens}")
        self._count, self.min_tokens, self.max_tokens, self.cut = count, min_tokens, max_tokens, cut

    def fit(self, rollout: Rollout, context: str) -> tuple[Rollout, int] | None:
        """The rollout, cut if that is wanted, and its prompt's tokens; None if it is outside the shard.

        context: what may be cut from the prompt's start; empty: nothing.
        """
        tokens = None if self._surely_long(context) else self._count.prompt(rollout, 1)
        if tokens is None or tokens > self.max_tokens:
            return self._cut(rollout, context) if self.cut and context else None
        return (rollout, tokens) if tokens >= self.min_tokens else None

    def _surely_long(self, context: str) -> bool:
        start = context[: self.max_tokens * _CHARACTERS_PER_TOKEN]
        return len(start) < len(context) and self._count.text(start) > self.max_tokens

    def _cut(self, rollout: Rollout, context: str) -> tuple[Rollout, int]:
        """Keep as many characters of both ends as fit, whole lines where there are any."""
        low, high, best = 0, min(len(context), self.max_tokens * _CHARACTERS_PER_TOKEN), None
        while high - low > self.max_tokens // 100 or best is None:
            middle = (low + high) // 2
            shorter = _with_context(rollout, context, _ends(context, middle))
            tokens = self._count.prompt(shorter, 1)
            if tokens <= self.max_tokens:
                low, best = middle, (shorter, tokens)
            elif middle == 0:
                raise ConfigError(f"max_tokens: {self.max_tokens} are too few for the question of {rollout.id}")
            else:
                high = middle
        return best


def _ends(context: str, characters: int) -> str:
    head, tail = context[: characters // 2], context[len(context) - characters // 2 :]
    head = head[: head.rfind("\n") + 1] or head
    return head + (tail[tail.find("\n") + 1 :] or tail)


def _with_context(rollout: Rollout, old: str, new: str) -> Rollout:
    user, answer = rollout.messages
    asked = Message(role="user", content=new + user.content[len(old) :])
    note = f"the context was cut from {len(old)} to {len(new)} characters: its beginning and end were kept"
    return rollout.model_copy(update={"messages": (asked, answer), "notes": (*rollout.notes, note)})


class _Builder:
    """Rows to rollouts."""

    def __init__(self, domains: dict[str, str], shard: Shard | None, form: str) -> None:
        self._domains, self._shard, self._form = domains, shard, form

    def rollout(self, row: Row) -> Rollout | None:
        if has_turns(row):
            return self._fitted(turns_rollout(row, NAME), "")
        subset = self._domains.get(row.text("domain").strip().lower())
        if subset is None:
            return None
        context = row.text("context")
        labels = {
            "category": subset,
            "sub_domain": row.optional("sub_domain"),
            "difficulty": row.optional("difficulty"),
            "length": row.optional("length"),
            "answer": row.optional("answer"),
        }
        asked = f"{context}\n\n{self._question(row)}"
        return self._fitted(question_rollout(row, NAME, row.id("_id", "id"), [asked], **labels), context)

    def _question(self, row: Row) -> str:
        question = f"Question: {row.text('question')}"
        if self._form == "question":
            return question
        choices = "\n".join(f"({letter}) {row.text(f'choice_{letter}')}" for letter in "ABCD")
        return f"{question}\n\n{choices}\n\nReason step by step, then name the letter of the correct choice."

    def _fitted(self, rollout: Rollout, context: str) -> Rollout | None:
        if self._shard is None:
            return rollout
        fitted = self._shard.fit(rollout, context)
        if fitted is None:
            return None
        kept, tokens = fitted
        shard = f"{self._shard.min_tokens}-{self._shard.max_tokens}"
        return kept.model_copy(update={"labels": {**kept.labels, "prompt_tokens": tokens, "shard": shard}})
