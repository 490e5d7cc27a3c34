"""Record the runs that results/ holds, with every drafter, on an idle machine; then run the notebooks over them.

usage: python scripts/record.py [--replace] [--busy] [--budget MINUTES] [PART ...]

Each part is one command of agentbench-spec; it is continued where it was killed, and left alone once it is finished.
A part that does not fit into what is left of the budget is left for the next call. Estimates are for two idle cores
of a Xeon with AVX-512 and seven methods; where they come from stands beside each part. An EPYC took 2.5 times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentbench_spec.config import load_config
from agentbench_spec.engine.embedded import NAME as TARGET
from agentbench_spec.engine.embedded import shipped_drafter
from agentbench_spec.results.folder import MANIFEST, read_manifest

ROOT = Path(__file__).parents[1]
RECORDED, PAPER, DEMO = Path("results/recorded"), Path("results/paper"), Path("examples/demo.toml")
METHODS = ("none", "ngram", "suffix", "eagle3", "dflash", "dspark", "dlite")
BUSY_LOAD = 0.5
"""Load average above which clocks are not worth keeping."""


@dataclass(frozen=True)
class Part:
    """One command, and how many minutes it is expected to take."""

    name: str
    minutes: float
    settings: tuple[str, ...] = ()
    """Of a run, over those of the demo; none: a table, which finds and continues its own runs."""

    @property
    def folder(self) -> Path:
        """Where it writes."""
        return (RECORDED if self.settings else PAPER) / self.name

    def words(self, begun: str) -> list[str]:
        """The command line; begun: what `_begun` says."""
        if not self.settings:
            return ["reproduce", self.name, "--embedded", "--results", str(PAPER), "-o", str(self.folder)]
        if begun:
            return ["run", "--resume", "--out", str(self.folder)]
        given = [word for setting in self.settings for word in ("--set", setting)]
        return ["run", "--config", str(DEMO), *given, "--out", str(self.folder)]


def replayed(name: str, minutes: float, *settings: str) -> Part:
    """A run of all methods on the embedded target."""
    return Part(f"{name}-smollm2-135m", minutes, (f"drafters={json.dumps(METHODS)}", *settings))


# At 2K of context a token is taken to cost 43 ms plain, 28 ms by look-up and 55 ms by a learned drafter: 319 ms for all
# seven, 400 ms at 8K. Prefill is taken to run at 550 tokens/s, at 400 up to 8K. The recorded bfcl-v3 has 42, 26, and 33
# to 42 ms, and 639 tokens/s; the recorded synthetic-8k has 411 ms for all seven beyond 4K, and 401 tokens/s.
PARTS = (
    # 6 rollouts x 6 turns x 45 tokens x 319 ms = 8.6 min; 16K tokens of prefill and ingest = 0.8 min
    replayed("bfcl-v3", 9.5, "workload.limit=6"),
    # 2 sessions x 7 turns x 48 tokens x 400 ms = 4.5 min; 16K tokens = 1 min
    replayed(
        "synthetic-8k",
        5.5,
        "workload.name=synthetic_agent",
        "workload.options={sessions = 2, turns = 7, context_characters = 26000}",
        "replay.max_turns=7",
        "decode.max_new_tokens=48",
    ),
    # 2 sessions, of which 10 of the first 12 turns fit the window, x 64 tokens x 319 ms = 3.4 min; 7K tokens = 0.4 min
    replayed(
        "coding-sessions",
        4.0,
        "workload.name=coding_sessions",
        "workload.options={}",
        "workload.limit=2",
        "measure.seed=3",  # a sample whose sessions have several turns that fit
    ),
    # 4 tasks x 6 turns x 64 tokens x 319 ms = 8.2 min at most; the model often stops earlier
    replayed("live-bfcl-v3", 8.5, "replay.history=live", "workload.limit=4"),
    Part("table3", 14.0),  # agentbench_spec/data/presets.toml has the sums
    Part("table4", 26.0),  # as it took on two cores of an EPYC
)
NOTEBOOKS_MINUTES = 2.0
MOST_BYTES = 3_000_000
BUDGET_MINUTES = 75.0


def main(arguments: list[str]) -> int:
    """Record the parts asked for; 0 if nothing is left to do."""
    given = _parsed(arguments)
    os.chdir(ROOT)
    load = os.getloadavg()[0]
    if load > BUSY_LOAD and not given.busy:
        print(f"the load average is {load:.1f}: clocks measured now would be void; wait, or give --busy")
        return 2
    end_s = time.monotonic() + 60 * given.budget
    left = [part.name for part in PARTS if part.name in given.parts and not _recorded(part, end_s, given.replace)]
    if left:
        print(f"not recorded: {', '.join(left)}; call again to go on")
        return 1
    code = subprocess.call([sys.executable, "scripts/run_notebooks.py"])
    print(
        f"results/ holds {_committed_bytes() / 1e6:.1f} MB that git keeps; {MOST_BYTES / 1e6:.0f} MB are wanted at most"
    )
    return code


def _committed_bytes() -> int:
    """Size of the files below results/ that git has or would take."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "results"]
    names = subprocess.run(listed, capture_output=True, check=True, text=True).stdout.split("\0")
    return sum(Path(name).stat().st_size for name in names if name and Path(name).is_file())


def _parsed(arguments: list[str]) -> argparse.Namespace:
    names = [part.name for part in PARTS]
    total = sum(part.minutes for part in PARTS) + NOTEBOOKS_MINUTES
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(names)}; none: all, {total:.0f} min")
    parser.add_argument(
        "--replace", action="store_true", help="remove runs that were made with other settings or drafters"
    )
    parser.add_argument("--busy", action="store_true", help="record although other work is going on")
    parser.add_argument("--budget", type=float, default=BUDGET_MINUTES, help=f"minutes (default {BUDGET_MINUTES:.0f})")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(names):
        parser.error(f"no part {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    given.parts = given.parts or names
    return given


def _recorded(part: Part, end_s: float, replace: bool) -> bool:
    """Record a part, if that is still to do; False if it could not be."""
    begun = _begun(part, replace)
    if begun == "finished":
        print(f"{part.name}: already recorded")
        return True
    left_minutes = (end_s - time.monotonic()) / 60
    if part.minutes > left_minutes:
        print(f"{part.name}: takes about {part.minutes:g} min, and {max(left_minutes, 0):.0f} are left")
        return False
    print(f"{part.name}: about {part.minutes:g} min", flush=True)
    began_s = time.monotonic()
    code = subprocess.call([sys.executable, "-c", _CALL, *part.words(begun)])
    print(f"{part.name}: {(time.monotonic() - began_s) / 60:.1f} min of about {part.minutes:g}; exit code {code}")
    return code == 0


_CALL = "import sys; sys.argv[0] = 'agentbench-spec'; from agentbench_spec.cli import app; app()"
"""The command line, under a name that holds no path of this machine: manifests keep it."""


def _begun(part: Part, replace: bool) -> str:
    """How far a run is: "", "killed" or "finished". Removes, if asked to, one of other settings or other drafters."""
    if not part.settings or not (part.folder / MANIFEST).is_file():
        return ""
    manifest = read_manifest(part.folder)
    same_settings = manifest["settings"] == load_config(DEMO, part.settings).model_dump(mode="json")
    if not same_settings or _other_drafters(manifest.get("model", {}).get("drafters", {})):
        if not replace:
            what = "drafters" if same_settings else "settings"
            raise SystemExit(f"{part.folder} was made with other {what}; --replace removes it")
        shutil.rmtree(part.folder)
        return ""
    return "finished" if manifest.get("finished") else "killed"


def _other_drafters(recorded: Mapping[str, str]) -> bool:
    """True if a drafter of the package has other weights by now."""
    shipped = {name: shipped_drafter(name, TARGET) for name in recorded}
    return any(own["revision"] != recorded[name] for name, own in shipped.items() if own)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
