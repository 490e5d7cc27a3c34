"""Recorded traces of the official block drafters, replayed through `observe` and `propose` without an engine.

The stand-in for the engine runs the stock target once over a case's committed text: under causal attention the states
of committed positions are the same however they were batched. Padding behind them is filled with NaN.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from agentbench_spec_drafters import dflash, dflash2, dlite, dspark
from agentbench_spec_drafters.nets.dlite import layout as dlite_layout
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentbench_spec.drafting import Drafter, Span, TargetInfo
from agentbench_spec.engine.target import Target

DATA = Path(__file__).parent / "data"
SETS = (
    "dflash", "dflash-zlab", "dspark-vanilla", "dspark-gated", "dspark-rnn", "dlite-g1", "dlite-g2", "dlite-g3",
)  # fmt: skip
PADDING = 3


@cache
def target_model(folder: Path = DATA / "target") -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def target_info(folder: Path = DATA / "target", **changes: Any) -> TargetInfo:
    model = target_model(folder)
    known = {
        "name": "golden",
        "vocab_size": model.config.vocab_size,
        "hidden_size": model.config.hidden_size,
        "num_layers": model.config.num_hidden_layers,
        "max_positions": model.config.max_position_embeddings,
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "config": model.config,
        "embed_tokens": model.get_input_embeddings(),
        "lm_head": model.get_output_embeddings(),
    }
    return TargetInfo(**{**known, **changes})


def engine(rows: int, capacity: int) -> Target:
    """The engine over a model of its own, since it changes how the model attends."""
    model = AutoModelForCausalLM.from_pretrained(DATA / "target", dtype=torch.float32).eval()
    return Target(model, name="golden", capacity=capacity, rows=rows)


@cache
def recorded(name: str) -> dict[str, Any]:
    return json.loads((DATA / name / "cases.json").read_text())  # type: ignore[no-any-return]


@cache
def tensors(name: str) -> dict[str, Tensor]:
    return load_file(DATA / name / "tensors.safetensors")


def all_cases(name: str) -> list[dict[str, Any]]:
    return recorded(name)["cases"] + recorded(name).get("match_mode_cases", [])  # type: ignore[no-any-return]


def window_rule(name: str, case: dict[str, Any]) -> Any:
    """How a case's sliding windows were measured."""
    return case.get("window_rule", recorded(name)["meta"]["window_rule"])


def make_drafter(name: str, case: dict[str, Any] | None = None, *, folder: Path | None = None) -> Drafter:
    """The adapter for a golden set, with the options a case asks for; not opened."""
    case, folder = case or {}, folder or DATA / name / "draft"
    if name.startswith("dflash2"):
        return dflash2.make(folder, window_rule=window_rule(name, case), block_size=case.get("block_size"))
    if name.endswith("-spec"):
        make = dspark.make if name.startswith("dspark") else dflash.make
        return make(folder, window_rule=window_rule(name, case))
    if name.startswith("dspark"):
        return dspark.make(folder, confidence_threshold=case.get("confidence_threshold", 0.0))
    if name.startswith("dlite"):
        return dlite.make(folder)
    return dflash.make(folder, block_size=case.get("block_size"))


def open_drafter(
    name: str, case: dict[str, Any] | None = None, *, rows: int = 1, capacity: int = 512, folder: Path | None = None
) -> Drafter:
    drafter = make_drafter(name, case, folder=folder)
    drafter.open(target_info(), rows=rows, capacity=capacity)
    return drafter


@dataclass(frozen=True)
class Round:
    """One recorded round and what the target makes of it."""

    anchor: int
    start: int
    verified: list[int]
    drafted: list[int]
    committed: int
    """Positions the verify pass commits: the anchor and the accepted drafts."""


@dataclass(frozen=True)
class Trace:
    """A recorded case as the engine would see it."""

    text: Tensor
    """[T] int64: every token committed, the last anchor included."""
    prompt: int
    """Positions the target has processed before the first round."""
    hidden: Tensor
    """[T, S, H]: the target's states in the drafter's order."""
    rounds: list[Round]
    picks: Tensor
    """[T] int64: the target's likeliest token after each position."""


def committed_text(case: dict[str, Any]) -> tuple[list[int], list[Round]]:
    """Every token a case commits, what its cap later cuts off included, and its rounds."""
    rounds = case["rounds"]
    text = list(case["prompt_ids"])
    steps = []
    if rounds["start"]:  # the first anchor is the first new token, or the last of the prompt
        text = [*text[: rounds["start"][0]], rounds["verify_input_ids"][0][0]]
    for start, drafted, verified, accepted, following in zip(
        *(rounds[key] for key in ("start", "draft_tokens", "verify_input_ids", "accepted_draft", "next_token")),
        strict=True,
    ):
        steps.append(Round(text[-1], start, verified, drafted, accepted + 1))
        text += verified[1 : accepted + 1] + ([] if following is None else [following])
    return text, steps


def trace_of(case: dict[str, Any], layers: tuple[int, ...], target: Path = DATA / "target") -> Trace:
    text, steps = committed_text(case)
    ids = torch.tensor(text)
    with torch.no_grad():
        out = target_model(target)(ids[None], output_hidden_states=True)
    hidden = torch.stack([out.hidden_states[layer + 1][0] for layer in layers or (0,)], 1)
    return Trace(ids, steps[0].start if steps else len(text), hidden, steps, out.logits[0].argmax(-1))


def span_of(trace: Trace, start: int, count: int, scope: str, *, row: int = 0, padding: int = PADDING) -> Span:
    """Positions start .. start + count - 1 of a trace as a span, with NaN states in the padding behind them."""
    fed, following = trace.text[start : start + count], trace.text[start + 1 : start + count + 1]
    junk = torch.full((padding,), 7)
    if scope == "last":
        hidden = trace.hidden[start + count - 1][None, None]
    else:
        void = torch.full((padding, *trace.hidden.shape[1:]), float("nan"))
        hidden = torch.cat((trace.hidden[start : start + count], void))[None]
    return Span(
        rows=torch.tensor([row]),
        start=torch.tensor([start]),
        count=torch.tensor([count]),
        input_ids=torch.cat((fed, junk))[None],
        next_ids=torch.cat((following, junk))[None],
        hidden=hidden,
    )


def ingest(drafter: Drafter, trace: Trace, upto: int, *, start: int = 0, chunk: int = 512, row: int = 0) -> None:
    """Feed positions start .. upto - 1 in chunks."""
    for first in range(start, upto, chunk):
        count = min(chunk, upto - first)
        drafter.observe(span_of(trace, first, count, drafter.spec.hidden_scope, row=row))


def replay(drafter: Drafter, trace: Trace, *, chunk: int = 512) -> Iterator[tuple[Round, list[int]]]:
    """Yield every recorded round with the tokens the drafter proposes in its place."""
    ingest(drafter, trace, trace.prompt, chunk=chunk)
    longest = max((len(step.drafted) for step in trace.rounds), default=0)
    k = min(longest, drafter.spec.max_tokens or longest)
    for step in trace.rounds:
        proposal = drafter.propose(torch.tensor([step.anchor]), torch.tensor([step.start]), k)
        ids = proposal.ids[0].tolist()
        yield step, ids if proposal.count is None else ids[: int(proposal.count[0])]
        drafter.observe(span_of(trace, step.start, step.committed, drafter.spec.hidden_scope))


class Recorder:
    """Collects what the modules of a drafter's net put out, by hooks, between two calls of `take`."""

    def __init__(self, drafter: Drafter) -> None:
        self._seen: dict[str, list[Any]] = {}
        self._handles = [
            module.register_forward_hook(self._hook(name))
            for name, module in drafter.net.named_modules()  # type: ignore[attr-defined]
            if name and not name.startswith("layers")
        ]

    def close(self) -> None:
        """Take the hooks off again; some sit on modules lent by the target."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, name: str) -> Any:
        def keep(_module: Any, inputs: Any, output: Any) -> None:
            self._seen.setdefault(name, []).append((inputs[0], output))

        return keep

    def take(self) -> dict[str, list[Any]]:
        """(first input, output) of every call since the last take, by module name."""
        seen, self._seen = self._seen, {}
        return seen


def block_tensors(seen: dict[str, list[Any]]) -> dict[str, Tensor]:
    """The recorded tensors of a DFlash or DSpark round, under their golden names."""
    found = {
        "context_features": torch.cat([inputs[0] for inputs, _ in seen["fc"]]),
        "context_projected": torch.cat([output[0] for _, output in seen["hidden_norm"]]),
        "block_hidden": seen["norm"][0][1][0],
    }
    logits = seen["lm_head"][0][1][0]
    if "markov_head" in seen:
        found["base_logits"] = logits
        logits = logits + torch.cat([bias for _, (_, bias) in seen["markov_head"]])
        found["rnn_states"] = torch.cat([state for _, (state, _) in seen["markov_head"]])
    if "confidence_head" in seen:
        found["confidence_logits"] = seen["confidence_head"][0][1][0]
    if "candidate_selector" in seen:
        calls = seen["candidate_selector"]
        found["candidate_ids"] = torch.cat([ids for ids, _ in calls])
        found["candidate_unary"] = logits.gather(1, found["candidate_ids"])
        found["candidate_scores"] = torch.cat([scores for _, scores in calls])
    return {**found, "draft_logits": logits}


def peagle_tensors(drafter: Any, seen: dict[str, list[Any]]) -> dict[str, Tensor]:
    """The recorded tensors of a P-EAGLE round, under their golden names; of the context the rows new in the round."""
    return {
        "context_features": torch.cat([inputs[0] for inputs, _ in seen["fc"]]),
        "context_projected": torch.cat([output[0] for _, output in seen["fc"]]),
        "mask_projected": drafter.net.mask_feature,
        "step_hidden": seen["norm"][0][0][0],
        "draft_logits": seen["lm_head"][0][1][0],
    }


def dlite_tensors(drafter: Any, seen: dict[str, list[Any]], trace: Trace, step: Round) -> dict[str, Tensor]:
    """The recorded tensors of a DLite round, under their golden names."""
    config, head, states = drafter.config, drafter.net.sequential_head, [s for _, (s, _) in seen["sequential_head"]]
    place = dlite_layout(config, torch.tensor([step.start]))
    short = config.group - min(config.group, step.start + 1)
    found = {
        "pivot_slots_raw": trace.hidden[step.start - 1],
        "pivot_slots_normed": seen["context_norm"][0][1][0],
        "query_embeddings": seen["embed_tokens"][0][1][0, short:],
        "context_positions": place.context[0],
        "query_positions": place.query[0, short:],
        "block_hidden": seen["norm"][0][1][0],
        "rnn_states": torch.cat(states),
        "head_latents": torch.cat([latent for latent, _ in seen["sequential_head.output_proj"]]),
        "draft_logits": torch.cat([logits for _, (_, logits) in seen["sequential_head"]]),
    }
    if config.group > 1:
        zero = torch.zeros(1, config.rank)
        found["rnn_seed_state"] = head.advance(zero, trace.text[step.start - 1 : step.start])[0]
    return found


def outside(ours: Tensor, golden: Tensor) -> float:
    """How far a tensor lies outside 1e-4 + 1e-4 relative of the recorded one; above 0 it differs."""
    golden = golden[-len(ours) :]  # DLite's states of real tokens are discarded, so the net does not norm them
    return float(((ours - golden).abs() - 1e-4 - 1e-4 * golden.abs()).max()) if ours.shape == golden.shape else 1e9


def wrong_rounds(drafter: Drafter, case: dict[str, Any]) -> int:
    """In how many rounds of a case the drafter proposes other tokens than were recorded."""
    return sum(got != expected(step, case) for step, got in replay(drafter, trace_of(case, drafter.spec.hidden_layers)))


def expected(step: Round, case: dict[str, Any]) -> list[int]:
    """What the drafter hands over in a round: all it drafted, or what it is confident of."""
    return step.verified[1:] if case.get("confidence_threshold") else step.drafted
