"""The order in which decoders run in a turn: every place, and every neighbour, equally often for each.

Rows of Williams' squares (1949): in one square each of n decoders stands once at each place, and, if n is even, once
after each other one; for odd n a square and its mirror image do so twice.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def balanced_order(names: Sequence[str], index: int, seed: int) -> list[str]:
    """The names in the order of the run's turn number `index`, counted over all its rollouts.

    Any run of consecutive turns is as balanced as its length allows. Which name stands for which letter of the square,
    and the order of its rows, are drawn anew for each pass through it, so that place and length of context, which grows
    from turn to turn, stay apart.
    """
    squares = _squares(len(names))
    cycle, place = divmod(index, sum(map(len, squares)))
    draw = random.Random(f"{seed}/{cycle}")
    letters = draw.sample(list(names), len(names))
    rows = [row for square in squares for row in draw.sample(square, len(square))]
    return [letters[i] for i in rows[place]]


def _squares(count: int) -> list[list[list[int]]]:
    first = [(i + 1) // 2 if i % 2 else (count - i // 2) % count for i in range(count)]  # 0, 1, n-1, 2, n-2, ...
    square = [[(letter + shift) % count for letter in first] for shift in range(count)]
    return [square, [row[::-1] for row in square]] if count % 2 and count > 1 else [square]
