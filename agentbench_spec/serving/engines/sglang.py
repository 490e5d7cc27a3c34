"""SGLang: its command line, its counters, and what its environment may not say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.serving.engines.base_engine import Engine
from agentbench_spec.serving.engines.sglang_drafts import refuse_draft
from agentbench_spec.serving.engines.sglang_server import BEHIND, SGLangServer
from agentbench_spec.serving.launchable import Launchable, named, spelt, without_draft
from agentbench_spec.serving.prometheus import CrossCheck, read_counters
from agentbench_spec.serving.servers import Server, refuse_unlike
from agentbench_spec.serving.stream import Answer

if TYPE_CHECKING:
    from agentbench_spec.serving.client import Client

SIMULATED = "SGLANG_SIMULATE_ACC_LEN"
PLUGIN = "DLITE"
"""The algorithm that sglang_plugin/ registers."""
_OURS = {"DFLASH2": "DFLASH", "DOMINO": "DFLASH", "DRAFT_LM": "STANDALONE", "MTP": "NEXTN"}
"""Our drafters that SGLang calls otherwise; their rows keep our names."""
_NEEDS_DRAFT = {"EAGLE", "EAGLE3", "DFLASH", "DSPARK", "STANDALONE", PLUGIN}
_TREE = ("num_steps", "eagle_topk", "num_draft_tokens")
_TREE_ALGORITHMS = {"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"}
_CHAIN: dict[str, Callable[[int], int]] = {
    "num_steps": lambda k: k,
    "eagle_topk": lambda k: 1,
    "num_draft_tokens": lambda k: k + 1,
}
_CHAINS = {**dict.fromkeys(_TREE_ALGORITHMS, _CHAIN), "NGRAM": {"num_draft_tokens": _CHAIN["num_draft_tokens"]}}
"""Algorithm -> the options that make it propose k tokens in a row; block drafters have theirs from their checkpoint."""
COUNTERS = (
    "generation_tokens_total",
    "prompt_tokens_total",
    "cached_tokens_total",
    "spec_verify_calls_total",
    "num_requests_total",
    "num_retracted_requests_total",
)


class SGLang(Engine):
    """SGLang servers."""

    title: ClassVar[str] = "SGLang"
    server: ClassVar[type[Server]] = SGLangServer

    def client(self) -> type[Client]:
        """As the base's, with the native route."""
        from agentbench_spec.serving.engines.sglang_client import SGLangClient

        return SGLangClient

    def describe(self, client: Client) -> Server:
        """A server's description of itself; of a router, that of its workers, which must be started alike.

        Raises ConfigError for what is no such server, and naming what two workers differ in.
        """
        from agentbench_spec.serving.engines.sglang_client import SGLangClient

        if not isinstance(client, SGLangClient) or not client.workers:
            return super().describe(client)
        for worker in client.workers:
            if not worker.healthy():
                raise ConfigError(
                    f"{worker.base_url}, a worker of {client.base_url}, is not reached from here; workers are asked "
                    "one by one what they are and what they counted: run where they can be reached"
                )
        first, *others = [super(SGLang, self).describe(worker) for worker in client.workers]
        for other in others:
            refuse_unlike(first, other)
        behind = [worker.base_url for worker in client.workers]
        return SGLangServer(client.base_url, {**first.info, BEHIND: behind}, model=client.model())

    def launchable(self, given: str, options: Mapping[str, Any]) -> Launchable:
        """Read "none", "NGRAM", "EAGLE3=DRAFT", or one of our names; any other must be registered by a plugin.

        Raises ConfigError if a known algorithm lacks its draft, or has part of the options that go together.
        """
        name, draft = named(given, options)
        algorithm = None if name.lower() == BASELINE else _OURS.get(name.upper(), name.upper())
        if algorithm in _NEEDS_DRAFT and not draft:
            raise without_draft(given)
        parts = [key for key in _TREE if key in options]
        if algorithm in _TREE_ALGORITHMS and parts and len(parts) < len(_TREE):
            raise ConfigError(
                f"drafter {name}: {', '.join(_TREE)} go together; {', '.join(parts)} alone is refused by SGLang"
            )
        return Launchable(algorithm, draft or None, dict(options), name.lower() if name.upper() in _OURS else None)

    def refuse_draft(self, drafter: Launchable, config: RunConfig) -> None:
        """Raises ConfigError for a draft folder of another kind than the algorithm's, or made for another target."""
        refuse_draft(drafter, config.target.source)

    def why_not_started(self, drafter: Launchable, log: str) -> str:
        """That the plugin is not there, or what it said itself."""
        if drafter.algorithm != PLUGIN:
            return ""
        if (said := log.rpartition(f"{PLUGIN} is not registered: ")[2]) != log:
            return f"The plugin refuses this SGLang: {said.splitlines()[0]} "
        if "Unknown speculative algorithm name" in log:
            return (
                "SGLang does not know DLITE: install the plugin into its environment, from a checkout of this "
                "repository: pip install --no-deps . ./sglang_plugin. "
            )
        return ""

    def flags(self, drafter: Launchable, config: RunConfig, port: int) -> list[str]:
        """The command line after the launcher. What decides a comparison is given to all drafters alike."""
        settings = config.sglang
        common = {
            "model-path": config.target.source,
            "host": "127.0.0.1",
            "port": port,
            "decode-log-interval": 1,
            "stream-interval": 1,
            "random-seed": config.measure.seed,
            "max-running-requests": settings.max_running_requests,
            "page-size": settings.page_size,
        }
        if config.target.revision:
            common["revision"] = config.target.revision
        own: dict[str, Any] = {}
        if drafter.algorithm:
            own["speculative-algorithm"] = drafter.algorithm
            if drafter.draft:
                own["speculative-draft-model-path"] = drafter.draft
            own |= {f"speculative-{key.replace('_', '-')}": value for key, value in drafter.options.items()}
        cold = ["--disable-radix-cache"] if config.replay.prefix == "cold" else []
        return [*spelt(common), "--enable-metrics", "--enable-cache-report", *cold, *settings.server_args, *spelt(own)]

    def chain(self, drafter: str, k: int) -> Mapping[str, Any]:
        """Steps, top-k and draft tokens of a chain; what block drafters propose is in their checkpoint."""
        algorithm = _OURS.get(drafter.upper(), drafter.upper())
        return {key: value(k) for key, value in _CHAINS.get(algorithm, {}).items()}

    def refuse_settings(self, config: RunConfig, environ: Mapping[str, str]) -> None:
        """Raises ConfigError if the environment makes servers invent their acceptance."""
        told = {**environ, **config.sglang.server_env}
        if told.get(SIMULATED) and not config.sglang.allow_simulated_acceptance:
            raise ConfigError(
                f"{SIMULATED}={told[SIMULATED]} is set: servers started here overwrite their acceptance with it; unset "
                "it, restart the server, or set sglang.allow_simulated_acceptance=true for a test of the arithmetic"
            )

    def counters(self, text: str) -> dict[str, float]:
        """The totals named `sglang:...`."""
        return read_counters(text, "sglang", COUNTERS)

    def cross_check(self, grown: Mapping[str, float], heard: Sequence[tuple[TurnRow, Answer]]) -> CrossCheck:
        """Requests, generated tokens and verify steps; steps only where every answer tells its own."""
        asked = [row for row, _ in heard if row.output_tokens is not None]
        own = {
            "requests": len(asked),
            "generation tokens": sum(row.output_tokens or 0 for row in asked),
            "verify steps": sum((row.rounds or 0) - (row.retractions or 0) for row in asked if row.k and row.rounds),
        }
        server = {
            "requests": grown.get("num_requests_total"),
            "generation tokens": grown.get("generation_tokens_total"),
            "verify steps": grown.get("spec_verify_calls_total"),
        }
        complete = all(row.status in ("ok", "retracted") for row in asked)
        return CrossCheck.of(server, own, unknown=() if complete else ("verify steps",))


ENGINE = SGLang()
