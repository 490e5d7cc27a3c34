"""docs/cli.md against the command line itself: every verb is there, with an example that the verb would take."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from runkit import verbs

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"
_HEADING = re.compile(r"^## `(.+)`$", re.MULTILINE)


def sections(text: str) -> dict[str, str]:
    """Heading -> what stands below it."""
    parts = _HEADING.split(text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def examples(section: str) -> list[str]:
    """The commands in a section that a reader would copy: lines after "$ ", with their continuations."""
    joined = section.replace("\\\n", " ")
    return re.findall(r"^\$ agentbench-spec (.+)$", joined, re.MULTILINE)


def faults(text: str, commands: dict[str, Any]) -> list[str]:
    """What is wrong with a document about `commands`."""
    found = []
    written = sections(text)
    for verb in commands:
        section = written.get(verb, "")
        if f"(#{verb.replace(' ', '-')})" not in text or not section:
            found.append(f"{verb}: is missing")
        elif not examples(section):
            found.append(f"{verb}: has no example")
        elif "Exit codes: " not in section:
            found.append(f"{verb}: does not say its exit codes")
    return found + [f"{verb}: is no verb" for verb in written if verb not in commands]


def test_every_verb_is_documented_with_an_example_and_its_exit_codes() -> None:
    """Fails if a verb is added, renamed or dropped and docs/cli.md does not follow."""
    assert faults(DOCUMENT.read_text("utf-8"), verbs()) == []


def test_a_document_that_lacks_something_is_found() -> None:
    """The control of the test above: it must see a missing verb, example and exit code, and a verb that is gone."""
    text = DOCUMENT.read_text("utf-8")
    commands = verbs()
    assert faults(text, {**commands, "new": commands["run"]}) == ["new: is missing"]
    assert faults(text, {verb: own for verb, own in commands.items() if verb != "doctor"}) == ["doctor: is no verb"]
    assert faults(text.replace("$ agentbench-spec doctor", "$ doctor"), commands) == ["doctor: has no example"]
    gone = text.replace("Exit codes: 0 also if parts are missing", "Always 0")
    assert faults(gone, commands) == ["doctor: does not say its exit codes"]


@pytest.mark.parametrize(
    ("verb", "arguments"),
    [
        (verb, shlex.split(example)[len(verb.split()) :])
        for verb, section in sections(DOCUMENT.read_text("utf-8")).items()
        for example in examples(section)
    ],
)
def test_the_examples_are_what_the_verbs_take(verb: str, arguments: list[str]) -> None:
    """Fails if an example names an option that is gone, or lacks an argument that is required."""
    command = verbs()[verb]
    given = command.make_context(verb, list(arguments)).params
    assert [own.name for own in command.params if own.required and not given.get(own.name)] == []
