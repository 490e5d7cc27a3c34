"""Real vLLM 0.32.0 servers on this CPU, started through our own launcher. Timings are void here.

tests/vllm/run.sh builds their environment; the target, the rollouts and our own engine's settings are those of
tests/sglang. Every server is started once in a module.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "sglang"))

from cpu_servers import NEW_TOKENS, Servers

from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.launch import launched

CPU_ENV = {
    "HF_HUB_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
WINDOW, BLOCK = 2048, 32
NGRAM = {"num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
"""How the n-gram server looks up."""
CHAIN = 3
OPTIONS = {"ngram": NGRAM, "eagle3": {"num_speculative_tokens": CHAIN}}


def server_python(variable: str) -> Path | None:
    """The Python of a server's environment; None where there is none."""
    python = Path(os.environ.get(variable, "/nowhere")) / "bin" / "python"
    return python if python.exists() else None


class VLLMServers(Servers):
    """Starts each kind of server at its first use and keeps it to the end of the module."""

    def config(self, *urls: str, **more: Any) -> RunConfig:
        flags = {
            "backend": "vllm",
            "target.source": str(self.target),
            "target.dtype": "float32",
            "workload.name": str(self.rollouts),
            "decode.max_new_tokens": NEW_TOKENS,
            "vllm.base_urls": list(urls) or None,
            "vllm.launch": not urls,
            "vllm.command": [str(server_python("VLLM_VENV")), "-m", "vllm.entrypoints.openai.api_server"],
            "vllm.server_args": ["--enforce-eager"],  # else a C++ compiler is run for minutes
            "vllm.server_env": CPU_ENV,
            "vllm.max_running_requests": 2,
            "vllm.max_model_len": WINDOW,
            "vllm.block_size": BLOCK,
            "vllm.start_timeout_s": 600.0,
            **{name.replace("__", "."): value for name, value in more.items()},
        }
        return load_config(flags=flags)

    def url(self, name: str) -> str:
        if name not in self._urls:
            given = f"eagle3={self.checkpoint}" if name == "eagle3" else name
            drafter = engine_of("vllm").launchable(given, OPTIONS.get(name, {}))
            self._urls[name] = self._stack.enter_context(launched(drafter, self.config(), self.log(name)))
        return self._urls[name]
