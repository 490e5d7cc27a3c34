"""The manifest, and files that are whole or not there."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from agentbench_spec.engine.machine import host_facts, measure_bandwidth_bytes_per_s
from agentbench_spec.results.provenance import (
    differing_keys,
    git_state,
    make_manifest,
    package_versions,
    settings_digest,
    write_json_atomic,
)


def test_manifest_is_json_and_names_what_ran() -> None:
    """Fails if a manifest cannot be written, or leaves out what a reader needs to repeat the run."""
    manifest = make_manifest(
        host=host_facts(),
        settings={"k": 7},
        model={"target": "toy"},
        data={"toy": "ab"},
        argv=["run", "--k", "7"],
    )
    read = json.loads(json.dumps(manifest, allow_nan=False))
    assert read["argv"] == ["run", "--k", "7"]
    assert read["packages"]["torch"] == package_versions(["torch"])["torch"]
    assert {"started", "settings", "model", "data", "git", "host", "settings_digest"} <= read.keys()
    assert read["host"]["threads"] >= 1 and read["host"]["ram_bytes"] > 1 << 28


def test_digest_sees_values_and_not_key_order() -> None:
    """Fails if a resumed run is refused for the order of its keys, or accepted with another model or other data."""
    base = make_manifest(host={}, settings={"a": 1, "b": 2}, model={"m": 1}, data={"d": 1}, argv=[])
    same = make_manifest(host={}, settings={"b": 2, "a": 1}, model={"m": 1}, data={"d": 1}, argv=["other"])
    other_model = make_manifest(host={}, settings={"a": 1, "b": 2}, model={"m": 2}, data={"d": 1}, argv=[])
    other_data = make_manifest(host={}, settings={"a": 1, "b": 2}, model={"m": 1}, data={"d": 2}, argv=[])
    assert base["settings_digest"] == same["settings_digest"]
    assert len({m["settings_digest"] for m in (base, other_model, other_data)}) == 3
    with pytest.raises(ValueError, match="JSON compliant"):
        settings_digest({"temperature": float("nan")})


def test_differing_keys_are_named_with_both_values() -> None:
    """Fails if a refused resume does not say which setting differs."""
    old = {"run": {"k": 4, "seed": 0, "drafters": ["none"]}}
    new = {"run": {"k": 7, "seed": 0, "drafters": ("none",), "top_p": 0.9}}
    assert differing_keys(old, new) == ["run.k (4 -> 7)", "run.top_p ('absent' -> 0.9)"]
    assert differing_keys(old, old) == []


def test_git_state_knows_clean_dirty_and_none(tmp_path: Path) -> None:
    """Fails if changed code passes as a commit, a missing repository as a clean one, or the user's as the package's."""
    assert git_state(tmp_path) == {"sha": None, "dirty": None}

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "a").write_text("1")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run").write_text("1")
    git("add", "a", "results")
    git("commit", "-qm", "first")
    (tmp_path / "results" / "run").unlink()  # as a run that is recorded anew does
    clean = git_state(tmp_path)
    (tmp_path / "a").write_text("2")
    assert len(str(clean["sha"])) == 40 and clean["dirty"] is False
    assert git_state(tmp_path) == {"sha": clean["sha"], "dirty": True}
    (tmp_path / "site-packages").mkdir()
    assert git_state(tmp_path / "site-packages") == {"sha": None, "dirty": None}


def test_missing_package_has_no_version() -> None:
    """Fails if a package that is absent is left out, or given a version."""
    assert package_versions(["no-such-distribution-here"]) == {"no-such-distribution-here": None}


def test_host_facts_are_json() -> None:
    """Fails if a fact about this machine cannot be written to a manifest."""
    assert json.loads(json.dumps(host_facts())) == host_facts()


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """Fails if a value that is not JSON leaves half a file behind."""
    path = tmp_path / "manifest.json"
    write_json_atomic(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json_atomic(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]


def test_bandwidth_is_a_plausible_memory_speed() -> None:
    """Fails if bits are taken for bytes, one direction of a copy is forgotten tenfold, or a clock unit is wrong."""
    found = measure_bandwidth_bytes_per_s(buffer_bytes=1 << 26, budget_s=0.2)
    assert found.keys() == {"read", "copy"}
    assert all(2e8 < value < 5e12 for value in found.values())
