"""Drafters that start as the target's last layers: every weight that has a counterpart has its value."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
import trainkit as kit
from safetensors.torch import save_file

from agentbench_spec.drafting import TargetInfo
from agentbench_spec.errors import ConfigError
from agentbench_spec.train.interface import Setting, Trainee
from agentbench_spec.train.trainees import load_trainee


@pytest.fixture(scope="module")
def target() -> Any:
    return kit.small_target()


def started(name: str, target: Any) -> Trainee:
    return kit.make_trainee(name, target, kit.random_texts(1), start="target")


@pytest.mark.parametrize(("name", "net"), [("dflash", "net"), ("dspark", "net"), ("dlite", "student")])
def test_block_drafters_start_as_the_last_layers(name: str, net: str, target: Any) -> None:
    """Fails if layers are taken in another order, or a matrix that has a counterpart stays random."""
    state, source = started(name, target).state_dict(), target.model.state_dict()
    first = target.info.num_layers - kit.SMALL[name]["depth"]
    copied = 0
    for key, weight in state.items():
        _, found, rest = key.partition(f"{net}.layers.")
        if found:
            index, _, parameter = rest.partition(".")
            wanted = source.get(f"model.layers.{first + int(index)}.{parameter}")
            if wanted is not None:
                torch.testing.assert_close(weight, wanted)
                copied += 1
    assert copied >= 2 * 9
    torch.testing.assert_close(state[f"{net}.norm.weight"], source["model.norm.weight"])


def test_eagle3_starts_as_the_last_layer_on_the_feature(target: Any) -> None:
    """Fails if the target's projections land on the embedding's half, or the last tap does not pass."""
    state, source = started("eagle3", target).state_dict(), target.model.state_dict()
    width, last = target.info.hidden_size, target.info.num_layers - 1
    queries = state["net.layers.0.self_attn.q_proj.weight"]
    torch.testing.assert_close(queries[:, width:], source[f"model.layers.{last}.self_attn.q_proj.weight"])
    torch.testing.assert_close(
        state["net.layers.0.hidden_norm.weight"], source[f"model.layers.{last}.input_layernorm.weight"]
    )
    assert torch.equal(state["net.layers.0.input_layernorm.weight"], torch.ones(width, dtype=torch.float64))
    fused = state["net.fc.weight"][:, -width:]
    assert float((fused - torch.eye(width, dtype=torch.float64)).abs().max()) < 0.05


def test_dlite_starts_with_the_closest_head_of_its_rank(target: Any) -> None:
    """Fails if the head is not the truncated singular value decomposition of the target's (Eckart-Young)."""
    state, rank = started("dlite", target).state_dict(), kit.SMALL["dlite"]["rank"]
    head = target.info.lm_head.get_parameter("weight").double()
    latent = state["student.sequential_head.state_hidden_mlp.weight"][:, rank:]
    product = state["student.sequential_head.output_proj.weight"] @ latent
    left_over = torch.linalg.svdvals(head)[rank:].square().sum().sqrt()
    assert float((head - product).norm()) == pytest.approx(float(left_over), rel=1e-9)


def written(name: str, target: Any, folder: Path, **options: Any) -> Trainee:
    """A trainee, its checkpoint in `folder`."""
    trainee = kit.make_trainee(name, target, kit.random_texts(1), **options)
    trainee.write(folder, trainee.phases[-1], trainee.state_dict())
    return trainee


@pytest.mark.parametrize(
    ("name", "options"),
    [("eagle3", {}), ("dflash", {"layout": "deepspec"}), ("dspark", {}), ("dlite", {"single_stage": True})],
)
def test_training_goes_on_from_a_checkpoint(name: str, options: dict[str, Any], target: Any, tmp_path: Path) -> None:
    """Fails if a weight is not that of the checkpoint, or stored tables of the target are in the way."""
    before = written(name, target, tmp_path, **options).state_dict()
    after = kit.make_trainee(name, target, kit.random_texts(1), start=str(tmp_path), seed=7, **options).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_eagle3_goes_on_with_another_draft_vocabulary(target: Any, tmp_path: Path) -> None:
    """Fails if a token's row of the head goes to another token, or a new token has not the target's row."""
    before = kit.make_trainee("eagle3", target, kit.random_texts(1), draft_vocab_size=kit.VOCAB // 2)
    with torch.no_grad():
        before.net.lm_head.weight.add_(1.0)  # type: ignore[union-attr,operator]
    before.write(tmp_path, before.phases[-1], before.state_dict())
    after = kit.make_trainee(
        "eagle3", target, kit.random_texts(1), start=str(tmp_path), draft_vocab_size=kit.VOCAB // 2 + 5
    )
    head = target.info.lm_head.get_parameter("weight").double()
    kept = set(cast("torch.Tensor", before.draft_ids).tolist())
    for row, token in zip(after.state_dict()["net.lm_head.weight"], cast("torch.Tensor", after.draft_ids), strict=True):
        torch.testing.assert_close(row, head[token] + (1.0 if int(token) in kept else 0.0))


def test_a_checkpoint_of_other_options_is_not_trained_on(target: Any, tmp_path: Path) -> None:
    """Fails if taps, mask or sizes that do not belong to the weights are taken silently, or a typo starts at random."""
    written("dflash", target, tmp_path)
    with pytest.raises(ConfigError, match=r"mask_token_id is \d+, here 3"):
        kit.make_trainee("dflash", target, kit.random_texts(1), start=str(tmp_path), mask_token_id=3)
    with pytest.raises(ConfigError, match="not a hub id"):
        kit.make_trainee("dflash", target, kit.random_texts(1), start="tagret")
    (tmp_path / "model.safetensors").unlink()
    save_file({"norm.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"norm.weight missing or of another shape"):
        kit.make_trainee("dflash", target, kit.random_texts(1), start=str(tmp_path))
    with pytest.raises(ConfigError, match="single_stage"):
        kit.make_trainee("dlite", target, kit.random_texts(1), start=str(tmp_path))


def test_a_target_without_weights_at_hand_is_an_error(target: Any) -> None:
    """Fails if start=target silently starts at random."""
    info: TargetInfo = target.info
    setting = Setting(info, torch.zeros(kit.VOCAB, dtype=torch.int64), torch.Generator())
    with pytest.raises(ConfigError, match="start=target"):
        load_trainee("dflash", setting, start="target", **kit.SMALL["dflash"])
