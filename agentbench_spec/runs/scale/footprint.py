"""What a run needs on one device: memory, from the target's configuration without its weights, and downloads."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentbench_spec.config import RunConfig
from agentbench_spec.engine import embedded
from agentbench_spec.engine.hub_reach import is_hub_id
from agentbench_spec.errors import ConfigError, hub_said
from agentbench_spec.plugins import part_names, with_checkpoints
from agentbench_spec.runs.scale.speeds import Speeds

if TYPE_CHECKING:
    import torch
    from huggingface_hub import DryRunFileInfo
    from transformers import PretrainedConfig

Ask = Callable[[str, str | None], Sequence["DryRunFileInfo"]]
"""(hub id, revision) -> its files, each with `file_size` in bytes, `will_download`, `is_cached` and `local_path`."""

_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.tiktoken")
"""What a model is loaded from: no second copy of the weights in another format."""


@dataclass(frozen=True, slots=True)
class Download:
    """A model or checkpoint of the run, and what of it must still be fetched."""

    what: str
    source: str
    files: int | None
    """Still to be fetched; None: not known."""
    fetch_bytes: int | None
    weight_bytes: int | None
    """Of its weights as they are stored, wherever they lie; None: not known."""
    values: int | None = None
    """Floating-point values among them; None: they are not here to be counted."""
    other_bytes: int = 0
    """Of what else is stored with those values, such as maps of token ids."""
    note: str | None = None
    """Why nothing is known, or what else is done once."""

    def bytes_in(self, dtype: torch.dtype) -> int | None:
        """Of its weights, loaded in `dtype`; as they are stored where they cannot be counted; None: not known."""
        return self.weight_bytes if self.values is None else self.values * dtype.itemsize + self.other_bytes


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that lie on the device from the first turn to the last; activations and the driver's own come on top."""

    weight_bytes: int
    kv_bytes: int
    """The target's, over `capacity_tokens`, with its logits in a round."""
    kv_bytes_per_token: int
    capacity_tokens: int
    dtype: str
    drafter_bytes: dict[str, int | None] = field(default_factory=dict)
    """Weights and, where `--speeds` tells, the state over a full text, of each drafter; None: not known."""

    @property
    def total_bytes(self) -> int:
        """All that is known; drafters of unknown size are not in it."""
        return self.weight_bytes + self.kv_bytes + sum(own or 0 for own in self.drafter_bytes.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the total."""
        return {**asdict(self), "total_bytes": self.total_bytes}


def ask_hub(source: str, revision: str | None) -> Sequence[DryRunFileInfo]:
    """The files a model is loaded from, asked of the hub without fetching any. Raises what the hub's library does."""
    from huggingface_hub import snapshot_download

    return snapshot_download(source, revision=revision, allow_patterns=list(_FILES), dry_run=True)


def downloads(config: RunConfig, ask: Ask = ask_hub) -> list[Download]:
    """Every model and checkpoint the run loads, with what must still be fetched of each."""
    target = config.named_target
    found = [_download("target", target, config.target.revision, ask)] if target else []
    found += [_download(name, source, revision, ask) for name, source, revision in checkpoints_of(config)]
    counted = config.workload.options.get("tokenizer")
    if isinstance(counted, str) and counted != target:
        found.append(_download("tokenizer", counted, None, ask))
    return found


def checkpoints_of(config: RunConfig) -> Iterator[tuple[str, str, str | None]]:
    """(drafter, checkpoint, revision) of each drafter that has a checkpoint, the package's own among them."""
    shipped = partial(embedded.shipped_drafter, target=config.target.source)
    for name in dict.fromkeys(config.drafters):
        base = name.partition("=")[0]
        options = {**config.drafter_options.get(base, {}), **config.drafter_options.get(name, {})}
        yield from _checkpoints(name, name, options, shipped)


def _checkpoints(
    name: str, drafter: str, options: Mapping[str, Any], shipped: Callable[[str], Mapping[str, Any]]
) -> Iterator[tuple[str, str, str | None]]:
    """Those of the drafter called `name` that `drafter`, itself or a part of it, loads."""
    if parts := part_names(drafter):
        of_parts = options.get("part_options", {})
        for part in parts:
            yield from _checkpoints(name, part, of_parts.get(part, {}), shipped)
        return
    base, _, given = drafter.partition("=")
    filled = with_checkpoints(base, {**({"checkpoint": given} if given else {}), **options}, shipped)
    if isinstance(source := filled.get("checkpoint"), str):
        revision = filled.get("revision")
        yield name, source, revision if isinstance(revision, str) and is_hub_id(source) else None


def _download(what: str, source: str, revision: str | None, ask: Ask) -> Download:
    if source == embedded.NAME:
        there = embedded.cached_folder().is_dir()
        return Download(what, source, 0, 0, None, note=None if there else "converted once from its package")
    if not is_hub_id(source):
        found = [path for path in Path(source).expanduser().glob("*") if _is_weights(path.name)]
        return Download(what, source, 0, 0, sum(path.stat().st_size for path in found) or None, *_counted(found))
    try:
        files = ask(source, revision)
    except Exception as error:  # no hub, no such model, no way in: the run will say it, with the way out
        reason = hub_said(error) or (str(error).strip().splitlines() or [type(error).__name__])[0]
        return Download(what, source, None, None, None, note=reason)
    wanted = [file for file in files if file.will_download]
    weights = [file for file in files if _is_weights(file.filename)]
    here = [Path(file.local_path) for file in weights if file.is_cached]
    counted = _counted(here) if len(here) == len(weights) else (None, 0)
    stored = sum(file.file_size or 0 for file in weights) or None
    return Download(what, source, len(wanted), sum(file.file_size or 0 for file in wanted), stored, *counted)


def _is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".bin"))


def _counted(files: Sequence[Path]) -> tuple[int | None, int]:
    """(floating-point values, bytes of all else) in weight files, from their headers; (None, 0): none are told."""
    values = other = 0
    for path in files:
        if path.suffix != ".safetensors":
            return None, 0
        with path.open("rb") as file:
            tensors = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for tensor in (own for name, own in tensors.items() if name != "__metadata__"):
            if tensor["dtype"].startswith(("F", "BF")):
                values += math.prod(tensor["shape"])
            else:
                begin, end = tensor["data_offsets"]
                other += end - begin
    return (values, other) if files else (None, 0)


def shape_of(config: RunConfig) -> PretrainedConfig:
    """The target's configuration. Raises ConfigError if it cannot be had, or the engine does not run such a model."""
    from agentbench_spec.engine.loading import load_model_config

    wanted = config.target
    scaling = wanted.rope_scaling.model_dump() if wanted.rope_scaling else None
    return load_model_config(wanted.source, revision=wanted.revision, rope_scaling=scaling)


def memory(
    config: RunConfig, shape: PretrainedConfig, capacity: int, found: Sequence[Download], speeds: Speeds | None
) -> Memory:
    """What the run holds on its device. Raises ConfigError if the size of the target cannot be told.

    shape: the target's configuration; capacity: longest text in tokens.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from agentbench_spec.engine.batching import row_bytes
    from agentbench_spec.engine.loading import dtype_of

    dtype = dtype_of(config.target.dtype, config.target.device, shape)
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(shape, dtype=dtype)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"model {config.target.source!r}: its size cannot be told from its config: {error}"
        ) from error
    k = config.decode.k
    drafts: dict[str, int | None] = {}
    for own in found:
        if own.what not in ("target", "tokenizer"):  # of a drafter made of several, all parts
            part = _drafter_bytes(own, dtype, capacity, speeds)
            drafts[own.what] = None if part is None else (drafts.get(own.what) or 0) + part
    return Memory(
        weight_bytes=sum(p.numel() for p in model.parameters()) * dtype.itemsize,
        kv_bytes=row_bytes(shape, dtype, capacity + k + 1, k),
        kv_bytes_per_token=row_bytes(shape, dtype, 1, k) - row_bytes(shape, dtype, 0, k),
        capacity_tokens=capacity,
        dtype=str(dtype).removeprefix("torch."),
        drafter_bytes=drafts,
    )


def _drafter_bytes(own: Download, dtype: torch.dtype, capacity: int, speeds: Speeds | None) -> int | None:
    """A shipped or downloaded checkpoint's weights in the run's dtype, and the state over a full text."""
    weights = own.bytes_in(dtype)
    if weights is None:
        return None
    speed = speeds.methods.get(own.what.partition("=")[0]) if speeds else None
    state = speed.state_bytes_per_token if speed else None
    return weights + int((state or 0.0) * capacity)
