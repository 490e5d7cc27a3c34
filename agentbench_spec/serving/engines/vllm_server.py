"""What a vLLM server is: what it tells of its configuration, what its cache should keep, what its reports say."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agentbench_spec.config.backends import Backend
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.rollouts.render import common_prefix
from agentbench_spec.serving.engines.vllm_counts import Decoding, Report, broken_sums, read_report, solve
from agentbench_spec.serving.servers import Acceptance, Server
from agentbench_spec.serving.stream import Answer

LOOK_UP = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Drafters without a model, which may find nothing."""
BLOCK_DROP = frozenset({"eagle", "eagle3", "peagle", "mtp", "dflash", "dflash2", "dspark"})
"""Drafters that lose one block of each prefix-cache hit."""
ALWAYS_DRAFT = frozenset({"eagle", "eagle3", "peagle", "mtp", "dflash", "dflash2", "draft_lm", "draft_model", "pard"})
"""Drafters whose every step has a draft, but at the end of the window."""

NO_ASYNC = frozenset({"ngram", "suffix", "medusa", "custom_class"})
"""Drafters for which vLLM turns asynchronous scheduling off, and says nothing."""

EQUAL = (
    "version",
    "model",
    "async_scheduling",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_size",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "enforce_eager",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
)
SPECULATIVE = ("speculative", "method", "draft_model", "num_speculative_tokens")

_OF_ONE_METHOD = {"draft_model": ("draft_lm", "pard"), "eagle3": ("eagle3", "peagle"), "dflash": ("dflash", "dflash2")}
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(?P<labels>.*)\}\s", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_DRAFTS = "vllm:spec_decode_num_drafts"
_OF_SCHEDULER = ("async_scheduling", "max_num_seqs", "max_num_batched_tokens")
_OF_CONFIG = (
    "dtype",
    "quantization",
    "enforce_eager",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
)


def described(
    version: str | None,
    model: Mapping[str, Any],
    metrics: str | None,
    config: str | None,
    scheduler: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a server's routes tell, under one name each; names of what they do not tell are absent.

    config: its configuration as one line of text, scheduler: the part of it that text leaves out; only a server in
    development mode shows them.
    """
    told: dict[str, Any] = {"version": version, "model": model.get("root"), "max_model_len": model.get("max_model_len")}
    return {
        **{name: value for name, value in told.items() if value is not None},
        **_of_metrics(metrics or ""),
        **_of_config(config or ""),
        **{name: value for name in _OF_SCHEDULER if (value := (scheduler or {}).get(name)) is not None},
    }


def _of_metrics(text: str) -> dict[str, Any]:
    if "vllm:" not in text:
        return {}
    found = _CACHE_CONFIG.search(text)
    labels = dict(_LABEL.findall(found["labels"])) if found else {}
    told: dict[str, Any] = {"speculative": _DRAFTS in text}
    for name in ("block_size", "kv_cache_size_tokens"):
        if labels.get(name, "").isdigit():
            told[name] = int(labels[name])
    if labels.get("enable_prefix_caching") in ("True", "False"):
        told["enable_prefix_caching"] = labels["enable_prefix_caching"] == "True"
    renamed = {"cache_dtype": "kv_cache_dtype", "gpu_memory_utilization": "gpu_memory_utilization"}
    return told | {name: labels[label] for label, name in renamed.items() if label in labels}


def _of_config(text: str) -> dict[str, Any]:
    told: dict[str, Any] = {name: value for name in _OF_CONFIG if (value := _value(text, name)) is not None}
    speculative = re.search(r"speculative_config=SpeculativeConfig\((?P<inside>[^)]*)\)", text)
    if speculative:
        inside = speculative["inside"]
        told |= {"speculative": True, "method": _value(inside, "method"), "draft_model": _value(inside, "model")}
        width = _value(inside, "num_spec_tokens") or ""
        told |= {"num_speculative_tokens": int(width)} if width.isdigit() else {}
    elif "speculative_config=None" in text:
        told["speculative"] = False
    return told


def _value(text: str, word: str) -> str | None:
    found = re.search(rf"\b{word}=(?:'([^']*)'|([^,()\s]+))", text)
    value = (found[1] or found[2]) if found else None
    return None if value == "None" else value


@dataclass(frozen=True, slots=True)
class VLLMServer(Server):
    """One vLLM server; `info` as `described` gives it."""

    backend: ClassVar[Backend] = "vllm"
    cold_flag: ClassVar[str] = "--no-enable-prefix-caching"
    equal: ClassVar[Sequence[str]] = EQUAL
    speculative: ClassVar[Sequence[str]] = SPECULATIVE
    ways_out: ClassVar[Mapping[str, str]] = {
        "async_scheduling": f"{', '.join(sorted(NO_ASYNC))} run without: give the other servers --no-async-scheduling"
    }

    @property
    def async_scheduling(self) -> bool | None:
        """As development mode shows it; without, what is known of the drafter."""
        told = self.info.get("async_scheduling")
        if isinstance(told, bool):
            return told
        return False if self.drafter in NO_ASYNC else None

    def resolved(self) -> dict[str, Any]:
        """As the base's, with what is known of asynchronous scheduling."""
        return {**Server.resolved(self), "async_scheduling": self.async_scheduling}

    @property
    def told(self) -> str | None:
        """None without speculation, else its method where development mode shows it; None: not told."""
        if self.info.get("speculative") is False:
            return BASELINE
        method = self.info.get("method")
        return {"draft_model": "draft_lm"}.get(str(method), str(method)) if method else None

    @property
    def aliases(self) -> Collection[str]:
        """Drafters of one method: what tells them apart is in the draft or in a flag, and not shown."""
        return _OF_ONE_METHOD.get(str(self.info.get("method")), ())

    @property
    def needs_model(self) -> bool:
        """True for every drafter but the look-up ones."""
        return self.speculates and self.drafter not in LOOK_UP

    @property
    def k(self) -> int:
        """Draft tokens of a step, where it is told."""
        return int(self.info.get("num_speculative_tokens") or 0) if self.speculates else 0

    @property
    def token_capacity(self) -> int | None:
        """Tokens the KV pool holds; None: unknown."""
        capacity = self.info.get("kv_cache_size_tokens")
        return capacity if isinstance(capacity, int) else None

    @property
    def keeps_prefixes(self) -> bool | None:
        """False if prefix caching is off; None: unknown."""
        return self.info.get("enable_prefix_caching")

    @property
    def draft_path(self) -> str | None:
        """The draft's folder or hub id, where development mode shows it."""
        return self.info.get("draft_model") if self.needs_model else None

    @property
    def target(self) -> str | None:
        """The model's path, or the name it is served under."""
        said = self.model.get("root") or self.model.get("id")
        return str(said) if said else None

    @property
    def tokenizer(self) -> str | None:
        """The model's own."""
        root = self.model.get("root")
        return str(root) if root else None

    def expected_reuse(self, before: Sequence[int], prompt: Sequence[int]) -> int | None:
        """Whole blocks below the prompt's end; one less under a drafter that reads the target's states."""
        block = self.info.get("block_size")
        if not isinstance(block, int):
            return None
        found = min(common_prefix(before, prompt), len(before) - 1, len(prompt) - 1) // block * block
        return max(found - block, 0) if self.drafter in BLOCK_DROP else max(found, 0)

    def acceptance(self, answer: Answer) -> Acceptance | None:
        """Rounds with those that vLLM does not report; None if the answer has no report.

        Where nothing tells trimmed tokens from steps without a draft, the rounds are unknown.
        """
        report, tokens = read_report(answer.details), answer.completion_tokens
        if report is None or tokens is None:
            return None
        found = solve(
            report,
            tokens,
            padded=self._padded(answer),
            always_drafts=self.drafter in ALWAYS_DRAFT,
            chunks=answer.chunk_tokens,
        )
        broken = (*broken_sums(report), *([found] if isinstance(found, str) else []))
        if broken or not isinstance(found, Decoding):
            return Acceptance(None, server_accept_length=report.mean, broken=broken)
        return self._accounted(report, found, answer)

    def _padded(self, answer: Answer) -> bool | None:
        if answer.prompt_tokens is None or answer.cached_tokens is None:
            return False if self.drafter in BLOCK_DROP else None
        return answer.cached_tokens == answer.prompt_tokens - 1

    def _accounted(self, report: Report, found: Decoding, answer: Answer) -> Acceptance:
        z, plain = found.padded, found.unreported
        histogram = report.histogram
        if histogram is not None:
            histogram = (histogram[0] + plain - z, *histogram[1:])
        matched, proposed = ((), ()) if not report.steps else (report.per_step_accepted, report.per_step_drafted)
        zeros = (0,) * plain
        return Acceptance(
            rounds=report.steps - z + plain,
            matched=report.accepted,
            proposed=report.drafted - z * report.width,
            trimmed=found.trimmed,
            histogram=histogram,
            matched_lengths=None if matched is None else (*matched[z:], *zeros),
            proposed_lengths=None if proposed is None else (*proposed[z:], *zeros),
            server_accept_length=report.mean if report.steps else None,
            retractions=plain if plain and self._begun_anew(report, answer) else None,
        )

    def _begun_anew(self, report: Report, answer: Answer) -> bool:
        """True if steps without a draft can only be prefills after a preemption."""
        if self.drafter not in ALWAYS_DRAFT:
            return False
        end = (answer.prompt_tokens or 0) + (answer.completion_tokens or 0)
        return self.window is None or end + report.width < self.window
