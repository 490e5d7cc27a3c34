"""What is not measured at all, because its numbers would mislead; every refusal names the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentbench_spec.config import RunConfig
from agentbench_spec.engine import embedded
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.rollout import Rollout
from agentbench_spec.serving.access import refuse_addresses
from agentbench_spec.serving.servers import EAGLE_FAMILY, EQUAL, MODEL_FREE, Server

SIMULATED = "SGLANG_SIMULATE_ACC_LEN"
_ARGMAX_DEVICES = {"cpu", "xpu"}
_ROCM_BACKENDS = {"aiter", "wave"}
_ENOUGH_STEPS = 20


def refuse_settings(config: RunConfig, environ: Mapping[str, str]) -> None:
    """Raises ConfigError for settings no server can serve, and for simulated acceptance in the environment."""
    if bool(config.sglang.base_urls) == config.sglang.launch:
        raise ConfigError("backend sglang needs servers: give --base-url URL for running ones, or --launch, not both")
    refuse_addresses(config.sglang)
    if config.sglang.launch and config.target.source == embedded.NAME:
        raise ConfigError(f"{embedded.NAME} is this package's own conversion: give --launch a --target SGLang can load")
    if config.decode.mode == "forced":
        raise ConfigError("decode.mode=forced: a server cannot be made to emit the record; use generate")
    if config.sglang.client == "chat" and config.replay.history == "self":
        raise ConfigError("replay.history=self needs the token ids of answers; use sglang.client=generate")
    if config.sglang.launch and config.sglang.concurrency > config.sglang.max_running_requests:
        raise ConfigError(
            f"concurrency {config.sglang.concurrency} exceeds sglang.max_running_requests "
            f"{config.sglang.max_running_requests}: the rest would only queue; raise it"
        )
    refuse_simulated({**environ, **config.sglang.server_env}, allowed=config.sglang.allow_simulated_acceptance)


def refuse_simulated(environ: Mapping[str, str], *, allowed: bool) -> None:
    """Raises ConfigError if the environment makes servers invent their acceptance."""
    if environ.get(SIMULATED) and not allowed:
        raise ConfigError(
            f"{SIMULATED}={environ[SIMULATED]} is set: servers started here overwrite their acceptance with it; unset "
            "it, restart the server, or set sglang.allow_simulated_acceptance=true for a test of the arithmetic"
        )


def refuse_server(
    server: Server, config: RunConfig, rollouts: Sequence[Rollout], draft: Mapping[str, Any] | None
) -> None:
    """Raises ConfigError if this server cannot give honest numbers for these settings."""
    _refuse_temperature(server, config)
    _refuse_radix(server, config, rollouts)
    _refuse_architecture(server, draft)
    limit = server.info.get("max_running_requests")
    if isinstance(limit, int) and config.sglang.concurrency > limit:
        raise ConfigError(
            f"{server.base_url}: concurrency {config.sglang.concurrency} exceeds its --max-running-requests {limit}; "
            "restart it, and the baseline's server, with a higher one"
        )


def _refuse_temperature(server: Server, config: RunConfig) -> None:
    info = server.info
    if config.decode.greedy or server.algorithm not in EAGLE_FAMILY:
        return
    device, attention = str(info.get("device")), str(info.get("attention_backend"))
    rocm = attention in _ROCM_BACKENDS and not info.get("speculative_use_rejection_sampling")
    if device in _ARGMAX_DEVICES or rocm:
        raise ConfigError(
            f"{server.base_url}: {server.algorithm} on {'ROCm' if rocm else device} verifies by arg-max whatever the "
            f"temperature; decode.temperature={config.decode.temperature:g} would be ignored: set it to 0"
            + (", or start the server with --speculative-use-rejection-sampling" if rocm else "")
        )


def _refuse_radix(server: Server, config: RunConfig, rollouts: Sequence[Rollout]) -> None:
    cold = config.replay.prefix == "cold"
    if cold and server.radix_cache:
        raise ConfigError(
            f"{server.base_url}: replay.prefix=cold, but the server keeps prefixes; start it with --disable-radix-cache"
        )
    several = any(len(rollout.decode_points()[: config.replay.max_turns]) > 1 for rollout in rollouts)
    if not cold and several and server.radix_cache is False:
        raise ConfigError(
            f"{server.base_url}: the radix cache is off, so every turn would be prefilled from nothing; start the "
            "server without --disable-radix-cache, or set replay.prefix=cold"
        )


def _refuse_architecture(server: Server, draft: Mapping[str, Any] | None) -> None:
    named = [str(name) for name in (draft or {}).get("architectures") or ()]
    if server.algorithm == "EAGLE" and any("eagle3" in name.lower() for name in named):
        raise ConfigError(
            f"{server.base_url}: the draft is an EAGLE-3 one ({', '.join(named)}) but runs under EAGLE, where it loads "
            "and drafts noise; restart with --speculative-algorithm EAGLE3"
        )


def refuse_draft_limit(server: Server, draft: Mapping[str, Any] | None, longest: tuple[int, str]) -> None:
    """Raises ConfigError if the draft's positions end before the run's longest text does.

    longest: tokens of the longest prompt with its answer, and which turn that is.
    """
    limit = (draft or {}).get("max_position_embeddings")
    needed, where = longest
    if server.algorithm and isinstance(limit, int) and needed > limit:
        raise ConfigError(
            f"{server.base_url}: {where} needs {needed} positions, the draft was made for {limit} and collapses beyond "
            "them; use a draft with a longer limit, or cut the rollouts (replay.max_turns, workload.limit)"
        )


def refuse_unequal(baseline: Mapping[str, Any], drafter: Mapping[str, Any], name: str) -> None:
    """Raises ConfigError naming the arguments in which a drafter's server differs from the baseline's.

    baseline, drafter: as `Server.resolved` gives them.
    """
    unequal = [
        f"--{key.replace('_', '-')} ({baseline[key]!r} for the baseline, {drafter[key]!r} for {name})"
        for key in EQUAL
        if baseline.get(key) is not None and drafter.get(key) is not None and baseline[key] != drafter[key]
    ]
    if unequal:
        raise ConfigError(
            f"baseline and drafter servers differ in {', '.join(unequal)}; start both with the same values"
        )


def refuse_low_tau(server: Server, parts: Iterable[tuple[int, int]], *, min_tau: float) -> None:
    """Raises MeasurementError if a draft model is hardly ever right over (correct drafts, verify steps) of turns."""
    if server.algorithm is None or server.algorithm in MODEL_FREE:
        return
    parts = list(parts)
    correct, steps = sum(part[0] for part in parts), sum(part[1] for part in parts)
    if steps >= _ENOUGH_STEPS and 1 + correct / steps < min_tau:
        raise MeasurementError(
            f"{server.drafter}: tau is {1 + correct / steps:.3f} over {steps} verify steps, below {min_tau:g}: the "
            "draft and the algorithm or the target do not belong together; check the algorithm's name and the draft's "
            "architecture, or set sglang.min_tau=0 if the draft really is that weak"
        )
