"""The hub, by its own library over HTTP from a stand-in on this machine: commits, pins, warnings, and no hub at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agentbench_spec_workloads.locate import HubSource, locate
from local_hub import LocalHub, local_hub
from typer.testing import CliRunner

from agentbench_spec.cli import app
from agentbench_spec.errors import ConfigError, DataWarning
from agentbench_spec.plugins import load_workload
from agentbench_spec.runs.source import data_facts, load_rollouts

REPO, FILE = "HuggingFaceH4/mt_bench_prompts", "data/train-00000-of-00001.parquet"
UNPINNED = HubSource("acme/set", ("data/*.jsonl",), "mit")


def prompts(text: str, number: int = 1) -> bytes:
    """A file of mt_bench with one row."""
    row = {"prompt_id": number, "prompt": [text, "And then?"], "category": "writing"}
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([row]), sink)
    return sink.getvalue()


READER = """
import json, os, sys, warnings
from agentbench_spec.errors import AgentBenchError
from agentbench_spec.plugins import load_workload
for line in sys.stdin:
    call = json.loads(line)
    os.environ.update(call["env"])
    with warnings.catch_warnings(record=True) as caught:
        try:
            made = list(load_workload("mt_bench", **call["options"]).rollouts())
            said = {"source": made[0].source, "text": made[0].messages[0].content, "rollouts": len(made)}
        except AgentBenchError as error:
            said = {"error": str(error)}
    for name in call["env"]:
        del os.environ[name]
    print(json.dumps({**said, "warnings": [str(w.message) for w in caught]}), flush=True)
"""


class Reader:
    """A process of its own that may use the network, told that the hub is at `url`; it loads mt_bench when asked."""

    def __init__(self, url: str, **environ: str) -> None:
        online = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
        env = {**online, "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1", **environ}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", READER], stdin=pipe, stdout=pipe, text=True, env=env)

    def __call__(self, home: Path, revision: str | None = None, **environ: str) -> dict[str, Any]:
        """What loading says: source, text, number of rollouts and warnings, or the error. home: of the cache."""
        env = {"HF_HUB_CACHE": str(home / "hub"), **environ}
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps({"env": env, "options": {"revision": revision}}), file=self.process.stdin, flush=True)
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        return said

    def close(self) -> None:
        self.process.communicate()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[LocalHub, Reader]]:
    """One hub and one reader for all tests: the libraries take seconds to load."""
    with local_hub() as hub:
        reader = Reader(hub.url)
        yield hub, reader
        reader.close()


@pytest.fixture
def hub(served: tuple[LocalHub, Reader]) -> LocalHub:
    served[0].reset()
    return served[0]


@pytest.fixture
def read(served: tuple[LocalHub, Reader]) -> Reader:
    return served[1]


def test_commits_are_resolved_recorded_and_can_be_asked_for_again(tmp_path: Path, hub: LocalHub, read: Reader) -> None:
    """Fails if the newest commit is read without a warning that names it, a pinned one is not read after the data set
    has moved on, or a wrong one falls back to another."""
    old = hub.commit(REPO, {FILE: prompts("old"), "mt_bench.py": b"raise SystemExit", "data/train-0.pkl": b"no"})
    first = read(tmp_path)
    new = hub.commit(REPO, {FILE: prompts("new")})
    newest, pinned, branch, gone = (read(tmp_path, revision) for revision in (None, old, "main", "c" * 40))
    assert (first["text"], first["source"]["revision"]) == ("old", old)
    (said,) = first["warnings"]
    assert said.startswith(f"data set {REPO}: no revision is pinned; read at commit {old}.") and f"={old}" in said
    assert (newest["text"], newest["source"]["revision"]) == ("new", new) and len(newest["warnings"]) == 1
    assert (pinned["text"], pinned["source"]["revision"], pinned["warnings"]) == ("old", old, [])
    assert branch["text"] == "new" and "'main' is a name that may move" in branch["warnings"][0]
    assert REPO in gone["error"] and f"no revision {'c' * 40}" in gone["error"] and "give data=PATH" in gone["error"]
    assert not any(name in path for path in hub.asked for name in ("mt_bench.py", ".pkl")), "a script was fetched"


def test_the_second_read_needs_no_hub(tmp_path: Path, hub: LocalHub, read: Reader) -> None:
    """Fails if a pinned commit that is in the cache is asked for again, or fetched data is not found offline: by its
    commit, by the branch as it last stood, or with no revision at all."""
    old = hub.commit(REPO, {FILE: prompts("old")})
    read(tmp_path, old)
    hub.asked.clear()
    assert (read(tmp_path, old)["text"], hub.asked) == ("old", [])
    alone = read(tmp_path, HF_HUB_OFFLINE="1")
    assert alone["source"]["revision"] == old, "it is the one commit there is"
    new = hub.commit(REPO, {FILE: prompts("new")})
    read(tmp_path)
    hub.asked.clear()
    offline = Reader(hub.url, HF_HUB_OFFLINE="1")
    newest, branch, pinned, never = (offline(tmp_path, revision) for revision in (None, "main", old, "c" * 40))
    offline.close()
    assert hub.asked == []
    assert [newest["source"]["revision"], branch["source"]["revision"]] == [new, new]
    assert f"read at commit {new}" in newest["warnings"][0]
    assert (pinned["text"], pinned["warnings"]) == ("old", [])
    assert "offline (HF_HUB_OFFLINE is set)" in never["error"] and "c" * 40 in never["error"]


def test_who_may_not_read_a_data_set_is_told_to_log_in(tmp_path: Path, hub: LocalHub, read: Reader) -> None:
    """Fails if a gated or private data set looks like a missing one, the page with its terms is not named, or a token
    does not help."""
    commit = hub.commit(REPO, {FILE: prompts("for members")})
    hub.gated, hub.members = {REPO}, {"hf_member"}
    stranger, refused = read(tmp_path / "a"), read(tmp_path / "b", HF_TOKEN="hf_other")
    member = read(tmp_path / "c", HF_TOKEN="hf_member")
    hub.private = {REPO}
    hidden, kept = read(tmp_path / "d"), read(tmp_path / "c", commit)
    for said, status in ((stranger, 401), (refused, 403)):
        terms = f"it is gated ({status}); accept its terms at {hub.url}/datasets/{REPO}"
        assert all(part in said["error"] for part in (terms, "`hf auth login`", "HF_TOKEN", "data=PATH"))
    assert member["text"] == kept["text"] == "for members"
    assert "access is refused (401)" in hidden["error"] and "`hf auth login`" in hidden["error"]


def test_what_the_hub_does_not_have_is_named(tmp_path: Path, hub: LocalHub, read: Reader) -> None:
    """Fails if a missing data set, or one without the wanted files, ends in a traceback or names no way out."""
    none = read(tmp_path, HF_TOKEN="hf_any")
    assert f"the hub did not give {REPO}" in none["error"] and "there is none of that name (404)" in none["error"]
    commit = hub.commit(REPO, {"README.md": b"# Gone", "old/train.csv": b"a,b"})
    assert read(tmp_path)["error"] == f"{REPO} at {commit} has no file data/train-*.parquet; it holds 2 others"


def test_a_hub_out_of_order_is_no_fault_of_the_user(tmp_path: Path, hub: LocalHub, read: Reader) -> None:
    """Fails if an error of the server is taken for a refusal, or what the cache holds is not used meanwhile."""
    commit = hub.commit(REPO, {FILE: prompts("kept")})
    hub.down = 503
    said = read(tmp_path)
    assert "503" in said["error"] and "log in" not in said["error"] and "data=FOLDER" in said["error"]
    hub.down = None
    read(tmp_path)
    hub.down = 500
    newest = read(tmp_path)
    assert newest["text"] == read(tmp_path, commit)["text"] == "kept" and newest["source"]["revision"] == commit


def test_a_download_that_breaks_off_goes_on(tmp_path: Path, hub: LocalHub, read: Reader) -> None:
    """Fails if a lost connection leaves half a file, or half a data set that passes for the whole; or if what was
    fetched is fetched again."""
    shards = {f"data/train-{number}.parquet": prompts("x" * 1000, number) for number in (0, 1)}
    first, second = shards
    commit = hub.commit(REPO, shards)
    hub.cut = {first: [500], second: [0] * 20}
    assert "what was fetched is kept, and the same command goes on from there" in read(tmp_path, commit)["error"]
    assert "does not hold" in read(tmp_path, commit, HF_HUB_OFFLINE="1")["error"]
    hub.cut, hub.asked = {}, []
    whole = read(tmp_path, commit)
    assert whole["rollouts"] == 2 and whole["source"]["sha256"] == hashlib.sha256(shards[first]).hexdigest()
    assert not any(first in line for line in hub.asked), "it was whole"


def test_without_a_hub_the_way_out_is_said_in_seconds(tmp_path: Path, hub: LocalHub, read: Reader) -> None:
    """Fails if a machine without network waits through retries, or is not told the file, the place and the cause; and
    if it is refused what its cache holds."""
    commit = hub.commit(REPO, {FILE: prompts("kept")})
    read(tmp_path / "full")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nowhere = Reader(f"http://127.0.0.1:{unused.getsockname()[1]}")
    kept = nowhere(tmp_path / "full")
    start = time.monotonic()
    said, pinned = nowhere(tmp_path / "empty"), nowhere(tmp_path / "empty", "c" * 40)
    assert time.monotonic() - start < 15
    nowhere.close()
    for part in ("the hub did not give", REPO, "data/train-*.parquet", "hf download", "data=FOLDER"):
        assert part in said["error"] and part in pinned["error"]
    assert "OFFLINE" not in said["error"], "a variable that is not set is blamed"
    assert (kept["text"], kept["source"]["revision"]) == ("kept", commit)


def snapshot(cache: Path, repo: str, commit: str, name: str, data: bytes) -> Path:
    """A file in a hub cache, as the hub's library lays it out."""
    path = cache / f"datasets--{repo.replace('/', '--')}" / "snapshots" / commit / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_each_unpinned_data_set_is_warned_of_once(tmp_path: Path) -> None:
    """Fails if two unpinned data sets share a warning, one is warned of again and again, or a pinned one at all."""
    other = HubSource("acme/other", UNPINNED.files, "mit")
    pinned = HubSource("acme/pinned", UNPINNED.files, "mit", "d" * 40)
    for source in (UNPINNED, other, pinned):
        snapshot(tmp_path, source.repo, "d" * 40, "data/a.jsonl", b"{}\n")
    env = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for source in (UNPINNED, other, UNPINNED, pinned, other):
            assert locate("w", None, source, environ=env).origin["revision"] == "d" * 40
    said = [str(warning.message) for warning in caught if warning.category is DataWarning]
    assert [text.split(":")[0] for text in said] == ["data set acme/set", "data set acme/other"]


def test_offline_takes_the_one_commit_it_has_and_never_guesses(tmp_path: Path) -> None:
    """Fails if data that was fetched before cannot be used offline, or one of two commits is picked unasked."""
    env = {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    first = snapshot(tmp_path, "acme/set", "a" * 40, "data/a.jsonl", b"{}\n")
    with pytest.warns(DataWarning, match=f"read at commit {'a' * 40}"):
        assert locate("w", None, UNPINNED, environ=env).files == (first,)
    second = snapshot(tmp_path, "acme/set", "b" * 40, "data/a.jsonl", b"{}\n")
    with pytest.raises(ConfigError, match="does not hold"):
        locate("w", None, UNPINNED, environ=env)
    assert locate("w", None, UNPINNED, revision="b" * 40, environ=env).files == (second,)


def test_a_revision_beside_data_of_ones_own_is_refused(tmp_path: Path) -> None:
    """Fails if a result claims a commit that nobody checked, or a number passes for one."""
    path = tmp_path / "mine.jsonl"
    path.write_text('{"turns": ["Hello?"]}\n')
    with pytest.raises(ConfigError, match=r"revision: it chooses a commit on the hub, but .*mine\.jsonl"):
        load_workload("mt_bench", data=path, revision="a" * 40)
    with pytest.raises(ConfigError, match="revision: expected a commit or branch"):
        load_workload("mt_bench", revision=1234567)


def test_the_command_line_warns_and_the_manifest_names_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a user of the command line sees no warning, or a run's manifest does not say which commit it read."""
    snapshot(tmp_path / "cache", REPO, "e" * 40, FILE, prompts("cached"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    done = CliRunner().invoke(app, ["rollouts", "build", "mt_bench", "-o", str(tmp_path / "out.jsonl")])
    assert done.exit_code == 0
    assert f"warning: data set {REPO}: no revision is pinned; read at commit {'e' * 40}" in done.stderr
    pin = ["--set", f"revision={'e' * 40}"]
    silent = CliRunner().invoke(app, ["rollouts", "build", "mt_bench", "-o", str(tmp_path / "b.jsonl"), *pin])
    assert silent.exit_code == 0 and "warning" not in silent.stderr
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    with pytest.warns(DataWarning):
        workload = load_workload("mt_bench")
    (source,) = data_facts(workload, load_rollouts(workload, limit=None, seed=0))["sources"]
    digest = source.pop("files")
    assert list(digest) == [FILE] and len(digest[FILE]) == 64
    assert source == {"name": REPO, "revision": "e" * 40, "licence": "apache-2.0", "via": "hub", "rollouts": 1}
