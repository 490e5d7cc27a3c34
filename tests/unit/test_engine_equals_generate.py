"""The engine's greedy text is that of transformers' own `generate`, whatever the batch and the prefill chunks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tinymodels import FAMILIES, prompts, tiny
from torch import nn

from agentbench_spec.engine.embedded import NAME as EMBEDDED
from agentbench_spec.engine.loading import LoadedModel, load
from agentbench_spec.engine.loop import Turn, decode
from agentbench_spec.engine.lossless import TIE_TOLERANCE, gap
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.errors import ConfigError
from agentbench_spec.rollout import Message, Rollout
from agentbench_spec.rollouts.render import Renderer
from agentbench_spec.testing import PlainDrafter, row_sampler

NEW_TOKENS = 16
CHUNKS = (1, 7, 512)


def stock(model: nn.Module, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """What `generate` says after `prompt`, by the stock attention."""
    before = model.config._attn_implementation
    model.config._attn_implementation = "sdpa"
    ids = torch.tensor([list(prompt)])
    try:
        said = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, do_sample=False, pad_token_id=0
        )
    finally:
        model.config._attn_implementation = before
    return said[0, len(prompt) :].tolist()


def engine(
    target: Target, batch: Sequence[Sequence[int]], chunk: int, new_tokens: int, stop: frozenset[int] = frozenset()
) -> list[list[int]]:
    """Prefill each prompt on its row in chunks, then decode all rows together in the measured loop."""
    turns: list[Turn | None] = [None] * target.rows
    for row, prompt in enumerate(batch):
        for start in range(0, len(prompt), chunk):
            fed = torch.tensor([prompt[start : start + chunk]])
            logits = target.evaluate(row, [start], fed, keep=1).logits
            target.commit(row, start + fed.shape[1])
        turns[row] = Turn(position=len(prompt), output=[int(logits[0, -1].argmax())])
    sampler = row_sampler(target, GREEDY)
    decode(target, PlainDrafter(), turns, Limits(0, new_tokens, stop), sampler, Clock(target.info.device))
    for row in range(target.rows):
        target.truncate(row, 0)
    return [turn.output for turn in turns if turn is not None]


@pytest.mark.parametrize("family", FAMILIES)
def test_twenty_prompts_equal_generate(family: str) -> None:
    """Fails if cache, mask, rotary positions, grouped heads, biases, norms, chunks or ragged rows change one token."""
    model, asked = tiny(family, num_hidden_layers=2), prompts(20, longest=40)
    wanted = [stock(model, prompt, NEW_TOKENS) for prompt in asked]
    assert len({token for said in wanted for token in said}) > 40, "the text is too dull to show a fault"
    for rows in (1, 4):
        target = Target(model, name=family, capacity=128, rows=rows)
        for chunk in CHUNKS:
            said = [engine(target, asked[i : i + rows], chunk, NEW_TOKENS) for i in range(0, 20, rows)]
            assert [output for batch in said for output in batch] == wanted, f"batch {rows}, chunks of {chunk}"


def test_a_batch_with_empty_rows_equals_generate() -> None:
    """Fails if rows that never held text, such as the last rows of a short batch, disturb the others."""
    model, asked = tiny("Llama"), prompts(2, seed=5)
    target = Target(model, name="Llama", capacity=128, rows=4)
    assert engine(target, asked, 16, NEW_TOKENS) == [stock(model, prompt, NEW_TOKENS) for prompt in asked]


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    try:
        return load(EMBEDDED)
    except ConfigError as error:
        pytest.skip(f"the embedded model is not installed: {error}")


def real_prompts(loaded: LoadedModel, count: int) -> list[list[int]]:
    """Chat prompts of user messages of the shipped BFCL rollouts."""
    from agentbench_spec.plugins import load_workload

    renderer = Renderer(loaded.tokenizer)
    texts = dict.fromkeys(
        message.content
        for rollout in load_workload("bfcl_v3", subset="shipped").rollouts()
        for message in rollout.messages
        if message.role == "user" and 20 < len(message.content) < 600
    )
    asked = [
        Rollout(id=f"p{i}", workload="w", messages=(Message(role="user", content=t),)) for i, t in enumerate(texts)
    ]
    return [renderer.prompt(rollout, 1) for rollout in asked[:count]]


@pytest.mark.slow
def test_twenty_real_prompts_on_smollm2_equal_generate(smollm2: LoadedModel) -> None:
    """Fails if a real model's text changes by more than a near tie as the suite defines it."""
    model, asked = smollm2.model, real_prompts(smollm2, 20)
    assert len(asked) == 20
    stop = frozenset([int(smollm2.tokenizer.eos_token_id)])
    wanted = [stock(model, prompt, 32) for prompt in asked]
    for rows, chunk in ((1, 512), (1, 7), (4, 512)):
        target = Target(model, name=EMBEDDED, capacity=512, rows=rows)
        for i in range(0, 20, rows):
            said = engine(target, asked[i : i + rows], chunk, 32, stop)
            for prompt, ours, theirs in zip(asked[i : i + rows], said, wanted[i : i + rows], strict=True):
                assert_equal_or_tied(model, prompt, ours, theirs)


def assert_equal_or_tied(model: nn.Module, prompt: list[int], ours: list[int], theirs: list[int]) -> None:
    """Equal, or different first where the stock model's two top logits are within the tie tolerance."""
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if at is None:
        assert len(ours) == len(theirs)
        return
    logits = model(torch.tensor([prompt + theirs[:at]]), use_cache=False).logits[0, -1]
    assert gap(logits, ours[at], theirs[at]) <= TIE_TOLERANCE[torch.float32], f"differs at {at}"
