"""Whole live sessions on BFCL-v3, the target's words given as text: gold calls solve, bad ones cost their own turn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pytest
from agentbench_spec_workloads.bfcl_v3 import SHIPPED
from bfcl_fixtures import needs_bfcl

from agentbench_spec.config import LiveConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Message, Rollout, read_rollouts
from agentbench_spec.rollouts.toolcalls.families import family_of
from agentbench_spec.rollouts.toolcalls.verdicts import CallJudge, judge
from agentbench_spec.runs.live.sandbox import Sandbox
from agentbench_spec.runs.live.task_walk import Room, Step, TaskWalk

pytestmark = needs_bfcl


class Texts:
    """A tokenizer whose one token is a whole text."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def ids(self, text: str) -> list[int]:
        self._texts.append(text)
        return [len(self._texts) - 1]

    def text(self, ids: Sequence[int]) -> str:
        return self._texts[ids[0]]

    def prompt(self, rollout: Rollout, index: int) -> list[int]:
        return []

    def reply(self, rollout: Rollout, index: int) -> list[int]:
        raise ConfigError("there is no template")


@pytest.fixture(scope="module")
def shipped() -> Iterator[Sandbox]:
    with Sandbox("bfcl_v3", {"subset": "shipped"}, limit=None, seed=0, step_s=60.0) as sandbox:
        yield sandbox


def written(message: Message) -> str:
    """A recorded message as a target of the Hermes family says it."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return "\n".join([message.content, *(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)]).strip()


def gold(task: str) -> list[str]:
    recorded = next(rollout for rollout in read_rollouts(SHIPPED) if rollout.id == task)
    return [written(message) for message in recorded.messages if message.role == "assistant"]


class Session:
    """A walk through one task."""

    def __init__(self, sandbox: Sandbox, task: str, **limits: int) -> None:
        self._texts = Texts()
        judge = CallJudge(family_of("<tool_call>"), self._texts.text)
        room = Room(self._texts, judge, sandbox, LiveConfig(turns=500, **limits), "bfcl_v3", "scripted")
        self.walk = TaskWalk(room, next(one for one in sandbox.tasks if one.id == task))

    def say(self, text: str) -> Step:
        return self.walk.say([], self._texts.ids(text))

    def heard(self) -> str:
        """The last thing the target was told."""
        return self.walk.asked.messages[-2].content


def test_a_target_that_says_the_gold_calls_solves_every_shipped_task(shipped: Sandbox) -> None:
    """Fails if a call is lost between a target's words and the world, or a session ends too early or late."""
    for task in shipped.tasks:
        session = Session(shipped, task.id)
        steps = [session.say(text) for text in gold(task.id)]
        assert [step.ended for step in steps] == [None] * (len(steps) - 1) + ["done"], task.id
        assert steps[-1].solved is True and not any(step.env_error for step in steps), task.id


def called(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


HOSTILE = {
    "corrupted": ('<tool_call>\n{"name": "cat", "arguments": {"file_name": \n</tool_call>', "Error: no call was made"),
    "a path out of the world": (called("cat", file_name="../../../../etc/passwd"), "error"),
    "10 MB": (called("echo", content="x" * 10_000_000, file_name="a"), "Error: no call was made"),
    "1 MB less": (called("echo", content="x" * 900_000, file_name="a"), "Error: the arguments of a message may have"),
    "no such function": (called("os_system", command="id"), "rror"),
    "seventeen calls": (called("ls") * 17, "Error: a message may make 16 calls"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_call_costs_its_own_turn_only(shipped: Sandbox, name: str) -> None:
    """Fails if a call that cannot be carried out changes the world, ends the session, or is not told to the model."""
    text, told = HOSTILE[name]
    recorded = (own for own in read_rollouts(SHIPPED) if any(tool["function"]["name"] == "cat" for tool in own.tools))
    task = next(recorded).id
    session = Session(shipped, task)
    tools = session.walk.asked.tools
    for good in gold(task)[:-1]:
        bad = session.say(text)
        assert bad.ended is None and told in session.heard() and "root:" not in session.heard()
        assert judge(bad.spoken, tools, None).valid is (name not in ("corrupted", "10 MB"))
        session.say(good)
    last = session.say(gold(task)[-1])
    assert (last.ended, last.solved) == ("done", True)


def test_a_target_that_pages_for_ever_is_ended(shipped: Sandbox) -> None:
    """Fails if the same call again and again holds a run up."""
    session = Session(shipped, shipped.tasks[0].id, repeats=4)
    name = session.walk.asked.tools[0]["function"]["name"]
    ends = [session.say(called(name, page=1)).ended for _ in range(4)]
    assert ends == [None, None, None, "loop"]
