"""`reproduce` and `compare` from end to end on a tiny model: run, reuse, refuse, lay out."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import geometric_mean

import odd_plugins
import pandas as pd
import pytest
from localmodel import save_rollouts, session
from runkit import call

from agentbench_spec.errors import ConfigError
from agentbench_spec.reproduce.tables123 import Request, plan
from agentbench_spec.results.folder import read_run
from agentbench_spec.results.paper import published
from agentbench_spec.results.throughput.pass_rows import by_cell, read_rows
from agentbench_spec.runs.presets import load_presets

PRESETS = """
[settings]
[stated]
"decode.k" = "K = 3"
[open]
"decode.temperature" = "not stated"
[checkpoints]
[embedded]
target = "{target}"
drafters = ["ngram"]
orientation = "Qwen3-4B"
[embedded.settings]
"decode.k" = 3
"decode.max_new_tokens" = 12
"target.fast_linears" = false
[table3]
title = "agents"
drafters = ["dspark", "dlite"]
figures = ["speedup", "tau_raw", "tau"]
[[table3.embedded]]
title = "BFCL-v3"
workload = "{rollouts}"
[[table3.embedded]]
title = "SWE-Bench"
workload = "swe_bench"
options = {{ data = "/no/such/file.jsonl", window_tokens = 0 }}
[table4]
title = "throughput"
drafters = ["dlite"]
figures = ["tokens_per_s", "speedup", "tau_raw"]
[table4.embedded_throughput]
concurrency = [1, 4]
requests_per_row = 0
requests_least = 6
[[table4.embedded]]
title = "Alpaca"
workload = "{rollouts}"
standin = false
"""


@pytest.fixture(scope="module")
def presets(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A presets file for the tiny model and six rollouts of two turns."""
    folder = tmp_path_factory.mktemp("presets")
    rollouts = save_rollouts(folder / "six.jsonl", *(session(f"s{i}", 2, pad=10 * i) for i in range(6)))
    path = folder / "presets.toml"
    path.write_text(PRESETS.format(target=tiny, rollouts=rollouts), "utf-8")
    return path


@pytest.fixture(scope="module")
def results(presets: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results folder with table 3 in it."""
    folder = tmp_path_factory.mktemp("results")
    assert call("reproduce", "table3", "--embedded", "--presets", presets, "--results", folder).code == 0
    return folder


def test_table3_shows_what_ran_and_what_did_not(results: Path, presets: Path) -> None:
    """Fails if a drafter without checkpoint or column without data is dropped in silence, or the title not honest."""
    (folder,) = results.glob("table3-*")
    text = (folder / "table3.md").read_text("utf-8")
    assert "in form only" in text and "/no/such/file.jsonl" in text
    read = pd.read_csv(folder / "table3.csv").set_index(["drafter", "figure", "column"])
    for name in ("dspark", "dlite"):
        assert read.loc[(name, "tau_raw", "BFCL-v3")]["missing"] == "no checkpoint"
    measured = read.loc[("ngram", "tau_raw", "BFCL-v3")]
    assert measured["pooled"] >= 1 and measured["low"] <= measured["pooled"] <= measured["high"]
    assert set(read["verdict"]) == {"unknown"}
    assert read.loc[("dlite", "speedup", "BFCL-v3")]["paper"] == 2.37
    record = json.loads((folder / "table3.json").read_text("utf-8"))
    assert record["comparable"] is False and len(record["runs"]) == 1
    assert record["settings"][0].startswith("offline form of table3: decode.k=3")


def test_a_second_call_reuses_the_run_and_prints_the_same(results: Path, presets: Path, tmp_path: Path) -> None:
    """Fails if a finished run is measured again, or a table from the same rows differs in one byte."""
    (folder,) = results.glob("table3-*")
    before = files_in(folder)
    done = call("reproduce", "table3", "--embedded", "--presets", presets, "--results", results, "-o", tmp_path)
    assert "reusing" in done.err
    after = files_in(tmp_path)
    assert before == after
    endings = {Path(name).suffix for name in after}
    assert endings == {".csv", ".md", ".tex", ".parquet", ".json", ".html", ".svg", ".png", ".pdf"}


def test_a_plan_of_a_table_tells_what_is_there_and_what_is_missing(
    results: Path, presets: Path, tmp_path: Path
) -> None:
    """Fails if a plan runs or writes something, counts what would be reused, or hides a column that cannot be run."""
    asked = ("reproduce", "table3", "--embedded", "--presets", presets, "--dry-run", "--results")
    there = call(*asked, results).last["columns"]
    assert there[0]["finished"] and "turns" not in there[0]
    assert "/no/such/file.jsonl" in there[1]["missing"]
    ahead = call(*asked, tmp_path)
    assert ahead.code == 0 and list(tmp_path.iterdir()) == []
    assert (ahead.last["columns"][0]["rollouts"], ahead.last["columns"][0]["turns"]) == (6, 12)


def test_a_column_that_fails_ends_no_table(results: Path, presets: Path, tmp_path: Path) -> None:
    """Fails if hours of other columns are lost to one, or nobody is told what is missing and how it is added."""
    broken = tmp_path / "presets.toml"
    column = '[[table3.embedded]]\ntitle = "Broken"\nworkload = "odd_plugins:none_at_all"\n'
    broken.write_text(presets.read_text("utf-8") + column, "utf-8")
    kept = shutil.copytree(results, tmp_path / "results")
    done = call("reproduce", "table3", "--embedded", "--presets", broken, "--results", kept, "-o", tmp_path / "out")
    assert done.code == 1 and done.last["failed"] == ["Broken"] and "reusing" in done.err
    again = f"add it with: agentbench-spec reproduce table3 --embedded --presets {broken} --results {kept}"
    lines = {line.partition(" is missing: ")[0]: line for line in done.last["missing"]}
    assert set(lines) == {"SWE-Bench", "Broken", "dspark", "dlite"} and all(again in line for line in lines.values())
    assert "gave no rollouts" in lines["Broken"] and "/no/such/file.jsonl" in lines["SWE-Bench"]
    assert lines["dlite"].endswith("--drafter dlite=FOLDER_OR_HUB_ID")
    read = pd.read_csv(tmp_path / "out" / "table3.csv").set_index(["drafter", "figure", "column"])
    assert read.loc[("ngram", "tau_raw", "BFCL-v3")]["pooled"] >= 1
    assert "gave no rollouts" in read.loc[("ngram", "tau_raw", "Broken")]["missing"]
    record = json.loads((tmp_path / "out" / "table3.json").read_text("utf-8"))
    assert record["to_add"] == done.last["missing"]


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file below `folder`, by its path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_page_holds_the_table(results: Path) -> None:
    """Fails if the page shows the runs and not the table they were made for, or the paper's line cannot be told."""
    (folder,) = results.glob("table3-*")
    page = (folder / "table3.html").read_text("utf-8")
    assert 0 < page.find("Benchmark card") < page.find("no checkpoint"), "the card comes before the table"
    assert "in form only" in page and "DLite, speed-up, paper, Qwen3-4B" in page and "no checkpoint" in page
    assert ">unknown<" in page and 'data-sort="unknown"' not in page, "sorted with the numbers, not last"


@pytest.mark.parametrize(
    ("place", "name", "value", "reason"),
    [("data", "sha256", "0" * 64, "other data"), ("model", "drafters", {"none": "0", "ngram": "older"}, "ngram older")],
)
def test_what_changed_under_the_same_settings_is_refused(
    results: Path, presets: Path, tmp_path: Path, place: str, name: str, value: object, reason: str
) -> None:
    """Fails if rows of yesterday's rollouts, or of last week's drafter of the same name, are sold as today's."""
    kept = shutil.copytree(results, tmp_path / "results")
    (manifest,) = kept.glob("runs/*/manifest.json")
    tree = json.loads(manifest.read_text("utf-8"))
    tree[place][name] = value
    manifest.write_text(json.dumps(tree), "utf-8")
    done = call("reproduce", "table3", "--embedded", "--presets", presets, "--results", kept)
    assert done.code == 2 and reason in done.error


def test_a_run_on_a_busy_machine_says_so_below_the_table(results: Path, presets: Path, tmp_path: Path) -> None:
    """Fails if a reader of the table cannot know that other processes had the cores."""
    kept = shutil.copytree(results, tmp_path / "results")
    (manifest,) = kept.glob("runs/*/manifest.json")
    tree = json.loads(manifest.read_text("utf-8"))
    assert tree["other_cores"] is None or tree["other_cores"] >= 0
    for contended, times in ((False, 0), (True, 1)):
        manifest.write_text(json.dumps(tree | {"other_cores": 1.6, "contended": contended}), "utf-8")
        done = call("reproduce", "table3", "--embedded", "--presets", presets, "--results", kept, "-o", tmp_path)
        assert done.code == 0
        text = (tmp_path / "table3.md").read_text("utf-8")
        assert text.count("BFCL-v3: other work took 1.6 cores of the machine") == times


def test_ctrl_c_says_that_the_same_command_goes_on(
    presets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if whoever stops a table of an hour is not told that what it measured is kept, or where."""
    monkeypatch.setenv(odd_plugins.INTERRUPT_FILE, str(presets))
    asked = ("reproduce", "table3", "--embedded", "--presets", presets, "--results", tmp_path)
    done = call(*asked, "--drafter", "odd_plugins:interrupt")
    assert done.code == 130 and done.out == ""
    assert f"interrupted; the same command goes on; what is finished under {tmp_path / 'runs'} is reused" in done.err


def test_a_killed_run_is_continued(results: Path, presets: Path, tmp_path: Path) -> None:
    """Fails if a table starts a half-finished run anew or refuses it."""
    kept = shutil.copytree(results, tmp_path / "results")
    (run,) = kept.glob("runs/*")
    whole = read_run(run)[1]
    tree = json.loads((run / "manifest.json").read_text("utf-8"))
    del tree["finished"]
    (run / "manifest.json").write_text(json.dumps(tree), "utf-8")
    lines = (run / "rollouts.jsonl").read_text("utf-8").splitlines(keepends=True)
    (run / "rollouts.jsonl").write_text("".join(lines[:4]), "utf-8")
    done = call("reproduce", "table3", "--embedded", "--presets", presets, "--results", kept)
    assert done.code == 0 and "reusing" not in done.err
    again = read_run(run)[1]
    assert [(r.rollout, r.turn, r.drafter, r.output_ids) for r in again] == [
        (r.rollout, r.turn, r.drafter, r.output_ids) for r in whole
    ]
    assert [r.decode_s for r in again[:8]] == [r.decode_s for r in whole[:8]]


def test_table4_serves_more_at_concurrency_4(presets: Path, tmp_path: Path) -> None:
    """Fails if four rows take as many steps as one, an output changes with its neighbours, or the run is not reused."""
    arguments = ("reproduce", "table4", "--embedded", "--presets", presets, "--results", tmp_path)
    done = call(*arguments)
    assert done.code == 0
    (run,) = map(Path, done.last["runs"])
    cells = by_cell(read_rows(run))
    assert set(cells) == {(d, c) for d in ("none", "ngram") for c in (1, 4)}
    assert {len(passes) for passes in cells.values()} == {3}
    rows = {cell: passes[0] for cell, passes in cells.items()}
    for drafter in ("none", "ngram"):
        one, four = rows[drafter, 1], rows[drafter, 4]
        assert one.steps is not None and four.steps is not None and four.steps < one.steps / 2
        assert one.turns == four.turns == 12 and one.outputs == four.outputs == rows["none", 1].outputs
        assert four.busy_rows is not None and four.busy_rows > 2
    assert rows["ngram", 1].rounds == rows["ngram", 4].rounds
    (folder,) = tmp_path.glob("table4-*")
    page = (folder / "table4.html").read_text("utf-8")
    assert (folder / "figures" / "throughput.svg").exists() and "concurrency 4" in page
    assert 0 < page.find("Benchmark card") < page.find("concurrency 4") and "% of the speed the memory allows" in page
    read = pd.read_csv(folder / "table4.csv").set_index(["drafter", "figure", "column"])
    speeds = [row.full_emitted / row.full_s for row in cells["ngram", 4] if row.full_emitted and row.full_s]
    assert read.loc[("ngram", "tokens_per_s", "concurrency 4")]["pooled"] == pytest.approx(geometric_mean(speeds))
    assert all(row.full_steps and row.steps and row.full_steps < row.steps for row in cells["ngram", 4])
    assert read.loc[("dlite", "tau_raw", "concurrency 4")]["missing"] == "no checkpoint"
    again = call(*arguments)
    assert again.code == 0 and "reusing" in again.err


def test_two_runs_differ_in_their_clocks_only(results: Path, presets: Path, tmp_path: Path) -> None:
    """Fails if anything but a clock depends on the hour, or the script that says so passes over a changed token."""
    shutil.copytree(results, tmp_path / "old")
    for name, folder in (("table3", "new"), ("table4", "old"), ("table4", "new")):
        done = call("reproduce", name, "--embedded", "--presets", presets, "--results", tmp_path / folder)
        assert done.code == 0
    same = same_but_clocks(tmp_path / "old", tmp_path / "new")
    assert same.returncode == 0 and "28 rows of 2 runs compared: 0 differences" in same.stdout
    (turns,) = (tmp_path / "new").glob("runs/*/turns.jsonl")
    first, *rest = turns.read_text("utf-8").splitlines()
    row = json.loads(first)
    row["output_ids"][0] += 1
    turns.write_text("\n".join([json.dumps(row), *rest[:-1]]) + "\n", "utf-8")
    other = same_but_clocks(tmp_path / "old", tmp_path / "new")
    assert other.returncode == 1 and other.stdout.count("output_ids: ") == 1 and "only in the old run" in other.stdout


def same_but_clocks(old: Path, new: Path) -> subprocess.CompletedProcess[str]:
    """What the script says of two results folders."""
    script = Path(__file__).parents[2] / "scripts" / "same_but_clocks.py"
    return subprocess.run([sys.executable, script, old, new], capture_output=True, text=True, check=False)


def test_tables_of_trained_variants_say_what_to_train() -> None:
    """Fails if table 5 or a figure like it pretends, or the reader is not told the commands."""
    for name in ("table5", "figure4b", "figure5"):
        done = call("reproduce", name)
        assert done.code == 2
        assert "agentbench-spec train dlite" in done.error and "agentbench-spec run" in done.error
    assert "table1, table2" in call("reproduce", "table7").error


def test_presets_name_workloads_and_cells_of_the_paper() -> None:
    """Fails if a column of tables 2 to 4 names no workload of the paper, or a shipped setting is unknown."""
    presets = load_presets()
    for name, cells in (("table2", "speedup"), ("table3", "speedup")):
        for column in presets.tables[name].columns:  # type: ignore[index]
            for drafter in presets.tables[name].drafters:  # type: ignore[index]
                for target in ("Qwen3-4B", "Qwen3-8B"):
                    assert published(name, target, column.paper_workload, drafter, cells)  # type: ignore[arg-type]
    for name in (name for name, preset in presets.tables.items() if not preset.arms):
        assert any(line.startswith("left open by the paper: ") for line in plan(name, Request()).settings_lines)
        for embedded in (False, True):
            wanted = plan(name, Request(embedded=embedded))
            assert wanted.columns and wanted.comparable is not embedded
            ks = presets.tables[name].k
            assert {tuple(config.decode.sweep) for _, config in wanted.columns} == {tuple(ks or ())}
            assert {config.decode.k for _, config in wanted.columns} == {max(k for k in ks or (7,) if k != "auto")}
            assert all(config.decode.temperature == 0 for _, config in wanted.columns)


def test_the_offline_form_runs_the_shipped_checkpoints_on_their_own_target_only() -> None:
    """Fails if a shipped drafter is left out or run on a target it was not made for, or its training text is hidden."""
    found = plan("table3", Request(embedded=True))
    drafters = ("none", "ngram", "suffix", "eagle3", "dflash", "dspark", "dlite")
    assert {config.drafters for _, config in found.columns} == {drafters} and not found.missing
    assert any("other scenarios" in line for line in found.settings_lines)
    other = plan("table3", Request(embedded=True, target="some/model"))
    assert set(other.missing) == set(drafters[3:]) and len(other.settings_lines) == 1
    (given,) = {c.drafters for _, c in plan("table3", Request(embedded=True, drafters=["dlite=mine"])).columns}
    assert given[-1] == "dlite=mine" and "dlite" not in given


def test_offline_columns_say_what_stands_in() -> None:
    """Fails if the real rollouts measured offline are not the shipped ones, which nothing here was trained on."""
    for name in load_presets().tables:
        for preset, config in plan(name, Request(embedded=True)).columns:
            if config.workload.name == "bfcl_v3":
                assert config.workload.options == {"subset": "shipped"} and not preset.standin
            else:
                assert preset.standin


def test_columns_of_a_table_can_share_it() -> None:
    """Fails if a preset runs two columns under conditions that the table then refuses to hold together."""
    tables = {name: preset for name, preset in load_presets().tables.items() if not preset.arms}  # arms: no columns
    for name, preset in tables.items():
        for embedded in (False, True):
            configs = [config for _, config in plan(name, Request(embedded=embedded)).columns]
            if preset.k:  # a sweep: k is what its columns differ in
                configs = [config.model_copy(update={"decode": configs[0].decode}) for config in configs]
            assert len({(config.decode, config.replay, config.measure) for config in configs}) == 1


def test_what_differs_from_the_presets_costs_the_verdict() -> None:
    """Fails if a verdict against the paper is given under other settings, or for another model."""
    same = plan("table3", Request(drafters=["dlite=mine"], assignments=["target.device=cpu"]))
    assert same.comparable and same.missing == {}
    assert "dlite=mine" in same.columns[0][1].drafters
    for request in (
        Request(limit=3),
        Request(assignments=["decode.k=5"]),
        Request(target="Qwen/Qwen3-14B", drafters=["ngram"]),
    ):
        assert not plan("table3", request).comparable
    assert plan("table3", Request(limit=3)).changed[0].startswith("workload.limit (100 -> 3)")
    assert plan("table3", Request(target="Qwen/Qwen3-14B")).missing["dlite"] == "no checkpoint"


def test_nothing_to_run_is_an_error() -> None:
    """Fails if a table without a single drafter is loaded, run and printed empty."""
    done = call("reproduce", "table3", "--target", "some/model")
    assert done.code == 2 and "no drafter has a checkpoint" in done.error
    with pytest.raises(ConfigError, match="concurrency: expected 1 or more"):
        plan("table4", Request(concurrency=[0]))
    assert "whole numbers" in call("reproduce", "table4", "--concurrency", "1,x").error


def test_export_of_a_run(results: Path, tmp_path: Path) -> None:
    """Fails if a run's own table cannot be had as data, or an unknown ending writes something."""
    (run,) = results.glob("runs/*")
    for ending in ("csv", "parquet", "md", "tex"):
        assert call("export", run, "-o", tmp_path / f"table.{ending}").code == 0
    read = pd.read_csv(tmp_path / "table.csv")
    assert list(read["drafter"]) == ["none", "ngram"] and read["tau"][0] == 1.0
    assert pd.read_parquet(tmp_path / "table.parquet")["turns"].tolist() == read["turns"].tolist()
    assert ".parquet" in call("export", run, "-o", tmp_path / "table.docx").error


def timed_anew(run: Path, copy: Path, slower: float) -> Path:
    """A copy of a run with made-up clocks on a quiet machine, whatever this one did meanwhile: 10 ms a round."""
    shutil.copytree(run, copy)
    manifest = json.loads((copy / "manifest.json").read_text("utf-8"))
    (copy / "manifest.json").write_text(json.dumps(manifest | {"contended": False}), "utf-8")
    lines = [json.loads(line) for line in (copy / "turns.jsonl").read_text("utf-8").splitlines()]
    for line in lines:
        if line["rounds"]:
            step_s = 0.01 * (slower if line["drafter"] == "ngram" else 1)
            line |= {"decode_s": step_s * line["rounds"], "round_s": [step_s] * line["rounds"], "disturbed": False}
    (copy / "turns.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return copy


def test_compare_on_two_runs(results: Path, tmp_path: Path) -> None:
    """Fails if a run differs from itself, or a changed row goes unseen by the exit code."""
    (run,) = results.glob("runs/*")
    same = call("compare", run, run)
    assert same.code == 0 and same.last["regressions"] == []
    quiet, worse = (timed_anew(run, tmp_path / name, slower) for name, slower in (("quiet", 1), ("worse", 3)))
    done = call("compare", quiet, worse, "-o", tmp_path / "fell.csv")
    assert done.code == 1 and any("speedup" in line for line in done.last["regressions"])
    fell = pd.read_csv(tmp_path / "fell.csv").set_index(["drafter", "bucket", "figure"])
    line = fell.loc[("ngram", "all contexts", "speedup")]
    assert line["judgement"] == "fell" and line["ratio"] == pytest.approx(1 / 3) and line["low"] <= line["ratio"]
    assert call("compare", run, run, "-o", tmp_path / "same.tex").code == 0
    assert "ngram" in (tmp_path / "same.tex").read_text("utf-8")
    assert ".parquet" in call("compare", run, run, "-o", tmp_path / "same.docx").error


def test_names_that_begin_alike_are_told_apart_on_a_narrow_screen(results: Path, tmp_path: Path) -> None:
    """Fails if the end of `my_package.drafter:make_2`, a second version of a drafter, is cut to fit 80 columns."""
    (run,) = results.glob("runs/*")
    renamed = shutil.copytree(run, tmp_path / "renamed")
    text = (renamed / "turns.jsonl").read_text("utf-8")
    (renamed / "turns.jsonl").write_text(text.replace('"ngram"', '"my_package.drafter:make_2"'), "utf-8")
    shown = "".join(call("compare", renamed, renamed).err.split())
    assert "er:make_" in shown and "…" not in shown  # the name goes on in the next lines
