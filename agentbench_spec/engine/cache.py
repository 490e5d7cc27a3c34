"""SlotCache: keys and values of every engine row in place, one static buffer per layer.

A row's KV is written at text positions start .. start + n - 1 and read from 0 on. Nothing is ever copied, cropped or
moved: a rejected position is simply written again, so rolling back is the caller counting fewer positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from agentbench_spec.errors import MeasurementError


@dataclass(slots=True)
class Window:
    """Where the next forward writes and how far it reads: shared by all layers, set by `SlotCache.aim`."""

    rows: slice
    extent: int
    """Positions 0 .. extent - 1 are read."""
    at: slice | None
    """Positions written, when one row is fed; else None."""
    index: tuple[Tensor, Tensor] | None
    """([B, 1] rows, [B, n] positions) written, when several ragged rows are fed; else None."""


class SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's buffer, [rows, Hkv, capacity, D]."""

    is_sliding = False

    def __init__(self, owner: SlotCache, shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device):
        super().__init__()
        self._owner = owner
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write key/value states [B, Hkv, n, D] where the owner aims; return views [B, Hkv, extent, D]."""
        window = self._owner.window
        if window.at is not None:  # every slice takes the host a microsecond, in each layer of each step
            keys, values = self.keys[window.rows], self.values[window.rows]
            n = window.at.stop - window.at.start
            keys.narrow(2, window.at.start, n).copy_(key_states)
            values.narrow(2, window.at.start, n).copy_(value_states)
            return keys.narrow(2, 0, window.extent), values.narrow(2, 0, window.extent)
        assert window.index is not None
        rows, positions = window.index
        self.keys[rows, :, positions] = key_states.transpose(1, 2)
        self.values[rows, :, positions] = value_states.transpose(1, 2)
        return self.keys[window.rows, :, : window.extent], self.values[window.rows, :, : window.extent]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the buffer exists from the start."""

    def get_seq_length(self) -> int:
        """Positions before the current window; transformers asks only where it is not told positions."""
        return self._owner.window.extent

    def get_max_length(self) -> int:
        """Capacity in tokens."""
        return int(self.keys.shape[2])

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(extent, offset 0); only used by mask functions we do not register."""
        return self._owner.window.extent, 0


class SlotCache(Cache):  # type: ignore[misc]
    """KV of `rows` sequences of at most `capacity` positions each."""

    def __init__(
        self,
        *,
        layers: int,
        rows: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.rows, self.capacity = rows, capacity
        self.window = Window(slice(0, rows), 0, slice(0, 0), None)
        self.granule = 1 if device.type == "cpu" else 256
        """What is read begins and ends at multiples of this: few kernel shapes on a GPU, equal pieces on a CPU."""
        shape = (rows, kv_heads, capacity, head_dim)
        super().__init__(layers=[SlotLayer(self, shape, dtype, device) for _ in range(layers)])

    def end_of(self, start: Sequence[int], n: int) -> int:
        """Where n positions fed at each start end. Raises MeasurementError beyond the capacity."""
        end = max(start) + n
        if end > self.capacity:
            raise MeasurementError(f"position {end} is beyond the cache's capacity of {self.capacity} tokens")
        return end

    def aim_at(self, positions: Tensor) -> None:
        """Point the next forward at rows 0 .. B - 1 and positions [B, n] that the device knows; all is read."""
        rows = torch.arange(len(positions), device=positions.device)[:, None]
        self.window = Window(slice(0, len(positions)), self.capacity, None, (rows, positions))

    def aim(self, first_row: int, start: Sequence[int], n: int, positions: Tensor) -> int:
        """Point the next forward at rows first_row .. first_row + B - 1, positions start[b] .. start[b] + n - 1.

        positions [B, n] int64 on the cache's device. Returns the extent that will be read: rounded up to the
        granule. Raises MeasurementError beyond the capacity.
        """
        end = self.end_of(start, n)
        extent = min(-(-end // self.granule) * self.granule, self.capacity)
        rows = slice(first_row, first_row + len(start))
        if len(start) == 1:
            self.window = Window(rows, extent, slice(start[0], end), None)
        else:
            index = torch.arange(rows.start, rows.stop, device=positions.device)[:, None], positions
            self.window = Window(rows, extent, None, index)
        return extent

    def wipe(self, row: int, start: int) -> None:
        """Zero positions >= start of `row`: a masked value has weight 0, and 0 times NaN is NaN."""
        for layer in self.layers:
            layer.keys[row, :, start:] = 0
            layer.values[row, :, start:] = 0

    @property
    def bytes_per_token(self) -> int:
        """Bytes one position of one row takes over all layers."""
        return sum(
            2 * layer.keys.shape[1] * layer.keys.shape[3] * layer.keys.element_size()  # keys and values
            for layer in self.layers
        )
