"""Every folder of golden vectors, shipped or named in AGENTBENCH_SPEC_GOLDEN, played without knowing it beforehand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from golden_block import DATA
from golden_sets import GoldenSet, folders, roots
from safetensors.torch import load_file, save_file

FOLDERS = [folder for root in roots() for folder in folders(root)]
golden_set = cache(GoldenSet)


def label(folder: Path) -> str:
    return folder.name if folder.is_relative_to(DATA) else str(folder)


def test_every_named_root_holds_a_set() -> None:
    """Fails if a folder was named in which nothing is found: a typing error would then count as parity."""
    assert [str(root) for root in roots() if not folders(root)] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=label)
def test_a_folder_is_understood(folder: Path) -> None:
    """Fails naming the file, field or drafter that is missing, since a set left out would look like one passed."""
    golden = golden_set(folder)
    assert golden.lacks() == []
    able, refused = golden.drafters
    assert able, f"no installed drafter reads {folder}/draft: {refused}"


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("folder", FOLDERS, ids=label)
def test_every_recorded_round_is_reproduced(folder: Path, every: int) -> None:
    """Fails if any drafted token of a case differs, or its texts and counts are not what the target makes of them."""
    golden = golden_set(folder)
    step = every if folder.is_relative_to(DATA) else 1
    assert [fault for case in golden.cases[::step] for fault in golden.differences(case)] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=label)
def test_every_recorded_tensor_is_reproduced(folder: Path) -> None:
    """Fails if an inner tensor is off by more than 1e-4: a fault that the argmax of these prompts happens to hide."""
    golden = golden_set(folder)
    gaps = golden.gaps()
    assert {key: gap for key, gap in gaps.items() if gap > 0} == {}
    assert {key for key in golden.tensors if key.endswith(".draft_logits")} <= gaps.keys()


def change_draft(case: dict[str, Any]) -> None:
    case["rounds"]["draft_tokens"][1][-1] ^= 1


def change_next(case: dict[str, Any]) -> None:
    case["rounds"]["next_token"][1] ^= 1


def change_verified(case: dict[str, Any]) -> None:
    case["rounds"]["verify_input_ids"][1][-1] ^= 1


def change_output(case: dict[str, Any]) -> None:
    case["output_ids"][-1] ^= 1


def change_accepted(case: dict[str, Any]) -> None:
    case["rounds"]["accepted_draft"][1] += 1


def change_length(case: dict[str, Any]) -> None:
    case["accept_lengths"][1] += 1


CHANGES = (change_draft, change_next, change_verified, change_output, change_accepted, change_length)
SMALL = {folder.name: folder for folder in FOLDERS if folder.parent == DATA}


def copied(name: str, tmp_path: Path) -> Path:
    """A shipped set under another name and beside another copy of its target, as a stranger's folder would be."""
    shutil.copytree(DATA / "target", tmp_path / "target")
    return Path(shutil.copytree(SMALL[name], tmp_path / "other"))


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", ["eagle3", "dlite-g1"])
def test_one_changed_number_is_found(name: str, change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    """Fails if a set that was recorded otherwise in a single number would pass; the same copy unchanged passes."""
    golden = GoldenSet(copied(name, tmp_path))
    case = golden.cases[3]
    assert golden.target.parent == tmp_path and golden.lacks() == [] and golden.differences(case) == []
    change(case)
    assert golden.differences(case) != []


@pytest.mark.parametrize("name", ["eagle3", "dspark-rnn", "dlite-g1"])
def test_one_changed_tensor_is_found(name: str, tmp_path: Path) -> None:
    """Fails if a logit recorded 0.01 apart passes."""
    folder = copied(name, tmp_path)
    tensors = load_file(folder / "tensors.safetensors")
    key = next(key for key in sorted(tensors) if key.endswith("draft_logits"))
    tensors[key][0, 5] += 0.01
    save_file(tensors, folder / "tensors.safetensors")
    assert [found for found, gap in GoldenSet(folder).gaps().items() if gap > 0] == [key]


@pytest.mark.parametrize("file", ["cases.json", "tensors.safetensors", "draft/model.safetensors", "draft/config.json"])
def test_a_missing_file_is_named(file: str, tmp_path: Path) -> None:
    """Fails if a folder that lacks a file is passed over, or breaks without saying which."""
    folder = copied("dlite-g1", tmp_path)
    (folder / file).unlink()
    assert folders(tmp_path) == [folder]
    assert GoldenSet(folder).lacks() == [f"no {file}"]


def test_a_missing_field_and_an_unknown_checkpoint_are_named(tmp_path: Path) -> None:
    """Fails if a layout that is not understood ends in a KeyError, or counts as played."""
    folder = copied("dlite-g1", tmp_path)
    config = folder / "draft" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": ["Xpress"], "dlite_config": None}))
    able, refused = GoldenSet(folder).drafters
    assert able == [] and "dlite_config" in refused["dlite"]
    cases = json.loads((folder / "cases.json").read_text())
    del cases["cases"][2]["rounds"]["next_token"]
    (folder / "cases.json").write_text(json.dumps(cases))
    assert GoldenSet(folder).lacks() == [f"cases.json: case {cases['cases'][2]['id']} has no rounds.next_token"]
