"""The hub, by its own library over HTTP from a stand-in on this machine: commits, pins, warnings, and no hub at all."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from agentbench_spec_workloads.locate import HubSource, locate
from local_hub import local_hub
from typer.testing import CliRunner

from agentbench_spec.cli import app
from agentbench_spec.errors import ConfigError, DataWarning
from agentbench_spec.plugins import load_workload
from agentbench_spec.runs.source import data_facts, load_rollouts

REPO, FILE = "HuggingFaceH4/mt_bench_prompts", "data/train-00000-of-00001.parquet"
UNPINNED = HubSource("acme/set", ("data/*.jsonl",), "mit")


def prompts(text: str) -> bytes:
    """A file of mt_bench with one row."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([{"prompt_id": 1, "prompt": [text, "And then?"], "category": "writing"}]), sink)
    return sink.getvalue()


def build(url: str, home: Path, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    """Load mt_bench once for each set of options in a process that may use the network, told that the hub is at url."""
    code = f"""
    import json, warnings
    from agentbench_spec.errors import AgentBenchError
    from agentbench_spec.plugins import load_workload
    for options in json.loads({json.dumps(calls)!r}):
        with warnings.catch_warnings(record=True) as caught:
            try:
                (made,) = load_workload("mt_bench", **options).rollouts()
                said = {{"source": made.source, "text": made.messages[0].content}}
            except AgentBenchError as error:
                said = {{"error": str(error)}}
        print(json.dumps({{**said, "warnings": [str(w.message) for w in caught]}}))
    """
    online = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    env = {**online, "HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_commits_are_resolved_recorded_and_can_be_asked_for_again(tmp_path: Path) -> None:
    """Fails if the newest commit is read without a warning that names it, a pinned one is not read after the data set
    has moved on, or a wrong one falls back to another."""
    with local_hub() as hub:
        old = hub.commit(REPO, {FILE: prompts("old"), "mt_bench.py": b"raise SystemExit"})
        (first,) = build(hub.url, tmp_path / "home", {})
        new = hub.commit(REPO, {FILE: prompts("new")})
        newest, pinned, branch, gone = build(
            hub.url, tmp_path / "home", {}, {"revision": old}, {"revision": "main"}, {"revision": "c" * 40}
        )
    assert (first["text"], first["source"]["revision"]) == ("old", old)
    (said,) = first["warnings"]
    assert said.startswith(f"data set {REPO}: no revision is pinned; read at commit {old}.") and f"={old}" in said
    assert (newest["text"], newest["source"]["revision"]) == ("new", new) and len(newest["warnings"]) == 1
    assert (pinned["text"], pinned["source"]["revision"], pinned["warnings"]) == ("old", old, [])
    assert branch["text"] == "new" and "'main' is a name that may move" in branch["warnings"][0]
    assert REPO in gone["error"] and "give data=PATH" in gone["error"]
    assert not any("mt_bench.py" in path for path in hub.asked), "a script was fetched"


def test_without_a_hub_the_way_out_is_said_in_seconds(tmp_path: Path) -> None:
    """Fails if a machine without network waits through retries, or is not told the file, the place and the cause; and
    if it is refused what its cache holds."""
    with local_hub() as hub:
        commit = hub.commit(REPO, {FILE: prompts("kept")})
        start = time.monotonic()
        build(hub.url, tmp_path / "full", {})
        usual = time.monotonic() - start
    start = time.monotonic()
    (said,) = build(hub.url, tmp_path / "empty", {})
    assert time.monotonic() - start < 3 * usual + 15
    for part in ("the hub did not give", REPO, "data/train-*.parquet", "hf download", "data=FOLDER"):
        assert part in said["error"]
    (kept,) = build(hub.url, tmp_path / "full", {})
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
