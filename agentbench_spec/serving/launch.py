"""Starting a server for one drafter, and ending it whatever happens."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.serving.client import Client
from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.launchable import PLAIN, Launchable
from agentbench_spec.serving.supervise import GRACE_S


def launchables(config: RunConfig) -> list[Launchable]:
    """The drafters to launch, the baseline first; without any named, the baseline alone. Raises ConfigError."""
    named = config.drafters if "drafters" in config.model_fields_set else ()
    engine, options = engine_of(config.backend), config.drafter_options
    wanted = [engine.launchable(given, options.get(given.partition("=")[0], {})) for given in named]
    unused = set(config.drafter_options) - {given.partition("=")[0] for given in named}
    if unused:
        raise ConfigError(f"drafter_options.{sorted(unused)[0]}: no such drafter in this run ({', '.join(named)})")
    for drafter in wanted:
        engine.refuse_draft(drafter, config)
    return [PLAIN, *(each for each in wanted if each.algorithm is not None)]


@contextmanager
def launched(drafter: Launchable, config: RunConfig, log: Path) -> Iterator[str]:
    """A healthy server for `drafter`, ended on leaving; yields its base URL. Its output goes to `log`.

    Raises ConfigError with the end of the log if it does not start, and MeasurementError with it if it ends while it
    is measured.
    """
    port = _port(config)
    engine, settings = engine_of(config.backend), config.servers
    command = [*settings.command, *engine.flags(drafter, config, port)]
    base_url = f"http://127.0.0.1:{port}"
    with log.open("ab") as output:
        output.write(f"$ {' '.join(command)}\n".encode())
        output.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "agentbench_spec.serving.supervise", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **engine.environ, **settings.server_env},
            start_new_session=True,  # an interrupt of our group must not end the supervisor before the server
        )
        try:
            _wait(process, base_url, drafter, config, log)
            yield base_url
        except MeasurementError as error:
            if _has_ended(process):
                raise MeasurementError(f"{error}. The server ended; the end of {log}:\n{_tail(log)}") from error
            raise
        finally:
            _end(process)


def _wait(process: subprocess.Popen[bytes], base_url: str, drafter: Launchable, config: RunConfig, log: Path) -> None:
    try:
        with Client(base_url) as client:
            client.wait_ready(config.servers.start_timeout_s, alive=lambda: process.poll() is None)
    except ConfigError as error:
        why = engine_of(config.backend).why_not_started(drafter, log.read_text(errors="replace"))
        raise ConfigError(f"{error}. {why}The end of {log}:\n{_tail(log)}") from None


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
    asked = config.servers.port
    if asked:
        try:
            _bind(asked)
        except OSError as error:
            raise ConfigError(
                f"{config.backend}.port={asked}: {error.strerror}; choose a free port, or leave the choice to us"
            ) from None
        return asked
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with suppress(OSError):
            return _bind(port)
    return _bind(0)


_PORTS = range(20_000, 32_768)
"""Below those that Linux hands out to whoever connects or asks for any: a server takes minutes to bind its port."""


def _bind(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        return int(probe.getsockname()[1])
