"""vLLM: its methods under our drafters' names, its command line, its counters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.serving.engines.base_engine import Engine
from agentbench_spec.serving.engines.vllm_counts import read_report
from agentbench_spec.serving.engines.vllm_server import NO_ASYNC, VLLMServer, described
from agentbench_spec.serving.launchable import PLAIN, Launchable, named, spelt, without_draft
from agentbench_spec.serving.prometheus import CrossCheck, read_counters
from agentbench_spec.serving.servers import Server
from agentbench_spec.serving.stream import Answer

if TYPE_CHECKING:
    from agentbench_spec.serving.client import Client

METHODS: Mapping[str, Mapping[str, Any]] = {
    "ngram": {"method": "ngram"},
    "ngram_gpu": {"method": "ngram_gpu"},
    "suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
    "eagle": {"method": "eagle"},
    "eagle3": {"method": "eagle3"},
    "peagle": {"method": "eagle3", "parallel_drafting": True},
    "mtp": {"method": "mtp"},
    "medusa": {"method": "medusa"},
    "dflash": {"method": "dflash"},
    "dflash2": {"method": "dflash"},
    "dspark": {"method": "dspark"},
    "draft_lm": {"method": "draft_model"},
    "pard": {"method": "draft_model", "parallel_drafting": True},
    "custom_class": {"method": "custom_class"},
}
"""Our drafter's name -> its part of --speculative-config in vLLM 0.32. The suffix tree keeps no earlier requests: a
repeat would be drafted from the first."""
_WITHOUT_DRAFT = {"ngram", "ngram_gpu", "suffix", "mtp"}
_LEAST_OF_A_STEP = 2048
"""Tokens that fit in one step under the smallest default of --max-num-batched-tokens."""
_NEEDS_V2 = {"dspark", "dflash2"}
_TOTALS = {
    "drafts": "spec_decode_num_drafts_total",
    "drafted tokens": "spec_decode_num_draft_tokens_total",
    "accepted tokens": "spec_decode_num_accepted_tokens_total",
    "generation tokens": "generation_tokens_total",
    "requests": "request_success_total",
}
_PREEMPTIONS, _ITERATIONS = "num_preemptions_total", "iteration_tokens_total_count"
_REPORTS = "--per-request-spec-decode-metrics detailed (vLLM 0.32 or later)"


class VLLM(Engine):
    """vLLM servers."""

    title: ClassVar[str] = "vLLM"
    server: ClassVar[type[Server]] = VLLMServer
    environ: ClassVar[Mapping[str, str]] = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    flush_hint: ClassVar[str] = "start it with VLLM_SERVER_DEV_MODE=1 in its environment"

    def client(self) -> type[Client]:
        """As the base's, with token ids and reports in answers."""
        from agentbench_spec.serving.engines.vllm_client import VLLMClient

        return VLLMClient

    def describe(self, client: Client) -> Server:
        """From the version, the model list, the cache's line among the counters, and the configuration where shown."""
        from agentbench_spec.serving.engines.vllm_client import VLLMClient

        if not isinstance(client, VLLMClient):
            raise TypeError(f"a vLLM server is asked by a VLLMClient, not by {type(client).__name__}")
        model = client.model()
        info = described(client.version(), model, client.metrics(), client.configuration(), client.scheduler())
        return VLLMServer(client.base_url, info, model=model)

    def launchable(self, given: str, options: Mapping[str, Any]) -> Launchable:
        """Read "none", "ngram", or "eagle3=DRAFT"; options are keys of --speculative-config.

        Raises ConfigError for a drafter that vLLM has not, and for one that lacks its draft.
        """
        name, draft = named(given, options)
        name = name.lower()
        if name == BASELINE:
            return PLAIN
        if name not in METHODS:
            raise ConfigError(f"drafter {name}: vLLM 0.32 has no such method; it serves {', '.join(METHODS)}, or none")
        if name not in _WITHOUT_DRAFT and not draft:
            raise without_draft(given)
        if name in _WITHOUT_DRAFT and draft:
            raise ConfigError(f"drafter {name} takes no draft: leave {draft!r} out")
        return Launchable(str(METHODS[name]["method"]), draft or None, {**METHODS[name], **options}, label=name)

    def flags(self, drafter: Launchable, config: RunConfig, port: int) -> list[str]:
        """The command line after the launcher. What decides a comparison is given to all drafters alike."""
        settings = config.vllm
        common: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": port,
            "seed": config.measure.seed,
            "max-num-seqs": settings.max_running_requests,
            "max-num-batched-tokens": settings.max_batched_tokens,
            "block-size": settings.block_size,
        }
        given = {
            "max-model-len": settings.max_model_len,
            "revision": config.target.revision,
            "dtype": None if config.target.dtype == "auto" else config.target.dtype,
        }
        common |= {name: value for name, value in given.items() if value is not None}
        model = [config.target.source] if settings.command[-1:] == ("serve",) else ["--model", config.target.source]
        cache = "--no-enable-prefix-caching" if config.replay.prefix == "cold" else "--enable-prefix-caching"
        told = ["--enable-prompt-tokens-details", "--enable-per-request-metrics"]
        alike = ["--no-async-scheduling"] if _without_async(config) else []
        return [*model, *spelt(common), cache, *told, *alike, *settings.server_args, *_speculation(drafter, config)]

    def chain(self, drafter: str, k: int) -> Mapping[str, Any]:
        """The draft tokens of a step."""
        return {"num_speculative_tokens": k}

    def why_not_started(self, drafter: Launchable, log: str) -> str:
        """The method by name, where the installed version lacks it or runs it on another model runner, and a draft that
        it cannot load."""
        if drafter.algorithm and "speculative" in log.lower() and ("Input should be" in log or "Unsupported" in log):
            return f"this vLLM refuses method {drafter.algorithm}, which {drafter.name} needs. "
        if "no module or parameter named 'draft_id_to_target_id'" in log:
            return (
                "vLLM does not load a draft with a table of its words (d2t) where they are all of the target's: "
                "train it with a smaller draft_vocab_size. "
            )
        if drafter.name in _NEEDS_V2 and "runner" in log.lower():
            return f"{drafter.name} needs vLLM's model runner V2 (VLLM_USE_V2_MODEL_RUNNER=1, and Triton). "
        return ""

    def counters(self, text: str) -> dict[str, float]:
        """The totals named `vllm:...`, without the instants of their creation."""
        return read_counters(text, "vllm", [*_TOTALS.values(), _PREEMPTIONS, _ITERATIONS])

    def cross_check(self, grown: Mapping[str, float], heard: Sequence[tuple[TurnRow, Answer]]) -> CrossCheck:
        """Requests, tokens and the reports' sums; an aborted request is in no counter of requests."""
        ended = [(row, answer) for row, answer in heard if answer.finish in ("stop", "length")]
        reports = [read_report(answer.details) for _, answer in ended]
        known = [report for report in reports if report is not None]
        own = {
            "drafts": sum(report.steps for report in known),
            "drafted tokens": sum(report.drafted for report in known),
            "accepted tokens": sum(report.accepted for report in known),
            "generation tokens": sum(answer.completion_tokens or 0 for _, answer in ended),
            "requests": len(ended),
        }
        server = {name: grown.get(total) for name, total in _TOTALS.items()}
        unknown = ["drafts", "drafted tokens", "accepted tokens"] if len(known) < len(reports) else []
        unknown += ["generation tokens"] if len(ended) < len(heard) else []
        return CrossCheck.of(server, own, unknown=unknown, further=[*_preempted(grown), *_steps(grown, heard)])

    def oddities(self, rows: Sequence[TurnRow]) -> list[str]:
        """Reports that are off, rounds that could not be told, and scheduling that is not told."""
        ok = [row for row in rows if row.status == "ok"]
        said = []
        if any(row.scope == "server" for row in ok):
            said.append(f"answers hold no acceptance, so τ is unknown: start the server with {_REPORTS}")
        unsolved = sum(row.scope == "request" and row.rounds is None for row in ok)
        if unsolved:
            said.append(
                f"{unsolved} of {len(ok)} turns have no τ: nothing told trimmed tokens from steps without a draft; "
                f"start the server with {_REPORTS} and --enable-prompt-tokens-details, and keep the client's machine "
                "idle"
            )
        if ok and all(row.reused_tokens is None for row in ok):
            said.append("cached prompt tokens are not told: start the server with --enable-prompt-tokens-details")
        if ok and all(row.server_ttft_s is None for row in ok):
            said.append("the server's own times are not told: start it with --enable-per-request-metrics")
        if ok and all(row.async_scheduling is None for row in ok):
            said.append(
                "whether it schedules asynchronously is not told (VLLM_SERVER_DEV_MODE=1 shows it): beside "
                f"{', '.join(sorted(NO_ASYNC))}, which vLLM serves without, start it with --no-async-scheduling"
            )
        return said


def _without_async(config: RunConfig) -> bool:
    """True if a drafter of the run turns asynchronous scheduling off; all its servers then go without."""
    named = config.drafters if "drafters" in config.model_fields_set else ()
    return any(name.partition("=")[0].lower() in NO_ASYNC for name in named)


def _speculation(drafter: Launchable, config: RunConfig) -> list[str]:
    if not drafter.algorithm:
        return []
    left_to_draft = drafter.name == "dspark" and "k" not in config.decode.model_fields_set
    wanted = {**({} if left_to_draft else {"num_speculative_tokens": config.decode.k}), **drafter.options}
    if drafter.draft:
        wanted["model"] = drafter.draft
    return ["--speculative-config", json.dumps(wanted), "--per-request-spec-decode-metrics", "detailed"]


def _preempted(grown: Mapping[str, float]) -> list[str]:
    times = grown.get(_PREEMPTIONS)
    if not times:
        return []
    return [f"the server preempted requests {times:g} times: clocks of those turns span more than one attempt"]


def _steps(grown: Mapping[str, float], heard: Sequence[tuple[TurnRow, Answer]]) -> list[str]:
    """One request at a time: the engine's iterations are the prefills and the rounds of each turn.

    A prompt takes one prefill up to the tokens of a step; asynchronous scheduling may add iterations of its own.
    """
    rows = [row for row, _ in heard]
    counted, rounds = grown.get(_ITERATIONS), [row.rounds for row in rows]
    if counted is None or None in rounds or any(row.concurrency != 1 for row in rows):
        return []
    least = len(rows) + sum(number or 0 for number in rounds)
    alone = grown.get(_TOTALS["requests"]) == len(rows)
    short = all(row.new_tokens is not None and row.new_tokens <= _LEAST_OF_A_STEP for row in rows)
    exact = alone and short and all(row.drafter in NO_ASYNC for row in rows)
    if counted == least or (counted > least and not exact):
        return []
    return [f"iterations: the server counted {counted:g}, our turns had {least} (a prefill and the rounds of each)"]


ENGINE = VLLM()
