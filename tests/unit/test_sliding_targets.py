"""Targets whose layers see only the newest positions: the stock model's logits, however the positions are fed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import transformers
from test_engine_equals_generate import engine
from test_engine_equals_generate import stock as generated
from test_target import stock
from tinymodels import VOCAB, prompts, tiny
from torch import nn

from agentbench_spec.engine.attention import causal_mask
from agentbench_spec.engine.spans import Board
from agentbench_spec.engine.steps.graphs import Graphs
from agentbench_spec.engine.steps.round_attention import RoundAttention
from agentbench_spec.engine.steps.static_target import Static
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.unsupported import refuse_unsupported
from agentbench_spec.errors import ConfigError

WINDOW = 9
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
HEADS = {"num_key_value_heads": 2, "head_dim": 8}
TARGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2 from layer 1 on": ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen3 by layer": ("Qwen3", {"use_sliding_window": True, "layer_types": MIXED}),
    "qwen3 everywhere": ("Qwen3", {"use_sliding_window": True, "max_window_layers": 0}),
    "mistral": ("Mistral", HEADS),
    "ministral": ("Ministral", {**HEADS, "layer_types": MIXED}),
    "phi3": ("Phi3", {"num_key_value_heads": 2}),
    "gemma2 without caps": (
        "Gemma2",
        {**HEADS, "layer_types": MIXED, "attn_logit_softcapping": None, "query_pre_attn_scalar": 8},
    ),
    "gemma3": ("Gemma3", {**HEADS, "layer_types": MIXED, "query_pre_attn_scalar": 8}),
    "olmo3": ("Olmo3", {"num_key_value_heads": 2, "layer_types": MIXED}),
    "cohere2": ("Cohere2", {**HEADS, "layer_types": MIXED}),
}


def sliding(name: str, window: int = WINDOW) -> nn.Module:
    family, options = TARGETS[name]
    if family == "Gemma3":
        return tiny("Gemma3", config_class="Gemma3TextConfig", sliding_window=window, **options)
    return tiny(family, sliding_window=window, **options)


def assert_close(ours: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(ours, wanted, atol=2e-5 * float(wanted.abs().max()), rtol=0)


@pytest.mark.parametrize("name", TARGETS)
def test_rows_below_at_and_beyond_the_window_equal_the_stock_model(name: str) -> None:
    """Fails if a window is off by one, left out, given to the wrong layers, or cut for a row that is shorter."""
    model = sliding(name)
    refuse_unsupported(model.config)
    target = Target(model, name=name, capacity=64, rows=4)
    target.self_check()
    texts, start = prompts(4, shortest=60, longest=61, seed=2), [3, WINDOW - 1, WINDOW, 41]
    for row, (text, at) in enumerate(zip(texts, start, strict=True)):
        for first in range(0, at, 7):  # prefill in chunks shorter than the window
            fed = target.evaluate(row, [first], torch.tensor([text[first : min(first + 7, at)]]))
            target.commit(row, min(first + 7, at))
        assert_close(fed.logits[0, -1], stock(model, text[:at]).logits[0, -1])
    rejected = torch.tensor([[(text[at] + 1) % VOCAB] * 6 for text, at in zip(texts, start, strict=True)])
    target.evaluate(0, start, rejected)
    for n in (1, 6, 4):
        block = torch.tensor([text[at : at + n] for text, at in zip(texts, start, strict=True)])
        logits = target.evaluate(0, start, block).logits
        for row, text in enumerate(texts):
            assert_close(logits[row], stock(model, text[: start[row] + n]).logits[0, -n:])
            start[row] += n - row % 2  # two rows keep all but the last position
            target.commit(row, start[row])


@pytest.mark.parametrize("name", TARGETS)
def test_static_steps_equal_the_stock_model(name: str) -> None:
    """Fails if a static step gives a layer another window than its own, alone or beside a row of another length."""
    model, texts, start = sliding(name), prompts(2, shortest=60, longest=61, seed=2), [WINDOW - 1, 41]
    static = Static(RoundAttention("masked"), Graphs(None), Board(torch.device("cpu")))
    target = Target(model, name=name, capacity=64, rows=2, static=static)
    target.self_check()
    for row, (text, at) in enumerate(zip(texts, start, strict=True)):
        target.evaluate(row, [0], torch.tensor([text[:at]]))
        target.commit(row, at)
    block = torch.tensor([text[at : at + 4] for text, at in zip(texts, start, strict=True)])
    with torch.inference_mode():
        logits = static.evaluate(target, torch.tensor(start), block, ()).logits
    for row, text in enumerate(texts):
        assert_close(logits[row], stock(model, text[: start[row] + 4]).logits[0, -4:])


@pytest.mark.parametrize("name", ["qwen3 by layer", "mistral"])
def test_one_row_far_beyond_the_window_equals_the_stock_model(name: str) -> None:
    """Fails if a long chunk, a single decoded token or a row cut back inside an older window reads other positions."""
    model, text = sliding(name), prompts(1, shortest=120, longest=121, seed=4)[0]
    target = Target(model, name=name, capacity=128)
    wanted = stock(model, text).logits[0]
    assert_close(target.evaluate(0, [0], torch.tensor([text[:50]])).logits[0], wanted[:50])  # longer than the window
    target.commit(0, 50)
    for at in range(50, 55):
        assert_close(target.evaluate(0, [at], torch.tensor([text[at : at + 1]])).logits[0], wanted[at : at + 1])
        target.commit(0, at + 1)
    target.truncate(0, 20)
    assert_close(target.evaluate(0, [20], torch.tensor([text[20:]])).logits[0], wanted[20:])


def test_reads_that_begin_at_multiples_as_on_a_gpu_equal_the_stock_model() -> None:
    """Fails if a read that begins before the window, or ends behind the text, lets a query see what lies there."""
    model, text = sliding("qwen3 by layer"), prompts(1, shortest=60, longest=61, seed=4)[0]
    target = Target(model, name="t", capacity=64, slack=5)
    target.cache.granule = 16
    wanted = stock(model, text).logits[0]
    ends = [5, 30, 31, 37, 60]
    for start, end in pairwise([0, *ends]):
        assert_close(target.evaluate(0, [start], torch.tensor([text[start:end]])).logits[0], wanted[start:end])
        target.commit(0, end)


@pytest.mark.parametrize("name", ["qwen3 by layer", "mistral"])
def test_text_equals_generate_across_the_window(name: str) -> None:
    """Fails if decoding over the window's edge, alone or in ragged rows, says another token than `generate`."""
    model, asked = sliding(name, window=24), prompts(8, longest=40)
    wanted = [generated(model, prompt, 16) for prompt in asked]
    for rows in (1, 4):
        target = Target(model, name=name, capacity=128, rows=rows)
        said = [engine(target, asked[i : i + rows], 7, 16) for i in range(0, 8, rows)]
        assert [output for batch in said for output in batch] == wanted, rows


def test_the_mask_of_a_window_by_hand() -> None:
    """Fails if a query sees one position too many or too few, or if the columns do not begin at `first`."""
    no = float("-inf")
    mask = causal_mask(torch.tensor([3, 2]), 2, 5, 1, torch.float32, first=1, window=2)
    assert mask[:, 0].tolist() == [[[no, 0, 0, no], [no, no, 0, 0]], [[0, 0, no, no], [no, 0, 0, no]]]


class Recording:
    """Notes the shapes of the masks that a model's layers get, through forward hooks."""

    def __init__(self, model: Any) -> None:
        self.widths: list[int | None] = []
        for layer in model.model.layers:
            layer.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _module: nn.Module, _inputs: Any, named: dict[str, Any]) -> None:
        mask = named["attention_mask"]
        self.widths.append(None if mask is None else mask.shape[-1])


def test_a_layer_with_a_window_reads_the_window_alone() -> None:
    """Fails if decoding far beyond a window still reads the whole text, or a full layer gets a mask in vain."""
    model = sliding("qwen3 by layer")
    target, seen = Target(model, name="t", capacity=64), Recording(model)
    target.evaluate(0, [0], torch.tensor([prompts(1, shortest=40, longest=41)[0]]))
    target.commit(0, 40)
    seen.widths.clear()
    target.evaluate(0, [40], torch.tensor([[5]]))
    assert seen.widths == [WINDOW, None, WINDOW]


def test_a_window_no_text_outgrows_changes_nothing() -> None:
    """Fails if a target whose capacity is below its window pays for masks on every decoded token."""
    model = sliding("mistral", window=80)
    target, seen = Target(model, name="t", capacity=16), Recording(model)
    target.evaluate(0, [0], torch.tensor([[5]]))
    assert seen.widths == [None] * 3


class Blind(transformers.MistralForCausalLM):
    """Has a window in its config that its own masks do not know."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        window, self.config.sliding_window = self.config.sliding_window, None
        try:
            return super().forward(*args, **kwargs)
        finally:
            self.config.sliding_window = window


def test_a_window_that_the_model_itself_does_not_apply_is_found_before_a_run() -> None:
    """Fails if the check's short text never reaches a long window, so that a wrong one shows in the numbers only."""
    model = sliding("mistral", window=40)
    blind = Blind(model.config)
    blind.load_state_dict(model.state_dict())
    with pytest.raises(ConfigError, match="differ from the model's own"):
        Target(blind.eval(), name="blind", capacity=64).self_check()
    assert blind.config.sliding_window == 40


def test_a_window_that_layer_types_deny_is_found_before_a_run() -> None:
    """Fails if a model slides over a long window although its layer types say it sees everything."""
    model = tiny("Mistral", sliding_window=40, layer_types=["full_attention"] * 3, **HEADS)
    with pytest.raises(ConfigError, match="differ from the model's own"):
        Target(model, name="t", capacity=64).self_check()


def test_a_state_that_is_not_one_vector_a_token_is_refused() -> None:
    """Fails if a model whose layers hand on several streams, such as Gemma 3n, gives drafters the wrong states."""
    model = tiny(
        "Gemma3n",
        config_class="Gemma3nTextConfig",
        sliding_window=WINDOW,
        intermediate_size=[48] * 3,
        layer_types=MIXED,
        activation_sparsity_pattern=[0.0] * 3,
        num_kv_shared_layers=0,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCAB,
        laurel_rank=4,
        **HEADS,
    )
    with pytest.raises(ConfigError, match=r"state of layer 0 is \[4, 1, 12, 32\]"):
        Target(model, name="t", capacity=64).self_check()
