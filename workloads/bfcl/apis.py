"""The package's simulated APIs: one set of instances per rollout, called with parsed literals only."""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from agentbench_spec.rollout import ConfigError

from .reader import INSTALL, PACKAGE, VERSION, Entry, installed_version

_UTILS = "bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils"


@dataclass(frozen=True, slots=True)
class GoldCall:
    """A call as written in the gold answer: name and literal arguments."""

    name: str
    positional: tuple[Any, ...]
    keywords: dict[str, Any]


def parse_call(text: str) -> GoldCall:
    """`f(1, b='x')` as data; nothing is evaluated. Raises ValueError if it is anything but one call of literals."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not a Python call: {error.msg}") from error
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise ValueError(f"{text!r} is not a single call of a named function")
    keywords = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg is not None}
    if len(keywords) != len(node.keywords):
        raise ValueError(f"{text!r} unpacks or repeats a keyword")
    return GoldCall(node.func.id, tuple(map(ast.literal_eval, node.args)), keywords)


class World:
    """The API instances of one rollout; calls change their state."""

    def __init__(self, entry: Entry) -> None:
        self._methods: dict[str, Callable[..., Any]] = {}
        self._instances: dict[str, Any] = {}
        for name in entry.involved_classes:
            if name not in class_modules():
                raise entry.fault(
                    "involved_classes", f"unknown API class {name!r}; known: {', '.join(class_modules())}"
                )
            self._instances[name] = _instance(name, entry)
            self._methods |= _public_methods(self._instances[name])

    def arguments(self, call: GoldCall) -> dict[str, Any]:
        """All arguments by name, positional ones first. Raises ValueError if the call does not fit the API."""
        if call.name not in self._methods:
            raise ValueError(f"no involved class has a function {call.name!r}")
        names = list(inspect.signature(self._methods[call.name]).parameters)
        if len(call.positional) > len(names):
            raise ValueError(f"{call.name} takes {len(names)} arguments, found {len(call.positional)}")
        bound = dict(zip(names, call.positional, strict=False))
        if twice := bound.keys() & call.keywords.keys():
            raise ValueError(f"{call.name} is given {', '.join(sorted(twice))} twice")
        return bound | call.keywords

    def result(self, name: str, arguments: dict[str, Any]) -> str:
        """Call the API and return what the benchmark shows the model, errors included."""
        try:
            return _as_text(self._methods[name](**arguments))
        except Exception as error:
            return f"Error during execution: {error}"

    def state(self) -> dict[str, Any]:
        """What the benchmark compares: the public attributes of every instance, as JSON values."""
        return {name: _plain(instance) for name, instance in self._instances.items()}


def _plain(value: Any, above: tuple[int, ...] = ()) -> Any:
    """JSON values of an object's public attributes; what leads back to an object above is left out."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if id(value) in above:
        return None
    inside = (*above, id(value))
    if isinstance(value, dict):
        return {str(key): _plain(own, inside) for key, own in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_plain(own, inside) for own in value), key=repr)
    if isinstance(value, list | tuple):
        return [_plain(own, inside) for own in value]
    return {name: _plain(own, inside) for name, own in getattr(value, "__dict__", {}).items() if name[0] != "_"}


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if type(value) is not dict:
        return str(value)
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return str(value)


def _instance(name: str, entry: Entry) -> Any:
    instance = _api_class(name)()
    if name not in _utils().STATELESS_CLASSES:
        scenario = copy.deepcopy(entry.initial_config.get(name, {}))
        instance._load_scenario(scenario, long_context=entry.category == "long_context")
    return instance


def _public_methods(instance: Any) -> dict[str, Callable[..., Any]]:
    return {n: m for n, m in inspect.getmembers(instance, inspect.ismethod) if not n.startswith("_")}


@cache
def _api_class(name: str) -> Any:
    return getattr(_import(class_modules()[name]), name)


def class_modules() -> dict[str, str]:
    """API class -> the module that defines it."""
    modules: dict[str, str] = _utils().CLASS_FILE_PATH_MAPPING
    return modules


def doc_stem(class_name: str) -> str:
    """Stem of the file that documents a class's functions."""
    return class_modules()[class_name].rpartition(".")[2]


def require_executor() -> str:
    """Version of the package that executes the calls; raises ConfigError if it is absent or another one."""
    version = installed_version()
    if version != VERSION:
        raise ConfigError(f"the gold calls run on the APIs of {PACKAGE}=={VERSION}, found {version}: run `{INSTALL}`")
    _utils()
    return version


@cache
def _utils() -> Any:
    return _import(_UTILS)


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{PACKAGE}: cannot import {error.name or module}: run `{INSTALL}`") from error
