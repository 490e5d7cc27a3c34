"""SlotCache: written where aimed, read from 0 on, never moved."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from agentbench_spec.engine.cache import SlotCache
from agentbench_spec.errors import MeasurementError

KV_HEADS, WIDTH, CAPACITY = 2, 3, 12


def make(rows: int = 3, layers: int = 2) -> SlotCache:
    return SlotCache(
        layers=layers,
        rows=rows,
        kv_heads=KV_HEADS,
        head_dim=WIDTH,
        capacity=CAPACITY,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def write(cache: SlotCache, first_row: int, start: Sequence[int], value: float, n: int, layer: int = 0) -> Tensor:
    """Aim, write `value` as keys and its negative as values; returns the keys read."""
    positions = torch.tensor(start)[:, None] + torch.arange(n)
    cache.aim(first_row, start, n, positions)
    states = torch.full((len(start), KV_HEADS, n, WIDTH), value)
    keys, values = cache.update(states, -states, layer)
    assert torch.equal(keys, -values)
    return keys


def marks(keys: Tensor) -> list[list[float]]:
    """One number per row and position; fails if heads or channels of a position differ."""
    assert torch.equal(keys, keys[:, :1, :, :1].expand_as(keys))
    return keys[:, 0, :, 0].tolist()


def test_one_row_is_written_and_overwritten_in_place() -> None:
    """Fails if a rejected position survives being written again, or if the buffer moves."""
    cache = make()
    buffer = cache.layers[0].keys.data_ptr()
    write(cache, 1, [0], 1.0, 4)
    assert marks(write(cache, 1, [2], 2.0, 1)) == [[1, 1, 2]]
    assert marks(write(cache, 1, [3], 3.0, 2)) == [[1, 1, 2, 3, 3]]
    assert cache.layers[0].keys.data_ptr() == buffer
    assert not cache.layers[0].keys[[0, 2]].any() and not cache.layers[1].keys.any()


def test_ragged_rows_are_written_at_their_own_positions() -> None:
    """Fails if one row's start is used for another, or if neighbours outside the window are touched."""
    cache = make(rows=4)
    keys = write(cache, 1, [0, 5, 2], 7.0, 2)
    assert marks(keys) == [[7, 7, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 7, 7], [0, 0, 7, 7, 0, 0, 0]]
    assert not cache.layers[0].keys[0].any()


def test_reads_are_views_of_the_buffer() -> None:
    """Fails if reading copies: every decode step would then pay for the whole context."""
    cache = make()
    for start in ([3], [0, 1, 2]):
        keys = write(cache, 0, start, 1.0, 2)
        assert keys.data_ptr() == cache.layers[0].keys.data_ptr()
        assert keys.untyped_storage().data_ptr() == cache.layers[0].keys.untyped_storage().data_ptr()


def test_beyond_the_capacity_is_refused_before_anything_is_written() -> None:
    """Fails if a write past the end is clipped silently; the last position itself is fine."""
    cache = make()
    assert cache.aim(0, [CAPACITY - 2], 2, torch.zeros(1, 2)) == CAPACITY
    with pytest.raises(MeasurementError, match=f"position {CAPACITY + 1} is beyond"):
        cache.aim(0, [0, CAPACITY - 1, 3], 2, torch.zeros(3, 2))


def test_bytes_per_token() -> None:
    """Fails if keys, values, layers or element size are left out of the KV figure of every row."""
    assert make(layers=5).bytes_per_token == 2 * 5 * KV_HEADS * WIDTH * 4
