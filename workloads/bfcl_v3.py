"""Workload `bfcl_v3`: the multi-turn half of BFCL v3, with real results of the benchmark's simulated APIs.

Each row's gold calls are run once, when its rollout is built, so replay times model calls only. User texts, calls and
results are the benchmark's; the reply that closes each user turn is ours and marked synthetic. The four categories
share their scenarios: rollouts with one `scenario` label are not independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from agentbench_spec.rollout import BadLine, ConfigError, FileWorkload, Rollout, Workload, spread_sample, write_rollouts

from .bfcl.apis import require_executor
from .bfcl.build import BuildOptions, build_rollout
from .bfcl.reader import CATEGORIES, BfclData, Entry, RowFault, folder_data, installed_data
from .bfcl.tools import ToolsForm
from .standins import requested_standin

__all__ = ["CATEGORIES", "SHIPPED", "SHIPPED_ROWS", "BfclV3", "make", "write_shipped"]

_Made = TypeVar("_Made")

SHIPPED = Path(__file__).parent / "data" / "bfcl_v3_shipped.jsonl"
"""The sample in this repository; Apache-2.0, see the NOTICE beside it."""
SHIPPED_ROWS: dict[str, tuple[int, ...]] = {
    "base": (2, 55, 92, 156, 178),
    "miss_func": (22, 65, 81, 153, 194),
    "miss_param": (31, 58, 86, 151, 196),
    "long_context": (5, 68, 82, 154, 183),
}
"""Row numbers of the sample: no scenario twice, four API classes in each category, and contexts that pass 2,000 tokens
of SmolLM2 but stay under 6,500."""


def make(
    *,
    data: str | Path | None = None,
    subset: Literal["shipped"] | None = None,
    categories: str | Sequence[str] = CATEGORIES,
    ids: str | Sequence[str] | None = None,
    tools: ToolsForm | None = None,
    distractors: int | None = None,
    parallel_calls: bool = False,
    strict: bool | None = None,
    offline_standin: bool = False,
) -> Workload:
    """BFCL-v3 multi-turn rollouts.

    data: a folder in the wheel's layout, or a .jsonl of rollouts; None: the installed bfcl-eval==2025.7.9.
    subset "shipped": the sample in this repository, which needs no package.
    categories, ids: keep only these (sequences, or names with commas between).
    tools "full" (default): the benchmark's own list (2.6K to 5.1K SmolLM2 tokens); "involved": the functions the
    row needs and `distractors` (default 4) others, for small context windows. Rollouts carry the form as a label.
    parallel_calls: one assistant message for all calls of a user turn, not one message a call.
    strict: True stops at every fault of the data; None repairs the one known in the pinned data
    (multi_turn_base_154) and stops at any other; False cuts or leaves out bad rows, listed in `bad_lines`.
    offline_standin: generated sessions of like shape, plainly labelled; the shipped sample is real, and better.

    Raises ConfigError if the data or the package is absent (nothing is used in their place) or an option is unknown.
    """
    if standin := requested_standin("bfcl_v3", offline_standin, data=data, subset=subset, ids=ids):
        return standin
    names = _checked(categories)
    wanted = None if ids is None else set(_split(ids))
    if tools is not None and tools not in get_args(ToolsForm):
        raise ConfigError(f"tools: expected 'full' or 'involved', found {tools!r}")
    if distractors is not None and distractors < 0:
        raise ConfigError(f"distractors: expected 0 or more, found {distractors}")
    recorded = _recorded_file(data, subset)
    if recorded is not None:
        if distractors is not None or parallel_calls:
            raise ConfigError(f"{recorded}: holds finished rollouts; distractors and parallel_calls do not apply to it")
        return _recorded(recorded, names, wanted, tools, lenient=strict is False)
    options = BuildOptions(tools or "full", 4 if distractors is None else distractors, parallel_calls, strict)
    source = installed_data() if data is None else folder_data(Path(data))
    return BfclV3(source, names, wanted, options)


class BfclV3:
    """Builds rollouts from the rows of `source`."""

    name = "bfcl_v3"

    def __init__(
        self, source: BfclData, categories: Sequence[str], ids: set[str] | None, options: BuildOptions
    ) -> None:
        """Raises ConfigError if the package that runs the gold calls is absent or another version."""
        self.source = source
        self.categories = categories
        self.ids = ids
        self.options = options
        self.executor = f"bfcl-eval {require_executor()}"
        self.bad_lines: list[BadLine] = []
        """Rows left out by the last `rollouts` call with strict=False, and why."""

    def rollouts(self, *, limit: int | None = None, seed: int = 0) -> Iterator[Rollout]:
        """The rollouts, dealt from the categories in turn; a smaller limit gives the first ones of a larger."""
        if limit is not None and limit < 0:
            raise ConfigError(f"limit: expected 0 or more, found {limit}")
        return islice(self._all(seed), limit)

    def _all(self, seed: int) -> Iterator[Rollout]:
        return self.each(seed, lambda entry: build_rollout(entry, self.source, self.options, executor=self.executor))

    def each(self, seed: int, make: Callable[[Entry], _Made]) -> Iterator[_Made]:
        """What `make` makes of each row, in the order of `rollouts`; rows at which it raises RowFault are bad."""
        self.bad_lines.clear()
        entries = {entry.id: entry for entry in self._entries()}
        for name in spread_sample({n: e.category for n, e in entries.items()}, limit=None, seed=seed):
            try:
                yield make(entries[name])
            except RowFault as fault:
                self._leave_out(fault.bad)

    def _entries(self) -> Iterator[Entry]:
        found: set[str] = set()
        for category in self.categories:
            for entry in self.source.entries(category):
                if isinstance(entry, BadLine):
                    self._leave_out(entry)
                elif self.ids is None or entry.id in self.ids:
                    found.add(entry.id)
                    yield entry
        if self.ids is not None and (absent := self.ids - found):
            raise ConfigError(f"ids: {self.source.root} has no usable row {', '.join(sorted(absent))}")

    def _leave_out(self, bad: BadLine) -> None:
        if self.options.strict is not False:
            raise ConfigError(f"{bad} (strict=False leaves such rows out and lists them)")
        self.bad_lines.append(bad)


def write_shipped(path: Path = SHIPPED) -> int:
    """Build the sample of this repository from the installed package; returns how many rollouts."""
    return write_rollouts(path, make(ids=shipped_ids(), tools="involved").rollouts())


def shipped_ids() -> list[str]:
    """The rows of the sample."""
    return [f"multi_turn_{category}_{row}" for category, rows in SHIPPED_ROWS.items() for row in rows]


def _split(names: str | Sequence[str]) -> list[str]:
    return [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)


def _checked(categories: str | Sequence[str]) -> list[str]:
    names = _split(categories)
    for name in names:
        if name not in CATEGORIES:
            raise ConfigError(f"categories: unknown {name!r}; known: {', '.join(CATEGORIES)}")
    if not names:
        raise ConfigError(f"categories: is empty; known: {', '.join(CATEGORIES)}")
    return list(dict.fromkeys(names))


def _recorded_file(data: str | Path | None, subset: str | None) -> Path | None:
    if subset is not None:
        if subset != "shipped":
            raise ConfigError(f"subset: expected 'shipped', found {subset!r}")
        if data is not None:
            raise ConfigError("data and subset exclude each other: name one source")
        return SHIPPED
    if data is None:
        return None
    path = Path(data)
    if not path.exists():
        raise ConfigError(f"data: {path}: no such file or folder; nothing was downloaded or used in its place")
    if path.is_file() and not path.name.endswith((".jsonl", ".jsonl.gz")):
        raise ConfigError(f"data: {path}: expected a .jsonl of rollouts, or the folder that holds BFCL_v3_*.json")
    return path if path.is_file() else None


def _recorded(
    path: Path, categories: Iterable[str], ids: set[str] | None, tools: str | None, *, lenient: bool
) -> FileWorkload:
    wanted: dict[str, Any] = {"category": set(categories)} | ({"tools": {tools}} if tools else {})

    def keep(rollout: Rollout) -> bool:
        labels = rollout.labels
        return all(labels.get(k) in v for k, v in wanted.items()) and (ids is None or rollout.id in ids)

    return FileWorkload(path, name=BfclV3.name, keep=keep, lenient=lenient)
