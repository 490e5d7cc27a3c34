"""P-EAGLE against traces of the speculators package; golden_sets plays the same folder token by token."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import eagle3_kit
import eagle3_writers as write
import pytest
import torch
from agentbench_spec_drafters import eagle3, peagle
from chain_rows_kit import Probing, Text, drafted, feed, span
from golden_block import DATA, engine, ingest, recorded, span_of, target_info, trace_of, wrong_rounds
from safetensors.torch import load_file, save_file
from torch import Tensor

from agentbench_spec.conformance.bench import Bench
from agentbench_spec.conformance.kit import check
from agentbench_spec.drafting import ConfigError, Drafter, Span
from agentbench_spec.testing import play_turns, toy_turns

FOLDER = DATA / "peagle" / "draft"
CASES: dict[str, dict[str, Any]] = {case["id"]: case for case in recorded("peagle")["cases"]}
CASE = CASES["c05"]


def opened(folder: Path = FOLDER, *, rows: int = 1, capacity: int = 512, **options: Any) -> Any:
    drafter = peagle.make(folder, **options)
    drafter.open(target_info(), rows=rows, capacity=capacity)
    drafter.sampler = eagle3_kit.Greedy()
    return drafter


@pytest.mark.parametrize("case_id", ["c01", "c04", "c22"])
def test_the_engine_accepts_what_the_recorded_loop_accepted(case_id: str) -> None:
    """Fails if rounds, accepted lengths or the text differ when the engine drafts, verifies and rolls back."""
    case, target = CASES[case_id], engine(1, 600)
    drafter = opened()
    drafter.open(target.info, rows=1, capacity=600)
    played = play_turns(target, {"own": drafter}, [case["prompt_ids"]], k=7, max_new_tokens=case["max_new_tokens"])
    turn = played[0].turns["own"]
    ours = [done.matched for done in turn.rounds]
    assert case["prompt_ids"] + turn.output == case["output_ids"]
    assert ours and ours == case["rounds"]["accepted_draft"][: len(ours)]


def test_every_law_that_applies_holds() -> None:
    """Fails if state after rewrites, ragged rows, padding, or a thrown-away turn differs from a fresh start."""
    report = check(lambda: peagle.make(FOLDER), target=engine(1, 400))
    assert {f.law: f.message for f in report.findings if f.outcome == "failed"} == {}
    passed = {f.law for f in report.findings if f.outcome == "passed"}
    assert passed >= {"spec", "lossless", "incremental", "no-trace", "rows", "padding", "truncate"}


@pytest.mark.slow
def test_rejection_sampling_follows_the_target_exactly() -> None:
    """Fails if the distribution handed over, spread over the target's vocabulary, is not the one drawn from."""
    prompts = [[token + 1 for token in toy_turns(vocab=64)[0]]]

    def make() -> Drafter:
        return peagle.make(FOLDER)

    bench = Bench(make, engine(1, 400), prompts, sampling_target=engine(256, 64))
    report = check(make, benches={"golden": bench}, only={"distribution"})
    assert [(f.outcome, f.message) for f in report.findings if f.outcome != "passed"] == []


def _zero_mask_state(drafter: Any) -> None:
    drafter.net.mask_feature = torch.zeros_like(drafter.net.mask_feature)


def _target_embedding(drafter: Any) -> None:
    drafter.net.embed_tokens = target_info().embed_tokens


def _offsets_as_ids(drafter: Any) -> None:
    drafter.net.target_ids = drafter.net.target_ids - torch.arange(len(drafter.net.target_ids))


def _flipped_residual(drafter: Any) -> None:
    drafter.net.config = replace(drafter.net.config, norm_before_residual=not drafter.net.config.norm_before_residual)


def _masks_at_the_anchor(drafter: Any) -> None:
    """Mask rows one position too early: the first where the anchor's own row is."""
    rope, propose = drafter.net.rope, drafter.propose

    def early(*arguments: Any) -> Any:
        drafter.net.rope = lambda at: rope(torch.cat((at[:, :1], at[:, 1:] - 1), 1))
        try:
            return propose(*arguments)
        finally:
            drafter.net.rope = rope

    drafter.propose = early


def _alter_span(alter: Callable[[Span], Span]) -> Callable[[Any], None]:
    def plant(drafter: Any) -> None:
        observe = drafter.observe
        drafter.observe = lambda fed: observe(alter(fed))

    return plant


FAULTS: dict[str, Callable[[Any], None]] = {
    "zero mask state": _zero_mask_state,
    "the target's embedding": _target_embedding,
    "d2t read as ids": _offsets_as_ids,
    "residual from the other side of the norm": _flipped_residual,
    "mask rows one position early": _masks_at_the_anchor,
    "features one position late": _alter_span(lambda s: replace(s, hidden=s.hidden.roll(1, 1))),  # type: ignore[union-attr]
    "tapped layers in reverse order": _alter_span(lambda s: replace(s, hidden=s.hidden.flip(2))),  # type: ignore[union-attr]
    "tokens one position late": _alter_span(lambda s: replace(s, input_ids=s.input_ids.roll(1, 1))),
}


def test_the_recorded_case_is_reproduced_without_a_fault() -> None:
    """Fails if the case of the planted faults would fail by itself."""
    assert wrong_rounds(opened(), CASE) == 0


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_breaks_parity(name: str) -> None:
    """Fails if the recorded rounds would not notice this fault, which leaves the text right and the method weak."""
    drafter = opened()
    FAULTS[name](drafter)
    assert wrong_rounds(drafter, CASE) > 0


def test_a_pass_of_k_rows_is_the_first_rows_of_a_longer_one_and_of_a_fresh_build() -> None:
    """Fails if a row sees a later one, or if what a round leaves behind differs from running the text at once."""
    trace = trace_of(CASE, opened().spec.hidden_layers)
    drafter = opened(max_tokens=12)
    drafter.sampler = Probing()
    ingest(drafter, trace, trace.prompt)
    for step in trace.rounds[:5]:
        anchor, at = torch.tensor([step.anchor]), torch.tensor([step.start])
        fresh = opened(max_tokens=12)
        fresh.sampler = Probing()
        ingest(fresh, trace, step.start)
        wanted = fresh.propose(anchor, at, 12).probs
        for k in (1, 7, 12):
            torch.testing.assert_close(drafter.propose(anchor, at, k).probs, wanted[:, :k], atol=1e-5, rtol=1e-4)
        drafter.observe(span_of(trace, step.start, step.committed, "all"))


def one_layer(folder: Path, **changes: Any) -> Path:
    """The golden EAGLE-3 head as a P-EAGLE head of one layer."""
    width = write.HEAD["fc.weight"].shape[1]
    state = {**write.HEAD, "mask_hidden": torch.randn(1, 1, width, generator=torch.Generator().manual_seed(0))}
    path = write.write_speculators(folder, state, speculators_model_type="peagle", mask_token_id=3, **changes)
    config = json.loads((path / "config.json").read_text())
    config["transformer_layer_config"]["num_hidden_layers"] = 1
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_the_first_token_is_that_of_an_eagle3_head_of_the_same_weights(tmp_path: Path) -> None:
    """Fails if the pair of feature and token, its position or the layer's maths differ between the two drafters."""
    text, proposals = Text.random(60, 1, taps=5), []
    for make in (peagle.make(one_layer(tmp_path / "head")), eagle3.make(eagle3_kit.DRAFT)):
        eagle3_kit.opened(make, capacity=100).sampler = Probing()
        feed(make, text, 50, chunk=11)
        proposals.append(drafted(make, [7], [50], 3))
    torch.testing.assert_close(proposals[0][:, 0], proposals[1][:, 0], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(proposals[0][:, 1], proposals[1][:, 1], atol=1e-3)


def test_the_mask_row_of_the_embedding_changes_all_but_the_first_token() -> None:
    """Fails if mask rows are embedded by another token, or the anchor's row sees them."""
    trace = trace_of(CASE, opened().spec.hidden_layers)
    step, found = trace.rounds[0], []
    for other in (159, 7):  # the mask's own row, and that of a word
        drafter = opened()
        drafter.sampler = Probing()
        table = drafter.net.embed_tokens.weight
        table[159] = table[other]
        ingest(drafter, trace, step.start)
        found.append(drafter.propose(torch.tensor([step.anchor]), torch.tensor([step.start]), 7).probs[0])
    assert torch.equal(found[0][0], found[1][0])
    assert bool(((found[0] - found[1])[1:].abs().amax(-1) > 1e-3).all())


def test_a_feature_that_left_the_ring_is_not_guessed_from() -> None:
    """Fails if a row cut back further than its features reach drafts from another one, or spoils what stays."""
    text, drafter = Text.random(90, 1, taps=3), opened(rows=2, window=8)
    drafter.sampler = Probing()
    for row in (0, 1):
        feed(drafter, text, 60, row=row)
    drafter.truncate(0, 30)
    cut = drafter.propose(torch.tensor([5, 5]), torch.tensor([30, 60]), 4)
    assert cut.count.tolist() == [0, 4]
    feed(drafter, text, 60, start=30)
    after = drafted(drafter, [5, 5], [60, 60], 4)
    torch.testing.assert_close(after[0], after[1], atol=1e-5, rtol=1e-4)


def test_ragged_rows_equal_rows_by_themselves() -> None:
    """Fails if rows of different lengths, an idle one among them, see each other or padding."""
    texts, lengths = [Text.random(90, seed, taps=3) for seed in (1, 2, 3)], [5, 44, 71]
    drafter = opened(rows=4)
    drafter.sampler = Probing()
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        feed(drafter, text, length - 3, row=row, chunk=9)
    drafter.observe(span(texts, [0, 1, 2], [length - 3 for length in lengths], [3, 2, 1], 5))
    ends = [length - 3 + count for length, count in zip(lengths, (3, 2, 1), strict=True)]
    together = drafter.propose(torch.tensor([9, 9, 9, -1]), torch.tensor([*ends, -1]), 5).probs
    for row, (text, end) in enumerate(zip(texts, ends, strict=True)):
        alone = opened()
        alone.sampler = Probing()
        feed(alone, text, end, chunk=end)
        torch.testing.assert_close(together[row], drafted(alone, [9], [end])[0], atol=1e-5, rtol=1e-4)


def test_state_is_the_keys_and_values_of_both_layers() -> None:
    """Fails if a layer is not counted, or mask rows are."""
    drafter = opened()
    feed(drafter, Text.random(90, 1, taps=3), 40)
    drafter.propose(torch.tensor([5]), torch.tensor([40]), 7)
    assert drafter.state_bytes(0) == 40 * 2 * 2 * 2 * 16 * 4  # positions, k and v, layers, KV heads, head_dim, float32


def written(folder: Path, tensors: dict[str, Tensor] | None = None, **changes: Any) -> Path:
    """The golden checkpoint with other tensors or config fields; layer: fields of the layer's config."""
    config = json.loads((FOLDER / "config.json").read_text())
    layer = changes.pop("layer", {})
    config = {**config, **changes}
    if isinstance(config["transformer_layer_config"], dict):
        config["transformer_layer_config"] = {**config["transformer_layer_config"], **layer}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(load_file(FOLDER / "model.safetensors") if tensors is None else tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_token_id": None}, "no field 'mask_token_id'"),
        ({"mask_token_id": 160}, "mask_token_id is 160"),
        ({"speculators_model_type": "eagle3"}, "expected 'peagle'; load it as eagle3="),
        ({"speculators_model_type": "xpress"}, "it is not implemented"),
        ({"transformer_layer_config": "llama"}, "must be an object"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3]}, "fc takes 144"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3, 9]}, "target_layer_ids"),
        ({"norm_before_fc": True}, "norm_before_fc is True, but its tensor is missing"),
        ({"layer": {"num_hidden_layers": 3}}, r"num_hidden_layers is 3.*\['0', '1'\]"),
        ({"layer": {"num_hidden_layers": 1}}, "num_hidden_layers is 1"),
        ({"layer": {"num_attention_heads": 5}}, "q_proj do not divide by 5"),
        ({"layer": {"vocab_size": 170}}, "vocab_size"),
        ({"layer": {"use_sliding_window": True}}, "a sliding window"),
    ],
)
def test_a_config_that_cannot_be_right_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Fails if a head loads that would draft badly without an error."""
    with pytest.raises(ConfigError, match=message):
        opened(written(tmp_path / "draft", **changes))


def _without(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {own: tensor for own, tensor in tensors.items() if own != name}


def _with(**changed: Tensor) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {**tensors, **changed}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_without("mask_hidden"), "missing tensor 'mask_hidden'"),
        (_without("embed_tokens.weight"), "missing tensor 'embed_tokens.weight'"),
        (_without("d2t"), "missing tensor 'd2t'"),
        (_without("layers.1.mlp.up_proj.weight"), "missing tensor layers.1.mlp.up_proj.weight"),
        (_with(mask_hidden=torch.zeros(1, 1, 140)), r"'mask_hidden' is \[1, 1, 140\]"),
        (_with(mask_hidden=torch.full((1, 1, 144), torch.nan)), "NaN"),
        (_with(d2t=torch.full((112,), 200)), "d2t"),
        (_with(surplus=torch.zeros(3)), "unknown tensor 'surplus'"),
    ],
)
def test_damaged_weights_are_refused(
    damage: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str, tmp_path: Path
) -> None:
    """Fails if a file that lost or gained a tensor loads."""
    with pytest.raises(ConfigError, match=message):
        opened(written(tmp_path / "draft", damage(load_file(FOLDER / "model.safetensors"))))


def test_an_eagle3_loader_names_the_drafter_that_reads_it(tmp_path: Path) -> None:
    """Fails if a user who takes the wrong name is not told the right one."""
    with pytest.raises(ConfigError, match="load it as peagle="):
        eagle3.make(FOLDER)
    with pytest.raises(ConfigError, match="parallel_drafting is None"):
        peagle.make(eagle3_kit.DRAFT)
    (tmp_path / "config.json").write_text(json.dumps({**write.CONFIG, "parallel_drafting": True}))
    with pytest.raises(ConfigError, match="load it as peagle="):
        eagle3.make(tmp_path)


def test_other_writings_of_the_same_head_draft_the_same(tmp_path: Path) -> None:
    """Fails if a flat mask state, another name of the mask id, or sizes at the top level are not understood."""
    tensors = load_file(FOLDER / "model.safetensors")
    flat = {**tensors, "mask_hidden": tensors["mask_hidden"].flatten()[None]}
    config = json.loads((FOLDER / "config.json").read_text())
    top = {
        **config.pop("transformer_layer_config"),
        "architectures": ["LlamaForCausalLMEagle3"],
        "parallel_drafting": True,
        "ptd_token_id": config["mask_token_id"],
        "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": config["eagle_aux_hidden_state_layer_ids"],
    }
    written(tmp_path / "flat", flat, mask_token_id=None, pard_token=config["mask_token_id"])
    shutil.copytree(tmp_path / "flat", tmp_path / "top")
    (tmp_path / "top" / "config.json").write_text(json.dumps(top))
    for name in ("flat", "top"):
        assert wrong_rounds(opened(tmp_path / name), CASE) == 0


def test_k_is_the_trained_number_unless_more_is_asked_for() -> None:
    """Fails if a longer draft than trained comes by itself, or cannot be had."""
    assert opened().spec.max_tokens == 7
    with pytest.raises(ConfigError, match="max_tokens allows 7"):
        opened().propose(torch.tensor([5]), torch.tensor([0]), 8)
    with pytest.raises(ConfigError, match="at least 1"):
        peagle.make(FOLDER, max_tokens=0)
    drafter = opened(max_tokens=9)
    feed(drafter, Text.random(30, 1, taps=3), 20)
    assert drafter.propose(torch.tensor([5]), torch.tensor([20]), 9).ids.shape == (1, 9)
