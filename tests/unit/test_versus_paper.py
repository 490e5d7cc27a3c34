"""The page that holds a table against the paper's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentbench_spec.reproduce.plan import Request, plan
from agentbench_spec.reproduce.tables123 import Reproduced
from agentbench_spec.reproduce.versus_paper import Versus, conditions, versus_grids, versus_paper, versus_sheets
from agentbench_spec.results.export import markdown
from agentbench_spec.results.intervals import Interval
from agentbench_spec.results.paper import published, verdict
from agentbench_spec.results.tables import Cell, Table

COLUMN = "BFCL-v3"
H800 = {"gpus": [{"name": "NVIDIA H800 PCIe"}], "cpu": "Xeon", "threads": 8}


def interval(low: float, high: float, clusters: int = 40) -> Interval:
    return Interval(low=low, high=high, level=0.95, clusters=clusters, df=clusters - 1.0)


def cell(value: float, low: float, high: float, *, clusters: int = 40, judged: bool = True, left_out: int = 0) -> Cell:
    """DLite's speed-up on BFCL-v3, which the paper gives as 2.37."""
    own, paper = interval(low, high, clusters), published("table3", "Qwen3-4B", COLUMN, "dlite", "speedup")
    said = verdict(own, paper) if judged else "unknown"
    return Cell(value=value, interval=own, paper=paper, verdict=said, turns=90, left_out=left_out)


def done(
    tmp_path: Path,
    own: Cell,
    *,
    target: str = "Qwen/Qwen3-4B",
    host: object = H800,
    title: str = COLUMN,
    **request: object,
) -> Reproduced:
    """A table of one cell, DLite's speed-up, from one run on `host`."""
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    model = {"dtype": "torch.bfloat16", "drafters": {"none": "0", "dlite": "sha256:abc"}}
    (run / "manifest.json").write_text(json.dumps({"schema": 4, "host": host, "model": model}))
    wanted = plan("table3", Request(target=target, **request))  # type: ignore[arg-type]
    table = Table(
        "table3",
        "Table 3",
        target,
        "Qwen3-4B",
        [title],
        ["none", "ngram", "dlite"],
        ["speedup", "tau"],
        {("dlite", "speedup", title): own, ("ngram", "speedup", title): own, ("none", "speedup", title): own},
    )
    return Reproduced(wanted, [table], [run])


def only(found: Reproduced) -> Versus:
    """The one line; fails if methods or figures that the paper does not have got one too."""
    (line,) = versus_paper(found)
    return line


@pytest.mark.parametrize(
    ("low", "high", "said", "reasons"),
    [
        (2.2, 2.5, "inside", ()),
        (2.5, 2.7, "above", ("decoding alone, as the paper's is taken to be",)),
        (1.9, 2.1, "below", ("decoding alone, as the paper's is taken to be",)),
    ],
)
def test_verdicts_under_the_papers_conditions(
    tmp_path: Path, low: float, high: float, said: str, reasons: tuple[str, ...]
) -> None:
    """A difference on the paper's own target and GPU leaves nothing to explain it but what the figure is of."""
    line = only(done(tmp_path, cell((low + high) / 2, low, high)))
    assert (line.method, line.figure, line.column, line.paper) == ("DLite", "speed-up", COLUMN, "2.37")
    assert (line.verdict, line.reasons) == (said, reasons)
    assert f"[{low:.2f}, {high:.2f}]" in line.ours


def test_reasons_that_can_be_told(tmp_path: Path) -> None:
    """Another target, a stand-in, another machine, few rollouts, turns left out: each is named, none is guessed."""
    own = cell(1.2, 0.9, 1.6, clusters=3, judged=False, left_out=2)
    host = {"gpus": [], "cpu": "EPYC", "threads": 2}
    line = only(done(tmp_path, own, target="smollm2-135m", embedded=True, host=host, title="BFCL-v3 (stand-in)"))
    assert line.verdict == "not comparable"
    assert line.reasons == (
        "another target",
        "generated stand-in",
        "decoding alone, as the paper's is taken to be",
        "another machine",
        "only 3 independent rollouts",
        "2 turns left out",
    )


def test_a_changed_setting_is_a_reason_and_a_condition(tmp_path: Path) -> None:
    """k = 3 instead of the paper's 7: verdicts are off, and the page says by which setting."""
    found = done(tmp_path, cell(1.2, 1.1, 1.3, judged=False), assignments=["decode.k=3"])
    assert "other settings" in only(found).reasons
    assert [how for what, how in conditions(found) if what == "not the preset's"] == found.plan.changed != []


def test_conditions_name_what_differs(tmp_path: Path) -> None:
    """Machine, numbers and checkpoints come from the manifest; what the paper leaves open is told apart."""
    facts = conditions(done(tmp_path, cell(2.3, 2.2, 2.5), target="Qwen/Qwen3-1.7B"))
    assert ("target", "Qwen/Qwen3-1.7B; the paper's: Qwen3-4B, Qwen3-8B") in facts
    assert ("machine", "NVIDIA H800 PCIe, Xeon, 8 threads; the paper's is H800") in facts
    assert ("numbers", "bfloat16; the paper does not say") in facts
    assert ("drafters", "dlite sha256:abc; the paper does not name its checkpoints") in facts
    assert any(what == "left open by the paper" for what, _ in facts)


def test_a_machine_that_is_not_told_is_no_reason(tmp_path: Path) -> None:
    """Fails if a table of servers, whose manifest knows the client's machine alone, is called another machine's."""
    found = done(tmp_path, cell(2.6, 2.5, 2.7), host=None)
    assert "another machine" not in only(found).reasons
    assert not any(what == "machine" for what, _ in conditions(found))


def test_what_is_missing_stands_with_its_command(tmp_path: Path) -> None:
    """A cell nobody measured gives its reason, the page the command; a cell the paper lacks is not called missing."""
    command = "dlite is missing: no checkpoint; add it with: agentbench-spec reproduce table3 --drafter dlite=X"
    found = replace(done(tmp_path, Cell(missing="no checkpoint")), missing=[command])
    line = only(found)
    assert (line.verdict, line.ours, line.reasons) == ("not measured", "-", ("no checkpoint",))
    _, _, missing = versus_sheets(found)
    assert missing.lines == [
        ("dlite", "no checkpoint; add it with: agentbench-spec reproduce table3 --drafter dlite=X")
    ]
    other = only(done(tmp_path, replace(cell(2.3, 2.2, 2.5), paper=None, verdict="unknown"), target="Qwen/Qwen3-1.7B"))
    assert other.verdict == "not comparable" and "the paper has not this target" in other.reasons
    unknown = only(done(tmp_path, replace(cell(2.3, 2.2, 2.5), paper=None, verdict="unknown")))
    assert (unknown.paper, unknown.verdict, unknown.reasons) == ("unknown", "not published", ())


def test_page_and_markdown_say_the_same(tmp_path: Path) -> None:
    """Every verdict in use is explained below the table, unused ones are not; the page marks it by a tone."""
    sheets = versus_sheets(done(tmp_path, cell(2.6, 2.5, 2.7)))
    text = markdown(sheets[0])
    assert "1 cells: 1 above" in text and "above: our interval lies" in text and "below: our" not in text
    (row,) = versus_grids(sheets)[0].rows
    assert [(own.text, own.tone) for own in row][4] == ("above", "warn")
