"""Starting a server for one drafter, and ending it whatever happens."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.serving.client import Client
from agentbench_spec.serving.supervise import GRACE_S

_NEEDS_DRAFT = {"EAGLE", "EAGLE3", "DFLASH", "DSPARK", "STANDALONE"}
_TREE = ("num_steps", "eagle_topk", "num_draft_tokens")
_TREE_ALGORITHMS = {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"}
_CHAIN: dict[str, Callable[[int], int]] = {
    "num_steps": lambda k: k,
    "eagle_topk": lambda k: 1,
    "num_draft_tokens": lambda k: k + 1,
}
CHAINS = {**dict.fromkeys(_TREE_ALGORITHMS, _CHAIN), "NGRAM": {"num_draft_tokens": _CHAIN["num_draft_tokens"]}}
"""Algorithm -> the options that make it propose k tokens in a row; block drafters have theirs from their checkpoint."""


@dataclass(frozen=True, slots=True)
class Launchable:
    """One drafter as `--launch` understands it: an algorithm's name, its draft, its options."""

    algorithm: str | None
    """Upper case; None: plain decoding."""
    draft: str | None
    options: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The drafter's name in rows and files."""
        return (self.algorithm or BASELINE).lower()


def launchable(given: str, options: Mapping[str, Any]) -> Launchable:
    """Read "none", "NGRAM", or "EAGLE3=DRAFT"; any other name must be registered with the server by a plugin.

    Raises ConfigError if a known algorithm lacks its draft, or has part of the options that go together.
    """
    name, _, draft = given.partition("=")
    algorithm = None if name.lower() == BASELINE else name.upper()
    if algorithm is None and (draft or options):
        raise ConfigError("drafter none is plain decoding: it takes no draft and no options")
    if algorithm in _NEEDS_DRAFT and not draft:
        raise ConfigError(f"drafter {given!r} needs a draft model: write {given}=PATH_OR_HUB_ID")
    named = [key for key in _TREE if key in options]
    if algorithm in _TREE_ALGORITHMS and named and len(named) < len(_TREE):
        raise ConfigError(
            f"drafter {name}: {', '.join(_TREE)} go together; {', '.join(named)} alone is refused by SGLang"
        )
    return Launchable(algorithm, draft or None, dict(options))


def launchables(config: RunConfig) -> list[Launchable]:
    """The drafters to launch, the baseline first; without any named, the baseline alone."""
    named = config.drafters if "drafters" in config.model_fields_set else ()
    wanted = [launchable(given, config.drafter_options.get(given.partition("=")[0], {})) for given in named]
    unused = set(config.drafter_options) - {given.partition("=")[0] for given in named}
    if unused:
        raise ConfigError(f"drafter_options.{sorted(unused)[0]}: no such drafter in this run ({', '.join(named)})")
    return [Launchable(None, None, {}), *(each for each in wanted if each.algorithm is not None)]


def flags(drafter: Launchable, config: RunConfig, port: int) -> list[str]:
    """The command line after the launcher. What decides a comparison is given to all drafters alike."""
    settings = config.sglang
    common = {
        "model-path": config.target.source,
        "host": "127.0.0.1",
        "port": port,
        "decode-log-interval": 1,
        "stream-interval": 1,
        "random-seed": config.measure.seed,
        "max-running-requests": settings.max_running_requests,
        "page-size": settings.page_size,
    }
    if config.target.revision:
        common["revision"] = config.target.revision
    own: dict[str, Any] = {}
    if drafter.algorithm:
        own["speculative-algorithm"] = drafter.algorithm
        if drafter.draft:
            own["speculative-draft-model-path"] = drafter.draft
        own |= {f"speculative-{key.replace('_', '-')}": value for key, value in drafter.options.items()}
    cold = ["--disable-radix-cache"] if config.replay.prefix == "cold" else []
    return [*_spelt(common), "--enable-metrics", "--enable-cache-report", *cold, *settings.server_args, *_spelt(own)]


def _spelt(values: Mapping[str, Any]) -> list[str]:
    """Flags as text; True is a flag without a value."""
    parts = ([f"--{key}"] if value is True else [f"--{key}", str(value)] for key, value in values.items())
    return [word for part in parts for word in part]


@contextmanager
def launched(drafter: Launchable, config: RunConfig, log: Path) -> Iterator[str]:
    """A healthy server for `drafter`, ended on leaving; yields its base URL. Its output goes to `log`.

    Raises ConfigError with the end of the log if it does not start, and MeasurementError with it if it ends while it
    is measured.
    """
    port = _port(config)
    command = [*config.sglang.command, *flags(drafter, config, port)]
    base_url = f"http://127.0.0.1:{port}"
    with log.open("ab") as output:
        output.write(f"$ {' '.join(command)}\n".encode())
        output.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "agentbench_spec.serving.supervise", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **config.sglang.server_env},
            start_new_session=True,  # an interrupt of our group must not end the supervisor before the server
        )
        try:
            _wait(process, base_url, config.sglang.start_timeout_s, log)
            yield base_url
        except MeasurementError as error:
            if _has_ended(process):
                raise MeasurementError(f"{error}. The server ended; the end of {log}:\n{_tail(log)}") from error
            raise
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes], base_url: str, timeout_s: float, log: Path) -> None:
    try:
        with Client(base_url) as client:
            client.wait_ready(timeout_s, alive=lambda: process.poll() is None)
    except ConfigError as error:
        raise ConfigError(f"{error}. The end of {log}:\n{_tail(log)}") from None


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """True if the server is gone; its supervisor leaves a moment after it."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)
    return process.poll() is not None


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-8:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the supervisor's input: it ends the server's whole process group, gently first."""
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(timeout=2 * GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _port(config: RunConfig) -> int:
    """The port to launch on. Raises ConfigError if it is taken: what listens there would be measured instead."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", config.sglang.port or 0))
        except OSError as error:
            raise ConfigError(
                f"sglang.port={config.sglang.port}: {error.strerror}; choose a free port, or leave the choice to us"
            ) from None
        return int(probe.getsockname()[1])
