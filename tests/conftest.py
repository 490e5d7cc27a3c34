"""What every test shares: one thread, so that timings and sums do not depend on the machine, and no network."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


def pytest_configure() -> None:
    """Keep Hugging Face libraries off the network; they read this when they are first imported."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        os.environ[name] = "1"


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Single-threaded torch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
