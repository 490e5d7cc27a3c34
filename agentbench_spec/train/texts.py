"""Training texts: token ids and which of them the assistant emitted, from rollouts, conversations or token files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentbench_spec.errors import ConfigError
from agentbench_spec.jsonl import BadLine, json_objects
from agentbench_spec.rollout import Message, Rollout, read_rollouts
from agentbench_spec.rollouts.render import Renderer

__all__ = ["Text", "read_conversations", "read_texts", "texts_of", "token_counts"]

_ROLES = {"human": "user", "gpt": "assistant", "function": "tool", "observation": "tool"}


@dataclass(frozen=True, slots=True)
class Text:
    """One training text."""

    id: str
    input_ids: tuple[int, ...]
    supervised: tuple[tuple[int, int], ...]
    """Half-open ranges of positions the assistant emitted, ascending."""

    def mask(self, padding: int = 0) -> Tensor:
        """[T + padding] bool: True where supervised."""
        mask = torch.zeros(len(self.input_ids) + padding, dtype=torch.bool)
        for start, stop in self.supervised:
            mask[start:stop] = True
        return mask

    @property
    def supervised_tokens(self) -> int:
        """How many tokens are supervised."""
        return sum(stop - start for start, stop in self.supervised)

    def cut(self, max_tokens: int) -> Text:
        """The first `max_tokens` tokens."""
        ranges = tuple((start, min(stop, max_tokens)) for start, stop in self.supervised if start < max_tokens)
        return Text(self.id, self.input_ids[:max_tokens], ranges)

    def as_dict(self) -> dict[str, Any]:
        """The line of a token file."""
        return {"id": self.id, "input_ids": list(self.input_ids), "supervised": [list(r) for r in self.supervised]}


def texts_of(rollout: Rollout, renderer: Renderer) -> list[Text]:
    """The texts of a rollout: one, over all its replies, as long as each prompt continues what went before.

    Where a template rewrites the conversation, a new text starts. Synthetic messages are context, not supervised.
    """
    texts: list[tuple[list[int], list[tuple[int, int]]]] = []
    for index in rollout.decode_points():
        if rollout.messages[index].synthetic:
            continue
        prompt, reply = renderer.prompt(rollout, index), renderer.reply(rollout, index)
        ids, ranges = texts[-1] if texts else ([], [])
        if not texts or prompt[: len(ids)] != ids:
            ids, ranges = [], []
            texts.append((ids, ranges))
        ids.extend(prompt[len(ids) :])
        ranges.append((len(ids), len(ids) + len(reply)))
        ids.extend(reply)
    return [Text(f"{rollout.id}#{n}", tuple(ids), tuple(ranges)) for n, (ids, ranges) in enumerate(texts)]


def read_texts(path: Path, renderer: Renderer, *, max_tokens: int) -> list[Text]:
    """Texts of a rollouts file, a file of conversations or a token file; each cut to `max_tokens`.

    Conversations: {"messages": [{"role", "content"}]} or {"conversations": [{"from", "value"}]} on each line.
    Token files: {"id", "input_ids", "supervised"} on each line, as `regenerate` writes them.
    Raises ConfigError naming file, line and field of what cannot be used.
    """
    first = next(iter(json_objects(path)))[1]
    if isinstance(first, dict) and "input_ids" in first:
        texts: Iterable[Text] = read_token_file(path)
    else:
        texts = chain.from_iterable(texts_of(rollout, renderer) for rollout in read_any_rollouts(path))
    cut = [text.cut(max_tokens) for text in texts]
    return [text for text in cut if text.supervised]


def read_any_rollouts(path: Path) -> Iterator[Rollout]:
    """Rollouts of a rollouts file or of a file of plain conversations; told apart by its first line."""
    first = next(iter(json_objects(path)))[1]
    plain = isinstance(first, dict) and "workload" not in first and {"messages", "conversations"} & first.keys()
    return read_conversations(path) if plain else read_rollouts(path)


def read_token_file(path: Path) -> Iterator[Text]:
    """The texts of a token file; raises ConfigError naming line and field."""
    for number, value in json_objects(path):
        if isinstance(value, BadLine):
            raise ConfigError(str(value))
        try:
            yield Text(
                str(value["id"]),
                tuple(int(token) for token in value["input_ids"]),
                tuple((int(start), int(stop)) for start, stop in value["supervised"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            reason = "expected id, input_ids (token ids) and supervised (pairs of positions)"
            raise ConfigError(f"{path}:{number}: {reason}; {type(error).__name__}: {error}") from error


def read_conversations(path: Path) -> Iterator[Rollout]:
    """Plain conversations as rollouts without tools; raises ConfigError naming line and field."""
    for number, value in json_objects(path):
        if isinstance(value, BadLine):
            raise ConfigError(str(value))
        field = "messages" if "messages" in value else "conversations"
        turns = value.get(field)
        if not isinstance(turns, list) or not turns:
            raise ConfigError(f"{path}:{number}: {field}: expected a list of messages")
        messages = tuple(_message(path, number, f"{field}[{i}]", turn) for i, turn in enumerate(turns))
        rollout = Rollout(id=str(value.get("id", number)), workload=path.stem, messages=messages)
        if rollout.decode_points():
            yield rollout


def _message(path: Path, number: int, field: str, turn: Any) -> Message:
    said = turn if isinstance(turn, dict) else {}
    role, content = said.get("role", said.get("from")), said.get("content", said.get("value"))
    role = _ROLES.get(str(role), role)
    if role not in ("system", "user", "assistant", "tool") or not isinstance(content, str):
        wanted = "role (system, user, assistant, tool) and content (text)"
        raise ConfigError(f"{path}:{number}: {field}: expected {wanted}, found {turn!r}")
    return Message.model_validate({"role": role, "content": content})


def token_counts(texts: Sequence[Text], vocab_size: int) -> Tensor:
    """How often each token id is supervised [V] int64; raises ConfigError if an id is beyond the vocabulary."""
    tokens = [t for text in texts for start, stop in text.supervised for t in text.input_ids[start:stop]]
    counts = torch.bincount(torch.tensor(tokens, dtype=torch.int64), minlength=vocab_size)
    if len(counts) > vocab_size:
        raise ConfigError(f"the data has token id {len(counts) - 1}, the target's vocabulary ends at {vocab_size - 1}")
    return counts
