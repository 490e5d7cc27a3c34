"""Addresses and keys: what is sent, what is refused, and what is never written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from localmodel import save_rollouts, session
from runkit import call
from servedkit import Behaviour, FakeServer, launching, served, settings

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.serving import access
from agentbench_spec.serving.engines.sglang_client import SGLangClient as Client
from agentbench_spec.serving.served_run import run_served

KEY = "hush-4f21"


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    return save_rollouts(tmp_path / "rollouts.jsonl", *(session(name, 3) for name in "ab"))


def written(folder: Path) -> str:
    """Everything a run left, as text."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".parquet"]
    return "".join(path.read_text() for path in files)


@pytest.mark.parametrize("client", ["generate", "chat"])
def test_key_opens_every_route_and_is_written_nowhere(model: Path, rollouts: Path, tmp_path: Path, client: str) -> None:
    """Given on the command line, to a server that tells its own keys in /server_info: the run folder is published."""
    behaviour = Behaviour({"random_seed": 7}, api_key=KEY, admin_api_key=KEY)
    config_of = {"sglang__client": client, "sglang__warm_up_rollouts": 1}
    with FakeServer(behaviour) as plain:
        config = settings(model, rollouts, plain.base_url, **config_of)
        argv = ["agentbench-spec", "run", "--api-key", KEY, f"--api-key={KEY}"]
        done = run_served(config, tmp_path / "run", argv=argv, api_key=KEY, environ={})
        flushes = plain.flushes
    assert len(done.rows) == 6 and all(row.status == "ok" for row in done.rows) and flushes == 1
    text = written(tmp_path / "run")
    assert KEY not in text and '"random_seed": 7' in text
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["argv"][2:] == [
        "--api-key",
        "***",
        "--api-key=***",
    ]


def test_key_of_the_environment(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """The variable that OpenAI's clients read; a flag wins over it."""
    environ = {"OPENAI_API_KEY": KEY}
    with FakeServer(Behaviour(api_key=KEY)) as plain:
        config = settings(model, rollouts, plain.base_url)
        assert len(run_served(config, tmp_path / "one", argv=[], environ=environ).rows) == 6
        with pytest.raises(ConfigError, match="does not accept the API key"):
            run_served(config, tmp_path / "two", argv=[], api_key="other", environ=environ)


def test_key_through_the_command_line(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """--api-key reaches the servers; several URLs may stand in one option."""
    with FakeServer(Behaviour(api_key=KEY)) as one, FakeServer(Behaviour(api_key=KEY)) as two:
        urls = f"{one.base_url},{two.base_url}"
        common = (
            "--target",
            model,
            "--workload",
            rollouts,
            "--max-new-tokens",
            12,
            "--set",
            "sglang.warm_up_rollouts=0",
        )
        done = call("run", "--base-url", urls, "--api-key", KEY, *common, "--out", tmp_path / "run")
        asked = len(one.requests) + len(two.requests)
    assert done.code == 0 and asked == 6 and KEY not in done.err + done.out + written(tmp_path / "run")


@pytest.mark.parametrize(("given", "why"), [(None, "wants an API key"), ("wrong-1", "does not accept the API key")])
def test_refused_key_says_so_before_anything_is_measured(
    model: Path, rollouts: Path, tmp_path: Path, given: str | None, why: str
) -> None:
    """401: a ConfigError with both ways to give a key; neither key is repeated."""
    with FakeServer(Behaviour(api_key=KEY, repeats_key=True)) as plain:
        config = settings(model, rollouts, plain.base_url)
        with pytest.raises(ConfigError, match=rf"{why} .*status 401.*--api-key KEY .*OPENAI_API_KEY") as raised:
            run_served(config, tmp_path / "run", argv=[], api_key=given, environ={})
    assert KEY not in str(raised.value) and "wrong-1" not in str(raised.value)


def test_key_that_ends_in_mid_run_ends_the_run(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """A key that is withdrawn is no bad rollout: the run stops, what is done stays, and resume goes on."""
    with FakeServer(Behaviour(api_key=KEY, step_s=0.002)) as plain:
        config = settings(model, rollouts, plain.base_url)
        plain.behaviour.rekey = {4: "new-1"}
        with pytest.raises(ConfigError, match="does not accept the API key"):
            run_served(config, tmp_path / "run", argv=[], api_key=KEY, environ={})
        assert len(plain.requests) == 4
        done = run_served(config, tmp_path / "run", resume=True, argv=[], api_key="new-1", environ={})
    assert len(done.rows) == 6 and "new-1" not in written(tmp_path / "run")


def test_admin_key_is_named_where_only_it_will_do(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """A server with a key of its own for flushing: the message says which key is meant."""
    with FakeServer(Behaviour(admin_api_key="boss")) as plain:
        config = settings(model, rollouts, plain.base_url)
        with pytest.raises(ConfigError, match=r"/flush_cache wants an API key.*--admin-api-key"):
            served(config, tmp_path / "run")


def test_texts_of_failed_requests_do_not_hold_the_key() -> None:
    """Some gateways repeat the request they refuse; such a text becomes a row's error."""
    with (
        FakeServer(Behaviour(flush_refusals=9, flush_text=f"no: Bearer {KEY}")) as plain,
        Client(plain.base_url, api_key=KEY) as client,
        pytest.raises(MeasurementError, match=r"no: Bearer \*\*\*"),
    ):
        client.flush(tries=1)


@pytest.mark.parametrize("key", ["two words", "né", "line\nbreak"])
def test_keys_that_no_header_can_carry(key: str) -> None:
    """Refused in words, without the key, before httpx stumbles over it."""
    with pytest.raises(ConfigError, match="no header can carry") as raised:
        access.api_key(key, {})
    assert key not in str(raised.value)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"sglang__base_urls": ["127.0.0.1:30000"]}, "http://HOST:PORT"),
        ({"sglang__base_urls": ["http://me:hush-4f21@host:1"]}, "holds a password"),
        ({"sglang__server_args": ["--api-key", KEY]}, "leave it out"),
        ({"sglang__server_args": [f"--admin-api-key={KEY}"]}, "leave it out"),
        ({"sglang__server_env": {"HF_TOKEN": KEY}}, "export it in the shell"),
        ({"target__source": "smollm2-135m"}, "SGLang can load"),
    ],
)
def test_refused_before_anything_is_written(
    model: Path, rollouts: Path, tmp_path: Path, more: dict[str, Any], why: str
) -> None:
    """Addresses that are none, and secrets in settings, which a manifest keeps."""
    with pytest.raises(ConfigError, match=why) as raised:
        served(_launch_or_urls(model, rollouts, tmp_path, more), tmp_path / "run")
    assert KEY not in str(raised.value) and not (tmp_path / "run").exists()


def _launch_or_urls(model: Path, rollouts: Path, tmp_path: Path, more: dict[str, Any]) -> RunConfig:
    if "sglang__base_urls" in more:
        return settings(model, rollouts, **more)
    return launching(model, rollouts, tmp_path / "pids", **more)


def test_server_without_a_health_route_is_found_by_its_models(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """A chat-only server answers 404 to /health: it is up, not loading for half an hour."""
    with FakeServer(Behaviour(health=False, server_info=False)) as plain:
        config = settings(model, rollouts, plain.base_url, sglang__client="chat", drafters=["none"])
        assert len(served(config, tmp_path / "run").rows) == 6
