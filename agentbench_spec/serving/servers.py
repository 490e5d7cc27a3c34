"""What a server is, whatever its engine: an address, what it said about itself, and how its drafter is called here."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from agentbench_spec.config import RunConfig
from agentbench_spec.config.backends import Backend
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.rollout import Rollout
from agentbench_spec.serving.stream import Answer

_SECRET = ("api_key", "password", "auth_token", "secret")


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a server told about the rounds of one answer, as the row takes it; None where it did not tell."""

    rounds: int | None
    """Target forwards after the prefill, those without a draft among them; None: they cannot be told."""
    matched: int | None = None
    proposed: int | None = None
    trimmed: int | None = None
    """Tokens that the last round accepted beyond the stop point."""
    histogram: tuple[int, ...] | None = None
    matched_lengths: tuple[int, ...] | None = None
    proposed_lengths: tuple[int, ...] | None = None
    server_accept_length: float | None = None
    """The server's own figure, under its own definition."""
    retractions: int | None = None
    broken: tuple[str, ...] = ()
    """Identities that the numbers break, in words."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server as it described itself; `info` is empty where it offers no such route.

    An engine's own server overrides what it can tell. This one knows nothing: no τ, no expected reuse.
    """

    base_url: str
    info: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None
    """The drafter's name where the server does not tell."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Its model's entry on the OpenAI route."""

    backend: ClassVar[Backend] = "openai"
    equal: ClassVar[Sequence[str]] = ()
    """Names in `info` in which the baseline and every drafter must agree."""
    cold_flag: ClassVar[str] = ""
    """What turns its prefix cache off."""
    speculative: ClassVar[Sequence[str]] = ()
    """Names in `info` that make the drafter."""
    ways_out: ClassVar[Mapping[str, str]] = {}
    """Of names in `equal`: how servers that differ there are made alike."""

    @property
    def told(self) -> str | None:
        """The drafter's name as the server tells it; None: it does not."""
        return None

    @property
    def aliases(self) -> Collection[str]:
        """Drafters that it cannot tell from the one it names."""
        return ()

    @property
    def drafter(self) -> str:
        """The drafter's name in rows."""
        return self.label or self.told or BASELINE

    @property
    def size(self) -> int:
        """Servers behind its address, which share what is sent there."""
        return 1

    @property
    def speculates(self) -> bool:
        """True if something is drafted."""
        return self.drafter != BASELINE

    @property
    def version(self) -> str | None:
        """The engine's version; None: not told."""
        version = self.info.get("version")
        return str(version) if version else None

    @property
    def async_scheduling(self) -> bool | None:
        """True if a step is prepared while the one before runs; None: not told."""
        return None

    @property
    def plain_steps(self) -> bool:
        """True if a server without a drafter is known to decode one token a step."""
        return True

    @property
    def needs_model(self) -> bool:
        """True if a model drafts: a low acceptance then is a fault, not a result."""
        return False

    @property
    def k(self) -> int:
        """Draft tokens of a round; 0 without speculation, or unknown."""
        return 0

    @property
    def window(self) -> int | None:
        """Longest prompt plus answer; None: unknown."""
        told = (self.info.get("context_length"), self.model.get("max_model_len"))
        return next((tokens for tokens in told if isinstance(tokens, int)), None)

    @property
    def token_capacity(self) -> int | None:
        """Tokens the KV pool holds; None: unknown."""
        return None

    @property
    def kv_pool_bytes(self) -> int | None:
        """Size of the target's KV pool; None: unknown."""
        return None

    @property
    def keeps_prefixes(self) -> bool | None:
        """False if prefixes are not kept between turns; None: unknown."""
        return None

    @property
    def draft_path(self) -> str | None:
        """Where the draft's checkpoint lies, as the server says."""
        return None

    @property
    def target(self) -> str | None:
        """Name of the served model."""
        name = self.model.get("id")
        return None if name is None else str(name)

    @property
    def tokenizer(self) -> str | None:
        """Where the target's tokenizer is found."""
        return None

    @property
    def accept_length(self) -> float | None:
        """The server-wide average as the server words it; None: it has none."""
        return None

    def expected_reuse(self, before: Sequence[int], prompt: Sequence[int]) -> int | None:
        """Prompt tokens that the prefix cache should find after it served `before`; None: nobody knows."""
        return None

    def acceptance(self, answer: Answer) -> Acceptance | None:
        """What the answer tells about its rounds; None: nothing."""
        return None

    def refuse(self, config: RunConfig, rollouts: Sequence[Rollout], draft: Mapping[str, Any] | None) -> None:
        """Raises ConfigError if this server cannot give honest numbers for these settings.

        Here, for a prefix cache that is on or off where the run needs the contrary.
        """
        cold = config.replay.prefix == "cold"
        if cold and self.keeps_prefixes:
            raise ConfigError(
                f"{self.base_url}: replay.prefix=cold, but the server keeps prefixes; start it with {self.cold_flag}"
            )
        several = config.replay.history == "live" or any(
            len(rollout.decode_points()[: config.replay.max_turns]) > 1 for rollout in rollouts
        )
        if not cold and several and self.keeps_prefixes is False:
            raise ConfigError(
                f"{self.base_url}: the prefix cache is off, so every turn would be prefilled from nothing; start the "
                f"server without {self.cold_flag}, or set replay.prefix=cold"
            )

    def public_info(self) -> dict[str, Any]:
        """Everything the server said about itself, without its secrets: a run folder is made to be shown."""
        return {name: value for name, value in self.info.items() if not any(word in name for word in _SECRET)}

    def resolved(self) -> dict[str, Any]:
        """The arguments that decide what the numbers mean; two servers that agree here measure the same thing."""
        return {name: self.info.get(name) for name in (*self.equal, *self.speculative)}


def refuse_unlike(one: Server, other: Server) -> None:
    """Raises ConfigError naming what two servers that share rollouts differ in, if it decides their numbers."""
    theirs = other.resolved()
    unlike = [key for key, value in one.resolved().items() if theirs[key] != value]
    if unlike:
        raise ConfigError(
            f"{one.base_url} and {other.base_url} both serve {one.drafter} but differ in {', '.join(unlike)}; servers "
            "that share rollouts must be started alike"
        )


def keeps_no_text(draft: Mapping[str, Any] | None) -> bool:
    """True for a draft that reads one position of the target (DLite): it has no KV, and texts of any length will do."""
    return draft is not None and "dlite_config" in draft


def draft_config(server: Server, given: str | None = None) -> dict[str, Any] | None:
    """The draft model's config.json: the file given, else the server's draft folder if it can be read from here.

    Raises ConfigError if the file given cannot be read.
    """
    path = Path(given) if given else None
    if path is None:
        draft = server.draft_path
        path = Path(draft) / "config.json" if draft else None
        if path is None or not path.is_file():
            return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"draft config {path}: {error}; give the draft's config.json as {server.backend}.draft_config"
        ) from None
