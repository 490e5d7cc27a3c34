"""Two runs of one thing: what fell, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from rowkit import make_row

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.compare import Comparison, bucket_of, compare_runs, judge
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
    """Fails if every drafter that got slower passes, or one rollout's hiccup is called a fall."""
    slower = compare(rows([3] * 5), rows([3] * 5, seconds=0.08))
    assert any("speedup 2.000 -> 1.250" in line for line in slower.regressions)
    noisy = rows([3] * 5)
    next(row for row in noisy if row.drafter == "dlite" and row.rollout == "r3").decode_s = 5.0
    found = compare(rows([3] * 5), noisy)
    assert found.regressions == []
    assert {c.judgement for c in found.changes if c.figure == "speedup" and c.bucket == "under 1K"} == {"unsure"}


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
    wide, tight = (Interval(low, high, 0.95, 12, 2000) for low, high in ((0.7, 1.1), (0.7, 0.9)))
    assert judge(0.8, wide, 0.05, exact=False) == "unsure" and judge(0.8, tight, 0.05, exact=False) == "fell"
    assert judge(0.8, None, 0.05, exact=True) == "fell" and judge(1.2, None, 0.05, exact=True) == "rose"
    assert judge(0.96, tight, 0.05, exact=False) == "same" and judge(0.8, None, 0.05, exact=False) == "unsure"
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
