"""The acceptance profile of a run: rates by draft position and context, in the form simulators take, and read back.

Per drafter and stretch of contexts: counts, from which everything follows, and the rates that follow from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from agentbench_spec.errors import ConfigError
from agentbench_spec.results import metrics
from agentbench_spec.results.changes import WHOLE, bucket_of
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.writing import write_bytes

PROFILE_SCHEMA = 2
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True, slots=True)
class PositionRates:
    """What became of draft 1, 2, ... of each round; element i of every list is draft position i + 1."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    proposed: list[int] | None
    """Rounds that proposed it. None: a server told how many drafts its rounds accepted, and not how many they had."""
    reached: list[int] | None
    """Of these, rounds that accepted all before it. None likewise."""
    accepted: list[int]
    """Rounds that accepted it."""
    conditional: list[float | None]
    """accepted / reached; None where it was never reached, or that is not known."""
    marginal: list[float]
    """accepted / rounds, proposed or not: 1 + their sum is the mean acceptance length."""

    @property
    def chain(self) -> list[float | None]:
        """Accepted / those that accepted all before, proposed or not: a drafter that always proposes, and is accepted
        so often, has the same acceptance length. None where there are none before."""
        before = [1.0, *self.marginal]
        return [own / prior if prior else None for own, prior in zip(self.marginal, before, strict=False)]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The turns of one drafter whose prompts have lengths of one octave."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    context: str
    """ "all contexts", "under 1K", "1K-2K", ..., in tokens of the prompt; "unknown" without a length."""
    rollouts: int
    turns: int
    rounds: int
    acceptance_length: float
    """Tokens a round, the bonus token included and the last round unclipped: raw τ."""
    positions: PositionRates
    untold_turns: int = 0
    """Further turns, which are in nothing here: their server told the sum of their accepted drafts at most."""


@dataclass(frozen=True, slots=True)
class DrafterProfile:
    """One drafter on one workload."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    workload: str
    drafter: str
    k: int
    k_policy: str
    stretches: list[Stretch]
    """All turns first, then by context, short before long."""

    def stretch(self, context: str = WHOLE) -> Stretch:
        """The stretch of that name. Raises ConfigError if there is none."""
        for each in self.stretches:
            if each.context == context:
                return each
        known = ", ".join(each.context for each in self.stretches)
        raise ConfigError(f"{self.drafter} on {self.workload} has no context {context!r}; there are {known}")


@dataclass(frozen=True, slots=True)
class Profile:
    """The acceptance profile of a run."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    schema: int
    target: str | None
    temperature: float
    top_k: int | None
    top_p: float | None
    decode_mode: str
    history_mode: str
    thinking: bool | None
    profiles: list[DrafterProfile]
    backend: str = "engine"
    """engine, or the serving engine."""
    concurrency: int | None = None
    """Rollouts in flight, of a serving engine."""

    def of(self, drafter: str, workload: str | None = None) -> DrafterProfile:
        """The profile of a drafter; workload: None where it ran on one only. Raises ConfigError if it is not one."""
        found = [p for p in self.profiles if p.drafter == drafter and workload in (None, p.workload)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(f"{p.drafter} on {p.workload}" for p in self.profiles)
        raise ConfigError(f"{len(found)} profiles of {drafter!r} on {workload or 'any workload'}; there are {known}")


def profile_of(rows: Iterable[TurnRow], *, include_degenerate: bool = False) -> Profile:
    """The profile of a run's counted turns, the baseline left out.

    Raises MeasurementError for rows of different conditions, ConfigError if no drafter proposed in any turn.
    """
    rows = list(rows)
    metrics.one_condition(rows)
    kept = [row for row in metrics.counted(rows, include_degenerate=include_degenerate) if row.rounds]
    groups: dict[tuple[str, str], list[TurnRow]] = {}
    for row in kept:
        if row.drafter not in metrics.PLAIN:
            groups.setdefault((row.workload, row.drafter), []).append(row)
    groups = {name: own for name, own in groups.items() if any(map(metrics.matched_of, own))}
    if not groups:
        raise ConfigError("no turn of a drafter has rounds whose lengths are known: there is no acceptance to profile")
    first = kept[0]
    return Profile(
        schema=PROFILE_SCHEMA,
        target=first.target,
        temperature=first.temperature,
        top_k=first.top_k,
        top_p=first.top_p,
        decode_mode=first.decode_mode,
        history_mode=first.history_mode,
        thinking=first.thinking,
        profiles=[
            DrafterProfile(workload, drafter, max(row.k for row in own), own[0].k_policy, list(_stretches(own)))
            for (workload, drafter), own in groups.items()
        ],
        backend=first.backend,
        concurrency=first.concurrency,
    )


def _stretches(rows: Sequence[TurnRow]) -> Iterator[Stretch]:
    groups: dict[str, list[TurnRow]] = {WHOLE: list(rows)}
    for row in sorted(rows, key=lambda row: (row.context_tokens is None, row.context_tokens or 0)):
        groups.setdefault(bucket_of(row.context_tokens), []).append(row)
    for context, own in groups.items():
        told = [row for row in own if metrics.matched_of(row)]
        if not told:
            continue
        matched = [accepted for row in told for accepted in metrics.matched_of(row)]
        yield Stretch(
            context=context,
            rollouts=len({metrics.rollout_of(row) for row in told}),
            turns=len(told),
            rounds=len(matched),
            acceptance_length=1 + sum(matched) / len(matched),
            positions=_rates(told) if all(map(metrics.positions, told)) else _rates_of_accepted(told, matched),
            untold_turns=len(own) - len(told),
        )


def _rates(rows: Sequence[TurnRow]) -> PositionRates:
    rounds = [pair for row in rows for pair in metrics.positions(row)]
    places = range(1, max(proposed for _, proposed in rounds) + 1)
    accepted = [sum(matched >= i for matched, _ in rounds) for i in places]
    reached = [sum(proposed >= i and matched >= i - 1 for matched, proposed in rounds) for i in places]
    return PositionRates(
        proposed=[sum(proposed >= i for _, proposed in rounds) for i in places],
        reached=reached,
        accepted=accepted,
        conditional=[a / r if r else None for a, r in zip(accepted, reached, strict=True)],
        marginal=[a / len(rounds) for a in accepted],
    )


def _rates_of_accepted(rows: Sequence[TurnRow], matched: Sequence[int]) -> PositionRates:
    """Of rounds whose proposed drafts are not known: up to the longest that a histogram has room for."""
    deepest = max(max(matched), *(len(row.matched_histogram or ()) - 1 for row in rows))
    accepted = [sum(own >= i for own in matched) for i in range(1, deepest + 1)]
    unknown: list[float | None] = [None] * deepest
    return PositionRates(None, None, accepted, unknown, [a / len(matched) for a in accepted])


def write_profile(profile: Profile, path: Path) -> Path:
    """Write it as the ending of `path` says, .json, .yaml or .yml. Raises ConfigError for another ending."""
    values = asdict(profile)
    if path.suffix == ".json":
        text = json.dumps(values, indent=1, ensure_ascii=False) + "\n"
    elif path.suffix in (".yaml", ".yml"):
        import yaml

        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    else:
        raise ConfigError(f"{path}: a profile is written as .json, .yaml or .yml")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.encode())
    return path


def read_profile(path: Path) -> Profile:
    """A profile that was written. Raises ConfigError naming file and field for anything else."""
    import yaml

    try:
        values: Any = yaml.safe_load(path.read_text("utf-8"))  # JSON is YAML
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not a profile: {str(error).splitlines()[0]}") from error
    if isinstance(values, dict) and isinstance(schema := values.get("schema"), int) and schema > PROFILE_SCHEMA:
        raise ConfigError(f"{path}: schema {schema} is newer than this package reads ({PROFILE_SCHEMA}); update it")
    try:
        return TypeAdapter(Profile).validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{path}: field {'.'.join(map(str, first['loc'])) or '(all)'}: {first['msg']}") from None
