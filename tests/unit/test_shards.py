"""Runs cut into shards and joined again: the same rows as one run, and nothing joined that was not measured alike."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from localmodel import session
from replaykit import Ids, three_turns
from reportkit import MANIFEST, timed, two_rollouts, write_run
from runkit import call, replay, rows_of, without_clocks

from agentbench_spec.config import load_config
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.costs import paired, speedup
from agentbench_spec.results.folder import completed_rollouts, read_manifest, read_rounds
from agentbench_spec.results.machines.blocks import machine_lines
from agentbench_spec.results.machines.merge import command_for, merge
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.steady import steadied
from agentbench_spec.rollout import write_rollouts
from agentbench_spec.runs.scale.shards import Shard, share_of, shares, work_tokens

HOLD = ("--drafter", "odd_plugins:hold", "--drafter", "ngram", "--set", "measure.rounds=true")


# which rollouts a shard has


@pytest.mark.parametrize("of", [1, 2, 3, 7, 20])
def test_shards_are_disjoint_whole_and_balanced(of: int) -> None:
    """Fails if a rollout is in no shard or in two, or one shard has much more to do than another."""
    draw = random.Random(of)
    for _ in range(20):
        tokens = [int(draw.lognormvariate(8, 1.5)) for _ in range(20)]
        found = shares(tokens, of)
        assert sorted(place for own in found for place in own) == list(range(20))
        loads = [sum(max(tokens[place], 1) for place in own) for own in found]
        assert max(loads) - min(loads) <= max(tokens) and all(found)
        assert found == shares(tokens, of) and all(own == sorted(own) for own in found)


def test_many_small_rollouts_are_balanced_closely() -> None:
    """Fails if rollouts are dealt out by their number instead of their length."""
    tokens = [i % 50 + 1 for i in range(400)]
    loads = [sum(tokens[place] for place in own) for own in shares(tokens, 8)]
    assert max(loads) < 1.02 * min(loads)


def test_what_a_rollout_weighs_is_its_prompts_once_and_every_methods_replies() -> None:
    """Fails if a shard of long contexts, or of many turns, weighs as much as one of short ones."""
    config, renderer, own = load_config(), Ids(), three_turns()
    prompt = len(renderer.prompt(own, own.decode_points()[-1]))
    replies = sum(len(renderer.reply(own, point)) for point in own.decode_points())
    assert work_tokens(own, renderer, config, 3) == prompt + 3 * replies
    capped = load_config(flags={"decode.max_new_tokens": 2})
    assert work_tokens(own, renderer, capped, 1) == prompt + 6
    cold = load_config(flags={"replay.prefix": "cold"})
    prompts = sum(len(renderer.prompt(own, point)) for point in own.decode_points())
    assert work_tokens(own, renderer, cold, 3) == prompts + 3 * replies


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0", "-1/4", "1/4/2", ""])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    """Fails if shards counted from 0 leave one part of the run unmade, unnoticed."""
    with pytest.raises(ConfigError, match="1/4, 2/4"):
        Shard.parse(text)


def test_more_shards_than_rollouts_are_refused() -> None:
    """Fails if a task of an array ends with an empty run."""
    with pytest.raises(ConfigError, match="at most --shard i/2"):
        share_of(Shard(1, 3), [three_turns("a"), three_turns("b")], Ids(), load_config(), 2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--backend", "sglang", "--base-url", "http://127.0.0.1:1"), "--base-url"),
        (("--live", "--workload", "synthetic_agent"), "replay.history=live"),
        (("--k", "auto"), "decode.k=auto"),
        (("--k", "1,auto"), "decode.k=auto"),
    ],
)
def test_runs_that_cannot_be_cut_are_refused(tiny: Path, arguments: tuple[object, ...], says: str) -> None:
    """Fails if shards are made that do not join to the run they are parts of."""
    done = call("run", "--target", tiny, "--shard", "1/2", *arguments)
    assert done.code == 2 and "--shard" in done.error and says in done.error


# shards and the whole


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five rollouts of unlike length."""
    path = tmp_path_factory.mktemp("five") / "five.jsonl"
    write_rollouts(path, [session(f"s{i}", 1 + i % 3, pad=20 * i) for i in range(5)])
    return path


@pytest.fixture(scope="module")
def whole(tiny: Path, five: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in one piece."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert replay(tiny, five, folder, *HOLD).code == 0
    return folder


@pytest.fixture(scope="module")
def parts(tiny: Path, five: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same run in two shards, the second one killed and resumed."""
    place = tmp_path_factory.mktemp("parts")
    folders = [place / "1", place / "2"]
    for index, folder in enumerate(folders, 1):
        assert replay(tiny, five, folder, *HOLD, "--shard", f"{index}/2").code == 0
    _cut(folders[1])
    done = call("run", "--resume", "--out", folders[1])
    assert done.code == 0, done.err
    return folders


def _cut(folder: Path) -> None:
    """Leave the folder as a kill in its last rollout does."""
    done = (folder / "rollouts.jsonl").read_text("utf-8").splitlines(keepends=True)
    (folder / "rollouts.jsonl").write_text("".join(done[:-1]), "utf-8")
    tree = json.loads((folder / "manifest.json").read_text("utf-8"))
    del tree["finished"]
    (folder / "manifest.json").write_text(json.dumps(tree), "utf-8")


def test_shards_merge_to_the_rows_of_one_run(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    """Fails if a row is lost, doubled, in another place, or decoded in another order of methods than in one run."""
    done = call("merge", *reversed(parts), "-o", tmp_path / "merged")
    assert done.code == 0 and done.last["shards"] == 2 and done.last["faults"] == []
    assert without_clocks(rows_of(tmp_path / "merged")) == without_clocks(rows_of(whole))
    assert list(completed_rollouts(tmp_path / "merged").items()) == list(completed_rollouts(whole).items())
    own, other = (read_rounds(folder) for folder in (tmp_path / "merged", whole))
    assert [(r.rollout, r.turn, r.drafter, r.matched) for r in own] == [
        (r.rollout, r.turn, r.drafter, r.matched) for r in other
    ]
    manifest = read_manifest(tmp_path / "merged")
    assert manifest["settings_digest"] == read_manifest(whole)["settings_digest"] and manifest["finished"]
    assert [len(shard["rollouts"]) for shard in manifest["shards"]] == [
        len(completed_rollouts(folder)) for folder in parts
    ]
    assert manifest["shards"][1]["resumes"] and "shard" not in manifest


def test_a_shard_is_resumed_as_itself(parts: list[Path]) -> None:
    """Fails if a resumed shard takes up the whole run, or another part of it."""
    done = call("run", "--resume", "--out", parts[0], "--shard", "2/2")
    assert done.code == 2 and "holds shard 1/2, not shard 2/2" in done.error


def test_a_missing_shard_is_named_with_the_command_that_makes_it(parts: list[Path], tmp_path: Path) -> None:
    """Fails if half a run passes for a whole one, or its maker must guess how to go on."""
    done = call("merge", parts[0], "-o", tmp_path / "merged")
    assert done.code == 2 and "shards 2/2 are missing" in done.error and "--shard 2/2" in done.error
    assert not (tmp_path / "merged").exists()
    argv = ["/bin/x", "run", "--shard", "1/3", "--target", "a b", "--out=here", "--limit", "3", "--resume"]
    manifest = {"argv": argv, "shard": {"of": 3}}
    wanted = "agentbench-spec run --target 'a b' --limit 3 --shard 2/3 --out FOLDER-2"
    assert command_for(manifest, 2) == wanted


def test_the_same_shard_twice_is_refused(parts: list[Path], tmp_path: Path) -> None:
    """Fails if one part of the run counts twice."""
    with pytest.raises(ConfigError, match="are both shard 1"):
        merge([parts[0], parts[0]], tmp_path / "merged")


def _changed(folder: Path, place: Path, *path: str, value: Any) -> Path:
    """A copy of a shard with one entry of its manifest changed."""
    copy = shutil.copytree(folder, place)
    tree = own = json.loads((copy / "manifest.json").read_text("utf-8"))
    for name in path[:-1]:
        own = own[name]
    own[path[-1]] = value
    (copy / "manifest.json").write_text(json.dumps(tree), "utf-8")
    return copy


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("git", "sha"), "0" * 40, "git.sha"),
        (("git", "dirty"), "perhaps", "git.dirty"),
        (("packages", "torch"), "0.1", "packages.torch"),
        (("settings", "decode", "k"), 3, "settings.decode.k"),
        (("data", "sha256"), "0" * 64, "data.sha256"),
        (("model", "drafters", "ngram"), "older", "model.drafters.ngram"),
        (("host", "cpu"), "another CPU", "host.cpu"),
        (("shard", "of"), 3, "shard.of"),
    ],
)
def test_unlike_runs_are_refused_by_field(
    parts: list[Path], tmp_path: Path, path: tuple[str, ...], value: Any, field: str
) -> None:
    """Fails if rows of other code, settings, data or machines are joined, or the reader is not told which differ."""
    other = _changed(parts[1], tmp_path / "other", *path, value=value)
    with pytest.raises(ConfigError, match=field.replace(".", r"\.")):
        merge([parts[0], other], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_target_is_told_by_its_digest_and_not_by_its_folder(
    tiny: Path, five: Path, parts: list[Path], whole: Path, tmp_path: Path
) -> None:
    """Fails if machines that keep the same model, or file of rollouts, in other folders cannot share a run."""
    other = shutil.copytree(tiny, tmp_path / "models" / "copy")
    data = shutil.copy(five, tmp_path / five.name)
    assert replay(other, Path(data), tmp_path / "2", *HOLD, "--shard", "2/2").code == 0
    merged = merge([parts[0], tmp_path / "2"], tmp_path / "merged")
    assert without_clocks(rows_of(merged.folder)) == without_clocks(rows_of(whole))
    changed = _changed(tmp_path / "2", tmp_path / "other", "model", "sha256", value="0" * 64)
    with pytest.raises(ConfigError, match=r"model\.sha256"):
        merge([parts[0], changed], tmp_path / "unlike")
    unknown = [
        _changed(part, tmp_path / f"unknown-{number}", "model", "sha256", value=None)
        for number, part in enumerate((parts[0], tmp_path / "2"))
    ]
    with pytest.raises(ConfigError, match=r"model\.source"):
        merge(unknown, tmp_path / "unlike")


def test_changed_code_is_told_of_since_it_cannot_be_compared(parts: list[Path], tmp_path: Path) -> None:
    """Fails if shards of two different edits of one commit join without a word."""
    changed = [
        _changed(part, tmp_path / str(number), "git", "dirty", value=True) for number, part in enumerate(parts, 1)
    ]
    notes = merge(changed, tmp_path / "merged").manifest["notes"]
    assert any("changed since their commit" in note for note in notes)


def test_gpus_are_told_apart_by_their_model_and_not_by_their_place(tmp_path: Path) -> None:
    """Fails if two equal GPUs of one machine are refused, or an A100 and an H100 are joined."""

    def shard(index: int, device: str, gpus: list[str]) -> Path:
        rows = [row for row in two_rollouts() if row.rollout == f"r{index - 1}"]
        changes = {
            "settings": MANIFEST["settings"] | {"target": {"source": "toy", "device": device}},
            "model": {"device": device},
            "card": MANIFEST["card"] | {"device": device},
            "host": {"gpus": [{"name": name} for name in gpus]},
            "shard": {"index": index, "of": 2, "rollouts": [f"r{index - 1}"], "all": ["r0", "r1"]},
        }
        return write_run(tmp_path / f"{device}-{'-'.join(gpus)}", rows, **changes)

    first, second = shard(1, "cuda:0", ["H100", "H100"]), shard(2, "cuda:1", ["A100", "H100"])
    assert len(merge([first, second], tmp_path / "alike").rows) == 8
    with pytest.raises(ConfigError, match=r"host\.gpu \('H100' -> 'A100'\)"):
        merge([first, shard(2, "cuda:0", ["A100"])], tmp_path / "unlike")


def test_shards_that_are_not_finished_or_none_are_refused(whole: Path, parts: list[Path], tmp_path: Path) -> None:
    """Fails if rows of a killed shard are joined as they are, or a whole run passes for a part."""
    with pytest.raises(ConfigError, match="is no shard"):
        merge([parts[0], whole], tmp_path / "merged")
    cut = shutil.copytree(parts[1], tmp_path / "cut")
    _cut(cut)
    with pytest.raises(ConfigError, match="--resume --out"):
        merge([parts[0], cut], tmp_path / "merged")


def test_a_shard_with_rollouts_of_another_is_refused(parts: list[Path], tmp_path: Path) -> None:
    """Fails if files that were mixed up by hand are joined."""
    mixed = shutil.copytree(parts[0], tmp_path / "mixed")
    for name in ("turns.jsonl", "rollouts.jsonl", "rounds.jsonl"):
        shutil.copy(parts[1] / name, mixed / name)
    with pytest.raises(ConfigError, match="other rollouts than its own"):
        merge([mixed, parts[1]], tmp_path / "merged")


# machines are blocks


def _on(machine: str, slower: float, rollouts: range) -> list[TurnRow]:
    """Rollouts of six turns at 2x over plain decoding, all clocks of a machine slower by a factor."""
    rows = []
    for i in rollouts:
        for turn in range(6):
            plain = tuple(slower * ms for ms in (0.0, 9.0, 0.5, 0.0, 0.5))
            drafted = tuple(slower * ms for ms in (1.0, 13.0, 0.5, 0.25, 0.25))
            rows.append(timed(f"r{i}", turn, "none", [0] * 6, plain, machine=machine))
            rows.append(timed(f"r{i}", turn, "ngram", [2, 2], drafted, machine=machine, k=3))
    return rows


def test_a_slow_machine_is_no_stall_and_no_speedup() -> None:
    """Fails if the turns of a machine that is four times slower are taken for stalls of the other."""
    rows = [*_on("fast", 1.0, range(6)), *_on("slow", 4.0, range(6, 8))]
    assert all(row is steady for row, steady in zip(rows, steadied(rows), strict=True))
    assert speedup(paired(rows, "ngram")).pooled == pytest.approx(2.0)
    blind = [replace(row, machine=None) for row in rows]
    assert any(row is not steady for row, steady in zip(blind, steadied(blind), strict=True)), "the control"


def test_what_machines_tell_stands_side_by_side() -> None:
    """Fails if a reader of a merged table cannot see that one machine tells something else."""
    rows = [*_on("fast", 1.0, range(6)), *_on("slow", 4.0, range(6, 8))]
    lines = machine_lines(rows)
    assert lines[0] == "2 machines, each a block of its own: fast (6 rollouts), slow (2 rollouts)"
    assert lines[1] == "plain decoding by machine: 10.00 ms a token, 40.00 ms a token"
    assert lines[2] == "ngram: speed-up by machine: 2.00, 2.00"
    assert machine_lines(_on("fast", 1.0, range(2))) == [] and machine_lines(two_rollouts()) == []
