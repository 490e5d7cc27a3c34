"""Every setting of a run and its default, in one tree. A TOML file, then `--set a.b=c`; unknown keys are errors."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from agentbench_spec.config.assignments import assign, key_parts, merge, parse_options, read_toml, split_assignment
from agentbench_spec.config.contradictions import refuse_contradictions
from agentbench_spec.errors import ConfigError

__all__ = [
    "DecodeConfig",
    "MeasureConfig",
    "ReplayConfig",
    "RopeScaling",
    "RunConfig",
    "SGLangConfig",
    "TargetConfig",
    "WorkloadConfig",
    "load_config",
    "parse_options",
]

_DTYPE_ALIASES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class _Section(BaseModel):
    # strict: without it `true` would count as 1 and "4" as 4
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def _dtype(value: Any) -> Any:
    return _DTYPE_ALIASES.get(value, value) if isinstance(value, str) else value


Dtype = Annotated[Literal["auto", "float64", "float32", "bfloat16", "float16"], BeforeValidator(_dtype)]


class RopeScaling(_Section):
    """Static YaRN: a longer window for the target, and with it for every drafter that shares its positions."""

    rope_type: Literal["yarn"] = "yarn"
    factor: float = Field(gt=1)
    """The window becomes factor x the original one."""
    original_max_position_embeddings: int | None = Field(default=None, ge=1)
    """Window the model was trained for; None: the one its config names (Qwen3's says 40960, its card 32768)."""
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None


class TargetConfig(_Section):
    """The model that is decoded."""

    source: str = "smollm2-135m"
    """Hub id, local folder, or the embedded smollm2-135m."""
    revision: str | None = None
    """Hub revision; pin it for anything you publish."""
    dtype: Dtype = "auto"
    """auto: float32 on a CPU, the checkpoint's own on a GPU; fp32, bf16, ... are accepted too."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    capacity_tokens: int | None = Field(default=None, ge=16)
    """Longest text the engine allocates for; None: the model's trained window."""
    rope_scaling: RopeScaling | None = None
    """YaRN for the whole run, such as {factor = 2.0}; it changes outputs at every length. None: as trained."""
    beyond_window: Literal["refuse", "flag"] = "refuse"
    """A turn longer than the trained window: not measured, or measured up to capacity_tokens and labelled so."""
    fast_linears: bool = True
    """On a CPU, race linear kernels and use the fastest (see agentbench_spec/engine/linear.py)."""


class WorkloadConfig(_Section):
    """Where the rollouts come from."""

    name: str = "bfcl_v3"
    """An installed workload, "module:factory", or a rollouts file (.jsonl, .jsonl.gz)."""
    limit: int | None = Field(default=None, ge=1)
    """Rollouts to replay; a smaller limit is a subset of a larger one."""
    lenient: bool = False
    """Pass over bad lines of a rollouts file, listing them; else the first one ends the run."""
    options: dict[str, Any] = {}
    """Passed to the workload's factory."""


MOST_DRAFT_TOKENS = 1024
"""The target scores every draft token of a round at once, k + 1 rows of the vocabulary: far fewer pay off."""


class DecodeConfig(_Section):
    """How a turn is decoded."""

    k: int = Field(default=7, ge=0, le=MOST_DRAFT_TOKENS)
    """Draft tokens per round."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Output cap of a turn, its first token included."""
    mode: Literal["generate", "forced"] = "generate"
    """generate: the target's own choice; forced: the recorded reply is what the target "chooses"."""
    temperature: float = Field(default=0.0, ge=0)
    """0: greedy."""
    top_k: int = Field(default=0, ge=0)
    """0: all tokens."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """1: all tokens."""

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is always taken."""
        return self.temperature == 0 or self.top_k == 1


class ReplayConfig(_Section):
    """How a rollout is walked."""

    history: Literal["recorded", "self"] = "recorded"
    """What follows a turn: the recorded reply, or what the target itself said."""
    prefix: Literal["kept", "cold"] = "kept"
    """kept: only new tokens are prefilled; cold: every turn from scratch."""
    thinking: bool | None = None
    """The template's enable_thinking flag; None: its default."""
    max_turns: int | None = Field(default=None, ge=1)
    """Turns replayed per rollout."""
    chunk_tokens: int = Field(default=512, ge=1)
    """Prefill chunk."""


class MeasureConfig(_Section):
    """How it is measured."""

    clock: Literal["auto", "host", "wall", "attribution", "both"] = "auto"
    """auto: host on a CPU (one pass serves both clocks), both on a GPU."""
    seed: int = Field(default=0, ge=0)
    """One generator per (seed, rollout, turn, drafter)."""
    rounds: bool = False
    """Also write rounds.jsonl, one row per round."""
    include_degenerate: bool = False
    """Count repetition loops in the headline figures."""
    tie_tolerance: float | None = Field(default=None, ge=0)
    """Logit gap that counts as a tie; None: by dtype."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; None: torch's default."""
    repeats: int = Field(default=2, ge=0, le=10)
    """Times more that a turn is decoded, by all drafters, while something else disturbs its clocks."""
    aa: bool = False
    """Decode every turn with a second plain drafter too: its speed-up is what nothing at all reads as."""


class SGLangConfig(_Section):
    """The servers of `backend = "sglang"`: given by URL, or launched one drafter after another."""

    base_urls: tuple[str, ...] = Field(default=(), strict=False)
    """Running servers. Those with one set of resolved arguments share the rollouts; each other set is a drafter."""
    launch: bool = False
    """Start a server per drafter, measure, stop it. Drafters are then names of SGLang algorithms, or none."""
    client: Literal["generate", "chat"] = "generate"
    """generate: token ids on the native route; chat: the OpenAI route, for servers that offer only that."""
    concurrency: int = Field(default=1, ge=1)
    """Rollouts in flight on each server; the turns of one rollout are never concurrent."""
    command: tuple[str, ...] = Field(default=("sglang", "serve"), strict=False)
    """What --launch runs, before the flags."""
    server_args: tuple[str, ...] = Field(default=(), strict=False)
    """Further flags for every launched server, the baseline's too."""
    server_env: dict[str, str] = {}
    """Environment variables added for launched servers."""
    max_running_requests: int = Field(default=64, ge=1)
    """Given to every launched server: unset, speculative ones lower it to 48 and the comparison is void."""
    page_size: int = Field(default=1, ge=1)
    port: int | None = Field(default=None, ge=1, le=65535)
    """Of launched servers; None: a free one."""
    start_timeout_s: float = Field(default=1800.0, gt=0)
    refused_grace_s: float = Field(default=10.0, ge=0)
    """How long a server given by URL may refuse connections; SGLang listens only when its weights are loaded."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Longest silence within an answer."""
    warm_up_rollouts: int | None = Field(default=None, ge=0)
    """Rollouts replayed before the clocks count; None: as many as are in flight."""
    draft_config: str | None = None
    """The draft's config.json, where the server's draft path cannot be read from here."""
    min_tau: float = Field(default=1.05, ge=0)
    """A draft model below this is taken for misconfigured and the run is void; 0 to allow it."""
    allow_simulated_acceptance: bool = False
    """Measure although SGLANG_SIMULATE_ACC_LEN is set; only to test arithmetic."""


class RunConfig(_Section):
    """One run."""

    target: TargetConfig = TargetConfig()
    workload: WorkloadConfig = WorkloadConfig()
    drafters: tuple[str, ...] = Field(default=("none", "ngram", "suffix"), strict=False)
    """Installed names, "module:factory", or either followed by "=CHECKPOINT"; the baseline none is always added."""
    drafter_options: dict[str, dict[str, Any]] = {}
    """Options per drafter, keyed by its name; those under the whole "NAME=CHECKPOINT" come on top."""
    decode: DecodeConfig = DecodeConfig()
    replay: ReplayConfig = ReplayConfig()
    measure: MeasureConfig = MeasureConfig()
    backend: Literal["engine", "sglang"] = "engine"
    """engine: our own loop; sglang: SGLang servers, as a client sees them."""
    sglang: SGLangConfig = SGLangConfig()

    @property
    def named_target(self) -> str | None:
        """The target's source; None where none was given and the servers name theirs."""
        given = self.backend == "engine" or "source" in self.target.model_fields_set
        return self.target.source if given else None


def load_config(
    file: Path | None = None,
    assignments: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    *,
    base: Mapping[str, Any] | None = None,
    trees: Iterable[Mapping[str, Any]] = (),
) -> RunConfig:
    """Resolve a run's settings: defaults, then `base`, the TOML `file`, `trees`, "a.b=c" `assignments`, dotted `flags`.

    base: the settings of a run to continue, as its manifest holds them. trees: nested as in TOML. Flags that are None
    were not given. Raises ConfigError naming the source and the key that is wrong, or
    two that contradict each other.
    """
    tree: dict[str, Any] = {}
    for own in (base or {}, read_toml(file) if file else {}, *trees):
        merge(tree, deepcopy(dict(own)))
    for text in assignments:
        key, value = split_assignment(text)
        assign(tree, key_parts(key), value)
    for name, value in (flags or {}).items():
        if value is not None:
            assign(tree, name.split("."), value)
    try:
        config = RunConfig.model_validate(tree)
        json.dumps(config.model_dump(), allow_nan=False)  # the manifest has to hold it
    except ValidationError as error:
        raise ConfigError(_explain(error, file)) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a setting cannot be stored in a manifest: {error}; use text and finite numbers") from None
    refuse_contradictions(config)
    return config


_WAY_OUT = {
    "model_type": "is a section; set one of its keys, such as {key}",
    "dict_type": "expected a table of options",
    "tuple_type": 'expected a list; write ["ngram", "suffix"]',
    "string_type": 'expected text; put it in quotes: "{input}"',
    "less_than_equal": "expected at most {le}; lower it",
}


def _explain(error: ValidationError, file: Path | None) -> str:
    faults = error.errors(include_url=False)
    first = faults[0]
    where = ".".join(map(str, first["loc"]))
    source = f" (in {file}, --set or a flag)" if file else ""
    more = f" (and {len(faults) - 1} more wrong)" if len(faults) > 1 else ""
    if first["type"] == "extra_forbidden":
        near = near_setting(where)
        return f"unknown setting {where!r}{source}" + (f"; did you mean {near!r}?" if near else "") + more
    reason = _WAY_OUT.get(first["type"], "{message}").format(
        input=first["input"],
        message=first["msg"],
        le=first.get("ctx", {}).get("le"),
        key=next((k for k in _keys(RunConfig) if k.startswith(where)), where),
    )
    return f"setting {where}: {reason}, got {first['input']!r:.80}{source}{more}"


def near_setting(where: str) -> str | None:
    """The setting that an unknown one was meant to be: the same name in its section, or a similar spelling."""
    known = sorted({*_keys(RunConfig), *RunConfig.model_fields})
    same_leaf = [name for name in known if name.rpartition(".")[2] == where.rpartition(".")[2]]
    close = same_leaf or difflib.get_close_matches(where, known, n=1)
    return close[0] if close else None


def _keys(section: type[BaseModel], prefix: str = "") -> Iterable[str]:
    for name, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name
