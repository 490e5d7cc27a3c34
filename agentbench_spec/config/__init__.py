"""Every setting of a run and its default, in one tree. A TOML file, then `--set a.b=c`; unknown keys are errors."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from agentbench_spec.config.assignments import assign, key_parts, merge, parse_options, read_toml, split_assignment
from agentbench_spec.config.auto_k import with_auto_k
from agentbench_spec.config.backends import SERVED, Backend, OpenAIConfig, ServersConfig, SGLangConfig, VLLMConfig
from agentbench_spec.config.contradictions import refuse_contradictions
from agentbench_spec.config.live_limits import LiveConfig
from agentbench_spec.config.rope_scaling import RopeScaling
from agentbench_spec.config.strict_section import Section
from agentbench_spec.errors import ConfigError

__all__ = [
    "DecodeConfig",
    "LiveConfig",
    "MeasureConfig",
    "OpenAIConfig",
    "ReplayConfig",
    "RopeScaling",
    "RunConfig",
    "SGLangConfig",
    "ServersConfig",
    "TargetConfig",
    "VLLMConfig",
    "WorkloadConfig",
    "load_config",
    "parse_options",
]

_DTYPE_ALIASES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def _dtype(value: Any) -> Any:
    return _DTYPE_ALIASES.get(value, value) if isinstance(value, str) else value


Dtype = Annotated[Literal["auto", "float64", "float32", "bfloat16", "float16"], BeforeValidator(_dtype)]


class TargetConfig(Section):
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
    graphs: Literal["auto", "on", "off"] = "auto"
    """auto: on CUDA, replay the rounds of all drafters from graphs, if all can be captured; on: fail if not."""
    fast_linears: bool = True
    """On a CPU, race kernels of linears and attention, and use the fastest (see agentbench_spec/engine/cpu/race.py)."""


class WorkloadConfig(Section):
    """Where the rollouts come from."""

    name: str = "bfcl_v3"
    """An installed workload, "module:factory", or a rollouts file (.jsonl, .jsonl.gz)."""
    limit: int | None = Field(default=None, ge=1)
    """Rollouts to replay; a smaller limit is a subset of a larger one."""
    lenient: bool = False
    """Pass over bad lines of a rollouts file, listing them; else the first one ends the run."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the workload's factory."""


MOST_DRAFT_TOKENS = 1024
"""The target scores every draft token of a round at once, k + 1 rows of the vocabulary: far fewer pay off."""


class DecodeConfig(Section):
    """How a turn is decoded."""

    k: int = Field(default=7, ge=0, le=MOST_DRAFT_TOKENS)
    """Draft tokens per round; "auto", or "auto:15", sets k_policy with it, and "1,3,auto" sets sweep."""
    k_policy: Literal["fixed", "auto"] = "fixed"
    """auto: each round drafts what is expected to take the least time per token, from 0 to k tokens."""
    sweep: tuple[int | Literal["auto"], ...] = Field(default=(), strict=False)
    """Every drafter decodes each turn once with each of these, at most k, such as [1, 3, 7, "auto"]; empty: with k."""
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


class ReplayConfig(Section):
    """How a rollout is walked."""

    history: Literal["recorded", "self", "live"] = "recorded"
    """What follows a turn: the recorded reply, what the target itself said, or that and what its calls really give."""
    prefix: Literal["kept", "cold"] = "kept"
    """kept: only new tokens are prefilled; cold: every turn from scratch."""
    thinking: bool | None = None
    """The template's enable_thinking flag; None: its default."""
    max_turns: int | None = Field(default=None, ge=1)
    """Turns replayed per rollout."""
    chunk_tokens: int = Field(default=512, ge=1)
    """Prefill chunk on a CPU."""
    gpu_chunk_tokens: int = Field(default=4096, ge=1)
    """Prefill chunk on a GPU, where a small one takes as long to launch as to run."""


class MeasureConfig(Section):
    """How it is measured."""

    clock: Literal["auto", "host", "wall", "attribution", "both"] = "auto"
    """auto: host on a CPU (one pass serves both clocks), both on a GPU."""
    seed: int = Field(default=0, ge=0)
    """One generator per (seed, rollout, turn, drafter)."""
    rounds: bool = False
    """Also write rounds.jsonl, one row per round."""
    ceiling: bool = False
    """Also write what exact acceptance can reach at temperature 1, one more pass of the target over each output."""
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


_CAME_LATER = (
    *(("decode", "k_policy"), ("decode", "sweep"), ("measure", "ceiling")),
    *(("target", "graphs"), ("replay", "gpu_chunk_tokens")),
)


class RunConfig(Section):
    """One run."""

    target: TargetConfig = TargetConfig()
    workload: WorkloadConfig = WorkloadConfig()
    drafters: tuple[str, ...] = Field(default=("none", "ngram", "suffix"), strict=False)
    """Installed names, "module:factory", or either followed by "=CHECKPOINT"; the baseline none is always added."""
    drafter_options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Options per drafter, keyed by its name; those under the whole "NAME=CHECKPOINT" come on top."""
    decode: Annotated[DecodeConfig, BeforeValidator(with_auto_k)] = DecodeConfig()
    replay: ReplayConfig = ReplayConfig()
    live: LiveConfig = LiveConfig()
    measure: MeasureConfig = MeasureConfig()
    backend: Backend = "engine"
    """engine: our own loop; the others: servers of that engine, as a client sees them."""
    sglang: SGLangConfig = SGLangConfig()
    vllm: VLLMConfig = VLLMConfig()
    openai: OpenAIConfig = OpenAIConfig()

    @model_serializer(mode="wrap")
    def _without_untouched_later_ones(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Untouched settings that came later are left out: older runs, which lack them, still resume."""
        tree: dict[str, Any] = dump(self)
        for section, name in _CAME_LATER:
            own = getattr(self, section)
            if getattr(own, name) == type(own).model_fields[name].default:
                tree.get(section, {}).pop(name, None)
        later: dict[str, ServersConfig] = {"vllm": VLLMConfig(), "openai": OpenAIConfig()}
        untouched = {name for name, own in later.items() if name != self.backend and getattr(self, name) == own}
        untouched |= {"live"} if self.live == LiveConfig() else set()
        return {name: own for name, own in tree.items() if name not in untouched}

    @property
    def servers(self) -> ServersConfig:
        """The section of the serving engine in use. Raises AttributeError for our own engine, which asks none."""
        return self.section_of(self.backend)

    def section_of(self, backend: Backend) -> ServersConfig:
        """The section of a serving engine."""
        section: ServersConfig = getattr(self, backend)
        return section

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
    were not given; those that begin with "servers." belong to the section of the serving engine in use, SGLang if
    none is named. Raises ConfigError naming the source and the key that is wrong, or
    two that contradict each other.
    """
    tree: dict[str, Any] = {}
    for own in (base or {}, read_toml(file) if file else {}, *trees):
        merge(tree, deepcopy(dict(own)))
    for text in assignments:
        key, value = split_assignment(text)
        assign(tree, key_parts(key), value)
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    if any(given.get(f"servers.{name}") for name in ("base_urls", "launch")) and "backend" not in given:
        tree.setdefault("backend", SERVED[0])
    for name, value in given.items():
        assign(tree, name.split("."), value)
    if "servers" in tree:
        section = tree["backend"] if tree.get("backend") in SERVED else SERVED[0]
        merge(tree, {section: tree.pop("servers")})
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
    known = list(dict.fromkeys([*_keys(RunConfig), *RunConfig.model_fields]))
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
