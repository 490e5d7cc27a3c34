"""Where the BFCL-v3 rows come from, read with every field checked."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from agentbench_spec.rollout import BadLine, ConfigError, file_sha256, json_objects, require_file

PACKAGE = "bfcl-eval"
VERSION = "2025.7.9"
"""The last release whose multi-turn files are named BFCL_v3; later ones differ in more than half the rows."""
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION} mpmath==1.3.0"
CATEGORIES = ("base", "miss_func", "miss_param", "long_context")


class RowFault(ConfigError):
    """A row that cannot be turned into a rollout."""

    def __init__(self, bad: BadLine) -> None:
        super().__init__(str(bad))
        self.bad = bad


@dataclass(frozen=True, slots=True)
class DataFile:
    """One JSON-lines file and its digest."""

    path: Path
    sha256: str

    @classmethod
    def at(cls, path: Path) -> DataFile:
        """Raises ConfigError if there is no such file."""
        return cls(require_file(path), file_sha256(path))


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a data file with the gold calls of its answer file."""

    id: str
    category: str
    data: DataFile
    gold_data: DataFile
    line: int
    question: list[list[dict[str, Any]]]
    """Messages the user sends, by turn; an empty turn is one at which functions are added."""
    gold: list[list[str]]
    """Python call texts, by turn."""
    initial_config: dict[str, Any]
    involved_classes: list[str]
    excluded: tuple[str, ...] = ()
    missed: dict[int, list[str]] = field(default_factory=dict)
    """Turn -> names of the functions that are absent until then."""
    function: list[dict[str, Any]] | None = None
    """Function docs the row carries itself; None: those of the involved classes."""

    def fault(self, where: str, reason: str) -> RowFault:
        """The error for field `where` of this row."""
        return RowFault(BadLine(self.data.path, self.line, f"{self.id}: {where}", reason))


class BfclData:
    """A folder in the layout of the wheel's `bfcl_eval/data`."""

    def __init__(self, root: Path, *, name: str, version: str | None) -> None:
        self.root = root
        self.name = name
        self.version = version

    def entries(self, category: str) -> Iterator[Entry | BadLine]:
        """The rows of one category in file order, or what is wrong with them."""
        data = DataFile.at(self.root / _file_name(category))
        gold_data = DataFile.at(self.root / "possible_answer" / _file_name(category))
        gold = dict(_gold_rows(gold_data))
        seen: set[str] = set()
        for line, row in json_objects(data.path):
            try:
                entry = _entry(category, data, gold_data, line, row, gold)
                if entry.id in seen:
                    raise entry.fault("id", "stands in this file twice; remove one of the rows")
                seen.add(entry.id)
                yield entry
            except RowFault as fault:
                yield fault.bad

    @cached_property
    def docs(self) -> dict[str, list[dict[str, Any]]]:
        """Function docs by doc file stem, as stored."""
        return {path.stem: list(_doc_rows(path)) for path in sorted(self.docs_folder.glob("*.json"))}

    @property
    def docs_folder(self) -> Path:
        """Where the function docs of the API classes lie."""
        return self.root / "multi_turn_func_doc"


def installed_version() -> str:
    """Version of the installed package; raises ConfigError with the install command if there is none."""
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        raise ConfigError(
            f"bfcl_v3 needs the package {PACKAGE}, which is not installed: run `{INSTALL}`, "
            'or choose the small sample in this repository with subset="shipped"'
        ) from None


def installed_data() -> BfclData:
    """The data of the installed package; raises ConfigError if it is absent or another version."""
    version = installed_version()
    if version != VERSION:
        raise ConfigError(
            f"bfcl_v3 is defined by {PACKAGE}=={VERSION}, found {version}, whose rows differ: run `{INSTALL}`"
        )
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise ConfigError(f"{PACKAGE} {version} is registered but cannot be imported: run `{INSTALL}`")
    return BfclData(Path(spec.origin).parent / "data", name=PACKAGE, version=version)


def folder_data(path: Path) -> BfclData:
    """A caller's folder: the data folder itself, or one that holds it as in the wheel."""
    for root in (path, path / "data", path / "bfcl_eval" / "data"):
        if any(root.glob("BFCL_v3_multi_turn_*.json")):
            return BfclData(root, name="folder", version=None)
    newer = "; it holds BFCL_v4 files, which are another data set" if any(path.glob("BFCL_v4_*")) else ""
    raise ConfigError(f"{path}: holds no BFCL_v3_multi_turn_*.json{newer}; they are in `{INSTALL}`")


def _file_name(category: str) -> str:
    return f"BFCL_v3_multi_turn_{category}.json"


def _gold_rows(file: DataFile) -> Iterator[tuple[str, Any]]:
    for line, row in json_objects(file.path):
        if isinstance(row, BadLine):
            raise ConfigError(str(row))
        if not isinstance(row.get("id"), str):
            raise ConfigError(f"{file.path}:{line}: id: expected text, found {row.get('id')!r}")
        yield row["id"], row.get("ground_truth")


def _doc_rows(path: Path) -> Iterator[dict[str, Any]]:
    for line, row in json_objects(path):
        if isinstance(row, BadLine):
            raise ConfigError(str(row))
        if not isinstance(row.get("name"), str) or not isinstance(row.get("parameters"), dict):
            raise ConfigError(f"{path}:{line}: expected a function doc with name and parameters")
        yield row


def _entry(
    category: str, data: DataFile, gold_data: DataFile, line: int, row: dict[str, Any] | BadLine, gold: dict[str, Any]
) -> Entry:
    if isinstance(row, BadLine):
        raise RowFault(row)
    fields = _Fields(data.path, line, row)
    name = fields.take("id", str)
    if name not in gold:
        raise fields.fault("ground_truth", f"{gold_data.path} has no row with this id")
    return Entry(
        id=name,
        category=category,
        data=data,
        gold_data=gold_data,
        line=line,
        question=fields.nested("question", row.get("question"), dict),
        gold=fields.nested("ground_truth", gold[name], str),
        initial_config=fields.take("initial_config", dict),
        involved_classes=fields.strings("involved_classes"),
        excluded=tuple(fields.strings("excluded_function", default=[])),
        missed=fields.missed(),
        function=fields.take("function", list, default=None),
    )


class _Fields:
    """Typed access to a row's fields; every miss is a RowFault that names file, line, id and field."""

    def __init__(self, path: Path, line: int, row: dict[str, Any]) -> None:
        self._path, self._line, self._row = path, line, row

    def fault(self, where: str, reason: str) -> RowFault:
        return RowFault(BadLine(self._path, self._line, f"{self._row.get('id', 'no id')}: {where}", reason))

    def take(self, name: str, kind: type, **default: Any) -> Any:
        if name not in self._row:
            if "default" in default:
                return default["default"]
            raise self.fault(name, f"is missing; expected a {_WORDS[kind]}")
        value = self._row[name]
        if not isinstance(value, kind):
            raise self.fault(name, f"expected a {_WORDS[kind]}, found {type(value).__name__}")
        return value

    def strings(self, name: str, **default: Any) -> list[str]:
        values: list[str] = self.take(name, list, **default)
        if not all(isinstance(v, str) for v in values):
            raise self.fault(name, "expected a list of names")
        return values

    def nested(self, name: str, value: Any, kind: type) -> list[list[Any]]:
        """A non-empty list (turn) of lists of `kind`."""
        if not isinstance(value, list) or not value:
            raise self.fault(name, "is missing or empty; expected a list of turns")
        for turn, items in enumerate(value):
            if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
                raise self.fault(f"{name}[{turn}]", f"expected a list whose items are each a {_WORDS[kind]}")
        return value

    def missed(self) -> dict[int, list[str]]:
        raw: dict[str, Any] = self.take("missed_function", dict, default={})
        for turn, names in raw.items():
            if not turn.isdigit() or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
                raise self.fault(f"missed_function.{turn}", "expected a turn number and a list of function names")
        return {int(turn): names for turn, names in raw.items()}


_WORDS: dict[type, str] = {str: "text", dict: "JSON object", list: "list"}
