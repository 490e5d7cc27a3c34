"""The packed training forward is the drafter's own inference, anchor by anchor, and the checkpoint carries it over.

For each drafter: a trainee with random weights is written in its published layout and loaded as a user would load it.
The drafter observes the text up to an anchor and proposes, while its sampler "draws" the text's own tokens. The logits
it hands to the sampler must be those of the packed forward over all anchors at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import trainkit as kit
from torch import Tensor

from agentbench_spec.drafting import Span
from agentbench_spec.plugins import load_drafter
from agentbench_spec.train.anchors import valid_anchors
from agentbench_spec.train.interface import Trainee
from agentbench_spec.train.step import Example, example_of


class FollowsText:
    """A sampler that draws the tokens of a text, and keeps the logits it was shown."""

    greedy = False

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = iter(tokens)
        self.seen: list[Tensor] = []

    def draw(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        self.seen.append(logits[0])
        return torch.tensor([next(self._tokens)]), logits.softmax(-1)


CASES: list[tuple[str, dict[str, Any]]] = [
    ("dflash", {}),
    ("dflash", {"layout": "deepspec", "block_size": 4}),
    ("dspark", {}),
    ("dspark", {"head": "gated", "tables": False}),
    ("dspark", {"head": "rnn"}),
    ("dlite", {"single_stage": True}),
    ("dlite", {"single_stage": True, "group": 2}),
    ("dlite", {"single_stage": True, "group": 3, "slots": 4}),
    ("dlite", {"role": "teacher"}),
    ("dlite", {"role": "teacher", "group": 3, "window": 4}),
    ("eagle3", {}),
    ("eagle3", {"draft_vocab_size": 64}),
]


@pytest.fixture(scope="module")
def target() -> Any:
    return kit.small_target()


def prepared(name: str, options: dict[str, Any], target: Any) -> tuple[Trainee, Example, Tensor]:
    """A trainee with stirred weights, entered into its last stage; an example; all its anchors."""
    texts = kit.random_texts(1)
    trainee = kit.make_trainee(name, target, texts, **options)
    kit.stir(trainee)
    phase = trainee.phases[-1]
    trainee.enter(phase, phase.stages[-1], fresh=True)
    data = kit.online(target, trainee, texts)
    example = example_of(texts[0], data.features[0], trainee, target.info.device, torch.float64)
    return trainee, example, valid_anchors(example.supervised, trainee.k)


def inferred(drafter: Any, target: Any, ids: list[int], anchor: int, k: int) -> Tensor:
    """Logits [k, V] of the loaded drafter at one anchor, fed the text in two chunks."""
    drafter.open(target.info, rows=1, capacity=64)
    for start, stop in ((0, anchor // 2), (anchor // 2, anchor)):
        if stop > start:
            drafter.observe(span(drafter, target, ids, start, stop))
    drafter.sampler = FollowsText(ids[anchor + 1 : anchor + 1 + k])
    drafter.propose(torch.tensor([ids[anchor]]), torch.tensor([anchor]), k)
    return torch.stack(drafter.sampler.seen)


def span(drafter: Any, target: Any, ids: list[int], start: int, stop: int) -> Span:
    """What the engine would hand over for positions start .. stop - 1."""
    target.truncate(0, 0)
    found = target.evaluate(0, [0], torch.tensor([ids[:stop]]), taps=drafter.spec.hidden_layers)
    hidden = torch.stack([found.states[layer] for layer in drafter.spec.hidden_layers], 2)[:, start:]
    return Span(
        rows=torch.tensor([0]),
        start=torch.tensor([start]),
        count=torch.tensor([stop - start]),
        input_ids=torch.tensor([ids[start:stop]]),
        next_ids=torch.tensor([ids[start + 1 : stop + 1]]),
        hidden=hidden if drafter.spec.hidden_scope == "all" else hidden[:, -1:],
    )


@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_packed_forward_is_inference(name: str, options: dict[str, Any], target: Any, tmp_path: Path) -> None:
    """Fails if a position, a mask, a label offset, a normalisation or a tensor name differs between the two."""
    trainee, example, anchors = prepared(name, options, target)
    with torch.no_grad():
        prediction = trainee.predict(example.sample, anchors)
        packed = prediction.logits(prediction.states.flatten(0, 1)).unflatten(0, (len(anchors), trainee.k))
    trainee.write(tmp_path, trainee.phases[-1], trainee.state_dict())
    extra = {"verification": "rejection"} if name in ("dlite", "dflash") else {}
    loaded_as = "dlite_window" if "role" in options else name
    drafter = load_drafter(loaded_as, checkpoint=str(tmp_path), **extra)
    kept = trainee.draft_ids if trainee.draft_ids is not None else torch.arange(kit.VOCAB)
    ids = example.sample.input_ids.tolist()
    assert anchors[0] == 1 and len(anchors) > 20
    for row in (0, 1, len(anchors) // 2, len(anchors) - 1):
        alone = inferred(drafter, target, ids, int(anchors[row]), trainee.k)
        torch.testing.assert_close(packed[row], alone[:, kept], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["dflash", "dspark", "dlite", "eagle3"])
def test_blocks_do_not_see_each_other(name: str, target: Any) -> None:
    """Fails if a block reads another block of the same forward: one anchor alone must give the same states."""
    trainee, example, anchors = prepared(name, {}, target)
    with torch.no_grad():
        together = trainee.predict(example.sample, anchors).states
        for row in (0, 7):
            alone = trainee.predict(example.sample, anchors[row : row + 1]).states
            torch.testing.assert_close(together[row], alone[0], rtol=1e-10, atol=1e-10)


def test_no_drafter_sees_what_comes_after_its_anchor(target: Any) -> None:
    """Fails if features at or after the anchor, or tokens of the future, leak into a prediction."""
    for name in kit.SMALL:
        trainee, example, anchors = prepared(name, {}, target)
        at = int(anchors[5])
        states = example.sample.states.clone()
        states[at:] = 7.0
        ids = example.sample.input_ids.clone()
        ids[at + 1 :] = 5
        changed = type(example.sample)(ids, states)
        with torch.no_grad():
            before = trainee.predict(example.sample, anchors[5:6])
            after = trainee.predict(changed, anchors[5:6])
            first = [p.logits(p.states[:, 0]) for p in (before, after)]
        torch.testing.assert_close(*first, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_near_context_is_all_a_block_sees_in_that_stage(name: str, target: Any) -> None:
    """Fails if the cut is off by one, stays on in the last stage, or shifts positions: the nearest 5 states count."""
    trainee = kit.make_trainee(name, target, kit.random_texts(1), near=5)
    kit.stir(trainee)
    text = kit.random_texts(1)[0]
    example = example_of(
        text, kit.online(target, trainee, [text]).features[0], trainee, target.info.device, torch.float64
    )
    anchors = torch.tensor([12])

    def states(first: int, stop: int) -> Tensor:
        changed = example.sample.states.clone()
        changed[first:stop] = 7.0
        with torch.no_grad():
            return trainee.predict(type(example.sample)(example.sample.input_ids, changed), anchors).states

    near, whole = trainee.phases[0].stages
    trainee.enter(trainee.phases[0], near, fresh=True)
    assert torch.equal(states(0, 7), states(0, 0)) and not torch.allclose(states(7, 8), states(0, 0))
    cut = states(0, 0)
    trainee.enter(trainee.phases[0], whole, fresh=False)
    assert not torch.allclose(states(0, 7), states(0, 0))
    assert not torch.allclose(states(0, 0), cut)
