"""Run folders on an object store: written while they grow, resumed elsewhere, read by address, never half."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from reportkit import MANIFEST, two_rollouts, write_run
from runkit import SMALL, call, replay, rows_of, without_clocks

import agentbench_spec as ab
from agentbench_spec.errors import ConfigError, DataWarning
from agentbench_spec.results.folder import completed_rollouts, read_run
from agentbench_spec.results.machines.store import reading, store_of, url_of, writing
from agentbench_spec.results.writer import RunWriter
from agentbench_spec.writing import cache_root


class Flaky(MemoryFileSystem):
    """A store that takes nothing while `down`."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    down = False

    def pipe_file(self, *arguments: Any, **options: Any) -> Any:
        if Flaky.down:
            raise ConnectionError("no route")
        return super().pipe_file(*arguments, **options)


fsspec.register_implementation("flaky", Flaky, clobber=True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cache of this test's own, and empty stores."""
    monkeypatch.setenv("AGENTBENCH_SPEC_CACHE", str(tmp_path / "cache"))
    for system in (fsspec.filesystem("memory"), fsspec.filesystem("flaky")):
        system.store.clear()
    Flaky.down = False
    yield


def names(url: str) -> set[str]:
    """Files at an address."""
    system, path = fsspec.core.url_to_fs(url)
    return {str(name).rsplit("/", 1)[-1] for name in system.ls(path, detail=False)}


def elsewhere() -> None:
    """Forget what this machine holds, as another one would."""
    shutil.rmtree(cache_root(), ignore_errors=True)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/run", "s3://bucket/run"),
        (Path("s3://bucket/run/"), "s3://bucket/run"),
        ("abfs+x://c/r", "abfs+x://c/r"),
        ("results/run", None),
        ("/results/run", None),
        ("C:/results", None),
        ("file:///results", None),
    ],
)
def test_an_address_is_told_from_a_path(text: str | Path, url: str | None) -> None:
    """Fails if a path's one slash makes a local folder called "s3:" of an address."""
    assert url_of(text) == url


def test_no_address_leads_out_of_the_cache() -> None:
    """Fails if a copy is made, and removed, where other files lie."""
    place = writing("memory://../../run")
    assert cache_root() in place.parents and ".." not in place.parts


def test_a_run_grows_at_the_store_and_is_read_from_it(tiny: Path, rollouts: Path) -> None:
    """Fails if a run at an address is not whole there, or reads otherwise than one in a folder."""
    url = "memory://bucket/run"
    done = call("run", "--target", tiny, "--workload", rollouts, "--out", url, *SMALL, "--drafter", "ngram")
    assert done.code == 0 and done.last["run"] == url and f"summary: {url}" in done.err
    assert names(url) == {"manifest.json", "turns.jsonl", "rollouts.jsonl", "turns.parquet", "summary.json"}
    elsewhere()
    run = ab.load(url)
    assert run.finished and len(run.rows) == 18
    again = call("run", "--target", tiny, "--workload", rollouts, "--out", url, *SMALL)
    assert again.code == 2 and "already holds a run" in again.error
    assert call("compare", url, url).code == 0


def test_a_killed_run_goes_on_on_another_machine(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if rollouts that were sent are decoded again, or rows of one that was not are believed."""
    whole = tmp_path / "whole"
    replay(tiny, rollouts, whole, "--drafter", "ngram")
    manifest, rows = read_run(whole)
    url = "memory://bucket/killed"
    first = [row for row in rows if row.rollout == "a"]
    unfinished = {name: value for name, value in manifest.items() if name not in ("finished", "resumes", "schema")}
    with RunWriter.create(writing(url), unfinished) as writer:
        for turn in (0, 1, 2):
            writer.turn([row for row in first if row.turn == turn])
        writer.rollout_done("a")
        writer.turn([row for row in rows if (row.rollout, row.turn) == ("b", 0)])
    elsewhere()
    assert set(completed_rollouts(reading(url))) == {"a"}
    done = call("run", "--resume", "--out", url)
    assert done.code == 0, done.err
    run = ab.load(url)
    assert without_clocks(run.rows) == without_clocks(rows)
    assert [row.decode_s for row in run.rows if row.rollout == "a"] == [row.decode_s for row in first]


def test_what_this_machine_holds_beyond_the_store_is_kept(tiny: Path) -> None:
    """A store was down while a rollout ended. Fails if a resume takes the older state from the store."""
    rows, url = two_rollouts(), "flaky://bucket/run"
    with RunWriter.create(writing(url), MANIFEST) as writer:
        for name in ("r0", "r1"):
            for turn in (0, 1):
                writer.turn([row for row in rows if (row.rollout, row.turn) == (name, turn)])
            if name == "r1":
                Flaky.down = True
                with pytest.warns(DataWarning, match="is sent later"):
                    writer.rollout_done(name)
            else:
                writer.rollout_done(name)
    assert set(completed_rollouts(writing(url))) == {"r0", "r1"}
    Flaky.down = False
    elsewhere()
    assert set(completed_rollouts(writing(url))) == {"r0"}


def test_a_store_that_is_down_at_the_end_is_named_with_where_the_run_is() -> None:
    """Fails if a finished run is lost, or believed to be where it is not."""
    url = "flaky://bucket/run"
    folder = writing(url)
    Flaky.down = True
    with pytest.warns(DataWarning), pytest.raises(ConfigError, match=f"whole in {folder}"):
        write_run(folder, two_rollouts())
    assert len(rows_of(folder)) == 8 and store_of(folder) is not None


def test_shards_at_a_store_are_merged_to_one(tmp_path: Path) -> None:
    """Fails if tasks of an array that share nothing but a bucket cannot be joined."""
    for index in (1, 2):
        own = {"index": index, "of": 2, "rollouts": [f"r{index - 1}"], "all": ["r0", "r1"]}
        rows = [row for row in two_rollouts() if row.rollout == f"r{index - 1}"]
        write_run(writing(f"memory://bucket/part-{index}"), rows, shard=own)
    elsewhere()
    done = call("merge", "memory://bucket/part-1", "memory://bucket/part-2", "-o", "memory://bucket/whole")
    assert done.code == 0, done.err
    assert done.last["run"] == "memory://bucket/whole" and "turns.parquet" in names("memory://bucket/whole")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("memory://bucket/none", "memory://bucket/none holds no run"),
        ("nosuch://bucket/run", "nosuch://bucket/run"),
    ],
)
def test_what_is_not_there_is_named_by_its_address(address: str, says: str, tmp_path: Path) -> None:
    """Fails if a reader is told of a folder of the cache, or of an error of the store's library."""
    done = call("export", address, "-o", tmp_path / "table.md")
    assert done.code == 2 and says in done.error


def test_results_of_a_table_stay_on_this_machine() -> None:
    """Fails if an address becomes a folder called "s3:"."""
    done = call("reproduce", "table3", "--embedded", "--results", "s3://bucket/results")
    assert done.code == 2 and "--results s3://bucket/results" in done.error
