"""The laws a drafter must keep, one small function each; which of them catches what is told in docs/conformance.md."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentbench_spec.conformance.bench import (
    WHOLE,
    Bench,
    equals_fresh,
    garbled,
    same_answers,
    same_tensor,
    same_view,
    turns,
)
from agentbench_spec.conformance.drive import Broken, Driver, Guess, NotApplicable, Seat, difference
from agentbench_spec.engine.loop import Turn
from agentbench_spec.engine.lossless import TIE_TOLERANCE, compare
from agentbench_spec.engine.target import Target
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
    for chunk in (each for each in bench.chunks_tokens if each > 1):
        driver = bench.driver()
        for turn in turns(driver, bench.prompts, chunk):
            compared += equals_fresh(bench, driver, 0)
            start = len(driver.texts[0]) - 1
            for number, matched in enumerate(_outcomes(bench.k, turn)):
                driver.at(f"chunks of {chunk}, turn {turn}, round {number} (at most {matched} drafts kept)")
                driver.round(bench.k, [matched])
                if chunk != WHOLE or number == 0:
                    compared += equals_fresh(bench, driver, 0)
            if turn % 2:  # an engine that serves goes on from here; a replay throws the measured turn away
                driver.rewind(0, start)
    return f"equal in {compared} comparisons"


def _outcomes(k: int, turn: int) -> list[int]:
    """How many drafts each round of a turn keeps: partly, none, all, one."""
    pattern = [k // 2, 0, k, 1, k - 1, 2]
    return [max(0, m) for m in (pattern[turn % 3 :] + pattern[: turn % 3])[:3]]


def no_trace(bench: Bench) -> str:
    """`propose` leaves no trace: asked again, after other questions, it answers the same and holds no more memory."""
    driver, asked = bench.driver(), 0
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


def rows_independent(bench: Bench) -> str:
    """Rows do not know of each other: four ragged rows say what four single runs say; idle rows stay as they are."""
    together = bench.driver(rows=4)
    prompts = [bench.prompts[i % len(bench.prompts)][i:] for i in range(4)]
    for row, prompt in enumerate(prompts):
        together.at(f"row {row}, prefill")
        together.prefill(row, prompt, 7)
    k = bench.k
    plan: list[list[int | None]] = [[0, 2, None, k], [1, None, k, 0], [k, 1, 3, None], [2, k, 0, 1], [None, 0, 1, 2]]
    said: list[list[Guess | None]] = [[] for _ in prompts]
    for number, matched in enumerate(plan):
        together.at(f"batch of 4, round {number}")
        idle = matched.index(None) if None in matched else None
        before = None if idle is None else together.view(idle, k)
        for row, guess in enumerate(together.round(k, matched)):
            said[row].append(guess)
        if idle is not None and before is not None:
            same_answers(together, idle, together.view(idle, k), before, bench.tolerance, "as it did before idling")
    for row, prompt in enumerate(prompts):
        _alone(bench, prompt, row, [matched[row] for matched in plan], said[row])
    return f"{len(plan)} rounds of 4 rows"


def _alone(bench: Bench, prompt: Sequence[int], row: int, plan: Sequence[int | None], said: list[Guess | None]) -> None:
    driver = bench.driver()
    driver.prefill(0, prompt, 7)
    for number, (matched, in_batch) in enumerate(zip(plan, said, strict=True)):
        if matched is None or in_batch is None:
            continue
        driver.at(f"row {row} run alone, round {number}")
        [guess] = driver.round(bench.k, [matched])
        if guess is not None and (broken := difference(in_batch, guess, bench.tolerance)):
            raise driver.broken(f"in a batch of 4, row {row}: {broken}, as it does alone")


def padding_ignored(bench: Bench) -> str:
    """Whatever stands beyond `count` changes nothing, and a count of 0 leaves a row alone."""
    target = bench.target_of(2)
    noisy = Seat(bench.make(), target, 2, alter=garbled(target.info.vocab_size))
    driver = bench.driver(rows=2, followers=[noisy])
    for row in range(2):
        driver.at(f"row {row}, prefill with garbage beyond count")
        driver.prefill(row, bench.prompts[row], 7)
        same_view(driver, row, noisy, row, bench, "as it does with garbage beyond count")
    plan: list[list[int | None]] = [[1, None], [0, 2], [None, 0], [bench.k, 1]]
    for number, matched in enumerate(plan):
        driver.at(f"round {number}, kept {matched}")
        driver.round(bench.k, matched)
        for row in range(2):
            same_view(driver, row, noisy, row, bench, "as it does with garbage beyond count")
    return f"{len(plan)} rounds with garbage beyond count"


def truncate_honoured(bench: Bench) -> str:
    """After a cut and new text, state equals fresh; after a cut to the turn's start, proposals are what they were."""
    driver, chunk = bench.driver(), bench.chunks_tokens[-1]
    prompt = bench.prompts[-1]
    for length in (len(prompt) - 1, len(prompt) // 2, 8, 1, 0):
        driver.at(f"prefill before the cut to {length}")
        driver.prefill(0, prompt, chunk)
        _back_to_start(bench, driver)
        driver.at(f"cut to {length}")
        changed = (prompt[length] + 1) % driver.target.info.vocab_size
        driver.prefill(0, [*prompt[:length], changed, *prompt[: length // 2 + 3]], chunk)
        equals_fresh(bench, driver, 0)
    return "5 rewrites of history, 5 continuations thrown away"


def _back_to_start(bench: Bench, driver: Driver) -> None:
    """Run a few rounds and throw them away, as a measured turn is; a cut that cuts nothing must do nothing, too."""
    start, before = len(driver.texts[0]) - 1, driver.view(0, bench.k, ())
    driver.truncate(0, start)
    same_answers(driver, 0, driver.view(0, bench.k, ()), before, bench.tolerance, "as before a cut at the text's end")
    for matched in (1, bench.k, 0):
        driver.round(bench.k, [matched])
    driver.rewind(0, start)
    like = "as before the rounds that truncate threw away"
    same_answers(driver, 0, driver.view(0, bench.k, ()), before, bench.tolerance, like)


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
    driver = bench.driver()
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
