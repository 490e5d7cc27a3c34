"""The target against the stock model: logits and states, however the positions are fed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from tinymodels import FAMILIES, VOCAB, prompts, tiny
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaForCausalLM

from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import EMBEDDING, Target
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.testing import PlainDrafter

TEXT = prompts(1, shortest=48, longest=49, seed=3)[0]


@torch.no_grad()
def stock(model: nn.Module, ids: list[int], **options: Any) -> Any:
    """The stock model's own forward over the whole text."""
    before = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    try:
        return model(input_ids=torch.tensor([ids]), use_cache=False, **options)
    finally:
        model.config._attn_implementation = before


class PositionsFed:
    """Counts the tokens that a model embeds, through a forward hook."""

    def __init__(self, model: nn.Module):
        self.count = 0
        model.get_input_embeddings().register_forward_hook(self._add)  # type: ignore[operator]

    def _add(self, _module: nn.Module, inputs: tuple[Tensor], _output: Tensor) -> None:
        self.count += inputs[0].numel()


@pytest.mark.parametrize("family", FAMILIES)
def test_turn_by_turn_equals_at_once_and_feeds_only_new_tokens(family: str) -> None:
    """Fails if a kept prefix changes the logits, or if a turn runs tokens that an earlier turn has run."""
    model = tiny(family)
    fed = PositionsFed(model)
    session = Session(Target(model, name=family, capacity=64), {"plain": PlainDrafter()}, chunk_tokens=5)
    seen: list[Tensor] = []

    def choose(logits: Tensor) -> int:
        seen.append(logits)
        return (int(logits.argmax()) + 1) % VOCAB  # never what follows: the text goes its own way

    ends, reused = [9, 10, 23, 24, 48], 0
    for end in ends:
        fed.count = 0
        done = session.prefill(TEXT[:end], choose)
        assert fed.count == done.new_tokens == end - reused
        torch.testing.assert_close(seen[-1], stock(model, TEXT[:end]).logits[0, -1], atol=1e-4, rtol=0)
        # the last position runs again: what follows it has changed from the anchor to the record
        reused = end - 1
    assert all(not torch.allclose(a, b, atol=1e-2) for a, b in pairwise(seen))


@pytest.mark.parametrize("family", FAMILIES)
def test_ragged_rows_blocks_and_overwritten_rejections_equal_the_stock_model(family: str) -> None:
    """Fails if a rejected token leaves a trace, or if ragged rows see each other or the wrong positions."""
    model = tiny(family)
    target = Target(model, name=family, capacity=64, rows=3)
    texts = [TEXT[:40], TEXT[7:37], TEXT[20:48]]
    start = [11, 3, 17]
    for row, (text, at) in enumerate(zip(texts, start, strict=True)):
        target.evaluate(row, [0], torch.tensor([text[:at]]))
        target.commit(row, at)
    wrong = torch.tensor([[(text[at] + 1) % VOCAB] * 6 for text, at in zip(texts, start, strict=True)])
    target.evaluate(0, start, wrong)  # all rejected: nothing is committed
    for n in (1, 6, 4):
        block = torch.tensor([text[at : at + n] for text, at in zip(texts, start, strict=True)])
        logits = target.evaluate(0, start, block).logits
        for row, text in enumerate(texts):
            wanted = stock(model, text[: start[row] + n]).logits[0, -n:]
            torch.testing.assert_close(logits[row], wanted, atol=1e-5 * float(wanted.abs().max()), rtol=0)
            start[row] += n - row % 2  # one row keeps all but the last position
            target.commit(row, start[row])


@pytest.mark.parametrize("family", FAMILIES)
def test_taps_are_the_stock_hidden_states(family: str) -> None:
    """Fails if a layer id is off by one, or if the last one is taken before the final norm."""
    model = tiny(family, dtype=torch.float64)
    target = Target(model, name=family, capacity=64)
    hidden = stock(model, TEXT, output_hidden_states=True).hidden_states
    assert len(hidden) == 4  # transformers: embedding, then each layer, the last one normed
    target.evaluate(0, [0], torch.tensor([TEXT[:30]]))
    target.commit(0, 30)
    states = target.evaluate(0, [30], torch.tensor([TEXT[30:]]), taps=(2, EMBEDDING, 0, 1)).states
    assert sorted(states) == [-1, 0, 1, 2]
    for layer, state in states.items():
        wanted = hidden[layer + 1][:, 30:]  # stock norms and softmax are float32 whatever the model is
        torch.testing.assert_close(state, wanted, atol=1e-5 * float(wanted.abs().max()), rtol=0)


def test_only_wanted_layers_are_kept_and_only_while_wanted() -> None:
    """Fails if states pile up: a hook that keeps what nobody asked for holds memory through the run."""
    model = tiny("Llama")
    first, second = (Target(model, name=name, capacity=64) for name in ("a", "b"))
    ids = torch.tensor([TEXT[:5]])
    assert list(first.evaluate(0, [0], ids, taps=(1,)).states) == [1]
    assert second.evaluate(0, [0], ids).states == {}
    assert first.evaluate(0, [0], ids).states == {}


def test_keep_limits_the_logits() -> None:
    """Fails if prefill computes the vocabulary for every position, or for the wrong ones."""
    target = Target(tiny("Llama"), name="t", capacity=64)
    ids = torch.tensor([TEXT[:6]])
    every = target.evaluate(0, [0], ids).logits
    assert every.shape == (1, 6, VOCAB)
    torch.testing.assert_close(target.evaluate(0, [0], ids, keep=2).logits, every[:, -2:])


def test_gaps_and_texts_beyond_the_capacity_are_refused() -> None:
    """Fails if the target attends to positions nobody ran, or writes past its buffer."""
    target = Target(tiny("Llama"), name="t", capacity=16, rows=2, slack=4)
    target.evaluate(0, [0], torch.tensor([TEXT[:6]]))
    with pytest.raises(MeasurementError, match="row 0 has 0 positions; position 6 would leave a gap"):
        target.evaluate(0, [6], torch.tensor([[1]]))  # evaluated, but never committed
    target.commit(0, 6)
    with pytest.raises(MeasurementError, match="row 1 has 0 positions"):
        target.evaluate(0, [6, 1], torch.tensor([[1], [1]]))
    target.evaluate(0, [6], torch.tensor([TEXT[:14]]))  # slack: a block may touch 4 positions more
    with pytest.raises(MeasurementError, match="beyond the cache's capacity of 20"):
        target.evaluate(0, [6], torch.tensor([TEXT[:15]]))
    target.truncate(0, 3)
    target.truncate(0, 5)  # forgets nothing that is not there
    assert target.lengths == [3, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_self_check_passes_what_is_supported(family: str) -> None:
    """Fails if the check refuses a sound model, needs more capacity than there is, or leaves a trace."""
    target = Target(tiny(family), name=family, capacity=16, slack=1)
    target.self_check()
    assert target.lengths == [0]
    assert target.model.config._attn_implementation == "agentbench_slots"


class SoftCapped(LlamaAttention):
    """Asks its attention function for a soft cap."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, softcap=30.0, **kwargs)


class Forgetful(LlamaAttention):
    """Never uses the cache it is given."""

    def forward(self, *args: Any, cache: Any = None, **kwargs: Any) -> Any:
        return super().forward(*args, cache=None, **kwargs)


class TokenShift(LlamaAttention):
    """Mixes each position with the one before it in the same forward, as recurrent models do."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        shifted = torch.cat([torch.zeros_like(hidden_states[:, :1]), hidden_states[:, :-1]], dim=1)
        return super().forward(hidden_states + shifted, *args, **kwargs)


def with_attention(kind: type[LlamaAttention]) -> LlamaForCausalLM:
    model: Any = tiny("Llama")
    for index, layer in enumerate(model.model.layers):
        sound = layer.self_attn
        layer.self_attn = kind(model.config, index)
        layer.self_attn.load_state_dict(sound.state_dict())
    return model.eval()


@pytest.mark.parametrize(
    ("kind", "why"),
    [(SoftCapped, "softcap"), (Forgetful, "does not run on the engine"), (TokenShift, "differ from the model's own")],
)
def test_self_check_catches_a_broken_attention(kind: type[LlamaAttention], why: str) -> None:
    """Fails if an architecture that the engine serves wrongly gets as far as a measurement."""
    with pytest.raises(ConfigError, match=why):
        Target(with_attention(kind), name="broken", capacity=64).self_check()


def test_a_model_of_another_layout_is_refused() -> None:
    """Fails if a model whose layers cannot be tapped is taken and dies later with an AttributeError."""
    with pytest.raises(ConfigError, match=r"decoder\.layers and decoder\.norm"):
        Target(tiny("GPTNeoX"), name="neox", capacity=64)


def test_weight_bytes_count_what_a_step_reads() -> None:
    """Fails if a tied head is counted twice, or an untied embedding table, of which a step reads one row, at all."""
    tied, untied = (tiny("Llama", tie_word_embeddings=tie) for tie in (True, False))
    reads = [Target(model, name="t", capacity=16).weight_bytes for model in (tied, untied)]
    assert reads[0] == reads[1] == sum(p.numel() * 4 for p in tied.parameters())
