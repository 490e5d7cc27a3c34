"""DFlash, DSpark and DFlash 2 in the speculators layout, and DFlash 2 in z-lab's, against traces of the public code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from agentbench_spec_drafters import dflash, dflash2, dspark
from golden_block import (
    DATA,
    engine,
    ingest,
    make_drafter,
    open_drafter,
    recorded,
    target_info,
    tensors,
    trace_of,
)
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentbench_spec.conformance.bench import Bench
from agentbench_spec.conformance.kit import check
from agentbench_spec.drafting import ConfigError, Drafter
from agentbench_spec.testing import play_turns, toy_turns

SPEC_SETS = ("dflash-spec", "dspark-spec", "dflash2-spec")
NEW_SETS = (*SPEC_SETS, "dflash2-zlab")
MAKERS: dict[str, Any] = {
    "dflash-spec": dflash.make, "dspark-spec": dspark.make, "dflash2-spec": dflash2.make, "dflash2-zlab": dflash2.make
}  # fmt: skip


@pytest.mark.parametrize("name", SPEC_SETS)
def test_the_engine_accepts_what_the_recorded_loop_accepted(name: str) -> None:
    """Fails if rounds, accepted lengths or the text differ when the engine drafts, verifies and rolls back."""
    case = next(case for case in recorded(name)["cases"] if case["stop_token_ids"] is None)
    target = engine(1, 600)
    drafter = make_drafter(name, case)
    drafter.open(target.info, rows=1, capacity=600)
    played = play_turns(target, {"own": drafter}, [case["prompt_ids"]], k=7, max_new_tokens=case["max_new_tokens"])
    turn = played[0].turns["own"]
    ours = [done.matched for done in turn.rounds]
    assert case["prompt_ids"] + turn.output == case["output_ids"]
    assert ours == case["rounds"]["accepted_draft"][: len(ours)]
    assert len(ours) >= len(case["accept_lengths"]) - 1 > 3  # the recorded loop runs one round for the anchor alone


class Uniforms:
    """Draws by inverse CDF over the candidates, likeliest logit first, from given uniforms."""

    greedy = False

    def __init__(self, order: Tensor, uniforms: list[float], temperature: float) -> None:
        self.order, self.uniforms, self.temperature, self.step = order, uniforms, temperature, 0
        self.q: list[Tensor] = []

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        full = (logits / self.temperature).softmax(-1)
        q = full[0, self.order[self.step]]
        at = min(int((q.cumsum(0) <= self.uniforms[self.step]).sum()), len(q) - 1)
        chosen = self.order[self.step, at]
        self.q.append(q)
        self.step += 1
        return chosen[None], full


@pytest.mark.parametrize("name", ["dflash2-spec", "dflash2-zlab"])
def test_recorded_walks_at_a_temperature_are_reproduced(name: str) -> None:
    """Fails if q is not the softmax of scores given the token drawn before, over the candidates alone."""
    blocks = recorded(name)["sampled_path_blocks"]
    by_id = {case["id"]: case for case in recorded(name)["cases"]}
    played = [block for block in blocks if block["from_case"] in by_id]
    assert len(played) >= 3
    for block in played:
        case = by_id[block["from_case"]]
        drafter: Any = open_drafter(name, case)
        trace = trace_of(case, drafter.spec.hidden_layers)
        step = trace.rounds[block["round"]]
        ingest(drafter, trace, step.start)
        order, q = (tensors(name)[f"{block['id']}.{key}"] for key in ("candidate_ids", "q"))
        drafter.sampler = Uniforms(order, block["uniforms"], block["temperature"])
        guess = drafter.propose(torch.tensor([step.anchor]), torch.tensor([step.start]), len(block["tokens"]))
        assert guess.ids[0].tolist() == block["tokens"]
        assert float((torch.stack(drafter.sampler.q) - q).abs().max()) < 1e-4
        assert torch.allclose(guess.probs.gather(2, order[None]), q[None], atol=1e-4)
        assert torch.allclose(guess.probs.sum(-1), torch.ones(1, len(order)))


def test_draft_kv_of_sliding_layers_stays_bounded() -> None:
    """Fails if a sliding layer is charged for positions that no block can see any more, or a full one is not."""
    held = {}
    for name in ("dspark-spec", "dflash2-zlab"):  # two sliding layers of window 24; one sliding, one full
        case = max(recorded(name)["cases"], key=lambda case: len(case["prompt_ids"]))
        drafter = make_drafter(name)
        drafter.open(target_info(), rows=1, capacity=512)
        trace = trace_of(case, drafter.spec.hidden_layers)
        ingest(drafter, trace, 100)
        held[name] = drafter.state_bytes(0)
    token_bytes = 2 * 2 * 16 * 4
    assert held == {"dspark-spec": 2 * 24 * token_bytes, "dflash2-zlab": (100 + 23) * token_bytes}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "dspark-spec" else pytest.mark.slow) for n in NEW_SETS]
)
def test_every_law_that_applies_holds(name: str) -> None:
    """Fails if state after rewrites, ragged rows, padding, or a thrown-away turn differs from a fresh start."""
    report = check(lambda: make_drafter(name), target=engine(1, 400))
    assert {f.law: f.message for f in report.findings if f.outcome == "failed"} == {}
    passed = {f.law for f in report.findings if f.outcome == "passed"}
    assert passed >= {"spec", "lossless", "incremental", "no-trace", "rows", "padding", "truncate"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "dflash2-spec" else pytest.mark.slow) for n in NEW_SETS]
)
def test_rejection_sampling_follows_the_target_exactly(name: str) -> None:
    """Fails if the distribution handed over is not the one drawn from, mapped to the target's ids."""

    def make() -> Drafter:
        return MAKERS[name](DATA / name / "draft", verification="rejection")  # type: ignore[no-any-return]

    prompts = [[token + 1 for token in toy_turns(vocab=64)[0]]]
    one, many = engine(1, 400), engine(256, 64)
    report = check(make, benches={"golden": Bench(make, one, prompts, sampling_target=many)}, only={"distribution"})
    assert [(f.outcome, f.message) for f in report.findings if f.outcome != "passed"] == []


CONFIG_FAULTS = {
    "another kind": ({"speculators_model_type": "xpress"}, "speculators_model_type is 'xpress'.*not implemented"),
    "no layer ids": ({"aux_hidden_state_layer_ids": None}, "aux_hidden_state_layer_ids"),
    "layer ids beyond the target": ({"aux_hidden_state_layer_ids": [1, 3, 9]}, "target_layer_ids"),
    "no mask": ({"mask_token_id": None}, "mask_token_id"),
    "a flag that is none": ({"sample_from_anchor": "yes"}, "sample_from_anchor is 'yes'"),
    "vocabulary above the target's": ({"draft_vocab_size": 400}, "draft_vocab_size is 400"),
}


def damaged(name: str, folder: Path, *, config: dict[str, Any] | None = None, drop: str = "") -> Path:
    """A copy of a set's checkpoint with config fields replaced and one tensor left out."""
    shutil.copytree(DATA / name / "draft", folder, dirs_exist_ok=True)
    own = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**own, **(config or {})}))
    weights = load_file(folder / "model.safetensors")
    save_file({key: value for key, value in weights.items() if key != drop}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
@pytest.mark.parametrize("name", SPEC_SETS)
def test_a_damaged_config_is_refused(name: str, fault: str, tmp_path: Path) -> None:
    """Fails if a config that cannot be right is read as if it were, and the draft would only look weak."""
    changes, message = CONFIG_FAULTS[fault]
    with pytest.raises(ConfigError, match=message):
        MAKERS[name](damaged(name, tmp_path, config=changes)).open(target_info(), rows=1, capacity=64)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("dspark-spec", "lm_head.weight"),
        ("dspark-spec", "d2t"),
        ("dspark-spec", "markov_head.markov_w2.weight"),
        ("dflash-spec", "layers.1.self_attn.k_norm.weight"),
        ("dflash2-spec", "candidate_selector.successor_codebook"),
        ("dflash2-zlab", "layers.0.mlp_conv.base_kernel"),
    ],
)
def test_a_missing_tensor_is_named(name: str, tensor: str, tmp_path: Path) -> None:
    """Fails if a file without it loads: the part would be left at nothing, or lent by the target in silence."""
    with pytest.raises(ConfigError, match=f"missing tensor.*{tensor}"):
        MAKERS[name](damaged(name, tmp_path, drop=tensor)).open(target_info(), rows=1, capacity=64)


def test_dflash_and_dflash2_refuse_each_other() -> None:
    """Fails if DFlash 2's convolutions and selector are dropped by loading it as plain DFlash, or the reverse."""
    for make, name in ((dflash.make, "dflash2-spec"), (dflash.make, "dflash2-zlab"), (dflash2.make, "dflash-zlab")):
        with pytest.raises(ConfigError, match="dflash"):
            make(DATA / name / "draft")
    with pytest.raises(ConfigError, match="load it as dspark="):
        dflash.make(DATA / "dspark-spec" / "draft")
