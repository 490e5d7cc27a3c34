"""Small honest doubles: a toy target, a drafter that knows the answer, and turns of token ids.

Everything here is a real implementation of the interface it stands for, only tiny; nothing is patched.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

import torch
from torch import Tensor, nn

from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal, TargetInfo
from agentbench_spec.engine.loop import Turn
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import GREEDY, RowSampler, Sampling, choose, generator
from agentbench_spec.engine.session import Prefill, Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.errors import MeasurementError

__all__ = [
    "PlainDrafter",
    "Played",
    "ProfiledDrafter",
    "ScriptedDrafter",
    "every",
    "greedy_text",
    "play_turns",
    "row_sampler",
    "toy_model",
    "toy_target",
    "toy_turns",
]

TOY_POSITIONS = 4096
"""Context window of the toy model."""


def toy_model(
    *, vocab: int = 64, layers: int = 4, hidden: int = 32, dtype: torch.dtype = torch.float64, seed: int = 0
) -> nn.Module:
    """A tiny Llama (4 query heads over 2 key/value heads) with seeded weights; the global generator is untouched.

    The scales are such that greedy text is varied: strong attention, and an untied head.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=TOY_POSITIONS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        model: nn.Module = LlamaForCausalLM(config).to(dtype)
    fill_weights(model, seed)
    return model.eval().requires_grad_(False)


def fill_weights(model: nn.Module, seed: int) -> None:
    """Give every matrix of `model` seeded normal values and every norm ones."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.fill_(1.0)
                continue
            values = torch.randn(weight.shape, generator=draw, dtype=torch.float64)
            scale = 1.0 if "embed" in name else _GAIN.get(name.split(".")[-2], 1.5) / math.sqrt(weight.shape[1])
            weight.copy_(values * scale)


_GAIN = {"q_proj": 2.5, "k_proj": 2.5, "lm_head": 2.0}
"""Over 1 / sqrt(inputs): sharp attention makes the next token depend on the whole text."""


def toy_target(
    *,
    rows: int = 1,
    capacity: int = 512,
    vocab: int = 64,
    dtype: torch.dtype = torch.float64,
    layers: int = 4,
    hidden: int = 32,
    seed: int = 0,
) -> Target:
    """The engine's own Target around `toy_model`; same arguments, same weights."""
    model = toy_model(vocab=vocab, layers=layers, hidden=hidden, dtype=dtype, seed=seed)
    return Target(model, name="toy", capacity=capacity, rows=rows)


def toy_turns(*, vocab: int = 64, turns: int = 5, seed: int = 0) -> list[list[int]]:
    """Prompts (token ids) of an agent-like rollout: they grow, repeat phrases, and twice rewrite their history.

    The third prompt drops a piece of the previous reply, as a template does with old thoughts; the last one changes
    tokens far back.
    """
    draw = torch.Generator().manual_seed(seed)

    def tokens(count: int) -> list[int]:
        return torch.randint(vocab, (count,), generator=draw).tolist()

    phrases = [tokens(6) for _ in range(4)]
    prompt = tokens(9) + phrases[0] + phrases[1]
    prompts = [prompt]
    for turn in range(1, turns):
        kept = prompt[:-4] if turn == 2 else prompt
        if turn == turns - 1 and turn > 2:
            kept = kept[:11] + tokens(3) + kept[14:]
        prompt = kept + phrases[turn % 4] + tokens(5) + phrases[(turn + 1) % 4][:4] + phrases[turn % 4][:3]
        prompts.append(prompt)
    return prompts


class PlainDrafter(Drafter):
    """Proposes nothing: plain decoding, for comparison inside the core, which imports no drafter."""

    spec = DrafterSpec(name="plain", max_tokens=0, history_free=True)
    host_only = True

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        return Proposal(ids=anchor.new_empty((len(anchor), 0)))


def every(m: int) -> Callable[[int], bool]:
    """True at text positions divisible by m: an error pattern for ScriptedDrafter."""
    return lambda position: position % m == 0


class ScriptedDrafter(Drafter):
    """Knows how each row's text goes on, and errs where told, so that accepted counts are known beforehand."""

    spec = DrafterSpec(name="scripted", history_free=True)
    host_only = True

    def __init__(self, texts: Sequence[Sequence[int]], *, errs: Callable[[int], bool] = lambda position: False):
        """texts: the whole text of each row, prompt and continuation; errs: text positions that it guesses wrong."""
        self._texts, self._errs = [list(text) for text in texts], errs

    def open(self, target: TargetInfo, *, rows: int, capacity: int) -> None:
        self._vocab = target.vocab_size

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        guesses = [self._guess(row, at, k) for row, at in enumerate(position.tolist())]
        ids = torch.tensor([g + [0] * (k - len(g)) for g in guesses], dtype=torch.int64).view(len(guesses), k)
        return Proposal(ids=ids.to(anchor.device), count=torch.tensor([len(g) for g in guesses]))

    def _guess(self, row: int, at: int, k: int) -> list[int]:
        if at < 0:
            return []
        ahead = enumerate(self._texts[row][at + 1 : at + 1 + k], at + 1)
        return [(token + 1) % self._vocab if self._errs(p) else token for p, token in ahead]


class ProfiledDrafter(ScriptedDrafter):
    """Accepted as an acceptance profile says: knows the text, and errs at each draft as often as was measured."""

    def __init__(self, texts: Sequence[Sequence[int]], conditional: Sequence[float | None], *, seed: int = 0):
        """conditional: how often draft 1, 2, ... is accepted if those before it were; None, and beyond: never."""
        super().__init__(texts)
        self._conditional, self._seed = conditional, seed

    def _guess(self, row: int, at: int, k: int) -> list[int]:
        luck = random.Random(f"{self._seed} {row} {at}")
        held = takewhile(lambda rate: luck.random() < (rate or 0.0), self._conditional)
        right = sum(1 for _ in held)
        guess = super()._guess(row, at, k)
        return [token if i < right else (token + 1) % self._vocab for i, token in enumerate(guess)]


@dataclass(frozen=True, slots=True)
class Played:
    """One turn as `play_turns` ran it."""

    prefill: Prefill
    turns: dict[str, Turn]
    """Finished turn of each drafter."""
    state_bytes: dict[str, int]


def play_turns(
    target: Target,
    drafters: Mapping[str, Drafter],
    prompts: Sequence[Sequence[int]],
    *,
    k: int | Mapping[str, int],
    max_new_tokens: int = 24,
    chunk_tokens: int = 512,
    stop_ids: frozenset[int] = frozenset(),
    sampling: Sampling = GREEDY,
    seed: int = 0,
    row: int = 0,
    cold: bool = False,
) -> list[Played]:
    """Run token-level turns through a Session: one prefill per turn, then every (open) drafter from that state.

    k: drafts per round, for all or for each drafter by name; cold: forget everything before each turn.
    Raises the error of a drafter that failed.
    """
    session = Session(target, drafters, row=row, chunk_tokens=chunk_tokens)
    ks = dict.fromkeys(drafters, k) if isinstance(k, int) else k
    played = []
    for index, prompt in enumerate(prompts):
        if cold:
            session.reset()
        prefill = session.prefill(prompt, partial(_first, sampling, (seed, index, "target")))
        for error in session.failed.values():
            raise error
        done = Played(prefill, {}, {})
        for name in session.taking_part:
            sampler = row_sampler(target, sampling, seed, index, name)
            limits = Limits(k=ks[name], max_new_tokens=max_new_tokens, stop_ids=stop_ids)
            turn, _, state_bytes = session.decode(name, limits, sampler, Clock(target.info.device))
            done.turns[name], done.state_bytes[name] = turn, state_bytes
        played.append(done)
    return played


def row_sampler(target: Target, sampling: Sampling, *parts: object, rows: int | None = None) -> RowSampler:
    """A RowSampler with one generator per row (default: as many as the target has), seeded by `parts`."""
    rows = target.rows if rows is None else rows
    return RowSampler(sampling, [generator(target.info.device, *parts, row) for row in range(rows)])


def _first(sampling: Sampling, parts: tuple[object, ...], logits: Tensor) -> Tensor:
    return choose(logits, sampling, *parts)


def greedy_text(target: Target, prompt: Sequence[int], new_tokens: int, *, row: int = 0) -> list[int]:
    """`prompt` and its greedy continuation, decoded token by token on `row`, whose text is then forgotten.

    Raises MeasurementError on an empty prompt.
    """
    if not prompt:
        raise MeasurementError("greedy_text needs at least one prompt token")
    text, fed = list(prompt), 0
    for _ in range(new_tokens):
        ids = torch.tensor([text[fed:]], device=target.info.device)
        logits = target.evaluate(row, [fed], ids, keep=1).logits
        fed = len(text)
        target.commit(row, fed)
        text.append(int(logits[0, -1].argmax()))
    target.truncate(row, 0)
    return text
