"""An environment: a number to guess, with one tool that says whether it is higher or lower."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentbench_spec.rollouts.environments import Message, ToolCall, results

GUESS = {
    "type": "function",
    "function": {
        "name": "guess",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}


class Guessing:
    """One number between 1 and 100."""

    labels: Mapping[str, Any] = {"category": "guessing"}
    source: Mapping[str, Any] = {"name": "guessing"}

    def __init__(self, number: int) -> None:
        self.id, self._number = f"guessing/{number}", number

    def tools(self) -> Sequence[dict[str, Any]]:
        return [GUESS]

    def start(self) -> Sequence[Message]:
        self._guesses: list[int] = []
        return [Message(role="user", content="Guess my number; it is between 1 and 100.")]

    def step(self, said: Message) -> Sequence[Message] | None:
        found = results(said, self._answer)
        return found if found and self._number not in self._guesses else None

    def state(self) -> Any:
        return self._guesses

    def score(self) -> Mapping[str, Any]:
        return {"solved": self._number in self._guesses, "guesses": len(self._guesses)}

    def _answer(self, call: ToolCall) -> str:
        number = call.arguments.get("number")
        if not isinstance(number, int):
            return "Error: guess takes a number"
        self._guesses.append(number)
        return "higher" if number < self._number else "lower" if number > self._number else "right"


class Numbers:
    """A few numbers."""

    name = "guessing"

    def environments(self, *, limit: int | None = None, seed: int = 0) -> Iterable[Guessing]:
        return [Guessing((37 * i + seed) % 100 + 1) for i in range(5)][:limit]


def make() -> Numbers:
    """The tasks; takes no options."""
    return Numbers()
