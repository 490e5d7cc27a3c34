"""Find a draft checkpoint, check it against the target, and load it strictly. Never runs code from a checkpoint."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from agentbench_spec.drafting import ConfigError, TargetInfo, hub_said

from .. import random_weights
from .qwen3 import Geometry

Net = TypeVar("Net", bound=nn.Module)

_CONFIG = "config.json"
_WEIGHTS = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    random_weights.FILE,
)
_WEIGHT_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A draft checkpoint: where it is and what its config.json says."""

    name: str
    """The folder or hub id, as the user gave it."""
    revision: str | None
    """The commit a hub id was resolved to; for a folder what the user said, if anything."""
    config: Mapping[str, Any]
    folder: Path | None
    """Local folder; None for a hub id whose weights are not fetched yet."""

    @property
    def where(self) -> str:
        """How errors name the config."""
        return f"{self.name}/{_CONFIG}"

    def fetch(self) -> Path:
        """The folder that holds the weights; downloads them for a hub id. Raises ConfigError if it cannot."""
        if self.folder is not None:
            return self.folder
        patterns = ["*.json", "*.safetensors", "pytorch_model*.bin"]
        return Path(_from_hub("snapshot_download", self.name, self.revision, allow_patterns=patterns))


def open_checkpoint(checkpoint: str | Path, *, revision: str | None = None) -> Checkpoint:
    """Read the config of a local folder or a hub id ("owner/name"); weights are not touched.

    Raises ConfigError if there is no such folder or repository, or its config.json is not a JSON object.
    """
    folder = Path(checkpoint).expanduser()
    if folder.is_dir():
        return Checkpoint(str(checkpoint), revision, _read_config(folder / _CONFIG), folder)
    if str(checkpoint).count("/") != 1 or str(checkpoint).startswith((".", "/", "~")):
        raise ConfigError(f"checkpoint {str(checkpoint)!r}: no such folder, and not a hub id of the form owner/name")
    path = Path(_from_hub("hf_hub_download", str(checkpoint), revision, filename=_CONFIG))
    # .../snapshots/COMMIT/config.json: from here on the commit is meant, so weights and config cannot part ways
    return Checkpoint(str(checkpoint), path.parent.name, _read_config(path), None)


def _from_hub(function: str, repository: str, revision: str | None, **arguments: Any) -> str:
    import huggingface_hub

    try:
        return str(getattr(huggingface_hub, function)(repository, revision=revision, **arguments))
    except (OSError, ValueError) as error:  # the hub's own errors derive from these, offline and not-found included
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        what = f"checkpoint {repository!r} (revision {revision or 'main'})"
        if said := hub_said(error):
            raise ConfigError(f"{what}: {said}: {reason}") from error
        raise ConfigError(
            f"{what}: {reason}. "
            f"Without network: download it elsewhere (`hf download {repository}`) and give the folder, NAME=FOLDER"
        ) from error


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: not found; a draft checkpoint is a folder with config.json and weights") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(config).__name__}")
    return config


def tensors_of(folder: Path, device: torch.device | str = "cpu") -> Iterator[tuple[str, Tensor]]:
    """Every (name, tensor) of a checkpoint folder: safetensors or .bin, in one file or sharded by an index.

    `.bin` files are read with weights_only=True; those of a file are on the CPU, random ones are made on `device`.
    Raises ConfigError if there are no weights, or a shard is missing or damaged.
    """
    for path in shard_paths(folder):
        if path.name == random_weights.FILE:
            yield from random_weights.made(path, device)
        else:
            yield from (_safetensors(path) if path.suffix == ".safetensors" else pickled(path).items())


def tensor_names(folder: Path) -> set[str]:
    """The names of a checkpoint folder's tensors. Raises ConfigError as `tensors_of` does."""
    return {name for path in shard_paths(folder) for name in shapes_in(path)}


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape of one weight file; weights are not read. Raises ConfigError if it is damaged."""
    if path.name == random_weights.FILE:
        return random_weights.shapes_in(path)
    if path.suffix == ".safetensors":
        with open_safetensors(path) as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return {name: tuple(tensor.shape) for name, tensor in pickled(path, "meta").items()}


def shard_paths(folder: Path) -> list[Path]:
    """The weight files of a checkpoint folder. Raises ConfigError if there are none or a shard is missing."""
    found = next((name for name in _WEIGHTS if (folder / name).is_file()), None)
    if found is None:
        raise ConfigError(f"{folder}: no weights; expected one of {', '.join(_WEIGHTS)}")
    paths = _shards(folder / found)
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"{path}: this shard is listed in {found} but missing")
    return paths


def _shards(path: Path) -> list[Path]:
    if not path.name.endswith(".index.json"):
        return [path]
    files = _read_config(path).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ConfigError(f"{path}: no 'weight_map' of tensor names to file names; fetch the file again")
    return [path.parent / name for name in sorted(set(files.values()))]


def _safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    with open_safetensors(path) as file:
        for name in file.keys():  # noqa: SIM118 - safe_open is not a mapping
            yield name, file.get_tensor(name)


@contextmanager
def open_safetensors(path: Path) -> Iterator[Any]:
    """The open file, as `safe_open` gives it. Raises ConfigError if it is cut short or something else."""
    try:
        file = safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ConfigError(
            f"{path}: not a whole safetensors file ({error}); the download was cut short, or this is a Git LFS "
            "pointer in its place: fetch the file again"
        ) from error
    with file:
        yield file


def pickled(path: Path, device: str = "cpu") -> dict[str, Tensor]:
    """The tensors of a `.bin` file, on `device`. Raises ConfigError if it holds anything else, or is damaged."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        reason = (str(error) or "it ends too early").splitlines()[0]
        raise ConfigError(f"{path}: not a plain file of tensors, and nothing else is loaded: {reason}") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else {"the whole file": state}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ConfigError(
                f"{path}: {name!r} is no tensor but of type {type(value).__name__}; expected only tensors"
            )
    return dict(state)


def load_strictly(
    make: Callable[[], Net],
    checkpoint: Checkpoint,
    *,
    device: torch.device,
    dtype: torch.dtype,
    rename: Callable[[str], str | None] = lambda name: name,
    tolerated: Collection[str] = (),
) -> Net:
    """Build a net without storage and give it every tensor of the checkpoint, in `dtype` on `device`, for inference.

    make: builds the net; run under the meta device, so nothing is initialised and a parameter the file does not
    hold cannot pass for a loaded one. rename: file name -> name in the net, None to skip the tensor. tolerated:
    file names (or prefixes ending in ".") that may be there and are not used. Buffers keep an integer or bool dtype.
    Raises ConfigError naming the tensor that is unknown, there twice, missing, of another shape or kind, or not finite
    in `dtype`.
    """
    with torch.device("meta"):
        net = make()
    expected: dict[str, Tensor] = dict(net.state_dict())
    state: dict[str, Tensor] = {}
    for file_name, tensor in tensors_of(checkpoint.fetch(), device):
        name = rename(file_name)
        if name is None or (name not in expected and _is_tolerated(file_name, tolerated)):
            continue
        _check_tensor(file_name, tensor, expected.get(name), checkpoint.name)
        if name in state:
            raise ConfigError(
                f"{checkpoint.name}: two tensors for {name!r}, one of them {file_name!r}; which one counts?"
            )
        tensor = tensor.to(dtype) if tensor.is_floating_point() else tensor
        if not bool(tensor.isfinite().all()):
            raise ConfigError(
                f"{checkpoint.name}: tensor {file_name!r} holds NaN or infinity in {dtype}; the file is damaged, or "
                "its values need a wider dtype"
            )
        state[name] = tensor.to(device)
    missing = sorted(expected.keys() - state.keys())
    if missing:
        raise ConfigError(f"{checkpoint.name}: missing tensor {', '.join(missing)}; config.json says it is there")
    net.load_state_dict(state, strict=True, assign=True)
    return net.eval().requires_grad_(False)


def _is_tolerated(name: str, tolerated: Collection[str]) -> bool:
    return any(name == known or (known.endswith(".") and name.startswith(known)) for known in tolerated)


def _check_tensor(name: str, tensor: Tensor, wanted: Tensor | None, where: str) -> None:
    if wanted is None and name.endswith(".bias"):
        raise ConfigError(
            f"{where}: tensor {name!r}: biases are not implemented there, and left out they change drafts"
        )
    if wanted is None:
        raise ConfigError(f"{where}: unknown tensor {name!r} {list(tensor.shape)}; the config and the weights disagree")
    if tensor.shape != wanted.shape:
        raise ConfigError(f"{where}: tensor {name!r} is {list(tensor.shape)}, config.json says {list(wanted.shape)}")
    if wanted.is_floating_point() and tensor.dtype not in _WEIGHT_DTYPES:
        raise ConfigError(f"{where}: tensor {name!r} is {tensor.dtype}; quantised drafts are not implemented")
    if tensor.is_floating_point() and not wanted.is_floating_point():
        raise ConfigError(f"{where}: tensor {name!r} is {tensor.dtype}, but holds ids; a conversion has rounded them")


def check_fits(
    where: str,
    geometry: Geometry,
    target: TargetInfo,
    *,
    layer_ids: Sequence[int],
    lowest_layer: int = 0,
    last_layer: bool = False,
    num_target_layers: int | None = None,
    mask_token_id: int | None = None,
    target_vocabulary: bool = True,
    absolute_rope: bool = True,
) -> None:
    """Raise ConfigError naming the first quantity in which a draft's config and the target differ.

    layer_ids: tapped target layers, strictly increasing, from `lowest_layer` (-1 allows the embedding output) up to
    the last layer (`last_layer` true) or the one before. num_target_layers: as the config has it, None if it does not.
    target_vocabulary: the draft's vocabulary must be the target's. absolute_rope: the draft shares the target's
    positions, so its rope base must be the target's too.
    """

    def differ(quantity: str, draft: object, of_target: object) -> ConfigError:
        return ConfigError(f"{where}: {quantity} is {draft}, target {target.name!r} has {of_target}; wrong pair?")

    if geometry.hidden_size != target.hidden_size:
        raise differ("hidden_size", geometry.hidden_size, target.hidden_size)
    if target_vocabulary and geometry.vocab_size != target.vocab_size:
        raise differ("vocab_size", geometry.vocab_size, target.vocab_size)
    if num_target_layers is not None and num_target_layers != target.num_layers:
        raise differ("num_target_layers", num_target_layers, target.num_layers)
    _check_layers(where, layer_ids, lowest_layer, target.num_layers - (1 if last_layer else 2), target)
    if mask_token_id is not None and not 0 <= mask_token_id < target.vocab_size:
        raise differ("mask_token_id", mask_token_id, f"token ids 0..{target.vocab_size - 1}")
    theta = target_rope_theta(target.config)
    if absolute_rope and theta is not None and theta != geometry.rope_theta:
        raise ConfigError(
            f"{where}: rope base is {geometry.rope_theta}, target {target.name!r} has {theta}; drafts share the "
            "target's positions, so this is almost surely a mistake. The option rope_theta= sets it"
        )


def _check_layers(where: str, ids: Sequence[int], lowest: int, highest: int, target: TargetInfo) -> None:
    if not ids or list(ids) != sorted(set(ids)):
        raise ConfigError(f"{where}: target_layer_ids {list(ids)} must be strictly increasing and not empty")
    if ids[0] < lowest or ids[-1] > highest:
        raise ConfigError(
            f"{where}: target_layer_ids {list(ids)} must lie in {lowest}..{highest} for target {target.name!r} with "
            f"{target.num_layers} layers (of the last layer only the state after the final norm exists)"
        )


def target_rope_theta(config: Any) -> float | None:
    """The rope base of a transformers config (5.x or 4.x style) or of a mapping; None if it does not say."""
    values = config if isinstance(config, Mapping) else vars(config) if hasattr(config, "__dict__") else {}
    nested = values.get("rope_parameters") or values.get("rope_scaling") or {}
    theta = nested.get("rope_theta", values.get("rope_theta")) if isinstance(nested, Mapping) else None
    return None if theta is None else float(theta)


def alias_frozen_copies(net: nn.Module, target: TargetInfo) -> tuple[str, ...]:
    """Replace the net's `embed_tokens` and `lm_head` by the target's modules where the weights are bitwise equal.

    Returns the names replaced. A copy that differs in one bit stays, because the draft was trained with it.
    """
    replaced = []
    for name, original in (("embed_tokens", target.embed_tokens), ("lm_head", target.lm_head)):
        own, its = getattr(getattr(net, name, None), "weight", None), getattr(original, "weight", None)
        if isinstance(own, Tensor) and isinstance(its, Tensor) and _bitwise_equal(own, its):
            setattr(net, name, original)
            replaced.append(name)
    return tuple(replaced)


def _bitwise_equal(one: Tensor, other: Tensor) -> bool:
    same = one.shape == other.shape and one.dtype == other.dtype and one.device == other.device
    return same and torch.equal(one, other)
