"""One EAGLE-3 head in every published layout gives the same drafts; a broken checkpoint is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import eagle3_kit as kit
import eagle3_writers as write
import pytest
import torch
from agentbench_spec_drafters.eagle3 import make
from agentbench_spec_drafters.nets.checkpoint import open_checkpoint
from agentbench_spec_drafters.nets.eagle3_layouts import read_config
from test_eagle3 import mismatches
from torch import Tensor

from agentbench_spec.drafting import ConfigError

Tensors = dict[str, Tensor]


def _full() -> Tensors:
    size = write.CONFIG["vocab_size"]
    trivial = {"d2t": torch.zeros(size, dtype=torch.int64), "t2d": torch.ones(size, dtype=torch.bool)}
    return {**write.HEAD, **trivial}


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "midlayer safetensors": lambda at: write.write_midlayer(at, _full()),
    "midlayer bin": lambda at: write.write_midlayer(at, _full(), binary=True),
    "midlayer head_dim missing": lambda at: write.write_midlayer(at, dict(write.HEAD), head_dim=None),
    "speculators": lambda at: write.write_speculators(at, dict(write.HEAD)),
    "speculators ids null": lambda at: write.write_speculators(
        at,
        dict(write.HEAD),
        eagle_aux_hidden_state_layer_ids=None,
        eagle_config={"eagle_aux_hidden_state_layer_ids": write.CONFIG["target_layer_ids"]},
    ),
    "prefixed names": lambda at: write.write_midlayer(at, {f"model.{k}": v for k, v in write.HEAD.items()}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_reproduces_the_recording(layout: str, tmp_path: Path) -> None:
    """Same weights under other names and numberings: fails if a name, id rule or wrong config size leaks through."""
    drafter = make(LAYOUTS[layout](tmp_path / "head"))
    assert drafter.spec.hidden_layers == (0, 1, 2, 3, 4)
    kit.opened(drafter)
    assert mismatches(drafter, "c04") == []


@pytest.mark.parametrize("writer", [write.write_midlayer, write.write_speculators])
def test_reduced_vocabulary_drafts_target_ids(writer: Callable[..., Path], tmp_path: Path) -> None:
    """d2t holds offsets: with only the recorded ids in the draft vocabulary, the drafted target ids stay the same."""
    ids = write.drafted_ids()
    assert len(ids) < write.CONFIG["vocab_size"]
    drafter = make(writer(tmp_path / "head", write.reduced(ids)))
    kit.opened(drafter)
    for round_ in kit.recorded_rounds("c06"):
        drafter.observe(round_.span)
        assert drafter.propose(round_.anchor, round_.position, 7).ids[0].tolist() == round_.drafted


def test_reduced_vocabulary_gives_probabilities_of_the_target_vocabulary(tmp_path: Path) -> None:
    """At T > 0 the distribution lives on the target's ids: no mass outside t2d, one in sum, the drawn id inside."""
    tensors = write.reduced(write.drafted_ids())
    drafter = make(write.write_midlayer(tmp_path / "head", tensors))
    kit.opened(drafter)
    drafter.sampler = kit.Sampled()
    round_ = next(kit.recorded_rounds("c04"))
    drafter.observe(round_.span)
    proposal = drafter.propose(round_.anchor, round_.position, 4)
    assert proposal.probs is not None and proposal.probs.shape == (1, 4, write.CONFIG["vocab_size"])
    assert proposal.probs[..., ~tensors["t2d"]].max() == 0
    torch.testing.assert_close(proposal.probs.sum(-1), torch.ones(1, 4))
    assert tensors["t2d"][proposal.ids].all()
    first = round_.recorded["draft_logits"][0].masked_fill(~tensors["t2d"], -torch.inf).softmax(-1)
    torch.testing.assert_close(proposal.probs[0, 0], first, atol=1e-4, rtol=1e-4)


def _mapped(ids: Tensor, d2t: Tensor, *, t2d: bool) -> Tensors:
    """The head over the target ids `ids`, with a d2t."""
    tensors = write.reduced(sorted(ids.tolist()))
    tensors |= {"lm_head.weight": write.HEAD["lm_head.weight"][ids].clone(), "d2t": d2t}
    return tensors if t2d else {name: tensor for name, tensor in tensors.items() if name != "t2d"}


IDS = torch.tensor(write.drafted_ids())
MIXED = IDS[torch.randperm(len(IDS), generator=torch.Generator().manual_seed(0))]
OWN = torch.arange(len(IDS))
ALL = torch.arange(write.CONFIG["vocab_size"])
MAPS: dict[str, tuple[Tensors, str | None]] = {
    "offsets": (_mapped(IDS, IDS - OWN, t2d=True), None),
    "offsets, no t2d": (_mapped(IDS, IDS - OWN, t2d=False), None),
    "by frequency": (_mapped(MIXED, MIXED - OWN, t2d=True), None),
    "by frequency, no t2d": (_mapped(MIXED, MIXED - OWN, t2d=False), None),
    "target ids": (_mapped(IDS, IDS.clone(), t2d=True), "holds target ids, not offsets; t2d agrees"),
    "target ids by frequency": (_mapped(MIXED, MIXED.clone(), t2d=True), "holds target ids, not offsets; t2d agrees"),
    "target ids, no t2d": (_mapped(IDS, IDS.clone(), t2d=False), "holds target ids, not offsets; no t2d is there"),
    "all target ids": ({**write.HEAD, "d2t": ALL}, "holds target ids, not offsets; no t2d is there"),
    "all, turned round": (_mapped(ALL.flip(0), ALL.flip(0) - ALL, t2d=True), None),
}


@pytest.mark.parametrize("name", MAPS)
def test_every_one_to_one_map_drafts_the_recorded_tokens(name: str, tmp_path: Path) -> None:
    """Fails if a map in another order is refused, one over the whole vocabulary ignored, or a reading not said."""
    tensors, note = MAPS[name]
    drafter = make(write.write_speculators(tmp_path / "head", tensors))
    kit.opened(drafter)
    for round_ in kit.recorded_rounds("c04"):
        drafter.observe(round_.span)
        assert drafter.propose(round_.anchor, round_.position, len(round_.drafted)).ids[0].tolist() == round_.drafted
    assert [said.partition("d2t ")[2] for said in drafter.notes] == ([note] if note else [])


def test_a_map_that_may_be_read_two_ways_is_noted(tmp_path: Path) -> None:
    """Fails if offsets are taken without a word where small target ids without t2d would pass for them."""
    small = IDS[IDS + len(IDS) < write.CONFIG["vocab_size"]]
    drafter = make(write.write_speculators(tmp_path / "head", _mapped(small, small.clone(), t2d=False)))
    kit.opened(drafter)
    assert "d2t was read as offsets" in drafter.notes[0] and "no t2d" in drafter.notes[0]


def test_guesses_of_layers_and_rope_base_are_notes(tmp_path: Path) -> None:
    """Fails if a head is run on guessed layers or a guessed rope base without a word; one that says both has none."""
    key = "eagle_aux_hidden_state_layer_ids"
    layer = {name: write.CONFIG[name] for name in (*write.SIZES, "rms_norm_eps")}
    head = write.write_speculators(tmp_path / "a", write.HEAD, transformer_layer_config=layer, **{key: None})
    layers, base = make(head, target_layers=36).notes
    assert "1, 17, 32 are guessed" in layers and "36 layers" in layers
    assert "no rope_theta; 10000 is taken" in base
    assert make(write.write_speculators(tmp_path / "b", write.HEAD)).notes == ()


def test_layer_ids_under_both_rules_tap_the_same_layers(tmp_path: Path) -> None:
    """[1, 17, 32] as SpecForge numbers, [2, 18, 33] as speculators numbers, and no ids at all name the same outputs."""
    key = "eagle_aux_hidden_state_layer_ids"
    heads = {
        "specforge": write.write_midlayer(tmp_path / "a", dict(write.HEAD), eagle_config={key: [1, 17, 32]}),
        "speculators": write.write_speculators(tmp_path / "b", dict(write.HEAD), **{key: [2, 18, 33]}),
        "absent": write.write_midlayer(tmp_path / "c", dict(write.HEAD), eagle_config=None),
    }
    tapped = {
        name: read_config(open_checkpoint(folder), target_layers=36).target_layers for name, folder in heads.items()
    }
    assert tapped == dict.fromkeys(heads, (1, 17, 32))


def test_unknown_depth_is_asked_for(tmp_path: Path) -> None:
    """Without layer ids and without the target's depth there is nothing to guess from; the option is named."""
    head = write.write_midlayer(tmp_path / "head", dict(write.HEAD), eagle_config=None)
    with pytest.raises(ConfigError, match=r"target_layers="):
        make(head)


def _without(*names: str) -> Tensors:
    return {name: tensor for name, tensor in write.reduced(write.drafted_ids()).items() if name not in names}


def _broken_map() -> Tensors:
    tensors = write.reduced(write.drafted_ids())
    return {**tensors, "t2d": tensors["t2d"].roll(1)}


BROKEN: dict[str, tuple[Callable[[], Tensors], str]] = {
    "no fc": (lambda: _without("fc.weight"), "missing tensor 'fc.weight'"),
    "no norm": (lambda: _without("norm.weight"), "missing tensor 'norm.weight'"),
    "no head": (lambda: _without("lm_head.weight"), "missing tensor 'lm_head.weight'"),
    "no d2t": (lambda: _without("d2t"), "missing tensor 'd2t'"),
    "no hidden_norm": (lambda: _without("layers.0.hidden_norm.weight"), "hidden_norm"),
    "unknown tensor": (lambda: {**write.HEAD, "extra.weight": torch.zeros(2)}, "unknown tensor 'extra.weight'"),
    "not a number": (lambda: {**write.HEAD, "norm.weight": torch.full((48,), torch.nan)}, "NaN"),
    "maps disagree": (_broken_map, "d2t names"),
    "map rounded": (lambda: {**_full(), "d2t": torch.zeros(160, dtype=torch.bfloat16)}, "'d2t' is torch.bfloat16"),
    "two of one": (lambda: {**write.HEAD, "model.norm.weight": torch.ones(48)}, "two tensors for 'norm.weight'"),
    "d2t descends": (lambda: {**_full(), "d2t": torch.arange(160, 0, -1)}, "no target ids of their own"),
    "bias": (lambda: {**write.HEAD, "layers.0.self_attn.q_proj.bias": torch.ones(64)}, "biases are not implemented"),
    "two layers": (lambda: {**write.HEAD, "layers.1.norm.weight": torch.zeros(2)}, "layers"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_checkpoint_is_refused(name: str, tmp_path: Path) -> None:
    """Every one of these would otherwise draft badly without a word."""
    tensors, message = BROKEN[name]
    drafter = make(write.write_speculators(tmp_path / "head", tensors()))
    with pytest.raises(ConfigError, match=message):
        kit.opened(drafter)


def test_flags_must_match_the_tensors(tmp_path: Path) -> None:
    """A flag without its tensor, and two flags that exclude each other, name the flag."""
    with pytest.raises(ConfigError, match="norm_before_fc and fc_norm"):
        make(write.write_speculators(tmp_path / "a", dict(write.HEAD), norm_before_fc=True, fc_norm=True))
    drafter = make(write.write_speculators(tmp_path / "b", dict(write.HEAD), norm_before_fc=True))
    with pytest.raises(ConfigError, match="norm_before_fc is True"):
        kit.opened(drafter)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"use_sliding_window": True}, "a sliding window"),
        ({"layer_types": ["sliding_attention"]}, "sliding_attention"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
    ],
)
@pytest.mark.parametrize("layout", ["midlayer", "speculators"])
def test_what_the_net_does_not_compute_is_refused(
    layout: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Fails if a head trained with another activation, mask or rope is run as if it were the usual one."""
    if layout == "speculators":
        layer = {name: write.CONFIG[name] for name in (*write.SIZES, "rms_norm_eps", "rope_parameters")}
        head = write.write_speculators(tmp_path / "h", dict(write.HEAD), transformer_layer_config={**layer, **changes})
    else:
        head = write.write_midlayer(tmp_path / "h", dict(write.HEAD), **changes)
    with pytest.raises(ConfigError, match=message):
        make(head)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64}, "hidden_size"),
        ({"vocab_size": 170}, "vocab_size"),
        ({"num_layers": 5}, "num_target_layers"),
    ],
)
def test_wrong_target_is_refused(changes: dict[str, int], message: str) -> None:
    """Each quantity in which head and target differ is named before anything runs."""
    with pytest.raises(ConfigError, match=message):
        make(kit.DRAFT).open(kit.target_info(**changes), rows=1, capacity=8)


def test_raw_state_of_the_last_layer_is_refused(tmp_path: Path) -> None:
    """The last layer's id means the normed state here, which EAGLE-3 never saw in training."""
    key = "eagle_aux_hidden_state_layer_ids"
    head = write.write_midlayer(tmp_path / "head", dict(write.HEAD), eagle_config={key: [1, 2, 3, 4, 5]})
    with pytest.raises(ConfigError, match=r"0\.\.4|-1\.\.4"):
        kit.opened(make(head))


def test_optional_norms_change_the_drafting(tmp_path: Path) -> None:
    """input_norm, fc_norm.N and norm_before_residual are read and used: each moves the first logits."""
    head = dict(write.HEAD)
    wide = {"input_norm.weight": torch.linspace(0.5, 1.5, 240)}
    each = {f"fc_norm.{i}.weight": torch.linspace(0.5, 1.5, 48) for i in range(5)}
    folders = [
        write.write_speculators(tmp_path / "plain", head),
        write.write_speculators(tmp_path / "input", {**head, **wide}, norm_before_fc=True),
        write.write_speculators(tmp_path / "each", {**head, **each}, fc_norm=True),
        write.write_speculators(tmp_path / "residual", head, norm_before_residual=True),
    ]
    round_ = next(kit.recorded_rounds("c04"))
    seen = []
    for folder in folders:
        drafter = make(folder)
        kit.opened(drafter).sampler = kit.Sampled()
        drafter.observe(round_.span)
        seen.append(drafter.propose(round_.anchor, round_.position, 1).probs)
    different = [not torch.allclose(one, other) for i, one in enumerate(seen) for other in seen[:i]]
    assert all(different)


def test_frozen_copies_share_the_targets_tables() -> None:
    """Bitwise equal embedding and head cost no memory of their own."""
    drafter, target = make(kit.DRAFT), kit.target_info()
    kit.opened(drafter, target=target)
    assert drafter.net.embed_tokens is target.embed_tokens and drafter.net.lm_head is target.lm_head


def test_chain_beyond_the_trained_length_is_refused() -> None:
    """k above ttt_length is no option of this head, and the engine is told so; below it is."""
    with pytest.raises(ConfigError, match="ttt_length 7"):
        make(kit.DRAFT, max_tokens=8)
    assert make(kit.DRAFT).spec.max_tokens == 7 and make(kit.DRAFT, max_tokens=3).spec.max_tokens == 3
