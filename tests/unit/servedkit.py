"""Runs through the fake server: settings, the checks every run gets, servers as processes of their own."""

from __future__ import annotations

import dataclasses
import socket
import sys
import time
from pathlib import Path
from typing import Any

from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.results.invariants import check_row
from agentbench_spec.results.rows import CLOCK_FIELDS, TurnRow
from agentbench_spec.serving.served_run import ServedRun, run_served

FAKE = Path(__file__).parents[1] / "sglang_fake" / "fake_server.py"
FAKE_VLLM = Path(__file__).parents[1] / "vllm_fake" / "fake_vllm.py"
sys.path[:0] = [str(FAKE.parent), str(FAKE_VLLM.parent)]

from fake_router import FakeRouter  # noqa: E402
from fake_server import Behaviour, FakeServer  # noqa: E402
from fake_vllm import FakeVLLM, VLLMBehaviour  # noqa: E402

__all__ = ["Behaviour", "FakeRouter", "FakeServer", "FakeVLLM", "VLLMBehaviour"]

EAGLE3 = {"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4}


def settings(model: Path, rollouts: Path, *urls: str, backend: str = "sglang", **more: Any) -> RunConfig:
    """Settings of a run; names in `more` have "__" for a dot."""
    flags = {
        "backend": backend,
        "target.source": str(model),
        "workload.name": str(rollouts),
        "decode.max_new_tokens": 12,
        f"{backend}.base_urls": list(urls) or None,
        f"{backend}.warm_up_rollouts": 0,
        f"{backend}.start_timeout_s": 20.0,
        f"{backend}.request_timeout_s": 20.0,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return load_config(flags=flags)


def served(config: RunConfig, folder: Path, **options: Any) -> ServedRun:
    done = run_served(config, folder, environ={}, argv=[], **options)
    for row in done.rows:
        check_row(row)
    return done


def of(done: ServedRun, drafter: str) -> list[TurnRow]:
    return [row for row in done.rows if row.drafter == drafter]


def timeless(row: TurnRow) -> dict[str, Any]:
    """A row without its clocks, its address, and what other rollouts happened to leave in the server's cache."""
    passing = CLOCK_FIELDS | {"server", "reused_tokens", "new_tokens"}
    return {name: value for name, value in dataclasses.asdict(row).items() if name not in passing}


def launching(model: Path, rollouts: Path, pids: Path, *server_args: str, **more: Any) -> RunConfig:
    command = [sys.executable, str(FAKE), "--fake-pid-file", str(pids)]
    own = {"sglang__launch": True, "sglang__command": command, "sglang__server_args": list(server_args)}
    return settings(model, rollouts, **(own | more))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ended(pids: Path, *, wait_s: float = 10.0) -> bool:
    deadline = time.monotonic() + wait_s
    alive = [int(pid) for pid in pids.read_text().split()]
    while alive and time.monotonic() < deadline:
        alive = [pid for pid in alive if _runs(pid)]
        time.sleep(0.02)
    return not alive


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
