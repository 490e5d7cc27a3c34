"""A row over the turns: what is kept, what runs again, and who is told of it."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from agentbench_spec.drafting import Drafter, DrafterSpec, Proposal, Span
from agentbench_spec.engine.rounds import Limits, Turn
from agentbench_spec.engine.sampling import GREEDY
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.errors import ConfigError, MeasurementError
from agentbench_spec.testing import (
    PlainDrafter,
    ScriptedDrafter,
    every,
    greedy_text,
    play_turns,
    row_sampler,
    toy_target,
    toy_turns,
)

PROMPT = toy_turns()[0]


def argmax(logits: Tensor) -> int:
    return int(logits.argmax())


class Notebook(Drafter):
    """Writes down, per row, what it was told: token, following token and state of every position."""

    def __init__(self, layers: tuple[int, ...] = (), scope: Literal["none", "last", "all"] = "none"):
        self.spec = DrafterSpec(name="notebook", hidden_layers=layers, hidden_scope=scope)
        self.pages: dict[int, list[tuple[int, int]]] = {}
        self.states: list[Tensor] = []
        self.cuts: list[int] = []

    def observe(self, span: Span) -> None:
        for b, row in enumerate(span.rows.tolist()):
            start, count = int(span.start[b]), int(span.count[b])
            page = self.pages.setdefault(row, [])
            assert start <= len(page), "a gap"
            pairs = zip(span.input_ids[b, :count].tolist(), span.next_ids[b, :count].tolist(), strict=True)
            page[start:] = list(pairs) if count else page[start:]
        if span.hidden is not None:
            self.states.append(span.hidden)

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        return Proposal(anchor.new_zeros(len(anchor), k))

    def truncate(self, row: int, length: int) -> None:
        self.cuts.append(length)
        del self.pages.setdefault(row, [])[length:]


def opened(drafter: Drafter, target: Target) -> Drafter:
    drafter.open(target.info, rows=target.rows, capacity=target.capacity)
    return drafter


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_drafters_hear_every_position_once_with_its_follower(chunk: int) -> None:
    """Fails if chunks overlap or leave gaps, or if the token after a chunk is not the next one of the prompt."""
    target, book = toy_target(), Notebook()
    session = Session(target, {"book": book}, chunk_tokens=chunk)
    for prompt in toy_turns():
        done = session.prefill(prompt, argmax)
        assert book.pages[0] == list(zip(prompt, [*prompt[1:], done.anchor], strict=True))
        assert target.lengths == [len(prompt)]
        assert done.new_tokens + done.reused_tokens == done.context_tokens == len(prompt)


def test_a_rewritten_history_is_cut_where_it_differs() -> None:
    """Fails if a kept position has another token, or another follower, than the new prompt says (field case 16)."""
    target, book = toy_target(), Notebook()
    session = Session(target, {"book": book})
    session.prefill(PROMPT, argmax)
    rewritten = [*PROMPT[:8], (PROMPT[8] + 1) % 64, *PROMPT[9:15]]
    done = session.prefill(rewritten, argmax)
    assert (done.reused_tokens, done.new_tokens) == (7, 8)  # position 7 is the same, but what follows it is not
    assert book.cuts[-1] == 7
    fresh = Session(toy_target(), {"plain": PlainDrafter()})
    assert done.anchor == fresh.prefill(rewritten, argmax).anchor


def test_the_same_prompt_again_runs_one_token() -> None:
    """Fails if a full hit runs nothing, so that there are no logits to choose the anchor from."""
    session = Session(toy_target(), {"plain": PlainDrafter()})
    first = session.prefill(PROMPT, argmax)
    again = session.prefill(PROMPT, argmax)
    assert (again.new_tokens, again.anchor) == (1, first.anchor)
    shorter = session.prefill(PROMPT[:6], argmax)
    assert (shorter.new_tokens, shorter.reused_tokens) == (1, 5)


def test_a_reply_that_the_history_repeats_is_found_again() -> None:
    """Fails if the anchor is forgotten: a prompt that goes on with it keeps the whole earlier prompt."""
    session = Session(toy_target(), {"plain": PlainDrafter()})
    anchor = session.prefill(PROMPT, argmax).anchor
    assert session.prefill([*PROMPT, anchor, 1, 2], argmax).reused_tokens == len(PROMPT)


def test_decoding_puts_the_state_back() -> None:
    """Fails if one drafter's continuation leaks into the next decoder's context or the next turn."""
    target, book = toy_target(), Notebook()
    session = Session(target, {"book": book, "plain": PlainDrafter()})
    session.prefill(PROMPT, argmax)
    before = list(book.pages[0])
    outputs = []
    for name in ("book", "plain", "book"):
        turn, _, _ = session.decode(name, Limits(3, 9), row_sampler(target, GREEDY), Clock(target.info.device))
        outputs.append(turn.output)
        assert target.lengths == [len(PROMPT)] and book.pages[0] == before
    assert outputs == [greedy_text(toy_target(), PROMPT, 9)[len(PROMPT) :]] * 3


def test_a_turn_that_is_ended_from_outside_leaves_nothing_behind() -> None:
    """Fails if what a turn said until then is in the context of the next one."""
    target, book = toy_target(), Notebook()
    session = Session(target, {"book": book})
    session.prefill(PROMPT, argmax)

    def leave(turn: Turn) -> None:
        if len(turn.rounds) == 2:
            raise MeasurementError("nobody listens")

    decoding = Limits(3, 9), row_sampler(target, GREEDY), Clock(target.info.device)
    with pytest.raises(MeasurementError, match="nobody listens"):
        session.decode("book", *decoding, heard=leave)
    assert len(book.pages[0]) > len(PROMPT), "the control: there was something to leave behind"
    longer = [*PROMPT, 5]
    done = session.prefill(longer, argmax)
    assert book.pages[0] == list(zip(longer, [*longer[1:], done.anchor], strict=True))
    turn, _, _ = session.decode("book", *decoding)
    assert [*longer, *turn.output] == greedy_text(toy_target(), longer, 9)


def test_cold_and_kept_prefixes_say_the_same() -> None:
    """Field case 28: fails if a kept prefix changes one token or one round."""
    target = toy_target()
    texts = [greedy_text(target, prompt, 30) for prompt in toy_turns()]
    played = []
    for cold in (False, True):
        for prompt, text in zip(toy_turns(), texts, strict=True):
            drafter = opened(ScriptedDrafter([text], errs=every(4)), target)
            prompts = [prompt] if cold else [*toy_turns()[: toy_turns().index(prompt)], prompt]
            played.append(play_turns(target, {"s": drafter}, prompts, k=3, max_new_tokens=15, cold=cold)[-1])
    kept, cold_ones = played[: len(texts)], played[len(texts) :]
    assert [p.turns["s"].output for p in kept] == [p.turns["s"].output for p in cold_ones]
    assert [p.turns["s"].rounds for p in kept] == [p.turns["s"].rounds for p in cold_ones]
    assert kept[1].prefill.reused_tokens > 0 == cold_ones[1].prefill.reused_tokens


@pytest.mark.parametrize("scope", ["all", "last"])
def test_states_are_those_of_the_layers_asked_for(scope: Literal["all", "last"]) -> None:
    """Fails if taps come in another order than the spec lists, or "last" is not the last committed position."""
    target, book = toy_target(), Notebook((3, -1, 1), scope)
    Session(target, {"book": book}, chunk_tokens=8).prefill(PROMPT, argmax)
    states = toy_target().evaluate(0, [0], torch.tensor([PROMPT]), taps=(3, -1, 1)).states
    wanted = torch.stack([states[layer] for layer in (3, -1, 1)], dim=2)
    if scope == "last":
        ends = [*range(7, len(PROMPT), 8), len(PROMPT) - 1]
        wanted = wanted[:, sorted(set(ends))]
    torch.testing.assert_close(torch.cat(book.states, dim=1), wanted)


@pytest.mark.parametrize("layer", [4, -2])
def test_a_layer_the_target_lacks_is_named_at_once(layer: int) -> None:
    """Fails if the run gets as far as a KeyError in the first prefill."""
    with pytest.raises(ConfigError, match=rf"'book' wants the states of layer {layer};.*0\.\.3"):
        Session(toy_target(), {"book": Notebook((layer,), "all")})


def test_an_empty_prompt_is_refused() -> None:
    """Fails if a turn without context is measured."""
    with pytest.raises(MeasurementError, match="at least one prompt token"):
        Session(toy_target(), {}).prefill([], argmax)


def test_sessions_share_a_target_row_by_row() -> None:
    """Fails if one row's prefill or decoding moves another row's text."""
    target, book = toy_target(rows=2), Notebook()
    prompts = [toy_turns()[1], toy_turns(seed=4)[0]]
    sessions = [Session(target, {"book": book}, row=row, chunk_tokens=7) for row in range(2)]
    for session, prompt in zip(sessions, prompts, strict=True):
        session.prefill(prompt, argmax)
    for row in (0, 1, 0):
        sampler = row_sampler(target, GREEDY)
        turn, _, _ = sessions[row].decode("book", Limits(2, 8), sampler, Clock(target.info.device))
        assert turn.output == greedy_text(toy_target(), prompts[row], 8)[len(prompts[row]) :]
        assert target.lengths == [len(prompt) for prompt in prompts]
        assert [len(book.pages[r]) for r in range(2)] == target.lengths


class Forgetful(Drafter):
    """Needs the newest 4 positions, holds 6 at most, and says after a cut what it needs and no longer holds."""

    spec = DrafterSpec(name="forgetful")

    def __init__(self) -> None:
        self.length, self.held = 0, dict[int, int]()
        self.seen: list[list[int | None]] = []

    def observe(self, span: Span) -> None:
        start, count = int(span.start[0]), int(span.count[0])
        if count:
            old = {at: token for at, token in self.held.items() if at < start}
            new = dict(enumerate(span.input_ids[0, :count].tolist(), start))
            self.held, self.length = dict(sorted({**old, **new}.items())[-6:]), start + count

    def propose(self, anchor: Tensor, position: Tensor, k: int) -> Proposal:
        self.seen.append([self.held.get(at) for at in range(self.length - 4, self.length)])
        return Proposal(anchor.new_zeros(len(anchor), k))

    def truncate(self, row: int, length: int) -> int | None:
        self.length = min(self.length, length)
        self.held = {at: token for at, token in self.held.items() if at < length}
        return next((at for at in range(max(self.length - 4, 0), self.length) if at not in self.held), None)


class Silent(Forgetful):
    """Does not say so."""

    def truncate(self, row: int, length: int) -> None:
        super().truncate(row, length)


@pytest.mark.parametrize(("drafter", "whole"), [(Forgetful, True), (Silent, False)])
@pytest.mark.parametrize("chunk", [2, 100])
def test_what_a_cut_took_is_shown_again(drafter: type[Forgetful], whole: bool, chunk: int) -> None:
    """Fails if a drafter goes on without positions it asked for, gets wrong ones, or others hear them twice.

    The second drafter does not ask: the control, which must be seen to lack them.
    """
    target, own, book = toy_target(), drafter(), Notebook()
    session = Session(target, {"own": own, "book": book}, chunk_tokens=chunk)
    rewritten = [*PROMPT[:8], (PROMPT[8] + 1) % 64, *PROMPT[9:11]]
    for prompt in (PROMPT, rewritten):
        done = session.prefill(prompt, argmax)
        assert book.pages[0] == list(zip(prompt, [*prompt[1:], done.anchor], strict=True))
        before = list(book.cuts)
        for _ in range(2):  # the second time from what the first one left
            own.seen.clear()
            session.decode("own", Limits(3, 9), row_sampler(target, GREEDY), Clock(target.info.device))
            first = own.seen[0]
        assert (first == list(prompt[-4:])) is whole
        assert target.lengths == [len(prompt)] and book.cuts == before
    assert done.reused_tokens == 7


class Fragile(Notebook):
    """Raises in the call named, from the n-th time on."""

    def __init__(self, call: str, after: int):
        super().__init__()
        self._call, self._left = call, after

    def _strain(self, call: str) -> None:
        if call == self._call:
            self._left -= 1
            if self._left < 0:
                raise RuntimeError(f"broken in {call}")

    def observe(self, span: Span) -> None:
        self._strain("observe")
        super().observe(span)

    def truncate(self, row: int, length: int) -> None:
        self._strain("truncate")
        super().truncate(row, length)


@pytest.mark.parametrize(("call", "after"), [("observe", 1), ("truncate", 1)])
def test_a_drafter_that_raises_while_ingesting_is_taken_out(call: str, after: int) -> None:
    """Fails if one drafter's fault stops the prefill that the others share."""
    target, sound = toy_target(), Notebook()
    session = Session(target, {"fragile": Fragile(call, after), "sound": sound}, chunk_tokens=8)
    done = session.prefill(PROMPT, argmax)
    assert session.taking_part == ["sound"]
    assert str(session.failed["fragile"]) == f"broken in {call}"
    assert len(sound.pages[0]) == len(PROMPT) and done.anchor == greedy_text(toy_target(), PROMPT, 1)[-1]


def test_a_failing_prefill_leaves_a_row_that_can_go_on() -> None:
    """Fails if a target's fault between two chunks leaves text and positions out of step."""
    target, book = toy_target(), Notebook()
    session = Session(target, {"book": book}, chunk_tokens=8)

    def refuse(logits: Tensor) -> int:
        raise MeasurementError("no choice")

    with pytest.raises(MeasurementError):
        session.prefill(PROMPT, refuse)
    done = session.prefill([*PROMPT, 5], argmax)
    assert done.reused_tokens == 0
    assert book.pages[0] == list(zip([*PROMPT, 5], [*PROMPT[1:], 5, done.anchor], strict=True))
    assert done.anchor == greedy_text(toy_target(), [*PROMPT, 5], 1)[-1]
