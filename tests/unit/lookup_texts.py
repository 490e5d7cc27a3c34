"""Helpers of the look-up drafters' tests: spans of one row, opened drafters, texts and the memory they take."""

from __future__ import annotations

import re
import sysconfig
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from agentbench_spec.drafting import Drafter, Span, TargetInfo

VOCABULARY = 100_000


def opened(drafter: Drafter, rows: int = 1) -> Drafter:
    """`drafter` with `rows` rows on a target of which only the numbers are real."""
    nothing = torch.nn.Identity()
    target = TargetInfo(
        name="numbers only",
        vocab_size=VOCABULARY,
        hidden_size=1,
        num_layers=1,
        max_positions=1 << 20,
        dtype=torch.float32,
        device=torch.device("cpu"),
        config=None,
        embed_tokens=nothing,
        lm_head=nothing,
    )
    drafter.open(target, rows=rows, capacity=1 << 20)
    return drafter


def span(tokens: Sequence[int], start: int, *, row: int = 0, padding: int = 0) -> Span:
    """A span that commits `tokens` at `start`, followed by `padding` positions that do not count."""
    fed = [*tokens, *[99] * padding]
    return Span(
        rows=torch.tensor([row]),
        start=torch.tensor([start]),
        count=torch.tensor([len(tokens)]),
        input_ids=torch.tensor([fed], dtype=torch.int64),
        next_ids=torch.zeros((1, len(fed)), dtype=torch.int64),
    )


def ask(drafter: Drafter, text: Sequence[int], k: int) -> list[int]:
    """What a drafter with one row, which has observed text[:-1], proposes to follow `text`."""
    guess = drafter.propose(torch.tensor([text[-1]]), torch.tensor([len(text) - 1]), k)
    assert guess.count is not None
    return guess.ids[0, : int(guess.count[0])].tolist()


def asked_fresh(drafter: Drafter, text: Sequence[int], k: int) -> list[int]:
    """What `drafter`, opened anew, proposes after `text` seen at once."""
    opened(drafter).observe(span(text[:-1], 0))
    return ask(drafter, text, k)


def library_words(count: int) -> list[int]:
    """Words of the standard library's source as ids above 256, which CPython allocates one by one."""
    source = "".join(p.read_text(encoding="utf-8") for p in sorted(Path(sysconfig.get_path("stdlib")).glob("a*.py")))
    ids: dict[str, int] = {}
    return [300 + ids.setdefault(w, len(ids)) for w in re.findall(r" ?\w+|\n *|[^\w\s]+| ", source)[:count]]


def measured_and_said_bytes(drafter: Drafter, text: Sequence[int]) -> tuple[int, int]:
    """Bytes that tracemalloc sees `drafter` keep for `text`, and what its `state_bytes` says."""
    opened(drafter)
    whole = span(text, 0)
    tracemalloc.start()
    try:
        drafter.observe(whole)
        del whole
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return kept, drafter.state_bytes(0)


def check_state_bytes(make: Callable[[], Drafter]) -> None:
    """Assert that `state_bytes` is within a half of what is allocated, and grows with the text as that does."""
    text = library_words(16_000)
    kept, said = measured_and_said_bytes(make(), text)
    assert kept / 1.5 < said < kept * 1.5
    kept_half, said_half = measured_and_said_bytes(make(), text[:8_000])
    assert kept_half < kept
    assert said_half < said
