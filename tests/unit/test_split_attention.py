"""Attention over a context in pieces: the same as in one, chosen by a race, and only where all see every piece."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tinymodels import tiny
from torch.nn import functional as F

from agentbench_spec.engine.attention import causal_mask
from agentbench_spec.engine.cpu.race import CACHE_FILE
from agentbench_spec.engine.cpu.split_attention import (
    CONTEXTS,
    WIDTHS,
    Heads,
    Split,
    choose_split,
    split_attention,
    splitting_available,
)
from agentbench_spec.engine.target import Target

pytestmark = pytest.mark.skipif(not splitting_available(), reason="this torch build lacks the kernel")

HEADS = Heads(kv_heads=3, groups=3, head_dim=16)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two threads, as a small machine has."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 7, 8])
@pytest.mark.parametrize("behind", [0, 1, 3])
def test_pieces_say_what_the_whole_says(parts: int, n: int, behind: int) -> None:
    """Fails if pieces are weighted wrongly, a head meets another's piece, or rubbish beyond the text is seen."""
    extent = -(-(97 + n + behind) // 12) * 12
    draw = torch.Generator().manual_seed(n)
    buffers = [3 * torch.randn(1, 3, extent + 40, 16, generator=draw) for _ in range(2)]
    key, value = (each[:, :, :extent] for each in buffers)
    query = 3 * torch.randn(1, 3, 3 * n, 16, generator=draw)
    mask = causal_mask(torch.tensor([extent - n - behind]), n, extent, 3, torch.float32)
    for seen in (mask, None):
        whole = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=0.3)
        torch.testing.assert_close(split_attention(query, key, value, seen, parts, 0.3), whole, atol=1e-5, rtol=1e-5)


def test_where_a_split_applies() -> None:
    """Fails if unequal pieces, short contexts, wide blocks, or a piece that a query sees nothing of are split."""
    split = Split(parts=4, one_from=64, block_from=32)
    assert split.applies(1, 64) and not split.applies(1, 60) and not split.applies(1, 65)
    assert split.applies(8, 48) and not split.applies(8, 44), "pieces of 11 may lie wholly after the first of 8"
    assert not split.applies(9, 64)
    assert not Split(4, None, 32).applies(1, 4096) and Split(4, None, 32).applies(2, 4096)


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_a_target_that_splits_says_the_same(family: str) -> None:
    """Fails if steps, verified blocks, or what overwrites a rejected one, differ from the whole context's."""
    ids = torch.randint(97, (1, 80), generator=torch.Generator().manual_seed(0))
    said = []
    for split in (None, Split(2, 16, 16), Split(3, 16, 16)):
        target = Target(tiny(family), name=family, capacity=80, split=split)
        assert target.cache.granule == (split.parts if split else 1)
        target.self_check()
        logits = [target.evaluate(0, [0], ids[:, :40]).logits[0]]
        target.commit(0, 40)
        logits.append(target.evaluate(0, [40], ids[:, 60:68]).logits[0])  # rejected
        for start, n in ((40, 8), (48, 1), (49, 1), (50, 5), (55, 1)):
            logits.append(target.evaluate(0, [start], ids[:, start : start + n]).logits[0])
            target.commit(0, start + n)
        said.append(torch.cat(logits))
    for other in said[1:]:
        torch.testing.assert_close(other, said[0], atol=1e-4, rtol=1e-4)


def test_a_target_with_windows_is_not_split() -> None:
    """Fails if a sliding mask, which hides whole pieces, meets the split."""
    target = Target(
        tiny("Qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=0), name="w", capacity=64
    )
    again = Target(target.model, name="w", capacity=64, split=Split(2, 16, 16))
    assert again.windows is not None and again.cache.granule == 1


def test_one_thread_has_nothing_to_split(tmp_path: Path) -> None:
    """Fails if a race is run, or kept, where heads share out evenly."""
    assert choose_split(HEADS, tmp_path) is None and not list(tmp_path.iterdir())


@pytest.mark.usefixtures("two_threads")
def test_the_outcome_is_kept_with_its_evidence(tmp_path: Path) -> None:
    """Fails if every run races anew, a damaged file ends one, or a manifest cannot tell what was measured."""
    choose_split(HEADS, tmp_path)
    [(key, kept)] = json.loads((tmp_path / CACHE_FILE).read_text()).items()
    assert "2 threads" in key and "attention 3 x 3 x 16" in key
    assert set(kept["evidence"]["us"]) == {f"{n} over {context}" for n in WIDTHS for context in CONTEXTS}
    for forced in ({"one_from": 512, "block_from": 256}, {"one_from": None, "block_from": 4096}):
        (tmp_path / CACHE_FILE).write_text(json.dumps({key: {"parts": 2, **forced, "evidence": None}}))
        assert choose_split(HEADS, tmp_path) == Split(2, forced["one_from"], forced["block_from"])
    (tmp_path / CACHE_FILE).write_text(json.dumps({key: {"parts": 2, "one_from": None, "block_from": None}}))
    assert choose_split(HEADS, tmp_path) is None, "the race was lost"
    for damage in (5, {"parts": "2"}, {"parts": 2, "one_from": "all", "block_from": None}):
        (tmp_path / CACHE_FILE).write_text(json.dumps({key: damage}))
        choose_split(HEADS, tmp_path)
        assert json.loads((tmp_path / CACHE_FILE).read_text())[key]["parts"] == 2
