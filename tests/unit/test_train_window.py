"""DLite's sliding-window variant, as the trainer writes it, keeps the contract and a state that stops growing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import trainkit as kit

from agentbench_spec.conformance.kit import check_drafter
from agentbench_spec.errors import ConfigError
from agentbench_spec.plugins import load_drafter


def written(folder: Path, **options: object) -> Path:
    target = kit.small_target()
    trainee = kit.make_trainee("dlite", target, kit.random_texts(1), **{"role": "teacher", **options})
    kit.stir(trainee)
    trainee.write(folder, trainee.phases[-1], trainee.state_dict())
    return folder


def test_window_drafter_keeps_the_contract(tmp_path: Path) -> None:
    """Lossless, rows apart, padding ignored, history rewritten and thrown away; fails with the law that broke."""
    report = check_drafter("dlite_window", on=("toy",), options={"checkpoint": str(written(tmp_path))})
    assert report.exit_code == 0, str(report)


def test_state_stops_growing_at_the_window(tmp_path: Path) -> None:
    """W - 1 positions in two layers of two heads of 8, keys and values in float64; fails if it grows with the text."""
    from test_train_packed import span

    target = kit.small_target()
    drafter = load_drafter("dlite_window", checkpoint=str(written(tmp_path)))
    drafter.open(target.info, rows=1, capacity=64)
    ids = list(kit.random_texts(1)[0].input_ids)
    sizes = []
    for start, stop in ((0, 3), (3, 6), (6, 20), (20, 39)):
        drafter.observe(span(drafter, target, ids, start, stop))
        sizes.append(drafter.state_bytes(0))
    per_position = 2 * 2 * 2 * 8 * 8
    assert sizes == [2 * per_position, 5 * per_position, 5 * per_position, 5 * per_position]


def test_a_student_is_not_taken_for_a_window(tmp_path: Path) -> None:
    """Fails if a checkpoint without history tensors gets as far as missing tensors instead of the right name."""
    target = kit.small_target()
    student = kit.make_trainee("dlite", target, kit.random_texts(1), torch.float32, single_stage=True)
    student.write(tmp_path, student.phases[-1], student.state_dict())
    with pytest.raises(ConfigError, match="model_role is 'pivot_q_student'"):
        load_drafter("dlite_window", checkpoint=str(tmp_path))
