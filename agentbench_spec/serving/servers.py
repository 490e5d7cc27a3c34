"""What a server is: the resolved arguments that decide what its numbers mean, and how its drafter is called here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.metrics import BASELINE

EAGLE_FAMILY = frozenset({"EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP"})
"""Algorithms that verify by arg-max on some devices and key the radix tree by token pairs."""

MODEL_FREE = frozenset({"NGRAM"})
"""Built-in algorithms without a draft model: a low acceptance there is a result, not a fault."""

EQUAL = (
    "model_path",
    "max_running_requests",
    "page_size",
    "attention_backend",
    "disable_radix_cache",
    "disable_cuda_graph",
    "cuda_graph_backend_decode",
    "mem_fraction_static",
    "max_total_tokens",
    "context_length",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "chunked_prefill_size",
    "tp_size",
    "pp_size",
    "dp_size",
    "device",
)
"""Arguments in which the baseline and every drafter must agree."""

SPECULATIVE = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_dflash_block_size",
    "speculative_dspark_block_size",
    "speculative_draft_window_size",
    "speculative_draft_attention_backend",
    "speculative_draft_kv_cache_dtype",
    "speculative_use_rejection_sampling",
    "speculative_use_block_verification",
    "speculative_ngram_max_bfs_breadth",
    "speculative_ngram_max_trie_depth",
    "speculative_ngram_match_type",
    "speculative_token_map",
    "speculative_draft_load_format",
)
"""Arguments that make the drafter."""


_SECRET = ("api_key", "password", "auth_token", "secret")


@dataclass(frozen=True, slots=True)
class Server:
    """One server as it described itself; `info` is empty where it offers no such route."""

    base_url: str
    info: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None
    """The drafter's name where the server does not tell."""
    model: Mapping[str, Any] = field(default_factory=dict)
    """Its model's entry on the OpenAI route."""

    @property
    def algorithm(self) -> str | None:
        """The speculative algorithm, upper case; None without speculation."""
        name = self.info.get("speculative_algorithm")
        return str(name).upper() if name and str(name).upper() != "NONE" else None

    @property
    def drafter(self) -> str:
        """The drafter's name in rows."""
        return self.label or (self.algorithm or BASELINE).lower()

    @property
    def width(self) -> int | None:
        """V, draft tokens of one verify step with its root; None without speculation, or unknown."""
        width = self.info.get("speculative_num_draft_tokens")
        return int(width) if self.algorithm and width else None

    @property
    def fixed_width(self) -> int | None:
        """V where every step has it; DSpark's ragged modes verify fewer, so there it is only an upper bound."""
        return None if self.algorithm == "DSPARK" else self.width

    @property
    def page_size(self) -> int:
        """Tokens of one page of the prefix cache."""
        return int(self.info.get("page_size") or 1)

    @property
    def pair_keys(self) -> bool:
        """True if the prefix cache is keyed by token pairs and finds one token less."""
        return self.algorithm in EAGLE_FAMILY

    @property
    def window(self) -> int | None:
        """Longest prompt plus answer; None: unknown."""
        told = (self.info.get("context_length"), self.model.get("max_model_len"))
        return next((tokens for tokens in told if isinstance(tokens, int)), None)

    @property
    def states(self) -> Sequence[Mapping[str, Any]]:
        """One internal state per data-parallel rank."""
        return list(self.info.get("internal_states") or ())

    @property
    def token_capacity(self) -> int | None:
        """Tokens the KV pool holds, over all ranks; None: unknown."""
        told = [(state.get("memory_usage") or {}).get("token_capacity") for state in self.states]
        each = [tokens for tokens in told if isinstance(tokens, int)]
        return sum(each) if each and len(each) == len(told) else None

    @property
    def radix_cache(self) -> bool | None:
        """False if prefixes are not kept between turns; None: unknown."""
        disabled = self.info.get("disable_radix_cache")
        return None if disabled is None else not disabled

    def public_info(self) -> dict[str, Any]:
        """Everything the server said about itself, without its secrets: a run folder is made to be shown."""
        return {name: value for name, value in self.info.items() if not any(word in name for word in _SECRET)}

    def resolved(self) -> dict[str, Any]:
        """The arguments that decide what the numbers mean; two servers that agree here measure the same thing."""
        return {name: self.info.get(name) for name in (*EQUAL, *SPECULATIVE)}


def draft_config(server: Server, given: str | None = None) -> dict[str, Any] | None:
    """The draft model's config.json: the file given, else the server's draft folder if it can be read from here.

    Raises ConfigError if the file given cannot be read.
    """
    path = Path(given) if given else None
    if path is None:
        draft = server.info.get("speculative_draft_model_path")
        path = Path(str(draft)) / "config.json" if draft else None
        if path is None or not path.is_file():
            return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"draft config {path}: {error}; give the draft's config.json as sglang.draft_config"
        ) from None
