"""DLite with sliding-window KV: the history-aware net of DLite's recipe, drafting for itself.

It keeps one fused state for each of the last W - 1 positions before the newest, as keys and values of every draft
layer. So its upkeep and its state stop growing at W, and the comparison with DLite shows what the window is worth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentbench_spec.drafting import ConfigError, Span, TargetInfo

from .dlite import DLiteDrafter, Verification
from .nets.checkpoint import Checkpoint, load_strictly, open_checkpoint
from .nets.context import ContextCache
from .nets.dlite import DLiteConfig
from .nets.dlite_window import WindowNet, history_layers
from .nets.pivots import Pivots
from .nets.qwen3 import Rotary, grouped_attention, whole


class _Window:
    """What blocks see of the text: per row, W - 1 positions of a ContextCache, then the keys they bring along."""

    def __init__(self, cache: ContextCache, at: Tensor, window: int, own: Tensor) -> None:
        back = torch.arange(-window, -1, device=at.device)
        where = at[:, None] + back
        self._cache, self._where = cache, where.clamp(min=0)
        self._mask = torch.cat(((where >= 0)[:, None, None], own), -1)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        rows = torch.arange(len(keys), device=keys.device)[:, None]
        far = (buffer[:, layer].transpose(1, 2)[rows, self._where] for buffer in (self._cache.keys, self._cache.values))
        seen = [torch.cat((old.transpose(1, 2), new), 2) for old, new in zip(far, (keys, values), strict=True)]
        return grouped_attention(queries, seen[0], seen[1], self._mask)


class DLiteWindowDrafter(DLiteDrafter):
    """A history-aware DLite checkpoint (`model_role` "swa_teacher") on engine rows."""

    net: WindowNet

    def __init__(self, checkpoint: Checkpoint, config: DLiteConfig, verification: Verification, window: int) -> None:
        super().__init__(checkpoint, config, verification)
        self.window = window
        self._history = history_layers(config.num_target_layers)
        layers = tuple(sorted({*config.target_layer_ids, *self._history}))
        self._slot_columns = [layers.index(layer) for layer in config.target_layer_ids]
        self._history_columns = [layers.index(layer) for layer in self._history]
        self.spec = replace(
            self.spec,
            name="dlite_window",
            hidden_layers=layers,
            hidden_scope="all",
            history_free=False,
            max_positions=config.geometry.max_positions,
        )

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        """Check the geometry, load the weights, allocate the rows. Raises ConfigError."""
        config, device, dtype = self.config, target.device, target.dtype
        self.check_geometry(target)
        self.net = load_strictly(lambda: WindowNet(config), self.checkpoint, device=device, dtype=dtype)
        self.net.embed_tokens = target.embed_tokens
        slots = len(config.target_layer_ids)
        self._static = target.attention is not None
        self._pivots = Pivots(rows, slots, target.hidden_size, dtype=dtype, device=device, static=self._static)
        self._text = torch.zeros(rows, capacity + 1, dtype=torch.int64, device=device)
        self._rotary = Rotary(config.geometry, device=device, dtype=dtype)
        columns = (self._slot_columns, self._history_columns)  # as tensors: a list would be copied in every round
        self._slots, self._fused = (torch.tensor(part, device=device) for part in columns)
        self._context = ContextCache(config.geometry, rows=rows, capacity=capacity, block=0, device=device, dtype=dtype)

    @torch.inference_mode()
    def observe(self, span: Span) -> None:
        """Keep the newest position's states, and the keys and values of every committed position's fused state."""
        if span.hidden is None:
            raise ConfigError("dlite_window: the engine delivered no hidden states")
        device, hidden = span.hidden.device, span.hidden
        self._context.advance(span)
        rows, start, count = (part.to(device) for part in (span.rows, span.start, span.count))
        last = (count - 1).clamp(min=0)
        newest = hidden[torch.arange(len(rows), device=device), last][:, self._slots]
        self._pivots.take(rows, start, count, newest)
        offset = torch.arange(span.input_ids.shape[1], device=device)
        counted = offset < count[:, None]
        positions = start[:, None] + offset
        self._text[rows[:, None], torch.where(counted, positions, self._text.shape[1] - 1)] = span.input_ids
        history = self.net.history(self.net.fuse(hidden[:, :, self._fused]), self._rotary(positions))
        keys, values = (torch.stack(part, 1) for part in zip(*history, strict=True))
        self._context.append(rows, start, count, keys, values)

    def _states(self, real: Tensor, at: Tensor) -> Tensor:
        """Final states [B, K, H] of the masks, for groups real [B, G] whose anchors sit at `at` [B]."""
        place = self.net.places(at)
        window = _Window(self._context, at, self.window, place.visible)
        query, slots = self.net.queries(real, self.config.max_tokens), self.net.slots(self._pivots.newest)
        return self.net.block_with(window, slots, query, self._rotary(place.positions))

    @torch.inference_mode()
    def truncate(self, row: int, length: int) -> None:
        super().truncate(row, length)
        self._context.truncate(row, length)

    def state_bytes(self, row: int) -> int:
        """Keys and values of the window; older ones are kept only so that a turn can be thrown away."""
        keys, values = self._seen(row)
        return keys.nbytes + values.nbytes

    def _seen(self, row: int) -> tuple[Tensor, Tensor]:
        keys, values = self._context.of_row(row)
        length = keys.shape[2]
        window = slice(max(length - self.window, 0), max(length - 1, 0))
        return keys[:, :, window], values[:, :, window]

    def snapshot(self, row: int) -> Mapping[str, Tensor]:
        """The window's keys and values, and what DLite knows."""
        known = super().snapshot(row)
        keys, values = self._seen(row)
        return {**known, "keys": keys, "values": values} if known else {}


def make(
    checkpoint: str | Path | None = None,
    *,
    revision: str | None = None,
    verification: Verification = "match",
    rope_theta: float | None = None,
) -> DLiteWindowDrafter:
    """A history-aware DLite drafter, as `train dlite --option role=teacher --option window=128` writes it.

    verification: "match" or "rejection" at temperature > 0. rope_theta: rope base in place of the config's.
    Raises ConfigError if the checkpoint is not one.
    """
    if checkpoint is None:
        raise ConfigError(
            "dlite_window needs a checkpoint: dlite_window=FOLDER. None is published; train one with "
            "`agentbench-spec train dlite --option role=teacher --option window=128`"
        )
    found = open_checkpoint(checkpoint, revision=revision)
    own: dict[str, Any] = dict(found.config.get("dlite_config") or {})
    if own.get("model_role") != "swa_teacher":
        raise ConfigError(f"{found.where}: model_role is {own.get('model_role')!r}, expected 'swa_teacher'; try dlite=")
    window = whole(own, "swa_window_size", found.where)
    as_student = {**found.config, "dlite_config": {**own, "model_role": "pivot_q_student"}}
    config = DLiteConfig.from_config(as_student, found.where, rope_theta=rope_theta)
    if list(own.get("history_layer_ids", history_layers(config.num_target_layers))) != list(
        history_layers(config.num_target_layers)
    ):
        raise ConfigError(f"{found.where}: history_layer_ids {own['history_layer_ids']} are not those implemented")
    return DLiteWindowDrafter(found, config, verification, window)
