"""A short training raises tau far above a random drafter's, measured by the engine on the checkpoint it wrote.

The target is the tiny language model of the parity tests; it wrote the training texts itself. The prompts measured on
are those of its recorded cases.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import trainkit as kit
import transformers

from agentbench_spec.engine.target import Target
from agentbench_spec.plugins import load_drafter
from agentbench_spec.testing import play_turns
from agentbench_spec.train.features import Cached, Extractor, build_cache
from agentbench_spec.train.parallel import World
from agentbench_spec.train.texts import Text
from agentbench_spec.train.trainer import Data, Trainer

LANGUAGE = Path(__file__).parent.parent / "parity" / "data" / "target"
OPTIONS: dict[str, dict[str, Any]] = {
    "dflash": {"depth": 1, "block_size": 5, "target_layer_ids": [1, 4]},
    "dspark": {"depth": 1, "block_size": 4, "target_layer_ids": [1, 4], "rank": 16},
    "dlite": {"depth": 1, "block_size": 5, "slots": 4, "rank": 16, "window": 8},
    "eagle3": {"steps": 4, "draft_vocab_size": 160, "target_layer_ids": [0, 2, 4]},
}


@cache
def language() -> tuple[Target, list[Text], list[list[int]]]:
    """The target, 100 texts it sampled, and prompts to measure on."""
    model = (
        transformers.AutoModelForCausalLM.from_pretrained(LANGUAGE, dtype=torch.float32).eval().requires_grad_(False)
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        starts = torch.randint(3, 150, (100, 2))
        written = model.generate(starts, do_sample=True, max_new_tokens=60, min_new_tokens=60, eos_token_id=None)
    texts = [Text(str(n), tuple(ids), ((2, len(ids)),)) for n, ids in enumerate(written.tolist())]
    cases = json.loads((LANGUAGE / "cases.json").read_text())["cases"]
    return Target(model, name="golden", capacity=160), texts, [case["prompt_ids"] for case in cases[:6]]


def tau(name: str, checkpoint: Path) -> float:
    """tau_raw of a checkpoint over the prompts, greedy, four drafts a round."""
    target, _, prompts = language()
    drafter = load_drafter(f"{name}={checkpoint}")
    drafter.open(target.info, rows=1, capacity=200)
    rounds = []
    for prompt in prompts:
        rounds += play_turns(target, {name: drafter}, [prompt], k=4, max_new_tokens=40)[0].turns[name].rounds
        target.truncate(0, 0)
        drafter.truncate(0, 0)
    return sum(done.matched + 1 for done in rounds) / len(rounds)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_a_short_training_raises_tau(name: str, tmp_path: Path) -> None:
    """Random weights give about 1.0; 200 steps gave 1.8 to 2.5 when this was written. Fails if nothing is learnt."""
    target, texts, _ = language()
    trainee = kit.make_trainee(name, target, texts, torch.float32, **OPTIONS[name])
    extractor = Extractor(target, trainee.hidden_layers)
    build_cache(tmp_path / "features", texts, extractor, torch.float16, say=lambda text: None)
    data = Data(texts, Cached(tmp_path / "features", trainee.hidden_layers))
    settings = kit.config(steps=200, anchors=12, save_every=10_000, checkpoint_dtype="float32", learning_rate=1e-2)
    trainer = Trainer(kit.step_of(trainee, target), settings, data, tmp_path, World())
    trainee.write(tmp_path, trainee.phases[-1], trainee.state_dict())
    untrained = tau(name, tmp_path)
    trainer.run()
    assert untrained < 1.3 and tau(name, tmp_path) > 1.6
