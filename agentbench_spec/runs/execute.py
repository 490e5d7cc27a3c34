"""A run from settings to a finished folder: load, warm up, replay every rollout, write rows, sum up."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agentbench_spec.config import RunConfig
from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.adaptive import RoundCost
from agentbench_spec.engine.machine import OtherWork, host_facts
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Stopwatch
from agentbench_spec.errors import ConfigError, NotFinite, raise_interrupt
from agentbench_spec.results.derived.k_arms import arm_of
from agentbench_spec.results.folder import read_run
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.provenance import make_manifest
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import Summary
from agentbench_spec.results.verdict import lossless, measured, void_because
from agentbench_spec.results.writer import RunWriter, refuse_early
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.render import Renderer
from agentbench_spec.rollouts.toolcalls.families import family_of
from agentbench_spec.rollouts.toolcalls.verdicts import CallJudge
from agentbench_spec.runs.all_rollouts import replay_all
from agentbench_spec.runs.card import Card, measure_card
from agentbench_spec.runs.contention import doubtful, note
from agentbench_spec.runs.graph_mode import open_all
from agentbench_spec.runs.replay import Replayer, rehearsal_tokens
from agentbench_spec.runs.round_costs import as_dict
from agentbench_spec.runs.scale.shards import Shard, begun_share, refuse_shard, share_of
from agentbench_spec.runs.setup import Setup, Tell, arms_over, drafter_makers
from agentbench_spec.runs.source import file_name, read_source


@dataclass(frozen=True, slots=True)
class Finished:
    """What a finished run leaves, whoever decoded it."""

    folder: Path
    summary: Summary
    rows: list[TurnRow]

    @property
    def lossless(self) -> bool | None:
        """False if a greedy output differed from the baseline by more than a tie: a void run. None: not compared."""
        return lossless(self.summary)

    @property
    def void(self) -> list[str]:
        """Why not one figure of the run may be quoted, in words; empty if it stands."""
        return void_because(self.rows, self.summary)

    @property
    def measured(self) -> bool:
        """False if not one turn counts: there is nothing to read in the run."""
        return measured(self.summary)


@dataclass(frozen=True, slots=True)
class Outcome(Finished):
    """What a finished run of our own engine leaves."""

    card: Card
    notes: list[str]
    """What was bent or left out on the way, in words."""


def run(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    argv: Sequence[str] | None = None,
    tell: Tell = lambda line: None,
    bar: bool = True,
    shard: Shard | None = None,
) -> Outcome:
    """Replay the configured rollouts, or one shard of them, and write the run folder.

    tell: takes the lines that say what is going on; bar: count turns on stderr, else `tell` hears of each rollout.
    Raises ConfigError for anything in the settings, the data or the folder that cannot be used; what can be seen
    without the model is refused before it is loaded.
    """
    refuse_early(folder, config.model_dump(mode="json"), resume=resume)
    if shard is not None:
        refuse_shard(config)
    share = begun_share(folder, shard) if resume else None
    source = read_source(config, tell=tell, bar=bar)
    bench = Bench.open(config, tell, workload=source.name)
    if shard is not None and share is None:
        share = share_of(shard, source.rollouts, bench.renderer, config, len(bench.drafters))
    own = None if share is None else frozenset(share.own)
    if share is not None:
        tell(f"shard {share.shard}: {len(share.own)} of {len(share.all)} rollouts")

    def work(writer: RunWriter) -> None:
        replay_all(writer, bench.replayer, source.rollouts, config, None if bar else tell, own)

    more = {} if share is None else {"shard": share.as_dict()}
    rollouts, facts = source.rollouts, source.facts
    return measure(config, folder, bench, rollouts, facts, work, resume=resume, argv=argv, tell=tell, more=more)


def measure(
    config: RunConfig,
    folder: Path,
    bench: Bench,
    rollouts: Sequence[Rollout],
    facts: dict[str, Any],
    work: Callable[[RunWriter], None],
    *,
    resume: bool,
    argv: Sequence[str] | None,
    tell: Tell,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Outcome:
    """A run folder around `work`, which writes the rows: card, manifest, warm-up, other work on the machine, summary.

    rollouts: to warm up with; facts: what the manifest says of the data; more: what else it says. Raises as `run` does.
    """
    card = measure_card(bench.target, {layer for d in bench.drafters.values() for layer in d.spec.hidden_layers})
    for line in card.lines(()):
        tell(line)
    manifest = dict(more) | make_manifest(
        host=host_facts(),
        settings=config.model_dump(mode="json"),
        model=bench.provenance,
        data=facts,
        argv=argv,
    )
    warm_up_s = bench.warm_up(rollouts)
    manifest |= {"card": card.as_dict(), "kernels": bench.kernels, "warm_up_s": warm_up_s, "notes": bench.notes}
    manifest["round_costs"] = {name: as_dict(costs) for name, costs in bench.round_costs.items()}
    manifest["template"] = bench.renderer.form.as_dict()
    opened = RunWriter.resume if resume else RunWriter.create
    with opened(folder, manifest) as writer:
        tell(f"run folder: {folder}")
        with OtherWork() as other:
            work(writer)
        contended = doubtful(other.cores, bench.target.info.device)
        said = [*writer.manifest.get("notes", []), *bench.renderer.notes, *([note(other.cores)] if contended else [])]
        notes = list(dict.fromkeys(said))
        writer.manifest |= {"notes": notes, "other_cores": other.cores, "contended": contended}
        summary = writer.finish(include_degenerate=config.measure.include_degenerate)
    left_out = ["left out: " + line for line in facts["left_out"]]
    return Outcome(folder, summary, read_run(folder)[1], card, [*left_out, *notes])


def new_folder(target: str, workload: str) -> Path:
    """A folder of this second that no run has yet: results/<time>-<target>-<workload>."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    parts = [
        re.sub(r"[^\w.-]+", "-", Path(name).name).strip("-.") for name in (target, workload.partition(".jsonl")[0])
    ]
    wanted = Path("results") / "-".join([stamp, *filter(None, parts)])
    others = (wanted.with_name(f"{wanted.name}-{number}") for number in range(2, 1000))
    return next((folder for folder in (wanted, *others) if not folder.exists()), wanted)


@dataclass(frozen=True, slots=True)
class Bench:
    """Target, drafters and replayer, loaded and ready."""

    target: Target
    drafters: dict[str, Drafter]
    """By the names of the rows; one may stand under several, see `decode.sweep`."""
    renderer: Renderer
    replayer: Replayer
    kernels: dict[str, Any]
    provenance: dict[str, Any]
    notes: list[str]
    """What was guessed or is not applied, in words."""
    adaptive: frozenset[str] = frozenset()
    """Drafters whose draft tokens are chosen round by round."""
    round_costs: dict[str, dict[int, RoundCost]] = field(default_factory=dict)
    """What rounds cost when warm, by drafter and K; known once they are, and where K is chosen."""

    @classmethod
    def open(cls, config: RunConfig, tell: Tell = lambda line: None, *, workload: str | None = None) -> Bench:
        """Load what the settings name; workload: its name in the rows, None: as the settings have it.

        Raises ConfigError for what cannot be loaded or does not fit together.
        """
        drafters = {label: make() for label, make in drafter_makers(config).items()}
        setup = Setup.load(config, tell)
        target, drafters = open_all(setup, drafters)
        arms, sweep = arms_over(drafters, config.decode.sweep), set(map(str, config.decode.sweep))
        swept = {name: k for name in arms if (k := arm_of(name)[1]) in sweep}
        name = workload or file_name(config.workload.name)
        renderer, conditions = setup.renderer, setup.conditions(target)
        judge = CallJudge(family_of(renderer.template), renderer.text)
        replayer = Replayer(target, arms, renderer, conditions, name, judge)
        replayer.ks.update({arm: int(k) for arm, k in swept.items() if k and k != "auto"})
        chosen = list(arms) if config.decode.k_policy == "auto" else [arm for arm, k in swept.items() if k == "auto"]
        return cls(
            target=target,
            drafters=arms,
            renderer=renderer,
            replayer=replayer,
            kernels=setup.kernels,
            provenance={**setup.loaded.provenance, "drafters": {own: d.spec.version for own, d in drafters.items()}},
            notes=setup.notes,
            adaptive=frozenset(chosen),
        )

    def warm_up(self, rollouts: Sequence[Rollout], tokens: int = 64) -> dict[str, float | None]:
        """Run every decoder once over the start of a prompt, at the shapes of the run; seconds per drafter.

        First calls compile, allocate and page in; none of that belongs to a turn. On a GPU the prompt is as long as two
        full chunks of prefill, again and again the same if need be. None: the drafter failed, which its rows will tell.
        Raises ConfigError if not one rollout can be rendered.
        """
        rollout, prompt = self._first_prompt(rollouts)
        room = self.target.capacity - rehearsal_tokens(self.replayer.conditions.limits)
        if self.target.info.device.type == "cuda":
            tokens = 2 * self.replayer.conditions.chunk_tokens
            prompt = prompt * (tokens // len(prompt) + 1)
        return {name: self._rehearse(name, rollout, prompt[: min(tokens, room)]) for name in self.drafters}

    def _first_prompt(self, rollouts: Sequence[Rollout]) -> tuple[Rollout, list[int]]:
        reason: Exception = ConfigError("no rollout has a message to decode")
        for rollout in (r for r in rollouts if r.decode_points()):
            try:
                return rollout, self.renderer.prompt(rollout, rollout.decode_points()[0])
            except Exception as error:  # one bad rollout becomes a row; only if all are bad there is nothing to run
                reason = error
        raise ConfigError(f"none of the {len(rollouts)} rollouts can be replayed; the last one: {reason}")

    def _rehearse(self, name: str, rollout: Rollout, prompt: Sequence[int]) -> float | None:
        limit = self.drafters[name].spec.max_positions
        if limit is not None:
            prompt = prompt[: max(1, limit - rehearsal_tokens(self.replayer.conditions.limits))]
        try:
            with Stopwatch(self.target.info.device) as watch:
                chunk = min(len(prompt), self.replayer.conditions.chunk_tokens)
                session = Session(self.target, {name: self.drafters[name]}, chunk_tokens=chunk)
                self.replayer.rehearse(session, rollout, name, prompt)
                session.reset()
            if name in self.adaptive and (costs := self.replayer.adapt(rollout, name, prompt)):
                self.round_costs[name] = costs
        except NotFinite:
            return None
        except (Exception, SystemExit) as error:
            raise_interrupt(error)
            if name == BASELINE:
                raise
            return None
        return round(watch.seconds, 6)
