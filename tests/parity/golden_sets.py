"""Any folder of golden vectors, by what its own files say: its drafter, the options of a case, its rounds, its tensors.

A set is a folder with `draft/`, `cases.json` and `tensors.safetensors`; its target is `target/` beside it, or the one
in `tests/parity/data`. AGENTBENCH_SPEC_GOLDEN names further folders to look below.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from golden_block import (
    DATA,
    Recorder,
    Round,
    Trace,
    block_tensors,
    dlite_tensors,
    expected,
    outside,
    peagle_tensors,
    replay,
    target_info,
    trace_of,
)
from safetensors.torch import load_file
from torch import Tensor

from agentbench_spec.drafting import Drafter
from agentbench_spec.errors import AgentBenchError
from agentbench_spec.plugins import accepts, available, load_drafter

FILES = ("cases.json", "tensors.safetensors", "draft/config.json", "draft/model.safetensors")
CASE_FIELDS = ("id", "prompt_ids", "max_new_tokens", "stop_token_ids", "output_ids", "accept_lengths", "rounds")
ROUND_FIELDS = ("start", "draft_tokens", "verify_input_ids", "accepted_draft", "next_token")


def roots() -> list[Path]:
    """The shipped data and the folders of AGENTBENCH_SPEC_GOLDEN, separated as in PATH."""
    return [DATA, *(Path(name) for name in os.environ.get("AGENTBENCH_SPEC_GOLDEN", "").split(os.pathsep) if name)]


def folders(root: Path) -> list[Path]:
    """Every folder at or below `root` that holds one of a set's files; those of the target and of `rejection` aside."""
    found = {path.parent for name in FILES[:2] for path in root.rglob(name)}
    found |= {path.parent for path in root.rglob("draft") if path.is_dir()}
    return sorted(path for path in found if not (path / "config.json").exists() and not holds_blocks(path))


def holds_blocks(folder: Path) -> bool:
    """True for building blocks of rejection sampling, which have no drafter."""
    file = folder / "cases.json"
    return file.exists() and "blocks" in json.loads(file.read_text())


class Noting:
    """Draws the likeliest token and keeps the logits; greedy: as temperature 0, where a drafter need not ask."""

    def __init__(self, *, greedy: bool) -> None:
        self.greedy = greedy
        self.logits: list[Tensor] = []

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        self.logits.append(logits)
        return logits.argmax(-1), None if self.greedy else logits.float().softmax(-1)


@dataclass(frozen=True)
class GoldenSet:
    """One folder of recorded traces."""

    folder: Path

    @cached_property
    def recorded(self) -> dict[str, Any]:
        return json.loads((self.folder / "cases.json").read_text())  # type: ignore[no-any-return]

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return load_file(self.folder / "tensors.safetensors")

    @cached_property
    def target(self) -> Path:
        beside = self.folder.parent / "target"
        return beside if beside.is_dir() else DATA / "target"

    @cached_property
    def cases(self) -> list[dict[str, Any]]:
        """The cases of every list of the file that holds rounds."""
        lists = [value for value in self.recorded.values() if isinstance(value, list)]
        return [case for cases in lists for case in cases if "rounds" in case]

    def lacks(self) -> list[str]:
        """What is missing for the folder to be a set, in words."""
        if missing := [f"no {name}" for name in FILES if not (self.folder / name).exists()]:
            return missing
        if not self.cases:
            return ["cases.json: no list of cases with rounds"]
        for case in self.cases:
            fields = [name for name in CASE_FIELDS if name not in case]
            fields += [f"rounds.{name}" for name in ROUND_FIELDS if name not in case["rounds"]]
            if fields:
                return [f"cases.json: case {case.get('id')} has no {', '.join(fields)}"]
            if len({len(values) for name, values in case["rounds"].items() if name in ROUND_FIELDS}) != 1:
                return [f"cases.json: the lists in rounds of case {case['id']} are not equally long"]
        return []

    def options(self, case: dict[str, Any]) -> dict[str, Any]:
        """The options that a case, or the file for all cases, names."""
        said = {**self.recorded.get("meta", {}), **case, "stop_ids": case["stop_token_ids"]}
        names = ("confidence_threshold", "block_size", "window_rule", "stop_ids")
        return {name: said[name] for name in names if said.get(name) is not None}

    def opened(self, name: str, options: dict[str, Any]) -> Drafter:
        """The drafter `name` on this checkpoint, with those of the options it knows. Raises ConfigError."""
        known = {key: value for key, value in options.items() if accepts("drafter", name, key)}
        drafter = load_drafter(name, checkpoint=self.folder / "draft", **known)
        drafter.open(target_info(self.target), rows=1, capacity=512)
        drafter.sampler = Noting(greedy=True)
        return drafter

    @cached_property
    def drafters(self) -> tuple[list[str], dict[str, str]]:
        """The installed drafters that read the checkpoint, and why each of the others does not."""
        able, refused = [], {}
        for name in available("drafter"):
            if accepts("drafter", name, "checkpoint"):
                try:
                    self.opened(name, self.options(self.cases[0]))
                    able.append(name)
                except AgentBenchError as error:
                    refused[name] = str(error)
        return able, refused

    def differences(self, case: dict[str, Any]) -> list[str]:
        """What of a case is not reproduced, by the nearest drafter; what contradicts itself is not played."""
        wrong = inconsistencies(case, trace_of(case, (), self.target))
        return wrong or min((self._misses(name, case) for name in self.drafters[0]), key=len)

    def _misses(self, name: str, case: dict[str, Any]) -> list[str]:
        wrong = []
        for width in sorted({len(drafted) for drafted in case["rounds"]["draft_tokens"]}):
            drafter = self._of_width(name, self.options(case), width)
            trace = trace_of(case, drafter.spec.hidden_layers, self.target)
            for index, (step, got) in enumerate(replay(drafter, trace)):
                golden = expected(step, case)
                if len(step.drafted) == width and got != golden:
                    wrong.append(f"{case['id']} round {index}: {name} drafts {got}, recorded {golden}")
        return wrong

    def _of_width(self, name: str, options: dict[str, Any], width: int) -> Drafter:
        """With a block of `width` drafts, if the loop shortened it near its limit and the drafter can, too."""
        drafter = self.opened(name, options)
        if "block_size" in options or not accepts("drafter", name, "block_size"):
            return drafter
        for size in (width, width + 1):
            if width < (drafter.spec.max_tokens or 0):
                try:
                    shorter = self.opened(name, {**options, "block_size": size})
                except AgentBenchError:
                    continue
                if shorter.spec.max_tokens == width:
                    return shorter
        return drafter

    def gaps(self) -> dict[str, float]:
        """How far outside 1e-4 + 1e-4 relative each recorded tensor lies that the nearest drafter lays open."""
        traced = {key.split(".")[0] for key in self.tensors}
        cases = [case for case in self.cases if case["id"] in traced]
        found = [{key: gap for case in cases for key, gap in self._case_gaps(name, case)} for name in self.drafters[0]]
        return min(found, key=lambda gaps: sum(gap > 0 for gap in gaps.values()), default={})

    def _case_gaps(self, name: str, case: dict[str, Any]) -> Iterator[tuple[str, float]]:
        options = self.options(case)
        if not options.get("confidence_threshold"):  # above 0 confidences are computed; this one cuts nothing
            options["confidence_threshold"] = 1e-9
        try:
            drafter = self.opened(name, options)
        except AgentBenchError:  # the checkpoint has no confidence head
            drafter = self.opened(name, self.options(case))
        trace = trace_of(case, drafter.spec.hidden_layers, self.target)
        recorder, noting = Recorder(drafter), Noting(greedy=False)
        drafter.sampler = noting
        for index, (step, _) in enumerate(replay(drafter, trace)):
            prefix = f"{case['id']}.round{index}."
            golden = {key.removeprefix(prefix): t for key, t in self.tensors.items() if key.startswith(prefix)}
            ours = laid_open(drafter, recorder.take(), noting.logits, trace, step)
            noting.logits = []
            for key in sorted(golden.keys() & ours.keys()):
                yield prefix + key, outside(ours[key], golden[key])
        recorder.close()


def laid_open(
    drafter: Any, seen: dict[str, list[Any]], drawn: list[Tensor], trace: Trace, step: Round
) -> dict[str, Tensor]:
    """The tensors of a round under their golden names, as far as this kind of drafter shows them."""
    if "sequential_head" in seen:
        return dlite_tensors(drafter, seen, trace, step)
    if "hidden_norm" in seen:
        return block_tensors(seen)
    if hasattr(drafter.net, "mask_feature"):
        return peagle_tensors(drafter, seen)
    return {"draft_logits": torch.cat(drawn)}


def inconsistencies(case: dict[str, Any], trace: Trace) -> list[str]:
    """Where a case contradicts its target or itself: texts, counts, positions."""
    prompt, output, rounds = len(case["prompt_ids"]), case["output_ids"], case["rounds"]
    text, wrong = trace.text.tolist(), []
    sampled = [pick for picks in rounds.get("target_picks", []) for pick in picks]
    if output[:prompt] != case["prompt_ids"] or (trace.rounds and output != text[: len(output)]):
        wrong.append("output_ids is not what the rounds commit")
    if "num_new_tokens" in case and case["num_new_tokens"] != len(output) - prompt:
        wrong.append("num_new_tokens is not the length of the output")
    if not sampled and text[prompt:] != trace.picks[prompt - 1 : len(text) - 1].tolist():
        wrong.append("the target continues otherwise")
    for index, step in enumerate(trace.rounds):
        last = index == len(trace.rounds) - 1
        kept = step.committed - 1
        picks = rounds["target_picks"][index] if sampled else trace.picks[step.start :].tolist()
        same = [mine == theirs for mine, theirs in zip(step.verified[1:], picks, strict=False)]
        agreed = same.index(False) if False in same else len(same)
        if step.verified[0] != text[step.start] or step.verified[1:] != step.drafted[: len(step.verified) - 1]:
            wrong.append(f"round {index}: what was verified is not the anchor and its drafts")
        if kept > agreed or (kept < agreed and not last):
            wrong.append(f"round {index}: {kept} drafts accepted, the target agrees with {agreed}")
        if not last and rounds["start"][index + 1] != step.start + kept + 1:
            wrong.append(f"round {index + 1}: start {rounds['start'][index + 1]} does not follow")
        count = case["accept_lengths"][index]
        if count > kept + 1 or (count <= kept and not last):
            wrong.append(f"round {index}: accept length {count} for {kept} accepted drafts")
    return [f"{case['id']} {fault}" for fault in wrong]
