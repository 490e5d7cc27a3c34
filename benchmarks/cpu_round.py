"""Where a round's time goes on the CPU, beside the floor that memory sets: weights once, keys and values once.

    python benchmarks/cpu_round.py [--contexts 512 3000] [--rounds 24] [--threads 2] [--profile]

For the embedded target, a line for each context and method: milliseconds of the draft, of the target's pass (one token
for `none`, k + 1 for the others), of accepting and of the drafter's upkeep, medians over rounds that take turns, and
the floors of draft and pass. Nothing drafted is accepted, so that all rounds are alike. Run it on an idle machine.
With --profile, also the operators that take the most time. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any

import torch
from torch import nn

from agentbench_spec.config import load_config
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import RowSampler, Sampling, generator
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.timing import PHASES, HostClock
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.runs.card import measure_card
from agentbench_spec.runs.execute import Bench

CPU = torch.device("cpu")
SHARE = 8
"""Rounds of one method before the next one has its turn."""


def parameter_bytes(networks: Iterable[nn.Module]) -> int:
    """Bytes of weights that products read, each once; embeddings are looked up."""
    weights = {}
    for network in networks:
        looked_up = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
        products = {id(m.weight) for m in network.modules() if getattr(m, "out_features", None)}
        weights |= {id(p): p.nbytes for p in network.parameters() if id(p) not in looked_up - products}
    return sum(weights.values())


def rounds_of(session: Session, bench: Bench, name: str, k: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each phase over so many rounds of one method at the end of the session's text."""
    draw = torch.Generator().manual_seed(rounds)
    record = torch.randint(0, 40000, (rounds + k + 2,), generator=draw).tolist()
    limits = Limits(k=k, max_new_tokens=len(record))
    clock, sampler = HostClock(CPU), RowSampler(Sampling(), [generator(CPU, 0, name)])
    _, times, _ = session.decode(name, limits, sampler, clock, record)
    assert times.rounds_s is not None
    return {phase: spent[:rounds] for phase, spent in times.rounds_s.items()}


def prefilled(bench: Bench, context: int) -> Session:
    """A text of so many random tokens, known to the target and all drafters."""
    session = Session(bench.target, bench.drafters)
    ids = torch.randint(0, 40000, (context,), generator=torch.Generator().manual_seed(0)).tolist()
    session.prefill(ids, lambda logits: int(logits.argmax()))
    return session


def measured(session: Session, bench: Bench, k: int, rounds: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of every method's phases at the end of the session's text."""
    spent: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(max(rounds // SHARE, 1)):
        for name in bench.drafters:
            for phase, seconds in rounds_of(session, bench, name, k, SHARE).items():
                spent[name][phase] += seconds
    return {name: {phase: 1e3 * median(own[phase]) for phase in PHASES} for name, own in spent.items()}


def profiled(session: Session, bench: Bench, k: int, top: int = 14) -> None:
    """Print the operators of a few rounds of each method that take the most time by themselves."""
    for name in bench.drafters:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            rounds_of(session, bench, name, k, SHARE)
        table = profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=top, max_name_column_width=60)
        print(f"{name}, {SHARE} rounds", table, sep="\n")


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--contexts", type=int, nargs="+", default=[512, 3000])
    arguments.add_argument("--rounds", type=int, default=24)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--k", type=int, default=7)
    arguments.add_argument("--drafters", nargs="+", default=["eagle3", "dflash", "dspark", "dlite"])
    arguments.add_argument("--profile", action="store_true")
    given = arguments.parse_args()

    flags: dict[str, Any] = {
        "drafters": [BASELINE, *given.drafters],
        "target.source": "smollm2-135m",
        "target.capacity_tokens": max(given.contexts) + 64,
        "decode.max_new_tokens": 32,
        "decode.k": given.k,
        "measure.threads": given.threads,
    }
    bench = Bench.open(load_config(flags=flags))
    card = measure_card(bench.target)
    print(*card.lines([]), sep="\n")
    found = []
    with torch.inference_mode():
        weights = {name: parameter_bytes(drafter.networks()) for name, drafter in bench.drafters.items()}
        for context in given.contexts:
            floor_ms = 1e3 * (card.weight_bytes + context * card.kv_bytes_per_token) / card.read_bytes_per_s
            session = prefilled(bench, context)
            results = measured(session, bench, given.k, given.rounds)
            step_ms = results[BASELINE]["verify"]
            for name, spent in results.items():
                draft_floor_ms = 1e3 * weights[name] / card.read_bytes_per_s
                found.append({"context_tokens": context, "method": name, "floor_ms": floor_ms, **spent})
                found[-1] |= {"draft_floor_ms": draft_floor_ms}
                cells = "  ".join(f"{phase} {ms:6.2f}" for phase, ms in spent.items())
                print(
                    f"context {context:5d} {name:7s} {cells} ms; pass / step {spent['verify'] / step_ms:.2f}, "
                    f"pass / floor {spent['verify'] / floor_ms:.2f} of {floor_ms:.1f}, draft floor {draft_floor_ms:.1f}"
                )
            if given.profile:
                profiled(session, bench, given.k)
    print(json.dumps({"torch": torch.__version__, "threads": given.threads, "kernels": bench.kernels}))
    print(json.dumps({"card": card.as_dict(), "measured": found}))


if __name__ == "__main__":
    main()
