"""A tiny model and rollouts for whole runs, saved once per session."""

from __future__ import annotations

from pathlib import Path

import pytest
from localmodel import save_model, save_rollouts


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny Qwen3 with a chat template."""
    return save_model(tmp_path_factory.mktemp("local") / "tiny")


@pytest.fixture(scope="session")
def model(tiny: Path) -> Path:
    """The same for servers of the tests, which need its tokenizer and chat template but no weights."""
    return tiny


@pytest.fixture(scope="session")
def rollouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rollouts of three turns."""
    return save_rollouts(tmp_path_factory.mktemp("rollouts") / "hand.jsonl")
