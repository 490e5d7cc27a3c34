"""The laws a drafter must keep, one small function each; which of them catches what is told in docs/conformance.md."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentbench_spec.conformance.bench import WHOLE, Bench, equals_fresh, same_answers, same_tensor, same_view, turns
from agentbench_spec.conformance.drive import Broken, Driver, NotApplicable, Seat
from agentbench_spec.engine.loop import Turn
from agentbench_spec.engine.lossless import TIE_TOLERANCE, compare
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import raise_interrupt
from agentbench_spec.testing import PlainDrafter, Played, play_turns

PLAIN = "plain decoding"


def lossless(bench: Bench) -> str:
    """At temperature 0 the output is what plain decoding says, for every k and every way to chunk the prompt."""
    target = bench.target_of(1)
    ties = rounds = 0
    expected: list[Played] = []
    for chunk in bench.chunks_tokens:
        played = play(bench, target, bench.ks, chunk)
        expected = expected or played
        for index, (turn, plain) in enumerate(zip(played, expected, strict=True)):
            for name, ours in turn.turns.items():
                where = f"{name}, chunks of {min(chunk, len(bench.prompts[index]))}, turn {index}"
                ties += _compare(target, bench.prompts[index], ours, plain.turns[PLAIN], where)
                rounds += len(ours.rounds) if name != PLAIN else 0
    return f"{rounds} rounds equal plain decoding" + (f", {ties} near ties apart" if ties else "")


def play(bench: Bench, target: Target, ks: Sequence[int], chunk: int) -> list[Played]:
    """The prompts, greedy, with plain decoding and with a drafter for each k, called "k <k>".

    An error of a drafter breaks the law at hand.
    """
    drafters = {PLAIN: Seat(PlainDrafter(), target, 1).drafter}
    drafters |= {f"k {k}": Seat(bench.make(), target, 1).drafter for k in ks}
    each = dict(zip(drafters, (0, *ks), strict=True))
    cap = bench.max_new_tokens
    try:
        return play_turns(target, drafters, bench.prompts, k=each, chunk_tokens=chunk, max_new_tokens=cap)
    except (Exception, SystemExit) as error:
        raise_interrupt(error)
        raise Broken(f"chunks of {chunk}, k in {[*ks]}: {type(error).__name__}: {error}") from error


def _compare(target: Target, prompt: Sequence[int], ours: Turn, plain: Turn, where: str) -> int:
    """1 if the outputs part at a near tie, 0 if they are equal."""
    if ours.output == plain.output:
        return 0
    target.truncate(0, 0)
    ids = torch.tensor([list(prompt)], device=target.info.device)
    target.evaluate(0, [0], ids, keep=1)
    target.commit(0, len(prompt))
    tolerance = TIE_TOLERANCE[target.info.dtype]
    verdict = compare(target, 0, len(prompt), ours.output, plain.output, tolerance)
    if verdict.kind == "tie":
        return 1
    raise Broken(f"{where}: output parts from plain decoding at token {verdict.at} (logit gap {verdict.margin})")


def incremental(bench: Bench) -> str:
    """After every turn and every round, state equals that of a fresh drafter which saw the same text at once."""
    compared = 0
    for chunk in bench.chunks_tokens:
        driver = bench.driver()
        for turn in turns(driver, bench.prompts, chunk):
            compared += equals_fresh(bench, driver, 0)
            start = len(driver.texts[0]) - 1
            for number, (k, matched) in enumerate(_outcomes(bench.k, turn)):
                driver.at(f"chunks of {chunk}, turn {turn}, round {number} of k {k} (at most {matched} drafts kept)")
                driver.round(k, [matched])
                if chunk != WHOLE or number == 0:
                    compared += equals_fresh(bench, driver, 0)
            if turn % 2:  # an engine that serves goes on from here; a replay throws the measured turn away
                driver.rewind(0, start)
    return f"equal in {compared} comparisons"


def _outcomes(k: int, turn: int) -> list[tuple[int, int]]:
    """(k, how many drafts are kept) of each round of a turn: partly, nobody drafted, none, all, one."""
    pattern = [(k, k // 2), (0, 0), (k, 0), (k, k), (k, 1), (1, 1), (k, k - 1), (0, 0), (k, 2)]
    at = 2 * turn % len(pattern)
    return (pattern[at:] + pattern[:at])[:4]


def no_trace(bench: Bench) -> str:
    """`propose` leaves no trace: asked again, after other questions, it answers the same and holds no more memory."""
    driver, asked = bench.rehearsal(), 0
    for turn in turns(driver, bench.prompts[:2], bench.chunks_tokens[-1]):
        for matched in (1, 0, bench.k):
            driver.round(bench.k, [matched])
            driver.at(f"turn {turn}, after a round")
            before, held, kept = driver.view(0, bench.k), driver.state_bytes(0), driver.snapshot(0)
            for k in bench.ks:
                driver.propose(k)
            same_answers(driver, 0, driver.view(0, bench.k), before, 0.0, "as it did when asked before")
            asked += len(before)
            if driver.state_bytes(0) != held:
                raise driver.broken(f"proposing changed state_bytes from {held} to {driver.state_bytes(0)}")
            for name, tensor in driver.snapshot(0).items():
                same_tensor(driver, name, tensor, kept.get(name), 0.0)
    return f"{asked} questions asked twice"


def parity(bench: Bench) -> str:
    """At every call, the proposal is that of the author's plain reference implementation."""
    if bench.reference is None:
        raise NotApplicable("no reference implementation was given (--reference module:factory)")
    reference = Seat(bench.reference(), bench.target_of(1), 1)
    driver = bench.driver(followers=[reference])
    compared = 0
    like = "as the reference does"
    for turn in turns(driver, bench.prompts, 7):
        same_view(driver, 0, reference, 0, bench, like)
        for number, matched in enumerate((bench.k // 2, 0, bench.k)):
            driver.at(f"turn {turn}, round {number}")
            driver.round(bench.k, [matched])
            same_view(driver, 0, reference, 0, bench, like)
            compared += 1
    return f"equal to the reference at {compared + len(bench.prompts)} points"


def acceptance_floor(bench: Bench) -> str:
    """Mean acceptance length on the target's own greedy text reaches the floor the author states."""
    if bench.floor is None:
        raise NotApplicable("no floor was given for this target (--floor; on the toy target none makes sense)")
    played = play(bench, bench.target_of(1), [bench.k], bench.chunks_tokens[-1])
    rounds = [each for turn in played for each in turn.turns[f"k {bench.k}"].rounds]
    if not rounds:
        raise NotApplicable("no turn had a round")
    tau = sum(each.emitted for each in rounds) / len(rounds)
    if tau < bench.floor:
        raise Broken(f"tau is {tau:.3f} over {len(rounds)} rounds at k {bench.k}, below the floor of {bench.floor}")
    return f"tau {tau:.3f} over {len(rounds)} rounds, floor {bench.floor}"


def honest_spec(bench: Bench) -> str:
    """The drafter keeps to its own spec: block length, layers, and memory that grows only if it says so."""
    driver = bench.rehearsal()
    spec = driver.drafter.spec
    _layers_make_sense(driver)
    held = []
    for _ in turns(driver, bench.prompts, 7):
        for k in {*bench.ks, 15}:
            driver.propose(k)
        driver.round(bench.k, [bench.k // 2])
        held.append(driver.state_bytes(0))
    if min(held) < 0:
        raise driver.broken(f"state_bytes is negative: {held}")
    if spec.history_free and len(set(held)) > 1:
        raise driver.broken(f"spec says history_free, but state_bytes grew with the text: {held}")
    return f"state_bytes {held[0]} to {held[-1]} over {len(held)} turns"


def _layers_make_sense(driver: Driver) -> None:
    spec, layers = driver.drafter.spec, driver.target.info.num_layers
    if (spec.hidden_scope == "none") != (not spec.hidden_layers):
        raise driver.broken(f"hidden_scope {spec.hidden_scope!r} with hidden_layers {spec.hidden_layers}")
    if outside := [layer for layer in spec.hidden_layers if not -1 <= layer < layers]:
        raise driver.broken(f"hidden_layers {outside} do not exist; the target has layers -1..{layers - 1}")
