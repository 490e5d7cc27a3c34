"""Speed-ups of one small run on an idle machine, and of the same run beside one and two competing processes.

usage: python benchmarks/noisy_machine.py [--rollouts 2] [--turns 3] [--tokens 32] [--methods ngram dlite]
           [--run-threads N] [--threads]

Replays shipped BFCL-v3 rollouts on the embedded target by the command line: idle, beside each number of competitors,
and idle again, which shows what the machine does by itself. A competitor keeps one core and the memory busy; all end
with the script, however it ends. Every speed-up must be within 5 % of the idle one, or the run must have said that its
clocks are doubtful; exit code 1 if one is neither, or was not measured. Takes `--minutes` (12) at most: a run that
takes more than its share of what is left is stopped. `--threads` then tells, in as many minutes again, how one thread,
and threads that wait actively or passively for each other, bear a competitor. Run it on a machine that does nothing
else.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from agentbench_spec.results.clock_checks import null_speedup
from agentbench_spec.results.intervals import spread_text
from agentbench_spec.results.loaded import Run
from agentbench_spec.results.metrics import BASELINE, counted

NEAR = 0.05
"""How far from its idle value a speed-up may be."""
COMPETITOR = """
import os, sys
import numpy as np
parent, niceness = map(int, sys.argv[1:])
os.nice(niceness)
one, other = np.ones(1 << 22), np.empty(1 << 22)  # 32 MiB each: more than a core's cache
while os.getppid() == parent:
    np.multiply(one, 1.0, out=other)
    np.multiply(other, 1.0, out=one)
"""


class Condition(NamedTuple):
    """What a run is measured beside, and how its threads are set."""

    competitors: int = 0
    threads: int | None = None
    """None: torch's default."""
    waiting: str | None = None
    """OMP_WAIT_POLICY; None: as it is set for the script, which is not at all, usually."""


class Budget:
    """Shares the time that is left among the runs that are left."""

    def __init__(self, minutes: float, runs: int) -> None:
        self._end_s, self._runs = time.monotonic() + 60 * minutes, runs

    def next_s(self) -> float:
        """Seconds that the next run may take."""
        self._runs -= 1
        return max(self._end_s - time.monotonic(), 1.0) / (self._runs + 1)


@contextmanager
def competing(count: int, niceness: int = 0) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Competitors that end with the block, however it ends, and with this process, even if it is killed."""
    command = [sys.executable, "-c", COMPETITOR, str(os.getpid()), str(niceness)]
    with ExitStack() as stack:
        started = []
        for _ in range(count):
            started.append(subprocess.Popen(command, start_new_session=True))  # Ctrl-C is for us to pass on
            stack.callback(_stop, started[-1])
        yield started


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def measure(condition: Condition, options: argparse.Namespace, limit_s: float) -> Run | None:
    """One run under a condition; None: `limit_s` was too little. Raises SystemExit with its last words if it fails."""
    environment = dict(os.environ)
    if condition.waiting:
        environment |= {"OMP_WAIT_POLICY": condition.waiting}
        environment.pop("GOMP_SPINCOUNT", None)  # would count for more
    with tempfile.TemporaryDirectory() as folder, competing(condition.competitors, options.nice) as competitors:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "agentbench_spec", "run", "--out", str(out), *_flags(condition, options)]
        try:
            done = subprocess.run(
                command, env=environment, timeout=limit_s, capture_output=True, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
        if any(process.poll() is not None for process in competitors):
            raise SystemExit("a competitor ended before the run did")
        return Run.load(out)


def _flags(condition: Condition, options: argparse.Namespace) -> Iterator[str]:
    settings = {
        "target.source": '"smollm2-135m"',
        "workload.name": '"bfcl_v3"',
        "workload.options.subset": '"shipped"',
        "workload.limit": options.rollouts,
        "replay.max_turns": options.turns,
        "decode.max_new_tokens": options.tokens,
    }
    if condition.threads:
        settings["measure.threads"] = condition.threads
    for name in (BASELINE, *options.methods):
        yield from ("--drafter", name)
    for key, value in settings.items():
        yield from ("--set", f"{key}={value}")


def doubtful(run: Run) -> bool:
    """True if the run says of itself that its speed-ups may be off."""
    null = null_speedup(run.rows)
    return bool(run.manifest.get("contended") or run.faults or (null is not None and null.excludes_one))


def verdict(idle: float | None, found: float | None, *, doubtful: bool) -> str:
    """Whether a speed-up stands; what ends in "!" fails the benchmark."""
    if idle is None or found is None:
        return "not measured!"
    if abs(found / idle - 1) <= NEAR:
        return f"within {100 * NEAR:.0f} %"
    return "said to be doubtful" if doubtful else "off, and not said!"


def speedups(run: Run | None, methods: Sequence[str]) -> dict[str, float | None]:
    """The headline of each method."""
    found = {own.drafter: own.speedup.pooled for own in run.summary.drafters} if run else {}
    return {name: found.get(name) for name in methods}


def plain_ms(run: Run | None) -> float | None:
    """Milliseconds a token of plain decoding, as the clock said."""
    plain = [row for row in counted(run.rows) if row.drafter == BASELINE and row.decode_s] if run else []
    return 1e3 * sum(row.decode_s or 0 for row in plain) / sum(row.emitted or 0 for row in plain) if plain else None


def number(value: float | None, form: str = ".2f") -> str:
    """The value, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def change(idle: float | None, found: float | None) -> str:
    """ "+3.2 %"."""
    return "-" if idle is None or found is None else f"{100 * (found / idle - 1):+.1f} %"


HEADINGS = f"{'':16}{'method':10}{'speed-up':22}{'as timed':>9}{'from idle':>11}  verdict"


def report(name: str, run: Run | None, idle: Run | None, options: argparse.Namespace) -> bool:
    """Print what a run found beside the idle one; True if every speed-up stands."""
    before, after = speedups(idle, options.methods), speedups(run, options.methods)
    known = {own.drafter: own for own in run.summary.drafters} if run else {}
    verdicts = [verdict(before[m], after[m], doubtful=run is not None and doubtful(run)) for m in options.methods]
    for method, said in zip(options.methods, verdicts, strict=True):
        own = known.get(method)
        value = number(after[method]) + spread_text(own.speedup_interval if own else None)
        as_timed = number(own.speedup.as_timed if own else None)
        print(f"{name:16}{method:10}{value:22}{as_timed:>9}{change(before[method], after[method]):>11}  {said}")
    print(f"{'':16}{_circumstances(run) if run else 'stopped: out of time'}", flush=True)
    return not any(said.endswith("!") for said in verdicts)


def _circumstances(run: Run) -> str:
    plain = [row for row in run.rows if row.drafter == BASELINE]
    return (
        f"{number(plain_ms(run), '.1f')} ms a plain token; others took {number(run.manifest.get('other_cores'))} cores"
        f"; {sum((row.attempts or 1) > 1 for row in plain)} of {len(plain)} turns decoded again, "
        f"{len({(row.rollout, row.turn) for row in run.rows if row.disturbed})} left disturbed; "
        f"{'says' if doubtful(run) else 'does not say'} that it is doubtful"
    )


def thread_table(known: Mapping[Condition, Run | None], options: argparse.Namespace) -> None:
    """How a competitor changes plain decoding and each speed-up, by threads and by how they wait for each other."""
    idle = known.get(Condition())
    usual = int(idle.manifest["host"]["threads"]) if idle else os.cpu_count() or 1
    settings = [(None, None), (usual, "active"), (usual, "passive"), *([(1, None)] if usual > 1 else [])]
    columns = "".join(f"{f'{method}: idle, beside':>28}" for method in options.methods)
    budget = Budget(options.minutes, 2 * len(settings) - 2)
    print(f"\n{'threads':9}{'waiting':9}{'plain ms: idle, beside one':>32}{columns}", flush=True)
    for threads, waiting in settings:
        pair = [Condition(competitors, threads, waiting) for competitors in (0, 1)]
        alone, beside = (known[own] if own in known else measure(own, options, budget.next_s()) for own in pair)
        plain = f"{number(plain_ms(alone), '.1f'):>7}{number(plain_ms(beside), '.1f'):>9}"
        cells = f"{plain}{change(plain_ms(alone), plain_ms(beside)):>11}"
        before, after = speedups(alone, options.methods), speedups(beside, options.methods)
        for m in options.methods:
            cells += f"{number(before[m]):>12}{number(after[m]):>7}{change(before[m], after[m]):>9}"
        print(f"{threads or usual:<9}{waiting or 'as set':9}{'':5}{cells}", flush=True)


def main() -> int:
    """Print the tables and a verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3, help="turns of each")
    parser.add_argument("--tokens", type=int, default=32, help="most of a turn")
    parser.add_argument("--methods", nargs="+", default=["ngram", "dlite"])
    parser.add_argument("--competitors", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--nice", type=int, default=0, help="niceness of the competitors, 0 to 19")
    parser.add_argument("--minutes", type=float, default=12, help="most of each table")
    parser.add_argument("--run-threads", type=int, help="threads of the run (torch's default)")
    parser.add_argument("--threads", action="store_true", help="threads and their way of waiting, too")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    print(HEADINGS, flush=True)
    budget = Budget(options.minutes, 2 + len(options.competitors))
    alone = Condition(0, options.run_threads)
    found = {alone: measure(alone, options, budget.next_s())}
    idle = found[alone]
    stands = report("idle", idle, idle, options)
    for competitors in options.competitors:
        condition = Condition(competitors, options.run_threads)
        found[condition] = measure(condition, options, budget.next_s())
        stands &= report(f"{competitors} competing", found[condition], idle, options)
    stands &= report("idle again", measure(alone, options, budget.next_s()), idle, options)
    if options.threads:
        thread_table(found, options)
    if idle is None or doubtful(idle):
        print("no verdict: the machine was not idle when it was meant to be")
        return 1
    print(f"every speed-up within {100 * NEAR:.0f} % or said to be doubtful: {'yes' if stands else 'NO'}")
    return 0 if stands else 1


if __name__ == "__main__":
    raise SystemExit(main())
