"""Faster linears: the same product by every kernel, chosen once, remembered, and never needed."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from tinymodels import tiny
from torch import nn
from torch.nn import functional as F

from agentbench_spec.engine.cpu.linear import (
    BLOCK_ROWS,
    ONE_TOKEN,
    STOCK,
    Choice,
    FastLinear,
    accelerate,
    kernels_of,
    packing_available,
)
from agentbench_spec.engine.cpu.race import CACHE_FILE, Evidence
from agentbench_spec.testing import toy_model


def layer(out: int, inputs: int, bias: bool) -> nn.Linear:
    draw = torch.Generator().manual_seed(out * inputs)
    linear = nn.Linear(inputs, out, bias=bias).requires_grad_(False)
    for weight in linear.parameters():
        weight.copy_(torch.randn(weight.shape, generator=draw) / inputs**0.5)
    return linear


@pytest.mark.parametrize("kernel", ONE_TOKEN)
@pytest.mark.parametrize("rows", [1, 2, 8, 33])
@pytest.mark.parametrize(("out", "inputs"), [(64, 48), (37, 48), (1, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_every_kernel_is_the_same_product(kernel: str, rows: int, out: int, inputs: int, bias: bool) -> None:
    """Fails if a kernel drops the bias, mixes the halves, or breaks on odd sizes and wide blocks."""
    linear = layer(out, inputs, bias)
    fast = FastLinear(linear, Choice(kernel, kernel if kernel != "halves" else "packed", 32), kernels_of(linear))
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows))
    for shape in ((1, rows, inputs), (rows, 1, inputs), (rows, inputs)):
        said = fast(x.view(shape))
        torch.testing.assert_close(said, F.linear(x.view(shape), linear.weight, linear.bias), atol=1e-5, rtol=1e-5)


def test_rows_choose_the_kernel() -> None:
    """Fails if a wide prefill runs on the decode kernel, or one token on the block's."""
    linear, used = layer(4, 3, False), []

    def named(name: str):  # type: ignore[no-untyped-def]
        return lambda x: used.append(name) or F.linear(x, linear.weight)

    kernels = {name: named(name) for name in ("linear", "halves", "packed")}
    fast = FastLinear(linear, Choice("halves", "packed", 8), kernels)
    for rows in (1, 2, 8, 9):
        fast(torch.zeros(1, rows, 3))
    assert used == ["halves", "packed", "packed"]


def test_a_kernel_that_is_not_there_falls_back() -> None:
    """Fails if a choice remembered from another build, or an odd layer, cannot run."""
    linear, x = layer(7, 3, True), torch.randn(1, 1, 3)
    assert "halves" not in kernels_of(linear)
    fast = FastLinear(linear, Choice("halves", "gone", 8), kernels_of(linear))
    torch.testing.assert_close(fast(x), linear(x))
    assert ("packed" in kernels_of(linear)) == packing_available()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes_are_left_alone(dtype: torch.dtype, tmp_path: Path) -> None:
    """Fails if fp32 kernels are put under a model of another dtype, or a choice is written for it."""
    model = toy_model(dtype=dtype)
    assert accelerate(model, tmp_path) == {}
    assert not any(isinstance(module, FastLinear) for module in model.modules())
    assert not list(tmp_path.iterdir())


SHAPES = {"32 x 32", "16 x 32", "48 x 32", "32 x 48", "97 x 32"}


def model_and_cache(cache: Path) -> tuple[nn.Module, dict[str, Choice]]:
    model = tiny("Llama")
    return model, accelerate(model, cache)


def force(cache: Path, choice: Choice) -> None:
    """Rewrite every remembered choice, so that its use can be seen."""
    kept = json.loads((cache / CACHE_FILE).read_text())
    forced = {key: dict.fromkeys(shapes, choice.as_dict()) for key, shapes in kept.items()}
    (cache / CACHE_FILE).write_text(json.dumps(forced))


def test_an_accelerated_model_says_the_same(tmp_path: Path) -> None:
    """Fails if a replaced layer has another layer's weight: forced kernels everywhere, tied head included."""
    ids = torch.randint(97, (1, 9), generator=torch.Generator().manual_seed(0))
    for family in ("Llama", "Qwen2"):
        wanted = tiny(family)(ids).logits
        accelerate(tiny(family), tmp_path)
        force(tmp_path, Choice("halves", "packed", BLOCK_ROWS[-1]))
        model = tiny(family)
        accelerate(model, tmp_path)
        replaced = [name for name, module in model.named_modules() if isinstance(module, FastLinear)]
        assert len(replaced) == 3 * 7 + 1 and "lm_head" in replaced
        torch.testing.assert_close(model(ids).logits, wanted, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(model(ids[:, :1]).logits, wanted[:, :1], atol=1e-4, rtol=1e-4)


def test_choices_are_remembered(tmp_path: Path) -> None:
    """Fails if every run races anew: two runs of one comparison could then use different kernels."""
    _, first = model_and_cache(tmp_path / "new" / "folder")
    assert set(first) == SHAPES
    cache = tmp_path / "new" / "folder"
    for choice in (Choice("halves", "packed", 8), STOCK):
        force(cache, choice)
        model, again = model_and_cache(cache)
        assert again == dict.fromkeys(SHAPES, choice)
        assert any(isinstance(module, FastLinear) for module in model.modules()) == (choice != STOCK)


def test_one_models_choice_does_not_push_out_anothers(tmp_path: Path) -> None:
    """Fails if the file remembers only the last model: alternating two targets then raced both every time. It did."""
    model_and_cache(tmp_path)
    force(tmp_path, Choice("halves", "packed", 8))
    accelerate(tiny("Llama", num_hidden_layers=1), tmp_path)
    assert len(json.loads((tmp_path / CACHE_FILE).read_text())) == 2
    assert model_and_cache(tmp_path)[1] == dict.fromkeys(SHAPES, Choice("halves", "packed", 8))


def test_every_choice_says_how_it_came_about(tmp_path: Path) -> None:
    """Fails if a manifest cannot tell what the race measured, on a machine how busy, or the file drops it."""
    _, choices = model_and_cache(tmp_path)
    [(key, kept)] = json.loads((tmp_path / CACHE_FILE).read_text()).items()
    assert f"{torch.get_num_threads()} threads" in key and torch.__version__ in key
    for shape, choice in choices.items():
        assert choice.evidence is not None and choice.evidence.races == 1
        assert set(choice.evidence.us) == {"1", *map(str, BLOCK_ROWS)} and set(choice.evidence.us["1"]) == set(
            ONE_TOKEN
        )
        assert kept[shape] == choice.as_dict()


def test_a_choice_of_a_busy_machine_is_raced_again_and_then_final(tmp_path: Path) -> None:
    """Fails if what was picked beside other work stays forever, or a machine that is never quiet races in every run."""
    model_and_cache(tmp_path)
    for raced, again in ((1, 2), (2, 3), (3, 3)):
        force(tmp_path, Choice("linear", "linear", 0, Evidence({}, 1.5, raced)))
        assert {c.evidence.races for c in model_and_cache(tmp_path)[1].values() if c.evidence} == {again}
    force(tmp_path, Choice("halves", "packed", 8, Evidence({}, 0.1, 1)))
    assert model_and_cache(tmp_path)[1] == dict.fromkeys(SHAPES, Choice("halves", "packed", 8))


DAMAGE = (
    "",
    "{",
    "[]",
    "null",
    '{"KEY": 5}',
    '{"KEY": []}',
    '{"KEY": {"32 x 32": 3}}',
    '{"KEY": {"32 x 32": {}}}',
    '{"KEY": {"32 x 32": {"colour": "red"}}}',
    '{"KEY": {"32 x 32": {"block": "packed", "block_up_to_rows": "many"}}}',
    '{"KEY": {"32 x 32": {"evidence": {"us": {}, "other_cores": 0.1, "races": "many"}}}}',
    '{"KEY": {"32 x 32": {"evidence": 7}}}',
)
"""Cut, of another kind, incomplete, or of another version; KEY stands for this machine and model."""


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_raced_anew(damage: str, tmp_path: Path) -> None:
    """Fails if a cut or edited cache file ends the run; a missing shape and a wrong type did."""
    model_and_cache(tmp_path)
    [key] = json.loads((tmp_path / CACHE_FILE).read_text())
    (tmp_path / CACHE_FILE).write_text(damage.replace("KEY", key))
    model, choices = model_and_cache(tmp_path)
    assert set(choices) == SHAPES
    model(torch.tensor([[1, 2, 3]]))
    assert set(json.loads((tmp_path / CACHE_FILE).read_text())[key]) == SHAPES


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fails if a read-only cache folder ends the run; here a file stands where the folder should be."""
    (tmp_path / "taken").write_text("")
    with caplog.at_level(logging.WARNING):
        _, choices = model_and_cache(tmp_path / "taken" / "cache")
    assert set(choices) == SHAPES
    assert "cannot remember kernels" in caplog.text
    assert set(model_and_cache(tmp_path / "taken")[1]) == SHAPES
