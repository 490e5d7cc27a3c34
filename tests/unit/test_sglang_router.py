"""Runs through a router: its workers are described, flushed and counted one by one, and it alone is asked for turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from localmodel import save_rollouts, session
from servedkit import EAGLE3, Behaviour, FakeRouter, FakeServer, of, served, settings, timeless

from agentbench_spec.errors import ConfigError


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    return save_rollouts(tmp_path / "rollouts.jsonl", *(session(name, 3) for name in "abcd"))


def test_a_router_leaves_the_rows_of_its_workers(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if requests pass the router by, or what stands behind it is not described, emptied and counted."""
    one, two = FakeServer(Behaviour(dict(EAGLE3))), FakeServer(Behaviour(dict(EAGLE3)))
    with FakeServer() as plain, one, two, FakeRouter(one.base_url, two.base_url) as router:
        config = settings(model, rollouts, plain.base_url, router.base_url)
        done = served(config, tmp_path / "routed")
        assert (one.flushes, two.flushes) == (1, 1) and plain.counters["num_requests"] == 12
        assert one.counters["num_requests"] == two.counters["num_requests"] == 6
        direct = served(settings(model, rollouts, plain.base_url, one.base_url, two.base_url), tmp_path / "direct")
    assert {row.server for row in of(done, "eagle3")} == {router.base_url}
    assert sorted(map(_key, done.rows)) == sorted(map(_key, direct.rows))
    (window,) = json.loads((tmp_path / "routed" / "serving.json").read_text())["eagle3"]["windows"]
    assert window["servers"] == 2 and window["counters"]["disagreements"] == []
    assert window["server_accept_length"]["each"] == [None], "averages of two workers have no common weight"
    (part,) = json.loads((tmp_path / "routed" / "parts" / "eagle3" / "manifest.json").read_text())["servers"]
    assert part["info"]["behind_router"] == [one.base_url, two.base_url]


def _key(row: Any) -> str:
    return json.dumps(timeless(row), sort_keys=True, default=str)


def test_concurrency_is_that_of_each_worker(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if the rows of a router at concurrency 2 stand for servers at half of it."""
    slow = [FakeServer(Behaviour(step_s=0.02)) for _ in range(2)]
    with slow[0], slow[1], FakeRouter(*(own.base_url for own in slow)) as router:
        served(settings(model, rollouts, router.base_url, sglang__concurrency=2), tmp_path / "run")
    assert sum(own.most_at_once for own in slow) >= 3, "four rollouts are in flight, wherever the router sends them"


def test_prefixes_that_a_routers_choice_costs_are_told(model: Path, tmp_path: Path) -> None:
    """Fails if turns that a router sent to the worker without their prefix pass for turns as usual."""
    alone = save_rollouts(tmp_path / "alone.jsonl", session("a", 3))
    pair = [FakeServer(), FakeServer()]
    with pair[0], pair[1], FakeRouter(*(own.base_url for own in pair)) as router:
        done = served(settings(model, alone, router.base_url), tmp_path / "run")
    assert any("found a shorter cached prefix than expected" in note for note in done.notes)


def test_ranks_of_one_worker_are_one_server(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if a worker listed once for each data-parallel rank is counted, or flushed, several times."""
    with FakeServer() as worker, FakeRouter(f"{worker.base_url}@0", f"{worker.base_url}@1") as router:
        router.next = lambda: worker.base_url  # type: ignore[method-assign]
        served(settings(model, rollouts, router.base_url), tmp_path / "run")
        assert worker.flushes == 1 and worker.counters["num_requests"] == 12


def test_workers_of_unlike_drafters_are_refused(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if one row is plain decoding's and the next a drafter's, as the router pleases."""
    one, two = FakeServer(), FakeServer(Behaviour(dict(EAGLE3)))
    refused = pytest.raises(ConfigError, match="differ in speculative_algorithm")
    with one, two, FakeRouter(one.base_url, two.base_url) as router, refused:
        served(settings(model, rollouts, router.base_url), tmp_path / "run")


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ({"is_healthy": False}, "is not healthy"),
        ({"worker_type": "prefill"}, "does only the prefill"),
        ({"url": "grpc://127.0.0.1:20000"}, "does not speak HTTP"),
        ({"url": "http://127.0.0.1:9"}, "is not reached from here"),
    ],
)
def test_workers_that_cannot_be_asked_are_refused(
    model: Path, rollouts: Path, tmp_path: Path, odd: dict[str, Any], says: str
) -> None:
    """Fails if a run begins through workers of which nothing is known."""
    refused = pytest.raises(ConfigError, match=says)
    with FakeServer() as worker, FakeRouter(worker.base_url, **odd) as router, refused:
        served(settings(model, rollouts, router.base_url), tmp_path / "run")


def test_a_router_without_workers_is_refused(model: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if a router that can answer nothing is taken for a server."""
    with FakeRouter() as router, pytest.raises(ConfigError, match="router without workers"):
        served(settings(model, rollouts, router.base_url), tmp_path / "run")
