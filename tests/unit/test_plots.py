"""Figures: the numbers they draw, the colours they draw them in, and the files and page elements they become."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from reportkit import timed, two_rollouts
from rowkit import make_row

from agentbench_spec.errors import MeasurementError
from agentbench_spec.report.plots import (
    FIGURES,
    Plot,
    ThroughputPoint,
    draft_kv_against_context,
    draw_all,
    drawn,
    histogram_plot,
    model_plot,
    phase_plot,
    phases_against_context,
    position_plot,
    speedup_against_context,
    speedup_bars,
    state_plot,
    tau_against_context,
    tau_against_turn,
    throughput_plot,
)
from agentbench_spec.report.plots.canvas import panels
from agentbench_spec.report.plots.marks import value_text
from agentbench_spec.report.plots.palette import DARK, INK, LIGHT, PAGE, styles
from agentbench_spec.report.plots.phases import phase_stacks
from agentbench_spec.report.plots.speed import speedup_models
from agentbench_spec.report.plots.whiskers import Whisker, draw_whiskers
from agentbench_spec.results.derived.by_context import tokens_text
from agentbench_spec.results.rows import TurnRow


def _plot(drawn: Plot | None) -> Plot:
    assert drawn is not None
    return drawn


# --- the numbers


def test_tau_by_context_is_pooled_in_octaves() -> None:
    """Fails if buckets are cut elsewhere than at powers of two, or if turns are averaged instead of pooled."""
    rows = [
        make_row("r0", 0, matched=[3], context_tokens=1023),
        make_row("r0", 1, matched=[0, 0, 0], context_tokens=1024),
        make_row("r1", 0, matched=[1], context_tokens=2047),
        make_row("r1", 1, matched=[5], context_tokens=None),
    ]
    data = _plot(tau_against_context(rows)).data
    assert [(row[1], row[2], row[5], row[6]) for row in data] == [
        ("512 to 1,023", 4.0, 1, 1),
        ("1,024 to 2,047", 1.25, 2, 2),
    ]
    assert data[0][3] is None and data[1][3] is not None, "one rollout has no interval, two have"


def test_tau_by_turn_leaves_out_loops_failures_and_the_baseline() -> None:
    """Fails if a row that is not in the headline figures is drawn."""
    rows = [
        make_row("r0", 0, "none", [0, 0]),
        make_row("r0", 0, matched=[1, 1]),
        make_row("r1", 0, matched=[7, 7], degenerate=True),
        make_row("r1", 1, status="error", error="broke"),
        make_row("r0", 1, matched=[3]),
    ]
    assert [row[:3] for row in _plot(tau_against_turn(rows)).data] == [("ngram", "1", 2.0), ("ngram", "2", 4.0)]


def test_turns_have_a_length_matched_tau_among_their_numbers() -> None:
    """τ 2 when short, 4 when long, the second turn shorter: plain τ falls, matched τ does not."""
    lengths = {0: ([1] * 8, [3] * 20), 1: ([1] * 8, [1] * 8, [3] * 20)}
    rows = [make_row(f"r{i}", turn, matched=own) for turn, each in lengths.items() for i, own in enumerate(each)]
    plot = _plot(tau_against_turn(rows))
    assert plot.columns[-1] == "τ, length-matched"
    first, second = plot.data
    assert first[2] > second[2] and first[-1] == pytest.approx(2 * 0.6 + 4 * 0.4) == second[-1]  # type: ignore[operator]


def test_a_drafter_slower_than_the_baseline_is_drawn_as_slow_as_it_is() -> None:
    """Field case 21: τ 2 and a round of 31.25 ms against a step of 10 is 0.64; fails if it is clipped."""
    rows = [
        timed("r0", 0, "none", [0] * 4, (0, 10, 0, 0, 0)),
        timed("r0", 0, "ngram", [1, 1], (0, 31.25, 0, 0, 0)),
    ]
    plot = _plot(speedup_bars(rows))
    axes = plot.draw().axes[0]
    assert plot.data == (("ngram", pytest.approx(0.64), None, None, 1),)
    assert axes.patches[0].get_width() == pytest.approx(0.64)  # type: ignore[attr-defined]
    assert "0.64" in [text.get_text() for text in axes.texts]
    assert any(np.allclose(line.get_xdata(), 1.0) for line in axes.lines), "the line at 1.0 is missing"


def test_the_line_at_one_does_not_cross_a_number() -> None:
    """A bar that ends just left of 1.0 has its number on the line. Fails if the line is drawn through it."""
    rows = [
        timed("r0", 0, "none", [0] * 4, (0, 10, 0, 0, 0)),
        timed("r0", 0, "ngram", [1, 1], (0, 20.6, 0, 0, 0)),
    ]
    figure = _plot(speedup_bars(rows)).draw()
    figure.draw_without_rendering()
    (axes,) = figure.axes
    number = next(text for text in axes.texts if text.get_text() == "0.97")
    line = next(line for line in axes.lines if np.allclose(line.get_xdata(), 1.0))
    behind = number.get_bbox_patch()
    assert behind is not None and number.get_zorder() > line.get_zorder()
    left, right = (axes.transData.inverted().transform(point)[0] for point in behind.get_window_extent().get_points())
    assert left < 1.0 < right, "the number is elsewhere, so this shows nothing"


def test_model_knows_two_passes_and_the_rest_is_the_gap() -> None:
    """τ 3, T(1) 9 ms, T(4) 10 ms, T_draft 1 ms: the model says 27/11; measured is 3 x 10 ms over 12 ms = 2.5."""
    (model,) = speedup_models(two_rollouts())
    assert model.predicted == pytest.approx(27 / 11)
    assert model.measured == pytest.approx(2.5)
    assert (model.tau, model.step_s, model.verify_s, model.draft_s) == pytest.approx((3, 0.009, 0.010, 0.001))
    assert _plot(model_plot(two_rollouts())).data[0][5] == pytest.approx(27 / 11)


def test_phases_are_per_output_token_and_a_null_phase_stays_null() -> None:
    """Fails if the prefill token is not counted, or if a fused ingest is drawn as zero seconds and passed over."""
    rows = two_rollouts()
    fused = [timed("r0", 0, "fused", [2, 2], (1, 10, 0.5, 0.25, 0.25), k=3, draft_ingest_s=None)]
    stacks = {stack.drafter: stack.seconds_per_token for stack in phase_stacks([*rows, *fused])}
    assert stacks["ngram"]["verify"] == pytest.approx(0.020 / 7)
    assert stacks["ngram"]["prefill"] == pytest.approx(0.05 / 7)
    assert stacks["fused"]["ingest"] is None
    plot = _plot(phase_plot([*rows, *fused]))
    assert "Not measured, and not drawn: fused: ingest." in plot.description
    assert plot.data[2][2] is None


def test_state_is_drawn_against_the_text_that_went_through_the_target() -> None:
    """Fails if the anchor, which no drafter has seen, is counted."""
    row = make_row("r0", 0, matched=[2, 2], context_tokens=100, draft_state_bytes=2048)
    plot = _plot(state_plot([row]))
    assert plot.data == (("ngram", 106, 2048),)


def test_states_far_apart_share_a_figure_that_shows_both() -> None:
    """Fails if a state of 2 KiB is flattened to nothing beside one of 1 GiB, or if zero bytes break the axis."""
    rows = [
        make_row("r0", 0, name, [1], context_tokens=10, draft_state_bytes=state)
        for name, state in (("tiny", 0), ("small", 2048), ("large", 1 << 30))
    ]
    axes = _plot(state_plot(rows)).draw().axes[0]
    assert axes.get_yscale() == "symlog"
    heights = [axes.transData.transform((0, size))[1] for size in (0, 2048, 1 << 30)]
    assert heights[1] - heights[0] > 0.05 * (heights[2] - heights[0])


def test_acceptance_and_accepted_lengths_are_those_of_the_metrics() -> None:
    """Fails if shares are taken over another number of rounds than were proposed to, or rounds are lost."""
    rows = [make_row("r0", 0, matched=[2, 0, 1, 2], k=2)]
    assert _plot(position_plot(rows)).data == (("ngram", 1, 0.75, 0.75, 4), ("ngram", 2, 0.5, pytest.approx(2 / 3), 4))
    assert _plot(histogram_plot(rows)).data == (("ngram", 0, 1, 0.25), ("ngram", 1, 1, 0.25), ("ngram", 2, 2, 0.5))


def test_all_text_of_a_figure_follows_the_theme() -> None:
    """Fails if an axis label stays black on the dark page."""
    points = [ThroughputPoint("none", c, 10.0 * c, 9.0 * c, 11.0 * c) for c in (1, 2)]
    for plot in draw_all(two_rollouts(), points):
        texts = re.findall(r"<text [^>]*>", plot.inline_svg())
        assert texts and [text for text in texts if "fill: currentColor" not in text] == [], plot.name


def test_throughput_takes_points_in_any_order() -> None:
    """Fails if a line is drawn back and forth, or an interval is lost."""
    points = [ThroughputPoint("none", c, 10.0 * c, 9.0 * c, 11.0 * c) for c in (4, 1, 2)]
    plot = _plot(throughput_plot(points))
    assert [row[1] for row in plot.data] == [1, 2, 4]
    assert list(plot.draw().axes[0].lines[0].get_xdata()) == [1, 2, 4]
    assert plot.data[2] == ("none", 4, 40.0, 36.0, 44.0)


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.__name__)
def test_nothing_to_draw_is_none(figure: Callable[[list[TurnRow]], Plot | None]) -> None:
    """A run in which every turn failed, or ended on its prefill token, is no reason to crash or to draw zeros."""
    assert figure([]) is None
    assert figure([make_row("r0", 0, status="error", error="broke"), make_row("r0", 1, matched=[])]) is None


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.__name__)
def test_rows_of_different_conditions_are_refused(figure: Callable[[list[TurnRow]], Plot | None]) -> None:
    """Fails if a figure mixes greedy and sampled rows."""
    rows = [make_row("r0", 0, matched=[1]), make_row("r0", 1, matched=[1], temperature=1.0)]
    with pytest.raises(MeasurementError, match="temperature"):
        figure(rows)


def test_token_counts_on_an_axis() -> None:
    """Fails if 1,536 is printed as 1K."""
    assert [tokens_text(n) for n in (512, 1024, 1536, 32768, 1 << 20)] == ["512", "1K", "1,536", "32K", "1M"]


def test_long_names_leave_room_for_the_figure_and_do_not_merge() -> None:
    """Two checkpoints shorten to one text; fails if they share a bar, or squeeze the panel to nothing."""
    names = [f"my_package.drafters.long_module:make=/checkpoints/{run}/a-very-long-folder-name" for run in "ab"]
    base = [timed("r0", 0, "none", [0] * 4, (0, 10, 0, 0, 0))]
    rows = [*base, *(timed("r0", 0, name, [1, 1], (0, ms, 0, 0, 0)) for name, ms in zip(names, (10, 5), strict=True))]
    figure = _plot(speedup_bars(rows)).draw()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([2.0, 4.0])  # type: ignore[attr-defined]
    assert len({bar.get_y() for bar in axes.patches}) == 2  # type: ignore[attr-defined]
    assert axes.get_position().width > 0.4


# --- as the context grows


def growing(*, methods: Sequence[str] = ("ngram", "dlite"), rollouts: int = 3, **fields: Any) -> list[TurnRow]:
    """Rollouts of two turns, at 600 and 1,200 tokens: plain decoding and methods, the later ones a little slower."""
    rows = []
    for i in range(rollouts):
        for turn in (0, 1):
            rows.append(timed(f"r{i}", turn, "none", [0] * 6, (0.0, 9.0, 0.5, 0.0, 0.5), **fields))
            for j, name in enumerate(methods):
                phases = (1.0, 9.0 + i + 2 * j, 0.5, 0.25, 0.25)
                rows.append(timed(f"r{i}", turn, name, [2, 2], phases, k=3, **fields))
    return rows


def test_speedup_and_draft_kv_by_context_have_a_mark_for_each_octave() -> None:
    """Fails if a stretch of contexts is lost, or time, share and interval are not those of its turns."""
    rows = growing()
    speed = _plot(speedup_against_context(rows))
    assert [row[:2] for row in speed.data] == [
        ("ngram", "512-1K"),
        ("dlite", "512-1K"),
        ("ngram", "1K-2K"),
        ("dlite", "1K-2K"),
    ]
    assert speed.data[0][2] == pytest.approx(30 / 12) and speed.data[0][5:] == (3, 3)
    kv = _plot(draft_kv_against_context(rows))
    time, low, high, share = kv.data[0][2:6]
    assert time == pytest.approx(10.5 / 7) and share == pytest.approx(100 * 10.5 / 84)
    assert low == pytest.approx(time) == high, "all rollouts spend the same"
    single = _plot(speedup_against_context(growing(rollouts=1)))
    assert {row[3:5] for row in single.data} == {(None, None)}


def test_methods_stand_beside_each_other_in_a_stretch() -> None:
    """Fails if one method's mark hides another's, or the axis shows contexts that no turn has."""
    axes = _plot(speedup_against_context(growing())).draw().axes[0]
    marks = {artist.get_gid(): artist for artist in axes.lines if str(artist.get_gid()).startswith("row-")}
    places = [float(marks[f"row-{i}"].get_xdata()[0]) for i in range(4)]  # type: ignore[arg-type, index]
    assert places[0] < 0 < places[1] < 0.5 < places[2] < 1 < places[3]
    assert axes.get_xlim() == (-0.5, 1.5)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["512-1K", "1K-2K"]


def test_phases_by_context_have_a_panel_a_method() -> None:
    """Fails if prefill is not over the tokens of its own octave, or two methods share a panel."""
    plot = _plot(phases_against_context(growing()))
    assert [row[:2] for row in plot.data][:2] == [("none", "512-1K"), ("ngram", "512-1K")]
    assert plot.data[1][2] == pytest.approx(50 / 7)
    titles = [axes.get_title(loc="left") for axes in plot.draw().axes]
    assert titles == ["none", "ngram", "dlite", ""], "the last panel holds the phases' colours"


def test_a_server_tells_no_phases_so_they_are_said_to_be_missing() -> None:
    """Fails if what nobody timed is drawn as nothing, or a figure vanishes without a word."""
    names = ("draft_s", "verify_s", "accept_s", "draft_append_s", "other_s", "draft_ingest_s", "prefill_s")
    served = growing(backend="sglang", draft_state_bytes=None, attributed_decode_s=None, **dict.fromkeys(names))
    names_drawn = [plot.name for plot in draw_all(served)]
    assert names_drawn[:2] == ["speedup-context", "tau-context"]
    missing = drawn(served).missing
    assert len(missing) == len(FIGURES) - len(names_drawn) == 5
    assert missing[0].startswith("draft-KV maintenance by context needs turns whose prefill, ingest and append")
    assert drawn(growing()).missing == []


def test_acceptance_by_position_counts_the_rounds_behind_each() -> None:
    """Fails if a drafter that seldom proposes far ahead looks as well founded there as at the first position."""
    row = make_row("r0", 0, matched=[2, 0, 1], k=2, proposed=5, proposed_lengths=[2, 1, 2])
    assert [own[4] for own in _plot(position_plot([row])).data] == [3, 2]


def test_an_interval_that_goes_on_beyond_the_panel_says_so() -> None:
    """Fails if an interval is cut without a sign, or an end that is drawn gets one."""
    _, (axes,) = panels()
    whiskers = [Whisker("near", 10, 2.0, 1.5, 2.5, 0), Whisker("far", 11, 2.0, 1.9, 90.0, 1)]
    draw_whiskers(axes, whiskers, styles(["near", "far"]))
    heads = [
        (own.get_marker(), own.get_gid()) for own in axes.lines if own.get_marker() in ("^", "v") and own.get_gid()
    ]
    assert heads == [("^", "of-1")]
    assert axes.get_ylim()[1] < 4.0


# --- values on hover


def test_a_mark_says_the_row_that_it_shows() -> None:
    """Fails if a mark has another's numbers, or an interval is not behind what it is of."""
    rows = growing()
    plot = _plot(speedup_against_context(rows))
    root = ElementTree.fromstring(plot.inline_svg("run-1-").replace("xlink:href", "href"))
    marks = [element for element in root.iter("g") if element.get("class") == "mark"]
    assert len(marks) == 2 * len(plot.data), "a whisker and a point for each number"
    for element in marks:
        row = plot.data[int(element.get("data-row", "-1"))]
        assert element.get("data-series") == row[0] and element.get("id") is None
        (title,) = (child.text for child in element if child.tag == "title")
        assert title == value_text(plot.columns, row)
    first = value_text(plot.columns, plot.data[0])
    assert re.fullmatch(r"ngram: context 512-1K, speed-up 2\.5 \[\S+, \S+\], paired turns 3, rollouts 3", first)
    assert value_text(("drafter", "x", "95 % low", "95 % high"), ("a", 1.0, None, None)) == "a: x 1"


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.__name__)
def test_every_number_of_a_figure_can_be_read_on_it(figure: Callable[[list[TurnRow]], Plot | None]) -> None:
    """Fails if a figure is drawn without telling which of its numbers a mark shows."""
    plot = _plot(figure(growing()))
    for svg in (plot.inline_svg(), plot.svg()):
        assert {int(row) for row in re.findall(r'data-row="(\d+)"', svg)} == set(range(len(plot.data)))
        assert not re.search(r'id="[^"]*\b(?:row|of)-\d+"', svg), "ids of marks are not unique"


def test_only_figures_with_a_key_give_up_their_drawn_legend() -> None:
    """Fails if a page names methods twice, or the colours of phases nowhere."""
    for plot in draw_all(growing()):
        texts = re.findall(r"<text [^>]*>([^<]*)</text>", plot.inline_svg())
        named = any("dlite" in text for text in texts)
        assert named == (not plot.keyed and plot.name != "baseline-step"), plot.name
        assert ('data-series="dlite"' in plot.inline_svg()) == plot.keyed
    assert "dlite" in re.findall(r"<text [^>]*>([^<]*)</text>", _plot(state_plot(growing())).svg())


# --- the colours

_SEEN_AS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
"""Linear RGB as seen; full-severity matrices of Machado, Oliveira and Fernandes (2009)."""


def _linear(colour: str) -> np.ndarray:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def _oklab(linear: np.ndarray) -> np.ndarray:
    cones = [[0.41222147, 0.53633254, 0.05144599], [0.2119035, 0.6806995, 0.1073970], [0.0883025, 0.2817188, 0.6299787]]
    axes = [[0.2104543, 0.7936178, -0.0040720], [1.9779985, -2.4285922, 0.4505937], [0.0259040, 0.7827718, -0.8086758]]
    return np.array(axes) @ np.cbrt(np.array(cones) @ np.clip(linear, 0, 1))


def contrast(a: str, b: str) -> float:
    """WCAG contrast of two colours."""
    low, high = sorted(float(_linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (a, b))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("vision", _SEEN_AS)
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_any_two_drafters_can_be_told_apart(palette: tuple[str, ...], vision: str) -> None:
    """Fails if a colour is changed to one that some readers cannot tell from another."""
    seen = {colour: _oklab(np.array(_SEEN_AS[vision]) @ _linear(colour)) for colour in palette}
    apart = {(a, b): 100 * np.linalg.norm(seen[a] - seen[b]) for a, b in itertools.combinations(palette, 2)}
    assert min(apart.values()) >= 9, min(apart, key=apart.__getitem__)


@pytest.mark.parametrize(("palette", "page"), [(LIGHT, PAGE["light"]), (DARK, PAGE["dark"])], ids=["light", "dark"])
def test_drafters_stand_out_from_the_page(palette: tuple[str, ...], page: str) -> None:
    """Fails if a mark has less than 3:1 against its page."""
    assert min(contrast(colour, page) for colour in palette) >= 3


def test_a_drafter_keeps_its_look() -> None:
    """Fails if the look depends on who else is drawn (for named methods) or on the order of the rows."""
    assert styles(["ngram", "dlite"])["dlite"] == styles(["dlite"])["dlite"]
    names = ["my_pkg.one:make", "suffix", "my_pkg.two:make", "dlite=a/checkpoint"]
    assert styles(names) == styles(reversed(names))
    assert styles(["dlite=a/checkpoint"])["dlite=a/checkpoint"] == styles(["dlite"])["dlite"]
    assert styles(["x"])["none"].colour == INK


def test_eight_drafters_have_eight_colours_and_more_have_other_marks() -> None:
    """Fails if two drafters of one figure look the same."""
    eight = styles(f"drafter-{i}" for i in range(8))
    assert len({look.colour for name, look in eight.items() if name != "none"}) == 8
    twelve = [look for name, look in styles(f"drafter-{i}" for i in range(12)).items() if name != "none"]
    assert len({(look.colour, look.marker) for look in twelve}) == 12


# --- what a figure becomes

HOSTILE = "<script>&\"'$x$"


def test_page_elements_take_theme_colours_and_have_ids_of_their_own() -> None:
    """Fails if a colour would not follow the dark theme, an id is used twice in one page, or a reference dangles."""
    plots = draw_all(two_rollouts(), [ThroughputPoint("ngram", 1, 5.0), ThroughputPoint("ngram", 2, 9.0)])
    assert len(plots) == len(FIGURES) + 1
    page = "".join(plot.inline_svg(prefix) for prefix in ("run-1-", "run-2-") for plot in plots)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    references = set(re.findall(r'href="#([^"]*)"', page)) | set(re.findall(r"url\(#([^)]*)\)", page))
    assert references and references <= set(ids)
    bare = re.findall(r"#[0-9a-f]{6}\b", re.sub(r"var\([^)]*\)", "", page))
    assert set(bare) == set()
    assert "http" not in page


def test_page_element_is_named_for_screen_readers_and_escapes_what_it_names() -> None:
    """Fails if a drafter's name can end an element or turn into a formula."""
    rows = two_rollouts(HOSTILE)
    svg = _plot(speedup_bars(rows)).inline_svg()
    root = ElementTree.fromstring(svg.replace("xlink:href", "href"))
    assert root.get("role") == "img"
    named = {child.get("id"): child.text for child in root if child.tag in ("title", "desc")}
    assert named[root.get("aria-labelledby")] == "Speed-up over plain decoding"
    assert HOSTILE in (named[root.get("aria-describedby")] or "")
    assert HOSTILE in [element.text for element in root.iter("text")]


def test_saved_files_are_an_svg_and_a_png_and_the_same_every_time(tmp_path: Path) -> None:
    """Fails if a date, a random id or an earlier rendering leaks into a file."""
    plot = _plot(tau_against_turn(two_rollouts()))
    first = [path.read_bytes() for path in plot.save(tmp_path / "a")]
    plot.inline_svg()
    again = [path.read_bytes() for path in plot.save(tmp_path / "b")]
    fresh = [path.read_bytes() for path in _plot(tau_against_turn(two_rollouts())).save(tmp_path / "c")]
    assert first == again == fresh
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["tau-turn.png", "tau-turn.svg"]
    assert ElementTree.fromstring(first[0]).tag.endswith("svg") and first[1].startswith(b"\x89PNG")


def _python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent)


def test_drawing_leaves_pyplot_and_the_settings_of_matplotlib_alone() -> None:
    """Fails if a figure goes through pyplot's global state, or leaves a setting changed for the caller."""
    code = """
import sys, matplotlib
before = matplotlib.rcParams.copy()
from reportkit import two_rollouts
from agentbench_spec.report.plots import draw_all
for plot in draw_all(two_rollouts()): plot.inline_svg(); plot.svg()
print("matplotlib.pyplot" in sys.modules, matplotlib.rcParams.copy() == before)
"""
    assert _python(code).stdout.split() == ["False", "True"]


def test_without_matplotlib_one_is_told_what_to_install() -> None:
    """Fails if the package cannot be imported without matplotlib, or if the error does not name the command."""
    code = """
import sys
sys.modules["matplotlib"] = None  # what Python itself stores for a module that must not be found
from reportkit import two_rollouts
from agentbench_spec.errors import ConfigError
from agentbench_spec.report.plots import speedup_bars
try:
    speedup_bars(two_rollouts()).svg()
except ConfigError as error:
    print(error)
"""
    assert "pip install matplotlib" in _python(code).stdout


def test_a_dollar_in_a_name_is_no_formula() -> None:
    """Fails if a drafter called "$\\frac$" ends a report in a formula's syntax error, or loses its dollars."""
    name = "$\\frac$ x_1"
    drawn = {plot.name: plot.inline_svg() for plot in draw_all(two_rollouts(name)) if plot.png()}
    assert drawn.pop("baseline-step")  # of plain decoding alone
    assert len(drawn) == 11 and all(name in svg for svg in drawn.values())
