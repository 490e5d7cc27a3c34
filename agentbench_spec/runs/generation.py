"""What a model's generation config asks for and the engine does not do, and what the settings make of sampling."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentbench_spec.engine.sampling import Sampling

if TYPE_CHECKING:
    from transformers import GenerationConfig

_CHANGES_NOTHING: dict[str, Any] = {
    "temperature": 1,
    "top_k": 0,
    "top_p": 1,
    "min_p": 0,
    "typical_p": 1,
    "top_h": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "repetition_penalty": 1,
    "encoder_repetition_penalty": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "penalty_alpha": 0,
    "diversity_penalty": 0,
    "exponential_decay_length_penalty": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "watermarking_config": None,
    "guidance_scale": 1,
    "min_length": 0,
    "min_new_tokens": 0,
    "num_beams": 1,
    "stop_strings": None,
}
"""Settings of a generation config that change which tokens come out, and the value that changes none."""


def sampling_notes(asked: GenerationConfig | None, sampling: Sampling) -> Iterator[str]:
    """What a reader of the outputs must know about how they were chosen, in words."""
    applied = {} if sampling.greedy else {n: getattr(sampling, n) for n in ("temperature", "top_k", "top_p")}
    wanted = {name: getattr(asked, name, None) for name in _CHANGES_NOTHING}
    left = {
        name: value
        for name, value in wanted.items()
        if value not in (None, [], _CHANGES_NOTHING[name], applied.get(name))
    }
    if left:
        how = "decoding is greedy" if sampling.greedy else "decode.temperature, top_k and top_p alone decide"
        listed = ", ".join(f"{name}={value}" for name, value in left.items())
        yield f"the model's generation_config asks for {listed}; not applied: {how}"
    if sampling.greedy and sampling.temperature:
        yield (
            f"temperature {sampling.temperature:g} with top_k=1 is greedy decoding: the likeliest token is always "
            "taken, and outputs are compared with the baseline's"
        )


def unread_config(model: Path) -> Iterator[str]:
    """What is said of a generation config in the folder `model` that no JSON object is: the loader passes it over."""
    path = model / "generation_config.json"
    if not path.is_file():
        return
    try:
        wrong = "" if isinstance(json.loads(path.read_bytes()), dict) else "it is no JSON object"
    except ValueError as error:
        wrong = str(error)
    if wrong:
        yield f"{path} cannot be read ({wrong}): what it asks for, stop tokens included, is not applied"
