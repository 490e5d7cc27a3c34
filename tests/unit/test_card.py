"""The benchmark card: sizes, the floor of a decode step, and the baseline beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rowkit import make_row
from tinymodels import VOCAB
from tinymodels import tiny as tiny_model

from agentbench_spec.engine.loading import load
from agentbench_spec.engine.target import Target
from agentbench_spec.runs.card import Card, baseline_step_s, launches_text, measure_card

CARD = Card("m", "float32", "cpu", 500_000_000, 46_080, 10e9, 1e-6)


def test_floor_is_weights_over_memory_speed() -> None:
    """Fails if the floor of a plain step is not what reading every weight once takes."""
    assert CARD.floor_s == pytest.approx(0.05) and CARD.as_dict()["floor_s"] == CARD.floor_s


def test_baseline_step_counts_plain_decoding_only() -> None:
    """Fails if a drafter's steps, a turn without rounds or an untimed turn are in the baseline's mean."""
    rows = [
        make_row(drafter="none", matched=[0] * 4, decode_s=0.4),
        make_row(turn=1, drafter="none", matched=[0], decode_s=0.2),
        make_row(turn=2, drafter="none", matched=[], decode_s=9.0),
        make_row(turn=3, drafter="none", matched=[0]),
        make_row(drafter="ngram", matched=[3], decode_s=7.0),
    ]
    assert baseline_step_s(rows) == pytest.approx(0.6 / 5)
    assert baseline_step_s(rows[2:]) is None


def test_lines_show_the_ceiling_and_how_near_the_baseline_comes() -> None:
    """Fails if a reader cannot judge the baseline, or a share is made up where no baseline was timed."""
    lines = CARD.lines([make_row(drafter="none", matched=[0] * 4, decode_s=0.4)])
    assert lines == [
        "m float32 on cpu: 500 MB of weights, 46,080 bytes of KV per token",
        "memory reads 10.0 GB/s: a plain step takes at least 50 ms",
        "the baseline took 100 ms a step: 50.0% of the speed the memory allows",
    ]
    assert CARD.lines([]) == lines[:2]
    assert "34.5 kB of weights" in Card("m", "float32", "cpu", 34_500, 1, 1e9, 0).lines([])[0]


def test_a_gpus_card_says_how_rounds_are_launched() -> None:
    """Fails if a reader cannot tell captured rounds from launched ones, or a count that is not known is made up."""
    known = {"captured": True, "attention": "flex", "cudnn": 91200, "kernels_per_step": 1234}
    card = Card("m", "bfloat16", "cuda:0", 500_000_000, 46_080, 10e9, 1e-6, launches=known)
    assert card.lines([])[2] == (
        "rounds: CUDA graphs, attention flex, cuDNN 91200; a plain step is 1,234 kernels in one graph"
    )
    assert card.as_dict()["launches"] == known
    eager = {"captured": False, "attention": "sdpa", "cudnn": None, "kernels_per_step": None}
    assert launches_text(eager) == "launched kernel by kernel, attention sdpa, cuDNN None; a plain step is ? kernels"


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_is_read_only_where_it_is_the_head(tied: bool) -> None:
    """Fails if the look-up table of an untied model counts as read in every step, which flatters the baseline."""
    model = tiny_model("Llama", num_hidden_layers=1, tie_word_embeddings=tied)
    target = Target(model, name="m", capacity=32)
    layer_and_norm = sum(p.numel() for p in model.get_submodule("model.layers").parameters()) + 32
    assert target.weight_bytes == 4 * (layer_and_norm + VOCAB * 32)


def test_card_of_a_target_is_measured(tiny: Path) -> None:
    """Fails if a field of the card is a constant: dtype, sizes and memory speed come from the target's machine."""
    loaded = load(str(tiny), dtype=torch.bfloat16, device="cpu")
    card = measure_card(Target(loaded.model, name="tiny", capacity=32))
    assert (card.target, card.dtype, card.device) == ("tiny", "bfloat16", "cpu")
    assert card.kv_bytes_per_token == 2 * 2 * 16 * 2  # K and V, layers, head_dim of the one KV head, bytes
    assert 1e8 < card.read_bytes_per_s < 1e13 and 0 < card.phase_cost_s < 1e-2
