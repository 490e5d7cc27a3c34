"""PromptLog: exact prompts become messages and views, and come back exactly."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentbench_spec.messages import view_fault
from agentbench_spec.rollout import Message, Rollout
from agentbench_spec.rollouts.importing.prompts import PromptLog

U, A = "user", "assistant"


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


def rollout_of(log: PromptLog) -> Rollout:
    assert view_fault(log.messages, log.views) is None
    return Rollout(id="r", workload="w", messages=tuple(log.messages), views=tuple(log.views))


texts = st.lists(st.sampled_from("abcd"), min_size=1, max_size=7)


@settings(max_examples=300, deadline=None)
@given(st.lists(texts, min_size=1, max_size=6))
def test_any_prompts_come_back_exactly(prompts: list[list[str]]) -> None:
    """Fails if a rewrite, drop, insertion, restoration or reordering of history is not replayed as it was."""
    log, points = PromptLog(), []
    contexts = [[user(text) for text in prompt] for prompt in prompts]
    for context in contexts:
        points.append(log.turn(context, said("r")))
    rollout = rollout_of(log)
    assert rollout.decode_points() == points
    assert [list(rollout.context_at(i)) for i in points] == contexts


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_growing_prompts_with_edits_come_back_exactly(data: st.DataObject) -> None:
    """The same for what real files hold: each prompt is the last one with its reply, edited here and there."""
    log, context, points, contexts = PromptLog(), [user("s"), user("task")], [], []
    for step in range(data.draw(st.integers(1, 6))):
        contexts.append(list(context))
        reply = said(f"r{step}")
        points.append(log.turn(context, reply))
        context = [*context, reply, user(f"o{step}")]
        for _ in range(data.draw(st.integers(0, 2))):
            at = data.draw(st.integers(0, len(context) - 1))
            edit = data.draw(st.sampled_from(["stub", "drop", "insert", "restore"]))
            original = user(f"o{at}")
            context[at : at + (edit != "insert")] = {"drop": [], "restore": [original]}.get(edit, [user("stub")])
            context = context or [user("left")]
    rollout = rollout_of(log)
    assert [list(rollout.context_at(i)) for i in points] == contexts


def test_append_only_prompts_need_no_views() -> None:
    """Fails if a plain history is stored as rewrites."""
    log = PromptLog()
    log.turn([user("a")], said("1"))
    log.turn([user("a"), said("1"), user("b")], said("2"))
    assert log.views == []
    assert [m.content for m in log.messages] == ["a", "1", "b", "2"]


def test_elided_observations_are_stored_as_stubs_only() -> None:
    """Fails if the messages around a stub are stored again: files would grow with the square of the turns."""
    log, history = PromptLog(), [user("task")]
    for step in range(30):
        shown = [user("(elided)") if m.content.startswith("obs") and m is not history[-1] else m for m in history]
        reply = said(f"r{step}")
        log.turn(shown, reply)
        history += [reply, user(f"obs{step}")]
    assert len(log.messages) == 60
    assert len(log.views) == 28
    assert all(view.stop - view.start == 1 and len(view.show) == 1 for view in log.views)


def test_dropped_stretch_that_comes_back_is_a_reference() -> None:
    """Fails if restored messages are stored twice."""
    log = PromptLog()
    first = [user("a"), user("b"), user("c")]
    log.turn(first, said("1"))
    log.turn([user("a"), said("1")], said("2"))
    log.turn([*first, said("1"), said("2")], said("3"))
    assert all(isinstance(item, int) for view in log.views for item in view.show)
    assert list(rollout_of(log).context_at(5)) == [*first, said("1"), said("2")]


@pytest.mark.parametrize("last", ["new reply", "kept"])
def test_a_rewritten_reply_keeps_its_place(last: str) -> None:
    """Fails if a reply that the next prompt shows in another form is lost or shown twice."""
    log = PromptLog()
    log.turn([user("a")], said("kept"))
    log.turn([user("a"), said(last), user("b")], said("2"))
    rollout = rollout_of(log)
    assert [m.content for m in rollout.messages] == ["a", "kept", "b", "2"]
    assert [m.content for m in rollout.context_at(3)] == ["a", last, "b"]
    assert len(rollout.views) == (last != "kept")
