"""What the suite needs to know of a serving engine; what is said here is true of any OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.serving.launchable import Launchable
from agentbench_spec.serving.prometheus import CrossCheck
from agentbench_spec.serving.servers import Server
from agentbench_spec.serving.stream import Answer

if TYPE_CHECKING:
    from agentbench_spec.serving.client import Client


class Engine:
    """One serving engine: how its servers are asked, described, started and counted.

    A subclass names itself and overrides what its servers can do; as it stands, it knows wall clocks only.
    """

    title: ClassVar[str]
    """The engine's name as its makers write it."""
    server: ClassVar[type[Server]] = Server
    environ: ClassVar[Mapping[str, str]] = {}
    """Environment variables that launched servers get."""
    flush_hint: ClassVar[str] = "nobody but its owner can"
    """How a server's cache is made one that a client can empty."""

    def client(self) -> type[Client]:
        """How a server is asked. Loads torch."""
        from agentbench_spec.serving.client import Client

        return Client

    def describe(self, client: Client) -> Server:
        """A server's description of itself. Raises ConfigError for what is no such server."""
        return self.server(client.base_url, client.server_info() or {}, model=client.model())

    def launchable(self, given: str, options: Mapping[str, Any]) -> Launchable:
        """Read a drafter's name as `--launch` takes it. Raises ConfigError for one that cannot be served."""
        raise ConfigError(f"{self.title}: the suite starts no such server; start it yourself and give its --base-url")

    def refuse_draft(self, drafter: Launchable, config: RunConfig) -> None:
        """Raises ConfigError for a draft that the engine, or the target, cannot do with, before anything is started."""

    def flags(self, drafter: Launchable, config: RunConfig, port: int) -> list[str]:
        """The command line after the launcher. What decides a comparison is given to all drafters alike."""
        raise ConfigError(f"{self.title}: the suite starts no such server; start it yourself and give its --base-url")

    def chain(self, drafter: str, k: int) -> Mapping[str, Any]:
        """The options that make a launched drafter propose k tokens in a row; empty where its checkpoint has them."""
        return {}

    def why_not_started(self, drafter: Launchable, log: str) -> str:
        """What the end of a launched server's log means, as a sentence with a blank after it; empty: nothing known."""
        return ""

    def refuse_settings(self, config: RunConfig, environ: Mapping[str, str]) -> None:
        """Raises ConfigError for settings, or an environment, with which this engine's numbers would mislead."""

    def counters(self, text: str) -> dict[str, float]:
        """The server-wide totals in Prometheus `text` that `cross_check` looks at."""
        return {}

    def cross_check(self, grown: Mapping[str, float], heard: Sequence[tuple[TurnRow, Answer]]) -> CrossCheck | None:
        """The growth of the totals over a window beside the answers of that window; None: it cannot be told."""
        return None

    def oddities(self, rows: Sequence[TurnRow]) -> list[str]:
        """What the rows of one drafter lack, in words, each with the flag of the server that turns it on."""
        return []
