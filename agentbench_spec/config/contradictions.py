"""Settings that contradict each other: refused with both names and the way out, before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentbench_spec.config.backends import SERVED
from agentbench_spec.errors import ConfigError

if TYPE_CHECKING:
    from agentbench_spec.config import RunConfig

_EMBEDDED = "smollm2-135m"


def refuse_contradictions(config: RunConfig) -> None:
    """Raises ConfigError for the first pair of settings of which one makes the other void."""
    for fault in (*_decoding(config), *_target(config), *_servers(config)):
        raise ConfigError(fault)


def _decoding(config: RunConfig) -> Iterator[str]:
    decode, replay = config.decode, config.replay
    if decode.sweep and decode.k_policy == "auto":
        yield 'decode.sweep and decode.k=auto: put "auto" into decode.sweep, and the most it may be into decode.k'
    if wrong := [k for k in decode.sweep if isinstance(k, int) and not 0 <= k <= decode.k]:
        yield f"decode.sweep asks for {wrong[0]} draft tokens, decode.k={decode.k} is the most; raise decode.k"
    if len(set(decode.sweep)) < len(decode.sweep):
        yield f"decode.sweep={list(decode.sweep)} names a K twice; name each once"
    if decode.mode == "forced":
        if decode.temperature > 0:
            yield (
                f"decode.mode=forced and decode.temperature={decode.temperature:g}: the record is emitted, nothing is "
                "sampled; set decode.temperature=0, or decode.mode=generate"
            )
        if replay.history == "live":
            yield (
                "decode.mode=forced and replay.history=live: a live session has no record to emit; set "
                "decode.mode=generate, or replay the live.jsonl of a live run"
            )
        if replay.history == "self":
            yield (
                "decode.mode=forced and replay.history=self: the target's own words are the record's; set "
                "replay.history=recorded, or decode.mode=generate"
            )
    if decode.temperature == 0 and "temperature" in decode.model_fields_set:
        for name, all_tokens in (("top_k", 0), ("top_p", 1.0)):
            if name in decode.model_fields_set and (given := getattr(decode, name)) not in (all_tokens, 1):
                yield (
                    f"decode.{name}={given} and decode.temperature=0: a greedy choice samples from nothing; raise "
                    f"decode.temperature, or leave decode.{name} out"
                )


def _target(config: RunConfig) -> Iterator[str]:
    target, decode = config.target, config.decode
    if target.revision is not None and target.source == _EMBEDDED:
        yield (
            f"target.revision={target.revision} and target.source={_EMBEDDED}: the embedded model has no revisions; "
            "leave target.revision out, or name the hub id it belongs to as target.source"
        )
    if target.graphs == "on" and (decode.k_policy == "auto" or decode.sweep):
        several = "decode.sweep" if decode.sweep else "decode.k=auto"
        yield (
            f"target.graphs=on and {several}: graphs hold rounds of one k; set decode.k to a number, or leave "
            "target.graphs out"
        )
    capacity = target.capacity_tokens
    if capacity is not None and capacity <= decode.max_new_tokens:
        yield (
            f"decode.max_new_tokens={decode.max_new_tokens} leaves no room for a prompt in {capacity} tokens "
            "(target.capacity_tokens); lower it, or raise target.capacity_tokens"
        )
    if capacity is not None and capacity <= decode.k:
        yield (
            f"decode.k={decode.k} drafts more tokens in a round than {capacity} tokens have room for "
            "(target.capacity_tokens); lower it, or raise target.capacity_tokens"
        )


def _servers(config: RunConfig) -> Iterator[str]:
    for engine in SERVED:
        for name in ("base_urls", "launch"):
            if engine != config.backend and getattr(config.section_of(engine), name):
                whose = "our own engine asks no server" if config.backend == "engine" else "other servers are measured"
                yield (
                    f"{engine}.{name} and backend={config.backend}: {whose}; set backend={engine}, or leave "
                    f"{engine}.{name} out"
                )
    if config.backend == "engine":
        return
    engine_only = (
        ("measure.aa", config.measure.aa),
        ("measure.rounds", config.measure.rounds),
        ("measure.ceiling", config.measure.ceiling),
        ("decode.k=auto", config.decode.k_policy == "auto"),
        ("decode.sweep", bool(config.decode.sweep)),
        ("target.graphs=on", config.target.graphs == "on"),
        ("target.rope_scaling", config.target.rope_scaling is not None),
    )
    for name, given in engine_only:
        if given:
            yield (
                f"{name} and backend={config.backend}: only our own engine can do that; leave {name} out, or set "
                "backend=engine"
            )
