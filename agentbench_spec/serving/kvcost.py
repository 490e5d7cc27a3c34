"""What a drafter's KV costs, seen from outside a server. Each figure says by which method it was found."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.metrics import BASELINE, counted
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.serving.part import PartResult
from agentbench_spec.serving.servers import keeps_no_text

Method = Literal["formula", "capacity_drop", "capacity_less_weights", "server_log", "step_time_difference"]

_DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "auto": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}


@dataclass(frozen=True, slots=True)
class Cost:
    """One figure of draft-KV cost."""

    method: Method
    unit: str
    value: float
    remark: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def kv_bytes_per_token(config: Mapping[str, Any], dtype: str = "auto") -> int:
    """2 x layers x KV heads x head size x bytes of a number, from a model's config.json.

    Raises ConfigError naming the field that is missing, or an unknown dtype.
    """
    heads = _field(config, "num_attention_heads")
    kv_heads = int(config.get("num_key_value_heads") or heads)
    head_dim = int(config.get("head_dim") or _field(config, "hidden_size") // heads)
    if dtype not in _DTYPE_BYTES:
        raise ConfigError(f"KV dtype {dtype!r} has no known size; known: {', '.join(_DTYPE_BYTES)}")
    return 2 * _field(config, "num_hidden_layers") * kv_heads * head_dim * _DTYPE_BYTES[dtype]


def _field(config: Mapping[str, Any], name: str) -> int:
    if not isinstance(config.get(name), int):
        raise ConfigError(f"draft config: field {name!r} is missing or not a number; give the draft's own config.json")
    return int(config[name])


def by_formula(draft: Mapping[str, Any], dtype: str = "auto") -> Cost:
    """Bytes per token of the draft's KV pool, one slot for each of the target's; 0 for a draft without one."""
    if keeps_no_text(draft):
        return Cost("formula", "bytes/token", 0, "the draft reads the target's states of one position and keeps no KV")
    return Cost("formula", "bytes/token", kv_bytes_per_token(draft, dtype), f"from the draft's config, KV in {dtype}")


def by_capacity(baseline_tokens: int, drafter_tokens: int) -> Cost:
    """Share of the token capacity lost at equal memory fraction; draft weights and graph memory are in it."""
    return Cost(
        "capacity_drop",
        "share of token capacity",
        1 - drafter_tokens / baseline_tokens,
        f"{baseline_tokens} tokens without the drafter, {drafter_tokens} with it, draft weights and graphs included",
    )


def by_weights(baseline_tokens: int, baseline_pool_bytes: int, draft: str | None) -> Cost | None:
    """The capacity if only the draft's weights were taken from the baseline's; None where they lie in no folder here.

    What a drafter's own capacity lies below it went to its KV pool and its graphs.
    """
    files = [path for kind in ("*.safetensors", "pytorch_model*.bin") for path in Path(draft or "").glob(kind)]
    if not draft or not files:
        return None
    weights = sum(path.stat().st_size for path in files)
    taken = math.ceil(weights * baseline_tokens / baseline_pool_bytes)
    remark = f"{baseline_tokens} tokens without the drafter, less {weights} bytes of draft weights"
    return Cost("capacity_less_weights", "tokens", baseline_tokens - taken, remark)


_POOL = re.compile(r"KV Cache is allocated\..*?K size: (?P<k>[\d.]+) GB, V size: (?P<v>[\d.]+) GB")


def by_log(lines: Iterable[str]) -> Cost | None:
    """Size of the second KV pool a server's log reports, the draft's; None if there is no second one.

    A log may hold several starts, each after the line of its command ("$ ..."); the last one counts.
    """
    pools: list[re.Match[str]] = []
    for line in lines:
        match = _POOL.search(line)
        pools = [] if line.startswith("$ ") else [*pools, match] if match else pools
    if len(pools) < 2:
        return None
    size = (float(pools[1]["k"]) + float(pools[1]["v"])) * 2**30
    return Cost("server_log", "bytes", size, "second KV pool in the server's log, rounded there to 0.01 GB")


def by_step_time(baseline: Iterable[TurnRow], drafter: Iterable[TurnRow]) -> Cost | None:
    """Median seconds of a verify step less the baseline's step: drafting and verifying more tokens are in it too."""
    plain, spec = ([row.step_s for row in counted(rows) if row.step_s is not None] for rows in (baseline, drafter))
    if not plain or not spec:
        return None
    remark = "upper bound: drafting, wider verification and draft-KV upkeep together"
    return Cost("step_time_difference", "s/step", median(spec) - median(plain), remark)


def draft_kv_costs(result: PartResult, baseline: PartResult | None, log: Path) -> list[Cost]:
    """What the drafter's KV costs, by every method whose inputs are known; empty for plain decoding.

    log: output of the launched server, if there was one.
    """
    if result.name == BASELINE:
        return []
    costs: list[Cost] = []
    if result.draft is not None:
        told = (result.resolved.get(name) for name in ("speculative_draft_kv_cache_dtype", "kv_cache_dtype"))
        costs.append(by_formula(result.draft, next((str(dtype) for dtype in told if dtype), "auto")))
    if baseline is not None and baseline.token_capacity and result.token_capacity:
        costs.append(by_capacity(baseline.token_capacity, result.token_capacity))
    if left := _less_weights(result, baseline):
        costs.append(left)
    if log.is_file() and (pool := by_log(log.read_text(errors="replace").splitlines())):
        costs.append(pool)
    if baseline is not None and (slower := by_step_time(baseline.rows, result.rows)):
        costs.append(slower)
    return costs


def _less_weights(result: PartResult, baseline: PartResult | None) -> Cost | None:
    if baseline is None or not baseline.token_capacity or not baseline.kv_pool_bytes:
        return None
    draft = result.resolved.get("speculative_draft_model_path")
    return by_weights(baseline.token_capacity, baseline.kv_pool_bytes, draft)


def capacity_lines(results: Mapping[str, PartResult]) -> list[str]:
    """How many tokens each drafter's server has room for, and what of the loss its weights explain, in words."""
    baseline, lines = results.get(BASELINE), []
    for name, result in results.items():
        if not result.token_capacity:
            continue
        said = f"{name}: room for {result.token_capacity:,} tokens"
        if name != BASELINE and baseline is not None and baseline.token_capacity:
            said += f", {result.token_capacity / baseline.token_capacity - 1:+.1%} against no speculation"
            if left := _less_weights(result, baseline):
                said += f"; the draft's weights alone would leave {left.value:,.0f}"
                taken = left.value - result.token_capacity
                said += f", its KV pool and graphs take the room of {taken:,.0f}" if taken > 0 else ""
        lines.append(said)
    return lines
