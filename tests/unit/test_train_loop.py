"""The training loop on a toy target: normalisation, stages, resuming, checkpoints, and that it learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import trainkit as kit

from agentbench_spec.errors import ConfigError
from agentbench_spec.plugins import load_drafter
from agentbench_spec.train.anchors import valid_anchors
from agentbench_spec.train.interface import Trainee
from agentbench_spec.train.options import train_config
from agentbench_spec.train.parallel import World
from agentbench_spec.train.step import example_of
from agentbench_spec.train.trainer import LOG, Trainer


@pytest.fixture(scope="module")
def target() -> Any:
    return kit.small_target(dtype=torch.float32)


def trainer_in(folder: Path, target: Any, name: str, options: dict[str, Any] | None = None, **settings: Any) -> Trainer:
    texts = kit.random_texts(5)
    trainee = kit.make_trainee(name, target, texts, torch.float32, **(options or {}))
    folder.mkdir(exist_ok=True)
    data = kit.online(target, trainee, texts)
    return Trainer(kit.step_of(trainee, target), kit.config(**settings), data, folder, World())


def weights(trainee: Trainee) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trainee.state_dict().items()}


@pytest.mark.parametrize("name", ["dflash", "dspark", "dlite", "eagle3"])
def test_a_resumed_run_gives_the_weights_of_an_unbroken_one(name: str, target: Any, tmp_path: Path) -> None:
    """Bit for bit, over every phase and stage; fails if any state, draw or stage entry is lost or done twice."""
    options = {"steps": 8, "evaluate_every": 100, "save_every": 100}
    whole = trainer_in(tmp_path / "whole", target, name, **options)
    whole.run()
    total = whole.total
    for stop in (3, total - 8, total - 5):
        broken = trainer_in(tmp_path / "broken", target, name, **options)
        if (tmp_path / "broken" / LOG).exists():
            broken.resume()
        broken.run(until=max(stop, 1))
    last = trainer_in(tmp_path / "broken", target, name, **options)
    last.resume()
    last.run()
    expected, found = weights(whole.trainee), weights(last.trainee)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    rows = [[(r["step"], r["loss"]) for r in read_log(tmp_path / run)] for run in ("whole", "broken")]
    assert rows[0] == rows[1] and [step for step, _ in rows[0]] == [*range(1, total + 1)]


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def test_stage_one_copies_the_teachers_head_and_leaves_it_untouched(target: Any, tmp_path: Path) -> None:
    """Teacher 16 steps, stage 1 two, transition two: the head is the teacher's until the transition and then moves."""
    trainer = trainer_in(tmp_path, target, "dlite", steps=16)
    trainer.run(until=18)
    trainee: Any = trainer.trainee
    assert read_log(tmp_path)[-1]["stage"] == "stage 1"
    heads = [weights(net.sequential_head) for net in (trainee.teacher, trainee.student)]
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])
    backbone = weights(trainee.student.layers)
    trainer.run()
    moved = weights(trainee.student.sequential_head)
    assert not any(torch.equal(heads[0][name], moved[name]) for name in heads[0])
    assert not torch.equal(backbone["0.mlp.up_proj.weight"], weights(trainee.student.layers)["0.mlp.up_proj.weight"])
    teacher_now = weights(trainee.teacher.sequential_head)
    assert all(torch.equal(heads[0][name], teacher_now[name]) for name in heads[0])


@pytest.mark.parametrize("name", ["dflash", "dspark", "dlite", "eagle3"])
def test_gradient_is_that_of_the_mean_over_all_positions(name: str, target: Any, tmp_path: Path) -> None:
    """Two texts of unequal length in one step; fails for a mean of per-text means, or a loss factor in the weight."""
    texts = [kit.random_texts(1, 40)[0], kit.random_texts(1, 80, seed=5)[0]]
    single = {"single_stage": True} if name == "dlite" else {}
    trainee = kit.make_trainee(name, target, texts, torch.float32, **single)
    step, data = kit.step_of(trainee, target), kit.online(target, trainee, texts)
    settings = kit.config(anchors=None, steps=4, clip_norm=1e9, learning_rate=1e-9)
    trainer = Trainer(step, settings, data, tmp_path, World())
    trainer.run(until=1)
    got = {n: p.grad.clone() for n, p in trainee.named_parameters() if p.grad is not None}
    trainee.zero_grad(set_to_none=True)
    factors = dict(trainee.phases[0].stages[0].losses)
    numerator, denominator = torch.zeros(()), torch.zeros(())
    for index, text in enumerate(texts):
        example = example_of(text, data.features[index], trainee, torch.device("cpu"), torch.float32)
        sums = step(example, valid_anchors(example.supervised, trainee.k), factors)
        numerator, denominator = numerator + sums.total, denominator + sums.weight
    (numerator / denominator).backward()
    for parameter_name, parameter in trainee.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(got[parameter_name], parameter.grad, rtol=1e-3, atol=1e-7)


def test_labels_are_the_targets_choice_at_the_position_before(target: Any) -> None:
    """A trainee that predicts nothing is compared with labels read off the target directly: row a + i - 1."""
    texts = kit.random_texts(1)
    trainee = kit.make_trainee("dflash", target, texts, torch.float32)
    data = kit.online(target, trainee, texts)
    example = example_of(texts[0], data.features[0], trainee, torch.device("cpu"), torch.float32)
    step = kit.step_of(trainee, target)
    anchors = torch.tensor([2, 4])
    rows = step._rows(example, anchors, torch.ones(2, 4))
    target.truncate(0, 0)
    logits = target.evaluate(0, [0], torch.tensor([list(texts[0].input_ids)])).logits[0]
    target.truncate(0, 0)
    assert rows.labels.tolist() == [*logits[2:6].argmax(-1).tolist(), *logits[4:8].argmax(-1).tolist()]
    trainee.labels = "data"
    rows = step._rows(example, anchors, torch.ones(2, 4))
    assert rows.labels.tolist() == [*texts[0].input_ids[3:7], *texts[0].input_ids[5:9]]


@pytest.mark.parametrize("name", ["dspark", "eagle3"])
def test_logits_in_chunks_give_the_same_losses_and_gradients(name: str, target: Any) -> None:
    """Fails if recomputation changes anything: chunks of 7 rows against all rows at once."""
    texts = kit.random_texts(1)
    found = []
    for rows_at_once in (7, 10_000):
        trainee = kit.make_trainee(name, target, texts, torch.float32)
        step, data = kit.step_of(trainee, target, rows_at_once=rows_at_once), kit.online(target, trainee, texts)
        example = example_of(texts[0], data.features[0], trainee, torch.device("cpu"), torch.float32)
        sums = step(example, valid_anchors(example.supervised, trainee.k), trainee.phases[0].stages[0].losses)
        sums.total.backward()
        grads = torch.cat([p.grad.flatten() for p in trainee.parameters() if p.grad is not None])
        found.append((sums.total.detach(), sums.correct, grads))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_labels_outside_a_reduced_vocabulary_do_not_count(target: Any) -> None:
    """Fails if a label the draft cannot say enters the loss or the accuracy."""
    texts = kit.random_texts(2)
    trainee = kit.make_trainee("eagle3", target, texts, torch.float32, draft_vocab_size=10)
    data = kit.online(target, trainee, texts)
    example = example_of(texts[0], data.features[0], trainee, torch.device("cpu"), torch.float32)
    anchors = valid_anchors(example.supervised, trainee.k)
    sums = kit.step_of(trainee, target)(example, anchors, {"soft": 1.0})
    ahead = anchors[:, None] + torch.arange(trainee.k)
    sayable = torch.isin(example.greedy[ahead.clamp(max=39)], trainee.draft_ids)
    assert not sums.counted[~sayable].any() and 0 < int(sums.counted.sum()) < int(sayable.numel())


def test_checkpoints_load_as_a_downloaded_one(target: Any, tmp_path: Path) -> None:
    """Each phase's checkpoint is written where it belongs, and the drafter loads and opens it."""
    for name in kit.SMALL:
        trainer = trainer_in(tmp_path / name, target, name, steps=8)
        trainer.run()
        drafter = load_drafter(f"{name}={tmp_path / name}")
        drafter.open(target.info, rows=1, capacity=64)
    teacher = json.loads((tmp_path / "dlite" / "teacher" / "config.json").read_text())
    assert teacher["dlite_config"]["model_role"] == "swa_teacher"
    assert teacher["dlite_config"]["swa_window_size"] == 6


def test_log_rows_are_tidy(target: Any, tmp_path: Path) -> None:
    """One object per step, the same columns in each of a stage, shares between 0 and 1, and the prefix accuracy."""
    trainer = trainer_in(tmp_path, target, "dspark", steps=3)
    trainer.run()
    rows = read_log(tmp_path)
    assert len(rows) == 3 and len({tuple(row) for row in rows}) == 1
    first = rows[0]
    assert {"loss_ce", "loss_tv", "loss_confidence", "accept_1", "accept_4", "grad_norm", "tokens_per_s"} <= set(first)
    assert first["loss"] == pytest.approx(0.1 * first["loss_ce"] + 0.9 * first["loss_tv"] + first["loss_confidence"])
    assert 1 <= first["prefix_acc"] <= 5 and 0 <= first["accept_4"] <= first["accept_1"] <= 1


def test_a_batch_that_does_not_divide_is_refused(target: Any, tmp_path: Path) -> None:
    """Fails if a rank silently gets fewer texts."""
    texts = kit.random_texts(2)
    trainee = kit.make_trainee("dflash", target, texts, torch.float32)
    with pytest.raises(ConfigError, match="batch 2 does not divide among 3"):
        Trainer(kit.step_of(trainee, target), kit.config(), kit.online(target, trainee, texts), tmp_path, World(0, 3))


def test_unknown_settings_and_options_are_named(target: Any) -> None:
    """A misspelt setting must not become a silent default."""
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        train_config("dlite", {}, {"step": 3}, {})
    with pytest.raises(ConfigError, match="has no option 'ranks'; did you mean 'rank'"):
        kit.make_trainee("dlite", target, kit.random_texts(1), ranks=3)


@pytest.mark.parametrize("name", ["dflash", "dspark", "dlite", "eagle3"])
def test_a_bfloat16_forward_keeps_float32_weights(name: str, target: Any, tmp_path: Path) -> None:
    """Every stage runs under autocast, near the float32 loss; fails on a dtype clash or if masters lose precision."""
    first = {}
    for precision in ("float32", "bfloat16"):
        trainer = trainer_in(tmp_path / precision, target, name, steps=8, precision=precision)
        trainer.run()
        rows = read_log(tmp_path / precision)
        first[precision] = rows[0]["loss"]
        assert all(parameter.dtype == torch.float32 for parameter in trainer.trainee.parameters())
    assert first["bfloat16"] == pytest.approx(first["float32"], rel=0.02)
    assert first["bfloat16"] != first["float32"]


@pytest.mark.parametrize("loss", ["ce", "kl_target"])
def test_dlite_learns_by_the_loss_it_was_given(loss: str, tmp_path: Path) -> None:
    """Fails if the option reaches no stage, the log names another loss, or training by it does not lower it."""
    target = kit.small_target(dtype=torch.float32)
    texts = kit.written_texts(target, 4)
    trainee = kit.make_trainee("dlite", target, texts, torch.float32, single_stage=True, loss=loss)
    settings = kit.config(steps=40, save_every=1000)
    Trainer(kit.step_of(trainee, target), settings, kit.online(target, trainee, texts), tmp_path, World()).run()
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text("utf-8").splitlines()]
    assert [name for name in rows[0] if name.startswith("loss_")] == [f"loss_{loss}"]
    values = [row[f"loss_{loss}"] for row in rows]
    assert sum(values[-10:]) / 10 < 0.93 * values[0]


def test_an_unknown_loss_of_dlite_is_refused() -> None:
    """Fails if a misspelt loss trains something else."""
    with pytest.raises(ConfigError, match="published, ce, kl_target"):
        kit.make_trainee("dlite", kit.small_target(), kit.random_texts(), loss="kl")
