"""Where target models come from: a hub id, a local folder, or the embedded one."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agentbench_spec.engine import embedded
from agentbench_spec.engine.hub_reach import refuse_missing_folder
from agentbench_spec.engine.long_context import apply_rope_scaling
from agentbench_spec.engine.unsupported import refuse_unsupported
from agentbench_spec.errors import ConfigError, hub_said

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["LoadedModel", "load"]

_DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_HASH_LIMIT_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class LoadedModel:
    """A target model ready to run, and where it came from."""

    name: str
    """The source as the user gave it."""
    model: PreTrainedModel
    """In eval mode, without gradients, on its device."""
    tokenizer: PreTrainedTokenizerBase
    provenance: dict[str, Any]
    """source, revision, sha256, licence (None: not known), dtype, device."""


def load(
    source: str,
    *,
    dtype: str | torch.dtype = "auto",
    device: str = "auto",
    revision: str | None = None,
    rope_scaling: Mapping[str, Any] | None = None,
) -> LoadedModel:
    """Load a target model and its tokenizer; code that comes with a checkpoint is never run.

    source: hub id, local folder, or "smollm2-135m"; dtype "auto": float32 on the CPU, the checkpoint's own on CUDA;
    device "auto": CUDA where there is one; revision: hub revision, for hub ids only;
    rope_scaling: see `long_context.apply_rope_scaling`.
    Raises ConfigError for a model that is missing or that the engine cannot serve exactly.
    """
    tokenizer = load_tokenizer(source, revision=revision)
    model, found = load_model(source, dtype=dtype, device=device, revision=revision, rope_scaling=rope_scaling)
    return LoadedModel(source, model, tokenizer, found)


def load_model(
    source: str,
    *,
    dtype: str | torch.dtype = "auto",
    device: str = "auto",
    revision: str | None = None,
    rope_scaling: Mapping[str, Any] | None = None,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A target without its tokenizer, and its provenance; arguments and errors as for `load`."""
    from transformers import AutoModelForCausalLM

    where = resolve_device(device)
    wanted = resolve_dtype(dtype, where)
    path, found = _locate(source, revision)
    config = _fetch(source, path, found["revision"])
    refuse_unsupported(config)
    found["revision"] = found["revision"] or getattr(config, "_commit_hash", None)
    options = {"revision": found["revision"], "trust_remote_code": False}
    if rope_scaling is not None:
        found["rope_scaling"] = apply_rope_scaling(config, rope_scaling, source)
        options["config"] = config
    model = _read(
        source, path, AutoModelForCausalLM.from_pretrained, {**options, "dtype": wanted, "device_map": {"": where}}
    )
    model.eval().requires_grad_(False)
    return model, {**found, "dtype": str(model.dtype), "device": str(model.device)}


def load_tokenizer(source: str, *, revision: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a target, with its chat template, without the weights. Raises as `load` does."""
    path, found = _locate(source, revision)
    return _tokenizer_at(source, path, {"revision": found["revision"], "trust_remote_code": False})


def load_model_config(
    source: str, *, revision: str | None = None, rope_scaling: Mapping[str, Any] | None = None
) -> PretrainedConfig:
    """The configuration of a target, without its weights. Raises as `load` does."""
    path, found = _locate(source, revision, digest=False)
    config = _fetch(source, path, found["revision"])
    refuse_unsupported(config)
    if rope_scaling is not None:
        apply_rope_scaling(config, rope_scaling, source)
    return config


def dtype_of(dtype: str, device: str, config: PretrainedConfig) -> torch.dtype:
    """The dtype a target of this configuration is loaded in; a device that is not here may be planned for.

    Raises ConfigError for an unknown dtype.
    """
    planned = device if device.partition(":")[0] in ("cpu", "cuda") else str(resolve_device(device))
    wanted = resolve_dtype(dtype, torch.device(planned))
    own = config.dtype if wanted == "auto" else wanted
    return own if isinstance(own, torch.dtype) else torch.float32


def _tokenizer_at(source: str, path: str, options: dict[str, Any]) -> Any:
    tokenizer = _read(source, path, _tokenizer_of, options)
    if source == embedded.NAME:
        tokenizer.chat_template = embedded.chat_template()
    return tokenizer


def resolve_device(device: str) -> torch.device:
    """The device `device` names; "auto": CUDA where there is one. Raises ConfigError if it does not exist."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(f"device {device!r} is not known; use auto, cpu, cuda or cuda:N") from error
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {device!r}: this torch ({torch.__version__}) sees no CUDA device; use device=cpu")
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {device!r}: there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    if wanted.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {device!r} is not supported; use auto, cpu, cuda or cuda:N")
    return wanted


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> str | torch.dtype:
    """The dtype that `dtype` names; "auto": float32 on a CPU, else "auto", the checkpoint's own. Raises ConfigError."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not known; use auto, {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def _locate(source: str, revision: str | None, *, digest: bool = True) -> tuple[str, dict[str, Any]]:
    """What from_pretrained is given for `source`, and its provenance; digest: that of a folder's weights, too."""
    if source == embedded.NAME:
        if revision is not None:
            raise ConfigError(f"model {source!r} has no revisions; leave revision out")
        return str(embedded.folder()), {**embedded.provenance(), "revision": None}
    refuse_missing_folder(source)
    folder = Path(source).expanduser()
    if folder.is_dir():
        sha256 = _weights_sha256(folder) if digest else None
        found = {"source": str(folder.resolve()), "sha256": sha256, "licence": _licence(folder)}
        return str(folder), {**found, "revision": revision}
    return source, {"source": f"hf:{source}", "sha256": None, "licence": None, "revision": revision}


def _fetch(source: str, path: str, revision: str | None) -> PretrainedConfig:
    from transformers import AutoConfig

    return _read(source, path, AutoConfig.from_pretrained, {"revision": revision, "trust_remote_code": False})


def _tokenizer_of(path: str, **options: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, **options)


def _read(source: str, path: str, reader: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Call a from_pretrained; what it finds missing or unknown becomes a ConfigError that says what was tried."""
    try:
        return reader(path, **options)
    except (OSError, ValueError) as error:
        raise _cannot_load(source, path, error) from error


def _cannot_load(source: str, path: str, error: Exception) -> ConfigError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(path).is_dir():
        return ConfigError(f"model {source!r} in {path} cannot be loaded: {reason}")
    if said := hub_said(error):
        return ConfigError(f"model {source!r}: {said}: {reason}")
    told = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    offline = " (HF_HUB_OFFLINE is set, so the hub was not asked)" if told else ""
    near = difflib.get_close_matches(source.lower(), [embedded.NAME], n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ConfigError(
        f"model {source!r}: no folder of that name in {Path.cwd()}, and the Hugging Face hub did not give it{offline}: "
        f"{reason}{hint}. Without network: download it elsewhere (`hf download {source}`) and give the folder, or "
        f"use the embedded model {embedded.NAME!r}"
    )


def _weights_sha256(folder: Path) -> str | None:
    """SHA-256 over the weight files in name order; None above 2 GiB, where hashing would outlast loading."""
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    if not files or sum(file.stat().st_size for file in files) > _HASH_LIMIT_BYTES:
        return None
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def _licence(folder: Path) -> str | None:
    """The licence the model card's front matter names, if there is a card."""
    card = folder / "README.md"
    if not card.is_file():
        return None
    match = re.search(r"\A---\s.*?^license:\s*(\S+)", card.read_text("utf-8", "replace"), re.DOTALL | re.MULTILINE)
    return match.group(1) if match else None
