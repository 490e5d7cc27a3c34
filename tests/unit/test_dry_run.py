"""`--dry-run`: what it tells of a run is what the run then takes, and nothing is decoded or written."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from localmodel import WINDOW, session
from replaykit import Ids, rollout, said, three_turns
from reportkit import two_rollouts, write_run
from rowkit import make_row
from runkit import SMALL, call, replay, rows_of
from safetensors.torch import save_file

import agentbench_spec as ab
from agentbench_spec.config import load_config
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.changes import WHOLE, bucket_of
from agentbench_spec.rollout import Message, write_rollouts
from agentbench_spec.runs.scale.footprint import checkpoints_of, downloads
from agentbench_spec.runs.scale.forecast import Stretch, forecast, method_time
from agentbench_spec.runs.scale.speeds import MethodSpeed, Speeds, read_speeds, speeds_of


def planned(tiny: Path, rollouts: Path, *arguments: object) -> dict[str, Any]:
    """What `run --dry-run` says in its JSON line."""
    done = call("run", "--target", tiny, "--workload", rollouts, *SMALL, "--dry-run", *arguments)
    assert done.code == 0, done.err
    found = done.last["dry_run"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("settings", [(), ("--set", "replay.prefix=cold"), ("--max-turns", 2)])
def test_the_tokens_told_are_those_the_run_takes(
    tiny: Path, rollouts: Path, tmp_path: Path, settings: tuple[object, ...]
) -> None:
    """Fails if prompts are counted by another tokenizer or template than the run's, or what is kept is not kept."""
    asked = (*settings, "--drafter", "none", "--mode", "forced")
    found = planned(tiny, rollouts, *asked)
    replay(tiny, rollouts, tmp_path / "run", *asked)
    rows = rows_of(tmp_path / "run")
    assert found["turns"] == len(rows) and found["rollouts"] == 3
    told = {own["context"]: own for own in found["stretches"]}
    for context in {bucket_of(row.context_tokens) for row in rows}:
        own = [row for row in rows if bucket_of(row.context_tokens) == context]
        assert told[context]["turns"] == len(own)
        assert told[context]["prompt_tokens"] == sum(row.context_tokens or 0 for row in own)
        assert told[context]["new_tokens"] == sum(row.new_tokens or 0 for row in own)
        assert told[context]["recorded_tokens"] == sum(row.output_tokens or 0 for row in own)


def test_nothing_is_written_or_decoded(tiny: Path, rollouts: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Fails if a plan leaves a folder behind, or refuses what it is asked about after it."""
    monkeypatch.chdir(tmp_path)
    planned(tiny, rollouts, "--out", tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_memory_is_that_of_the_loaded_model(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if a size told from the config is not the size of the weights and of the KV that are then allocated."""
    found = planned(tiny, rollouts, "--drafter", "none")["memory"]
    replay(tiny, rollouts, tmp_path / "run", "--limit", 1, "--max-turns", 1, "--drafter", "none")
    from agentbench_spec.engine.loading import load_model

    model, _ = load_model(str(tiny))
    assert found["weight_bytes"] == sum(p.numel() * p.element_size() for p in model.parameters())
    row = rows_of(tmp_path / "run")[0]
    assert row.target_kv_bytes == found["kv_bytes_per_token"] * (row.context_tokens or 0)
    assert found["capacity_tokens"] == WINDOW and found["dtype"] == "float32"
    assert found["total_bytes"] == found["weight_bytes"] + found["kv_bytes"]


def test_turns_that_do_not_fit_are_told_apart(tiny: Path, tmp_path: Path) -> None:
    """Fails if turns that the run will call oversized are counted as work."""
    write_rollouts(tmp_path / "long.jsonl", [session("long", 3, pad=500)])
    found = planned(tiny, tmp_path / "long.jsonl")
    assert found["turns"] == 3 and sum(own["turns"] for own in found["stretches"]) < 3
    assert any(f"longer than {WINDOW:,} tokens" in note for note in found["notes"])


def test_a_rollout_that_does_not_render_is_told() -> None:
    """Fails if one bad rollout ends the plan, when in the run it costs its own rows only."""
    bad = rollout(said("user", 1), said("assistant", 2), Message(role="user", content="broken"), said("assistant", 3))
    found = forecast(load_config(), "w", [three_turns("good"), bad], ["none"], renderer=Ids())
    assert found.turns == 5 and sum(own.turns for own in found.stretches or ()) == 4
    assert len(found.notes) == 1 and "1 rollouts end before a turn that does not render" in found.notes[0]


def test_time_is_that_of_the_rows_it_is_told_from() -> None:
    """A run planned with its own speeds takes its own time. Fails if tokens, passes or ingest are lost on the way."""
    rows = two_rollouts()
    speeds = speeds_of(rows, "here")
    own = [row for row in rows if row.drafter == "ngram"]
    stretches: dict[str, Stretch] = {}
    for row in own:
        name = bucket_of(row.context_tokens)
        stretch = stretches.setdefault(name, Stretch(name))
        stretch.turns += 1
        stretch.recorded_tokens += row.output_tokens or 0
        stretch.most_tokens += 2 * (row.output_tokens or 0)
    found = method_time("ngram", list(stretches.values()), speeds, passes=1)
    assert found.recorded_s == pytest.approx(sum(row.decode_s or 0 for row in own))
    twice = method_time("ngram", list(stretches.values()), speeds, passes=2)
    assert twice.recorded_s == pytest.approx(2 * found.recorded_s)
    assert found.most_s is not None and found.recorded_s is not None and found.most_s > 1.9 * found.recorded_s


def test_a_method_without_a_speed_is_as_fast_as_plain_decoding_and_says_so() -> None:
    """Fails if an unknown method is taken to cost nothing."""
    stretch = [Stretch("under 1K", turns=1, recorded_tokens=11, most_tokens=21)]
    speeds = Speeds("given", None, {"none": MethodSpeed({WHOLE: 0.1})})
    found = method_time("dlite", stretch, speeds, 1)
    assert found.recorded_s == pytest.approx(1.0) and "no speed of dlite" in (found.source or "")
    assert method_time("dlite", stretch, Speeds("given", None), 1).recorded_s is None
    assert method_time("dlite", stretch, None, 1).recorded_s is None


def test_a_context_that_was_not_measured_takes_the_nearest_speed() -> None:
    """Fails if 64K of context are planned at the speed of all contexts together."""
    speed = MethodSpeed({WHOLE: 0.05, "under 1K": 0.01, "8K-16K": 0.2})
    assert speed.at("64K-128K") == 0.2 and speed.at("1K-2K") == 0.01 and speed.at("8K-16K") == 0.2
    assert MethodSpeed({WHOLE: 0.05}).at("4K-8K") == 0.05


def test_speeds_are_read_from_a_run_or_from_words(tmp_path: Path) -> None:
    """Fails if tokens a second are taken for seconds a token, or a run's for those of another clock."""
    given = read_speeds("prefill=640, none=23.5,ngram=40")
    assert given.prefill_s_per_token == pytest.approx(1 / 640)
    assert given.methods["ngram"].at("2K-4K") == pytest.approx(1 / 40) and set(given.methods) == {"none", "ngram"}
    run = write_run(tmp_path / "run", two_rollouts())
    measured = read_speeds(str(run))
    plain = [row for row in two_rollouts() if row.drafter == "none"]
    expected = sum(row.decode_s or 0 for row in plain) / sum(row.emitted or 0 for row in plain)
    assert measured.methods["none"].s_per_token[WHOLE] == pytest.approx(expected) and "toy on cpu" in measured.source


@pytest.mark.parametrize("text", ["none=fast", "none=0", "=3", "none=-1", "none=inf"])
def test_speeds_that_are_none_are_refused(text: str) -> None:
    """Fails if a typing mistake becomes an endless, or no, run."""
    with pytest.raises(ConfigError, match="--speeds"):
        read_speeds(text)


def test_speeds_without_a_dry_run_are_refused(tiny: Path, rollouts: Path) -> None:
    """Fails if a run passes over speeds that it does not use."""
    done = call("run", "--target", tiny, "--workload", rollouts, "--speeds", "none=3")
    assert done.code == 2 and "--dry-run" in done.error


def test_python_plans_what_the_command_does(tiny: Path, rollouts: Path, tmp_path: Path) -> None:
    """Fails if the two differ in a number, or a killed run is planned from its beginning."""
    small = {"limit": 2, "max_turns": 2, "max_new_tokens": 8}
    keywords: Any = {"target": tiny, "workload": rollouts, "drafters": "ngram", **small}
    words = [word for name, value in small.items() for word in (f"--{name.replace('_', '-')}", value)]
    told = call("run", "--target", tiny, "--workload", rollouts, "--drafter", "ngram", *words, "--dry-run").last
    found = ab.plan(speeds=None, **keywords)
    assert told["dry_run"] == json.loads(json.dumps(found.as_dict()))
    run = ab.run(out=tmp_path / "run", **keywords)
    assert ab.plan(begun=run.folder).forecast.rollouts == 0 and ab.plan(shard="1/2", **keywords).forecast.rollouts == 1
    timed = ab.plan(speeds=run.folder, **keywords).forecast.methods["ngram"]
    assert timed.recorded_s and timed.most_s and timed.source is None
    with pytest.raises(ConfigError, match="unknown drafter"):
        ab.plan(**(keywords | {"drafters": "ngam"}))


def test_a_live_run_cannot_be_planned(tiny: Path) -> None:
    """Fails if a session that is still to be lived is planned from nothing."""
    done = call("run", "--target", tiny, "--workload", "synthetic_agent", "--live", "--dry-run")
    assert done.code == 2 and "replay.history=live" in done.error


def file(name: str, size: int, fetch: bool, path: str = "") -> Any:
    return SimpleNamespace(
        filename=name, file_size=size, will_download=fetch, is_cached=bool(path), local_path=path or name
    )


def test_downloads_are_what_the_hub_says_is_missing() -> None:
    """Fails if cached files are counted, a checkpoint is forgotten, or a hub that refuses ends the plan."""
    asked: list[tuple[str, str | None]] = []

    def ask(source: str, revision: str | None) -> list[Any]:
        asked.append((source, revision))
        if source == "a/gated":
            raise OSError("closed\nmore")
        return [file("model.safetensors", 8_000, source == "a/target"), file("config.json", 10, True)]

    flags = {"target.source": "a/target", "target.revision": "abc", "drafters": ["eagle3=a/draft", "dlite=a/gated"]}
    target, draft, gated = downloads(load_config(flags=flags), ask)
    assert asked == [("a/target", "abc"), ("a/draft", None), ("a/gated", None)]
    assert (target.files, target.fetch_bytes, target.weight_bytes) == (2, 8_010, 8_000)
    assert (draft.files, draft.fetch_bytes, draft.weight_bytes) == (1, 10, 8_000)
    assert gated.files is None and gated.note == "closed"


def test_a_drafter_takes_the_memory_of_the_runs_dtype(tmp_path: Path) -> None:
    """Fails if a bfloat16 checkpoint is planned at half of what it takes in float32, or its token maps are widened."""
    tensors = {"w": torch.zeros(3, 5, dtype=torch.bfloat16), "d2t": torch.zeros(7, dtype=torch.int64)}
    save_file(tensors, tmp_path / "model.safetensors")
    config = load_config(flags={"target.source": "a/target", "drafters": [f"eagle3={tmp_path}", "dlite=a/draft"]})
    here = str(tmp_path / "model.safetensors")

    def ask(source: str, revision: str | None) -> list[Any]:
        return [file("model.safetensors", 400, source == "a/target", "" if source == "a/target" else here)]

    target, local, cached = downloads(config, ask)
    for own in (local, cached):
        assert (own.values, own.other_bytes) == (15, 56)
        assert own.bytes_in(torch.float32) == 15 * 4 + 56 and own.bytes_in(torch.bfloat16) == 15 * 2 + 56
    assert target.values is None and target.bytes_in(torch.float32) == 400, "not here: as it is stored"


def test_a_capacity_that_the_run_refuses_is_refused(tiny: Path, rollouts: Path) -> None:
    """Fails if a plan holds for a text beyond the window, which the run then refuses."""
    beyond = ("--set", f"target.capacity_tokens={2 * WINDOW}")
    done = call("run", "--target", tiny, "--workload", rollouts, *SMALL, "--dry-run", *beyond)
    assert done.code == 2 and "beyond the model's window" in done.error
    flagged = planned(tiny, rollouts, *beyond, "--set", "target.beyond_window=flag")
    assert flagged["memory"]["capacity_tokens"] == 2 * WINDOW


def test_parts_of_a_drafter_bring_their_own_checkpoints() -> None:
    """Fails if a drafter made of two is planned without the weights of one."""
    flags = {"target.source": "a/target", "drafters": ["hybrid=ngram+eagle3=a/draft"]}
    assert [own[1] for own in checkpoints_of(load_config(flags=flags))] == ["a/draft"]


def test_a_target_that_cannot_be_had_leaves_the_turns(rollouts: Path) -> None:
    """Fails if tokens are guessed from characters where no tokenizer is at hand, or the plan ends there."""
    done = call("run", "--target", "no/such-model", "--workload", rollouts, "--dry-run", "--drafter", "none")
    found = done.last["dry_run"]
    assert done.code == 0 and found["turns"] == 9 and found["stretches"] is None and found["memory"] is None
    assert any("tokens are not counted" in note for note in found["notes"])


def test_rows_without_clocks_give_no_speed() -> None:
    """Fails if a method that was never timed is planned at no time at all."""
    assert speeds_of([make_row(drafter="none", matched=[0, 0])], "here").methods == {}
