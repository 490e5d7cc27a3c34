"""Every setting of a run and its default, in one tree. A TOML file, then `--set a.b=c`; unknown keys are errors."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentbench_spec.errors import ConfigError


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TargetConfig(_Section):
    """The model that is decoded."""

    source: str = "smollm2-135m"
    """Hub id, local folder, or the embedded smollm2-135m."""
    revision: str | None = None
    """Hub revision; pin it for anything you publish."""
    dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] = "auto"
    """auto: float32 on a CPU, the checkpoint's own on a GPU."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    capacity_tokens: int | None = Field(default=None, ge=16)
    """Longest text the engine allocates for; None: the model's trained window."""
    fast_linears: bool = True
    """On a CPU, race linear kernels and use the fastest (see agentbench_spec/linear.py)."""


class WorkloadConfig(_Section):
    """Where the rollouts come from."""

    name: str = "bfcl_v3"
    """An installed workload, "module:factory", or a rollouts file (.jsonl, .jsonl.gz)."""
    limit: int | None = Field(default=None, ge=1)
    """Rollouts to replay; a smaller limit is a subset of a larger one."""
    options: dict[str, Any] = {}
    """Passed to the workload's factory."""


class DecodeConfig(_Section):
    """How a turn is decoded."""

    k: int = Field(default=7, ge=0)
    """Draft tokens per round."""
    max_new_tokens: int = Field(default=256, ge=1)
    """Output cap of a turn, its first token included."""
    mode: Literal["generate", "forced"] = "generate"
    """generate: the target's own choice; forced: the recorded reply is what the target "chooses"."""
    temperature: float = Field(default=0.0, ge=0)
    top_k: int = Field(default=0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)


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
    seed: int = 0
    """One generator per (seed, rollout, turn, drafter)."""
    rounds: bool = False
    """Also write rounds.jsonl, one row per round."""
    include_degenerate: bool = False
    """Count repetition loops in the headline figures."""
    tie_tolerance: float | None = Field(default=None, ge=0)
    """Logit gap that counts as a tie; None: by dtype."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; None: torch's default."""


class SGLangConfig(_Section):
    """The servers of `backend = "sglang"`: given by URL, or launched one drafter after another."""

    base_urls: tuple[str, ...] = ()
    """Running servers. Those with one set of resolved arguments share the rollouts; each other set is a drafter."""
    launch: bool = False
    """Start a server per drafter, measure, stop it. Drafters are then names of SGLang algorithms, or none."""
    client: Literal["generate", "chat"] = "generate"
    """generate: token ids on the native route; chat: the OpenAI route, for servers that offer only that."""
    concurrency: int = Field(default=1, ge=1)
    """Rollouts in flight on each server; the turns of one rollout are never concurrent."""
    command: tuple[str, ...] = ("sglang", "serve")
    """What --launch runs, before the flags."""
    server_args: tuple[str, ...] = ()
    """Further flags for every launched server, the baseline's too."""
    server_env: dict[str, str] = {}
    """Environment variables added for launched servers."""
    max_running_requests: int = Field(default=64, ge=1)
    """Given to every launched server: unset, speculative ones lower it to 48 and the comparison is void."""
    page_size: int = Field(default=1, ge=1)
    port: int | None = Field(default=None, ge=1, le=65535)
    """Of launched servers; None: a free one."""
    start_timeout_s: float = Field(default=1800.0, gt=0)
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Longest silence within an answer."""
    warm_up_rollouts: int | None = Field(default=None, ge=0)
    """Rollouts replayed before the clocks count; None: as many as are in flight."""
    draft_config: Path | None = None
    """The draft's config.json, where the server's draft path cannot be read from here."""
    min_tau: float = Field(default=1.05, ge=0)
    """A draft model below this is taken for misconfigured and the run is void; 0 to allow it."""
    allow_simulated_acceptance: bool = False
    """Measure although SGLANG_SIMULATE_ACC_LEN is set; only to test arithmetic."""


class RunConfig(_Section):
    """One run."""

    target: TargetConfig = TargetConfig()
    workload: WorkloadConfig = WorkloadConfig()
    drafters: tuple[str, ...] = ("none", "ngram", "suffix")
    """Installed names, "module:factory", or either followed by "=CHECKPOINT"; the baseline none is always added."""
    drafter_options: dict[str, dict[str, Any]] = {}
    """Options per drafter, keyed by its name as given (without "=CHECKPOINT")."""
    decode: DecodeConfig = DecodeConfig()
    replay: ReplayConfig = ReplayConfig()
    measure: MeasureConfig = MeasureConfig()
    backend: Literal["engine", "sglang"] = "engine"
    """engine: our own loop; sglang: SGLang servers, as a client sees them."""
    sglang: SGLangConfig = SGLangConfig()


def load_config(
    file: Path | None = None, assignments: Iterable[str] = (), flags: Mapping[str, Any] | None = None
) -> RunConfig:
    """Resolve a run's settings: defaults, then the TOML `file`, then "a.b=c" `assignments`, then dotted `flags`.

    Flags that are None were not given. Raises ConfigError naming the source and the key that is wrong.
    """
    tree: dict[str, Any] = _read_toml(file) if file else {}
    for key, value in parse_options(assignments).items():
        _assign(tree, key, value)
    for key, value in (flags or {}).items():
        if value is not None:
            _assign(tree, key, value)
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_explain(error, file)) from None


def parse_options(assignments: Iterable[str]) -> dict[str, Any]:
    """The dict that "key=value" texts spell; values are TOML where they parse as it, else text.

    Raises ConfigError for a text without "=".
    """
    options = {}
    for text in assignments:
        key, given, value = text.partition("=")
        if not given or not key:
            raise ConfigError(f"--set {text!r}: write it as key=value, such as decode.k=4")
        options[key] = _literal(value)
    return options


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}") from None


def _literal(text: str) -> Any:
    """A TOML value where the text is one, else the text itself: 4, true, [1, 2], "quoted", or bare words."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _assign(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *path, leaf = dotted.split(".")
    for part in path:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{dotted}: {part!r} is a value, not a section")
    tree[leaf] = value


def _explain(error: ValidationError, file: Path | None) -> str:
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    source = f" (in {file}, --set or a flag)" if file else ""
    if first["type"] == "extra_forbidden":
        known = sorted(_keys(RunConfig))
        near = difflib.get_close_matches(where, known, n=1)
        return f"unknown setting {where!r}{source}" + (f"; did you mean {near[0]!r}?" if near else "")
    return f"setting {where}: {first['msg']}, got {first['input']!r}{source}"


def _keys(section: type[BaseModel], prefix: str = "") -> Iterable[str]:
    for name, info in section.model_fields.items():
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(kind, f"{prefix}{name}.")
        else:
            yield prefix + name
