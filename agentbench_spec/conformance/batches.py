"""Laws about rows: several at once, idle ones, padding, and rows that are emptied and filled while others decode."""

from __future__ import annotations

from collections.abc import Sequence

from agentbench_spec.conformance.bench import Bench, equals_fresh, garbled, same_answers, same_view
from agentbench_spec.conformance.drive import DRAWN, Driver, Seat

Plan = list[int | None]
"""Drafts kept per row; None: the row is idle."""


def rows_independent(bench: Bench) -> str:
    """Rows do not know of each other: four ragged rows say what four single runs say; idle rows stay as they are."""
    together, k = bench.rehearsal(rows=4), bench.k
    prompts = [bench.prompts[i % len(bench.prompts)][i:] for i in range(4)]
    for row, prompt in enumerate(prompts):
        together.at(f"row {row}, prefill")
        together.prefill(row, prompt, 7)
    plans: list[Plan] = [[0, 2, None, k], [1, None, k, 0], [k, 1, 3, None], [2, k, 0, 1], [None, 0, 1, 2]]
    for number, matched in enumerate(plans):
        together.at(f"batch of 4, round {number}")
        idle = matched.index(None) if None in matched else None
        before = None if idle is None else together.view(idle, k)
        _round(bench, together, k, matched)
        if idle is not None and before is not None:
            same_answers(together, idle, together.view(idle, k), before, bench.tolerance, "as it did before idling")
    return f"{len(plans)} rounds of 4 rows"


def rows_refilled(bench: Bench) -> str:
    """A row emptied and filled anew while others decode knows nothing of its former text, and disturbs no other row."""
    driver, k = bench.rehearsal(rows=3), bench.k
    texts = [list(prompt) for prompt in bench.prompts]
    first, short, longest = texts[1], texts[0][3:], texts[-1]
    alike = [*texts[0][:2][::-1], *first[2:]]  # as long as the row's former text, with the same tail
    refills = 0

    def fill(row: int, prompt: Sequence[int], chunk: int, why: str) -> None:
        nonlocal refills
        driver.at(f"row {row} filled with {len(prompt)} tokens in chunks of {chunk} while others decode: {why}")
        driver.prefill(row, prompt, chunk)
        _all_fresh(bench, driver)
        refills += 1

    def decode(plans: Sequence[Plan], what: str) -> None:
        for number, matched in enumerate(plans):
            driver.at(f"{what}, round {number}, kept {matched}")
            _round(bench, driver, k, matched)

    def leave(row: int) -> None:
        driver.at(f"row {row} emptied")
        driver.empty(row)

    fill(0, first, 7, "its first text")
    decode([[1, None, None], [0, None, None]], "one row busy, two empty")
    fill(2, longest, 7, "its first text")
    fill(1, texts[2], 3, "its first text")
    decode([[k, 0, 1], [0, 1, k]], "all rows busy")
    leave(1)
    decode([[0, None, 2], [1, None, 0]], "row 1 empty")
    fill(1, short, 3, "shorter than its former text")
    decode([[None, 1, 0], [1, k, 1]], "row 1 refilled")
    leave(0)
    leave(2)
    fill(2, [*short, *short], 64, "longer than its former text")
    decode([[None, 0, k], [None, 1, 0]], "row 0 empty")
    fill(0, alike, 7, "same length and tail as its former text")
    fill(1, [*short, *longest], 5, "the next turn of its conversation")
    decode([[1, 1, 1], [k, 0, None], [0, None, k]], "all rows refilled")
    return f"{refills} fillings of 3 rows while others decode"


def _round(bench: Bench, driver: Driver, k: int, matched: Plan) -> None:
    """A round whose rows must say together what each says alone, and end as if each had always been alone."""
    busy = [row for row, kept in enumerate(matched) if kept is not None and driver.texts[row]]
    alone = {row: driver.probe(row, driver.texts[row][-1:], k, DRAWN) for row in busy}
    guesses = driver.propose(k, idle=[row for row in range(driver.rows) if row not in busy], sampling=DRAWN)
    for row in busy:
        like = f"as row {row} does when asked alone and not with rows {[other for other in busy if other != row]}"
        said = guesses[row]
        if said is not None:
            same_answers(driver, row, [(f"k {driver.asked(k)}, its anchor", said)], alone[row], bench.tolerance, like)
    driver.round(k, matched)
    _all_fresh(bench, driver)


def _all_fresh(bench: Bench, driver: Driver) -> None:
    for row in range(driver.rows):
        if driver.texts[row]:
            equals_fresh(bench, driver, row)


def padding_ignored(bench: Bench) -> str:
    """Whatever stands beyond `count` changes nothing, and a count of 0 leaves a row alone."""
    puppet = bench.puppet(rows=2)
    drafter = bench.make()
    noisy = Seat(drafter, puppet, 2, alter=garbled(puppet.info.vocab_size, drafter.spec.hidden_scope))
    driver = Driver(bench.make(), puppet, followers=[noisy])
    like, k = "as it does with garbage beyond count", bench.k
    for row, chunk in enumerate((7, 1)):
        driver.at(f"row {row}, prefill in chunks of {chunk} with garbage beyond count")
        driver.prefill(row, bench.prompts[row], chunk)
        same_view(driver, row, noisy, row, bench, like)
    plan: list[tuple[int, Plan]] = [
        (k, [1, None]),
        (k, [0, 2]),
        (0, [0, 0]),
        (k, [None, 0]),
        (1, [0, 1]),
        (k, [k, 1]),
        (0, [0, None]),
    ]
    for number, (asked, matched) in enumerate(plan):
        driver.at(f"round {number} of k {asked}, kept {matched}")
        driver.round(asked, matched)
        for row in range(2):
            same_view(driver, row, noisy, row, bench, like)
    return f"{len(plan)} rounds with garbage beyond count"
