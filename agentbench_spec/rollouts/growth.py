"""Turns of rollouts in a target's tokens: how the context grows, how much of it survives, which windows it exceeds.

The text before a turn's prompt is the previous turn's prompt and its recorded reply. A chat template need not keep it:
what it changes must be prefilled again, however much is cached. So *lost* tokens are those of the previous text that
the new prompt does not begin with; a template is append-only on a rollout if no turn loses any. Prompts hold what the
model really saw: where its history was rewritten (views of a rollout), the loss is the run's own, not the template's.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd

from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.render import common_prefix
from agentbench_spec.rollouts.sizes import rewrite, rollout_sizes
from agentbench_spec.writing import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["WINDOWS", "Measured", "measure_rollouts", "plot_turns", "summarize_turns", "turn_sizes"]

WINDOWS = (8_192, 32_768, 40_960, 65_536, 131_072)
"""Context windows that targets commonly have, in tokens."""
_SHOWN_ROLLOUTS = 100
_REWRITTEN = "tab:orange"
_REASONS = ("history", "tools", "template")
"""What can lose tokens: the run itself cut or changed its history, or its tools changed, or the template did it."""


class Renders(Protocol):
    """Messages to token ids; see `agentbench_spec.rollouts.render.Renderer`."""

    def prompt(self, rollout: Rollout, index: int) -> list[int]:
        """Ids of the prompt that asks for message `index`."""
        ...

    def reply(self, rollout: Rollout, index: int) -> list[int]:
        """Ids of the recorded message `index`."""
        ...


class Measured:
    """Sizes of rollouts and of their turns."""

    def __init__(self, rollouts: pd.DataFrame, turns: pd.DataFrame | None) -> None:
        self.rollouts, self.turns = rollouts, turns


def turn_sizes(rollout: Rollout, renderer: Renders) -> Iterator[dict[str, Any]]:
    """One row per decode point, in tokens.

    prompt_tokens; reply_tokens (None where the reply is a placeholder of ours); kept_tokens: of the previous text, as
    they stand at the start of this prompt; lost_tokens: of the previous text, not kept; new_tokens: to prefill;
    reuse: kept / prompt. These are None at the first turn, which has no previous text. rewritten: "history" where the
    model saw earlier messages otherwise than at the turn before, "tools" where the tool list changed, else None.
    """
    before: list[int] | None = None
    points = rollout.decode_points()
    for turn, message in enumerate(points):
        prompt, reply = renderer.prompt(rollout, message), renderer.reply(rollout, message)
        synthetic = rollout.messages[message].synthetic
        kept = None if before is None else common_prefix(before, prompt)
        yield {
            "id": rollout.id,
            "workload": rollout.workload,
            "category": rollout.labels.get("category"),
            "turn": turn,
            "message": message,
            "prompt_tokens": len(prompt),
            "reply_tokens": None if synthetic else len(reply),
            "kept_tokens": kept,
            "lost_tokens": None if before is None or kept is None else len(before) - kept,
            "new_tokens": None if kept is None else len(prompt) - kept,
            "reuse": None if kept is None else kept / len(prompt),
            "rewritten": rewrite(rollout, points[turn - 1], message) if turn else None,
        }
        before = [*prompt, *reply]


def measure_rollouts(rollouts: Iterable[Rollout], renderer: Renders | None = None) -> Measured:
    """Sizes of the rollouts, and, with a renderer, of their turns; each is rendered once and then let go.

    Memory grows by the numbers that are kept, some hundred bytes a rollout or turn, not by the texts.
    """
    sizes, turns = _Table(pd.DataFrame), _Table(_frame)
    for rollout in rollouts:
        rows = list(turn_sizes(rollout, renderer)) if renderer else []
        tokens = {row["message"]: int(row["prompt_tokens"]) for row in rows}
        count = (lambda _, index, known=tokens: known[index]) if renderer else None
        sizes.add([rollout_sizes(rollout, prompt_tokens=count)])
        turns.add(rows)
    return Measured(sizes.frame(), turns.frame() if renderer else None)


class _Table:
    """Rows collected into columns, some thousand at a time: a column takes a tenth of what its rows do."""

    _ROWS = 2000

    def __init__(self, make: Callable[[list[dict[str, Any]]], pd.DataFrame]) -> None:
        self._make = make
        self._rows: list[dict[str, Any]] = []
        self._frames: list[pd.DataFrame] = []

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            self._rows.append({key: sys.intern(v) if isinstance(v, str) else v for key, v in row.items()})
        if len(self._rows) >= self._ROWS:
            self._frames.append(self._make(self._rows))
            self._rows = []

    def frame(self) -> pd.DataFrame:
        if not self._frames:
            return self._make(self._rows)
        return pd.concat([*self._frames, *([self._make(self._rows)] if self._rows else [])], ignore_index=True)


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    counts = ["reply_tokens", "kept_tokens", "lost_tokens", "new_tokens"]
    return frame.astype({**dict.fromkeys(counts, "Int64"), "reuse": "Float64"}) if rows else frame


def summarize_turns(turns: pd.DataFrame, by: str = "category", windows: Sequence[int] = WINDOWS) -> pd.DataFrame:
    """Growth, survival and windows by group.

    new_tokens_*, lost_tokens_*: over turns that have a predecessor. append_only: share of those that lost nothing.
    reuse: their kept tokens / their prompt tokens. rewritten_turns: those whose history or tools were not those of the
    turn before; lost_to_history, lost_to_tools, lost_to_template: all lost tokens, by the reason. over_N: turns whose
    prompt alone exceeds N tokens, and in rollouts_over_N how many rollouts have one.
    """
    return pd.DataFrame(
        {name: _summary(group, windows) for name, group in turns.groupby(by, sort=False, dropna=False)}
    ).T


def _summary(turns: pd.DataFrame, windows: Sequence[int]) -> dict[str, Any]:
    later = turns[turns["kept_tokens"].notna()]
    row: dict[str, Any] = {"rollouts": turns["id"].nunique(), "turns": len(turns)}
    row |= {f"prompt_tokens_{name}": value for name, value in _spread(turns["prompt_tokens"]).items()}
    row |= {f"reply_tokens_{name}": value for name, value in _spread(turns["reply_tokens"]).items()}
    row |= {f"new_tokens_{name}": value for name, value in _spread(later["new_tokens"]).items()}
    row |= {f"lost_tokens_{name}": value for name, value in _spread(later["lost_tokens"]).items()}
    row["append_only"] = float((later["lost_tokens"] == 0).mean()) if len(later) else None
    row["reuse"] = float(later["kept_tokens"].sum() / later["prompt_tokens"].sum()) if len(later) else None
    row["rewritten_turns"] = int(later["rewritten"].notna().sum())
    reasons = later["rewritten"].fillna("template")
    row |= {f"lost_to_{why}": int(later["lost_tokens"][reasons == why].sum()) for why in _REASONS}
    for window in windows:
        over = turns[turns["prompt_tokens"] > window]
        row |= {f"over_{window}": len(over), f"rollouts_over_{window}": over["id"].nunique()}
    return row


def _spread(values: pd.Series[Any]) -> dict[str, float | None]:
    known = values.dropna().astype(float)
    if known.empty:
        return {"median": None, "p90": None, "max": None}
    return {"median": float(known.median()), "p90": float(known.quantile(0.9)), "max": float(known.max())}


def plot_turns(turns: pd.DataFrame, path: Path, windows: Sequence[int] = WINDOWS, *, title: str = "") -> Path:
    """Draw context over turns, and what each turn adds and loses, into an image file; returns `path`.

    Raises ConfigError if matplotlib is not installed or does not know the file's ending.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("a plot needs matplotlib: pip install matplotlib") from error
    figure = Figure(figsize=(11, 4), layout="constrained")
    growth, change = figure.subplots(1, 2)
    _draw_growth(growth, turns, windows)
    _draw_change(change, turns)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = io.BytesIO()
    try:
        figure.savefig(drawn, dpi=150, format=path.suffix[1:] or "png")
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; name the plot .png, .pdf or .svg") from error
    write_bytes(path, drawn.getvalue())
    return path


def _draw_growth(axes: Axes, turns: pd.DataFrame, windows: Sequence[int]) -> None:
    groups = list(turns.groupby("id", sort=False))
    for _, group in groups[:_SHOWN_ROLLOUTS]:
        axes.plot(group["turn"], group["prompt_tokens"], color="tab:blue", alpha=0.4, linewidth=1)
        _mark_rewritten(axes, group)
    top = turns["prompt_tokens"].max()
    for window in windows:
        if window < 1.5 * top:
            axes.axhline(window, color="tab:red", linewidth=0.8, linestyle="--")
            axes.annotate(f"{window:,}", (0, window), fontsize=7, color="tab:red", va="bottom")
    left_out = len(groups) - _SHOWN_ROLLOUTS
    axes.set(
        xlabel="turn",
        ylabel="prompt tokens",
        title="Context" + (f" ({left_out} more rollouts not drawn)" if left_out > 0 else ""),
    )
    if count := int(turns["rewritten"].notna().sum()):
        handle = axes.plot([], [], "o", color=_REWRITTEN, markersize=4)
        axes.legend(handle, [f"history or tools rewritten: {count} turns"], fontsize=7)


def _mark_rewritten(axes: Axes, group: pd.DataFrame) -> None:
    """A dot on each turn before which the run itself changed what came before."""
    marked = group[group["rewritten"].notna()]
    if len(marked):
        axes.plot(marked["turn"], marked["prompt_tokens"], "o", color=_REWRITTEN, markersize=4, gid="rewritten")


def _draw_change(axes: Axes, turns: pd.DataFrame) -> None:
    later = turns[turns["kept_tokens"].notna()]
    for column, colour in (("new_tokens", "tab:blue"), ("lost_tokens", "tab:red")):
        values = later[column].astype(float).sort_values().to_numpy()
        shares = [(i + 1) / len(values) for i in range(len(values))]
        axes.step(values, shares, where="post", label=column.replace("_", " "), color=colour)
    axes.set_xscale("symlog")
    axes.set(xlabel="tokens of a turn", ylabel="share of turns", title="Added, and lost of what was there")
    axes.legend()
