"""What the target makes of a training text: tapped states, its own head's input, and its greedy choices.

Either computed when a text is drawn (`Online`) or once for all texts (`Cached`). Texts that start alike, as the turns
of one rollout do, share the work and the disk: only what follows the common start is run and stored.
Axes: T positions, S tapped layers, H hidden.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from agentbench_spec.bars import Bar
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.rollouts.render import common_prefix
from agentbench_spec.train.texts import Text

__all__ = ["Cached", "Extractor", "FeatureSource", "Features", "Online", "build_cache"]

_HEAD_ROWS = 512


@dataclass(frozen=True, slots=True)
class Features:
    """The target's view of one text."""

    states: Tensor
    """[T, S, H]: states of the wanted layers."""
    final: Tensor
    """[T, H]: state after the final norm; the target's head turns it into the logits of the next position."""
    greedy: Tensor
    """[T] int64: the target's choice for position t + 1 where that position is supervised, else -1."""


class FeatureSource(Protocol):
    """Features by text index."""

    def __getitem__(self, index: int) -> Features:
        """The features of text `index`."""
        ...


class Extractor:
    """Runs texts through row 0 of a target; keeps the last one, so that the next pays for its own part only."""

    def __init__(self, target: Target, layers: Sequence[int], *, chunk_tokens: int = 512) -> None:
        """layers: target states wanted, in this order."""
        self.target, self.layers, self._chunk = target, tuple(layers), chunk_tokens
        self.last = target.info.num_layers - 1
        self._ids: tuple[int, ...] = ()
        self._states: dict[int, Tensor] = {}

    def __call__(self, text: Text) -> Features:
        """The features of `text`; raises ConfigError if it is longer than the target's capacity."""
        if len(text.input_ids) > self.target.capacity:
            raise ConfigError(
                f"text {text.id} has {len(text.input_ids)} tokens, the target holds {self.target.capacity}; "
                "lower max_tokens"
            )
        self._run(text.input_ids)
        final = self._states[self.last]
        return Features(self.stacked(), final, greedy_choices(self.target.info.lm_head, final, text.mask()))

    def stacked(self) -> Tensor:
        """[T, S, H] of the text run last."""
        return torch.stack([self._states[layer] for layer in self.layers], 1)

    def _run(self, ids: tuple[int, ...]) -> None:
        kept = common_prefix(self._ids, ids)
        self.target.truncate(0, kept)
        pieces = [{layer: states[:kept] for layer, states in self._states.items()}]
        for start in range(kept, len(ids), self._chunk):
            chunk = torch.tensor([ids[start : start + self._chunk]], device=self.target.info.device)
            found = self.target.evaluate(0, [start], chunk, keep=1, taps={*self.layers, self.last})
            self.target.commit(0, start + chunk.shape[1])
            pieces.append({layer: states[0] for layer, states in found.states.items()})
        # torch.cat makes ordinary tensors of the engine's inference tensors, which autograd would refuse
        self._states = {
            layer: torch.cat([piece[layer] for piece in pieces if layer in piece])
            for layer in {*self.layers, self.last}
        }
        self._ids = ids


@torch.no_grad()
def greedy_choices(head: Callable[[Tensor], Tensor], final: Tensor, supervised: Tensor) -> Tensor:
    """The target's choice for position t + 1 where supervised [T] bool has it, else -1: final [T, H] -> [T] int64."""
    choices = torch.full((len(final),), -1, dtype=torch.int64, device=final.device)
    wanted = supervised[1:].nonzero().flatten().to(final.device)
    finite = torch.ones((), dtype=torch.bool, device=final.device)
    for rows in torch.split(wanted, _HEAD_ROWS):
        logits = head(final[rows])
        choices[rows] = logits.argmax(-1)
        finite &= logits.amax(-1).isfinite().all()
    if not finite:
        raise MeasurementError("the target's logits are not finite: it cannot teach; check its weights and dtype")
    return choices


class Online:
    """Features computed when asked for."""

    def __init__(self, texts: Sequence[Text], extractor: Extractor) -> None:
        self._texts, self._extractor = texts, extractor

    def __getitem__(self, index: int) -> Features:
        return self._extractor(self._texts[index])


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where the parts of each text lie in the file of states, in positions."""

    ranges: list[list[tuple[int, int]]]
    kept: list[int]
    """Positions of each text that the one before it has already."""
    positions: int


def _plan(texts: Sequence[Text]) -> _Plan:
    ranges: list[list[tuple[int, int]]] = []
    shares = []
    written = 0
    before: tuple[int, ...] = ()
    for text in texts:
        kept = common_prefix(before, text.input_ids)
        shared = _first(ranges[-1], kept) if ranges else []
        new = len(text.input_ids) - kept
        shares.append(kept)
        ranges.append([*shared, *([(written, written + new)] if new else [])])
        written, before = written + new, text.input_ids
    return _Plan(ranges, shares, written)


def _first(ranges: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """The part of `ranges` that holds the first `length` positions."""
    found = []
    for start, stop in ranges:
        if length <= 0:
            break
        found.append((start, min(stop, start + length)))
        length -= stop - start
    return found


def build_cache(
    folder: Path, texts: Sequence[Text], extractor: Extractor, dtype: torch.dtype, *, say: Callable[[str], None]
) -> None:
    """Write the features of `texts` to `folder`, unless they are there; `say` is told the size before.

    A folder with more layers than are wanted will do.
    Raises ConfigError if the folder holds other features, or a state does not fit `dtype`.
    """
    digest, taps = _digest(texts, extractor, dtype), _taps(extractor)
    index = folder / "index.json"
    if index.is_file():
        there = json.loads(index.read_text("utf-8"))
        if there["digest"] != digest:
            raise ConfigError(f"{folder} holds features of other texts or another target; name a new folder")
        if missing := sorted(set(taps) - set(there["taps"])):
            raise ConfigError(
                f"{folder} lacks the states of layers {missing}; name a new folder, or store the layers of several "
                f"drafters in one from the start: feature_layers={sorted({*taps, *there['taps']})}"
            )
        return
    plan = _plan(texts)
    info = extractor.target.info
    size = plan.positions * len(taps) * info.hidden_size * torch.empty((), dtype=dtype).element_size()
    shared = sum(len(text.input_ids) for text in texts) - plan.positions
    say(
        f"features: {plan.positions} positions x {len(taps)} states of {info.hidden_size} {dtype} = "
        f"{size / 1e9:.2f} GB in {folder} ({shared} positions shared between texts)"
    )
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "states.bin").open("wb") as states, (folder / "greedy.bin").open("wb") as greedy:
        for text, kept in zip(Bar(texts, desc="features", unit="text"), plan.kept, strict=True):
            found = extractor(text)
            states.write(_bytes(_stored(extractor, kept, dtype, text.id)))
            greedy.write(_bytes(found.greedy.to(torch.int32)))
    described = {"digest": digest, "taps": taps, "hidden": info.hidden_size, "dtype": str(dtype), "ranges": plan.ranges}
    index.write_text(json.dumps({**described, "lengths": [len(text.input_ids) for text in texts]}), "utf-8")


def _taps(extractor: Extractor) -> list[int]:
    return sorted({*extractor.layers, extractor.last})


def _stored(extractor: Extractor, start: int, dtype: torch.dtype, name: str) -> Tensor:
    states = torch.stack([extractor._states[layer][start:] for layer in _taps(extractor)], 1).to(dtype)
    if not bool(states.isfinite().all()):
        raise ConfigError(f"text {name}: a target state does not fit {dtype}; use feature_dtype bfloat16")
    return states


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes()


def _digest(texts: Sequence[Text], extractor: Extractor, dtype: torch.dtype) -> str:
    sha = hashlib.sha256(json.dumps([extractor.target.info.name, str(dtype)]).encode())
    for weight in list(extractor.target.model.parameters())[-2:]:  # another training of the same architecture
        sha.update(_bytes(weight.detach().flatten()[:4096].float()))
    for text in texts:
        sha.update(json.dumps(text.as_dict()).encode())
    return sha.hexdigest()


class Cached:
    """Features read from a folder that `build_cache` wrote; the file of states is mapped, not loaded."""

    def __init__(self, folder: Path, layers: Sequence[int]) -> None:
        index: dict[str, Any] = json.loads((folder / "index.json").read_text("utf-8"))
        taps: list[int] = index["taps"]
        self._columns = [taps.index(layer) for layer in layers]
        self._ranges, self._lengths = index["ranges"], index["lengths"]
        dtype = getattr(torch, index["dtype"].removeprefix("torch."))
        positions = max((stop for ranges in self._ranges for _, stop in ranges), default=0)
        shape = (positions, len(taps), index["hidden"])
        size = positions * len(taps) * index["hidden"]
        self._states = torch.from_file(str(folder / "states.bin"), size=size, dtype=dtype).view(shape)
        self._greedy = torch.from_file(str(folder / "greedy.bin"), size=sum(self._lengths), dtype=torch.int32)

    def __getitem__(self, index: int) -> Features:
        states = torch.cat([self._states[start:stop] for start, stop in self._ranges[index]])
        begin = sum(self._lengths[:index])
        greedy = self._greedy[begin : begin + self._lengths[index]].long()
        return Features(states[:, self._columns], states[:, -1], greedy)
