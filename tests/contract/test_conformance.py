"""Right drafters pass every law: all installed ones that run without weights, and one of each family."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console
from small_benches import small_bench
from toy_drafters import Bigram, Block, Chain, DraftLM, LastPivot, Pivot, Restless, Table

from agentbench_spec.conformance.bench import Bench
from agentbench_spec.conformance.kit import LAWS, Report, check, check_drafter, default_places, toy_bench
from agentbench_spec.drafting import ConfigError, Drafter
from agentbench_spec.plugins import available, load_drafter


def without_weights() -> list[str]:
    """Names of the installed drafters that can be made without any option."""
    names = []
    for name in available("drafter"):
        try:
            load_drafter(name)
        except ConfigError:  # needs a checkpoint, or a package that is not installed
            continue
        names.append(name)
    return names


def outcomes(report: Report) -> dict[str, str]:
    """Law -> outcome, or the message of a failure, which is what one wants to read."""
    return {f.law: f.message if f.outcome == "failed" else f.outcome for f in report.findings}


def test_the_baseline_is_among_the_installed_drafters() -> None:
    """Fails if entry points are not found: the next test would then check nothing."""
    assert "none" in without_weights()


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in ("none", "ngram", "suffix") else pytest.mark.slow) for n in without_weights()],
)
def test_an_installed_drafter_keeps_every_law(name: str) -> None:
    """Fails if a built-in drafter, or the engine under it, breaks the interface."""
    report = check_drafter(name, on=["toy"])
    found = outcomes(report)
    skipped = {"parity", "floor", "capture"} | ({"distribution"} if name == "none" else set())
    assert found == {law.name: "skipped" if law.name in skipped else "passed" for law in LAWS}
    assert report.exit_code == 0


@pytest.mark.parametrize("bench", [small_bench, pytest.param(toy_bench, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [Chain, Block, LastPivot, Bigram, DraftLM, Pivot])
def test_each_family_can_keep_every_law(make: Callable[[], Drafter], bench: Callable[..., Bench]) -> None:
    """Fails if the kit condemns a correct drafter of some family, with or without probabilities."""
    laws = [law.name for law in LAWS if law.name not in ("distribution", "floor", "lossless", "capture")]
    report = check(make, benches={"toy": bench(make)}, reference=make, only=laws)
    assert outcomes(report) == dict.fromkeys(laws, "passed")


def test_the_distribution_stays_exact_with_a_drafter_that_draws() -> None:
    """Field case 9: fails if drafts drawn from a full distribution bend what the target emits."""
    [finding] = check(Table, only=["distribution"]).findings
    assert finding.outcome == "passed", finding.message
    assert "20480 draws" in finding.message


def test_the_report_says_which_broken_law_to_mend_first() -> None:
    """A `propose` that changes state breaks incremental, listed first, too. Fails if the cause is not named."""
    report = check(Restless, only=["incremental", "no-trace"])
    assert report.failed == ["incremental", "no-trace"] and report.first == "no-trace"
    printed = io.StringIO()
    Console(file=printed, width=100).print(report)
    assert "begin with no-trace" in printed.getvalue()
    assert check(Restless, only=["no-trace"]).first is None


def test_the_report_prints_and_serialises() -> None:
    """Fails if a report loses a law on its way to the screen or to JSON."""
    report = check(lambda: Chain("reset at every turn"), only=["incremental", "floor"])
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report)
    shown = console.export_text()
    assert "conformance of toy-chain" in shown
    assert "state equals that of a fresh drafter" in shown
    assert report.as_dict()["failed"] == ["incremental"]
    assert [f["outcome"] for f in report.as_dict()["findings"]] == ["failed", "skipped"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_look_up_keeps_the_laws_on_the_embedded_model(name: str) -> None:
    """Fails if a law holds on the toy target but not in float32 on real text, near ties apart."""
    try:
        report = check_drafter(name, on=["embedded"])
    except ConfigError as error:
        pytest.skip(str(error))
    assert set(outcomes(report).values()) == {"passed", "skipped"}


@pytest.mark.parametrize(
    ("name", "options", "places"),
    [
        ("ngram", {}, ("toy", "embedded")),
        ("dlite", {}, ("embedded",)),
        ("hybrid=suffix+dlite", {}, ("embedded",)),
        ("dlite", {"checkpoint": "mine"}, ("toy", "embedded")),
    ],
)
def test_a_drafter_is_checked_where_it_can_be(name: str, options: dict[str, str], places: tuple[str, ...]) -> None:
    """Fails if `check dlite` asks for a checkpoint that is shipped, or another drafter is spared the toy target."""
    assert tuple(default_places(name, options)) == places
