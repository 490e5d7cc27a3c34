"""What a run will take, told before it is paid for: turns and tokens by context, and time by method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.changes import bucket_of, bucket_order
from agentbench_spec.results.costs import total_of
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.render import common_prefix
from agentbench_spec.runs.scale.speeds import MethodSpeed, Speeds

if TYPE_CHECKING:
    from agentbench_spec.rollouts.growth import Renders


@dataclass(frozen=True, slots=True)
class TurnWork:
    """What one turn will take, in tokens."""

    context_tokens: int
    """The prompt."""
    new_tokens: int
    """Of it, to prefill."""
    most_tokens: int
    """Emitted by each method at most."""
    recorded_tokens: int
    """Emitted if replies are as long as the record's; the most, where there is no record."""


@dataclass(slots=True)
class Stretch:
    """The turns of one stretch of contexts, sums in tokens."""

    context: str
    turns: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    most_tokens: int = 0
    recorded_tokens: int = 0

    def add(self, turn: TurnWork) -> None:
        """Count one more turn."""
        self.turns += 1
        self.prompt_tokens += turn.context_tokens
        self.new_tokens += turn.new_tokens
        self.most_tokens += turn.most_tokens
        self.recorded_tokens += turn.recorded_tokens


@dataclass(frozen=True, slots=True)
class MethodTime:
    """Seconds one method will take; None: no speed of it is known."""

    recorded_s: float | None
    """If replies are as long as the record's."""
    most_s: float | None
    """If every reply comes to its cap."""
    source: str | None = None
    """Where its speed comes from, where it is not the method's own."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the rollouts of one run will take."""

    workload: str
    rollouts: int
    turns: int
    """Decode points, as far as they are replayed."""
    stretches: list[Stretch] | None
    """By context; None: nothing here counts the target's tokens."""
    passes: int
    """Times every method decodes a turn: two where each clock has a pass of its own."""
    methods: dict[str, MethodTime] = field(default_factory=dict)
    prefill_s: float | None = None
    """Of the target over all new prompt tokens, once for all methods."""
    notes: list[str] = field(default_factory=list)
    """What is left out, or was not known."""

    def totals_s(self) -> tuple[float | None, float | None]:
        """(replies as recorded, every reply at its cap): prefill and all methods; None where a part is not known."""
        parts = self.methods.values()
        recorded = [self.prefill_s, *(part.recorded_s for part in parts)]
        return total_of(recorded), total_of([self.prefill_s, *(part.most_s for part in parts)])

    def as_dict(self) -> dict[str, Any]:
        """Plain values, with the totals."""
        recorded_s, most_s = self.totals_s()
        return {**asdict(self), "recorded_s": recorded_s, "most_s": most_s}


def forecast(
    config: RunConfig,
    workload: str,
    rollouts: Sequence[Rollout],
    methods: Iterable[str],
    *,
    renderer: Renders | None,
    capacity: int | None = None,
    passes: int = 1,
    speeds: Speeds | None = None,
    notes: Iterable[str] = (),
) -> Forecast:
    """What replaying `rollouts` with `methods` will take.

    renderer: counts the target's tokens; None: nobody can. capacity: longest text in tokens; None: not known. passes:
    times every method decodes a turn.
    """
    said = list(notes)
    turns = sum(len(rollout.decode_points()[: config.replay.max_turns]) for rollout in rollouts)
    if renderer is None:
        return Forecast(workload, len(rollouts), turns, None, passes, notes=said)
    works = list(_works(rollouts, renderer, config, said))
    fitting = [turn for turn in works if capacity is None or turn.context_tokens + _cap(config) <= capacity]
    if len(fitting) < len(works):
        said.append(f"{len(works) - len(fitting)} turns are longer than {capacity:,} tokens and are not decoded")
    if config.replay.history == "self":
        said.append("contexts are those of the record; with history=self they hold what the target says")
    stretches = by_context(fitting)
    prefill = speeds.prefill_s_per_token if speeds else None
    return Forecast(
        workload,
        len(rollouts),
        turns,
        stretches,
        passes,
        {name: method_time(name, stretches, speeds, passes) for name in methods},
        None if prefill is None else prefill * sum(stretch.new_tokens for stretch in stretches),
        said,
    )


def _cap(config: RunConfig) -> int:
    return config.decode.max_new_tokens


def _works(rollouts: Sequence[Rollout], renderer: Renders, config: RunConfig, notes: list[str]) -> Iterator[TurnWork]:
    """The turns of all rollouts; one that does not render ends its rollout, as in the run, and is told of."""
    bad: list[str] = []
    for rollout in rollouts:
        try:
            yield from turn_works(rollout, renderer, config)
        except Exception as error:
            bad.append(f"{rollout.id}: {error}")
    if bad:
        notes.append(f"{len(bad)} rollouts end before a turn that does not render, such as {bad[0]}")


def turn_works(rollout: Rollout, renderer: Renders, config: RunConfig) -> Iterator[TurnWork]:
    """What each turn of a rollout will take. Raises what rendering raises.

    As the engine does, the last position that a prompt shares with the text before it is run again.
    """
    cap = _cap(config)
    text: list[int] = []
    for message in rollout.decode_points()[: config.replay.max_turns]:
        prompt, reply = renderer.prompt(rollout, message), renderer.reply(rollout, message)
        kept = max(common_prefix(text, prompt) - 1, 0) if config.replay.prefix == "kept" else 0
        recorded = cap if rollout.messages[message].synthetic else min(len(reply), cap)
        yield TurnWork(len(prompt), len(prompt) - kept, recorded if config.decode.mode == "forced" else cap, recorded)
        text = [*prompt, *reply[:1]]


def by_context(turns: Iterable[TurnWork]) -> list[Stretch]:
    """The turns summed up by the stretch of contexts they are in, short ones first."""
    found: dict[str, Stretch] = {}
    for turn in turns:
        name = bucket_of(turn.context_tokens)
        found.setdefault(name, Stretch(name)).add(turn)
    return sorted(found.values(), key=lambda stretch: bucket_order(stretch.context))


def method_time(name: str, stretches: Sequence[Stretch], speeds: Speeds | None, passes: int) -> MethodTime:
    """Seconds of decoding and ingest that a method takes over `stretches`.

    One whose speed is not known is taken to be as fast as plain decoding, and says so. The first token of a turn comes
    out of its prefill.
    """
    known: Mapping[str, MethodSpeed] = speeds.methods if speeds else {}
    own = known.get(name) or known.get(name.partition("=")[0])
    speed = own or known.get(BASELINE)
    if speeds is None or speed is None:
        return MethodTime(None, None)
    ingest_s = (own.ingest_s_per_token or 0.0) * sum(s.new_tokens for s in stretches) if own else 0.0

    def spent_s(tokens: Callable[[Stretch], int]) -> float:
        return passes * sum(speed.at(s.context) * (tokens(s) - s.turns) for s in stretches) + ingest_s

    source = None if own else f"as fast as {BASELINE}: no speed of {name} is known"
    return MethodTime(spent_s(lambda s: s.recorded_tokens), spent_s(lambda s: s.most_tokens), source)


def refuse_uncounted(config: RunConfig) -> None:
    """Raises ConfigError for runs of which nothing can be told before they have begun."""
    if config.replay.history == "live":
        raise ConfigError(
            "--dry-run and replay.history=live: how long live sessions become is not known before they are walked; "
            "leave --dry-run out, and bound them by --limit, --max-turns and live.tokens"
        )
