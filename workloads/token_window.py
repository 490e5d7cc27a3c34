"""Fitting a rollout into a token window.

The rule: a rollout keeps its beginning (system, first user message and everything after it) up to the last decode
point whose prompt leaves room for the output; later decode points are dropped. No message is ever shortened, and a
call stays with its results.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from agentbench_spec.rollout import ConfigError, Rollout, TokenCounter

__all__ = ["counter_for", "cut_to_window", "describe_rule"]

PromptTokens = Callable[[Rollout, int], int]


def counter_for(tokenizer: TokenCounter | None, why: str) -> TokenCounter:
    """The counter that was given, and can count.

    Raises ConfigError if there is none, with the way out, and what counting raises, before any data is fetched.
    """
    if tokenizer is None:
        raise ConfigError(
            f"tokenizer: {why} counts tokens, and only a target's own tokenizer can: give tokenizer=TARGET (a hub id, "
            "a model folder or smollm2-135m)"
        )
    if not callable(getattr(tokenizer, "prompt", None)):
        raise ConfigError(
            f"tokenizer: expected a TokenCounter, found {tokenizer!r}; in settings give the target's name as text, in "
            "Python agentbench_spec.token_counter(TARGET)"
        )
    tokenizer.text("")
    return tokenizer


def describe_rule(window_tokens: int, reserve_tokens: int) -> str:
    """The rule in words, for a rollout's notes."""
    return (
        f"cut at a message boundary to prompts of at most {window_tokens} - {reserve_tokens} tokens; "
        "later decode points are dropped, no message is shortened"
    )


def cut_to_window(
    rollout: Rollout, prompt_tokens: PromptTokens, *, window_tokens: int, reserve_tokens: int
) -> Rollout | None:
    """The part of `rollout` whose prompts fit the window with `reserve_tokens` to spare; None if no prompt fits.

    What was dropped, and the length of the last prompt kept, stand in the labels and notes.
    """
    room = window_tokens - reserve_tokens
    points = rollout.decode_points()
    kept, last_tokens = _fitting(rollout, points, prompt_tokens, room)
    if not kept:
        return None
    labels = {**rollout.labels, "window_tokens": window_tokens, "last_prompt_tokens": last_tokens}
    if kept == len(points):
        return rollout.model_copy(update={"labels": {**labels, "dropped_turns": 0}})
    end = points[kept - 1] + 1
    while end < len(rollout.messages) and rollout.messages[end].role == "tool":
        end += 1
    dropped = len(points) - kept
    note = f"{describe_rule(window_tokens, reserve_tokens)}: {dropped} of {len(points)} decode points dropped"
    update = {"labels": {**labels, "dropped_turns": dropped}, "notes": (*rollout.notes, note)}
    return rollout.until(end).model_copy(update=update)


def _fitting(rollout: Rollout, points: list[int], prompt_tokens: PromptTokens, room: int) -> tuple[int, int]:
    """How many decode points fit, and the tokens of the last that does.

    Prompts grow, so it is searched by halves; where the run rewrote its history they may shrink, so all are counted.
    """
    if rollout.views:
        sizes = (prompt_tokens(rollout, point) for point in points)
        fitting = list(takewhile(lambda tokens: tokens <= room, sizes))
        return len(fitting), (fitting or [0])[-1]
    fits, low, high = 0, 0, len(points) - 1
    while low <= high:
        middle = (low + high) // 2
        tokens = prompt_tokens(rollout, points[middle])
        if tokens <= room:
            fits, low = tokens, middle + 1
        else:
            high = middle - 1
    return low, fits
