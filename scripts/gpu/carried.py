"""Pinned names of what `bench geometry` needs beside torch and numpy, for `measure.sh --carry`: of this environment."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import Requirement

ROOTS = ("transformers", "accelerate", "pydantic", "typer", "jinja2", "scipy", "tqdm", "pytest")
THERE = {"torch", "numpy"}
"""What the machine with the GPU has: built for its driver."""


def closure(roots: tuple[str, ...]) -> set[str]:
    """The roots and all that they require here."""
    found: set[str] = set()
    left = list(roots)
    while left:
        name = left.pop().lower().replace("_", "-")
        if name in found | THERE:
            continue
        found.add(name)
        wanted = map(Requirement, metadata.requires(name) or ())
        left += [own.name for own in wanted if own.marker is None or own.marker.evaluate({"extra": ""})]
    return found


if __name__ == "__main__":
    print(*(f"{name}=={metadata.version(name)}" for name in sorted(closure(ROOTS))))
