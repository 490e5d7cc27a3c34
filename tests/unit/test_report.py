"""The HTML report: nothing is loaded, everything is labelled and escaped, and what it says is what the rows say."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reportkit import MANIFEST, timed, two_rollouts, write_run
from rowkit import make_row
from test_plots import contrast
from typer.testing import CliRunner

from agentbench_spec.cli import app
from agentbench_spec.errors import ConfigError
from agentbench_spec.report.figure_files import write_figures
from agentbench_spec.report.grids import Grid, number, size, word
from agentbench_spec.report.page import build_report
from agentbench_spec.report.plots import FIGURES, ThroughputPoint
from agentbench_spec.report.throughput_words import throughput_findings

VOID = {"meta", "link", "br", "img", "input", "hr"}
HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"


@dataclass
class Element:
    """One element of the page."""

    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    own_text: list[str] = field(default_factory=list)

    def all(self, tag: str) -> Iterator[Element]:
        """Every element called `tag` below this one, in document order."""
        for child in self.children:
            if child.tag == tag:
                yield child
            yield from child.all(tag)

    @property
    def text(self) -> str:
        """All text below, spaces collapsed."""
        return " ".join(" ".join([*self.own_text, *(child.text for child in self.children)]).split())


class Tree(HTMLParser):
    """A strict tree: an end tag that closes anything but the innermost element is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].own_text.append(data)


def parse(page: str) -> Element:
    """The page as a tree; fails where it is not well nested."""
    tree = Tree()
    tree.feed(page)
    assert tree.open == [tree.root], f"<{tree.open[-1].tag}> is never closed"
    return tree.root


def table(root: Element, caption: str) -> Element:
    """The table with this caption."""
    return next(t for t in root.all("table") if next(t.all("caption")).text == caption)


def cells(table: Element) -> list[list[str]]:
    """Text of the cells of each body row."""
    return [[cell.text for cell in row.children] for row in next(table.all("tbody")).all("tr")]


def facts(root: Element) -> dict[str, str]:
    """Every name and value of the page's definition lists."""
    return {next(pair.all("dt")).text: next(pair.all("dd")).text for dl in root.all("dl") for pair in dl.children}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report over two runs, one of them with a loop, a failure, a tie and hostile names."""
    folder = tmp_path_factory.mktemp("runs")
    awkward = [
        *two_rollouts(HOSTILE),
        timed("r2", 0, "none", [0, 0], (0, 9, 0.5, 0, 0.5), degenerate=True),
        timed("r2", 0, HOSTILE, [1], (1, 9, 0.5, 0, 0.5), k=3, identical=False, divergence="tie", divergence_at=3),
        make_row("r2", 1, HOSTILE, k=3, status="error", error=f"broke: {HOSTILE}"),
    ]
    runs = [
        write_run(folder / "plain", two_rollouts()),
        write_run(folder / "awkward", awkward, notes=[HOSTILE], host=MANIFEST["host"] | {"cpu": HOSTILE}),
    ]
    own = Grid("Table of ours", ("drafter", "x"), ((word(HOSTILE), number(1.5)),))
    return build_report(runs, tables=[own], throughput=[ThroughputPoint(HOSTILE, 1, 2.0)])


@pytest.fixture(scope="module")
def root(page: str) -> Element:
    return parse(page)


def test_page_loads_nothing(page: str, root: Element) -> None:
    """Fails if the page names an address, loads a file, or lets a browser load one."""
    assert not re.search(r"(?:https?:)?//[a-z]|@import|url\((?!#)", page)
    loaders = ("link", "img", "iframe", "object", "embed", "audio", "video", "source", "base", "form")
    assert [tag for tag in loaders if any(root.all(tag))] == []
    assert all("src" not in script.attributes for script in root.all("script"))
    policy = next(m.attributes["content"] for m in root.all("meta") if "http-equiv" in m.attributes)
    assert policy.startswith("default-src 'none';")


def test_values_are_escaped(page: str, root: Element) -> None:
    """Fails if a name, an error, a note or the manifest can add an element; one script is ours."""
    assert len(list(root.all("script"))) == 1 and "<img" not in page
    assert HOSTILE in cells(table(root, "Turns left out"))[-1][2]
    assert facts(root)["Machine"].startswith(HOSTILE)
    manifest = list(root.all("pre"))[1].text
    assert json.loads(manifest)["host"]["cpu"] == HOSTILE


def test_headings_run_in_order(root: Element) -> None:
    """Fails if a level is skipped, or the page has no single top heading."""
    found = re.findall(r"h[1-6]", " ".join(_tags(root)))
    assert found.count("h1") == 1 and found[0] == "h1"
    assert all(int(b[1]) <= int(a[1]) + 1 for a, b in itertools.pairwise(found))


def _tags(element: Element) -> Iterator[str]:
    for child in element.children:
        yield child.tag
        yield from _tags(child)


def test_ids_are_unique_and_labels_exist(root: Element) -> None:
    """Fails if two runs' figures share an id, or a label points nowhere."""
    elements = list(_all(root))
    ids = [e.attributes["id"] for e in elements if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    named = [
        e.attributes[name] for e in elements for name in ("aria-labelledby", "aria-describedby") if name in e.attributes
    ]
    links = [e.attributes["href"][1:] for e in root.all("a")]
    assert named and links and set(named) | set(links) <= set(ids)


def _all(element: Element) -> Iterator[Element]:
    for child in element.children:
        yield child
        yield from _all(child)


def test_every_figure_is_labelled_and_brings_its_numbers(root: Element) -> None:
    """Fails if a figure cannot be read without seeing it."""
    figures = list(root.all("figure"))
    assert len(figures) == 2 * len(FIGURES) + 1
    for figure in figures:
        svg = next(figure.all("svg"))
        assert svg.attributes["role"] == "img" and svg.attributes["aria-labelledby"]
        assert "viewBox".lower() in svg.attributes and "width" not in svg.attributes
        assert next(svg.all("title")).text and next(svg.all("desc")).text
        assert next(figure.all("figcaption")).text and cells(next(figure.all("table")))


def test_the_page_opens_with_what_was_found(root: Element) -> None:
    """Fails if a figure or a table comes before the sentences, or a page over several runs lacks those of one."""
    sections = list(root.all("section"))
    first = next(sections[1].all("dl"))
    assert first.attributes["class"] == "findings" and next(first.all("dt")).text == "Speed"
    assert next(first.all("dd")).text.startswith("ngram is faster than plain decoding: 2.50x [")
    order = [e.tag for e in _all(sections[1]) if e.tag in ("dl", "table", "figure")]
    assert order[0] == "dl"
    overview = next(sections[0].all("dl"))
    assert [dt.text for dt in overview.all("dt")] == ["plain", "awkward"]
    assert [next(dt.all("a")).attributes["href"] for dt in overview.all("dt")] == ["#run-1", "#run-2"]
    assert HOSTILE in list(overview.all("dd"))[1].text


def test_figures_stand_in_the_order_in_which_one_asks(root: Element) -> None:
    """Fails if the draft-KV figure is not the first, or bars of the whole run come before figures by context."""
    captions = [next(figure.all("figcaption")).text for figure in list(root.all("section"))[1].all("figure")]
    assert captions[:7] == [
        "Draft-KV maintenance by context",
        "Speed-up by context",
        "Where the time of a token goes, by context",
        "τ against context length",
        "τ against turn",
        "Acceptance by draft position",
        "Drafter state by context",
    ]


def test_keys_name_what_the_marks_belong_to(root: Element) -> None:
    """Fails if a method in a key has no mark to hide, or a figure told apart by colour has no key."""
    keyed = [figure for figure in root.all("figure") if any(e.attributes.get("class") == "key" for e in _all(figure))]
    assert len(keyed) == 2 * 5 + 1
    for figure in keyed:
        methods = [e.attributes["data-method"] for e in _all(figure) if "data-method" in e.attributes]
        assert methods and set(methods) == {
            e.attributes["data-series"] for e in _all(figure) if "data-series" in e.attributes
        }


def test_headings_are_printed_on_every_page(page: str) -> None:
    """Fails if a long table is printed on with nameless columns: browsers repeat an unbroken header group only."""
    printed = page[page.index("@media print{body") :].partition("</style>")[0]
    assert "thead{display:table-header-group}" in printed
    assert re.search(r"[^{}]*\bthead\b[^{}]*\{break-inside:avoid\}", printed)
    assert "th button{display:contents}" in printed, "Chromium does not repeat a button"


def test_a_figure_without_data_is_left_out_and_named(tmp_path: Path) -> None:
    """Fails if a run of plain decoding has empty panels, or nobody says what is missing."""
    plain = [row for row in two_rollouts() if row.drafter == "none"]
    root = parse(build_report([write_run(tmp_path / "run", plain)]))
    captions = [next(figure.all("figcaption")).text for figure in root.all("figure")]
    assert captions == [
        "Where the time of a token goes, by context",
        "Where the time of a token goes",
        "Plain decoding's step over the run",
    ]
    lines = [p.text for p in root.all("p") if p.text.startswith("Not drawn: ")]
    assert len(lines) == len(FIGURES) - 3 and lines[0].startswith("Not drawn: draft-KV maintenance by context needs")
    assert "Only plain decoding was run, 10.0 ms a token" in root.text


def test_passes_over_many_rollouts_say_who_is_ahead_and_where() -> None:
    """Fails if overlapping intervals name a winner, or only one end of the concurrencies is told."""
    points = [ThroughputPoint("none", 1, 30.0, 29.0, 31.0), ThroughputPoint("ngram", 1, 45.0, 44.0, 46.0)]
    points += [ThroughputPoint("none", 8, 200.0, 190.0, 210.0), ThroughputPoint("ngram", 8, 205.0, 195.0, 215.0)]
    first, last = throughput_findings(points)
    assert (first.topic, last.topic) == ("1 at once", "8 at once")
    assert first.text == (
        "ngram has the highest throughput, 45.0 tokens/s [44.0, 46.0]. The others: none 30.0 tokens/s [29.0, 31.0]."
    )
    assert last.text.endswith("205.0 tokens/s [195.0, 215.0]; its interval does not tell it apart from none.")
    assert throughput_findings(points[:1]) == []


def test_tables_have_captions_and_scoped_headers(root: Element) -> None:
    """Fails if a header has no scope, a row no header, or a row another number of cells than the head."""
    tables = list(root.all("table"))
    assert len(tables) > 20
    for each in tables:
        assert next(each.all("caption")).text
        heads = list(next(each.all("thead")).all("th"))
        assert {head.attributes["scope"] for head in heads} == {"col"}
        for row in next(each.all("tbody")).all("tr"):
            assert row.children[0].tag == "th" and row.children[0].attributes["scope"] == "row"
            assert len(row.children) == len(heads)


def test_what_scrolls_can_be_reached_by_keyboard(root: Element) -> None:
    """Fails if a wide table or the manifest cannot be scrolled without a mouse."""
    boxes = [e for e in _all(root) if e.attributes.get("class") == "scroll" or e.tag == "pre"]
    assert boxes and all(e.attributes.get("tabindex") == "0" and "role" in e.attributes for e in boxes)


def test_cells_sort_by_value_and_missing_ones_have_none(root: Element) -> None:
    """Fails if "1.4 MiB" would be sorted as text, or a missing value as zero."""
    rows = list(next(table(root, "Figures by drafter").all("tbody")).all("tr"))
    baseline, own = (dict(zip(_heads(root), row.children, strict=True)) for row in rows)
    assert own["state, largest"].text == "8.0 KiB" and float(own["state, largest"].attributes["data-sort"]) == 8192
    assert float(own["speed-up [95 %]"].attributes["data-sort"]) == pytest.approx(2.5)
    assert baseline["drafter"].text == "none"
    part = table(root, "Turns that part from plain decoding")
    margin = list(part.all("td"))[-1]
    assert margin.text == "–" and "data-sort" not in margin.attributes


def _heads(root: Element) -> list[str]:
    return [head.text for head in next(table(root, "Figures by drafter").all("thead")).all("th")]


def test_card_says_how_near_the_baseline_is_to_the_ceiling(tmp_path: Path) -> None:
    """A floor of 5 ms under a step of 10 ms is 50 %; fails if the share is turned round or taken from another clock."""
    page = build_report([write_run(tmp_path / "run", two_rollouts())])
    root = parse(page)
    assert facts(root)["Fastest possible step"] == "5.0 ms"
    assert facts(root)["Baseline step, measured"] == "10.0 ms"
    assert "The baseline runs at 50.0 % of the speed the memory allows." in root.text
    assert facts(root)["Workload"] == "toy, subset = small"
    assert facts(root)["KV per token"] == "512 B"
    headings = [h.text for h in root.all("h3")]
    assert headings[:3] == ["Findings", "Figures", "Benchmark card"], "the card comes before any table"
    assert "Plain decoding, which speed-ups are over, runs at 50.0 % of the speed the memory allows." in root.text


def test_a_card_nobody_measured_is_said_to_be_missing(tmp_path: Path) -> None:
    """Fails if an unknown ceiling is drawn as 0 % or stops the report."""
    root = parse(build_report([write_run(tmp_path / "run", two_rollouts(), card=None, host=None)]))
    assert "was not measured" in root.text and "% of the speed" not in root.text
    assert facts(root)["Memory reads"] == "–" and facts(root)["Machine"] == "–"


def test_turns_left_out_are_listed_with_the_reason(root: Element) -> None:
    """Fails if a loop or a failure disappears without a word."""
    listed = cells(table(root, "Turns left out"))
    assert [(row[0], row[1], row[3]) for row in listed] == [("r2", "0", "degenerate"), ("r2", "1", "error")]
    assert "broke:" in listed[1][4] and "repetition loop" in listed[0][4]
    grouped = cells(table(root, "Turns left out, by reason"))
    assert [(row[0], row[2], row[4]) for row in grouped] == [("degenerate", "1", "1"), ("error", "1", "1")]
    assert (grouped[0][3], grouped[0][5], grouped[1][3]) == ("none", "r2 turn 0", HOSTILE)


def test_losslessness_counts_ties_and_a_bug_voids_the_run(tmp_path: Path) -> None:
    """Fails if a run that is void looks like any other."""
    rows = two_rollouts()
    rows[1].identical, rows[1].divergence, rows[1].divergence_at, rows[1].divergence_margin = False, "error", 2, 1.5
    root = parse(build_report([write_run(tmp_path / "run", rows)]))
    banner = next(p for p in root.all("p") if p.attributes.get("class") == "banner bad")
    assert banner.text.startswith("This run is void: 1 output differs")
    assert cells(table(root, "Outputs compared with plain decoding"))[1] == ["ngram", "4", "3", "0", "1"]
    assert cells(table(root, "Turns that part from plain decoding")) == [["r0", "0", "ngram", "error", "2", "1.5"]]


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    """Fails if a killed run's figures pass for the whole, or if its torn last line stops the report."""
    folder = write_run(tmp_path / "run", two_rollouts(), finish=False)
    with (folder / "turns.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"schema": 1, "workl')
    assert "This run is not finished" in parse(build_report([folder])).text


def test_several_runs_stand_side_by_side_and_are_not_averaged(root: Element) -> None:
    """Fails if a run has no row of its own in the overview."""
    listed = cells(table(root, "All runs"))
    assert [row[0] for row in listed] == ["plain", "plain", "awkward", "awkward"]
    assert [next(section.all("h2")).text for section in root.all("section")] == ["All runs", "plain", "awkward"]


def test_what_cannot_be_reported_is_refused(tmp_path: Path) -> None:
    """Fails if no run, an empty one, or a mix of conditions gives a page."""
    with pytest.raises(ConfigError, match="at least one run"):
        build_report([])
    with pytest.raises(ConfigError, match="holds no run"):
        build_report([tmp_path])
    with pytest.raises(ConfigError, match="no rows yet"):
        build_report([write_run(tmp_path / "empty", [], finish=False)])
    passes = write_run(tmp_path / "passes", [], finish=False)
    (passes / "throughput.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="reproduce table4"):
        build_report([passes])
    mixed = [make_row("r0", 0, matched=[1]), make_row("r0", 1, matched=[1], temperature=1.0)]
    with pytest.raises(ConfigError, match="temperature"):
        build_report([write_run(tmp_path / "mixed", mixed, finish=False)])
    run = write_run(tmp_path / "run", two_rollouts())
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(ConfigError, match="given twice"):
        build_report([run, tmp_path / "link"])


def test_runs_of_one_name_keep_their_figures_and_names_apart(tmp_path: Path) -> None:
    """Fails if the figures of old/run are overwritten by those of new/run, or a reader cannot tell the two."""
    runs = [write_run(tmp_path / name / "run", two_rollouts()) for name in ("old", "new")]
    saved = write_figures(runs, tmp_path / "figures", formats=["svg"])
    assert len(set(saved)) == len(saved) and {path.parent.name for path in saved} == {"old-run", "new-run"}
    text = parse(build_report(runs)).text
    assert "old-run" in text and "new-run" in text


def test_turns_left_out_are_said_where_runs_stand_side_by_side(tmp_path: Path) -> None:
    """Fails if the table over several runs hides that rows of one of them failed."""
    rows = two_rollouts()
    rows[-1] = make_row("r1", 1, "ngram", k=3, status="error", error="X: y")
    runs = [write_run(tmp_path / "good", two_rollouts()), write_run(tmp_path / "bad", rows)]
    overview = build_report(runs).partition("All runs")[2].partition("</table>")[0]
    assert overview.count("3 of 4") == 1


def test_text_has_contrast_on_both_pages(page: str) -> None:
    """Fails if a text colour of a theme falls under 4.5:1 on a surface it stands on."""
    themes = re.findall(r":root\{([^}]*)\}", page)[:2]
    assert len(themes) == 2
    for theme in themes:
        colour = {name: _long(value) for name, value in re.findall(r"--([\w-]+):(#[0-9a-f]{3,6})", theme)}
        for text in ("ink", "muted", "link", "bad", "warn", "good"):
            for surface in ("page", "panel"):
                assert contrast(colour[text], colour[surface]) >= 4.5, (text, surface)
        assert contrast(colour["bad"], colour["bad-page"]) >= 4.5
        assert contrast(colour["warn"], colour["warn-page"]) >= 4.5


def _long(colour: str) -> str:
    return colour if len(colour) == 7 else "#" + "".join(2 * digit for digit in colour[1:])


def test_sizes_and_missing_values() -> None:
    """Fails if a size jumps a unit, or nothing measured is printed as zero."""
    assert [size(n).text for n in (None, 0, 1023, 1024, 1536 * 1024)] == ["–", "0 B", "1,023 B", "1.0 KiB", "1.5 MiB"]
    assert number(None).text == "–" and number(0.0).text == "0.00"


def test_the_command_writes_the_page(tmp_path: Path) -> None:
    """Fails if the default path is not inside the run."""
    run = write_run(tmp_path / "run", two_rollouts())
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["report"] == str(run / "report.html") and (run / "report.html").is_file()


def test_the_command_names_a_folder_that_holds_no_run(tmp_path: Path) -> None:
    """Fails if the user gets a traceback, or exit code 0."""
    done = CliRunner().invoke(app, ["report", str(tmp_path / "missing")])
    assert done.exit_code == 2 and "holds no run" in done.stderr
