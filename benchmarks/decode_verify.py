"""How near one plain decode step and one verification come to what memory allows, with stock and with raced linears.

    python benchmarks/decode_verify.py [--target smollm2-135m] [--contexts 256 2048]

For each runtime and context length: milliseconds of a forward over n new tokens on top of the context, its ratio to
one token, and the bandwidth floor of one token. Best of several interleaved runs; run it on an idle machine. The last
line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time

import torch

from agentbench_spec.engine import loading
from agentbench_spec.engine.cpu import linear
from agentbench_spec.engine.target import Target
from agentbench_spec.runs.card import measure_card

WIDTHS = (1, 2, 4, 8, 16)


def best_s(target: Target, context: int, ids: torch.Tensor, repeats: int) -> dict[int, float]:
    """Best seconds of a forward over n new tokens at `context`, for each n of WIDTHS."""
    best = dict.fromkeys(WIDTHS, float("inf"))
    for _ in range(repeats + 1):  # the first run of each width pages in and is beaten by the others
        for n in WIDTHS:
            began_s = time.perf_counter()
            target.evaluate(0, [context], ids[:, :n])
            best[n] = min(best[n], time.perf_counter() - began_s)
    return best


def prefilled(target: Target, ids: torch.Tensor, length: int) -> None:
    """Bring row 0 to `length` positions in chunks of 512."""
    for start in range(0, length, 512):
        target.evaluate(0, [start], ids[:, start : min(start + 512, length)], keep=1)
        target.commit(0, min(start + 512, length))


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--target", default="smollm2-135m")
    arguments.add_argument("--contexts", type=int, nargs="+", default=[256, 2048])
    arguments.add_argument("--repeats", type=int, default=12)
    given = arguments.parse_args()

    loaded = loading.load(given.target)
    target = Target(loaded.model, name=loaded.name, capacity=max(given.contexts) + 64)
    card = measure_card(target)
    ids = torch.randint(0, target.info.vocab_size, (1, max(given.contexts) + 64), generator=torch.manual_seed(0))
    ids = ids.to(target.info.device)
    prefilled(target, ids, max(given.contexts))
    print(*card.lines([]), sep="\n")
    found = []
    for runtime in ("stock linears", "raced linears"):
        if runtime == "raced linears":
            print("kernels:", {shape: choice.as_dict() for shape, choice in linear.accelerate(loaded.model).items()})
        for context in given.contexts:
            seconds = best_s(target, context, ids, given.repeats)
            found.append({"runtime": runtime, "context_tokens": context, "floor_s": card.floor_s, "best_s": seconds})
            cells = "  ".join(f"n={n} {1e3 * s:6.1f} ms ({s / seconds[1]:.2f}x)" for n, s in seconds.items())
            print(f"{runtime}, context {context}: {cells}; one token is {seconds[1] / card.floor_s:.2f}x the floor")
    print(json.dumps({"card": card.as_dict(), "measured": found}))


if __name__ == "__main__":
    main()
