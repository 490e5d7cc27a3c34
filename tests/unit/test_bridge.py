"""`serve`: the real `openai` client talks, calls and streams; every request is a row, and one costs no other."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from bridgekit import ROOM, Running, outputs, saying, serving, settings
from runkit import call, replay, rows_of

openai = pytest.importorskip("openai", reason="the client is needed: pip install openai")

from agentbench_spec.errors import ConfigError  # noqa: E402
from agentbench_spec.rollout import read_rollouts  # noqa: E402

LS = {
    "type": "function",
    "function": {
        "name": "ls",
        "parameters": {"type": "object", "properties": {"folder": {"type": "string"}}, "required": ["folder"]},
    },
}
CALL = '<tool_call>\n{"name": "ls", "arguments": {"folder": "d"}}\n</tool_call>'


@pytest.fixture(scope="module")
def running(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that is free to say what it likes, for requests that leave nothing for others to see."""
    with serving(settings(tiny), tmp_path_factory.mktemp("bridge") / "run") as made:
        yield made


def echo(answer: Any) -> dict[str, Any]:
    """The answer as a client sends it back."""
    message: dict[str, Any] = answer.choices[0].message.model_dump(exclude_none=True)
    return message


def test_a_conversation_is_a_session_that_replays_to_the_same_tau(tiny: Path, tmp_path: Path) -> None:
    """Fails if a request is not a row, a session is torn or mixed with another, or its record is not what was said."""
    with serving(settings(tiny), tmp_path / "run") as running:
        first = running.say("List the files.", max_tokens=12)
        other = running.say("Another matter.", max_tokens=12)
        second = running.say("List the files.", echo(first), "And now?", max_tokens=12)
    rows = running.rows
    assert outputs(rows) == [("session-1", 0, "ok"), ("session-2", 0, "ok"), ("session-1", 1, "ok")]
    for row, answer in zip(rows, (first, other, second), strict=True):
        assert answer.id == f"chatcmpl-{row.rollout}-{row.turn}"
        assert (row.context_tokens, row.output_tokens) == (answer.usage.prompt_tokens, answer.usage.completion_tokens)
        assert row.drafter == "ngram" and row.history_mode == "live" and row.decode_s is not None
        assert (row.tau is None) == (row.rounds == 0)
    assert [len(session.decode_points()) for session in running.sessions] == [2, 1]
    assert call("report", running.folder).code == 0
    forced = replay(tiny, running.folder / "live.jsonl", tmp_path / "forced", "--mode", "forced", *ROOM)
    assert forced.code == 0, forced.err
    again = {(row.rollout, row.turn): row for row in rows_of(tmp_path / "forced") if row.drafter == "ngram"}
    for row in rows:
        same = again[row.rollout, row.turn]
        assert (same.output_ids, same.tau, same.context_tokens) == (row.output_ids, row.tau, row.context_tokens)


def test_a_stream_says_what_a_whole_answer_says(running: Running) -> None:
    """Fails if pieces are lost, doubled or cut in the middle of a character, or counts are not sent when asked for."""
    whole = running.say("Say something.", max_tokens=40)
    stream = running.say("Say something.", max_tokens=40, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    ends = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices and chunk.choices[0].finish_reason]
    assert ends == [whole.choices[0].finish_reason]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1 and chunks[0].id != whole.id


@pytest.mark.parametrize("stream", [False, True])
def test_calls_come_and_results_go_back(tiny: Path, tmp_path: Path, stream: bool) -> None:
    """Fails if a call is told as text, or the session breaks when its result comes."""
    script = saying(tiny, CALL, "There is one file.")
    with serving(settings(tiny, **{"decode.max_new_tokens": 200}), tmp_path / "run", script=script) as running:
        ask = {"role": "user", "content": "Which files?"}
        answer = running.say(ask, tools=[LS], stream=stream)
        choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
        told = [choice.delta if stream else choice.message for choice in choices]
        (made,) = (made for message in told for made in message.tool_calls or ())
        assert (made.function.name, made.function.arguments) == ("ls", '{"folder": "d"}')
        assert choices[-1].finish_reason == "tool_calls" and not any(message.content for message in told)
        called = {"id": made.id, "type": "function", "function": {"name": "ls", "arguments": made.function.arguments}}
        back = {"role": "assistant", "content": None, "tool_calls": [called]}
        result = {"role": "tool", "tool_call_id": made.id, "content": "a.txt"}
        last = running.say(ask, back, result, tools=[LS])
        assert last.choices[0].message.content == "There is one file." and last.choices[0].finish_reason == "stop"
    assert [(row.rollout, row.turn, row.call_valid) for row in running.rows] == [
        ("session-1", 0, True),
        ("session-1", 1, None),
    ]
    (session,) = running.sessions
    assert [len(message.tool_calls) for message in session.messages] == [0, 1, 0, 0] and session.views == ()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"n": 2}, "n is not computed here"),
        ({"logit_bias": {"5": 1}}, "logit_bias is not computed here"),
        ({"logprobs": True}, "logprobs is not computed here"),
        ({"stop": ["."]}, "stop is not computed here"),
        ({"temperature": 0.7}, "this server decodes with temperature 0"),
        ({"response_format": {"type": "json_object"}}, "response_format is not computed here"),
        ({"tools": [LS], "tool_choice": "required"}, "tool_choice is not enforced here"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, r"tools\[0\]: expected a function"),
        ({"extra_body": {"guided_regex": "a+"}}, "guided_regex is not computed here"),
        ({"max_tokens": 0}, "max_tokens: expected 1 or more"),
        ({"max_tokens": 6000}, "more than the context of 6000"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "image_url"),
        ({"messages": [{"role": "assistant", "content": "I"}]}, "to go on with it is not computed"),
        ({"messages": []}, "messages: expected a list"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_is_not_computed_is_refused_by_name(running: Running, asked: dict[str, Any], says: str) -> None:
    """Fails if a request is answered as if it had asked for something else, or the refusal does not say what it is."""
    whole = {"model": "tiny", "messages": [{"role": "user", "content": "Hi."}], **asked}
    with pytest.raises(openai.BadRequestError, match=says):
        running.client().chat.completions.create(**whole)


def test_another_model_is_not_found(running: Running) -> None:
    """Fails if rows of one model are made of requests for another."""
    with pytest.raises(openai.NotFoundError, match="'gpt-5' is not served; ask for"):
        running.client().chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Hi."}])
    (model,) = running.client().models.list()
    assert model.id.endswith("tiny")
    with pytest.raises(openai.NotFoundError, match="POST /v1/responses is not served"):
        running.client().responses.create(model="tiny", input="Hi.")


def test_what_changes_nothing_is_taken(running: Running) -> None:
    """Fails if a client is refused for sending its defaults."""
    usual = {"temperature": 0, "top_p": 0.9, "seed": 3, "n": 1, "stop": [], "presence_penalty": 0.0, "user": "me"}
    answer = running.say({"role": "developer", "content": "Be brief."}, "Hi.", max_completion_tokens=3, **usual)
    assert answer.usage.completion_tokens <= 3 and answer.choices[0].finish_reason in ("length", "stop")


def test_bodies_are_limited_before_they_are_read(tiny: Path, tmp_path: Path) -> None:
    """Fails if a body of any size, type or shape reaches the engine, or ends the server."""
    import httpx

    with serving(settings(tiny), tmp_path / "run", body_bytes=1000, key="secret") as running:
        route, headers = f"{running.url}/chat/completions", {"authorization": "Bearer secret"}
        kinds = {"content-type": "application/json", **headers}
        for body, kind, status in (
            (b"x" * 1001, kinds, 413),
            (b"{}", {**headers, "content-type": "text/plain"}, 415),
            (b"{", kinds, 400),
            (b'{"model": "\\ud800"}', kinds, 400),
            (b"[" * 999, kinds, 400),
            (b'{"model": NaN}', kinds, 400),
        ):
            answer = httpx.post(route, content=body, headers=kind)
            assert answer.status_code == status and answer.json()["error"]["message"], answer.text
        for key in ("", "secre", "secret2"):
            with pytest.raises(openai.AuthenticationError):
                running.client(key or "none").models.list()
        assert running.client("secret").models.list().data
        assert httpx.get(running.url.replace("/v1", "/health")).json()["status"] == "ok"
    assert "secret" not in (running.folder / "manifest.json").read_text()


def test_a_page_of_a_browser_cannot_use_the_engine(running: Running) -> None:
    """Fails if a name that was made to lead to this machine is answered without a key."""
    import httpx

    for host, status in (("evil.example", 403), ("localhost", 200)):
        assert httpx.get(f"{running.url}/models", headers={"host": host}).status_code == status


def test_one_more_than_may_be_in_flight_is_refused(tiny: Path, tmp_path: Path) -> None:
    """Fails if requests pile up without end, or the refusal costs those that were taken."""
    going, go = Event(), Event()

    def wait() -> None:
        going.set()
        assert go.wait(60)

    answers: list[Any] = []
    with serving(settings(tiny), tmp_path / "run", script=saying(tiny, first=wait), in_flight=1) as running:
        taken = Thread(target=lambda: answers.append(running.say("First.")))
        taken.start()
        assert going.wait(60)
        with pytest.raises(openai.RateLimitError, match="1 requests are in flight"):
            running.say("Second.")
        go.set()
        taken.join()
        assert answers[0].choices[0].message.content == "Done."
        assert running.say("Third.").choices[0].message.content == "Done."
    assert len(running.rows) == 2


def test_a_client_that_leaves_costs_its_own_request_only(tiny: Path, tmp_path: Path) -> None:
    """Fails if the engine goes on for nobody, the row hides it, or the next request finds what was left behind."""
    long = " ".join(map(str, range(1500)))
    with serving(settings(tiny), tmp_path / "run", script=saying(tiny, "Before.", long, "After.")) as running:
        before = running.say("Hello.")
        stream = running.say("Count.", max_tokens=5500, stream=True)
        next(iter(stream))
        stream.close()
        after = running.say("Hello.", echo(before), "Again.")
        retried = running.say("Count.")
    assert after.choices[0].message.content == "After." and retried.choices[0].message.content == "Done."
    rows = running.rows
    assert outputs(rows) == [
        ("session-1", 0, "ok"),
        ("session-2", 0, "error"),
        ("session-1", 1, "ok"),
        ("session-2", 1, "ok"),
    ]
    left = rows[1]
    assert left.error is not None and "the client left after" in left.error
    assert left.output_tokens is not None and 0 < left.output_tokens < len(long)
    assert rows[2].drift_tokens is not None and rows[2].reused_tokens is not None
    counted = next(session for session in running.sessions if session.id == "session-2")
    assert [len(view.show) for view in counted.views] == [0], "the broken answer was seen by no later request"


def test_whoever_does_not_wait_for_a_whole_answer_is_noticed(tiny: Path, tmp_path: Path) -> None:
    """Fails if only streams notice that a client is gone."""
    long = " ".join(map(str, range(1500)))
    with serving(settings(tiny), tmp_path / "run", script=saying(tiny, long)) as running:
        with pytest.raises(openai.APITimeoutError):
            running.client().with_options(timeout=0.3).chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Count."}], max_tokens=5500
            )
        assert running.say("Hello.").choices[0].message.content == "Done."
    assert [row.status for row in running.rows] == ["error", "ok"]


def test_a_drafter_that_fails_costs_its_own_request_only(tiny: Path, tmp_path: Path) -> None:
    """Fails if a plugin that raises ends the server, or leaves it unable to answer."""
    config = settings(tiny, drafters=["odd_plugins:short_sighted"])
    with serving(config, tmp_path / "run") as running:
        with pytest.raises(openai.InternalServerError, match="the engine failed: RuntimeError: too long for me"):
            running.say("Hello. " * 60)
        assert running.say("Hello.").usage.completion_tokens > 0
    assert [row.status for row in running.rows] == ["error", "ok"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_that_is_told_to_stop_finishes_its_folder(tiny: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Fails if Ctrl-C, or what ends a service, leaves a run without sessions and summary, or looks like a fault."""
    import httpx

    command = ["serve", "--target", tiny, "--drafter", "ngram", "--port", 0, "--out", tmp_path / "run"]
    command += ["--max-new-tokens", 8, "--set", "target.fast_linears=false", "--api-key", "of-nobody-else"]
    started = [sys.executable, "-m", "agentbench_spec", *map(str, command)]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = next(found[1] for line in process.stderr if (found := re.search(r"listening on (\S+) as", line)))
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hi."}]}
        key = {"authorization": "Bearer of-nobody-else"}
        assert httpx.post(f"{url}/chat/completions", json=asked, headers=key, timeout=60).status_code == 200
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["requests"] == 1
    assert [row.status for row in rows_of(tmp_path / "run")] == ["ok"]
    manifest = (tmp_path / "run" / "manifest.json").read_text()
    assert json.loads(manifest)["finished"] and "of-nobody-else" not in manifest
    assert len(list(read_rollouts(tmp_path / "run" / "live.jsonl"))) == 1


def test_an_open_address_needs_a_key(tiny: Path, tmp_path: Path) -> None:
    """Fails if anybody on the network can use the engine."""
    with (
        pytest.raises(ConfigError, match=r"--host 0.0.0.0 lets other machines use the engine; give --api-key"),
        serving(settings(tiny), tmp_path / "run", host="0.0.0.0"),
    ):
        pass


def test_a_taken_port_is_said_before_the_model_is_loaded(tiny: Path, running: Running) -> None:
    """Fails if a user waits for a model only to hear that the port is taken."""
    port = running.url.rpartition(":")[2].partition("/")[0]
    began = time.monotonic()
    done = call("serve", "--drafter", "ngram", "--target", tiny, "--port", port)
    assert done.code == 2 and "cannot be had" in done.error and "loading" not in done.err
    assert time.monotonic() - began < 60


def test_what_cannot_be_served_is_refused(tiny: Path) -> None:
    """Fails if a mistake in the options shows only once a client asks."""
    assert "did you mean 'ngram'" in call("serve", "--drafter", "ngrm", "--target", tiny).error
    assert "--port 70000" in call("serve", "--drafter", "ngram", "--port", "70000").error
    backend = ("--set", "backend=sglang", "--set", 'sglang.base_urls=["http://127.0.0.1:1"]')
    assert call("serve", "--drafter", "ngram", *backend).code == 2
