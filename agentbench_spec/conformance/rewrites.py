"""Laws about text that is taken back: cuts at any length, history told anew, and turns that are thrown away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentbench_spec.conformance.bench import WHOLE, Bench, equals_fresh, same_answers
from agentbench_spec.conformance.drive import Driver, NotApplicable

_EVERY_UP_TO = 66
_PAGE = 16
_FEW = (0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)


def truncate_honoured(bench: Bench) -> str:
    """After a cut and new text, state equals fresh; after a cut to the turn's start, proposals are what they were."""
    driver, chunk = bench.rehearsal(), bench.chunks_tokens[-1]
    prompt, thrown = bench.prompts[-1], 0
    for length in (len(prompt) - 1, len(prompt) // 2, 8, 1, 0):
        driver.at(f"prefill before the cut to {length}")
        driver.prefill(0, prompt, chunk)
        thrown += _back_to_start(bench, driver)
        driver.at(f"cut to {length}")
        changed = (prompt[length] + 1) % driver.target.info.vocab_size
        driver.prefill(0, [*prompt[:length], changed, *prompt[: length // 2 + 3]], chunk)
        equals_fresh(bench, driver, 0)
    return f"5 rewrites of history, {thrown} continuations thrown away"


def _back_to_start(bench: Bench, driver: Driver) -> int:
    """Throw continuations away, as measured turns are, one after the other; a cut that cuts nothing does nothing."""
    start, before, where = len(driver.texts[0]) - 1, driver.view(0, bench.k, ()), driver.where
    driver.truncate(0, start)
    same_answers(driver, 0, driver.view(0, bench.k, ()), before, bench.tolerance, "as before a cut at the text's end")
    k = bench.k
    continuations: list[list[tuple[int, int]]] = [[(k, 1), (k, k), (k, 0)], [(0, 0), (k, 1)], [(k, 0)], [(0, 0)]]
    for number, rounds in enumerate(continuations):
        driver.truncate(0, start)  # nobody has been asked anything since the turn began
        for asked, matched in rounds:
            driver.round(asked, [matched])
        driver.rewind(0, start)
        said = ", ".join(f"k {asked} with {matched} kept" for asked, matched in rounds)
        driver.at(f"{where}, continuation {number} (rounds of {said}) thrown away at {start}")
        like = "as before the rounds that truncate threw away"
        same_answers(driver, 0, driver.view(0, k, ()), before, bench.tolerance, like)
    return len(continuations)


def cut_anywhere(bench: Bench) -> str:
    """A cut at any length, at page and block boundaries too, leaves the text before it and nothing else."""
    driver, k = bench.rehearsal(), bench.k
    full = driver.target.capacity - 1
    if full <= _PAGE:
        raise NotApplicable(f"the drafter's longest text has {full + 1} tokens")
    text, other = bench.text(full), bench.text(full, seed=1)
    cuts = 0
    for length in _lengths(full - 2 * k - 6, bench.thorough):
        long = min(full - 2 * k - 2, length + _PAGE * (1 + cuts % 3) + 2)
        driver.at(f"prefill of {long} tokens before the cut")
        driver.prefill(0, text[:long], WHOLE)
        driver.round(k, [cuts % 2])
        driver.at(f"cut to {length}, then position {length} again and 1 new token")
        driver.prefill(0, _parting(text[: length + 1], other[length : length + 1], driver), WHOLE)
        equals_fresh(bench, driver, 0, glance=cuts % 8 > 0)
        cuts += 1
    for length in (14, 61, 125, 253):
        if length < full - 6 * k:
            driver.at(f"cut to {length} before rounds over a boundary")
            driver.prefill(0, text[:length], WHOLE)
            _decode_on(bench, driver, ((k, 1), (k, k), (0, 0), (k, 0)))
    driver.at(f"text filled up to the capacity of {full + 1} tokens")
    driver.prefill(0, text[:full], WHOLE)
    equals_fresh(bench, driver, 0)
    driver.at("cut to 1 after the capacity was reached")
    driver.prefill(0, _parting(text[:2], other[:1], driver), WHOLE)
    equals_fresh(bench, driver, 0)
    return f"{cuts} cuts to lengths of 0 to {full - 2 * k - 6}"


def _lengths(most: int, every: bool) -> list[int]:
    """Lengths to cut to, so that long and short texts follow each other."""
    around = [page + off for page in range(_PAGE, most + _PAGE, _PAGE) for off in (-1, 0, 1)]
    wanted = sorted({length for length in ([*range(_EVERY_UP_TO + 1), *around] if every else _FEW) if length <= most})
    half = len(wanted) // 2
    return [length for pair in zip(wanted[half:], wanted[:half][::-1], strict=False) for length in pair] + [
        *wanted[2 * half :]
    ]


def _parting(kept: Sequence[int], new: Sequence[int], driver: Driver) -> list[int]:
    """`kept`, then tokens that differ from what the row holds there."""
    held = driver.texts[0][len(kept) :]
    if held and held[0] == new[0]:
        new = [(new[0] + 1) % driver.target.info.vocab_size, *new[1:]]
    return [*kept, *new]


def _decode_on(bench: Bench, driver: Driver, rounds: Sequence[tuple[int, int]]) -> None:
    where = driver.where
    for number, (k, matched) in enumerate(rounds):
        driver.at(f"{where}, round {number} of k {k} (at most {matched} drafts kept)")
        driver.round(k, [matched])
        equals_fresh(bench, driver, 0, glance=True)


def rewrites_seen(bench: Bench) -> str:
    """A history told anew with the same length and the same tail is a new history, whatever was changed in it."""
    driver, rewrites = bench.rehearsal(), 0
    text = bench.text(min(90, driver.target.capacity - 2 * bench.k - 2), seed=2)
    driver.at("prefill before the rewrites")
    driver.prefill(0, text, 7)
    for what, changed in _rewritten(text, driver.target.info.vocab_size):
        for told, chunk in ((changed, (7, WHOLE, 1)[rewrites % 3]), (text, WHOLE)):
            if rewrites % 2:
                driver.round(bench.k, [1])
            way = f"{what}, same length {len(text)} and same tail" if told is changed else f"{what} taken back again"
            driver.at(f"history rewritten: {way}, told in chunks of {min(chunk, len(text))}")
            driver.prefill(0, told, chunk)
            equals_fresh(bench, driver, 0)
            rewrites += 1
    return f"{rewrites} rewrites of the same length and tail"


def _rewritten(text: Sequence[int], vocab: int) -> Iterator[tuple[str, list[int]]]:
    """(what was changed, the text with it changed): all but the last quarter may differ."""
    last = 3 * len(text) // 4
    for at in sorted({0, 1, 2, 15, 16, 17, 31, 32, 48, 63, 64, last} & set(range(last + 1))):
        yield f"token {at} changed", [*text[:at], (text[at] + 1) % vocab, *text[at + 1 :]]
    for at in (3, last // 2):  # the same tokens, so the same sums, in another order
        other = next((i for i in range(at + 1, last) if text[i] != text[at]), None)
        if other is not None:
            swapped = list(text)
            swapped[at], swapped[other] = text[other], text[at]
            yield f"tokens {at} and {other} swapped", swapped
    yield f"tokens 4 to {last} changed", [*text[:4], *[(t + 3) % vocab for t in text[4:last]], *text[last:]]
