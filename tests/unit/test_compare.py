"""Two runs of one thing: what fell, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from benchkit import benchmark
from rowkit import make_row

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.changes import Cell, bucket_of, family_p, judge
from agentbench_spec.results.compare import Comparison, compare_runs
from agentbench_spec.results.intervals import Interval
from agentbench_spec.results.rows import TurnRow

MANIFEST: dict[str, Any] = {
    "settings": {"decode": {"k": 7}, "drafters": ["none", "dlite"], "measure": {"seed": 0}},
    "data": {"sha256": "x"},
    "model": {"source": "toy", "drafters": {"dlite": "1"}},
    "host": {"cpu": "c", "cpus": 2, "threads": 2, "gpus": []},
}


def rows(long: list[int], *, seconds: float = 0.05, **fields: Any) -> list[TurnRow]:
    """Eleven rollouts of short contexts (4 tokens a round, 60 rounds in all) and one of 5,000 tokens."""
    found = []
    for i in range(12):
        matched, context = (long, 5000) if i == 11 else ([3] * 5, 500)
        tokens = sum(matched) + len(matched)
        shared = {"context_tokens": context, **fields}
        found.append(make_row(f"r{i}", 0, "none", [0] * tokens, decode_s=0.1 * tokens, **shared))
        found.append(make_row(f"r{i}", 0, "dlite", matched, decode_s=seconds * tokens, **shared))
    return found


def compare(old: list[TurnRow], new: list[TurnRow], **manifest: Any) -> Comparison:
    return compare_runs((MANIFEST, old), (copy.deepcopy(MANIFEST) | manifest, new))


def test_no_change_is_no_regression() -> None:
    """Fails if a run does not equal itself."""
    found = compare(rows([3] * 5), rows([3] * 5))
    assert found.regressions == [] and {c.judgement for c in found.changes} == {"same"}


def test_a_fall_in_one_bucket_is_seen_where_the_pool_hardly_moves() -> None:
    """τ halves on the one long context: pooled it falls by 4 %. Fails if the pool hides it."""
    found = compare(rows([3, 3]), rows([1, 1, 1, 1]))
    changes = {(c.bucket, c.figure): c for c in found.changes}
    assert changes["all contexts", "tau"].ratio == pytest.approx((228 / 59) / 4)
    assert changes["all contexts", "tau"].judgement == "same"
    assert changes["4K-8K", "tau"].judgement == "fell" and changes["under 1K", "tau"].judgement == "same"
    assert found.regressions == ["toy, dlite, 4K-8K: tau 4.000 -> 2.000 (-50.0%)"]


def test_a_slower_drafter_is_a_regression_and_noise_is_not() -> None:
    """Fails if every drafter that got slower passes, a hiccup of one rollout is called a fall, or its stall stays."""
    slower = compare(rows([3] * 5), rows([3] * 5, seconds=0.08))
    assert any("speedup 2.000 -> 1.250" in line for line in slower.regressions)
    for seconds, judgement in ((2.0, "unsure"), (4.0, "same")):
        noisy = rows([3] * 5)
        next(row for row in noisy if row.drafter == "dlite" and row.rollout == "r3").decode_s = seconds
        found = compare(rows([3] * 5), noisy)
        assert found.regressions == []
        assert {c.judgement for c in found.changes if c.figure == "speedup" and c.bucket == "under 1K"} == {judgement}


def test_other_machines_get_no_verdict_on_speed() -> None:
    """Fails if a slower machine is called a regression, or τ is no longer judged there."""
    found = compare(rows([3, 3]), rows([1] * 4, seconds=0.08), host={**MANIFEST["host"], "cpu": "other"})
    assert all("tau" in line for line in found.regressions) and len(found.regressions) == 1
    assert "the machines differ" in found.notes[0]


@pytest.mark.parametrize(
    ("manifest", "named"),
    [
        ({"settings": {**MANIFEST["settings"], "decode": {"k": 5}}}, "decode.k"),
        ({"data": {"sha256": "y"}}, "sha256"),
        ({"model": {"source": "other", "drafters": {}}}, "source"),
    ],
)
def test_unlike_settings_are_refused(manifest: dict[str, Any], named: str) -> None:
    """Fails if runs of different k, data or target are compared, or the message does not name the difference."""
    with pytest.raises(ConfigError, match=named):
        compare(rows([3]), rows([3]), **manifest)


def test_a_new_version_of_a_drafter_may_be_compared() -> None:
    """That is what comparing is for. Fails if another drafter version or further drafters are refused."""
    settings = {**MANIFEST["settings"], "drafters": ["none", "dlite", "ngram"]}
    found = compare(rows([3]), rows([3]), settings=settings, model={"source": "toy", "drafters": {"dlite": "2"}})
    assert found.regressions == []


def test_turns_that_fail_now_are_a_regression() -> None:
    """Fails if a drafter gains by failing on hard turns."""
    new = rows([3] * 5)
    bad = next(row for row in new if row.drafter == "dlite" and row.rollout == "r11")
    new[new.index(bad)] = make_row("r11", 0, "dlite", status="error", error="X: y")
    assert compare(rows([3] * 5), new).losses == ["dlite: 1 turns that counted are now left out: error"]


def test_outputs_that_differ_now_are_a_regression() -> None:
    """Fails if a lossy drafter passes because its τ rose."""
    old = rows([3] * 5, identical=True, divergence="none")
    new = rows([3] * 5, identical=True, divergence="none")
    bad = next(row for row in new if row.drafter == "dlite")
    bad.identical, bad.divergence = False, "error"
    assert compare(old, new).losses == ["dlite: 1 outputs differ from plain decoding beyond a near tie, 0 did before"]


def test_judgements_and_buckets_by_hand() -> None:
    """Fails if noise decides, a rise is a fall, or a bucket's edge is off by one."""
    wide, tight = (Interval(low, high, 0.95, 12, 11) for low, high in ((0.7, 1.1), (0.7, 0.9)))
    assert (
        judge(0.8, wide, 0.01, 0.05, exact=False) == "unsure" and judge(0.8, tight, 0.01, 0.05, exact=False) == "fell"
    )
    assert judge(0.8, tight, 0.06, 0.05, exact=False) == "unsure" == judge(0.8, tight, None, 0.05, exact=False)
    assert judge(0.8, None, None, 0.05, exact=True) == "fell" and judge(1.2, None, None, 0.05, exact=True) == "rose"
    assert judge(0.96, tight, 0.01, 0.05, exact=False) == "same" and judge(0.96, None, None, 0.05, exact=True) == "same"
    assert judge(0.96, None, None, 0.05, exact=False) == "unsure" and judge(1, None, None, 0.05, exact=False) == "same"
    sizes = [bucket_of(n) for n in (None, 0, 1023, 1024, 2047, 2048, 65_535, 65_536)]
    assert sizes == ["unknown", "under 1K", "under 1K", "1K-2K", "1K-2K", "2K-4K", "32K-64K", "64K-128K"]


def test_runs_without_a_common_turn_are_refused() -> None:
    """Fails if an empty comparison reads as "nothing fell"."""
    with pytest.raises(ConfigError, match="share no drafter and turn"):
        compare(rows([3]), [make_row("other", 0, "dlite", [3])])


def test_only_the_baseline_in_common_is_nothing_to_compare() -> None:
    """Fails if two runs of other drafters read as "nothing fell"."""
    new = [make_row(row.rollout, 0, "eagle3", [3]) if row.drafter == "dlite" else row for row in rows([3])]
    with pytest.raises(ConfigError, match="share no drafter and turn besides none"):
        compare(rows([3]), new)


def test_turns_that_are_not_there_any_more_are_a_regression() -> None:
    """Fails if a drafter passes because its hard turns have no row at all."""
    found = compare(rows([3]), [row for row in rows([3]) if (row.drafter, row.rollout) != ("dlite", "r11")])
    assert found.losses == ["dlite: 1 turns that counted are now left out: missing"]


def test_a_run_in_which_everything_failed_is_a_regression() -> None:
    """Fails if it is said that the runs share no turn; before the change, it is the old run that cannot be used."""
    failed = [make_row(row.rollout, 0, row.drafter, k=row.k, status="error", error="X: y") for row in rows([3])]
    assert "dlite: 12 turns that counted are now left out: error" in compare(rows([3]), failed).losses
    with pytest.raises(ConfigError, match=r"not one shared turn of the old run counts \(error\)"):
        compare(failed, rows([3]))


def test_rows_left_out_of_both_runs_are_said() -> None:
    """Fails if turns that failed before and after the change are not mentioned with the table."""
    runs = [[*rows([3]), make_row("r12", 0, "dlite", status="error", error="X: y")] for _ in range(2)]
    notes = compare(*runs).notes
    assert notes == [f"{name} run: dlite: 1 of 13 turns left out: error" for name in ("old", "new")]


def test_no_baseline_is_said() -> None:
    """Fails if speed-ups are missing from the table without a word."""
    found = compare(rows([3]), [row for row in rows([3]) if row.drafter != "none"])
    assert {change.figure for change in found.changes} == {"tau"}
    assert any("no speed-up can be compared" in note for note in found.notes)


def test_other_conditions_are_the_users_error() -> None:
    """Fails if rows of another mode give exit code 1, which is that of a regression."""
    with pytest.raises(ConfigError, match=r"did not measure the same thing: .*thinking: None, True"):
        compare(rows([3]), rows([3], thinking=True))


def test_a_contended_run_gets_no_verdict_on_speed() -> None:
    """Fails if a run that shared its machine is called a regression, whichever of the two it was."""
    old, slower = rows([3] * 5), rows([3] * 5, seconds=0.08)
    assert compare(old, slower).regressions
    for found in (
        compare(old, slower, contended=True),
        compare_runs(({**MANIFEST, "contended": True}, old), (copy.deepcopy(MANIFEST), slower)),
    ):
        assert found.regressions == []
        assert {c.judgement for c in found.changes if c.figure == "speedup"} == {"unsure"}
        assert any("other work slowed the" in note for note in found.notes)


def test_few_rollouts_get_no_verdict_on_noise() -> None:
    """Four rollouts, all of them slower. Fails if fewer than five are said to show it, or nobody is told why not."""
    few = [row for row in rows([3] * 5) if row.rollout in ("r0", "r1", "r2", "r3")]
    slower = [replace(row, decode_s=9.0) if row.drafter == "dlite" else row for row in few]
    found = compare(few, slower)
    assert found.regressions == [] and any("judged from 5 independent rollouts on" in note for note in found.notes)
    assert {(c.figure, c.judgement) for c in found.changes} == {("tau", "same"), ("speedup", "unsure")}


def test_turns_of_one_run_only_are_said() -> None:
    """Fails if a new run with more turns, or an old one, reads as if all of them had been compared."""
    more = [*rows([3]), *(make_row("extra", 0, name, [0], k=row.k) for name, row in [("dlite", rows([3])[1])])]
    assert "dlite: 1 turns are in the new run only, and in no figure here" in compare(rows([3]), more).notes
    assert "dlite: 1 turns are in the old run only, and in no figure here" in compare(more, rows([3])).notes


def test_a_drafter_that_vanished_is_a_loss_if_asked_for() -> None:
    """Fails if a drafter that no longer runs at all passes where all were asked for."""
    old = [*rows([3]), *(replace(row, drafter="ngram") for row in rows([3]) if row.drafter == "dlite")]
    assert compare(old, rows([3])).regressions == []
    asked = compare_runs((MANIFEST, old), (copy.deepcopy(MANIFEST), rows([3])), all_drafters=True)
    assert asked.regressions == ["ngram: not in the new run"]


def test_noise_raises_no_alarm_and_a_slow_bucket_is_found() -> None:
    """The benchmark in short: six rollouts, six drafters, four buckets, 3 and 5 % noise a turn.

    Fails if many verdicts make a false one likely, or if guarding against that hides 15 % in one bucket.
    """
    alarms = benchmark("compare_alarms")
    made, draw = alarms.generated(6), np.random.default_rng(1)
    assert sum(alarms.false_alarms(made, noise, 20, draw) for noise in (0.03, 0.05)) <= 3
    assert sum(alarms.found(made, noise, 10, draw, ("dlite", "2K-4K")) for noise in (0.03, 0.05)) >= 17


def test_exchange_by_hand() -> None:
    """Five rollouts, one figure: p is 1/32 if all fell, 2/32 if one only stood still. Fails if it is another test."""
    names = [f"r{i}" for i in range(5)]

    def p(changes: list[float]) -> float | None:
        old = np.ones((5, 2))
        (found,) = family_p([Cell(names, old, old * np.array([[c, 1.0] for c in changes]), "tau", whole=True)])
        return found

    assert p([0.8] * 5) == 1 / 32 and p([1.25] * 5) == 1 / 32 and p([0.8] * 4 + [1.0]) == 2 / 32
    assert family_p([Cell(names[:4], np.ones((4, 2)), np.ones((4, 2)), "tau", whole=True)]) == [None]


def test_many_cells_are_one_family() -> None:
    """One cell that fell a little among forty of noise. Fails if it is judged as if it were alone."""
    draw, names = np.random.default_rng(0), [f"r{i}" for i in range(8)]

    def cell(kind: int, change: float) -> Cell:
        noise = np.exp(0.05 * draw.standard_normal((8, 1)))
        return Cell(names, np.ones((8, 2)), np.hstack([change * noise, np.ones((8, 1))]), kind, whole=True)

    fell = cell(0, 0.96)
    (alone,) = family_p([fell])
    among = family_p([fell, *(cell(kind, 1.0) for kind in range(1, 41))])
    assert alone is not None and among[0] is not None and alone < 0.05 < among[0]
