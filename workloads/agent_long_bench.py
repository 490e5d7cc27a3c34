"""Workload `agent_long_bench`: long recorded rollouts of a guessing agent, each ending in a question about them.

Origin: AgentLongBench, hub data set ign1s/AgentLongBench, benchmark/{ki-c,ki-v,kf-c,kf-v}/{32k..4M}/{tool_response,
env_response,final_guess}/<question>.jsonl; licence MIT (its card); the repository of its code holds no data. ki: real
entity names, kf: masked ones; c: hundreds of short rounds, v: few rounds with long tool logs.
Size: not measured here, since the data is on the hub only; the folder name says the intended length.
The paper names it among its agent sets, 41 to 100 prompts, which slice is not published. As shipped a row is ONE
decode: its question after the whole rollout.
What is ours: every assistant message of the recorded rollout is a decode point too, so that the context grows; the
question is the last user message, its short answer the last reference. With `system_prompt` given, the recorded system
message is replaced by it, as the official runner does with its own. The labels of the path (names, rounds, length,
part) are kept; a file copied out of its folders has none, and is said to have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentbench_spec.rollout import ConfigError, Message, Rollout, Workload

from .locate import Data, HubSource, locate
from .questions import has_turns, turns_rollout
from .row_workload import Row, RowWorkload, unrecorded
from .standins import requested_standin

__all__ = ["make"]

NAME = "agent_long_bench"
REPO = "ign1s/AgentLongBench"
LICENCE = "mit"
KINDS = ("ki-c", "ki-v", "kf-c", "kf-v")
LENGTHS = ("32k", "64k", "128k", "256k", "512k", "1M", "2M", "4M")
PARTS = ("tool_response", "env_response", "final_guess")


_ANSWER_NOTE = "the reply to the final question is the data's answer, in the tag the benchmark asks for"
_NO_LABELS_NOTE = "the file does not lie in the data set's folders: names, rounds, length and part are not known"


def make(
    *,
    data: str | Path | None = None,
    revision: str | None = None,
    kinds: str | Sequence[str] = KINDS,
    lengths: str | Sequence[str] = ("64k",),
    parts: str | Sequence[str] = PARTS,
    system_prompt: str | None = None,
    lenient: bool = False,
    offline_standin: bool = False,
) -> Workload:
    """Growing rollouts of AgentLongBench.

    data: a file, or a folder in the data set's layout, of which `kinds`, `lengths` and `parts` choose files; None: the
    hub. system_prompt: instead of the recorded system message.

    Raises ConfigError if the data cannot be had or an option is unknown.
    """
    if standin := requested_standin(NAME, offline_standin, data=data, revision=revision):
        return standin
    chosen = (
        _checked("kinds", kinds, KINDS),
        _checked("lengths", lengths, LENGTHS),
        _checked("parts", parts, PARTS),
    )
    folders = chosen[2] if len(chosen[2]) < len(PARTS) else ["*"]
    patterns = tuple(
        f"benchmark/{k}/{size}/{part}/*.jsonl" for k in chosen[0] for size in chosen[1] for part in folders
    )
    found = _only(locate(NAME, data, HubSource(REPO, patterns, LICENCE), revision=revision), *chosen)
    builder = _Builder(system_prompt)
    return RowWorkload(
        NAME, found, builder.rollout, group=lambda row: str(row.get("question_type", "")), lenient=lenient
    )


def _only(data: Data, kinds: Sequence[str], lengths: Sequence[str], parts: Sequence[str]) -> Data:
    """The chosen files, and those of which no folder says what they are. Raises ConfigError if none is left."""
    allowed = {f"{kind}/{length}/{part}" for kind in kinds for length in lengths for part in parts}
    slices = {file: path_labels(file).get("slice") for file in data.files}
    kept = tuple(file for file, slice_ in slices.items() if slice_ is None or slice_ in allowed)
    if not kept:
        there = sorted({str(slice_) for slice_ in slices.values()})
        raise ConfigError(f"data: {data.root} holds {', '.join(there)} only; choose them by kinds, lengths and parts")
    return replace(data, files=kept)


def _checked(option: str, given: str | Sequence[str], known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in given.split(",")] if isinstance(given, str) else list(given)
    for name in names:
        if name not in known:
            raise ConfigError(f"{option}: unknown {name!r}; known: {', '.join(known)}")
    return names


class _Builder:
    """Rows to rollouts."""

    def __init__(self, system_prompt: str | None) -> None:
        self._system_prompt = system_prompt

    def rollout(self, row: Row) -> Rollout:
        if has_turns(row):
            return turns_rollout(row, NAME)
        labels = path_labels(row.file)
        name = f"{_place(row.file)}{row.id('id', 'sample_id')}"
        asked = Message(role="user", content=row.text("question"))
        answer = row.value.get("answer")
        said = unrecorded() if answer is None else Message(role="assistant", content=f"<answer>{answer}</answer>")
        history = {"messages": row.items("messages"), "tools": row.value.get("tools")}
        made = row.imported(
            history,
            workload=NAME,
            name=name,
            format="openai_chat",
            labels={"category": row.text("question_type"), **labels},
        )
        return made.model_copy(
            update={
                "messages": (*self._with_system(made.messages), asked, said),
                "notes": (*made.notes, _ANSWER_NOTE, *(() if labels else (_NO_LABELS_NOTE,))),
            }
        )

    def _with_system(self, messages: Sequence[Message]) -> Sequence[Message]:
        if self._system_prompt is None:
            return messages
        rest = messages[1:] if messages and messages[0].role == "system" else messages
        return [Message(role="system", content=self._system_prompt), *rest]


def path_labels(file: Path) -> dict[str, str]:
    """What the folders above a file say: names, rounds, length and part; nothing if it lies elsewhere."""
    kind, length, part = file.parts[-4:-1] if len(file.parts) > 3 else ("", "", "")
    if kind not in KINDS or length not in LENGTHS or part not in PARTS:
        return {}
    names, rounds = kind.split("-")
    return {"names": names, "rounds": rounds, "length": length, "part": part, "slice": f"{kind}/{length}/{part}"}


def _place(file: Path) -> str:
    labels = path_labels(file)
    return f"{labels['slice']}/{file.stem}/" if labels else f"{file.stem}/"
