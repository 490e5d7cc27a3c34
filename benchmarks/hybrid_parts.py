"""A hybrid against both of its parts on the embedded target: τ where replies echo and where they are free, and speed.

usage: nice python benchmarks/hybrid_parts.py [--lookup suffix] [--learned dlite] [--rollouts 6] [--out FOLDER] [TEXT]

Three texts: `echo`, sessions whose recorded replies print a listing again with one line changed (mode forced);
`free`, questions answered in the target's own words; `bfcl`, the rollouts and settings of the recorded BFCL run. One
run a text; runs go on where they were killed, and finished ones are read again. A line for each part and measure: the
hybrid's value over the part's on the same turns, with the interval of the ratio. Exit code 1 if the hybrid has a lower
τ than a part on `echo` or `free`, or takes longer a token than one on `bfcl`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.reproduce.reuse import measured_run
from agentbench_spec.results.differences import Measure, difference_line, paired_difference, with_holm
from agentbench_spec.results.folder import read_manifest, read_run
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.rollout import Message, Rollout, write_rollouts

RECORDED = Path(__file__).parents[1] / "results" / "recorded" / "bfcl-v3-smollm2-135m"
HYBRID = "hybrid"
TURNS = 4
_KEYS = (
    "retries", "timeout", "region", "level", "cache", "owner", "branch", "format", "mirror", "quota", "queue", "theme",
)  # fmt: skip
_VALUES = ("north", "amber", "strict", "daily", "seven", "remote", "plain", "silver", "open", "fast", "none", "deep")
_SUBJECTS = (
    "a lighthouse",
    "the first snow",
    "an old bicycle",
    "rain on a tin roof",
    "a night train",
    "a stone bridge",
)
_ASKED = (
    "Write a short story about {}.",
    "What would a child ask about {}, and what would you answer?",
    "Describe {} to somebody who has never seen it.",
    "Give three reasons to care for {}.",
)


def echoes(count: int) -> Iterator[Rollout]:
    """Sessions in which every reply is the listing of the message before, with one line changed."""
    for number in range(count):
        draw = random.Random(number)
        listing = {key: draw.choice(_VALUES) for key in draw.sample(_KEYS, len(_KEYS))}
        messages = [Message(role="user", content=f"This is the file:\n{_text(listing)}\nKeep it in mind.")]
        messages.append(Message(role="assistant", content=_text(listing)))
        for _ in range(TURNS - 1):
            key = draw.choice(_KEYS)
            listing[key] = draw.choice(_VALUES)
            messages.append(
                Message(role="user", content=f"Set {key} to {listing[key]} and print the whole file again.")
            )
            messages.append(Message(role="assistant", content=_text(listing)))
        yield Rollout(id=f"echo{number}", workload="echo", messages=tuple(messages))


def _text(listing: dict[str, str]) -> str:
    return "\n".join(f"{key} = {value}" for key, value in listing.items())


def free(count: int) -> Iterator[Rollout]:
    """Questions that each begin something new."""
    for number in range(count):
        draw = random.Random(number)
        messages = []
        for subject, asked in zip(draw.sample(_SUBJECTS, TURNS), draw.sample(_ASKED, TURNS), strict=True):
            messages.append(Message(role="user", content=asked.format(subject)))
            messages.append(Message(role="assistant", content="-", synthetic=True))
        yield Rollout(id=f"free{number}", workload="free", messages=tuple(messages))


def config_of(text: str, drafters: Sequence[str], rollouts: int, out: Path) -> RunConfig:
    """What is run on a text, its rollouts written to a file where they are made here."""
    wanted: dict[str, Any] = {"drafters": [BASELINE, *drafters]}
    if text == "bfcl":
        return load_config(base=read_manifest(RECORDED)["settings"], flags={**wanted, "workload.limit": rollouts})
    path = out / f"{text}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rollouts(path, MADE[text](rollouts))
    own = {"echo": {"decode.mode": "forced"}, "free": {"replay.history": "self"}}[text]
    shared = {"workload.name": str(path), "decode.k": 7, "decode.max_new_tokens": 128, "target.capacity_tokens": 4096}
    return load_config(flags={**wanted, **shared, **own})


MADE: dict[str, Callable[[int], Iterator[Rollout]]] = {"echo": echoes, "free": free}
MEASURES: dict[str, tuple[Measure, ...]] = {
    "echo": ("tau", "tau_raw"),
    "free": ("tau", "tau_raw"),
    "bfcl": ("tau", "s_per_token"),
}
"""What is compared on each text; the last one decides."""


def report(text: str, rows: Sequence[TurnRow], parts: Sequence[str]) -> bool:
    """Print the comparisons of a text; True if the hybrid is at least as good as both parts by what decides."""
    measures = MEASURES[text]
    found = [paired_difference(rows, HYBRID, part, measure) for part in parts for measure in measures]
    for each in with_holm([own for own in found if own.turns]):
        print(f"{text}: {difference_line(each)}")
    decided = [each.ratio for each in found if each.measure == measures[-1]]
    return all(r is not None and (r < 1 if measures[-1] == "s_per_token" else r >= 1) for r in decided)


def main() -> int:
    """Run what is missing, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="echo, free, bfcl; none: all")
    parser.add_argument("--lookup", default="suffix")
    parser.add_argument("--learned", default="dlite")
    parser.add_argument("--rollouts", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("results/hybrid_parts"))
    options = parser.parse_args()
    if unknown := set(options.texts) - set(MEASURES):
        parser.error(f"no text {', '.join(sorted(unknown))}; known: {', '.join(MEASURES)}")
    parts = [options.lookup, options.learned]
    drafters = [*parts, f"{HYBRID}={options.lookup}+{options.learned}"]
    good = True
    for text in options.texts or MEASURES:
        config = config_of(text, drafters, options.rollouts, options.out)
        rows = read_run(measured_run(config, options.out, print))[1]
        good = report(text, rows, [part.partition("=")[0] for part in parts]) and good
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
