"""One run over several K: each drafter stands under a name for each, is shown the text once, and drafts as named."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from agentbench_spec_drafters.ngram import make as ngram
from agentbench_spec_drafters.none import NoDrafter
from replaykit import by_drafter, replayed, replayer, three_turns
from reportkit import timed
from runkit import call, replay, rows_of

from agentbench_spec.config import load_config
from agentbench_spec.drafting import ConfigError, DrafterSpec, SequenceDrafter, Span
from agentbench_spec.engine.adaptive import choices
from agentbench_spec.errors import MeasurementError
from agentbench_spec.results.derived.k_arms import arm_name, arm_of
from agentbench_spec.results.derived.policy import choices_of
from agentbench_spec.results.folder import read_manifest
from agentbench_spec.results.metrics import one_condition
from agentbench_spec.runs.setup import arms_over, method_names

ROOT = Path(__file__).parents[2]


def test_what_a_run_decodes_with_is_known_before_it_is_loaded() -> None:
    """Fails if a dry run, or the cut into shards, counts a drafter once that decodes with several K."""
    config = load_config(flags={"drafters": ["ngram", "suffix"], "decode.sweep": [1, "auto"]})
    assert method_names(config) == ["none", "ngram@1", "ngram@auto", "suffix@1", "suffix@auto"]


def test_the_chosen_k_benchmark_has_every_replayed_text_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a live run becomes a text of it, whose sessions would stand twice in the mixed one."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    texts = importlib.import_module("chosen_k").texts
    found = dict(texts(["suffix"], [1, 3], 1, tmp_path))
    recorded = [path.name for path in sorted((ROOT / "results" / "recorded").iterdir())]
    assert list(found) == [*(name for name in recorded if not name.startswith("live-")), "mixed"]
    assert all(list(config.decode.sweep) == [1, 3, "auto"] for config in found.values())


@pytest.mark.parametrize("name", ["ngram", "dlite=some/folder", "my.module:make", "dlite=user@host"])
def test_a_name_is_an_arms_if_it_ends_in_a_k(name: str) -> None:
    """Fails if a checkpoint's name reads as a K, or an arm's drafter is not found again."""
    assert arm_of(name) == (name, None)
    assert [arm_of(arm_name(name, k)) for k in (0, 15, "auto")] == [(name, "0"), (name, "15"), (name, "auto")]


class Telling(SequenceDrafter):
    """Counts the spans it is shown and fails, if it is to, when asked for so many tokens."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.spec = DrafterSpec(name="telling")
        self.shown, self._fails_at = 0, fails_at

    def observe(self, span: Span) -> None:
        self.shown += 1
        super().observe(span)

    def propose_one(self, row: int, text: object, k: int) -> list[int]:
        if k == self._fails_at:
            raise RuntimeError("cannot")
        return [1] * k


def arms(drafter: Telling) -> dict[str, SequenceDrafter | NoDrafter]:
    return {"none": NoDrafter(), "telling@1": drafter, "telling@3": drafter}


def test_rows_say_their_k_and_the_text_is_shown_once() -> None:
    """Fails if an arm drafts another number than its name says, or a shared drafter hears the prompt twice."""
    drafter, alone = Telling(), Telling()
    replays = replayer(arms(drafter), k=7)
    replays.ks.update({"telling@1": 1, "telling@3": 3})
    turns = replayed(replays, three_turns())
    for k in (1, 3):
        rows = by_drafter(turns, f"telling@{k}")
        assert {row.k for row in rows} == {k} and all(row.identical for row in rows)
        assert max(n for row in rows for n in row.proposed_lengths or ()) == k
    assert {row.k for row in by_drafter(turns, "none")} == {7}
    seconds = [{row.draft_ingest_s for row in by_drafter(turns, name)} for name in ("telling@1", "telling@3")]
    assert seconds[0] == seconds[1]
    by_one = replayed(replayer({"none": NoDrafter(), "telling": alone}, k=3), three_turns())
    rounds = [row.rounds or 0 for name in ("telling@1", "telling@3") for row in by_drafter(turns, name)]
    own = [row.rounds or 0 for row in by_drafter(by_one, "telling")]
    assert sum(own) > 0 and drafter.shown - sum(rounds) == alone.shown - sum(own)


def test_a_drafter_that_fails_is_out_under_all_its_names() -> None:
    """Fails if a drafter goes on with a state that its own error left, or the turn is lost for plain decoding."""
    replays = replayer(arms(Telling(fails_at=3)), k=7)
    replays.ks.update({"telling@1": 1, "telling@3": 3})
    turns = replayed(replays, three_turns())
    last = {row.drafter: row for row in turns[-1].rows}
    assert {last[name].status for name in ("telling@1", "telling@3")} == {"error"} and last["none"].status == "ok"
    assert "cannot" in (last["telling@1"].error or "")


def test_arms_stand_in_one_run_and_other_k_still_do_not_mix() -> None:
    """Fails if rows of several K may stand together without names that say so, or those of arms may not."""
    rows = [timed("r0", 0, arm_name("ngram", k), [1, 1], (0.0, 9.0, 0.0, 0.0, 0.0), k=k) for k in (1, 3)]
    one_condition([*rows, timed("r0", 0, "none", [0] * 4, (0.0, 9.0, 0.0, 0.0, 0.0))])
    with pytest.raises(MeasurementError, match="k: 1, 3"):
        one_condition([timed("r0", 0, f"d{k}", [1, 1], (0.0, 9.0, 0.0, 0.0, 0.0), k=k) for k in (1, 3)])


def test_the_best_k_is_read_from_one_run_of_several() -> None:
    """Fails if arms are taken for drafters of their own, so that no two K stand at one place."""
    rows = []
    for i in range(6):
        rows.append(timed(f"r{i}", 0, "none", [0] * 12, (0.0, 10.0, 0.0, 0.0, 0.0)))
        for k, ms in ((1, 12.0), (3, 13.0)):
            rows.append(timed(f"r{i}", 0, f"toy@{k}", [k] * (12 // (k + 1)), (0.0, ms, 0.0, 0.0, 0.0), k=k))
    choices_found = choices_of([rows])
    assert {each.place.drafter for each in choices_found} == {"toy"} and choices_found[0].best.k == 3


def test_plain_decoding_has_no_arms() -> None:
    """Fails if the baseline is decoded once for each K, or a run without a sweep gets other names."""
    plain, own = NoDrafter(), ngram()
    assert list(arms_over({"none": plain, "ngram": own}, (1, "auto"))) == ["none", "ngram@1", "ngram@auto"]
    assert arms_over({"none": plain, "ngram": own}, ()) == {"none": plain, "ngram": own}


def test_a_run_over_several_k(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if a K is not obeyed, an arm's output changes, the manifest names no drafter, or the report breaks."""
    folder = tmp_path / "run"
    done = replay(tiny, rollouts, folder, "--limit", 1, "--drafter", "suffix", "--k", "1,3,auto:5")
    assert done.code == 0 and done.last["lossless"] is True
    rows = {name: [row for row in rows_of(folder) if row.drafter == name] for name in ("suffix@1", "suffix@auto")}
    assert {row.drafter for row in rows_of(folder)} == {"none", "suffix@1", "suffix@3", "suffix@auto"}
    assert {(row.k, row.k_policy) for row in rows["suffix@1"]} == {(1, "fixed")}
    assert {(row.k, row.k_policy) for row in rows["suffix@auto"]} == {(5, "auto")}
    assert {k for row in rows["suffix@auto"] for k in row.asked_lengths or ()} <= set(choices(5))
    manifest = read_manifest(folder)
    assert set(manifest["model"]["drafters"]) == {"none", "suffix"} and set(manifest["round_costs"]) == {"suffix@auto"}
    assert manifest["settings"]["decode"]["sweep"] == [1, 3, "auto"]
    page = tmp_path / "page.html"
    assert call("report", folder, "-o", page).code == 0 and "How many tokens to draft" in page.read_text()


@pytest.mark.parametrize(
    ("text", "sweep", "most"),
    [
        ("1,3,auto", (1, 3, "auto"), 3),
        ("auto:15, 7", ("auto", 7), 15),
        ("2,4", (2, 4), 4),
        ("0,auto:5", (0, "auto"), 5),
    ],
)
def test_several_k_in_one_word(text: str, sweep: tuple[int | str, ...], most: int) -> None:
    """Fails if `--k 1,3,auto` means another sweep than it says, or another most."""
    found = load_config(flags={"decode.k": text})
    assert (found.decode.sweep, found.decode.k, found.decode.k_policy) == (sweep, most, "fixed")
    for wrong in (f"{text},", f"{text},many", "1.5,2"):
        with pytest.raises(ConfigError, match=r"decode\.k"):
            load_config(flags={"decode.k": wrong})


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["decode.sweep=[1, 9]"], "9 draft tokens, decode.k=7"),
        (["decode.sweep=[1, 1]"], "twice"),
        (["decode.sweep=[1]", "decode.k=auto"], "decode.k=auto"),
        (['decode.sweep=["most"]'], "decode.sweep"),
        (["decode.sweep=[1]", "backend=sglang", "sglang.launch=true"], "decode.sweep and backend=sglang"),
    ],
)
def test_what_a_sweep_cannot_be(assignments: list[str], message: str) -> None:
    """Fails if a K that cannot be asked for is passed over, or the error does not name the setting."""
    with pytest.raises(ConfigError, match=message):
        load_config(assignments=assignments)


def test_settings_of_older_runs_are_as_they_were() -> None:
    """Fails if a run that was begun before there was a sweep cannot be resumed: its manifest lacks the setting."""
    assert "sweep" not in load_config().model_dump(mode="json")["decode"]
    swept = load_config(assignments=['decode.sweep=[1, "auto"]'])
    assert load_config(base=swept.model_dump(mode="json")) == swept
