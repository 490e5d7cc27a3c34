"""`serve` from settings to a finished folder: the engine, its endpoint, and the sessions that came."""

from __future__ import annotations

import ipaddress
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from agentbench_spec.config import RunConfig
from agentbench_spec.config.bridge_limits import BridgeConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import LIVE
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.writer import RunWriter, refuse_early
from agentbench_spec.rollout import Message, Rollout, write_rollouts
from agentbench_spec.runs.execute import Bench, Outcome, measure
from agentbench_spec.runs.setup import Tell
from agentbench_spec.serving.bridge.chat_request import Offer
from agentbench_spec.serving.bridge.endpoint import make_app
from agentbench_spec.serving.bridge.engine_room import EngineRoom, Script

WORKLOAD = "serve"
"""Name of the workload in the rows."""
_PATIENCE_S = 5
"""For requests at work when the server is told to stop."""


def serve(
    config: RunConfig,
    bridge: BridgeConfig,
    folder: Path,
    *,
    key: str | None,
    argv: Sequence[str] | None = None,
    tell: Tell = lambda line: None,
    begun: Callable[[str, Server], None] = lambda url, server: None,
    script: Script | None = None,
) -> Outcome:
    """Answer requests until the process is told to stop, then finish the run folder.

    config: with one drafter; key: what clients must send; begun: gets the base URL and the server once it listens;
    script: what the target says, in place of its own. Raises ConfigError for settings, an address or a folder that
    cannot be used.
    """
    _refuse_open(bridge, key)
    refuse_early(folder, config.model_dump(mode="json"), resume=False)
    with _bound(bridge) as listening:
        bench = Bench.open(config, tell, workload=WORKLOAD)
        drafter = next((name for name in bench.drafters if name != BASELINE), BASELINE)
        facts = {"rollouts": 0, "sources": [{"name": WORKLOAD}], "left_out": []}

        def work(writer: RunWriter) -> None:
            writer.manifest["serve"] = {**bridge.model_dump(mode="json"), "drafter": drafter, "key": key is not None}
            room = EngineRoom(
                bench, drafter, writer, sessions=bridge.sessions, rounds=config.measure.rounds, script=script
            )
            offer = Offer(_names(bench.target.info.name), bench.replayer.conditions.sampling)
            with room:
                server = Server(make_app(room, offer, bridge, key), bridge)
                listening.listen()
                url = _url(listening)
                tell(f"listening on {url} as {offer.names[0]!r}; Ctrl-C ends it")
                begun(url, server)
                server.run(sockets=[listening])
                tell("no more requests are taken")
            writer.manifest["serve"]["unanswered"] = dict(room.unanswered)
            if room.sessions:
                write_rollouts(writer.folder / LIVE, room.sessions)

        words = [word.replace(key, "***") if key else word for word in (sys.argv if argv is None else argv)]
        return measure(config, folder, bench, [_greeting()], facts, work, resume=False, argv=words, tell=tell)


class Server(uvicorn.Server):
    """A server that ends in peace when the process is told to stop, and lets what comes after it run."""

    def __init__(self, app: Starlette, bridge: BridgeConfig) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=_PATIENCE_S,
                limit_concurrency=4 * bridge.in_flight + 16,
            )
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a signal that was heeded is not raised again: the run folder is finished after it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _refuse_open(bridge: BridgeConfig, key: str | None) -> None:
    if bridge.open_to_others and key is None:
        raise ConfigError(
            f"--host {bridge.host} lets other machines use the engine; give --api-key KEY too, or leave --host out"
        )


@contextmanager
def _bound(bridge: BridgeConfig) -> Iterator[socket.socket]:
    """The address, taken before anything heavy is loaded."""
    try:
        version = ipaddress.ip_address(bridge.host).version
    except ValueError:
        version = 4
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((bridge.host, bridge.port))
        except OSError as error:
            raise ConfigError(
                f"--host {bridge.host} --port {bridge.port} cannot be had: {error.strerror or error}; --port 0 takes "
                "any free one"
            ) from error
        yield listening


def _url(listening: socket.socket) -> str:
    host, port, *_ = listening.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def _names(target: str) -> tuple[str, ...]:
    """What a client may call the model: its name, or the last part of it."""
    return tuple(dict.fromkeys((target, Path(target).name)))


def _greeting() -> Rollout:
    """A text to warm up with."""
    words = Message(role="user", content="Say hello."), Message(role="assistant", content="Hello.")
    return Rollout(id="warm-up", workload=WORKLOAD, messages=words)
