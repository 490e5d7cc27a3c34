"""MTP and Domino by their own laws (no official vectors exist), and every published size on the meta device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import chainkit as kit
import pytest
import torch
from agentbench_spec_drafters import dflash, domino, mtp, none
from torch import Tensor, nn
from torch.nn import functional as F

from agentbench_spec.conformance.kit import check
from agentbench_spec.drafting import ConfigError
from agentbench_spec.engine.target import Target

MODULE = {
    "enorm.weight": (kit.HIDDEN,),
    "hnorm.weight": (kit.HIDDEN,),
    "eh_proj.weight": (kit.HIDDEN, 2 * kit.HIDDEN),
    "final_layernorm.weight": (kit.HIDDEN,),
}
LAYER = kit.layer_shapes("layer.")
NAMES = {
    "training": ("", "midlayer.", {}),
    "serving": (
        "mtp.",
        "mtp.layers.0.",
        {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "final_layernorm": "norm"},
    ),
    "speculators": (
        "mtp_layers.0.",
        "mtp_layers.0.",
        {"enorm": "token_layernorm", "hnorm": "hidden_layernorm", "eh_proj": "input_proj"},
    ),
    "mimo": (
        "model.mtp_layers.0.",
        "model.mtp_layers.0.",
        {"enorm": "token_layernorm", "hnorm": "hidden_layernorm", "eh_proj": "input_proj"},
    ),
    "appended": ("model.layers.6.", "model.layers.6.", {}),
    "deepseek": ("model.layers.6.", "model.layers.6.", {"final_layernorm": "shared_head.norm"}),
}


def mtp_weights() -> dict[str, Tensor]:
    return kit.random_tensors({**MODULE, **LAYER})


def write_mtp(folder: Path, layout: str, **config: Any) -> Path:
    """The same module under the names of a layout; bundled layouts also hold a tensor of the target."""
    prefix, layer_prefix, other = NAMES[layout]
    tensors = {}
    for name, tensor in mtp_weights().items():
        stem, _, leaf = name.rpartition(".")
        if name.startswith("layer."):
            tensors[layer_prefix + name.removeprefix("layer.")] = tensor
        else:
            tensors[f"{prefix}{other.get(stem, stem)}.{leaf}"] = tensor
    if prefix:
        tensors["model.layers.0.input_layernorm.weight"] = torch.ones(kit.HIDDEN)
    return kit.write_checkpoint(folder, {"num_target_layers": kit.DEPTH, **config}, tensors)


def norm(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain


def turned(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary positions by complex numbers: x [n, heads, d]."""
    half = x.shape[-1] // 2
    angle = positions[:, None, None] * kit.SIZES["rope_theta"] ** (-torch.arange(half) / half)
    spun = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((spun.real, spun.imag), -1)


def mtp_by_hand(hidden: Tensor, tokens: Tensor, k: int, *, swap: bool = False, raw: bool = False) -> list[int]:
    """Draft k tokens from states [n, H] and the tokens after them [n], recomputing everything at every step."""
    w = mtp_weights()
    embedding, head = kit.target().info.embed_tokens, kit.target().info.lm_head
    drafted: list[int] = []
    for _ in range(k):
        at = torch.arange(len(tokens))
        e = embedding(tokens) * (at > 0)[:, None]
        parts = [norm(e, w["enorm.weight"]), norm(hidden, w["hnorm.weight"])]
        u = torch.cat(parts[::-1] if swap else parts, -1) @ w["eh_proj.weight"].T
        a = norm(u, w["layer.input_layernorm.weight"])
        q, key, value = ((a @ w[f"layer.self_attn.{p}_proj.weight"].T).unflatten(-1, (-1, kit.HEAD_DIM)) for p in "qkv")
        q = turned(norm(q, w["layer.self_attn.q_norm.weight"]), at)
        key = turned(norm(key, w["layer.self_attn.k_norm.weight"]), at)
        group = kit.HEADS // kit.KV_HEADS
        key, value = (t.repeat_interleave(group, 1).transpose(0, 1) for t in (key, value))
        mixed = F.scaled_dot_product_attention(q.transpose(0, 1), key, value, is_causal=True).transpose(0, 1)
        r = u + mixed.flatten(1) @ w["layer.self_attn.o_proj.weight"].T
        b = norm(r, w["layer.post_attention_layernorm.weight"])
        gated = F.silu(b @ w["layer.mlp.gate_proj.weight"].T) * (b @ w["layer.mlp.up_proj.weight"].T)
        last = (r + gated @ w["layer.mlp.down_proj.weight"].T)[-1]
        out = norm(last, w["final_layernorm.weight"])
        drafted.append(int(head(out).argmax()))
        hidden = torch.cat((hidden, (last if raw else out)[None]))
        tokens = torch.cat((tokens, torch.tensor([drafted[-1]])))
    return drafted


@pytest.mark.parametrize("layout", NAMES)
def test_mtp_equals_the_written_out_maths(layout: str, tmp_path: Path) -> None:
    """Every name map loads the same module; MiMo's reversed fusion and DeepSeek's raw carry are applied, no other."""
    drafter = kit.opened(mtp.make(write_mtp(tmp_path / "mtp", layout)))
    assert drafter.spec.hidden_layers == (kit.DEPTH - 1,)
    tokens, hidden = kit.random_text(30, 1, seed=3)
    kit.feed(drafter, tokens, hidden, 0, 29, chunk=4)
    ids = drafter.propose(tokens[29:], torch.tensor([29]), 6).ids[0].tolist()
    by_hand = mtp_by_hand(hidden[:29, 0], tokens[1:], 6, swap=layout == "mimo", raw=layout == "deepseek")
    assert ids == by_hand


def test_mtp_variants_differ() -> None:
    """The control of the test above: reversed fusion, raw carry and states without the norm's gain would be seen."""
    tokens, hidden = kit.random_text(30, 1, seed=3)
    plain = mtp_by_hand(hidden[:29, 0], tokens[1:], 6)
    others = [
        mtp_by_hand(hidden[:29, 0], tokens[1:], 6, swap=True),
        mtp_by_hand(hidden[:29, 0], tokens[1:], 6, raw=True),
        mtp_by_hand(hidden[:29, 0] * torch.linspace(-2, 2, kit.HIDDEN).exp(), tokens[1:], 6),
    ]
    assert plain not in others


def test_mtp_after_a_one_token_prompt(tmp_path: Path) -> None:
    """At position 0 the embedding is zeroed, also when the pair there is the one drafted from."""
    drafter = kit.opened(mtp.make(write_mtp(tmp_path / "mtp", "serving")))
    tokens, hidden = kit.random_text(3, 1, seed=5)
    kit.feed(drafter, tokens, hidden, 0, 1)
    ids = drafter.propose(tokens[1:2], torch.tensor([1]), 4).ids[0].tolist()
    assert ids == mtp_by_hand(hidden[:1, 0], tokens[1:2], 4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers is 2"),
        ({"n_routed_experts": 8}, "experts"),
        ({"num_target_layers": None}, "target_layers="),
        ({"num_target_layers": 5}, "num_target_layers is 5"),
        ({"rope_theta": 500.0}, "rope base"),
    ],
)
def test_mtp_refuses_what_it_does_not_do(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Each would otherwise draft with the wrong maths."""
    with pytest.raises(ConfigError, match=message):
        kit.opened(mtp.make(write_mtp(tmp_path / "mtp", "serving", **config)))


BLOCK, MASK, STATE, WIDTH = 5, 49, 12, 6
TAPS = [0, 2, 4]


def domino_shapes() -> dict[str, tuple[int, ...]]:
    layers = {**kit.layer_shapes("layers.0."), **kit.layer_shapes("layers.1.")}
    return {
        "fc.weight": (kit.HIDDEN, 3 * kit.HIDDEN),
        "hidden_norm.weight": (kit.HIDDEN,),
        "norm.weight": (kit.HIDDEN,),
        **layers,
        "prefix_gru.weight_ih_l0": (3 * STATE, kit.HIDDEN),
        "prefix_gru.weight_hh_l0": (3 * STATE, STATE),
        "embed_proj.0.weight": (WIDTH, kit.HIDDEN + STATE),
        "embed_proj.2.weight": (kit.VOCABULARY, WIDTH),
    }


def write_domino(
    folder: Path, *, shift: bool = True, prefix: int = 1, tensors: dict[str, Tensor] | None = None, **more: Any
) -> Path:
    nested = {
        "mask_token_id": MASK,
        "target_layer_ids": TAPS,
        "projector_type": "domino",
        "pure_draft_prefix_len": prefix,
        "emb_dim": WIDTH,
        "gru_hidden_dim": STATE,
        "shift_label": shift,
    }
    config = {
        "architectures": ["DominoDraftModel"],
        "block_size": BLOCK,
        "num_hidden_layers": 2,
        "num_target_layers": kit.DEPTH,
        "dflash_config": nested,
        **more,
    }
    return kit.write_checkpoint(folder, config, domino_weights() if tensors is None else tensors)


def domino_weights() -> dict[str, Tensor]:
    tensors = kit.random_tensors(domino_shapes())
    tensors["embed_proj.2.weight"] *= 8  # the correction must be able to overrule the base logits
    return tensors


def domino_drafts(folder: Path, k: int = BLOCK - 1, *, chunk: int = 64) -> tuple[Any, list[int]]:
    drafter = kit.opened(domino.make(folder))
    tokens, hidden = kit.random_text(30, 3, seed=4)
    kit.feed(drafter, tokens, hidden, 0, 29, chunk=chunk)
    return drafter, drafter.propose(tokens[29:], torch.tensor([29]), k).ids[0].tolist()


def final_states(drafter: Any) -> tuple[Tensor, Tensor]:
    """The block's final states [b, H], and the anchor, for the text of `domino_drafts`."""
    tokens, _ = kit.random_text(30, 3, seed=4)
    window = drafter._context.window(torch.tensor([29]))
    with torch.no_grad():
        return drafter.net.block(tokens[29:], drafter._rotary(window.positions), window)[0], tokens[29:]


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_domino_equals_the_head_written_out(shift: bool, prefix: int, tmp_path: Path) -> None:
    """With torch's own GRU over all tokens before each one: row, state and prefix of every drafted token."""
    drafter, ids = domino_drafts(write_domino(tmp_path / "domino", shift=shift, prefix=prefix))
    z, anchor = final_states(drafter)
    w, info = domino_weights(), kit.target().info
    gru = nn.GRU(kit.HIDDEN, STATE, bias=False, batch_first=True)
    gru.load_state_dict({name: w[f"prefix_gru.{name}"] for name in ("weight_ih_l0", "weight_hh_l0")})
    read = anchor.tolist()
    with torch.no_grad():
        for j in range(BLOCK - 1):
            row = z[j if shift else j + 1]
            logits = info.lm_head(row)
            if j >= prefix:
                state = gru(info.embed_tokens(torch.tensor([read])))[0][0, -1]
                inner = F.silu(w["embed_proj.0.weight"] @ torch.cat((row, state)))
                logits = logits + w["embed_proj.2.weight"] @ inner
            read.append(int(logits.argmax()))
    assert ids == read[1:]


def test_domino_correction_matters(tmp_path: Path) -> None:
    """The control of the test above: without the correction the drafts differ, from the prefix on only."""
    _, corrected = domino_drafts(write_domino(tmp_path / "a", prefix=1))
    _, plain = domino_drafts(write_domino(tmp_path / "b", prefix=BLOCK))
    assert corrected[0] == plain[0] and corrected != plain


def test_domino_without_correction_is_the_block_drafter(tmp_path: Path) -> None:
    """W2 = 0 and own-slot rows: the same backbone loaded as z-lab DFlash drafts the same."""
    weights = domino_weights()
    weights["embed_proj.2.weight"].zero_()
    _, ids = domino_drafts(write_domino(tmp_path / "domino", shift=False, tensors=weights))
    backbone = {name: t for name, t in weights.items() if not name.startswith(("prefix_gru", "embed_proj"))}
    config = {
        "architectures": ["DFlashDraftModel"],
        "block_size": BLOCK,
        "num_hidden_layers": 2,
        "num_target_layers": kit.DEPTH,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": TAPS},
    }
    plain = kit.opened(dflash.make(kit.write_checkpoint(tmp_path / "dflash", config, backbone)))
    tokens, hidden = kit.random_text(30, 3, seed=4)
    kit.feed(plain, tokens, hidden, 0, 29)
    assert plain.propose(tokens[29:], torch.tensor([29]), BLOCK - 1).ids[0].tolist() == ids


def test_domino_context_in_chunks_and_short_k(tmp_path: Path) -> None:
    """The context grows by position, not by call, and a shorter k is a prefix: the serial head looks back only."""
    folder = write_domino(tmp_path / "domino")
    _, ids = domino_drafts(folder)
    assert domino_drafts(folder, chunk=3)[1] == ids and domino_drafts(folder, 2)[1] == ids[:2]


def test_domino_reads_the_early_names(tmp_path: Path) -> None:
    """Early files put `logit_head.` before the head's tensors."""
    early = {
        (f"logit_head.{name}" if name.startswith(("prefix_gru", "embed_proj")) else name): tensor
        for name, tensor in domino_weights().items()
    }
    _, ids = domino_drafts(write_domino(tmp_path / "early", tensors=early))
    assert ids == domino_drafts(write_domino(tmp_path / "late"))[1]


@pytest.mark.parametrize("missing", ["prefix_gru.weight_hh_l0", "embed_proj.2.weight"])
def test_domino_needs_its_head(missing: str, tmp_path: Path) -> None:
    """A published trainer once left the GRU out of the file: the tensor is named."""
    tensors = domino_weights()
    del tensors[missing]
    with pytest.raises(ConfigError, match=missing):
        kit.opened(domino.make(write_domino(tmp_path / "domino", tensors=tensors)))


def test_output_is_the_targets_own(tmp_path: Path) -> None:
    """Random drafters over three turns with a rewritten history: the text never changes, for any k."""
    draw = torch.Generator().manual_seed(0)
    first = torch.randint(1, 49, (20,), generator=draw).tolist()
    prompts = [first, [*first[:12], 5, 6, 7], [*first, *first]]
    baseline = kit.decoded(none.make(), prompts, k=0)
    for make, folder in ((mtp.make, write_mtp(tmp_path / "m", "mimo")), (domino.make, write_domino(tmp_path / "d"))):
        for k in (1, 4):
            drafter = make(folder)
            drafter.open(kit.target().info, rows=1, capacity=128)
            assert kit.decoded(drafter, prompts, k) == baseline


def test_mtp_conformance(tmp_path: Path) -> None:
    """The state laws of the kit, by which a wrong rollback or pairing would show."""
    folder, laws = write_mtp(tmp_path / "mtp", "serving"), ("spec", "incremental", "no-trace", "rows", "truncate")
    long = Target(kit.target().model, name="tiny", capacity=1024)
    report = check(lambda: mtp.make(folder), target=long, only=laws)
    assert {finding.law: finding.outcome for finding in report.findings if finding.law in laws} == dict.fromkeys(
        laws, "passed"
    ), report.failed


def test_state_bytes_follow_the_config(tmp_path: Path) -> None:
    """One layer of K/V for MTP, each layer's context K/V for Domino, in bytes per text position."""
    each = 2 * kit.KV_HEADS * kit.HEAD_DIM * 4
    module = kit.opened(mtp.make(write_mtp(tmp_path / "m", "training")))
    tokens, hidden = kit.random_text(40, 1, seed=6)
    kit.feed(module, tokens, hidden, 0, 32)
    assert module.state_bytes(0) == 32 * each
    drafter, _ = domino_drafts(write_domino(tmp_path / "d"))
    assert drafter.state_bytes(0) == 29 * 2 * each
