"""Time of one draft round (observe + propose) of the block drafters against a straightforward implementation.

    python benchmarks/block_drafters.py [--context 512] [--rounds 20] [--threads 1] [--hidden 576]

Random weights of SmolLM2-135M's shape with five draft layers, fp32 on the CPU; the adapters load them as a checkpoint.
Both sides draft the same rounds, in turn, so that a busy machine slows both; the tokens must be equal. At batch 4 the
straightforward side runs its four sequences one after the other. "The engine's linears" are the ones it gives the
target (agentbench_spec.engine.cpu.linear), here given to the draft net too. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from agentbench_spec_drafters import dflash, dlite, dspark
from agentbench_spec_drafters.nets.block import BlockConfig, BlockNet
from agentbench_spec_drafters.nets.dlite import DLiteConfig, DLiteNet
from plain_block import Plain, PlainBlock, PlainDLite
from safetensors.torch import save_file
from torch import Tensor, nn

from agentbench_spec.drafting import Drafter, Span, TargetInfo
from agentbench_spec.engine.cpu.linear import accelerate
from agentbench_spec.errors import MeasurementError

COMMITTED = 3
"""Positions a round commits: a typical accepted length."""
VOCABULARY, TARGET_LAYERS, TAPS, RANK = 49152, 30, [1, 8, 14, 20, 27], 96
KINDS = ("dflash-zlab", "dflash", "dspark", "dlite")


def config_of(kind: str, hidden: int) -> dict[str, Any]:
    """A config.json of the given kind, sized like SmolLM2-135M."""
    heads = hidden // 64
    config: dict[str, Any] = {
        "hidden_size": hidden, "intermediate_size": hidden * 8 // 3, "num_attention_heads": heads,
        "num_key_value_heads": heads // 3, "head_dim": 64, "num_hidden_layers": 5, "num_target_layers": TARGET_LAYERS,
        "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5, "rope_theta": 1e5, "max_position_embeddings": 8192,
    }  # fmt: skip
    own = {"mask_token_id": VOCABULARY - 1, "target_layer_ids": TAPS}
    if kind == "dflash-zlab":
        return config | {"block_size": 16, "dflash_config": own}
    if kind == "dlite":
        extra = {"architecture_version": "dlite_v1", "model_role": "pivot_q_student", "sequential_head": "rnn"}
        return config | {"block_size": 8, "dlite_config": own | extra | {"sequential_rank": RANK}}
    markov = {"markov_rank": RANK, "markov_head_type": "vanilla"} if kind == "dspark" else {"markov_rank": 0}
    return config | own | {"block_size": 7, "enable_confidence_head": False} | markov


def write_checkpoint(folder: Path, kind: str, hidden: int) -> dict[str, Tensor]:
    """A random draft checkpoint in `folder`; returns its tensors."""
    config = config_of(kind, hidden)
    net: nn.Module
    if kind == "dlite":
        net = DLiteNet(DLiteConfig.from_config(config, kind))
    else:
        net = BlockNet(BlockConfig.from_config(config, kind))
    weights = {}
    for name, tensor in net.state_dict().items():
        weights[name] = torch.ones_like(tensor) if "norm" in name else torch.randn_like(tensor) * 0.05
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return weights


def target_of(hidden: int) -> TargetInfo:
    """A target as far as a drafter looks at one."""
    embed, head = nn.Embedding(VOCABULARY, hidden), nn.Linear(hidden, VOCABULARY, bias=False)
    cpu = torch.device("cpu")
    return TargetInfo("random", VOCABULARY, hidden, TARGET_LAYERS, 8192, torch.float32, cpu, {}, embed, head)


def plain_of(kind: str, weights: Mapping[str, Tensor], target: TargetInfo, hidden: int) -> Plain:
    """The straightforward drafter on the same weights."""
    config = config_of(kind, hidden)
    config |= config.get("dflash_config") or config.get("dlite_config") or {}
    config["own_slot"] = kind == "dflash-zlab"
    embedding, head = (module.weight.detach() for module in (target.embed_tokens, target.lm_head))
    if kind == "dlite":
        return PlainDLite(weights, config, embedding)
    return PlainBlock(
        weights, config, weights.get("embed_tokens.weight", embedding), weights.get("lm_head.weight", head)
    )


class Rounds:
    """The same rounds for both sides: states [B, T, S, H] and anchors [B] of a made-up text."""

    def __init__(self, batch: int, context: int, rounds: int, hidden: int) -> None:
        self.batch, self.context = batch, context
        self.states = torch.randn(batch, context + rounds * COMMITTED, len(TAPS), hidden)
        self.anchors = torch.randint(0, VOCABULARY - 1, (rounds + 1, batch))

    def span(self, start: int, count: int, width: int, scope: str) -> Span:
        """Positions start .. start + count - 1 of every row, padded to `width` as a verify pass delivers them."""
        rows, ids = torch.arange(self.batch), torch.zeros(self.batch, width, dtype=torch.int64)
        states = self.states[:, start : start + count]
        states = states[:, -1:] if scope == "last" else nn.functional.pad(states, (0, 0, 0, 0, 0, width - count))
        full = torch.full((self.batch,), start)
        return Span(rows, full, torch.full((self.batch,), count), ids, ids, states)


def adapter_round(drafter: Drafter, span: Span, anchor: Tensor, position: Tensor, k: int) -> Tensor:
    """Observe what the round before committed, then draft: [B, k]."""
    drafter.observe(span)
    return drafter.propose(anchor, position, k).ids


def plain_round(sequences: list[Plain], rounds: Rounds, index: int) -> Tensor:
    """The same for the straightforward side, one sequence after the other."""
    at = rounds.context + index * COMMITTED
    drafted = []
    for row, plain in enumerate(sequences):
        anchor = rounds.anchors[index, row : row + 1]
        if isinstance(plain, PlainDLite):
            drafted.append(plain.draft(rounds.states[row, at - 1], anchor))
        elif isinstance(plain, PlainBlock):
            drafted.append(plain.draft(rounds.states[row, plain.length : at].flatten(1), anchor))
    return torch.stack(drafted)


def timed_s(work: Callable[..., Tensor], *arguments: Any) -> tuple[float, Tensor]:
    """Seconds and result of a call."""
    began_s = time.perf_counter()
    result = work(*arguments)
    return time.perf_counter() - began_s, result


def opened(kind: str, folder: Path, target: TargetInfo, rounds: Rounds, *, fast: bool) -> Drafter:
    """The adapter with the context taken in; fast: its linears replaced as the engine replaces the target's."""
    drafter: Any = {"dlite": dlite.make, "dspark": dspark.make}.get(kind, dflash.make)(folder)
    drafter.open(target, rows=rounds.batch, capacity=rounds.states.shape[1] + 64)
    if fast:
        accelerate(drafter.net)
    drafter.observe(rounds.span(0, rounds.context, rounds.context, drafter.spec.hidden_scope))
    return drafter  # type: ignore[no-any-return]


@torch.inference_mode()
def compare(kind: str, batch: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Median seconds of a round on all sides. Raises MeasurementError if they draft different tokens."""
    torch.manual_seed(0)
    weights, target = write_checkpoint(folder, kind, options.hidden), target_of(options.hidden)
    rounds = Rounds(batch, options.context, options.rounds + 1, options.hidden)
    ours, fast = (opened(kind, folder, target, rounds, fast=fast) for fast in (False, True))
    sequences = [plain_of(kind, weights, target, options.hidden) for _ in range(batch)]
    for plain in sequences:
        if isinstance(plain, PlainBlock):
            plain.start()
    plain_round(sequences, rounds, 0)  # takes in the context; not timed
    spent_s: list[list[float]] = []
    for index in range(1, options.rounds + 1):
        k, at = ours.spec.max_tokens or 0, rounds.context + index * COMMITTED
        span = rounds.span(at - COMMITTED, COMMITTED, k + 1, ours.spec.hidden_scope)
        given = span, rounds.anchors[index], torch.full((batch,), at), k
        sides: list[tuple[Any, ...]] = [
            (adapter_round, ours, *given),
            (plain_round, sequences, rounds, index),
            (adapter_round, fast, *given),
        ]
        done = {side: timed_s(*sides[side]) for side in ((index + turn) % 3 for turn in range(3))}  # rotated order
        if not torch.equal(done[0][1], done[1][1]):
            raise MeasurementError(f"{kind}, batch {batch}, round {index}: the two sides draft different tokens")
        spent_s.append([done[side][0] for side in range(3)])
    medians = [statistics.median(column) for column in zip(*spent_s, strict=True)]
    names = ("round_s", "plain_round_s", "fast_round_s")
    return {"drafter": kind, "batch": batch, **dict(zip(names, medians, strict=True))}


def main() -> None:
    """Print a line per drafter and batch, then all of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("context", 512), ("rounds", 20), ("threads", 1), ("hidden", 576)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--drafter", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 4])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = []
    for kind in options.drafter:
        for batch in options.batch:
            with tempfile.TemporaryDirectory() as folder:
                result = compare(kind, batch, options, Path(folder))
            results.append(result)
            ours, plain, fast = (result[name] for name in ("round_s", "plain_round_s", "fast_round_s"))
            print(
                f"{kind:12s} batch {batch}: {ours * 1e3:6.1f} ms a round, straightforward {plain * 1e3:6.1f} ms, ratio "
                f"{ours / plain:.2f}; with the engine's linears {fast * 1e3:6.1f} ms, ratio {fast / plain:.2f}"
            )
    print(json.dumps({"options": vars(options), "torch": torch.__version__, "results": results}))


if __name__ == "__main__":
    main()
