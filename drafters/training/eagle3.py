"""Training of EAGLE-3 by training-time test (spec eagle3-domino-mtp, section 6).

A chain of K steps starts at every anchor: the first step reads the true feature before the anchor, each later one the
output of the step before it, with tokens of the text. Keys: true features before, and one per step of the chain. Rows
that start no chain only give keys, so a text with few supervised tokens costs little.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from agentbench_spec.drafting import ConfigError
from agentbench_spec.train.interface import Phase, Prediction, Recipe, Sample, Setting, Stage, Trainee, logits_of

from ..nets.checkpoint import Checkpoint
from ..nets.eagle3 import Eagle3Layer, Eagle3Net
from ..nets.eagle3_layouts import Eagle3Shape, read_config
from ..nets.qwen3 import Geometry, Rope, Rotary
from .recipe import (
    Packed,
    Start,
    ahead_of,
    base_config,
    initialise,
    lend_tables,
    pass_last_tap,
    start_as_checkpoint,
    start_as_target,
    under,
    write_checkpoint,
)

_FEATURE_NORM = {"hidden_norm.weight": "input_layernorm.weight", "input_layernorm.weight": None}
"""EAGLE-3's input norm is the embedding's; what the target's layer reads is the feature."""


class Eagle3Trainee(Trainee):
    """An EAGLE-3 head in training; see `make` for the options."""

    name = "eagle3"
    recipe = Recipe(learning_rate=6e-4)

    def __init__(
        self, setting: Setting, config: dict[str, Any], steps: int, step_decay: float, kept: Tensor, start: Start
    ) -> None:
        """kept [V_d] int64: target ids of the draft vocabulary, ascending."""
        super().__init__()
        self._config, self.k, self.draft_ids = config, steps, kept
        parsed = read_config(Checkpoint("eagle3 in training", None, config, None))
        with torch.device("meta"):
            self.net = Eagle3Net(_shape(config, len(parsed.target_layers), len(kept)), parsed)
        lend_tables(self.net, setting, head=False)
        initialise(self.net, setting)
        self._start_head_from(setting)
        if start == "target":
            start_as_target(self.net, setting, renamed=_FEATURE_NORM)
            pass_last_tap(self.net.fc)
        elif start != "random":
            self._go_on_from(start)
        self.hidden_layers = parsed.target_layers
        self.position_weights = tuple(step_decay**step for step in range(steps))
        self.phases = (Phase("train", (Stage("training-time test", 1.0, {"soft": 1.0}),)),)
        self._rotary = Rotary(self.net.geometry, device=setting.target.device, dtype=setting.dtype)

    def _start_head_from(self, setting: Setting) -> None:
        """The draft's own head starts as the target's rows; the vocabulary maps are fixed."""
        kept, device = cast(Tensor, self.draft_ids), setting.target.device
        head = setting.target.lm_head.get_parameter("weight")
        with torch.no_grad():
            cast(Any, self.net.lm_head).weight.copy_(head[kept.to(head.device)])
        member = torch.zeros(setting.target.vocab_size, dtype=torch.bool)
        member[kept] = True
        self.net.d2t, self.net.t2d = (kept - torch.arange(len(kept))).to(device), member.to(device)

    def _go_on_from(self, checkpoint: str) -> None:
        """Take a checkpoint's weights; of the head the rows of tokens that both draft vocabularies have."""
        apart = ("lm_head.weight", "d2t", "t2d", "draft_vocab_size")
        name_of = partial(re.sub, r"^midlayer\.", "layers.0.")
        found = start_as_checkpoint(self.net, checkpoint, self._config, name_of=name_of, apart=apart)
        offsets, rows, kept = found["d2t"], found["lm_head.weight"], cast(Tensor, self.draft_ids)
        row_of = torch.full((int(self._config["vocab_size"]),), -1)
        row_of[torch.arange(len(offsets)) + offsets] = torch.arange(len(offsets))
        both = (row_of[kept] >= 0).nonzero().flatten()
        head = cast(Any, self.net.lm_head).weight
        with torch.no_grad():
            head[both.to(head.device)] = rows[row_of[kept[both]]].to(head)

    def predict(self, sample: Sample, anchors: Tensor) -> Prediction:
        """Chains of K steps at all anchors of a text."""
        net, length = self.net, len(sample.states)
        layer = cast(Eagle3Layer, net.layers[0])
        features = net.fuse(sample.states[None])[0]
        everywhere = torch.arange(length, device=anchors.device)
        pair = _pair(net, layer, sample.input_ids[1 : length + 1], features)
        shared = layer.self_attn.keys_values(pair[None], self._rotary(everywhere[None]))
        memory = Packed([(shared[0][0], shared[1][0])], everywhere < (anchors - 1)[:, None])
        hidden, tokens = features[anchors - 1], ahead_of(sample.input_ids, anchors, 0, self.k)
        chain: tuple[list[Tensor], list[Tensor]] = ([], [])
        outputs = []
        for step in range(self.k):
            rope = self._rotary((anchors - 1 + step)[:, None])
            hidden, own = self._step(layer, tokens[:, step], hidden, rope, memory, chain)
            outputs.append(own)
        return Prediction(torch.stack(outputs, 1), partial(logits_of, self.net.lm_head))

    def _step(
        self,
        layer: Eagle3Layer,
        tokens: Tensor,
        hidden: Tensor,
        rope: Rope,
        memory: Packed,
        chain: tuple[list[Tensor], list[Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """One step of all chains: the next step's hidden and what the head reads; `chain` gets its keys and values."""
        net, attention = self.net, layer.self_attn
        pair = _pair(net, layer, tokens, hidden)[:, None]
        for kept, new in zip(chain, attention.keys_values(pair, rope), strict=True):
            kept.append(new)
        mixed = memory.attend(0, attention.queries(pair, rope), torch.cat(chain[0], 2), torch.cat(chain[1], 2))
        residual = layer.hidden_norm(hidden) if net.config.norm_before_residual else hidden
        raw = residual + attention.output(mixed)[:, 0]
        raw = raw + layer.mlp(layer.post_attention_layernorm(raw))
        normed = net.norm(raw)
        return (normed if net.config.feed_back_normed else raw), normed

    def write(self, folder: Path, phase: Phase, state: Mapping[str, Tensor]) -> None:
        """The "midlayer" layout (SafeAILab, SpecForge): no embedding table, own head, d2t and t2d."""
        tensors = {name.replace("layers.0.", "midlayer."): t for name, t in under(state, "net.").items()}
        write_checkpoint(folder, self._config, tensors)


def _pair(net: Eagle3Net, layer: Eagle3Layer, tokens: Tensor, features: Tensor) -> Tensor:
    """What the layer reads: normed embedding, then normed feature [n, 2H]."""
    return torch.cat((layer.input_layernorm(net.embed(tokens)), layer.hidden_norm(features)), -1)


def _shape(config: Mapping[str, Any], taps: int, draft_vocab_size: int) -> Eagle3Shape:
    return Eagle3Shape(
        geometry=Geometry.from_config(config, "eagle3 in training"),
        target_hidden_size=int(config["hidden_size"]),
        taps=taps,
        draft_vocab_size=draft_vocab_size,
        qk_norm=False,
        input_norm=False,
        fc_norm=False,
        fc_bias=False,
        own_embedding=False,
        d2t=True,
        t2d=True,
    )


def draft_vocabulary(counts: Tensor, size: int) -> Tensor:
    """The `size` most frequent token ids, ascending, for counts [V]; small unused ids fill up where too few occur."""
    if not 1 <= size <= len(counts):
        raise ConfigError(f"draft_vocab_size {size} is not in 1..{len(counts)}")
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def make(
    setting: Setting,
    *,
    steps: int = 7,
    step_decay: float = 0.8,
    draft_vocab_size: int = 32000,
    target_layer_ids: Sequence[int] | None = None,
    intermediate_size: int | None = None,
    start: Start = "random",
) -> Eagle3Trainee:
    """EAGLE-3 in the "midlayer" layout by soft cross-entropy to the target over the draft vocabulary.

    steps: K, length of the unrolled chain. step_decay: weight of each step over the one before. draft_vocab_size: V_d,
    the most frequent supervised tokens. start: "random"; "target", its last layer on the feature; or a checkpoint of
    the same options to train on, whose draft vocabulary may differ.
    Raises ConfigError if an option does not fit the target.
    """
    target = setting.target
    depth = target.num_layers
    layers = list(target_layer_ids) if target_layer_ids is not None else [1, depth // 2 - 1, depth - 4]
    if layers != sorted(set(layers)) or layers[0] < 0 or layers[-1] > depth - 2:
        raise ConfigError(
            f"taps {layers} do not fit a target of {depth} layers; give target_layer_ids in 0..{depth - 2}"
        )
    kept = draft_vocabulary(setting.token_counts, min(draft_vocab_size, target.vocab_size))
    config = base_config(target, depth=1, intermediate_size=intermediate_size) | {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(kept),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": layers},
    }
    return Eagle3Trainee(setting, config, steps, step_decay, kept, start)
