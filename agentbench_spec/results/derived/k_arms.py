"""The names of a run over several K: a drafter at each of them is a decoder of its own."""

from __future__ import annotations

import re

_ARM = re.compile(r"(.+)@([0-9]+|auto)")


def arm_name(drafter: str, k: int | str) -> str:
    """ "dlite@3", "dlite@auto"."""
    return f"{drafter}@{k}"


def arm_of(name: str) -> tuple[str, str | None]:
    """(drafter, the K it decodes with); None: the name is no arm's."""
    arm = _ARM.fullmatch(name)
    return (arm[1], arm[2]) if arm else (name, None)
