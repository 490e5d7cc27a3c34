"""Reports as a reader has them: drawn in Chromium at three widths, light and dark, and searched for faults.

usage: python scripts/look_at_reports.py OUT [RUN ...] [--axe node_modules/axe-core/axe.min.js]

Writes the page of each run (default: all under results/recorded) and a screenshot for each width and theme into OUT,
and prints what is wrong with them: sideways scrolling, texts of a figure that overlap or leave it, panels without a
mark, a mark without a value, a key that hides nothing, and, with axe-core, every rule that is broken. The exit code is
1 if anything is. Look at the screenshots, too.

Needs `pip install playwright`, Chromium (`apt-get install chromium`), and for --axe `npm install axe-core`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentbench_spec.report.page import write_report

WIDTHS, THEMES = (390, 1280, 1440), ("light", "dark")
ROOT = Path(__file__).parents[1]

FAULTS = """() => {
  const found = [], name = e => e.closest("figure").querySelector("figcaption").textContent;
  if (document.documentElement.scrollWidth > innerWidth) found.push("the page scrolls sideways");
  for (const svg of document.querySelectorAll(".chart svg")) {
    const box = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].filter(t => t.textContent.trim())
      .map(t => [t.textContent.trim(), t.getBoundingClientRect()]);
    texts.forEach(([one, a], i) => {
      if (a.left < box.left - 1 || a.right > box.right + 1 || a.top < box.top - 1 || a.bottom > box.bottom + 1)
        found.push(`${name(svg)}: "${one}" leaves the figure`);
      if (a.height < 8) found.push(`${name(svg)}: "${one}" is ${a.height.toFixed(1)} px high`);
      for (const [other, b] of texts.slice(i + 1))
        if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
            && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
          found.push(`${name(svg)}: "${one}" lies over "${other}"`);
    });
    for (const panel of svg.querySelectorAll("g[id*='-axes_']"))
      if (!panel.querySelector(".mark, g[id*='legend']")) found.push(`${name(svg)}: a panel without a mark`);
  }
  for (const mark of document.querySelectorAll(".mark"))
    if (!mark.dataset.value) found.push(`${name(mark)}: a mark without a value`);
  return found;
}"""

KEYS = """() => {
  const found = [];
  for (const button of document.querySelectorAll(".key button")) {
    const marks = () => [...button.closest("figure").querySelectorAll("[data-series]")]
      .filter(mark => mark.dataset.series === button.parentElement.dataset.method && mark.getClientRects().length);
    const before = marks().length;
    button.click();
    const hidden = marks().length;
    button.click();
    if (!before || hidden || marks().length !== before) found.push(`${button.textContent}: the key hides nothing`);
  }
  return found;
}"""

AXE = """async () => {
  document.querySelectorAll("details").forEach(d => d.open = true);
  const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
  const result = await axe.run(document, {runOnly: tags});
  return result.violations.map(v => `axe ${v.id}: ${v.nodes[0].html.slice(0, 160)}`);
}"""


def faults(browser: Any, page_file: Path, shot: Path, *, width: int, theme: str, axe: str | None) -> Iterator[str]:
    """What is wrong with one page at one width and theme; its screenshot goes to `shot`."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    page.goto(page_file.as_uri())
    page.screenshot(path=shot, full_page=True)
    yield from page.evaluate(FAULTS)
    yield from page.evaluate(KEYS)
    if axe is not None:
        page.evaluate(axe)
        yield from page.evaluate(AXE)
    page.close()


def main() -> int:
    """Draw every run, print the faults, return the exit code."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("out", type=Path)
    arguments.add_argument("runs", type=Path, nargs="*")
    arguments.add_argument("--axe", type=Path, help="axe.min.js of axe-core")
    given = arguments.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium on this machine: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    axe = given.axe.read_text(encoding="utf-8") if given.axe else None
    runs = given.runs or sorted((ROOT / "results" / "recorded").iterdir())
    count = 0
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for run in runs:
            page = write_report([run], given.out / f"{run.name}.html")
            for width in WIDTHS:
                for theme in THEMES:
                    shot = given.out / f"{run.name}-{width}-{theme}.png"
                    for fault in faults(browser, page, shot, width=width, theme=theme, axe=axe):
                        count += 1
                        print(f"{run.name}, {width} px, {theme}: {fault}")
        browser.close()
    print(f"{len(runs) * len(WIDTHS) * len(THEMES)} screenshots in {given.out}, {count} faults")
    return int(bool(count))


if __name__ == "__main__":
    raise SystemExit(main())
