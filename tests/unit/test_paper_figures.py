"""Figures and tables as a paper takes them: fonts, widths, styles, bold values."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from reportkit import two_rollouts, write_run
from typer.testing import CliRunner

import agentbench_spec as ab
from agentbench_spec.cli import app
from agentbench_spec.report.plots import FIGURES, position_plot, speedup_bars
from agentbench_spec.report.plots.canvas import Plot
from agentbench_spec.report.plots.looks import Look
from agentbench_spec.results.export import Sheet, latex, sheet
from agentbench_spec.results.intervals import Interval
from agentbench_spec.results.tables import Cell, Table


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder that has data for every figure."""
    return write_run(tmp_path / "run", two_rollouts())


def bars() -> Plot:
    plot = speedup_bars(two_rollouts())
    assert plot is not None
    return plot


def streams(pdf: bytes) -> str:
    """The page's drawing commands."""
    parts = re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL)
    return b"".join(zlib.decompress(part) for part in parts if part[:1] == b"x").decode("latin-1")


def test_fonts_are_embedded_and_nothing_is_a_picture(run: Path, tmp_path: Path) -> None:
    """Fails if a publisher would refuse a pdf: a font of type 3, one that is only named, or a bitmap for vectors."""
    files = ab.write_figures(run, tmp_path / "out")
    pdfs = [path.read_bytes() for path in files if path.suffix == ".pdf"]
    assert len(pdfs) == len(FIGURES)
    for pdf in pdfs:
        assert b"/Subtype /CIDFontType2" in pdf and b"/FontFile2" in pdf
        assert b"/Type3" not in pdf and b"/Subtype /Image" not in pdf


@pytest.mark.skipif(shutil.which("pdffonts") is None, reason="pdffonts is missing: apt-get install poppler-utils")
def test_pdffonts_says_the_same(run: Path, tmp_path: Path) -> None:
    """The tool that publishers use: every font embedded."""
    for path in ab.write_figures(run, tmp_path / "out"):
        if path.suffix == ".pdf":
            said = subprocess.run(["pdffonts", str(path)], capture_output=True, text=True, check=True).stdout
            fonts = [line.split() for line in said.splitlines()[2:]]
            assert fonts and all(line[-5] == "yes" and "TrueType" in line for line in fonts)


@pytest.mark.parametrize(
    ("width", "points"), [("one-column", 241.2), ("two-column", 496.8), (4.0, 288.0), (None, 374.4)]
)
def test_widths_are_those_asked_for(width: str | float | None, points: float) -> None:
    """Fails if a figure has to be scaled in the paper, which scales its text."""
    (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) [\d.]+ \]", bars().pdf(Look.of(width)))
    assert float(box) == pytest.approx(points, abs=0.5)


def test_a_legend_of_many_methods_leaves_the_panel_its_width() -> None:
    """Fails if six methods in one column squeeze the panel, or their legend is cut at the figure's edge."""
    names = ("ngram", "suffix", "eagle3", "dflash", "dspark", "dlite")
    rows = [replace(row, drafter=name) for name in names for row in two_rollouts() if row.drafter == "ngram"]
    plot = position_plot(rows)
    assert plot is not None
    figure = plot._drawn(Look.of("one-column"), titled=True)
    figure.draw_without_rendering()
    panel, legend = figure.axes[0], figure.axes[0].get_legend()
    assert legend is not None and len(legend.get_texts()) == len(names)
    assert panel.get_window_extent().width > 0.7 * figure.bbox.width
    assert legend.get_window_extent().x1 <= figure.bbox.x1


def test_text_has_the_size_of_a_paper_and_no_title() -> None:
    """7.5 points of our 10 in one column; the title is the caption's business and stands in the file's facts."""
    plot = bars()
    sizes = {float(size) for size in re.findall(r"/F\d+ ([\d.]+) Tf", streams(plot.pdf(Look.of("one-column"))))}
    assert sizes and max(sizes) == 7.5
    drawn = {float(size) for size in re.findall(r"/F\d+ ([\d.]+) Tf", streams(plot.pdf()))}
    assert max(drawn) == 11.0  # the title of the page's own figure
    assert plot.title.encode() in plot.pdf(Look.of("one-column")) or b"/Title" in plot.pdf()


def test_the_same_rows_give_the_same_bytes() -> None:
    """Fails if a date or a random name makes a figure in a repository change by itself."""
    assert bars().pdf(Look.of("one-column")) == bars().pdf(Look.of("one-column"))


def test_styles_come_on_top(tmp_path: Path) -> None:
    """By mapping and by file the grid goes; the next figure, without a style, has it again."""
    style = tmp_path / "mine.mplstyle"
    style.write_text("axes.grid: False\n")
    plain = bars().pdf()
    bare = [bars().pdf(Look.of(None, given)) for given in ({"axes.grid": False}, style, str(style))]
    assert bare[0] == bare[1] == bare[2] != plain == bars().pdf()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"formats": ["gif"]}, "format 'gif': expected pdf, svg, png"),
        ({"width": "three-column"}, "expected one-column, two-column, or inches"),
        ({"width": 0.5}, "expected 2 to 20 inches"),
        ({"style": "no-such-style"}, "no .mplstyle file"),
        ({"style": {"axes.gird": False}}, "no setting axes.gird"),
    ],
)
def test_what_there_is_not(run: Path, tmp_path: Path, more: dict[str, object], why: str) -> None:
    """Fails if a slip of the pen is a traceback, or writes half of the files."""
    with pytest.raises(ab.ConfigError, match=re.escape(why)):
        ab.write_figures(run, tmp_path / "out", **more)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_the_command_writes_what_the_call_writes(run: Path, tmp_path: Path) -> None:
    """Same files, and their names in the last line."""
    flags = ["-o", str(tmp_path / "a"), "--format", "svg", "--width", "two-column"]
    done = CliRunner().invoke(app, ["figures", str(run), *flags])
    assert done.exit_code == 0, done.output
    files = ab.write_figures(run, tmp_path / "b", formats=["svg"], width="two-column")
    said = json.loads(done.stdout.splitlines()[-1])["files"]
    assert [Path(path).name for path in said] == [path.name for path in files]
    assert all(Path(one).read_bytes() == other.read_bytes() for one, other in zip(said, files, strict=True))
    assert CliRunner().invoke(app, ["figures", str(run), "-o", str(tmp_path / "c"), "--width", "wide"]).exit_code == 2


def cell(value: float, low: float, high: float) -> Cell:
    return Cell(value=value, interval=Interval(low=low, high=high, level=0.95, clusters=9, df=8.0))


def a_table() -> Table:
    """ngram is best; DLite's interval holds its value, EAGLE-3's does not. Tokens a second have no decimals."""
    cells = {
        ("none", "speedup", "BFCL-v3"): Cell(value=1.0),
        ("ngram", "speedup", "BFCL-v3"): cell(1.8, 1.5, 2.1),
        ("eagle3", "speedup", "BFCL-v3"): cell(1.4, 1.2, 1.6),
        ("dlite", "speedup", "BFCL-v3"): cell(1.7, 1.5, 1.9),
        ("none", "draft_kv_share", "BFCL-v3"): Cell(),
        ("ngram", "draft_kv_share", "BFCL-v3"): Cell(value=0.001),
        ("eagle3", "draft_kv_share", "BFCL-v3"): Cell(value=0.02),
        ("dlite", "draft_kv_share", "BFCL-v3"): Cell(value=0.003),
        ("none", "tokens_per_s", "BFCL-v3"): Cell(value=98.765),
        ("ngram", "tokens_per_s", "BFCL-v3"): Cell(value=123.4),
    }
    figures = ["speedup", "draft_kv_share", "tokens_per_s"]
    return Table("table3", "T", "t", "Qwen3-4B", ["BFCL-v3"], ["none", "ngram", "eagle3", "dlite"], figures, cells)


def test_bold_is_the_best_and_what_may_be_as_good() -> None:
    """Fails if a value is bold that its own interval tells apart from the best, a smaller share is not the better one,
    or the paper's values, which are others' measurements, compete."""
    bold = re.findall(r"\\textbf\{([^}]*?)\}", latex(sheet(a_table())))
    assert bold == ["1.80 [1.50, 2.10]", "0.1 \\%", "123", "1.70 [1.50, 1.90]"] or bold == [
        "1.80 [1.50, 2.10]",
        "0.1 \\",
        "123",
        "1.70 [1.50, 1.90]",
    ]


def test_decimals_are_equal_down_a_figure() -> None:
    """98.77 beside 123 could not be compared at a glance."""
    text = latex(sheet(a_table()))
    assert "& 99 " in text and "98.77" not in text


def test_methods_span_their_lines() -> None:
    """A name over three lines of figures and two of the paper's, once, with a rule before the next name."""
    text = latex(sheet(a_table()))
    assert r"\multirow{3}{*}{ngram}" in text and text.count("EAGLE-3") == 1
    assert text.count(r"\midrule") == 1 + 3
    assert re.search(r"\\begin\{tabular\}\{llr\}", text)


def test_names_are_escaped_in_bold_too() -> None:
    """Fails if a drafter called a_b breaks the author's document."""
    made = latex(Sheet("t", ("a_b", "c"), [("x_y", "1_2")], labels=1, best=frozenset({(0, 1)})))
    assert r"x\_y & \textbf{1\_2}" in made
