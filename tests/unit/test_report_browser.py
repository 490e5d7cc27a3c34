"""The report in a real browser: no layout fault on a phone or a desktop, tables sort, and axe-core finds nothing.

Needs Chromium; the accessibility check also needs axe-core (`npm install axe-core`), its axe.min.js named by the
environment variable AGENTBENCH_SPEC_AXE.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from reportkit import timed, two_rollouts, write_run

from agentbench_spec.report.grids import Grid, number, word
from agentbench_spec.report.page import write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
AXE = os.environ.get("AGENTBENCH_SPEC_AXE")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt-get install chromium)"),
]

_LAYOUT = """
const wide = [...document.querySelectorAll("body *")].filter(e =>
  !e.closest(".scroll, pre, svg, .hidden") && e.getBoundingClientRect().right > innerWidth + 1);
const small = [...document.querySelectorAll("svg text")].filter(e =>
  e.textContent.trim() && e.closest("figure") && e.getBoundingClientRect().height < 8);
const apart = [...document.querySelectorAll("thead tr")].filter(row =>
  [...row.cells].some(c => c.scrollWidth > c.clientWidth + 1));
const cut = [...document.querySelectorAll("caption span")].filter(e =>
  e.getBoundingClientRect().right > innerWidth + 1);
const lines = cell => { const text = new Range(); text.selectNodeContents(cell); return text.getClientRects().length; };
const tall = [...document.querySelectorAll("td")].filter(e => lines(e) > 3);
const stretched = ["table-2", ...(innerWidth > 1000 ? ["run-1-summary"] : [])].filter(id => {
  const box = document.getElementById(id).closest(".scroll");
  return box.scrollWidth > box.clientWidth; });
const table = document.querySelector("table"), head = table.tHead.rows[0].cells[1];
const order = () => [...table.tBodies[0].rows].map(row => row.cells[1].textContent);
const before = order();
head.querySelector("button").click(); const up = [order(), head.getAttribute("aria-sort")];
head.querySelector("button").click(); const down = [order(), head.getAttribute("aria-sort")];
found = {width: innerWidth, scroll: document.documentElement.scrollWidth, wide: wide.map(e => e.outerHTML.slice(0, 99)),
  small: small.map(e => e.textContent), cut: cut.map(e => e.textContent), tall: tall.map(e => e.textContent), stretched,
  apart: apart.map(e => e.textContent), before, up, down,
  page: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.querySelector("svg")).color};
"""

_AXE = """
document.querySelectorAll("details").forEach(d => d.open = true);
const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
const result = await axe.run(document, {runOnly: tags});
const violations = result.violations.map(v => v.id + ": " + v.nodes[0].html.slice(0, 200));
found = {passes: result.passes.length, violations};
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report over two runs, one of them with a long name, a loop and a tie."""
    folder = tmp_path_factory.mktemp("report")
    name = "my_package.drafters.long_module:make=checkpoints/a-very-long-folder-name"
    apart = {"identical": False, "divergence": "tie"}
    rows = [
        *two_rollouts(name),
        timed("a-rollout-with-a-rather-long-name-2", 0, "none", [0] * 4, (0, 9, 0.5, 0, 0.5), degenerate=True),
        timed("a-rollout-with-a-rather-long-name-2", 0, name, [1], (1, 9, 0.5, 0, 0.5), k=3, **apart),
    ]
    both = [*two_rollouts(), *(row for row in two_rollouts("suffix") if row.drafter == "suffix")]
    runs = [write_run(folder / "plain", both), write_run(folder / "a-run-with-a-longer-name", rows)]
    title = "A table of two columns whose title says much more than they do, so that it is wider than any phone by far"
    narrow = Grid(title, ("figure", "AgentMemoryBench"), ((word("speed-up"), number(1.0)),))
    return write_report(runs, folder / "report.html", tables=[narrow])


def inspect(report: Path, script: str, *, width: int, dark: bool, library: str = "") -> dict[str, Any]:
    """What `script` leaves in `found` on the page, shown in a frame, because a window has a least width."""
    tell = "parent.document.body.dataset.found = JSON.stringify(found);"
    code = f"{library}\n(async () => {{ let found; {script}\n{tell} }})();"
    page = report.read_text(encoding="utf-8")
    page = page.replace("</body>", f"<script>{code}</script></body>")
    frame = f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(page)}"></iframe>'
    shown = report.with_name(f"frame-{width}-{dark}.html")
    shown.write_text(f"<!doctype html><body>{frame}</body>", encoding="utf-8")
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,1000", "--virtual-time-budget=20000"]
    done = subprocess.run(
        [str(BROWSER), *flags, scheme, f"--user-data-dir={report.parent / 'profile'}", "--dump-dom", shown.as_uri()],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    left = re.search(r'data-found="([^"]*)"', done.stdout)
    assert left, f"the page's script did not finish: {done.stderr[-500:]}"
    value: dict[str, Any] = json.loads(html.unescape(left[1]))
    return value


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_page_fits_reads_and_sorts(report: Path, width: int, dark: bool) -> None:
    """Fails if the page scrolls sideways, figure text is under 8 px, headings overlap, or sorting does nothing.

    Also if a long caption widens a narrow table or leaves the screen, or columns off screen make rows tall.
    """
    found = inspect(report, _LAYOUT, width=width, dark=dark)
    assert found["width"] == width and found["scroll"] <= width
    assert (found["wide"], found["small"], found["apart"]) == ([], [], [])
    assert (found["cut"], found["tall"], found["stretched"]) == ([], [], [])
    assert found["page"] == ("rgb(22, 24, 29)" if dark else "rgb(255, 255, 255)")
    assert found["ink"] == ("rgb(232, 234, 238)" if dark else "rgb(29, 33, 39)")
    assert found["up"] == [sorted(found["before"]), "ascending"]
    assert found["down"] == [sorted(found["before"], reverse=True), "descending"]


_VALUES = """
const run = document.querySelectorAll("section")[1];
const figure = run.querySelectorAll("figure")[1], chart = figure.querySelector(".chart");
const tip = chart.querySelector(".tip"), press = key => chart.dispatchEvent(new KeyboardEvent("keydown", {key}));
chart.focus(); press("ArrowRight"); const first = tip.textContent, shown = !tip.hidden;
press("Escape"); const closed = tip.hidden;
const mark = chart.querySelector(".mark").getBoundingClientRect();
chart.dispatchEvent(new PointerEvent("pointermove", {clientX: mark.left + 3, clientY: (mark.top + mark.bottom) / 2}));
const pointed = tip.hidden ? null : tip.textContent;
const seen = mark => mark.getClientRects().length > 0;
const visible = own => [...own.querySelectorAll("svg [data-series=suffix]")].filter(seen).length;
const button = figure.querySelector(".key [data-method=suffix] button"), before = visible(figure);
button.click(); const after = [...run.querySelectorAll("figure")].map(visible), off = button.ariaPressed;
button.click();
found = {first, shown, closed, pointed, before, after, off, again: visible(figure), tab: chart.tabIndex};
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_values_show_and_methods_hide(report: Path, width: int) -> None:
    """Fails if a mark does not tell its numbers by pointer or keyboard, or a key does not hide its method."""
    found = inspect(report, _VALUES, width=width, dark=False)
    assert found["first"].startswith("ngram: context 512-1K, speed-up 2.5") and found["shown"] and found["closed"]
    assert found["pointed"] == found["first"] and found["tab"] == 0
    assert found["before"] > 0 and found["off"] == "false" and set(found["after"]) == {0}
    assert found["again"] == found["before"]


@pytest.mark.skipif(shutil.which("pdftotext") is None, reason="no pdftotext (apt-get install poppler-utils)")
def test_headings_repeat_on_every_printed_page(tmp_path: Path) -> None:
    """Fails if a table that goes on over a page has nameless columns there."""
    apart = {"identical": False, "divergence": "tie", "divergence_at": 3}
    ties = [timed(f"tie-{i}", 0, "ngram", [1], (1, 9, 0.5, 0, 0.5), k=3, **apart) for i in range(120)]
    page = write_report([write_run(tmp_path / "run", [*two_rollouts(), *ties])], tmp_path / "report.html")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    pdf = f"--print-to-pdf={tmp_path / 'report.pdf'}"
    subprocess.run([str(BROWSER), *flags, pdf, page.as_uri()], capture_output=True, timeout=240, check=True)
    text = subprocess.run(["pdftotext", "-layout", tmp_path / "report.pdf", "-"], capture_output=True, text=True).stdout
    pages = [each for each in text.split("\f") if "tie-" in each]
    assert len(pages) > 2 and all("output position" in each for each in pages)


@pytest.mark.skipif(not AXE, reason="AGENTBENCH_SPEC_AXE names no axe.min.js (npm install axe-core)")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(report: Path, width: int, dark: bool) -> None:
    """Fails with the rule and the element that breaks it."""
    found = inspect(report, _AXE, width=width, dark=dark, library=Path(str(AXE)).read_text(encoding="utf-8"))
    assert found["violations"] == [] and found["passes"] > 20
