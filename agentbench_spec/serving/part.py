"""One drafter's share of a run: warm up, flush, measure, check against the server's counters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentbench_spec.bars import Bar
from agentbench_spec.config import RunConfig
from agentbench_spec.engine.loading import load_tokenizer
from agentbench_spec.engine.sampling import Sampling
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import MANIFEST, ROLLOUTS, read_manifest, read_run
from agentbench_spec.results.provenance import settings_digest
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.writer import RunWriter
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.render import Renderer, stop_ids
from agentbench_spec.rollouts.toolcalls.families import family_of
from agentbench_spec.rollouts.toolcalls.verdicts import CallJudge
from agentbench_spec.runs.live.taken_sessions import TakenSessions, read_taken
from agentbench_spec.serving.access import Connect
from agentbench_spec.serving.bodies import Ask
from agentbench_spec.serving.client import Client
from agentbench_spec.serving.counts import reuse_shortfall
from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.live.live_traffic import LiveTraffic, Sandboxes
from agentbench_spec.serving.paired_rows import judge_calls, judge_divergences
from agentbench_spec.serving.refusals import acceptance_parts, longest_text, refuse_draft_limit, refuse_low_tau
from agentbench_spec.serving.server_rows import Served
from agentbench_spec.serving.servers import Server, keeps_no_text
from agentbench_spec.serving.traffic import OneAtATime, ServedReplayer, serve
from agentbench_spec.serving.window import WINDOWS, window

_BUSY_CLIENT = 0.7
"""Share of a core from which on the client's one interpreter may hold up answers."""


@dataclass(frozen=True, slots=True)
class PartResult:
    """One drafter's rows and what its servers said."""

    name: str
    rows: list[TurnRow]
    resolved: dict[str, Any]
    """The arguments that decide what the numbers mean."""
    windows: list[dict[str, Any]]
    """One entry per uninterrupted stretch of measuring."""
    draft: dict[str, Any] | None = None
    token_capacity: int | None = None
    kv_pool_bytes: int | None = None
    sessions: Mapping[str, Rollout] = field(default_factory=dict)
    """Those of a live run, by task."""

    @property
    def output_tokens_per_s(self) -> float | None:
        """Tokens of answers over the seconds from first send to last byte, over the windows no dying server cut."""
        whole = [entry for entry in self.windows if entry["whole"]]
        spent_s = sum(entry["wall_s"] for entry in whole)
        return sum(entry["output_tokens"] for entry in whole) / spent_s if spent_s else None

    @property
    def reuse(self) -> Mapping[str, int]:
        """Cached prefix tokens against what earlier turns should have left."""
        return reuse_shortfall(self.rows)

    def lines(self) -> list[str]:
        """The part in words: throughput, and what is odd about it."""
        rate = self.output_tokens_per_s
        return [*([] if rate is None else [f"{self.name}: {rate:.1f} output tokens/s"]), *self.oddities()]

    def oddities(self) -> list[str]:
        """Bent messages, less prefix reuse than expected, a client too busy to tell, counters that disagree."""
        forms = sorted({row.labels["template"] for row in self.rows if "template" in row.labels})
        said, reuse = [f"{self.name}: messages were bent to the chat template: {form}" for form in forms], self.reuse
        if reuse["turns_short"]:
            said.append(
                f"{self.name}: {reuse['turns_short']} of {reuse['turns']} turns found a shorter cached prefix than "
                f"expected, {reuse['missing_tokens']} of {reuse['expected_tokens']} tokens were missing"
            )
        busiest = max((entry.get("client_cpu_share", 0.0) for entry in self.windows), default=0.0)
        if busiest > _BUSY_CLIENT:
            said.append(
                f"{self.name}: the client itself used {busiest:.0%} of a core: speeds may be its own, not the server's"
            )
        if self.rows:
            engine = engine_of(self.rows[0].backend)
            said += [f"{self.name}: {text}" for text in engine.oddities(self.rows)]
            if not all(entry.get("emptied", True) for entry in self.windows):
                said.append(
                    f"{self.name}: the server's prefix cache still held the warm-up, because a client cannot empty it: "
                    f"{engine.flush_hint}, or set {self.rows[0].backend}.warm_up_rollouts=0"
                )
        for entry in self.windows:
            said += [f"{self.name}: {text}" for text in (entry["counters"] or {}).get("disagreements", ())]
        return said


def is_finished(folder: Path, rollouts: Sequence[Rollout]) -> bool:
    """True if the part needs no server any more."""
    if not (folder / MANIFEST).is_file():
        return False
    done = folder / ROLLOUTS
    complete = done.read_bytes().count(b"\n") if done.is_file() else 0  # an error's text may hold other line ends
    return read_manifest(folder).get("finished") is not None and complete == len(rollouts)


def read_part(folder: Path) -> PartResult:
    """A part that was measured before. Raises ConfigError if its files cannot be read."""
    manifest, rows = read_run(folder)
    path = folder / WINDOWS
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return PartResult(
        name=folder.name,
        rows=rows,
        resolved=manifest["model"]["server"],
        windows=[json.loads(line) for line in lines],
        draft=manifest.get("draft"),
        token_capacity=manifest.get("token_capacity"),
        kv_pool_bytes=manifest.get("kv_pool_bytes"),
        sessions=read_taken(folder),
    )


def measure_part(
    config: RunConfig,
    workload: str,
    rollouts: Sequence[Rollout],
    servers: Sequence[Server],
    connect: Connect,
    draft: dict[str, Any] | None,
    folder: Path,
    manifest: Mapping[str, Any],
    baseline: PartResult | None = None,
) -> PartResult:
    """Measure what is missing of one drafter's part, and read it all back; workload: its name in the rows.

    Raises ConfigError for what is refused beforehand, MeasurementError if the servers died or the numbers are void.
    """
    for server in servers:
        server.refuse(config, rollouts, draft)
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(server.base_url)) for server in servers]
        replayers = open_replayers(config, workload, servers, clients)
        live = stack.enter_context(Sandboxes(config)) if config.replay.history == "live" else None
        if live is not None:
            replayers = [LiveTraffic(plain, live, draft) for plain in replayers]
        limited = draft is not None and draft.get("max_position_embeddings") and not keeps_no_text(draft)
        if limited and replayers[0].renderer is not None:
            text = longest_text(rollouts, replayers[0].renderer, config.replay.max_turns, config.decode.max_new_tokens)
            refuse_draft_limit(servers[0], draft, text)
        writer = stack.enter_context(_writer(folder, manifest, servers, draft))
        left = [rollout for rollout in rollouts if rollout.id not in writer.completed]
        if left:
            emptied = warm_up(config, rollouts, replayers, servers[0])
            _measure_window(config, left, replayers, writer, live, emptied=emptied)
        own = read_part(folder)
        refuse_low_tau(servers[0], acceptance_parts(own.rows), min_tau=config.servers.min_tau)
        if baseline is not None and config.decode.greedy and replayers[0].renderer is not None:
            judge_divergences(folder, own, baseline, clients[0], replayers[0].renderer, rollouts)
        if baseline is not None and replayers[0].judge is not None:
            judge_calls(folder, own, baseline, replayers[0].judge)
        writer.finish(include_degenerate=True)
    return own


def _writer(
    folder: Path, manifest: Mapping[str, Any], servers: Sequence[Server], draft: dict[str, Any] | None
) -> RunWriter:
    what = {name: manifest[name] for name in ("settings", "model", "data")}
    what["model"] = {**what["model"], "server": servers[0].resolved()}
    own = {
        **manifest,
        **what,
        "settings_digest": settings_digest(what),
        "servers": [{"base_url": server.base_url, "info": server.public_info()} for server in servers],
        "draft": draft,
        "token_capacity": servers[0].token_capacity,
        "kv_pool_bytes": servers[0].kv_pool_bytes,
    }
    return RunWriter.resume(folder, own) if (folder / MANIFEST).is_file() else RunWriter.create(folder, own)


def open_replayers(
    config: RunConfig, workload: str, servers: Sequence[Server], clients: Sequence[Client]
) -> list[ServedReplayer]:
    """One replayer a server, all with one renderer and the same conditions."""
    renderer, stop = _renderer(config, servers[0])
    decode, replay = config.decode, config.replay
    sampling = Sampling(decode.temperature, decode.top_k, decode.top_p)
    served = Served(
        workload=workload,
        target=_target_name(config, servers[0]),
        sampling=sampling,
        history_mode=replay.history,
        prefix_mode=replay.prefix,
        thinking=replay.thinking if renderer is None else renderer.thinking,
        client=config.servers.client,
        concurrency=config.servers.concurrency,
        max_new_tokens=decode.max_new_tokens,
        max_turns=replay.max_turns,
        template_form=None if renderer is None else renderer.form.bent,
    )
    ask = Ask(decode.max_new_tokens, sampling, stop, served.thinking)
    shared = None if renderer is None else OneAtATime(renderer)
    pairs = zip(clients, servers, strict=True)
    judge = None if renderer is None or shared is None else CallJudge(family_of(renderer.template), shared.text)
    return [ServedReplayer(client, server, served, ask, shared, judge) for client, server in pairs]


def _target_name(config: RunConfig, server: Server) -> str:
    return config.named_target or server.target or "default"


def _renderer(config: RunConfig, server: Server) -> tuple[Renderer | None, tuple[int, ...]]:
    """The target's own template and tokenizer, and the ids that end a turn; none for the chat route."""
    if config.servers.client == "chat":
        return None, ()
    source = config.named_target or server.tokenizer
    if not source:
        raise ConfigError(f"{server.base_url} does not name its model; give it as --target, for its tokenizer")
    tokenizer = load_tokenizer(source, revision=config.target.revision)
    stop = stop_ids(tokenizer, None)
    return Renderer(tokenizer, config.replay.thinking, stop=stop), stop


def warm_up(
    config: RunConfig, rollouts: Sequence[Rollout], replayers: Sequence[ServedReplayer], server: Server
) -> bool:
    """Replay some rollouts at the run's own concurrency, look whether the draft works at all, and flush.

    False if something was replayed and its traces in the servers' caches could not be emptied.

    First requests compile and allocate; n-gram drafters learn from what they see. None of that belongs to a turn.
    """
    settings = config.servers
    count = settings.warm_up_rollouts
    at_once = settings.concurrency * sum(replayer.server.size for replayer in replayers)
    some = rollouts[: at_once if count is None else count]
    seen: list[TurnRow] = []
    if some:
        serve(some, replayers, settings.concurrency, lambda _, rows: seen.extend(rows))
    refuse_low_tau(server, acceptance_parts(seen), min_tau=settings.min_tau)
    flushed = [replayer.client.flush() for replayer in replayers]
    return all(flushed) or not some


def _measure_window(
    config: RunConfig,
    left: Sequence[Rollout],
    replayers: Sequence[ServedReplayer],
    writer: RunWriter,
    live: Sandboxes | None,
    *,
    emptied: bool,
) -> None:
    """One stretch of measuring; its totals are kept even if the servers die."""
    rows: list[TurnRow] = []
    kept = TakenSessions(writer.folder, writer.completed)
    bar = Bar(total=len(left), desc=replayers[0].server.drafter, unit="rollout")

    def done(rollout: Rollout, own: list[TurnRow]) -> None:
        for row in own:
            writer.turn([row])
        if live is not None and (taken := live.taken.pop(rollout.id, None)) is not None:
            kept.keep(taken)
        failure = next((row.error for row in own if row.status == "error"), None)
        ended = next((row.ended for row in own if row.ended), "ok")
        writer.rollout_done(rollout.id, status="error" if failure else ended, error=failure)
        rows.extend(own)
        bar.update()

    with bar, window(writer.folder / WINDOWS, config, replayers, rows, emptied=emptied):
        serve(left, replayers, config.servers.concurrency, done)
