"""Conformance kit: is this drafter what its interface says, or does it only look weak?

Verification repairs every mistake of a drafter, so a wrong one still gives the right text and is merely reported as a
weak method. These laws find such faults. docs/conformance.md tells which law catches what.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from rich.table import Table
from rich.text import Text

from agentbench_spec.conformance import batches, laws, rewrites, upkeep
from agentbench_spec.conformance.bench import WHOLE, Bench
from agentbench_spec.conformance.captured import captured_rounds
from agentbench_spec.conformance.distribution import distribution
from agentbench_spec.conformance.drive import Broken, NotApplicable
from agentbench_spec.conformance.places import PLACES, check_places
from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.embedded import NAME as EMBEDDED
from agentbench_spec.engine.embedded import shipped_drafter
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import ConfigError
from agentbench_spec.plugins import load_drafter, with_checkpoints
from agentbench_spec.testing import toy_target, toy_turns

__all__ = ["LAWS", "Finding", "Law", "Report", "check", "check_drafter", "embedded_bench", "toy_bench"]


@dataclass(frozen=True, slots=True)
class Law:
    """One thing that must hold of every drafter."""

    name: str
    holds: Callable[[Bench], str]
    """Tries the law; returns what was seen. Raises Broken, or NotApplicable."""

    @property
    def sentence(self) -> str:
        """The law in one sentence."""
        return (self.holds.__doc__ or "").split("\n")[0]


LAWS: tuple[Law, ...] = (
    Law("spec", laws.honest_spec),
    Law("lossless", laws.lossless),
    Law("incremental", laws.incremental),
    Law("no-trace", laws.no_trace),
    Law("rows", batches.rows_independent),
    Law("refill", batches.rows_refilled),
    Law("padding", batches.padding_ignored),
    Law("truncate", rewrites.truncate_honoured),
    Law("cuts", rewrites.cut_anywhere),
    Law("rewrite", rewrites.rewrites_seen),
    Law("ingest", upkeep.ingest_in_observe),
    Law("memory", upkeep.growth_is_told),
    Law("capture", captured_rounds),
    Law("distribution", distribution),
    Law("parity", laws.parity),
    Law("floor", laws.acceptance_floor),
)
"""All laws, in the order they are tried."""

_EMBEDDED_LAWS = ("lossless", "incremental", "no-trace", "truncate", "parity", "floor")
"""On a real model: the laws in which its text matters, as long as the drafter could be tried on the toy target. The
others do not depend on what is said; a drafter that fits no toy is tried on them here."""

_TAKEN_FOR_GRANTED = ("spec", "no-trace")
"""Laws on which the others rely: they ask a drafter again and again, and compare what it proposed."""

_TINY_BYTES = 10_000_000

Outcome = Literal["passed", "failed", "skipped"]
_STYLE = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What trying one law on one target gave."""

    law: str
    sentence: str
    on: str
    """Name of the target."""
    outcome: Outcome
    message: str
    """What was seen; for a failure, the call at which the law broke and the difference."""
    seconds: float


@dataclass(slots=True)
class Report:
    """All findings about one drafter."""

    drafter: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def failed(self) -> list[str]:
        """Names of the broken laws, each once."""
        return list(dict.fromkeys(f.law for f in self.findings if f.outcome == "failed"))

    @property
    def first(self) -> str | None:
        """The broken law to mend first, where several are broken and one of them is behind most others."""
        return next((law for law in _TAKEN_FOR_GRANTED if law in self.failed), None) if len(self.failed) > 1 else None

    @property
    def exit_code(self) -> int:
        """0: no law is broken; 1: some law is; 2: nothing could be tried, so nothing is known."""
        if self.failed:
            return 1
        return 0 if any(f.outcome == "passed" for f in self.findings) else 2

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        findings = [{name: getattr(f, name) for name in Finding.__slots__} for f in self.findings]
        return {"drafter": self.drafter, "exit_code": self.exit_code, "failed": self.failed, "findings": findings}

    def __rich__(self) -> Table:
        """The report as a table."""
        table = Table(title=f"conformance of {self.drafter}", title_justify="left")
        for heading in ("law", "on", "outcome", "seen"):
            table.add_column(heading, no_wrap=heading != "seen")
        for f in self.findings:
            seen = f"{f.message}\nThe law: {f.sentence}" if f.outcome == "failed" else f.message
            table.add_row(f.law, f.on, Text(f.outcome, style=_STYLE[f.outcome]), Text(seen))
        if self.first:
            table.caption = f"begin with {self.first}: the other laws take it for granted"
        return table


def check(
    make: Callable[[], Drafter],
    *,
    benches: Mapping[str, Bench] | None = None,
    target: Target | None = None,
    reference: Callable[[], Drafter] | None = None,
    floor: float | None = None,
    only: Collection[str] | None = None,
    progress: Callable[[str], None] = lambda law: None,
) -> Report:
    """Try the laws on a drafter.

    make: gives a fresh drafter, not opened, at every call; target: check on this target instead of the toy one, for a
    drafter trained for it; benches: or on exactly these, by label; reference: the author's plain implementation;
    floor: least tau; only: names of the laws to try; progress: told each law before it is tried.
    Raises ConfigError for an unknown law.
    """
    if unknown := sorted(set(only or ()) - {law.name for law in LAWS}):
        raise ConfigError(f"unknown law {unknown[0]!r}; known: {', '.join(law.name for law in LAWS)}")
    if benches is None:
        benches = {"toy": toy_bench(make)} if target is None else {target.info.name: target_bench(make, target)}
    report = Report(make().spec.name)
    for label, bench in benches.items():
        on_toy = label == "toy" and target is None  # where acceptance means nothing
        bench.reference, bench.floor = reference, None if on_toy else floor
        tried_on_toy = any(f.on == "toy" and f.outcome != "skipped" for f in report.findings)
        for law in _laws_for(label, only, tried_on_toy):
            progress(f"{law.name} on {label}")
            report.findings.append(_try(law, label, bench))
    return report


def check_drafter(
    drafter: str,
    *,
    on: Sequence[str] | None = None,
    target: Target | None = None,
    reference: str | None = None,
    floor: float | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda law: None,
) -> Report:
    """Check a drafter by name, as `agentbench-spec check` does.

    drafter, options: as for `plugins.load_drafter`; on: "toy", "embedded", or both, None for `default_places`; target:
    instead of those, a loaded target the drafter was trained for; reference: name of a plain implementation, which gets
    the same options. Raises ConfigError for an unknown drafter or target, and if the embedded model is not installed.
    """
    on = default_places(drafter, options or {}) if on is None else on
    name = target.info.name if target is not None else EMBEDDED if tuple(on) == ("embedded",) else ""
    given = with_checkpoints(drafter, options or {}, partial(shipped_drafter, target=name))

    def make() -> Drafter:
        return load_drafter(drafter, **given)

    def make_reference() -> Drafter:
        return load_drafter(reference or "", **given)

    make()  # a wrong name or option is the user's error, not a broken law
    benches = None if target is not None else {label: _bench(label, make) for label in on}
    by = None if reference is None else make_reference
    return check(make, benches=benches, target=target, reference=by, floor=floor, progress=progress)


def default_places(drafter: str, options: Mapping[str, Any]) -> Sequence[str]:
    """Where a drafter can be checked: one that takes a shipped checkpoint on the target it was trained for alone."""
    bare, filled = (
        with_checkpoints(drafter, options, partial(shipped_drafter, target=target)) for target in ("", EMBEDDED)
    )
    return PLACES if bare == filled else (PLACES[1],)


def toy_bench(make: Callable[[], Drafter]) -> Bench:
    """The deterministic float64 toy target: five turns with rewritten history."""
    return Bench(make, toy_target(), toy_turns(), sampling_target=toy_target(rows=256, vocab=8, capacity=32, hidden=16))


def embedded_bench(make: Callable[[], Drafter]) -> Bench:
    """The embedded language model in float32, on short texts. Raises ConfigError if it is not installed."""
    from agentbench_spec.engine.loading import load

    loaded = load(EMBEDDED, dtype="fp32", device="cpu")
    target = Target(loaded.model, name=EMBEDDED, capacity=256)
    prompts = [loaded.tokenizer(text)["input_ids"] for text in _texts()]
    return Bench(make, target, prompts, ks=(1, 7), chunks_tokens=(16,), max_new_tokens=8, thorough=False)


def target_bench(make: Callable[[], Drafter], target: Target) -> Bench:
    """Any loaded target; its prompts are token ids of no meaning, which is all the laws need."""
    prompts = toy_turns(vocab=min(target.info.vocab_size, 4096))
    small = target if target.info.vocab_size <= 64 else None
    return Bench(make, target, prompts, chunks_tokens=(7, WHOLE), sampling_target=small, thorough=small is not None)


def _texts() -> list[str]:
    """Five short turns of an agent's session; the third and the last rewrite what came before."""
    task = "List the files, then read notes.txt.\n"
    call = 'call: {"name": "ls", "arguments": {"folder": "."}}\n'
    files = 'result: {"files": ["notes.txt", "todo.txt"]}\n'
    read = 'call: {"name": "cat", "arguments": {"file": "notes.txt"}}\n'
    milk = 'result: {"text": "buy milk"}\n'
    first = task + "I think ls will do.\n" + call + files
    return [task, first, task + call + files, task + call + files + read + milk, task + files + read + milk + "call:"]


def _bench(label: str, make: Callable[[], Drafter]) -> Bench:
    check_places([label])
    return toy_bench(make) if label == "toy" else embedded_bench(make)


def _laws_for(label: str, only: Collection[str] | None, tried_on_toy: bool) -> list[Law]:
    tried = [law for law in LAWS if label != "embedded" or not tried_on_toy or law.name in _EMBEDDED_LAWS]
    return [law for law in tried if only is None or law.name in only]


def _try(law: Law, label: str, bench: Bench) -> Finding:
    began_s = time.perf_counter()
    outcome: Outcome = "passed"
    try:
        with _threads_for(bench.target):
            message = law.holds(bench)
    except Broken as broken:
        outcome, message = "failed", str(broken)
    except NotApplicable as reason:
        outcome, message = "skipped", f"not applicable: {reason}"
    return Finding(law.name, law.sentence, label, outcome, message, time.perf_counter() - began_s)


@contextmanager
def _threads_for(target: Target) -> Iterator[None]:
    """One thread for a tiny model on the CPU: sharing such work out costs more than it saves, many times over."""
    before = torch.get_num_threads()
    if target.weight_bytes < _TINY_BYTES:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
