"""Training of DFlash and DSpark (spec dspark-dflash, section 7): one packed forward of all blocks of a text.

A block at anchor a sees the target's features at positions t < a, and itself; blocks do not see each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from agentbench_spec.drafting import ConfigError
from agentbench_spec.train.interface import (
    Loss,
    Phase,
    Prediction,
    Recipe,
    Sample,
    Setting,
    Stage,
    Trainee,
    logits_of,
    position_weights,
)

from ..nets.block import BlockConfig, BlockNet
from ..nets.dspark import MarkovHead
from ..nets.qwen3 import Rotary
from .recipe import (
    Packed,
    Start,
    ahead_of,
    base_config,
    initialise,
    lend_tables,
    pass_last_tap,
    spread_layers,
    start_as_checkpoint,
    start_as_target,
    under,
    unused_token,
    write_checkpoint,
)


class BlockTrainee(Trainee):
    """A DFlash or DSpark net in training; see `make_dflash` and `make_dspark` for the options."""

    recipe = Recipe(learning_rate=6e-4)

    def __init__(
        self,
        name: str,
        setting: Setting,
        config: dict[str, Any],
        losses: Mapping[Loss, float],
        *,
        gamma: float | None,
        tables: bool,
        start: Start,
        near: int | None,
    ) -> None:
        """tables: the checkpoint holds copies of the target's embedding and head, as DeepSpec's do."""
        super().__init__()
        self.name = name
        self._config, self._target, self._tables = config, setting.target, tables
        parsed = BlockConfig.from_config(config, f"{name} in training")
        with torch.device("meta"):
            self.net = BlockNet(parsed)
        lend_tables(self.net, setting, head=True)
        initialise(self.net, setting)
        if start == "target":
            start_as_target(self.net, setting, context_norm=self.net.hidden_norm)
            pass_last_tap(self.net.fc)
        elif start != "random":
            start_as_checkpoint(self.net, start, config)
        self.k = parsed.max_tokens
        self.hidden_layers = parsed.target_layer_ids
        self.position_weights = position_weights(self.k, gamma)
        self.phases = (Phase("train", _stages(losses, near)),)
        self._near = near
        self._reach: int | None = None
        """Positions of context that a block sees; None: all."""
        self._rotary = Rotary(parsed.geometry, device=setting.target.device, dtype=setting.dtype)

    def enter(self, phase: Phase, stage: Stage, *, fresh: bool) -> None:
        """Context is cut off in the stage "near"."""
        self._reach = self._near if stage.name == "near" else None

    def predict(self, sample: Sample, anchors: Tensor) -> Prediction:
        """All blocks of a text in one forward."""
        net, reach = self.net, self._reach or len(sample.states)
        context = torch.arange(max(int(anchors[0]) - reach, 0), int(anchors[-1]), device=anchors.device)
        features = net.fuse(sample.states[None, context])
        keys, values = net.context_keys_values(features, self._rotary(context[None]))
        shared = list(zip(keys[0].unbind(), values[0].unbind(), strict=True))
        behind = anchors[:, None] - context
        memory = Packed(shared, (behind > 0) & (behind <= reach))
        rows = anchors[:, None] + torch.arange(net.config.block_size, device=anchors.device)
        states = net.read(net.block(sample.input_ids[anchors], self._rotary(rows), memory), self.k)
        if net.markov_head is None:
            return Prediction(states, net.lm_head)
        return self._with_serial_head(net.markov_head, states, ahead_of(sample.input_ids, anchors, 0, self.k))

    def _with_serial_head(self, head: MarkovHead, states: Tensor, before: Tensor) -> Prediction:
        """Teacher-forced: before [A, K] are the tokens of the text that precede the predicted positions."""
        embedded, state = head.embed(before), head.start(states)
        codes = []
        for position in range(self.k):
            state, code = head.code(state, embedded[:, position], states[:, position])
            codes.append(code)
        split = [states.shape[-1], head.rank, head.rank]
        joined = torch.cat((states, torch.stack(codes, 1).to(states.dtype), embedded.to(states.dtype)), -1)

        def logits(states: Tensor, ids: Tensor | None = None) -> Tensor:
            hidden, code, _ = torch.split(states, split, -1)
            return self.net.lm_head(hidden, ids) + logits_of(head.markov_w2, code, ids)  # type: ignore[no-any-return]

        def confidence(rows: Tensor) -> Tensor:
            hidden, _, previous = torch.split(rows, split, -1)
            return self.net.confidence_head(hidden, previous)  # type: ignore[no-any-return,misc]

        return Prediction(joined, logits, confidence if self.net.confidence_head is not None else None)

    def write(self, folder: Path, phase: Phase, state: Mapping[str, Tensor]) -> None:
        """z-lab's layout, or DeepSpec's (with the target's tables unless tables=false)."""
        tensors = under(state, "net.")
        if self._tables:
            dtype = tensors["norm.weight"].dtype
            for name, module in (("embed_tokens", self._target.embed_tokens), ("lm_head", self._target.lm_head)):
                tensors[f"{name}.weight"] = module.get_parameter("weight").detach().cpu().to(dtype).clone()
        write_checkpoint(folder, self._config, tensors)


def _stages(losses: Mapping[Loss, float], near: int | None) -> tuple[Stage, ...]:
    """Half of the steps with `near` positions of context, if asked for, then all of it.

    Attention over thousands of random keys is flat and learns slowly where to look; over few it learns that at once.
    """
    whole = Stage("whole context", 1.0, losses)
    return (whole,) if near is None else (Stage("near", 1.0, losses), whole)


def _taps(setting: Setting, taps: int, given: Sequence[int] | None) -> list[int]:
    return list(given) if given is not None else spread_layers(taps, setting.target.num_layers)


def make_dflash(
    setting: Setting,
    *,
    layout: Literal["zlab", "deepspec"] = "zlab",
    depth: int = 5,
    block_size: int = 8,
    taps: int = 5,
    target_layer_ids: Sequence[int] | None = None,
    intermediate_size: int | None = None,
    mask_token_id: int | None = None,
    gamma: float | None = None,
    start: Start = "random",
    near: int | None = None,
) -> BlockTrainee:
    """DFlash by cross-entropy. layout: "zlab" (a mask predicts its own slot; no tables) or "deepspec" (next token).

    block_size counts the anchor. gamma: of the position weights; None: 7 from blocks of 16 up, else 4; 0: no decay.
    start: "random", "target" (its last layers), or a checkpoint of the same options to train on.
    near: positions of context in the first half of the steps; None: all.
    Raises ConfigError if an option does not fit the target.
    """
    ids, mask = _taps(setting, taps, target_layer_ids), unused_token(setting, mask_token_id)
    config = base_config(setting.target, depth=depth, intermediate_size=intermediate_size) | {"block_size": block_size}
    if layout == "zlab":
        config |= {"architectures": ["DFlashDraftModel"]}
        config |= {"dflash_config": {"mask_token_id": mask, "target_layer_ids": ids}}
    elif layout == "deepspec":
        config |= _deepspec(ids, mask) | {"markov_rank": 0, "enable_confidence_head": False}
    else:
        raise ConfigError(f"layout is {layout!r}; choose zlab or deepspec")
    decay = gamma if gamma is not None else (7.0 if block_size >= 16 else 4.0)
    return BlockTrainee(
        "dflash", setting, config, {"ce": 1.0}, gamma=decay, tables=layout == "deepspec", start=start, near=near
    )


def make_dspark(
    setting: Setting,
    *,
    depth: int = 5,
    block_size: int = 7,
    taps: int = 5,
    rank: int = 256,
    head: Literal["vanilla", "gated", "rnn"] = "vanilla",
    target_layer_ids: Sequence[int] | None = None,
    intermediate_size: int | None = None,
    mask_token_id: int | None = None,
    gamma: float = 4.0,
    tables: bool = True,
    start: Start = "random",
    near: int | None = None,
) -> BlockTrainee:
    """DSpark: 0.1 cross-entropy, 0.9 L1 and the confidence's cross-entropy, as published.

    block_size is also the number of drafts a round. rank: of the Markov head. tables: store copies of the target's
    embedding and head, as the published files do; without them the loader takes the target's own.
    start: "random", "target" (its last layers), or a checkpoint of the same options to train on.
    near: positions of context in the first half of the steps; None: all.
    """
    ids, mask = _taps(setting, taps, target_layer_ids), unused_token(setting, mask_token_id)
    config = base_config(setting.target, depth=depth, intermediate_size=intermediate_size) | _deepspec(ids, mask)
    config |= {"block_size": block_size, "markov_rank": rank, "markov_head_type": head}
    config |= {"enable_confidence_head": True, "confidence_head_with_markov": True}
    losses: dict[Loss, float] = {"ce": 0.1, "tv": 0.9, "confidence": 1.0}
    return BlockTrainee("dspark", setting, config, losses, gamma=gamma, tables=tables, start=start, near=near)


def _deepspec(ids: list[int], mask: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3DSparkModel"],
        "target_layer_ids": ids,
        "mask_token_id": mask,
        "num_anchors": 512,
    }
