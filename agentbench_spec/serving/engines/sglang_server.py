"""What an SGLang server is: its resolved arguments, what they refuse, and what its cache should keep."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentbench_spec.config import RunConfig
from agentbench_spec.config.backends import Backend
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.rollout import Rollout
from agentbench_spec.serving.engines.sglang_counts import broken_identities, expected_reuse, spec_counts
from agentbench_spec.serving.servers import Acceptance, Server
from agentbench_spec.serving.stream import Answer

EAGLE_FAMILY = frozenset({"EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP"})
"""Algorithms that verify by arg-max on some devices and key the radix tree by token pairs."""

_OF_ONE_ALGORITHM = {"DFLASH": ("dflash2", "domino"), "STANDALONE": ("draft_lm",), "EAGLE": ("mtp",), "NEXTN": ("mtp",)}
"""Our drafters that one algorithm serves; what tells them apart is in the draft, and not shown."""

MODEL_FREE = frozenset({"NGRAM"})
"""Built-in algorithms without a draft model: a low acceptance there is a result, not a fault."""

EQUAL = (
    "version",
    "model_path",
    "max_running_requests",
    "page_size",
    "attention_backend",
    "disable_radix_cache",
    "disable_overlap_schedule",
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

BEHIND = "behind_router"
"""In a router's `info`, which is otherwise its first worker's: the addresses of all of them."""

_ARGMAX_DEVICES = {"cpu", "xpu"}
_ROCM_BACKENDS = {"aiter", "wave"}


@dataclass(frozen=True, slots=True)
class SGLangServer(Server):
    """One SGLang server as `/server_info` describes it, or a router before servers that are all described so."""

    backend: ClassVar[Backend] = "sglang"
    cold_flag: ClassVar[str] = "--disable-radix-cache"
    equal: ClassVar[Sequence[str]] = EQUAL
    speculative: ClassVar[Sequence[str]] = SPECULATIVE
    ways_out: ClassVar[Mapping[str, str]] = {
        "disable_overlap_schedule": "beside algorithms that run without overlap (on a CPU, all) the other servers need "
        "--disable-overlap-schedule"
    }

    @property
    def async_scheduling(self) -> bool | None:
        """Its overlap scheduling."""
        disabled = self.info.get("disable_overlap_schedule")
        return not disabled if isinstance(disabled, bool) else None

    @property
    def algorithm(self) -> str | None:
        """The speculative algorithm, upper case; None without speculation."""
        name = self.info.get("speculative_algorithm")
        return str(name).upper() if name and str(name).upper() != "NONE" else None

    @property
    def told(self) -> str | None:
        """The algorithm, lower case; None if the server has no `/server_info`."""
        return (self.algorithm or BASELINE).lower() if self.info else None

    @property
    def aliases(self) -> Collection[str]:
        """Drafters of one algorithm, of which a run may say which it is."""
        return _OF_ONE_ALGORITHM.get(self.algorithm or "", ())

    @property
    def needs_model(self) -> bool:
        """True for every algorithm but the look-up ones."""
        return self.algorithm is not None and self.algorithm not in MODEL_FREE

    @property
    def width(self) -> int | None:
        """V, draft tokens of one verify step with its root; None without speculation, or unknown."""
        width = self.info.get("speculative_num_draft_tokens")
        return int(width) if self.algorithm and width else None

    @property
    def k(self) -> int:
        """Draft tokens of a verify step."""
        return max((self.width or 1) - 1, 0)

    @property
    def states(self) -> Sequence[Mapping[str, Any]]:
        """One internal state per data-parallel rank."""
        return list(self.info.get("internal_states") or ())

    @property
    def size(self) -> int:
        """Workers behind a router; 1 for a server."""
        return len(self.info.get(BEHIND) or "1")

    @property
    def accept_length(self) -> float | None:
        """The first rank's average since the flush; None of several workers, whose averages have no common weight."""
        if self.size > 1:
            return None
        return (self.states[0] if self.states else {}).get("avg_spec_accept_length")

    @property
    def token_capacity(self) -> int | None:
        """Tokens the KV pool holds, over all ranks; None: unknown."""
        return self._of_all_ranks("token_capacity")

    @property
    def kv_pool_bytes(self) -> int | None:
        """The target's KV pool, over all ranks, as exactly as the server tells it; None: unknown."""
        return self._of_all_ranks("kvcache", 2**30)

    def _of_all_ranks(self, name: str, unit: int = 1) -> int | None:
        told = [(state.get("memory_usage") or {}).get(name) for state in self.states]
        each = [amount for amount in told if isinstance(amount, int | float)]
        return round(sum(each) * unit) if each and len(each) == len(told) else None

    @property
    def keeps_prefixes(self) -> bool | None:
        """False if the radix cache is off; None: unknown."""
        disabled = self.info.get("disable_radix_cache")
        return None if disabled is None else not disabled

    @property
    def draft_path(self) -> str | None:
        """The draft's folder or hub id."""
        path = self.info.get("speculative_draft_model_path")
        return str(path) if path else None

    @property
    def target(self) -> str | None:
        """The name it serves its model under, or the model's path."""
        said = self.info.get("served_model_name") or self.info.get("model_path")
        return str(said) if said else None

    @property
    def tokenizer(self) -> str | None:
        """Where the server has its tokenizer from."""
        said = self.info.get("tokenizer_path") or self.info.get("model_path")
        return str(said) if said else None

    def expected_reuse(self, before: Sequence[int], prompt: Sequence[int]) -> int | None:
        """What a radix cache finds: whole pages, keyed by token pairs under EAGLE."""
        page_size, pair_keys = int(self.info.get("page_size") or 1), self.algorithm in EAGLE_FAMILY
        return expected_reuse(before, prompt, page_size=page_size, pair_keys=pair_keys)

    def acceptance(self, answer: Answer) -> Acceptance | None:
        """Verify steps and correct drafts in the answer's details; None if they are not there."""
        tokens, counts = answer.completion_tokens, spec_counts(answer.details)
        if counts is None or tokens is None:
            return None
        fixed = None if self.algorithm == "DSPARK" else self.width  # its ragged modes verify fewer
        again = int(answer.details.get("num_retractions") or 0)
        whole = counts.with_prefills(again)
        return Acceptance(
            rounds=whole.verify_steps,
            matched=whole.correct,
            proposed=whole.proposed,
            trimmed=whole.trimmed(tokens),
            histogram=whole.histogram,
            server_accept_length=counts.server_accept_length,
            broken=tuple(broken_identities(counts, tokens, fixed, retractions=again)),
        )

    def refuse(self, config: RunConfig, rollouts: Sequence[Rollout], draft: Mapping[str, Any] | None) -> None:
        """Raises ConfigError for sampling that it ignores, a cache that is off, and a draft under a wrong name."""
        self._refuse_temperature(config)
        Server.refuse(self, config, rollouts, draft)
        named = [str(name) for name in (draft or {}).get("architectures") or ()]
        if self.algorithm == "EAGLE" and any("eagle3" in name.lower() for name in named):
            raise ConfigError(
                f"{self.base_url}: the draft is an EAGLE-3 one ({', '.join(named)}) but runs under EAGLE, where it "
                "loads and drafts noise; restart with --speculative-algorithm EAGLE3"
            )
        limit = self.info.get("max_running_requests")
        if isinstance(limit, int) and config.servers.concurrency > limit:
            raise ConfigError(
                f"{self.base_url}: concurrency {config.servers.concurrency} exceeds its --max-running-requests {limit};"
                " restart it, and the baseline's server, with a higher one"
            )

    def _refuse_temperature(self, config: RunConfig) -> None:
        if config.decode.greedy or self.algorithm not in EAGLE_FAMILY | {"STANDALONE"}:
            return
        device, attention = str(self.info.get("device")), str(self.info.get("attention_backend"))
        rocm = attention in _ROCM_BACKENDS and not self.info.get("speculative_use_rejection_sampling")
        if device in _ARGMAX_DEVICES or rocm:
            raise ConfigError(
                f"{self.base_url}: {self.algorithm} on {'ROCm' if rocm else device} verifies by arg-max whatever the "
                f"temperature; decode.temperature={config.decode.temperature:g} would be ignored: set it to 0"
                + (", or start the server with --speculative-use-rejection-sampling" if rocm else "")
            )
