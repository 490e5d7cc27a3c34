"""What servers need beside the core, asked before anything that needs it is imported."""

from __future__ import annotations

from importlib.util import find_spec

from agentbench_spec.errors import ConfigError


def refuse_without_httpx(backend: str) -> None:
    """Raises ConfigError, with the way out, where httpx is not installed."""
    if find_spec("httpx") is None:
        raise ConfigError(f'backend {backend} needs httpx: pip install "agentbench-spec[sglang]"')


def refuse_without_web_server() -> None:
    """Raises ConfigError, with the way out, where what `serve` answers requests with is not installed."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise ConfigError(f'serve needs {package}: pip install "agentbench-spec[serve]"')
