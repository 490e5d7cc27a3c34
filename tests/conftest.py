"""What every test shares."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny tensors run slower on more threads, and sums would depend on the machine."""
    torch.set_num_threads(1)
