"""The conformance kit on the block drafters, on the target their golden checkpoints were trained for."""

from __future__ import annotations

import pytest
from agentbench_spec_drafters import dflash, dlite, dspark
from golden_block import DATA, SETS, engine, make_drafter

from agentbench_spec.conformance.bench import Bench
from agentbench_spec.conformance.kit import check
from agentbench_spec.testing import toy_turns

MAKERS = {"dflash": dflash.make, "dflash-zlab": dflash.make, "dspark-rnn": dspark.make, "dlite-g2": dlite.make}
QUICK = ("dflash-zlab", "dspark-gated", "dlite-g3")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SETS])
def test_every_law_that_applies_holds(name: str) -> None:
    """Fails if state after rewrites, ragged rows, padding, or a thrown-away turn differs from a fresh start."""
    report = check(lambda: make_drafter(name), target=engine(1, 400))
    assert {f.law: f.message for f in report.findings if f.outcome == "failed"} == {}
    passed = {f.law for f in report.findings if f.outcome == "passed"}
    assert passed >= {"spec", "lossless", "incremental", "no-trace", "rows", "padding", "truncate", "capture"}


@pytest.mark.parametrize(
    "name", [n if n in ("dspark-rnn", "dlite-g2") else pytest.param(n, marks=pytest.mark.slow) for n in MAKERS]
)
def test_rejection_sampling_follows_the_target_exactly(name: str) -> None:
    """Fails if the distribution handed over is not the one drawn from; the kit's negative control must fail."""
    prompts = [[token + 1 for token in toy_turns(vocab=64)[0]]]

    def make() -> dflash.BlockDrafter | dspark.DSparkDrafter | dlite.DLiteDrafter:
        return MAKERS[name](DATA / name / "draft", verification="rejection")

    bench = Bench(make, engine(1, 400), prompts, sampling_target=engine(256, 64))
    report = check(make, benches={"golden": bench}, only={"distribution"})
    assert [(f.outcome, f.message) for f in report.findings if f.outcome != "passed"] == []
