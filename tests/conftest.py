"""What every test shares: one thread, so that timings and sums do not depend on the machine, and no network."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@pytest.fixture(scope="session", autouse=True)
def one_thread_offline() -> Iterator[None]:
    """Single-threaded torch and Hugging Face libraries that never reach for the network."""
    threads, before = torch.get_num_threads(), {name: os.environ.get(name) for name in OFFLINE}
    torch.set_num_threads(1)
    os.environ.update(OFFLINE)
    yield
    torch.set_num_threads(threads)
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
