"""What is not measured at all, because its numbers would mislead; every refusal names the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentbench_spec.config import RunConfig
from agentbench_spec.engine import embedded
from agentbench_spec.errors import AgentBenchError, ConfigError, MeasurementError
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.rollout import Rollout
from agentbench_spec.serving.access import refuse_addresses
from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.servers import Server

if TYPE_CHECKING:
    from agentbench_spec.runs.replay import Renders

_ENOUGH_STEPS = 20


def refuse_settings(config: RunConfig, environ: Mapping[str, str]) -> None:
    """Raises ConfigError for settings no server can serve, and for what the engine itself refuses."""
    name, settings = config.backend, config.servers
    title = engine_of(name).title
    if bool(settings.base_urls) == settings.launch:
        raise ConfigError(f"backend {name} needs servers: give --base-url URL for running ones, or --launch, not both")
    refuse_addresses(name, settings)
    if settings.launch and config.target.source == embedded.NAME:
        raise ConfigError(
            f"{embedded.NAME} is this package's own conversion: give --launch a --target {title} can load"
        )
    if config.decode.mode == "forced":
        raise ConfigError("decode.mode=forced: a server cannot be made to emit the record; use generate")
    if settings.client == "chat" and config.replay.history != "recorded":
        raise ConfigError(
            f"replay.history={config.replay.history} needs the token ids of answers; use {name}.client=generate"
        )
    if settings.launch and settings.concurrency > settings.max_running_requests:
        raise ConfigError(
            f"concurrency {settings.concurrency} exceeds {name}.max_running_requests "
            f"{settings.max_running_requests}: the rest would only queue; raise it"
        )
    engine_of(name).refuse_settings(config, environ)


def refuse_draft_limit(server: Server, draft: Mapping[str, Any] | None, longest: tuple[int, str]) -> None:
    """Raises ConfigError if the draft's positions end before the run's longest text does.

    longest: tokens of the longest prompt with its answer, and which turn that is.
    """
    limit = (draft or {}).get("max_position_embeddings")
    needed, where = longest
    if server.speculates and isinstance(limit, int) and needed > limit:
        raise ConfigError(
            f"{server.base_url}: {where} needs {needed} positions, the draft was made for {limit} and collapses beyond "
            "them; use a draft with a longer limit, or cut the rollouts (replay.max_turns, workload.limit)"
        )


def refuse_unequal(baseline: Mapping[str, Any], server: Server) -> None:
    """Raises ConfigError naming the arguments in which a drafter's server differs from the baseline's.

    baseline: as `Server.resolved` gives it.
    """
    drafter = server.resolved()
    keys = [
        key
        for key in server.equal
        if baseline.get(key) is not None and drafter.get(key) is not None and baseline[key] != drafter[key]
    ]
    unequal = [
        f"--{key.replace('_', '-')} ({baseline[key]!r} for the baseline, {drafter[key]!r} for {server.drafter})"
        for key in keys
    ]
    if unequal:
        ways = ["start both with the same values", *(server.ways_out[key] for key in keys if key in server.ways_out)]
        raise ConfigError(f"baseline and drafter servers differ in {', '.join(unequal)}; {'. '.join(ways)}")


def refuse_low_tau(server: Server, parts: Iterable[tuple[int, int]], *, min_tau: float) -> None:
    """Raises MeasurementError if a draft model is hardly ever right over (correct drafts, verify steps) of turns."""
    if not server.needs_model:
        return
    parts = list(parts)
    correct, steps = sum(part[0] for part in parts), sum(part[1] for part in parts)
    if steps >= _ENOUGH_STEPS and 1 + correct / steps < min_tau:
        raise MeasurementError(
            f"{server.drafter}: tau is {1 + correct / steps:.3f} over {steps} verify steps, below {min_tau:g}: the "
            "draft and the algorithm or the target do not belong together; check the algorithm's name and the draft's "
            f"architecture, or set {server.backend}.min_tau=0 if the draft really is that weak"
        )


def longest_text(
    rollouts: Sequence[Rollout], renderer: Renders, max_turns: int | None, max_new_tokens: int
) -> tuple[int, str]:
    """Tokens of the longest prompt with its answer, and which turn that is; turns that do not render do not count."""
    longest = (0, "no turn")
    for rollout in rollouts:
        for turn, message in enumerate(rollout.decode_points()[:max_turns]):
            try:
                need = len(renderer.prompt(rollout, message)) + max_new_tokens
            except AgentBenchError:
                break
            longest = max(longest, (need, f"{rollout.id} turn {turn}"))
    return longest


def acceptance_parts(rows: Sequence[TurnRow]) -> list[tuple[int, int]]:
    """(correct drafts, verify steps) of the turns that count."""
    return [(row.matched, row.rounds) for row in rows if row.status == "ok" and row.matched is not None and row.rounds]
