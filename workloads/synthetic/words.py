"""Generated text: program files, table rows, documents. The words are ours; nothing is quoted from anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator

__all__ = ["REGIONS", "document", "identifier", "product", "program", "sentence"]


def _words(text: str) -> list[str]:
    return text.split()


VERBS = _words("load parse merge check route count store fetch split trim pack index sort scan close retry")
NOUNS = _words("order invoice customer parcel ledger ticket sensor report batch session account shipment token page")
THINGS = _words("limit offset total weight price status window buffer header margin quota depth version label")
ADJECTIVES = _words("late open final partial daily broken empty signed remote shared stale quiet narrow recent")
REGIONS = ("north", "south", "east", "west", "coast", "inland")
_SENTENCES = (
    "They had to {verb} the {adjective} {noun} again because its {thing} had changed since the {adjective2} {noun2}.",
    "Nobody could say why the {thing} of each {noun} was {number}, so the team wrote it down and went on.",
    "In week {number} the {noun} group asked for a {adjective} {thing}, and the {noun2} group agreed.",
    "A {adjective} {noun} needs {number} units of {thing}; the {adjective2} one needs half of that.",
    "They {verb} the {noun} first, then the {noun2}, and compare the {thing} at the end of the day.",
)


def identifier(draw: random.Random) -> str:
    """A function name; the number keeps most names apart."""
    return f"{draw.choice(VERBS)}_{draw.choice(NOUNS)}_{draw.randrange(1000)}"


def product(draw: random.Random) -> str:
    """Name of a thing that a shop sells."""
    return f"{draw.choice(ADJECTIVES)} {draw.choice(NOUNS)} {draw.randrange(100)}"


def program(draw: random.Random, names: list[str], lines: int) -> str:
    """Source text of at least `lines` lines that defines the functions `names`, and others if there is room."""
    out = [f'"""Helpers for {draw.choice(NOUNS)} handling."""', ""]
    pending = list(names)
    while len(out) < lines or pending:
        out += _function(draw, pending.pop(0) if pending else identifier(draw))
    return "\n".join(out) + "\n"


def _function(draw: random.Random, name: str) -> Iterator[str]:
    noun, thing, other = draw.choice(NOUNS), draw.choice(THINGS), draw.choice(THINGS)
    yield f"def {name}({noun}, {thing}={draw.randrange(1, 500)}):"
    yield f'    """{draw.choice(VERBS).capitalize()} one {draw.choice(ADJECTIVES)} {noun}."""'
    for _ in range(draw.randrange(1, 5)):
        field = draw.choice(THINGS)
        yield draw.choice(
            (
                f"    {field} = {noun}.get({field!r}, {draw.randrange(100)})",
                f"    if {noun}[{field!r}] > {thing}: {noun}[{other!r}] = {draw.randrange(1000)}",
                f"    {other}_{field} = [{field} * {draw.randrange(2, 40)} for {field} in {noun}.values()]",
                f"    log.debug('{draw.choice(ADJECTIVES)} {noun}: %s', {noun}.get({field!r}))",
            )
        )
    yield f"    return {noun}[{other!r}] + {thing}"
    yield ""


def sentence(draw: random.Random) -> str:
    """One sentence about nothing in particular."""
    return draw.choice(_SENTENCES).format(
        adjective=draw.choice(ADJECTIVES),
        adjective2=draw.choice(ADJECTIVES),
        noun=draw.choice(NOUNS),
        noun2=draw.choice(NOUNS),
        verb=draw.choice(VERBS),
        thing=draw.choice(THINGS),
        number=draw.randrange(2, 900),
    )


def document(draw: random.Random, characters: int) -> str:
    """Paragraphs of about that many characters."""
    out, size = [], 0
    while size < characters:
        text = sentence(draw) + ("\n\n" if draw.random() < 0.2 else " ")
        out.append(text)
        size += len(text)
    return "".join(out).strip()
