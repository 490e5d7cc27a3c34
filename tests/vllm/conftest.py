"""The servers of a module, and what the one without speculation says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from vllm_servers import VLLMServers, server_python

from agentbench_spec.results.rows import TurnRow
from agentbench_spec.serving.served_run import run_served


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServers]:
    """All servers of this module; ended with it."""
    if server_python("VLLM_VENV") is None:
        pytest.fail("no vLLM here: run tests/vllm/run.sh, which builds one and then runs these tests")
    with ExitStack() as stack:
        yield VLLMServers(tmp_path_factory.mktemp("vllm"), stack)


@pytest.fixture(scope="module")
def plain_rows(servers: VLLMServers, tmp_path_factory: pytest.TempPathFactory) -> list[TurnRow]:
    """The three rollouts on the server without speculation."""
    folder = tmp_path_factory.mktemp("runs") / "none"
    return run_served(servers.config(servers.url("none"), vllm__warm_up_rollouts=1), folder, environ={}).rows
