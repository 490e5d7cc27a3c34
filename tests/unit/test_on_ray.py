"""Runs spread by Ray: what a lost worker costs, and, on a local cluster of two nodes, that the run ends by itself.

The collector and a worker's part are tried without Ray; the tests on a cluster are slow and need the package ray.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from localmodel import session
from runkit import call, replay, rows_of, without_clocks

from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.engine.loading import load_tokenizer
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import completed_rollouts, read_manifest
from agentbench_spec.results.machines.merge import merge
from agentbench_spec.rollout import write_rollouts
from agentbench_spec.rollouts.render import Renderer
from agentbench_spec.runs.scale.collector import Collector, Turn, replay_share
from agentbench_spec.runs.scale.shards import Share, all_shares, begun_shards, shard_folder
from agentbench_spec.runs.source import Source, read_source

FLAGS = {"decode.max_new_tokens": 24, "target.fast_linears": False, "measure.threads": 1, "drafters": ["ngram"]}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight rollouts of unlike length."""
    path = tmp_path_factory.mktemp("many") / "many.jsonl"
    write_rollouts(path, [session(f"s{i}", 1 + i % 3, pad=10 * i) for i in range(8)])
    return path


@pytest.fixture(scope="module")
def settings(tiny: Path, many: Path) -> RunConfig:
    """The run that is spread."""
    return load_config(flags={**FLAGS, "target.source": str(tiny), "workload.name": str(many)})


@pytest.fixture(scope="module")
def whole(tiny: Path, many: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run in one piece."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert replay(tiny, many, folder, "--drafter", "ngram", "--set", "measure.threads=1").code == 0
    return folder


def cut(config: RunConfig, of: int) -> tuple[Source, list[Share]]:
    """The rollouts of a run and its shares."""
    source = read_source(config, bar=False)
    return source, all_shares(of, source.rollouts, Renderer(load_tokenizer(config.target.source)), config, 2)


class Lost(RuntimeError):
    """Stands for the end of a worker."""


class Dying:
    """A collector whose worker dies when it sends its rollout number `at`."""

    def __init__(self, collector: Collector, at: int) -> None:
        self._collector, self._left = collector, at

    def kept(self, index: int) -> frozenset[str]:
        return self._collector.kept(index)

    def begin(self, index: int, manifest: Mapping[str, Any]) -> None:
        self._collector.begin(index, manifest)

    def keep(self, index: int, rollout: str, turns: Sequence[Turn], status: str, error: str | None) -> None:
        if self._left == 0:
            raise Lost
        self._left -= 1
        self._collector.keep(index, rollout, turns, status, error)

    def end(self, index: int, facts: Mapping[str, Any]) -> None:
        self._collector.end(index, facts)


def test_a_lost_worker_costs_the_rollout_it_was_at(settings: RunConfig, whole: Path, tmp_path: Path) -> None:
    """Fails if a retried shard begins anew, loses or doubles a rollout, or joins to other rows than one run's."""
    source, shares = cut(settings, 2)
    collector, run = Collector(tmp_path / "run"), tmp_path / "run"
    with pytest.raises(Lost):
        replay_share(settings, shares[0], source.rollouts, source.name, source.facts, Dying(collector, 2))
    assert len(collector.kept(1)) == 2 and not (run / "manifest.json").exists()
    before = [row.decode_s for row in rows_of(shard_folder(run, 1))]
    for share in shares:
        replay_share(settings, share, source.rollouts, source.name, source.facts, collector)
    assert [row.decode_s for row in rows_of(shard_folder(run, 1))][: len(before)] == before
    assert len(read_manifest(shard_folder(run, 1))["resumes"]) == 1
    assert collector.progress() == (len(rows_of(whole)) // 2, 8)
    merge([shard_folder(run, 1), shard_folder(run, 2)], run)
    assert without_clocks(rows_of(run)) == without_clocks(rows_of(whole))


def test_a_rollout_that_is_sent_twice_counts_once(settings: RunConfig, tmp_path: Path) -> None:
    """A machine that was thought dead goes on sending. Fails if its rows stand beside those of its successor."""
    source, shares = cut(settings, 4)
    collector = Collector(tmp_path / "run")
    with pytest.raises(Lost):
        replay_share(settings, shares[0], source.rollouts, source.name, source.facts, Dying(collector, 1))
    (name,) = collector.kept(1)
    collector.begin(1, read_manifest(shard_folder(tmp_path / "run", 1)))
    before = rows_of(shard_folder(tmp_path / "run", 1))
    collector.keep(1, name, [(before[:2], [])], "ok", None)
    assert rows_of(shard_folder(tmp_path / "run", 1)) == before


def test_a_shard_that_lacks_only_its_end_is_ended(settings: RunConfig, tmp_path: Path) -> None:
    """A worker dies behind its last rollout. Fails if a model is loaded again for nothing, or the shard never ends."""
    source, shares = cut(settings, 8)

    class Unended(Dying):
        def end(self, index: int, facts: Mapping[str, Any]) -> None:
            raise Lost

    collector = Collector(tmp_path / "run")
    with pytest.raises(Lost):
        replay_share(settings, shares[0], source.rollouts, source.name, source.facts, Unended(collector, 9))
    again = settings.model_copy(update={"target": settings.target.model_copy(update={"source": "no/such-model"})})
    collector.close()
    replay_share(again, shares[0], source.rollouts, source.name, source.facts, Collector(tmp_path / "run"))
    assert read_manifest(shard_folder(tmp_path / "run", 1))["finished"]


def test_an_unlike_machine_is_refused_when_it_begins(settings: RunConfig, tmp_path: Path) -> None:
    """Fails if hours are spent on a GPU of another model, whose rows cannot be joined to the others'."""
    source, shares = cut(settings, 2)
    collector = Collector(tmp_path / "run")
    replay_share(settings, shares[0], source.rollouts, source.name, source.facts, collector)
    manifest = read_manifest(shard_folder(tmp_path / "run", 1))
    other = manifest | {"host": manifest["host"] | {"cpu": "another"}, "shard": shares[1].as_dict()}
    with pytest.raises(ConfigError, match=r"host\.cpu"):
        collector.begin(2, other)
    assert begun_shards(tmp_path / "run") == [shard_folder(tmp_path / "run", 1)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--on", "ray", "--shard", "1/2"), "--shard 1/2 and --on ray"),
        (("--shards", "2"), "--on ray"),
        (("--on", "ray", "--device", "cuda:1"), "target.device=cuda:1"),
        (("--on", "ray", "--live", "--workload", "synthetic_agent"), "replay.history=live"),
    ],
)
def test_what_cannot_be_spread_is_refused(tiny: Path, many: Path, arguments: tuple[object, ...], says: str) -> None:
    """Fails if two ways of cutting a run meet, or a run is cut that cannot be."""
    done = call("run", "--target", tiny, "--workload", many, *arguments)
    assert done.code == 2 and says in done.error


def test_tables_that_cannot_be_spread_are_refused() -> None:
    """Fails if a throughput of one GPU is measured on several."""
    done = call("reproduce", "table4", "--embedded", "--on", "ray")
    assert done.code == 2 and "--on ray: table4" in done.error


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed")
def test_a_missing_ray_is_named_with_the_command_that_adds_it(tiny: Path, many: Path) -> None:
    """Fails if --on ray without Ray ends in an ImportError after the model is loaded."""
    done = call("run", "--target", tiny, "--workload", many, "--on", "ray")
    assert done.code == 2 and "pip install 'agentbench-spec[ray]'" in done.error


# on a cluster

on_a_cluster = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray: pip install 'agentbench-spec[ray]'"),
]


@pytest.fixture
def nodes() -> Any:
    """A Ray cluster of two nodes with one core each in this machine; (cluster, second node)."""
    import ray
    from ray.cluster_utils import Cluster

    size = {"num_cpus": 1, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**size, "include_dashboard": False})
    second = cluster.add_node(**size)
    ray.init(address=cluster.address, log_to_driver=False)
    cluster.wait_for_nodes()
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


class TestOnACluster:
    """Ray itself."""

    pytestmark = on_a_cluster

    def test_a_spread_run_has_the_rows_of_one(
        self, settings: RunConfig, whole: Path, tmp_path: Path, nodes: Any
    ) -> None:
        """Fails if rollouts are lost between workers and the machine that asked, or told in another order."""
        from agentbench_spec.runs.scale.on_ray import run_on_ray

        said: list[str] = []
        done = run_on_ray(settings, tmp_path / "run", tell=said.append, bar=False)
        assert without_clocks(done.rows) == without_clocks(rows_of(whole)) and done.void == []
        assert any("2 shards on 2 nodes" in line for line in said)
        with pytest.raises(ConfigError, match="already holds a run"):
            run_on_ray(settings, tmp_path / "run", bar=False)

    def test_a_node_killed_in_mid_run_costs_its_rollout_and_the_run_ends(
        self, tiny: Path, settings: RunConfig, tmp_path: Path, nodes: Any
    ) -> None:
        """Fails if the rows that a dead node had sent are decoded again, or the run waits for it for ever."""
        from agentbench_spec.runs.scale.on_ray import run_on_ray

        cluster, second = nodes
        long, whole = tmp_path / "long.jsonl", tmp_path / "whole"
        write_rollouts(long, [session(f"s{i}", 3) for i in range(40)])
        assert replay(tiny, long, whole, "--drafter", "ngram", "--set", "measure.threads=1").code == 0
        settings = settings.model_copy(update={"workload": settings.workload.model_copy(update={"name": str(long)})})
        run = tmp_path / "run"
        kept: dict[int, frozenset[str]] = {}

        def kill() -> None:
            deadline = time.monotonic() + 300
            while time.monotonic() < deadline:
                kept.update({i: frozenset(completed_rollouts(shard_folder(run, i))) for i in (1, 2)})
                if all(kept.values()):
                    break
                time.sleep(0.02)
            cluster.remove_node(second, allow_graceful=False)

        killer = threading.Thread(target=kill)
        killer.start()
        done = run_on_ray(settings, run, bar=False)
        killer.join()
        assert all(kept.values()), "the node was killed before, or after, there was something to lose"
        assert without_clocks(done.rows) == without_clocks(rows_of(whole))
        assert sum(len(shard["resumes"]) for shard in read_manifest(run)["shards"]) == 1, "one shard went on elsewhere"

    def test_a_shard_that_fails_is_named_and_the_others_are_kept(
        self, settings: RunConfig, tmp_path: Path, nodes: Any
    ) -> None:
        """Fails if a broken plugin is tried for ever, or its author does not hear what broke."""
        from agentbench_spec.runs.scale.on_ray import run_on_ray

        broken = settings.model_copy(update={"drafter_options": {"ngram": {"max_n": -1}}})
        with pytest.raises(ConfigError, match=r"shard 1/2: .*--on ray --resume"):
            run_on_ray(broken, tmp_path / "run", bar=False)
