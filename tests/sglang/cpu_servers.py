"""Real SGLang 0.5.23 servers on this CPU, started through our own launcher. Timings are void here.

tests/sglang/run.sh builds their environment. Every server is started once in a module.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "unit")]

from localmodel import save_rollouts, session  # noqa: E402
from served_models import save_draft, save_target  # noqa: E402

from agentbench_spec.config import RunConfig, load_config  # noqa: E402
from agentbench_spec.serving.access import connector  # noqa: E402
from agentbench_spec.serving.engines import engine_of  # noqa: E402
from agentbench_spec.serving.launch import launched  # noqa: E402
from agentbench_spec.serving.served_run import ServedRun, describe, run_served  # noqa: E402

STANDIN = Path(__file__).parent / "standin"
UNCAPPED_ARGS = (
    *("--device", "cpu", "--attention-backend", "intel_amx", "--skip-server-warmup"),
    "--disable-overlap-schedule",  # on a CPU speculation turns it off, silently
    *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
    *("--mem-fraction-static", "0.3", "--dtype", "float32"),
)
CPU_ARGS = (*UNCAPPED_ARGS, "--max-total-tokens", "8192")
DEVICE = {"AGENTBENCH_SPEC_DEVICE_BYTES": str(4 * 2**30)}
"""Read by standin/standin_plugin.py; what other programs hold then takes no tokens."""
CPU_ENV = {
    "PYTHONPATH": os.pathsep.join([str(STANDIN), os.environ.get("SGLANG_PLUGIN", "")]),
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "OMP_NUM_THREADS": "1",
}
RETRACTING = {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "3"}
"""SGLang's own switch: of several requests one is retracted every third step, a lone one never."""
FAULT = "AGENTBENCH_SPEC_PLANTED_FAULT"
"""Read by standin/planted_faults.py."""
KEY = "a-key-of-the-tests"
"""Wanted by the n-gram server."""
NEW_TOKENS = 25
"""Not a multiple of 3: the server's own acceptance length would else be right by accident."""


class Servers:
    """Starts each kind of server at its first use and keeps it to the end of the module."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.target, self.draft = save_target(folder / "target"), save_draft(folder / "draft")
        self.rollouts = save_rollouts(folder / "rollouts.jsonl", *(session(name, 3) for name in "abc"))
        self.checkpoint, self.student = folder / "checkpoint", folder / "student"
        self._folder, self._stack, self._urls = folder, stack, dict[str, str]()

    def config(self, *urls: str, env: dict[str, str] | None = None, **more: Any) -> RunConfig:
        python = Path(os.environ["SGLANG_VENV"]) / "bin" / "python"
        flags = {
            "backend": "sglang",
            "target.source": str(self.target),
            "workload.name": str(self.rollouts),
            "decode.max_new_tokens": NEW_TOKENS,
            "sglang.base_urls": list(urls) or None,
            "sglang.launch": not urls,
            "sglang.command": [str(python), "-m", "sglang.launch_server"],
            "sglang.server_args": list(CPU_ARGS),
            "sglang.server_env": CPU_ENV | (env or {}),
            "sglang.max_running_requests": 4,
            "sglang.start_timeout_s": 600.0,
            **{name.replace("__", "."): value for name, value in more.items()},
        }
        return load_config(flags=flags)

    def log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def url(self, name: str) -> str:
        if name not in self._urls:
            drafter, env = self._kind(name)
            # a run refuses a key among the server's arguments, for its manifest keeps them; a server in a test has none
            args = [*CPU_ARGS, *(("--api-key", KEY) if name == "ngram" else ())]
            cold = {"replay__prefix": "cold"} if name == "dlite-cold" else {}
            config = self.config(env=env, sglang__server_args=args, **cold)
            self._urls[name] = self._stack.enter_context(launched(drafter, config, self.log(name)))
        return self._urls[name]

    def capacity(self, draft: str, **options: Any) -> int:
        """Tokens that a server with this draft has room for, nothing but memory limiting it."""
        self.stop()
        drafter = engine_of("sglang").launchable(draft, options)
        config = self.config(env=DEVICE, sglang__server_args=list(UNCAPPED_ARGS))
        with launched(drafter, config, self.log(f"capacity-{drafter.name}")) as base_url:
            found = describe(base_url, config, connector(config, None)).token_capacity
        assert found
        return found

    def alone(self, name: str) -> str:
        """The server of this name, all others ended."""
        if set(self._urls) != {name}:
            self.stop()
        return self.url(name)

    def stop(self) -> None:
        """End all servers; each starts again at its next use. Idle ones keep a core busy with polling."""
        self._stack.close()
        self._urls.clear()

    def _kind(self, name: str) -> tuple[Any, dict[str, str]]:
        chain = {"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4, "draft_load_format": "dummy"}
        if name == "none":
            return engine_of("sglang").launchable("none", {}), {}
        if name == "ngram":
            return engine_of("sglang").launchable("NGRAM", {"num_draft_tokens": 8}), {}
        if name.startswith("dlite"):
            own = {"retracting": RETRACTING, "zeros": {FAULT: "zeros"}, "left_out": {FAULT: "left_out"}}
            return engine_of("sglang").launchable(f"dlite={self.student}", {}), own.get(name.partition("-")[2], {})
        if name == "eagle3":
            del chain["draft_load_format"]
            return engine_of("sglang").launchable(f"EAGLE3={self.checkpoint}", chain), {}
        env = {"SGLANG_SIMULATE_ACC_LEN": "3"} if name == "simulated" else {}
        return engine_of("sglang").launchable(f"EAGLE3={self.draft}", chain), env


def against_plain(servers: Servers, name: str, folder: Path, **more: Any) -> ServedRun:
    return run_served(servers.config(servers.url("none"), servers.url(name), **more), folder, api_key=KEY, environ={})


def own_engine(servers: Servers, drafters: list[str], k: int = 3, **more: Any) -> RunConfig:
    """The same rollouts and target for our own engine."""
    return load_config(
        flags={
            "target.source": str(servers.target),
            "target.dtype": "float32",
            "target.device": "cpu",
            "workload.name": str(servers.rollouts),
            "decode.max_new_tokens": NEW_TOKENS,
            "decode.k": k,
            "drafters": drafters,
            **{name.replace("__", "."): value for name, value in more.items()},
        }
    )
