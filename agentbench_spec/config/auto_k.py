"""`decode.k = "auto"`, which stands for two settings: that k is chosen round by round, and the most it may be.

Several with commas between, "1,3,auto", stand for two settings likewise: the sweep, and the most any of them may be.
"""

from __future__ import annotations

import re
from typing import Any

_AUTO = re.compile(r"auto(?::([0-9]{1,9}))?")


def with_auto_k(decode: Any) -> Any:
    """The section `decode` with k = "auto", or "auto:15", as k_policy and k, and "1,3,auto:15" as sweep and k."""
    k = decode.get("k") if isinstance(decode, dict) else None
    if not isinstance(k, str):
        return decode
    others = {name: value for name, value in decode.items() if name != "k"}
    if auto := _AUTO.fullmatch(k):
        return {**others, **_most([auto[1]]), "k_policy": "auto"}
    found = [re.fullmatch(rf"([0-9]{{1,9}})|{_AUTO.pattern}", part.strip()) for part in k.split(",")]
    several = [each for each in found if each is not None]
    if len(found) < 2 or len(several) < len(found):
        return decode
    numbers = [number for each in several for number in each.groups()]
    return {**others, **_most(numbers), "sweep": [int(each[1]) if each[1] else "auto" for each in several]}


def _most(numbers: list[str | None]) -> dict[str, int]:
    known = [int(number) for number in numbers if number]
    return {"k": max(known)} if known else {}
