"""The engine's target against recorded logits, states and greedy texts of the golden target (golden section 5)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentbench_spec.engine.target import Target
from agentbench_spec.testing import greedy_text

FOLDER = Path(__file__).parent / "data" / "target"
TENSORS = load_file(FOLDER / "tensors.safetensors")
CASES: list[dict[str, Any]] = json.loads((FOLDER / "cases.json").read_text())["cases"]
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@cache
def engine() -> Target:
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    return Target(model, name="golden", capacity=400)


@pytest.mark.parametrize("prompt", sorted({key.split(".")[0] for key in TENSORS}))
def test_every_tap_is_the_recorded_state(prompt: str) -> None:
    """Fails if an id means another layer, if -1 is not the embedding, or if the last id is not the normed state."""
    target, recorded = engine(), {key.split(".")[1]: t for key, t in TENSORS.items() if key.startswith(f"{prompt}.")}
    depth = target.info.num_layers
    target.truncate(0, 0)
    found = target.evaluate(0, [0], recorded["input_ids"][None], taps=range(-1, depth))
    torch.testing.assert_close(found.logits[0], recorded["logits"], **CLOSE)
    for layer in range(-1, depth):
        torch.testing.assert_close(found.states[layer][0], recorded["hidden_states"][layer + 1], **CLOSE)
    assert not torch.allclose(found.states[depth - 1][0], recorded["last_layer_raw"], atol=0.1)


def test_plain_decoding_says_the_recorded_texts() -> None:
    """Fails if the baseline itself leaves the official text; drafters play the cases left out here in their tests."""
    for case in CASES[::9]:
        said = greedy_text(engine(), case["prompt_ids"], len(case["new_ids"]))
        assert said == [*case["prompt_ids"], *case["new_ids"]], case["id"]
