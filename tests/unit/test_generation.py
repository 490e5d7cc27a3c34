"""What a generation config asks for and nobody does is said; sampling from one token is greedy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from runkit import replay, rows_of
from transformers import GenerationConfig

from agentbench_spec.engine.sampling import Sampling
from agentbench_spec.results.folder import read_manifest
from agentbench_spec.runs.generation import sampling_notes, unread_config

ASKED = {"repetition_penalty": 1.5, "do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.1}


@pytest.mark.parametrize(
    ("sampling", "listed"),
    [
        (Sampling(), "temperature=0.7, top_k=20, top_p=0.8, min_p=0.1, repetition_penalty=1.5"),
        (Sampling(0.7, 20, 0.8), "min_p=0.1, repetition_penalty=1.5"),
        (Sampling(1.0, 20), "temperature=0.7, top_p=0.8, min_p=0.1, repetition_penalty=1.5"),
    ],
)
def test_what_is_not_applied_is_listed(sampling: Sampling, listed: str) -> None:
    """Fails if a penalty is dropped without a word, or what is applied is called not applied."""
    assert f"asks for {listed}; not applied" in "".join(sampling_notes(GenerationConfig(**ASKED), sampling))


def test_what_changes_nothing_is_no_note() -> None:
    """Fails if every run is noted: neutral values ask for nothing, nor does a model without the file."""
    neutral = GenerationConfig(repetition_penalty=1.0, top_k=0, top_p=1.0, min_p=0.0, temperature=1.0, eos_token_id=3)
    assert [*sampling_notes(neutral, Sampling()), *sampling_notes(None, Sampling())] == []


def test_a_config_that_cannot_be_read_is_noted(tmp_path: Path) -> None:
    """Fails if a broken file, which the loader passes over, costs its stop tokens without a word."""
    for text, noted in (("{broken", True), ("[1]", True), ("{}", False)):
        (tmp_path / "generation_config.json").write_text(text)
        assert len([*unread_config(tmp_path)]) == noted
    assert not [*unread_config(tmp_path / "elsewhere")]


def test_sampling_from_one_token_is_compared_and_said(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if temperature > 0 with top_k = 1 passes for sampling: its outputs would go uncompared."""
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 257, **ASKED}))
    sampled = ("--set", "decode.temperature=0.7", "--set", "decode.top_k=1", "--drafter", "ngram")
    done = replay(model, rollouts, tmp_path / "run", *sampled)
    assert done.code == 0, done.err
    rows = rows_of(tmp_path / "run")
    assert {row.divergence for row in rows if row.status == "ok"} == {"none"}
    notes = read_manifest(tmp_path / "run")["notes"]
    assert any("repetition_penalty=1.5; not applied" in note for note in notes)
    assert any("with top_k=1 is greedy decoding" in note for note in notes)
    assert "repetition_penalty=1.5" in " ".join(done.err.split())
