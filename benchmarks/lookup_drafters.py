"""What the look-up drafters cost and guess, without a model: host time and memory per token, and τ when the text itself
plays the target (decode mode `forced`).

    python benchmarks/lookup_drafters.py [--tokens 100000] [--drafter ngram --drafter suffix] [--set min_match=2]
    python benchmarks/lookup_drafters.py --rollouts FILE.jsonl      # τ on the recorded replies, as words

The text is the source of Python's standard library, as bytes or as words; `one token` and `period 7` are the worst
cases for an index. Times are of this process on this machine.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sysconfig
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from agentbench_spec.drafting import Drafter, Span
from agentbench_spec.plugins import load_drafter
from agentbench_spec.rollout import Rollout, read_rollouts

CHUNK_TOKENS = 512


def library_source(characters: int) -> str:
    """The first files of the standard library, in order of name, until there are `characters` of them."""
    parts: list[str] = []
    size = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(path.read_text(encoding="utf-8", errors="replace"))
        size += len(parts[-1])
        if size >= characters:
            break
    return "".join(parts)


def as_words(source: str, ids: dict[str, int]) -> list[int]:
    """`source` cut into words, runs of punctuation and indents, numbered through `ids`, which grows."""
    return [ids.setdefault(w, len(ids)) for w in re.findall(r" ?\w+|\n *|[^\w\s]+| ", source)]


def texts(count: int) -> dict[str, list[int]]:
    """Texts of at most `count` token ids: bytes and words of the library, and two pathological ones."""
    source = library_source(12 * count)
    ids: dict[str, int] = {}
    return {
        "bytes": list(source.encode()[:count]),
        "words": as_words(source, ids)[:count],
        "one token": [7] * count,
        "period 7": [1, 2, 3, 1, 2, 4, 5] * (count // 7),
    }


def span(text: list[int], start: int, stop: int) -> Span:
    """The span that commits positions start .. stop - 1 of row 0."""
    return Span(
        rows=torch.tensor([0]),
        start=torch.tensor([start]),
        count=torch.tensor([stop - start]),
        input_ids=torch.tensor([text[start:stop]]),
        next_ids=torch.tensor([text[start + 1 : stop + 1]]),
    )


def opened(name: str, options: dict[str, Any], capacity: int) -> Drafter:
    """A fresh drafter with one row; look-up drafters do not read the target."""
    drafter = load_drafter(name, **options)
    drafter.open(None, rows=1, capacity=capacity)  # type: ignore[arg-type]
    return drafter


def ingest(drafter: Drafter, text: list[int]) -> float:
    """Seconds to observe `text`, its last token excepted, in chunks."""
    spans = [span(text, i, min(i + CHUNK_TOKENS, len(text) - 1)) for i in range(0, len(text) - 1, CHUNK_TOKENS)]
    begin = time.perf_counter()
    for part in spans:
        drafter.observe(part)
    return time.perf_counter() - begin


@dataclass
class Replay:
    """Sums over the rounds of a forced replay."""

    rounds: int = 0
    emitted: int = 0
    proposed: int = 0
    propose_s: float = 0.0

    def run(self, drafter: Drafter, text: list[int], start: int, k: int) -> None:
        """Replay `text` from the anchor at `start` to its last token, which is the anchor that remains."""
        at = start
        while at < len(text) - 1:
            anchor, position = torch.tensor([text[at]]), torch.tensor([at])
            begin = time.perf_counter()
            guess = drafter.propose(anchor, position, k)
            self.propose_s += time.perf_counter() - begin
            ids = guess.ids[0].tolist()[: len(text) - 1 - at]
            matched = next((i for i, token in enumerate(ids) if token != text[at + 1 + i]), len(ids))
            step = min(matched + 1, len(text) - 1 - at)
            drafter.observe(span(text, at, at + step))
            at += step
            self.rounds += 1
            self.emitted += step
            self.proposed += len(ids)


def replay_rollout(drafter: Drafter, rollout: Rollout, k: int, ids: dict[str, int], into: Replay) -> None:
    """Replay the assistant messages of `rollout`; its tools and the other messages are context."""
    text = as_words(json.dumps(rollout.tools), ids)
    seen = 0
    for message in rollout.messages:
        calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        text += as_words(f"\n{message.role}:\n", ids)
        start = len(text) - 1
        drafter.observe(span(text, seen, start))
        text += as_words(message.content + (json.dumps(calls) if calls else ""), ids)
        if message.role == "assistant":
            into.run(drafter, text, start, k)
        else:
            drafter.observe(span(text, start, len(text) - 1))
        seen = len(text) - 1


def report_rollouts(name: str, options: dict[str, Any], path: Path, k: int) -> str:
    """One line: τ and tokens proposed per round, pooled over the rollouts of `path`."""
    total, ids = Replay(), dict[str, int]()
    for rollout in read_rollouts(path):
        replay_rollout(opened(name, options, 1 << 20), rollout, k, ids, total)
    tau, proposed = total.emitted / total.rounds, total.proposed / total.rounds
    return f"{name:8}{options!s:24} tau {tau:.2f}, drafted {proposed:.2f}, rounds {total.rounds}"


def traced_bytes(name: str, options: dict[str, Any], text: list[int]) -> tuple[int, int]:
    """Bytes that tracemalloc saw the drafter keep for `text`, and what `state_bytes` says."""
    drafter = opened(name, options, len(text))
    tracemalloc.start()
    ingest(drafter, text)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept, drafter.state_bytes(0)


def report(name: str, options: dict[str, Any], label: str, text: list[int], k: int) -> str:
    """One line of the table."""
    drafter = opened(name, options, len(text))
    ingest_s = ingest(drafter, text)
    begin = time.perf_counter()
    drafter.truncate(0, len(text) // 2)
    undo_s = time.perf_counter() - begin
    replay = Replay()
    replay.run(drafter, text, len(text) // 2, k)
    tau, proposed, propose_s = (x / replay.rounds for x in (replay.emitted, replay.proposed, replay.propose_s))
    kept, said = traced_bytes(name, options, text[:20_000])
    short = min(len(text), 20_000)
    return (
        f"{name:8}{label:11}{len(text) / ingest_s:12,.0f}{len(text) / 2 / undo_s:12,.0f}{tau:8.2f}{proposed:8.2f}"
        f"{propose_s * 1e6:10.1f}{kept / short:10.0f}{said / short:10.0f}"
    )


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--k", type=int, default=7)
    parser.add_argument("--drafter", action="append")
    parser.add_argument("--text", action="append", help="only this text; may be repeated")
    parser.add_argument("--rollouts", type=Path, help="replay the replies of this JSONL file instead")
    parser.add_argument("--set", action="append", default=[], help="drafter option, name=value")
    args = parser.parse_args()
    torch.set_num_threads(1)
    options = {key: ast.literal_eval(value) for key, _, value in (item.partition("=") for item in args.set)}
    names = args.drafter or ["ngram", "suffix"]
    if args.rollouts:
        print(*(report_rollouts(name, options, args.rollouts, args.k) for name in names), sep="\n")
        return
    print(f"{'drafter':8}{'text':11}{'ingest t/s':>12}{'undo t/s':>12}{'tau':>8}{'drafted':>8}", end="")
    print(f"{'propose us':>12}{'B/token':>8}{'said':>10}")
    for name in names:
        for label, text in texts(args.tokens).items():
            if not args.text or label in args.text:
                print(report(name, options, label, text, args.k), flush=True)


if __name__ == "__main__":
    main()
