"""A lean toy bench, for tests in which one way to chunk and two widths tell enough."""

from __future__ import annotations

from collections.abc import Callable

from agentbench_spec.conformance.bench import Bench
from agentbench_spec.conformance.kit import toy_bench
from agentbench_spec.drafting import Drafter


def small_bench(make: Callable[[], Drafter]) -> Bench:
    """The toy bench with two widths, one chunk size and cuts around page boundaries only."""
    bench = toy_bench(make)
    bench.ks, bench.chunks_tokens, bench.thorough = (0, 4), (7,), False
    return bench
