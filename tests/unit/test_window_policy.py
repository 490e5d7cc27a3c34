"""Beyond the trained window: refused, or flagged; and YaRN, applied at load, recorded, and shared by drafts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from agentbench_spec_drafters.nets.qwen3 import Geometry, Rotary
from agentbench_spec_drafters.nets.yarn import stretched, target_yarn
from localmodel import save_model, save_rollouts, session
from replaykit import by_drafter, replayed, replayer, rollout, said
from runkit import rows_of
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from agentbench_spec.config import load_config
from agentbench_spec.drafting import DrafterSpec
from agentbench_spec.engine import loading
from agentbench_spec.engine.long_context import apply_rope_scaling
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import read_run
from agentbench_spec.runs.execute import run
from agentbench_spec.testing import TOY_POSITIONS, toy_target


def qwen3(**options: Any) -> Any:
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    base = {"rope_theta": 1_000_000.0, "rope_type": "default"}
    return transformers.Qwen3Config(max_position_embeddings=40_960, rope_parameters=base, **{**sizes, **options})


def test_a_long_turn_is_refused_or_measured_with_a_label() -> None:
    """Fails if a turn beyond the trained window is measured unasked, or measured without saying so in its rows."""
    long = rollout(said("user", *[3] * (TOY_POSITIONS + 8)), said("assistant", 20), name="long")
    short = rollout(said("user", 1, 2, 3), said("assistant", 20), name="short")
    target = toy_target(capacity=TOY_POSITIONS + 64)
    (refused,) = by_drafter(replayed(replayer(target=target), long), "none")
    assert refused.status == "oversized" and "beyond_window" not in refused.labels
    flagged, fits = by_drafter(replayed(replayer(target=target, beyond_window="flag"), long, short), "none")
    assert flagged.status == "ok" and flagged.labels["beyond_window"] == "yes"
    assert fits.status == "ok" and "beyond_window" not in fits.labels


def test_capacity_beyond_the_window_needs_a_word(tmp_path: Path) -> None:
    """Fails if the engine allocates beyond the trained window unasked, or does not name the two ways out."""
    target, data = save_model(tmp_path / "model"), save_rollouts(tmp_path / "a.jsonl", session("a", 1))
    window = transformers.AutoConfig.from_pretrained(target).max_position_embeddings
    flags = {"target.source": str(target), "workload.name": str(data), "target.capacity_tokens": window + 1}
    with pytest.raises(ConfigError, match=r"target\.rope_scaling\.factor.*target\.beyond_window=flag"):
        run(load_config(flags=flags), tmp_path / "run")


def test_yarn_is_applied_at_load_and_recorded(tmp_path: Path) -> None:
    """Fails if a requested scaling does not reach the weights' rope, the window, the manifest and the run's rows."""
    target, data = save_model(tmp_path / "model"), save_rollouts(tmp_path / "a.jsonl", session("a", 1))
    plain = loading.load(str(target), device="cpu")
    scaled = loading.load(str(target), device="cpu", rope_scaling={"factor": 2.0})
    window = plain.model.config.max_position_embeddings
    assert scaled.model.config.max_position_embeddings == 2 * window
    ids = torch.arange(24)[None] % 20
    assert not torch.allclose(plain.model(ids).logits, scaled.model(ids).logits), "YaRN changes short prompts too"
    settings = load_config(
        assignments=["target.rope_scaling.factor=2.0", "decode.max_new_tokens=4", "target.device=cpu"],
        flags={"target.source": str(target), "workload.name": str(data), "target.capacity_tokens": window + 1},
    )
    run(settings, tmp_path / "run")
    manifest = read_run(tmp_path / "run")[0]
    recorded = manifest["model"]["rope_scaling"]
    assert recorded["rope_type"] == "yarn" and recorded["window_tokens"] == 2 * window
    assert manifest["settings"]["target"]["rope_scaling"]["factor"] == 2.0
    assert all(row.status == "ok" for row in rows_of(tmp_path / "run"))


def test_an_unscaled_load_is_untouched(tmp_path: Path) -> None:
    """Fails if the new setting changes a model for which nothing was asked."""
    found = loading.load(str(save_model(tmp_path / "model")), device="cpu")
    assert "rope_scaling" not in found.provenance
    assert found.model.config.rope_parameters["rope_type"] == "default"


def test_the_original_window_may_be_named() -> None:
    """Fails if Qwen3's trained 32,768 cannot be told from the 40,960 of its config, or a larger one passes."""
    config = qwen3()
    applied = apply_rope_scaling(config, {"factor": 2.0, "original_max_position_embeddings": 32_768}, "q")
    assert config.max_position_embeddings == applied["window_tokens"] == 65_536
    with pytest.raises(ConfigError, match="50000 is more than the window of 40960"):
        apply_rope_scaling(qwen3(), {"factor": 2.0, "original_max_position_embeddings": 50_000}, "q")
    with pytest.raises(ConfigError, match="scaled already"):
        apply_rope_scaling(config, {"factor": 2.0}, "q")


def test_settings_that_make_no_sense_are_named() -> None:
    """Fails if a scaling is misspelled, shrinks the window, or is of a kind that changes with the text's length."""
    for assignment in ("factor=0.5", "factor=2.0\x00rope_type=dynamic", "factr=2.0"):
        settings = [f"target.rope_scaling.{part}" for part in assignment.split("\x00")]
        with pytest.raises(ConfigError, match=r"target\.rope_scaling"):
            load_config(assignments=settings)


@pytest.mark.parametrize("options", [{}, {"beta_fast": 16.0, "beta_slow": 2.0}, {"attention_factor": 1.3}])
@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_drafts_turn_exactly_as_the_target_does(factor: float, options: dict[str, float]) -> None:
    """Fails if a draft that shares the target's positions rotates otherwise than YaRN has it, or keeps its window."""
    config = qwen3()
    apply_rope_scaling(config, {"factor": factor, "original_max_position_embeddings": 32_768, **options}, "q")
    frequency, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    yarn = target_yarn(config)
    assert yarn is not None and yarn.magnitude == pytest.approx(magnitude)
    geometry = Geometry(64, 64, 1, 2, 1, 32, 10, 1e-6, 1_000_000.0, 40_960)
    rotary = Rotary(geometry, device=torch.device("cpu"), dtype=torch.float32, yarn=yarn)
    positions = torch.tensor([[0, 7, 60_000]])
    angle = positions[:, None, :, None].float() * frequency
    cos, signed_sin = rotary(positions)
    torch.testing.assert_close(cos[..., :16], angle.cos() * magnitude, rtol=0, atol=2e-3)
    torch.testing.assert_close(signed_sin[..., 16:], angle.sin() * magnitude, rtol=0, atol=2e-3)
    spec = DrafterSpec(name="d", max_positions=40_960)
    assert stretched(spec, yarn).max_positions == max(40_960, int(32_768 * factor))


def test_a_plain_target_leaves_drafts_as_trained() -> None:
    """Fails if a draft is scaled although its target is not, or a config without rope is not understood."""
    assert target_yarn(qwen3()) is None and target_yarn(SimpleNamespace()) is None
    spec = DrafterSpec(name="d", max_positions=512)
    assert stretched(spec, None) is spec
