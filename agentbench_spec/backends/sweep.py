"""Throughput over concurrency: every (drafter, concurrency) cell is a run through servers, kept once it is finished."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentbench_spec import metrics
from agentbench_spec.backends.sglang import SERVING, run_served
from agentbench_spec.config import RunConfig
from agentbench_spec.metrics import BASELINE
from agentbench_spec.run import Tell
from agentbench_spec.runfolder import MANIFEST, read_manifest, read_run

CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Cell:
    """One drafter at one concurrency."""

    drafter: str
    concurrency: int
    """Rollouts in flight on each server."""
    tau: float | None
    tau_raw: float | None
    output_tokens_per_s: float | None
    speedup: float | None
    """Throughput over the baseline's at the same concurrency; None for want of a baseline."""
    turns: int
    """Turns counted; all drafters saw the same rollouts."""
    left_out: Mapping[str, int]


def sweep(
    config: RunConfig,
    folder: Path,
    concurrencies: Sequence[int] = CONCURRENCIES,
    *,
    environ: Mapping[str, str] | None = None,
    tell: Tell = lambda line: None,
) -> list[Cell]:
    """Measure what is missing under `folder` and return all cells, by concurrency.

    Raises what `run_served` raises; the cells measured before it are kept.
    """
    cells: list[Cell] = []
    for concurrency in concurrencies:
        where = folder / f"c{concurrency:03d}"
        if not _finished(where):
            if where.exists():  # a throughput has no meaning across a restart
                shutil.rmtree(where)
            tell(f"concurrency {concurrency}")
            own = config.sglang.model_copy(update={"concurrency": concurrency})
            run_served(config.model_copy(update={"sglang": own}), where, environ=environ, tell=tell)
        cells += read_cells(where, concurrency)
    return cells


def _finished(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() and read_manifest(folder).get("finished") is not None


def read_cells(folder: Path, concurrency: int) -> list[Cell]:
    """The cells of one finished run through servers."""
    _, rows = read_run(folder)
    serving = json.loads((folder / SERVING).read_bytes())
    rates = {name: entry["output_tokens_per_s"] for name, entry in serving.items()}
    plain = rates.get(BASELINE)
    cells = []
    for drafter, own in metrics.by_drafter(rows).items():
        kept, rate = metrics.counted(own), rates.get(drafter)
        cells.append(
            Cell(
                drafter=drafter,
                concurrency=concurrency,
                tau=metrics.tau(kept).pooled,
                tau_raw=metrics.tau_raw(kept).pooled,
                output_tokens_per_s=rate,
                speedup=rate / plain if rate and plain else None,
                turns=len(kept),
                left_out=metrics.left_out(own),
            )
        )
    return cells
