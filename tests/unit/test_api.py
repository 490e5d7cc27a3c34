"""`import agentbench_spec as ab`: instant, whole, typed, and the same settings, checks and rows as the command line."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from localmodel import save_rollouts, session
from rowkit import make_row
from runkit import call, without_clocks
from test_reproduce import PRESETS

import agentbench_spec as ab
from agentbench_spec.cli import app
from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.drafting import DrafterSpec, SequenceDrafter
from agentbench_spec.results.summary import summarise
from agentbench_spec.results.verdict import faults
from agentbench_spec.runs.keywords import PLACES, Settings, name_of, resolve

SMALL: dict[str, Any] = {"max_new_tokens": 16, "k": 3}
TREE = {"target": {"fast_linears": False}}


class Again(SequenceDrafter):
    """Proposes the last token again."""

    spec = DrafterSpec(name="again")

    def __init__(self, times: int = 9) -> None:
        self.times = times

    def propose_one(self, row: int, text: list[int], k: int) -> list[int]:
        return text[-1:] * min(k, self.times)


def loaded_by(code: str) -> set[str]:
    """Modules that a fresh interpreter has loaded after `code`."""
    command = [sys.executable, "-c", f"{code}\nimport sys\nprint('\\n', *sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def declared(source: str) -> dict[str, str]:
    """Public name -> module, as the imports for type checkers in `source` say."""
    (block,) = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {str(alias.asname): str(node.module) for node in imports for alias in node.names}


def test_the_import_loads_nothing_else() -> None:
    """Fails if `import agentbench_spec` loads a package, ours or another: it has to be instant."""
    before, after = loaded_by("import importlib, typing"), loaded_by("import agentbench_spec")
    assert after - before == {"agentbench_spec"}


def test_names_are_seen_by_dir_and_by_type_checkers() -> None:
    """Fails if a name can be used and an editor cannot see it, or the other way round."""
    assert set(ab.__all__) <= set(dir(ab))
    assert declared(inspect.getsource(ab)) == ab._MODULES
    assert declared("if X:\n    from a import b as c") == {"c": "a"}  # the control: what is read is what is written


def test_every_name_is_there_and_none_hides_a_package() -> None:
    """Fails for a name nothing answers to, or one that an import of the package of that name would replace."""
    for name in ab.__all__:
        assert getattr(ab, name) is not None
    folder = Path(ab.__file__).parent
    assert not {path.stem for path in folder.iterdir()} & set(ab.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'rum'"):
        ab.rum  # type: ignore[attr-defined]  # noqa: B018


def test_keywords_are_the_flags_of_the_command_line() -> None:
    """Fails if `agentbench-spec run` has a flag that `ab.run` has not, or the two write to different settings."""
    renamed = {"drafter": "drafters", "base_url": "base_urls"}
    options = typer.main.get_group(app).commands["run"].params
    flags = {renamed.get(name, name) for name in (str(option.name) for option in options)}
    own = set(inspect.signature(ab.run).parameters) | set(inspect.signature(ab.plan).parameters)
    elsewhere = {"config", "set_", "json_", "dry_run"}  # `settings`, and `plan` itself; the rest is of the screen
    assert flags - own - elsewhere <= set(Settings.__annotations__)
    sections = {*RunConfig.model_fields} - {"backend", "drafters"}
    assert set(Settings.__annotations__) - flags <= sections
    assert set(Settings.__annotations__) - sections == set(PLACES) - sections


@pytest.mark.parametrize(
    ("keywords", "assignments"),
    [
        ({"k": 3, "limit": 2, "target": Path("m")}, ["decode.k=3", "workload.limit=2", 'target.source="m"']),
        ({"decode": {"top_k": 5}, "k": 2}, ["decode.top_k=5", "decode.k=2"]),
        ({"target": {"source": "m", "revision": "r"}}, ['target.source="m"', 'target.revision="r"']),
        ({"drafters": "ngram"}, ['drafters=["ngram"]']),
        ({"drafters": [Again], "drafter_options": {Again: {"times": 2}}}, None),
        ({"base_urls": "http://a", "seed": 4}, ['sglang.base_urls=["http://a"]', "backend=sglang", "measure.seed=4"]),
        (
            {"workload": "w", "data": Path("d"), "offline_standin": False},
            ["workload.name=w", "workload.options.data=d"],
        ),
        ({"k": None}, []),
    ],
)
def test_keywords_are_settings(keywords: dict[str, Any], assignments: list[str] | None) -> None:
    """Fails if a keyword lands elsewhere in the tree than its flag or section, or None counts as a value."""
    found = resolve(None, keywords)
    if assignments is None:
        assert found.drafters == ("test_api:Again",) and found.drafter_options == {"test_api:Again": {"times": 2}}
    else:
        assert found == load_config(None, assignments)


def test_keywords_come_on_top_of_file_tree_and_config(tmp_path: Path) -> None:
    """Fails if the first argument wins over a keyword, or is forgotten beside one."""
    file = tmp_path / "run.toml"
    file.write_text("[decode]\nk = 5\ntop_k = 9\n", "utf-8")
    tree = {"decode": {"k": 5, "top_k": 9}}
    for given in (file, str(file), tree, RunConfig.model_validate(tree)):
        found = resolve(given, {"k": 2})
        assert (found.decode.k, found.decode.top_k, found.decode.max_new_tokens) == (2, 9, 256)
    served = RunConfig.model_validate({"backend": "sglang"})
    assert resolve(served, {}).named_target is None  # a default of the config is no target that was named


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"limits": 3}, "unknown setting 'limits'; did you mean 'limit'?"),
        ({"top_p": 0.9}, "unknown setting 'top_p'; write decode={'top_p': ...}"),
        ({"decode": {"kk": 3}}, "unknown setting 'decode.kk'; did you mean 'decode.k'?"),
        ({"k": -1}, "setting decode.k: "),
        ({"k": "4"}, "setting decode.k: "),
        ({"workload": [session("a")]}, "write rollouts to a file first"),
        ({"drafters": ["ngrm"]}, "did you mean 'ngram'?"),
        ({"drafters": [Again()]}, "an object of Again: .* give its class"),
        ({"drafters": [lambda: Again()]}, "<lambda>: .* at the top level of a module or a notebook"),
        ({"measure": {"seed": {1}}}, "setting measure.seed: "),
        ({"resume": True}, "resume needs out"),
        ({"settings": 3}, "expected a TOML file, a tree or a RunConfig, found int"),
        ({"settings": "no.toml"}, "cannot read the settings file no.toml"),
    ],
)
def test_what_cannot_be_used_is_a_config_error(keywords: dict[str, Any], message: str, tmp_path: Path) -> None:
    """Fails with a traceback of someone else's, or without the way out."""
    with pytest.raises(ab.ConfigError, match=message.replace("?", r"\?").replace("{", r"\{")):
        ab.run(**{"target": str(tmp_path), **keywords})


def test_a_class_that_was_defined_again_is_not_mistaken() -> None:
    """A notebook cell run twice: the old class no longer answers to its name, so the new one would be measured."""
    old = type("Again", (Again,), {"__module__": __name__})
    with pytest.raises(ab.ConfigError, match="Again: "):
        name_of(old)
    assert name_of(Again) == "test_api:Again" and name_of("ngram") == "ngram"


@pytest.fixture(scope="module")
def finished(
    tiny: Path, rollouts: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ab.Run, list[str]]]:
    """A run with a drafter of this module, and what it told."""
    told: list[str] = []
    out = tmp_path_factory.mktemp("api") / "run"
    drafters = ["ngram", Again]
    yield ab.run(TREE, target=tiny, workload=rollouts, drafters=drafters, out=out, tell=told.append, **SMALL), told


def test_run_returns_what_load_reads(finished: tuple[ab.Run, list[str]]) -> None:
    """Fails if a run in memory and the same run from its folder are two things."""
    run, told = finished
    again = ab.load(str(run.folder))
    assert again.rows == run.rows and again.manifest == run.manifest and again.summary == run.summary
    assert run.drafters == ["none", "ngram", "test_api:Again"] and run.faults == [] and run.finished
    assert len(run.frame) == len(run.rows) == 3 * 3 * 3
    assert str(run.folder) in repr(run) and "test_api:Again" in str(run) and "speed-up" in str(run)
    assert [line for line in told if line.startswith("rollout ")] == [f"rollout {i}/3: 3 turns" for i in (1, 2, 3)]


def test_rows_are_those_of_the_command_line(
    finished: tuple[ab.Run, list[str]], tiny: Path, rollouts: Path, tmp_path: Path
) -> None:
    """Fails if the API measures under other settings than the command with the same words."""
    run, _ = finished
    words = ("--k", 3, "--max-new-tokens", 16, "--set", "target.fast_linears=false")
    place = ("--target", tiny, "--workload", rollouts, "--out", tmp_path / "cli")
    drafters = ("--drafter", "ngram", "--drafter", "test_api:Again")
    assert call("run", *place, *drafters, *words).code == 0
    other = ab.load(tmp_path / "cli")
    assert without_clocks(other.rows) == without_clocks(run.rows)
    assert other.manifest["settings_digest"] == run.manifest["settings_digest"]


def test_a_run_is_quiet_and_resumes_with_its_own_settings(
    finished: tuple[ab.Run, list[str]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Fails if a bar is drawn in a notebook that asked for none, or a resumed run forgets what it was started with."""
    run, _ = finished
    for name in ("manifest.json", "turns.jsonl", "rollouts.jsonl"):
        (tmp_path / name).write_bytes((run.folder / name).read_bytes())
    lines = (tmp_path / "rollouts.jsonl").read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "rollouts.jsonl").write_text("".join(lines[:2]), "utf-8")
    capfd.readouterr()
    again = ab.run(out=tmp_path, resume=True)
    assert without_clocks(again.rows) == without_clocks(run.rows) and len(again.manifest["resumes"]) == 1
    out, err = capfd.readouterr()
    assert out == "" and "turn" not in err


def test_figures_have_every_form(finished: tuple[ab.Run, list[str]], tmp_path: Path) -> None:
    """Fails if a run, a comparison or a table cannot be written as one of the four forms, or a form loses a drafter."""
    run, _ = finished
    found = ab.compare(run, run.folder)
    table = ab.paper_table("table3", {"BFCL-v3": run}, paper_target="Qwen3-4B")
    assert found.regressions == []
    for figures in (run, found, table):
        assert "test_api:Again" in set(ab.as_frame(figures)["drafter"])
        assert "test\\_api:Again" in ab.as_latex(figures)
        assert "test_api:Again" in ab.as_markdown(figures)
        for ending in ("csv", "parquet", "md", "tex"):
            assert ab.export(figures, f"{tmp_path}/figures.{ending}").stat().st_size
    with pytest.raises(ab.ConfigError, match="at least one column"):
        ab.paper_table("table3", {})


def test_report_takes_runs_and_folders(finished: tuple[ab.Run, list[str]], tmp_path: Path) -> None:
    """Fails if one of the ways to name a run is not taken, or figures are left out."""
    run, _ = finished
    assert ab.write_report([str(run.folder)], tmp_path / "one.html").read_bytes()
    assert ab.write_report(run, tmp_path / "page.html").read_bytes()
    files = ab.write_figures(str(run.folder), tmp_path / "figures")
    assert len([path for path in files if path.suffix == ".pdf"]) > 3 and all(path.stat().st_size for path in files)


def test_check_takes_a_class_and_a_model(tiny: Path) -> None:
    """Fails if a class is refused, its options are lost, or a named model is not the one that is checked on."""
    report = ab.check(Again, target=str(tiny), options={"times": 2})
    assert report.failed == [] and {finding.on for finding in report.findings} == {str(tiny)}
    with pytest.raises(ab.ConfigError, match="has no option 'time'"):
        ab.check(Again, on="toy", options={"time": 2})


def test_faults_say_why_a_run_must_not_be_quoted() -> None:
    """Fails if a void run looks fine: not lossless, nothing measured, or a drafter that never worked."""
    plain, good = make_row("a", 0, "none", [0] * 4), make_row("a", 0, "x", [1, 1])
    assert faults([plain, good], summarise([plain, good])) == []
    differs = make_row("a", 0, "x", [1, 1], identical=False, divergence="error")
    assert "differs from plain decoding" in faults([plain, differs], summarise([plain, differs]))[0]
    broken = make_row("a", 0, "x", [], status="error", error="boom")
    assert faults([plain, broken], summarise([plain, broken])) == ["x: not one turn could be decoded"]
    assert faults([broken], summarise([broken])) == ["not one turn could be decoded"]


def test_reproduce_writes_the_table_and_gives_it_back(tiny: Path, tmp_path: Path) -> None:
    """Fails if the files of a table are left out, or what comes back is not the table."""
    rollouts = save_rollouts(tmp_path / "two.jsonl", *(session(f"s{i}", 1) for i in range(2)))
    presets = tmp_path / "presets.toml"
    presets.write_text(PRESETS.format(target=tiny, rollouts=rollouts), "utf-8")
    done = ab.reproduce_table("table3", embedded=True, presets=str(presets), results=tmp_path / "r", out=tmp_path / "t")
    (table,) = done.tables
    assert "ngram" in set(ab.as_frame(table)["drafter"])
    assert (tmp_path / "t" / "table3.html").is_file() and all(ab.load(run).finished for run in done.runs)
