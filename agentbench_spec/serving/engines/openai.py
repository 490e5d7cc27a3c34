"""Any server of OpenAI's protocol that tells nothing but usage: wall clocks, no τ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentbench_spec.config.backends import Backend
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.serving.engines.base_engine import Engine
from agentbench_spec.serving.servers import Server


@dataclass(frozen=True, slots=True)
class OpenAIServer(Server):
    """One server of which only the model list is known; its drafter is named by whoever measures."""

    backend: ClassVar[Backend] = "openai"

    @property
    def plain_steps(self) -> bool:
        """False: what such a server does within a step, nobody knows; τ is null for the baseline too."""
        return False


class OpenAI(Engine):
    """OpenAI-compatible servers."""

    title: ClassVar[str] = "an OpenAI-compatible server"
    server: ClassVar[type[Server]] = OpenAIServer

    def oddities(self, rows: Sequence[TurnRow]) -> list[str]:
        """That there is no τ, and where cached tokens are not told either."""
        said = ["this backend reads usage and clocks only, so τ is unknown; SGLang and vLLM have backends of their own"]
        if any(row.status == "ok" for row in rows) and all(row.reused_tokens is None for row in rows):
            said.append("the server does not tell cached prompt tokens (usage.prompt_tokens_details)")
        return said


ENGINE = OpenAI()
