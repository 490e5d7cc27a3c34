"""What every test shares: one thread, so that timings and sums do not depend on the machine, and no network."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import torch

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start: the suite takes one core a worker
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background, too, tests press Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.update(OFFLINE)  # here, because huggingface_hub reads these once, when a later conftest or test imports it


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Single-threaded torch."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
