"""Settings of serving engines: what all have in common, and what is each one's own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentbench_spec.config.strict_section import Section

Backend = Literal["engine", "sglang", "vllm", "openai"]
"""engine: our own loop; the others: servers, as a client sees them."""

SERVED: tuple[Backend, ...] = ("sglang", "vllm", "openai")
"""Serving engines; each has a section of the settings and a file in serving/engines/ under its name."""


class ServersConfig(Section):
    """Servers of one engine: given by URL, or launched one drafter after another."""

    base_urls: tuple[str, ...] = Field(default=(), strict=False)
    """Running servers. Those with one set of resolved arguments share the rollouts; each other set is a drafter."""
    launch: bool = False
    """Start a server per drafter, measure, stop it. Drafters are then what the engine can serve, or none."""
    client: Literal["generate", "chat"] = "generate"
    """generate: prompts as token ids; chat: messages on the OpenAI route, for servers that offer only that."""
    concurrency: int = Field(default=1, ge=1)
    """Rollouts in flight on each server; the turns of one rollout are never concurrent."""
    command: tuple[str, ...] = Field(default=(), strict=False)
    """What --launch runs, before the flags."""
    server_args: tuple[str, ...] = Field(default=(), strict=False)
    """Further flags for every launched server, the baseline's too."""
    server_env: dict[str, str] = Field(default_factory=dict)
    """Environment variables added for launched servers."""
    max_running_requests: int = Field(default=64, ge=1)
    """Given to every launched server: unset, engines choose it by drafter and the comparison is void."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Of launched servers; None: a free one."""
    start_timeout_s: float = Field(default=1800.0, gt=0)
    refused_grace_s: float = Field(default=10.0, ge=0)
    """How long a server given by URL may refuse connections; some listen only when their weights are loaded."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Longest silence within an answer."""
    warm_up_rollouts: int | None = Field(default=None, ge=0)
    """Rollouts replayed before the clocks count; None: as many as are in flight."""
    draft_config: str | None = None
    """The draft's config.json, where the server's draft path cannot be read from here."""
    min_tau: float = Field(default=1.05, ge=0)
    """A draft model below this is taken for misconfigured and the run is void; 0 to allow it."""


class SGLangConfig(ServersConfig):
    """The servers of `backend = "sglang"`."""

    command: tuple[str, ...] = Field(default=("sglang", "serve"), strict=False)
    page_size: int = Field(default=1, ge=1)
    allow_simulated_acceptance: bool = False
    """Measure although SGLANG_SIMULATE_ACC_LEN is set; only to test arithmetic."""


class VLLMConfig(ServersConfig):
    """The servers of `backend = "vllm"`."""

    command: tuple[str, ...] = Field(default=("vllm", "serve"), strict=False)
    block_size: int = Field(default=16, ge=1)
    """Tokens of a block of the prefix cache, of launched servers: EAGLE-type drafters lose one on each hit."""
    max_batched_tokens: int = Field(default=8192, ge=1)
    """Tokens of one step of launched servers: unset, it depends on the machine, and vLLM warns below 8192."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Longest prompt plus answer of launched servers; None: the model's own."""


class OpenAIConfig(ServersConfig):
    """The servers of `backend = "openai"`: any that speak OpenAI's protocol and tell nothing but usage."""
