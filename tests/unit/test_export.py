"""Tables as CSV, parquet, LaTeX and markdown."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from rowkit import make_row
from test_tables import bfcl, table

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.export import (
    Sheet,
    csv_text,
    latex,
    markdown,
    sheet,
    summary_sheet,
    write_summary,
    write_tables,
)
from agentbench_spec.results.summary import summarise
from agentbench_spec.results.tables import Column


def test_latex_by_hand() -> None:
    """Fails if a special character or a cell that begins with "[" breaks the document."""
    found = Sheet(
        "50 % & more",
        ("method", "figure", "BFCL_v3"),
        [("DLite", "τ raw", "[x]"), ("", "  paper", "2 ~ 3")],
        ("n_1",),
        labels=2,
    )
    assert latex(found).splitlines() == [
        "% 50 % & more",
        "% n_1",
        r"\begin{tabular}{llr}",
        r"\toprule",
        r"method & figure & BFCL\_v3 \\",
        r"\midrule",
        r"\multirow{2}{*}{DLite} & $\tau$ raw & {[x]} \\",
        r" & paper & 2 \textasciitilde{} 3 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_markdown_by_hand() -> None:
    """Fails if a bar in a cell adds a column, or notes are lost."""
    found = Sheet("T", ("a", "b"), [("1|2", "3")], ("note",))
    assert markdown(found) == "### T\n\n| a | b |\n| --- | --- |\n| 1\\|2 | 3 |\n\n- note\n"


def test_csv_has_both_weightings_and_the_papers_value(tmp_path: Path) -> None:
    """Fails if pooled and macro are not both there under their names, or an unknown value becomes 0."""
    found = table(Column("BFCL-v3", bfcl(), "BFCL-v3"))
    files = write_tables([found], tmp_path, "table3")
    assert sorted(file.suffix for file in files) == [".csv", ".md", ".parquet", ".tex"]
    read = pd.read_csv(tmp_path / "table3.csv").set_index(["drafter", "figure"])
    row = read.loc[("dspark", "tau_raw")]
    cell = found.cell("dspark", "tau_raw", "BFCL-v3")
    assert (row["pooled"], row["macro"]) == (2.8, 3.0) and cell.interval and cell.macro_interval
    assert (row["low"], row["high"]) == pytest.approx((cell.interval.low, cell.interval.high))
    assert (row["macro_low"], row["macro_high"]) == pytest.approx((cell.macro_interval.low, cell.macro_interval.high))
    assert pd.isna(row["paper"]) and row["verdict"] == "unknown" and row["clusters"] == 2
    assert read.loc[("dlite", "speedup")]["paper"] == 2.37
    assert read.loc[("dflash", "tau")]["missing"] == "no checkpoint" and pd.isna(read.loc[("dflash", "tau")]["pooled"])
    typed = pd.read_parquet(tmp_path / "table3.parquet")
    assert typed["pooled"].dtype == "float64" and len(typed) == len(read)


def test_same_rows_give_the_same_bytes() -> None:
    """Fails if an interval is drawn by chance, so that two exports of one run differ."""
    first, second = (csv_text([table(Column("BFCL-v3", bfcl(), "BFCL-v3"))]) for _ in range(2))
    assert first == second


def test_methods_carry_the_papers_names() -> None:
    """Fails if a printed table speaks of entry points."""
    lines = sheet(table(Column("BFCL-v3", bfcl(), "BFCL-v3"))).lines
    assert {line[0] for line in lines} == {"autoregressive", "DFlash", "DSpark", "DLite", ""}


def test_any_runs_summary_can_be_exported() -> None:
    """Fails if macro and pooled of a run's own table are not both in it."""
    found = summary_sheet(summarise([make_row("a", matched=[3, 0]), make_row("b", matched=[0])]), "run")
    assert found.lines[0][0] == "ngram"
    assert [cell.partition(" [")[0] for cell in found.lines[0][1:3]] == ["2.00", "1.75"]
    assert all("[" in cell for cell in found.lines[0][1:5])
    assert latex(found).count(r"\\") == 2 and markdown(found).startswith("### run")


def test_names_full_of_markup_stay_text() -> None:
    """Fails if a drafter's name is read as markup, or an error of several lines breaks a table or leaves a comment."""
    names = ("*a|b<c>", "_x_ `y`", "my_drafter:make", "two\nlines")
    found = Sheet("T\n\\end{document}", ("m", "f"), [(name, "1") for name in names], ("a\nb",))
    assert latex(found).splitlines() == [
        r"% T \end{document}",
        "% a b",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"m & f \\",
        r"\midrule",
        r"{*a\textbar{}b\textless{}c\textgreater{}} & 1 \\",
        r"\_x\_ `y` & 1 \\",
        r"my\_drafter:make & 1 \\",
        r"two lines & 1 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
    assert markdown(found).splitlines()[4:] == [
        r"| \*a\|b\<c> | 1 |",
        r"| \_x\_ \`y\` | 1 |",
        r"| my_drafter:make | 1 |",
        r"| two lines | 1 |",
        "",
        "- a b",
    ]


def test_turns_left_out_stand_in_the_line(tmp_path: Path) -> None:
    """Fails if a table that is copied without its notes does not say that rows failed."""
    rows = [make_row("a", matched=[3, 0]), make_row("b", status="error", error="X: y")]
    assert summary_sheet(summarise(rows), "run").lines[0][-1] == "1 of 2"


@pytest.mark.parametrize("ending", ["csv", "md", "tex", "parquet"])
def test_a_folder_in_the_way_is_named_and_nothing_is_left(tmp_path: Path, ending: str) -> None:
    """Fails if the error names a temporary file, or that file stays behind."""
    path = tmp_path / f"t.{ending}"
    path.mkdir()
    with pytest.raises(ConfigError, match=rf"t\.{ending} is a folder; name a file"):
        write_summary(summarise([make_row("a", matched=[3])]), "run", path)
    assert list(tmp_path.iterdir()) == [path]
