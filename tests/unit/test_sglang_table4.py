"""Throughput over concurrency through servers: the sweep's cells, and `reproduce table4 --backend sglang`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from localmodel import save_rollouts, session
from runkit import Done, call
from servedkit import EAGLE3, FAKE, Behaviour, FakeServer, FakeVLLM, VLLMBehaviour, ended, settings

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.reproduce.table4 import throughput_table
from agentbench_spec.results.folder import read_manifest, read_run
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.throughput.pass_rows import ThroughputRow, by_cell, read_rows
from agentbench_spec.runs.presets import ThroughputPreset
from agentbench_spec.serving.part import PartResult
from agentbench_spec.serving.stream import Answer
from agentbench_spec.serving.sweep import Swept, sweep
from agentbench_spec.serving.window import Traffic

PLAN = ThroughputPreset(concurrency=(1, 2), requests_per_row=2, requests_least=0)
NGRAM = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 4}


@pytest.fixture
def rollouts(tmp_path: Path) -> Path:
    """Six rollouts of two turns."""
    return save_rollouts(tmp_path / "six.jsonl", *(session(name, 2) for name in "abcdef"))


def swept(config: RunConfig, folder: Path, plan: ThroughputPreset = PLAN) -> Swept:
    return sweep(config, folder, plan, environ={}, argv=[])


def first_passes(rows: Iterable[ThroughputRow]) -> dict[tuple[str, int], ThroughputRow]:
    """The one pass of each cell."""
    return {cell: own for cell, (own,) in by_cell(rows).items()}


def test_each_cell_is_measured_once(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Concurrency 1 gets two rollouts and 2 four; a second call asks nothing, a lost cell alone is measured anew."""
    with FakeServer(Behaviour(step_s=0.002)) as plain, FakeServer(Behaviour(dict(EAGLE3), step_s=0.002)) as spec:
        config = settings(tiny, rollouts, plain.base_url, spec.base_url)
        first = swept(config, tmp_path / "sweep")
        asked = [len(server.requests) for server in (plain, spec)]
        again = swept(config, tmp_path / "sweep")
        part = tmp_path / "sweep" / "c002" / "parts" / "eagle3"
        manifest = json.loads((part / "manifest.json").read_text())
        (part / "manifest.json").write_text(json.dumps(manifest | {"finished": None}))
        last = swept(config, tmp_path / "sweep")
        anew = [len(server.requests) for server in (plain, spec)]
    assert (asked, anew, plain.most_at_once) == ([12, 12], [12, 20], 2)
    assert first.rows == again.rows and first.failed == {}
    rows = first_passes(first.rows)
    assert list(rows) == [("none", 1), ("eagle3", 1), ("none", 2), ("eagle3", 2)]
    for concurrency, turns in ((1, 4), (2, 8)):
        row, plain_row = rows["eagle3", concurrency], rows["none", concurrency]
        assert (row.turns, row.output_tokens, row.rounds) == (turns, 12 * turns, 5 * turns)
        assert (row.emitted, row.emitted_raw, row.k, row.servers) == (11 * turns, 11 * turns, 3, 1)
        assert row.outputs == plain_row.outputs and len(row.rollouts) == turns // 2
        assert row.tokens_per_s == pytest.approx(12 * turns / (row.served_s or 0))
        assert sum(tokens for tokens, _ in row.windows) == 12 * turns and len(row.windows) == 20
        assert sum(seconds for _, seconds in row.windows) == pytest.approx(row.served_s)
    assert read_rows(tmp_path / "sweep") == last.rows
    windows = (tmp_path / "sweep" / "c002" / "parts" / "none" / "windows.jsonl").read_text()
    assert 0 < json.loads(windows)["client_cpu_share"] < 10
    paired = read_run(tmp_path / "sweep" / "c002")[1]
    assert len(paired) == 16 and all(row.speedup for row in paired if row.drafter == "eagle3")


def test_the_price_of_a_draft_in_tokens_of_capacity(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """A draft of 8,400 bytes costs five of 4,096 tokens; what else EAGLE-3's server lacks went to its pool. Once, not
    once a concurrency; a draft without a pool gets no such words."""
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "model.safetensors").write_bytes(b"0" * 8_400)
    own = {**EAGLE3, "speculative_draft_model_path": str(draft)}
    dlite = Behaviour({**own, "speculative_algorithm": "DLITE"}, token_capacity=4091)
    eagle = Behaviour(own, token_capacity=3072)
    with FakeServer() as plain, FakeServer(dlite) as free, FakeServer(eagle) as pool:
        config = settings(tiny, rollouts, plain.base_url, free.base_url, pool.base_url)
        notes = [note for note in swept(config, tmp_path / "sweep").notes if "room for" in note]
    left = "against no speculation; the draft's weights alone would leave 4,091"
    assert sorted(notes) == [
        f"dlite: room for 4,091 tokens, -0.1% {left}",
        f"eagle3: room for 3,072 tokens, -25.0% {left}, its KV pool and graphs take the room of 1,019",
        "none: room for 4,096 tokens",
    ]


def test_servers_may_come_one_after_another(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """One GPU: the baseline's server, later the drafter's. The baseline must be first, its cells are kept."""
    with FakeServer(Behaviour(dict(EAGLE3))) as spec:
        alone = settings(tiny, rollouts, spec.base_url)
        with pytest.raises(ConfigError, match="measure the baseline first"):
            swept(alone, tmp_path / "sweep")
        assert spec.requests == []
    with FakeServer() as plain:
        swept(settings(tiny, rollouts, plain.base_url), tmp_path / "sweep")
    with FakeServer(Behaviour(dict(EAGLE3))) as spec:
        found = swept(settings(tiny, rollouts, spec.base_url), tmp_path / "sweep")
    assert set(first_passes(found.rows)) == {(name, c) for name in ("none", "eagle3") for c in (1, 2)}


def test_cells_of_another_server_are_not_taken_for_this_ones(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """A drafter restarted with other arguments under the same name, or other rollouts: refused, naming both values."""
    with FakeServer() as plain, FakeServer(Behaviour(dict(EAGLE3))) as spec:
        config = settings(tiny, rollouts, plain.base_url, spec.base_url)
        swept(config, tmp_path / "sweep")
        with pytest.raises(ConfigError, match=r"workload\.limit \(2 -> 1\)"):
            swept(settings(tiny, rollouts, plain.base_url, workload__limit=1), tmp_path / "sweep")
        spec.behaviour.args["speculative_draft_model_path"] = "another"
        with pytest.raises(ConfigError, match=r"speculative_draft_model_path \(None -> 'another'\)"):
            swept(config, tmp_path / "sweep")


def test_servers_share_and_count_each(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Two baselines, one drafter: three times the rows have six rollouts each, and tokens/s are those of one server."""
    slow = Behaviour(step_s=0.004)
    with FakeServer(slow) as one, FakeServer(slow) as two, FakeServer(Behaviour(dict(EAGLE3), step_s=0.004)) as spec:
        config = settings(tiny, rollouts, one.base_url, two.base_url, spec.base_url)
        found = first_passes(
            swept(config, tmp_path / "sweep", ThroughputPreset(requests_per_row=3, requests_least=0)).rows
        )
        shares = [len(server.requests) for server in (one, two, spec)]
    assert shares[0] and shares[1] and sum(shares[:2]) == shares[2] == 12
    both, alone = found["none", 1], found["eagle3", 1]
    assert (both.servers, alone.servers) == (2, 1) and both.turns == alone.turns
    assert both.tokens_per_s is not None and both.output_tokens == 144
    # twelve steps of 4 ms an answer: no single server can give more than 250 tokens/s, two together can
    assert both.tokens_per_s < 250


def test_a_drafter_that_dies_leaves_the_others(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Its finished cell stays, the missing one says why, another drafter is measured, and the next call completes."""
    with (
        FakeServer() as plain,
        FakeServer(Behaviour(dict(EAGLE3), faults={5: "die"})) as spec,
        FakeServer(Behaviour(dict(NGRAM))) as ngram,
    ):
        config = settings(tiny, rollouts, plain.base_url, spec.base_url, ngram.base_url)
        found = swept(config, tmp_path / "sweep")
        assert set(first_passes(found.rows)) == {("none", 1), ("none", 2), ("ngram", 1), ("ngram", 2), ("eagle3", 1)}
        assert "died during" in found.failed["eagle3"] and "finished" not in read_manifest(tmp_path / "sweep")
        spec.revive()
        found = swept(config, tmp_path / "sweep")
    assert len(found.rows) == 6 and found.failed == {}
    assert {row.rounds for row in found.rows if row.drafter == "eagle3"} == {20, 40}


def test_limits_of_running_servers_are_seen_before_the_first_cell(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """A server that takes fewer than the largest concurrency: said at once, not after hours at the smaller ones."""
    with FakeServer(Behaviour({"max_running_requests": 1})) as plain:
        with pytest.raises(ConfigError, match="--max-running-requests 1"):
            swept(settings(tiny, rollouts, plain.base_url), tmp_path / "sweep")
        assert plain.requests == []


def answer(*chunks: tuple[float, int], sent: float = 0.0, told: bool = True) -> Answer:
    """Chunks that arrive at instants with so many tokens."""
    return Answer(
        sent_at=sent,
        chunk_at=[at for at, _ in chunks],
        chunk_tokens=[tokens for _, tokens in chunks] if told else None,
        last_at=chunks[-1][0],
        completion_tokens=sum(tokens for _, tokens in chunks),
    )


def a_row(**fields: Any) -> TurnRow:
    common = {"workload": "w", "rollout": "r", "turn": 0, "message": 0, "drafter": "none", "k": 0, "temperature": 0.0}
    modes = {"decode_mode": "generate", "history_mode": "recorded", "prefix_mode": "kept", "thinking": None}
    return TurnRow(**(common | modes | {"clock": "wall"} | fields))


def test_stretches_by_hand() -> None:
    """First send at 10 s, last byte at 30 s: a second each. Tokens fall where they arrived, the last one in the end."""
    traffic = Traffic()
    assert (traffic.wall_s, traffic.stretches()) == (None, [])
    traffic.add(a_row(), answer((11.5, 1), (12.5, 4), sent=10.0))
    traffic.add(a_row(), answer((11.7, 2), (30.0, 3), sent=11.0))
    traffic.add(a_row(), answer((20.1, 3), (20.2, 4), (20.3, 0), sent=15.0, told=False))
    traffic.add(a_row(status="invalid"), answer((21.0, 50), sent=15.0))
    assert traffic.wall_s == 20.0
    tokens = [count for count, _ in traffic.stretches()]
    assert {i: n for i, n in enumerate(tokens) if n} == {1: 3, 2: 4, 10: 7, 19: 3}
    assert {seconds for _, seconds in traffic.stretches()} == {1.0}


@pytest.mark.parametrize(("share", "told"), [(0.69, False), (0.95, True)])
def test_a_client_that_is_too_slow_says_so(share: float, told: bool) -> None:
    """Fails if a table of servers is really one of the client's own speed, and nobody is told."""
    window = {"client_cpu_share": share, "counters": None}
    said = PartResult("none", [], {}, [{"client_cpu_share": 0.1, "counters": None}, window]).oddities()
    assert said == (
        ["none: the client itself used 95% of a core: speeds may be its own, not the server's"] if told else []
    )


def served_row(drafter: str, seconds: float, **fields: Any) -> ThroughputRow:
    values: dict[str, Any] = {
        "target": "Qwen/Qwen3-4B",
        "workload": "livecodebench",
        "drafter": drafter,
        "k": 0 if drafter == "none" else 7,
        "thinking": False,
        "concurrency": 1,
        "turns": 2,
        "output_tokens": 200,
        "emitted": 198,
        "emitted_raw": 208,
        "rounds": 198 if drafter == "none" else 40,
        "served_s": seconds,
        "windows": [(10, seconds / 20)] * 20,
        "rollouts": {"a": (99, 104, 20), "b": (99, 104, 20)},
        "backend": "sglang",
        "servers": 1,
    }
    return ThroughputRow(**(values | fields))


def test_served_passes_in_the_papers_table() -> None:
    """tokens/s are output tokens over wall time, said so; a speed-up with prefills in it is shown and not judged."""
    table = throughput_table(
        "Table 4",
        "LiveCodeBench",
        [served_row("none", 20.0), served_row("dlite", 5.0)],
        ["dlite"],
        [1],
        ["tokens_per_s", "speedup", "tau_raw"],
        target="Qwen/Qwen3-4B",
        paper_target="Qwen3-4B",
    )
    cells = {figure: table.cell("dlite", figure, "concurrency 1") for figure in ("tokens_per_s", "speedup", "tau_raw")}
    assert (cells["tokens_per_s"].value, cells["speedup"].value, cells["tau_raw"].value) == (40.0, 4.0, 5.2)
    assert cells["speedup"].paper is not None and cells["speedup"].verdict == "unknown"
    assert cells["tokens_per_s"].interval is None and cells["speedup"].interval is None
    assert any("prefills, queues and the drain" in note and "no interval" in note for note in table.notes)


PRESETS = """
[settings]
[stated]
[open]
[checkpoints]
[embedded]
target = "smollm2-135m"
drafters = []
orientation = "Qwen3-4B"
[embedded.settings]
"decode.k" = 3
"decode.max_new_tokens" = 12
"sglang.warm_up_rollouts" = 1
[table4]
title = "throughput"
drafters = ["eagle3", "dlite"]
figures = ["tokens_per_s", "speedup", "tau_raw"]
[table4.open]
"engine" = "our own"
[table4.embedded_throughput]
concurrency = [1, 2]
requests_per_row = 0
requests_least = 6
[[table4.embedded]]
title = "Alpaca"
workload = "{rollouts}"
"""


class Verb:
    """`reproduce table4` on the tiny model's presets."""

    def __init__(self, rollouts: Path, folder: Path) -> None:
        self.results = folder / "results"
        self._presets = folder / "presets.toml"
        self._presets.write_text(PRESETS.format(rollouts=rollouts), "utf-8")

    def __call__(self, *arguments: object, table: str = "table4") -> Done:
        common = ("--embedded", "--presets", self._presets, "--results", self.results)
        return call("reproduce", table, *common, *arguments)


def cells(folder: Path) -> Any:
    return pd.read_csv(folder / "table4.csv").set_index(["drafter", "figure", "column"])


def test_verb_lays_out_the_same_table(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """From two URLs to all files: speeds, τ, intervals, what is missing; the target is the servers'; a key is sent."""
    verb = Verb(rollouts, tmp_path)
    with (
        FakeServer(Behaviour({"model_path": str(tiny)}, step_s=0.001, api_key="hush-1")) as plain,
        FakeServer(Behaviour({"model_path": str(tiny), **EAGLE3}, step_s=0.001, api_key="hush-1")) as spec,
    ):
        urls = ("--base-url", plain.base_url, "--base-url", spec.base_url, "--api-key", "hush-1")
        done = verb("--backend", "sglang", *urls)
        again = verb("--concurrency", "2", *urls)
        asked = len(spec.requests)
    assert done.code == again.code == 0, done.err
    assert "eagle3: kept at concurrency 2" in again.err and asked == 2 * (6 + 1) * 2
    (folder,) = verb.results.glob("table4-*")
    assert (
        folder.name == "table4-tiny-offline-sglang" and "served by SGLang: Alpaca" in (folder / "table4.md").read_text()
    )
    assert (folder / "figures" / "throughput.svg").exists() and (folder / "table4.html").exists()
    (run,) = map(Path, done.last["runs"])
    files = [path for path in verb.results.rglob("*.json*") if path.is_file()]
    assert len(files) > 20 and "hush" not in "".join(path.read_text() for path in files) + done.err + again.err
    rows, manifest = first_passes(read_rows(run)), read_manifest(run)
    assert len(rows) == 4 and manifest["finished"] and "host" not in manifest and manifest["client_host"]
    read = cells(folder)  # of the second call: concurrency 2 only
    speed = read.loc[("eagle3", "tokens_per_s", "concurrency 2")]
    assert speed["pooled"] == pytest.approx(rows["eagle3", 2].tokens_per_s)
    assert speed["pooled"] > 0 and pd.isna(speed["low"])  # one pass a server: no interval
    ratio = (rows["eagle3", 2].tokens_per_s or 0) / (rows["none", 2].tokens_per_s or 1)
    assert read.loc[("eagle3", "speedup", "concurrency 2")]["pooled"] == pytest.approx(ratio)
    assert read.loc[("eagle3", "tau_raw", "concurrency 2")]["pooled"] == pytest.approx(2.2)
    assert read.loc[("dlite", "tau_raw", "concurrency 2")]["missing"] == "no server with it was given"
    record = json.loads((folder / "table4.json").read_text("utf-8"))
    assert record["comparable"] is False and record["missing"] == {"dlite": "no server with it was given"}
    assert not any("our own" in line for line in record["settings"])


def test_verb_launches_each_drafter_once(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Two concurrencies on one start; K goes into the flags; an algorithm the server lacks is a reason, not the end."""
    verb, pids = Verb(rollouts, tmp_path), tmp_path / "pids"
    command = [sys.executable, str(FAKE), "--fake-pid-file", str(pids), "--fake-unknown", "DLITE"]
    asked = ("--launch", "--target", tiny, "--set", f"sglang.command={json.dumps(command)}")
    option = ("--set", "drafter_options.NGRAM.ngram_match_type=PROB")
    done = verb(*asked, *option, "--drafter", "NGRAM", "--drafter", "dlite=somewhere")
    assert done.code == 0, done.err
    (run,) = map(Path, done.last["runs"])
    rows = first_passes(read_rows(run))
    assert set(rows) == {(name, c) for name in ("none", "ngram") for c in (1, 2)} and rows["ngram", 2].k == 3
    assert len(pids.read_text().split()) == 3 and ended(pids)
    log = (run / "server-ngram.log").read_text()
    assert "--speculative-ngram-match-type PROB --speculative-num-draft-tokens 4" in log
    (folder,) = verb.results.glob("table4-*")
    missing = cells(folder).loc[("dlite", "speedup", "concurrency 1")]["missing"]
    assert "ended while it was starting" in missing and "Unknown speculative algorithm" in missing
    assert "dlite: failed" in (folder / "table4.md").read_text()


def test_verb_says_what_it_cannot_do(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Another table; no servers; a target that is not the servers'; a K that is not the table's costs the verdict."""
    verb = Verb(rollouts, tmp_path)
    assert "on servers only table4" in verb("--base-url", "http://127.0.0.1:1", table="table3").error
    assert "give --base-url URL" in verb("--backend", "sglang").error
    assert "leave them out" in verb("--backend", "engine", "--launch").error
    assert "no drafter has a checkpoint" in verb("--launch", "--target", tiny).error
    wide = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8}
    with FakeServer() as plain, FakeServer(Behaviour(wide)) as spec:
        done = verb("--base-url", f"{plain.base_url},{spec.base_url}", "--target", tiny, "--concurrency", "1")
    assert done.code == 0, done.err
    (record,) = verb.results.glob("table4-*/table4.json")
    changed = json.loads(record.read_text("utf-8"))["changed"]
    assert changed[1:] == [f"target ({tiny}, the servers say fake)", "k of ngram (3 -> 7)"]


def test_verb_measures_vllm_too(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """The same table from vLLM servers: named so, with τ of their reports; fails if our own engine runs instead."""
    verb = Verb(rollouts, tmp_path)
    with FakeVLLM() as plain, FakeVLLM(VLLMBehaviour(method="eagle3")) as spec:
        urls = ("--base-url", f"{plain.base_url},{spec.base_url}", "--concurrency", "1")
        done = verb("--backend", "vllm", *urls, "--target", tiny)
    assert done.code == 0, done.err
    (folder,) = verb.results.glob("table4-*")
    assert folder.name.endswith("-vllm") and "served by vLLM: Alpaca" in (folder / "table4.md").read_text("utf-8")
    assert cells(folder).loc[("eagle3", "tau_raw", "concurrency 1")]["pooled"] == pytest.approx(2.2)
    passes = read_rows(Path(done.last["runs"][0]))
    assert {(row.backend, row.engine_version, row.async_scheduling) for row in passes} == {("vllm", "0.32.0", True)}
