"""Model sources and refusals, on tiny random models and bare configs; nothing is downloaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from agentbench_spec.engine.loading import _cannot_load, load
from agentbench_spec.engine.unsupported import refuse_unsupported
from agentbench_spec.errors import ConfigError

TINY = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


def config(name: str, **options: Any) -> Any:
    return getattr(transformers, f"{name}Config")(**{**TINY, **options})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny bf16 Qwen3 checkpoint with a tokenizer and a model card."""
    path = tmp_path_factory.mktemp("qwen3")
    torch.manual_seed(0)
    transformers.Qwen3ForCausalLM(config("Qwen3")).to(torch.bfloat16).save_pretrained(path)
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(32)}, unk_token="t0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="t1").save_pretrained(path)
    (path / "README.md").write_text("---\ntags: [x]\nlicense: apache-2.0\n---\n# Tiny\n")
    return path


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Llama", {}),
        ("Qwen2", {}),
        ("Qwen3", {}),
        ("Qwen2", {"sliding_window": 16, "use_sliding_window": False}),
        ("Mistral", {"sliding_window": None}),
        ("Phi3", {"sliding_window": 8192, "max_position_embeddings": 4096}),
        ("GPTNeoX", {}),
        ("Mistral", {"sliding_window": 16}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
        ("Gemma3Text", {}),
        ("Llama4", {"text_config": {**TINY, "layer_types": ["full_attention"] * 2}}),
    ],
)
def test_causal_attention_is_accepted(name: str, options: dict[str, Any]) -> None:
    """Fails if a supported family is refused, as for a window, or for sizes that stand in a part of its config."""
    refuse_unsupported(config(name, **options))


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("Qwen2", {"layer_types": ["sliding_attention", "full_attention"]}, "sliding_window is None"),
        ("Llama4Text", {"layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
        ("Gemma3", {"text_config": TINY}, "part of a larger one"),
        ("Gemma4Text", {}, "its layers differ in head_dim"),
        ("Gemma2", {}, "attn_logit_softcapping"),
        ("Gemma2", {"layer_types": ["full_attention"] * 2}, "caps attention logits"),
        ("GptOss", {}, "sinks"),
        ("GptOss", {"layer_types": ["full_attention"] * 2}, "sinks"),
        ("Mamba", {}, "recurrent"),
        ("Rwkv", {}, "recurrent"),
        ("RecurrentGemma", {}, "recurrent"),
        ("Qwen3Next", {"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ("Lfm2", {"layer_types": ["conv", "full_attention"]}, "conv"),
        ("MiniMax", {"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        ("T5", {}, "encoder-decoder"),
        ("Bert", {}, "bidirectional"),
        ("Vit", {}, "no causal language model"),
        ("StableLm", {}, "attention backends"),
    ],
)
def test_what_the_engine_cannot_serve_is_refused_with_the_reason(
    name: str, options: dict[str, Any], reason: str
) -> None:
    """Fails if a model would run with the wrong attention, or is refused for a reason that is not its own."""
    named = {"Vit": "ViT"}.get(name, name)
    with pytest.raises(ConfigError, match=reason):
        refuse_unsupported(config(named, **options))


def test_refusal_names_every_reason() -> None:
    """Fails if a user mends one thing only to meet the next."""
    with pytest.raises(ConfigError, match=r"'gemma2'.*layer_types.*; .*softcapping"):
        refuse_unsupported(config("Gemma2", layer_types=["chunked_attention", "full_attention"]))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Mamba", {}),
        ("Qwen3Next", {"layer_types": ["linear_attention", "full_attention"]}),
        ("MiniMax", {"layer_types": ["linear_attention", "full_attention"]}),
        ("Lfm2", {"layer_types": ["conv", "full_attention"]}),
    ],
)
def test_a_recurrent_target_is_sent_to_a_server(name: str, options: dict[str, Any]) -> None:
    """Fails if the refusal leaves out the one way in which such a target can be measured."""
    with pytest.raises(ConfigError, match="through --backend sglang only"):
        refuse_unsupported(config(name, **options))


def test_local_folder_on_cpu_is_fp32_eval_with_provenance(folder: Path) -> None:
    """Fails if auto keeps bf16 on the CPU, the model trains, or the manifest cannot say what ran."""
    loaded = load(str(folder), device="cpu")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training and not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.tokenizer.eos_token_id == 1
    assert loaded.provenance == {
        "source": str(folder.resolve()),
        "revision": None,
        "sha256": digest,
        "licence": "apache-2.0",
        "dtype": "torch.float32",
        "device": "cpu",
    }


@pytest.mark.parametrize(("dtype", "expected"), [("bf16", torch.bfloat16), (torch.float16, torch.float16)])
def test_dtype_can_be_chosen(folder: Path, dtype: str | torch.dtype, expected: torch.dtype) -> None:
    """Fails if an explicit dtype is overruled."""
    assert load(str(folder), dtype=dtype, device="cpu").model.dtype == expected


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dtype": "int4"}, "dtype 'int4' is not known"),
        ({"device": "toaster"}, "device 'toaster' is not known"),
    ],
)
def test_unknown_settings_are_config_errors(folder: Path, options: dict[str, str], match: str) -> None:
    """Fails if a mistyped setting ends in a torch trace."""
    with pytest.raises(ConfigError, match=match):
        load(str(folder), **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_on_a_machine_without_it_is_a_config_error(folder: Path) -> None:
    """Fails if the missing device is found only after the weights were read."""
    with pytest.raises(ConfigError, match="no CUDA device"):
        load(str(folder), device="cuda")


def test_missing_folder_does_not_reach_for_the_hub(tmp_path: Path) -> None:
    """Fails if a path is sent to the hub, or the message does not show where it was looked for."""
    with pytest.raises(ConfigError, match="no such folder"):
        load(str(tmp_path / "nothing"))


def test_folder_without_config_is_named(tmp_path: Path) -> None:
    """Fails if the wrong level of a download is reported as a hub problem."""
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        load(str(tmp_path))


def test_folder_without_weights_is_a_config_error(folder: Path, tmp_path: Path) -> None:
    """Fails if an incomplete download ends in an OSError."""
    for file in folder.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load(str(tmp_path), device="cpu")


def test_hub_failure_says_what_was_tried_and_the_ways_out() -> None:
    """Fails if an offline user is not told of local folders and the embedded model, or a near name is not offered."""
    message = str(_cannot_load("SmolLM2-135M-Instruct", "SmolLM2-135M-Instruct", OSError("not reachable\nmore")))
    for part in ("not reachable", "no folder of that name", "hf download", "'smollm2-135m'", "did you mean"):
        assert part in message
    assert "did you mean" not in str(_cannot_load("Qwen/Qwen3-4B", "Qwen/Qwen3-4B", OSError("x")))


class GatedRepoError(OSError):
    """As the hub's library calls it."""


def test_a_gated_model_gets_the_advice_to_log_in() -> None:
    """Fails if a user who only has to log in is told to download elsewhere, or the cause is missed."""
    error = OSError("You are trying to access a gated repo.\nMore")
    error.__cause__ = GatedRepoError("403")
    said = str(_cannot_load("acme/model", "acme/model", error))
    assert "gated" in said and "hf auth login" in said and "Without network" not in said


@pytest.mark.parametrize(("value", "blamed"), [(None, False), ("0", False), ("1", True)])
def test_only_a_variable_that_is_set_is_blamed(
    monkeypatch: pytest.MonkeyPatch, value: str | None, blamed: bool
) -> None:
    """Fails if HF_HUB_OFFLINE is blamed where it is unset or says no."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    if value is not None:
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
    said = str(_cannot_load("acme/model", "acme/model", OSError("x")))
    assert ("HF_HUB_OFFLINE is set" in said) is blamed


def test_code_in_a_checkpoint_is_never_run(folder: Path, tmp_path: Path) -> None:
    """Fails if a checkpoint's own Python is trusted."""
    raw = json.loads((folder / "config.json").read_text())
    raw |= {
        "model_type": "own_type",
        "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.Evil"},
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load(str(tmp_path), device="cpu")
    assert not marker.exists()


def test_embedded_model_has_no_revision() -> None:
    """Fails if a revision that changes nothing is accepted in silence."""
    with pytest.raises(ConfigError, match="no revisions"):
        load("smollm2-135m", revision="main")
