"""What a run was measured on and under which conditions, as names and values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentbench_spec.report.grids import NOTHING, number, size
from agentbench_spec.results.clock_checks import TapsCost
from agentbench_spec.results.manifest import counting
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.runs.card import launches_text

Fact = tuple[str, str]
"""A name and its value, both as printed."""


@dataclass(frozen=True, slots=True)
class Heading:
    """A run's name and its benchmark card."""

    name: str
    card: tuple[Fact, ...]
    ceiling: float | None
    """The baseline's share of the speed that the memory allows; None if unknown."""


def heading(name: str, manifest: Mapping[str, Any], step_s: float | None) -> Heading:
    """The benchmark card of a run; step_s: seconds of one plain decode step, None: unknown."""
    floor_s = (manifest.get("card") or {}).get("floor_s")
    ceiling = floor_s / step_s if floor_s and step_s else None
    return Heading(name, tuple(_card(manifest, step_s)), ceiling)


def _card(manifest: Mapping[str, Any], step_s: float | None) -> Iterable[Fact]:
    card, host = manifest.get("card") or {}, manifest.get("host") or {}
    read, floor_s, cost_s = card.get("read_bytes_per_s"), card.get("floor_s"), card.get("phase_cost_s")
    yield "Machine", machine_text(host)
    yield "Target", " ".join(filter(None, (card.get("target"), card.get("dtype"), _on(card.get("device")))))
    yield "Weights read by a step", size(card.get("weight_bytes")).text
    yield "KV per token", size(card.get("kv_bytes_per_token")).text
    yield "Memory reads", number(read and read / 1e9, 1, " GB/s").text
    yield "Fastest possible step", number(floor_s and 1e3 * floor_s, 1, " ms").text
    yield "Baseline step, measured", number(step_s and 1e3 * step_s, 1, " ms").text
    if launches := card.get("launches"):
        yield "Rounds", launches_text(launches)
    yield "Clock, cost of a phase", number(cost_s and 1e6 * cost_s, 1, " µs").text
    yield "Prefill, cost of hidden states for drafters", _taps(card.get("taps_cost"))


def _taps(found: Mapping[str, Any] | float | None) -> str:
    if isinstance(found, Mapping):
        return TapsCost(found["cost"], found["low"], found["high"], found["pairs"]).text
    return NOTHING if found is None else f"{found:+.1%}, without an interval: may be noise"


def _on(device: str | None) -> str | None:
    return f"on {device}" if device else None


def machine_text(host: Mapping[str, Any]) -> str:
    """GPUs, CPU, threads and memory of a manifest's `host`; a dash if it has none of them."""
    parts = [gpu.get("name") for gpu in host.get("gpus") or ()]
    parts += [host.get("cpu"), _threads(host.get("threads"))]
    parts += [f"{size(host['ram_bytes']).text} of memory" if host.get("ram_bytes") else None]
    return ", ".join(str(part) for part in parts if part) or NOTHING


def _threads(count: int | None) -> str | None:
    return f"{count} {'thread' if count == 1 else 'threads'}" if count else None


def conditions(manifest: Mapping[str, Any], rows: Sequence[TurnRow]) -> Iterable[Fact]:
    """What every row has in common, read from the rows; what only the settings say, from the manifest."""
    row, settings = rows[0], manifest.get("settings") or {}
    options = (settings.get("workload") or {}).get("options") or {}
    yield "Workload", ", ".join(sorted({r.workload for r in rows}) + [f"{k} = {v}" for k, v in options.items()])
    yield "Rollouts", f"{len({(r.workload, r.rollout) for r in rows}):,}"
    yield "Turns", f"{len({(r.workload, r.rollout, r.turn) for r in rows}):,}"
    yield "Drafts asked for (k)", ", ".join(str(k) for k in sorted({r.k for r in rows if r.k})) or NOTHING
    yield "Output cap", _tokens((settings.get("decode") or {}).get("max_new_tokens"))
    yield "Temperature", f"{row.temperature:g}" + (" (greedy)" if row.greedy else "")
    yield "Sampler cuts", ", ".join(f"{n} {v}" for n in ("top_k", "top_p") if (v := getattr(row, n))) or "none"
    yield "Decoding", row.decode_mode
    yield "History", row.history_mode
    yield "Prefix between turns", row.prefix_mode
    yield "Thinking", "the template has no such flag" if row.thinking is None else "on" if row.thinking else "off"
    yield "Clock", row.clock
    yield "Seed", str((settings.get("measure") or {}).get("seed", NOTHING))
    yield "Loops counted", "yes" if counting(manifest)["include_degenerate"] else "no"
    yield "Code", _code(manifest)
    yield "Started", str(manifest.get("started") or NOTHING)


def _tokens(count: int | None) -> str:
    return NOTHING if count is None else f"{count:,} tokens"


def _code(manifest: Mapping[str, Any]) -> str:
    git = manifest.get("git") or {}
    version = (manifest.get("packages") or {}).get("agentbench-spec")
    commit = f"commit {git['sha'][:12]}" + (" with local changes" if git.get("dirty") else "") if git.get("sha") else ""
    return ", ".join(filter(None, (version and f"agentbench-spec {version}", commit))) or NOTHING
