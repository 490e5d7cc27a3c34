"""Sessions of a server: told apart by their beginning, and each a rollout whose contexts are what clients sent."""

from __future__ import annotations

from random import Random

import pytest

from agentbench_spec.engine.sampling import GREEDY
from agentbench_spec.messages import view_fault
from agentbench_spec.rollout import Message, Rollout, ToolCall
from agentbench_spec.rollouts.toolcalls.families import family
from agentbench_spec.serving.bridge.chat_answer import message_of
from agentbench_spec.serving.bridge.chat_request import ChatRequest, Offer, Refused, read_message, read_request
from agentbench_spec.serving.bridge.conversations import Asked, Conversations

TOOL = {"type": "function", "function": {"name": "ls", "parameters": {}}}
OTHER = {"type": "function", "function": {"name": "cat", "parameters": {}}}


def user(text: str) -> Message:
    return Message(role="user", content=text)


def reply(text: str) -> Message:
    return Message(role="assistant", content=text)


class Desk:
    """Places requests and answers them."""

    def __init__(self, most: int = 100) -> None:
        self.closed: list[Rollout] = []
        self.talks = Conversations("serve", "toy", most, self.closed.append)

    def ask(self, *shown: Message, says: str = "Yes.", whole: bool = True, tools: tuple[object, ...] = ()) -> Asked:
        """The request as it was placed, answered with `says`; its context must be what was shown."""
        asked = self.talks.place(ChatRequest(tuple(shown), tools=tools))  # type: ignore[arg-type]
        seen = [_plain(message) for message in asked.rollout.context_at(asked.index)]
        assert seen == [_plain(message) for message in shown]
        assert asked.rollout.tools_at(asked.index) == tools
        asked.answered(reply(says), [1, 2], [0], whole=whole)
        self.talks.keep(asked.talk)
        assert view_fault(asked.talk.rollout.messages, asked.talk.rollout.views) is None
        return asked

    def end(self) -> list[Rollout]:
        self.talks.close()
        return self.closed


def _plain(message: Message) -> Message:
    """A message without what the record adds to it."""
    return message.model_copy(update={"synthetic": False, "tools": None})


def places(*asked: Asked) -> list[tuple[str, int]]:
    return [(own.rollout.id, own.turn) for own in asked]


def test_a_session_goes_on_where_it_was() -> None:
    """Fails if the answer sent back begins another session, or two sessions of one beginning are mixed."""
    desk = Desk()
    one = desk.ask(user("Hi."), says="A")
    two = desk.ask(user("Hi."), says="B")
    after_one = desk.ask(user("Hi."), reply("A"), user("More."))
    after_two = desk.ask(user("Hi."), reply("B"), user("More."))
    asked = places(one, two, after_one, after_two)
    assert asked == [("session-1", 0), ("session-2", 0), ("session-1", 1), ("session-2", 1)]
    assert all(session.views == () for session in desk.end())


def test_a_rewritten_history_is_a_view() -> None:
    """Fails if the record holds what the client made of an answer in place of what was said."""
    desk = Desk()
    desk.ask(user("Hi."), says="A")
    desk.ask(user("Hi."), reply("shortened"), user("More."), says="B")
    desk.ask(user("Hi."), reply("shortened"), user("More."), user("The answer was dropped."), says="C")
    (session,) = desk.end()
    assert [m.content for m in session.messages if m.role == "assistant" and not m.synthetic] == ["A", "B", "C"]
    assert [len(view.show) for view in session.views] == [1, 0]
    assert session.source["live"]["output_ids"].keys() == {"1", "3", "5"}


def test_a_request_that_broke_off_may_be_sent_again() -> None:
    """Fails if a retry is another session, or the broken answer is shown to later requests."""
    desk = Desk()
    broken, retried = desk.ask(user("Hi."), whole=False, says="A bro"), desk.ask(user("Hi."))
    assert places(broken, retried) == [("session-1", 0), ("session-1", 1)]


def test_what_the_client_says_for_the_model_is_no_reply_of_its_own() -> None:
    """Fails if an example in a prompt would be taken for the target's words, or be counted as a turn of it."""
    desk = Desk()
    asked = desk.ask(user("1+1?"), reply("2"), user("2+2?"))
    later = desk.ask(*asked.request.messages, reply("Yes."), user("3+3?"), reply("6"), user("4+4?"))
    assert places(asked, later) == [("session-1", 1), ("session-1", 3)]
    (session,) = desk.end()
    own = [message.content for message in session.messages if message.role == "assistant" and not message.synthetic]
    assert own == ["Yes.", "Yes."] and [message.synthetic for message in session.messages].count(True) == 2


def test_tools_may_change_within_a_session() -> None:
    """Fails if a request is rendered with the tools of an earlier one."""
    desk = Desk()
    desk.ask(user("Hi."), tools=(TOOL,))
    second = desk.ask(user("Hi."), reply("Yes."), user("More."), tools=(OTHER,))
    assert places(second) == [("session-1", 1)]


def test_the_longest_silent_session_is_closed() -> None:
    """Fails if a server keeps every session it ever had in memory, or closes one that goes on."""
    desk = Desk(most=2)
    desk.ask(user("a"))
    desk.ask(user("b"))
    desk.ask(user("a"), reply("Yes."), user("more"))
    desk.ask(user("c"))
    assert [session.messages[0].content for session in desk.closed] == ["b"]
    assert len(desk.end()) == 3


def test_contexts_are_what_was_sent_whatever_clients_do() -> None:
    """Fails if any order of going on, rewriting, dropping and retrying leaves a record that shows something else."""
    for seed in range(40):
        draw, desk = Random(seed), Desk(most=3)
        histories: list[list[Message]] = [[user("Hi.")]]
        for step in range(12):
            history = draw.choice(histories)
            says = f"say {step}"
            desk.ask(*history, says=says, whole=draw.random() > 0.2, tools=draw.choice([(), (TOOL,)]))
            kind = draw.choice(["goes on", "goes on", "rewrites", "drops", "again", "forks"])
            if kind == "goes on":
                history += [reply(says), user(f"more {step}")]
            elif kind == "rewrites":
                history += [reply("otherwise"), user(f"more {step}")]
            elif kind == "drops":
                history += [user(f"more {step}")]
            elif kind == "forks":
                histories.append([*history[: draw.randint(1, len(history))], user(f"fork {step}")])
        ids = [session.id for session in desk.end()]
        assert len(ids) == len(set(ids))


def test_what_is_told_of_an_answer_is_what_comes_back() -> None:
    """Fails if the echo of an answer is not equal to the record of it: every session would then be rewritten."""
    said = '<tool_call>\n{"name": "ls", "arguments": {"folder": "ä"}}\n</tool_call>'
    message = message_of(family("hermes"), f"Look.\n{said}", [TOOL], "call-1")
    read = read_message(message, "answer")
    assert read.tool_calls == (
        ToolCall(name="ls", arguments={"folder": "ä"}, raw_arguments='{"folder": "ä"}', id="call-1-0"),
    )
    assert read.content == "Look."
    broken = said.replace("}}", "}")
    assert message_of(family("hermes"), broken, [TOOL], "c") == {"role": "assistant", "content": broken}
    assert message_of(family("hermes"), said, [], "c") == {"role": "assistant", "content": said}


def test_content_in_parts_is_joined_and_bookkeeping_is_passed_over() -> None:
    """Fails if what agents send back of a message is refused, or words under an unknown name are dropped."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    kept = {"refusal": None, "annotations": [], "provider_specific_fields": {"refusal": None}, "audio": None}
    assert read_message({"role": "assistant", "content": parts, **kept}, "m").content == "ab"
    with pytest.raises(Refused, match=r"m\.refusal is not read here"):
        read_message({"role": "assistant", "content": "", "refusal": "No."}, "m")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no JSON"),
        (b"\xff", "no UTF-8"),
        (b"[1]", "must be a JSON object"),
        (b'{"model": "toy"}', "messages: expected a list"),
        (b'{"model": "toy", "messages": [{"role": "robot"}]}', r"messages\[0\].role"),
        (b'{"model": "toy", "messages": [{"role": "user", "content": 5}]}', r"messages\[0\].content"),
        (b'{"model": "toy", "messages": [{"role": "user", "tool_calls": [{}]}]}', "only an assistant calls"),
        (
            b'{"model": "toy", "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", '
            b'"arguments": "{"}}]}]}',
            "expected the text of a JSON object",
        ),
        (b'{"model": "toy", "stream": "yes", "messages": [{"role": "user"}]}', "stream: expected bool"),
        (b'{"model": "toy", "max_tokens": true, "messages": [{"role": "user"}]}', "max_tokens: expected int"),
        (
            b'{"model": "toy", "max_tokens": 1, "max_completion_tokens": 2, "messages": [{"role": "user"}]}',
            "max_tokens and max_completion_tokens differ",
        ),
    ],
)
def test_a_body_that_is_no_request_says_where(body: bytes, says: str) -> None:
    """Fails if a malformed body raises anything but a refusal, or one that does not name the field."""
    with pytest.raises(Refused, match=says):
        read_request(body, Offer(("toy",), GREEDY))
