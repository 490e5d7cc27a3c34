"""`bench geometry` in thin widths: what is measured, what is an input, and what becomes of what does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agentbench_spec_drafters.nets.checkpoint import open_checkpoint, tensors_of
from runkit import call

from agentbench_spec.drafting import Drafter
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY, RowSampler
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.spans import Board
from agentbench_spec.engine.steps.graphs import Graphs
from agentbench_spec.engine.steps.recorded import recorded
from agentbench_spec.engine.steps.round_attention import RoundAttention
from agentbench_spec.engine.steps.static_target import Static
from agentbench_spec.engine.timing import Clock
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import read_manifest
from agentbench_spec.runs.geometry.cell import Cell, GeometryPlan, Method
from agentbench_spec.runs.geometry.geometry_rows import ROWS, GeometryRow, key_of, read_geometry
from agentbench_spec.runs.geometry.geometry_run import run_geometry
from agentbench_spec.runs.geometry.geometry_sheet import sheet_of
from agentbench_spec.runs.geometry.published_shapes import TARGETS, drafts_for, target_config
from agentbench_spec.runs.geometry.random_models import empty_model, random_target, weight_bytes, write_draft
from agentbench_spec.runs.geometry.scripted import Script, ScriptedLookup, ScriptedWork
from agentbench_spec.testing import toy_target

CPU = torch.device("cpu")
QUICK = GeometryPlan(
    "qwen3-4b", contexts=(24,), concurrency=(2,), widths=(4,), tau=2.5, thin=True, device="cpu", rounds=4, repeats=1
)
FLAGS = ("--thin", "--device", "cpu", "--rounds", 2, "--repeats", 1, "--width", 2, "--context", 16, "--concurrency", 1)
LEARNED = ("eagle3", "dflash", "dspark", "dlite")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[GeometryRow]]:
    folder = tmp_path_factory.mktemp("geometry")
    return folder, run_geometry(QUICK, folder)


def test_every_method_is_a_row_and_says_what_it_took(measured: tuple[Path, list[GeometryRow]]) -> None:
    """Fails if a published draft is not measured, or a row lacks a phase, its maintenance or its state."""
    _, rows = measured
    assert [row.drafter for row in rows] == ["none", "lookup", *LEARNED]
    for row in rows:
        assert row.status == "ok" and row.thin and row.reason is None, row
        assert row.round_s and row.verify_s and row.plain_round_s and row.kv_bytes and row.speedup_at_script
        assert (row.draft_s is None) == (row.drafter not in LEARNED) == (row.draft_ingest_s is None)
    state = {row.drafter: row.state_bytes for row in rows if row.drafter in LEARNED}
    one_layer = 24 * 2 * 2 * 16 * 4  # tokens, keys and values, KV heads, head_dim, fp32
    assert state == {"eagle3": one_layer, "dflash": 5 * one_layer, "dspark": 5 * one_layer, "dlite": 0}


def test_tau_is_an_input_and_is_labelled_so(measured: tuple[Path, list[GeometryRow]]) -> None:
    """Fails if a round emits another τ than scripted, or a row, the manifest or the table calls it measured."""
    folder, rows = measured
    for row in rows:
        scripted = 1.0 if row.drafter == "none" else QUICK.tau
        assert row.tau_scripted == scripted and row.row_tokens_per_round == pytest.approx(scripted, abs=1 / row.rounds)
    written = [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    assert not [name for row in written for name in row if "tau" in name and "scripted" not in name]
    manifest = read_manifest(folder)
    assert manifest["settings"]["tau_scripted"] == QUICK.tau and "tau" not in manifest["settings"]
    assert manifest["model"]["weights"] == "random" and "scripted" in manifest["notes"][0]
    sheet = sheet_of(QUICK.geometry, rows)
    assert not [head for head in sheet.headings if "τ" in head and "scripted" not in head and "that" not in head]
    assert "scripted" in sheet.title and any(note.startswith("thin:") for note in sheet.notes)


def test_a_thin_run_states_no_share_of_a_memory_it_did_not_measure(measured: tuple[Path, list[GeometryRow]]) -> None:
    """Fails if a floor is there although the memory's speed was not measured: null, never a guess."""
    folder, rows = measured
    assert read_manifest(folder)["read_bytes_per_s"] is None
    assert {(row.verify_floor_s, row.draft_floor_s, row.memory_share) for row in rows} == {(None, None, None)}


def test_a_killed_run_goes_on_with_what_it_lacks(measured: tuple[Path, list[GeometryRow]], tmp_path: Path) -> None:
    """Fails if rows are measured twice or lost, a torn line or an error is kept, or other settings are let in."""
    folder, rows = measured
    for name in ("manifest.json", ROWS):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    lines = (folder / ROWS).read_bytes().splitlines(keepends=True)
    failed = lines[-2].replace(b'"status": "ok"', b'"status": "error"')
    (tmp_path / ROWS).write_bytes(b"".join(lines[:-2]) + failed + lines[-1][:40])
    again = run_geometry(QUICK, tmp_path)
    assert [key_of(row) for row in again] == [key_of(row) for row in rows]
    assert {row.status for row in again} == {"ok"}
    assert (tmp_path / ROWS).read_bytes().startswith(b"".join(lines[:-2]))
    with pytest.raises(ConfigError, match=r"holds another measurement \(rounds \(4 -> 5\)"):
        run_geometry(GeometryPlan(**{**_fields(QUICK), "rounds": 5}), tmp_path)


def test_what_memory_cannot_hold_is_a_row_and_no_end(tmp_path: Path) -> None:
    """Fails if a context beyond the machine's memory ends the run, is left out, or comes without the reason."""
    plan = GeometryPlan(**{**_fields(QUICK), "contexts": (10**10, 16), "drafters": ("dlite",), "rounds": 2})
    large, small = [], []
    for row in run_geometry(plan, tmp_path):
        (large if row.context_tokens > 16 else small).append(row)
    assert [row.status for row in large] == ["out_of_memory"] * 3 and [row.status for row in small] == ["ok"] * 3
    assert all("GB are needed and" in (row.reason or "") and row.round_s is None for row in large)
    assert "out of memory" in sheet_of(plan.geometry, large).lines[0]


@pytest.mark.parametrize("name", ["llama-3.1-8b", *(pytest.param(name, marks=pytest.mark.slow) for name in TARGETS)])
def test_published_drafts_load_as_strictly_as_real_ones(name: str, tmp_path: Path) -> None:
    """Fails if a tensor of a geometry has another name or shape than the net that its config describes."""
    plan = GeometryPlan(**{**_fields(QUICK), "geometry": name, "contexts": (8,), "concurrency": (1,), "rounds": 1})
    rows = run_geometry(plan, tmp_path)
    assert {row.drafter: row.reason for row in rows if row.status != "ok"} == {}
    assert len(rows) == 2 + len(drafts_for(name, thin=True))


@pytest.mark.parametrize(("name", "billions"), [("qwen3-4b", 4.02), ("qwen3-8b", 8.19), ("llama-3.1-8b", 8.03)])
def test_the_sizes_are_the_published_ones(name: str, billions: float) -> None:
    """Fails if a target has not the number of parameters that its name is known for."""
    model = empty_model(target_config(name, thin=False), torch.bfloat16)
    assert weight_bytes(model) / 2e9 == pytest.approx(billions, abs=0.01)


def test_draft_sizes_are_the_published_ones() -> None:
    """Fails if a draft of the 4B has other tensors than its file, tables that are the target's left out."""
    drafts = drafts_for("qwen3-4b", thin=False)
    assert {name: len(draft.shapes) for name, draft in drafts.items()} == {
        "eagle3": 15, "dflash": 58, "dspark": 62, "dlite": 64,
    }  # fmt: skip
    assert drafts["dlite"].shapes["sequential_head.state_hidden_mlp.weight"] == [320, 2880]
    once = drafts["dflash"].read_elements(7)
    assert once == drafts["dflash"].read_elements(1) and 0.85e9 < once < 0.95e9  # five layers and the target's head
    head = 2 * 320 * 2 * 320 + 320 * 2880 + 151936 * 320 + 3 * 320  # biases too; the embedding is looked up
    assert drafts["dlite"].read_elements(7) - drafts["dlite"].read_elements(1) == 6 * head
    assert drafts["eagle3"].read_elements(7) == 7 * drafts["eagle3"].read_elements(1)  # a chain reads them each time


@pytest.mark.parametrize("tau", [1.0, 1.3, 2.0, 3.5, 4.0])
@pytest.mark.parametrize("row", [0, 1, 5])
def test_a_script_is_accepted_as_it_says(tau: float, row: int) -> None:
    """Fails if the rounds that a script leads to emit another mean than its τ, or more than k + 1 tokens."""
    script = Script(tau, k=3, rounds=40, begin=100, vocab_size=64)
    at, emitted = 0, []
    for _ in range(40):
        guesses = script.guesses([-1] * row + [100 + at], 3)[row]
        right = [guess == token for guess, token in zip(guesses, script.reply[at + 1 :], strict=False)]
        emitted.append(([*right, False]).index(False) + 1)
        at += emitted[-1]
    assert sum(emitted) / 40 == pytest.approx(tau, abs=1 / 40) and max(emitted) <= 4
    assert script.guesses([-1], 3) == [[0, 0, 0]]


class Counting(Drafter):
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.spec, self.asked, self.static = ScriptedLookup().spec, 0, False

    def propose(self, anchor: Any, position: Any, k: int) -> Any:
        self.asked += 1
        return ScriptedLookup.propose(_with(Script(1.0, k=k, rounds=9, begin=0, vocab_size=8)), anchor, position, k)


def _with(script: Script) -> ScriptedLookup:
    lookup = ScriptedLookup()
    lookup.script = script
    return lookup


def test_a_scripted_drafter_works_and_is_not_listened_to() -> None:
    """Fails if the drafter's work is left out of a round, or its own guesses decide what is accepted."""
    target, inner = toy_target(), Counting()
    drafter = ScriptedWork(inner)
    session = Session(target, {"it": drafter})
    drafter.script = script = Script(3.0, k=4, rounds=6, begin=5, vocab_size=64)
    session.prefill([1, 2, 3, 4, 5], lambda logits: script.reply[0])
    limits = Limits(k=4, max_new_tokens=13)
    turn, _, _ = session.decode("it", limits, RowSampler(GREEDY, []), Clock(CPU), reference=script.reply)
    assert [each.emitted for each in turn.rounds] == [3, 3, 3, 3] and inner.asked == 4


@pytest.mark.parametrize("name", LEARNED)
def test_replayed_rounds_emit_what_the_script_says(
    name: str, measured: tuple[Path, list[GeometryRow]], tmp_path: Path
) -> None:
    """Fails if a script cannot be part of a captured round: its guesses are then those of the capture, and τ is off."""
    draft = drafts_for("qwen3-4b", thin=True)[name]
    model: Any = random_target(target_config("qwen3-4b", thin=True), torch.float32, CPU, 0)
    static = Static(RoundAttention("masked"), Graphs(recorded), Board(CPU))
    cell = Cell.open(QUICK, model, 24, 2, measured[0] / "drafts", most=7, static=static)
    row = next(replace(row) for row in measured[1] if row.drafter == name)
    emitted, row.emitted_tokens = row.emitted_tokens, None
    cell.measure(Method(name, 7, draft), row)
    assert row.emitted_tokens == emitted


def test_random_weights_are_the_same_for_a_seed_and_others_for_another(tmp_path: Path) -> None:
    """Fails if a run cannot be repeated, if the seed has no effect, or if making weights moves the global generator."""
    config = target_config("qwen3-4b", thin=True)
    before = torch.get_rng_state()
    one, two, other = (random_target(config, torch.float32, CPU, seed).state_dict() for seed in (0, 0, 1))
    name = "model.layers.35.mlp.down_proj.weight"
    assert torch.equal(one[name], two[name]) and not torch.equal(one[name], other[name])
    draft = drafts_for("qwen3-4b", thin=True)["dlite"]
    made = []
    for seed in (0, 0, 1):
        write_draft(tmp_path, draft.config, draft.shapes, seed)
        made.append(dict(tensors_of(open_checkpoint(tmp_path).fetch())))
    weight = "sequential_head.output_proj.weight"
    assert torch.equal(made[0][weight], made[1][weight]) and not torch.equal(made[0][weight], made[2][weight])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "expected an object with 'tensors'"),
        ('{"tensors": {"a": [2, "b"]}}', "tensors.a is"),
        ("{", "not valid JSON"),
    ],
)
def test_a_damaged_file_of_shapes_is_refused(text: str, says: str, tmp_path: Path) -> None:
    """Fails if a file that is no table of shapes goes on to make tensors."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "random.json").write_text(text)
    with pytest.raises(ConfigError, match=says):
        dict(tensors_of(open_checkpoint(tmp_path).fetch()))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("qwen3-4",), "did you mean 'qwen3-4b'"),
        (("qwen3-4b", "--context", "1k"), "whole numbers with commas between"),
        (("qwen3-4b", "--concurrency", "0"), "must be at least 1"),
        (("qwen3-4b", "--tau", "0.5"), "at least 1 token"),
        (("qwen3-4b", "--tau", "nan"), "at least 1 token"),
        (("llama-3.1-8b", "--drafter", "dlite"), "published draft for llama-3.1-8b"),
        (("qwen3-4b", "--graphs", "on"), "only CUDA has graphs"),
        (("qwen3-4b", "--graphs", "maybe"), "graphs 'maybe'"),
        (("qwen3-4b", "--dtype", "int3"), "dtype"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_the_way_out(
    arguments: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    """Fails if a mistake is measured, ends in a traceback, or leaves a folder behind."""
    given = list(FLAGS) if arguments[1:2] != ("--context",) else ["--thin"]
    done = call("bench", "geometry", arguments[0], *given, *arguments[1:], "--out", tmp_path / "out")
    assert done.code == 2 and says in done.error and not (tmp_path / "out").exists()


def test_the_command_prints_the_table_and_leaves_it_in_the_folder(tmp_path: Path) -> None:
    """Fails if the verb loses a setting on its way, prints no table, or its last line is not what was measured."""
    done = call("bench", "geometry", "qwen3-8b", *FLAGS, "--drafter", "dlite", "--tau", 2, "--out", tmp_path / "g")
    assert done.code == 0, done.err
    assert done.last["rows"] == {"ok": 3, "out_of_memory": 0, "error": 0} and done.last["tau_scripted"] == 2.0
    assert "scripted" in done.err and "dlite" in done.err
    assert (tmp_path / "g" / "table.md").read_text().count("| dlite") == 1
    assert [(row.drafter, row.tau_scripted) for row in read_geometry(tmp_path / "g")][-1] == ("dlite", 2.0)


def _fields(plan: GeometryPlan) -> dict[str, Any]:
    return {name: getattr(plan, name) for name in plan.__slots__}
