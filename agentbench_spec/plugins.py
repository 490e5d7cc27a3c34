"""Find drafters, workloads, trainers and environments by name; built-in ones as a third party's, by entry points.

A name is one of

- the name of an entry point in the group "agentbench_spec.drafters", ".workloads", ".trainers" or ".environments";
- "package.module:factory", for code that is importable but not installed under a name;
- for drafters, either of these followed by "=ARG", which is short for the option `checkpoint=ARG`.

The factory is called with the options as keywords; nothing of a plugin is imported before it is asked for.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, cast

from agentbench_spec.errors import AgentBenchError, ConfigError, ContractError, cause_of, unknown_name

if TYPE_CHECKING:
    from agentbench_spec.drafting import Drafter
    from agentbench_spec.rollout import Workload

__all__ = ["Kind", "accepts", "available", "check_name", "load", "load_drafter", "load_workload"]

Kind = Literal["drafter", "workload", "trainer", "environment"]

_GROUPS: dict[Kind, str] = {
    "drafter": "agentbench_spec.drafters",
    "workload": "agentbench_spec.workloads",
    "trainer": "agentbench_spec.trainers",
    "environment": "agentbench_spec.environments",
}
_DRAFTER_METHODS = ("open", "observe", "propose", "truncate", "state_bytes")


@dataclass(frozen=True, slots=True)
class _Factory:
    """A plugin's factory and the words that name it in an error."""

    label: str
    entry: str
    """Where it is: module:factory."""
    make: Callable[..., Any]


def available(kind: Kind) -> dict[str, str]:
    """Installed plugins of `kind`: name -> the distribution that brings it, as "name version".

    A name that several distributions claim lists them all, separated by ", "; loading it is a ConfigError.
    """
    return {name: ", ".join(map(_distribution, points)) for name, points in sorted(_installed(kind).items())}


def load_drafter(name: str, /, **options: Any) -> Drafter:
    """The drafter called `name`, made with `options`; "name=ARG" is short for `checkpoint=ARG`.

    A drafter made of others, whose factory takes `parts`, is "name=A+B"; the option `part_options` holds, by the name
    of the part as written there, the options of each.

    Raises ConfigError for an unknown name or option, a missing option and a dependency that is not installed;
    ContractError if its import or its factory fails or calls sys.exit, or what the factory returns is no drafter.
    """
    base, given, argument = name.partition("=")
    if part_names(name):
        options = _with_parts(name, options)
    elif given:
        options = _with_checkpoint(name, argument, options)
    return cast("Drafter", load("drafter", base, _lacks_as_drafter, options))


def part_names(name: str) -> tuple[str, ...]:
    """The drafters that "name=A+B" is made of, (A, B), B with whatever follows; () for one without parts.

    Raises as loading it does.
    """
    base, given, argument = name.partition("=")
    return tuple(argument.split("+", 1)) if given and accepts("drafter", base, "parts") else ()


def with_checkpoints(
    name: str, options: Mapping[str, Any], shipped: Callable[[str], Mapping[str, Any]]
) -> dict[str, Any]:
    """`options` of a drafter; where it or a part of it has no checkpoint, with what `shipped` has for that name.

    Raises as loading it does.
    """
    if parts := part_names(name):
        given = options.get("part_options", {})
        filled = {part: with_checkpoints(part, given.get(part, {}), shipped) for part in parts}
        return {**options, "part_options": {**given, **filled}}
    return {**options, **({} if "checkpoint" in options else shipped(name))}


def _with_parts(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    names, of_parts = part_names(name), options.get("part_options", {})
    unknown = [part for part in of_parts if part not in names]
    if unknown:
        raise unknown_name(f"part in part_options of drafter {name!r}:", unknown[0], names)
    parts = [load_drafter(part, **of_parts.get(part, {})) for part in names]
    return {**{key: value for key, value in options.items() if key != "part_options"}, "parts": parts}


def load_workload(name: str, /, **options: Any) -> Workload:
    """The workload called `name`, made with `options`. Raises as `load_drafter` does."""
    return cast("Workload", load("workload", name, _lacks_as_workload, options))


def load(kind: Kind, name: str, lacks: Callable[[Any], list[str]], options: Mapping[str, Any]) -> Any:
    """What the plugin called `name` makes of `options`; lacks: made -> what it is missing, in words.

    Raises as `load_drafter` does.
    """
    factory = _find(kind, name)
    return _checked(factory, _make(factory, options), lacks)


def _installed(kind: Kind) -> dict[str, list[EntryPoint]]:
    points: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=_GROUPS[kind]):
        points.setdefault(point.name, []).append(point)
    return points


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "unknown distribution"


def _with_checkpoint(name: str, checkpoint: str, options: Mapping[str, Any]) -> dict[str, Any]:
    if not checkpoint:
        raise ConfigError(f"drafter {name!r}: nothing follows '='; write NAME=CHECKPOINT, or NAME alone")
    if "checkpoint" in options:
        raise ConfigError(f"drafter {name!r}: option 'checkpoint' is given too; give one of the two")
    return {**options, "checkpoint": checkpoint}


def check_name(kind: Kind, name: str) -> None:
    """Refuse a name that cannot be loaded, as far as that shows without importing the plugin; NAME=ARG is a drafter's.

    Raises the ConfigError that loading it would.
    """
    base, given, checkpoint = name.partition("=") if kind == "drafter" else (name, "", "")
    if given:
        _with_checkpoint(name, checkpoint, {})
    if ":" not in base:
        _entry_point(kind, base)
        return
    module, _ = _path_parts(kind, base)
    package = module.partition(".")[0]
    if package not in sys.modules and find_spec(package) is None:
        raise ConfigError(_no_module(_label(kind, base), package))


def _find(kind: Kind, name: str) -> _Factory:
    if ":" in name:
        module, path = _path_parts(kind, name)
        return _Factory(_label(kind, name), name, _import(_label(kind, name), module, path, wrong_path=ConfigError))
    point = _entry_point(kind, name)
    label = f"{_label(kind, name)} of {_distribution(point)}"
    module, _, path = point.value.partition(":")
    return _Factory(label, point.value, _import(label, module, path, wrong_path=ContractError))


def _label(kind: Kind, name: str) -> str:
    return f"{kind} {name!r}"


def _entry_point(kind: Kind, name: str) -> EntryPoint:
    installed = _installed(kind)
    if name not in installed:
        raise unknown_name(kind, name, installed)
    points = installed[name]
    if len(points) > 1:
        choices = "; ".join(f"{p.value} ({_distribution(p)})" for p in points)
        raise ConfigError(f"{kind} {name!r} is claimed by several packages; write one of these instead: {choices}")
    return points[0]


def _path_parts(kind: Kind, name: str) -> tuple[str, str]:
    module, _, path = name.partition(":")
    if not module or not path or module.startswith("."):
        raise ConfigError(f"{_label(kind, name)}: write package.module:factory")
    return module, path


def _no_module(label: str, module: str) -> str:
    return f"{label}: no module {module!r}; is it installed, or on PYTHONPATH?"


def _import(label: str, module: str, path: str, *, wrong_path: type[Exception]) -> Callable[..., Any]:
    """The callable `path` in `module`; `wrong_path` is raised where the path itself, not a dependency, is wrong."""
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if error.name and f"{module}.".startswith(f"{error.name}."):
            raise wrong_path(_no_module(label, error.name)) from error
        raise _missing_dependency(label, error) from error
    except ImportError as error:
        raise _missing_dependency(label, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(label, f"importing {module} (entry point {module}:{path}) failed", error) from error
    try:
        factory = reduce(getattr, path.split("."), cast(Any, loaded))
    except AttributeError as error:
        raise wrong_path(f"{label}: module {module!r} has no {path!r}") from error
    if not callable(factory):
        raise wrong_path(f"{label}: {path!r} in {module!r} is not callable; name a function that makes it")
    return cast("Callable[..., Any]", factory)


def _missing_dependency(label: str, error: ImportError) -> ConfigError:
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return ConfigError(f"{label} needs the package {package!r}, which is not installed (no module {error.name!r})")
    return ConfigError(f"{label} cannot be imported: {error}")


def _broken(label: str, what: str, error: BaseException) -> ContractError:
    return ContractError(f"{label}: {what}: {cause_of(error)}")


def _make(factory: _Factory, options: Mapping[str, Any]) -> Any:
    _check_options(factory, options)
    try:
        return factory.make(**options)
    except AgentBenchError:
        raise
    except ImportError as error:
        raise _missing_dependency(factory.label, error) from error
    except OSError as error:
        raise ConfigError(f"{factory.label}: {error}") from error
    except (Exception, SystemExit) as error:
        raise _broken(factory.label, f"its factory {factory.entry} failed", error) from error


def accepts(kind: Kind, name: str, option: str) -> bool:
    """True if the factory of an installed plugin names `option` among its parameters. Raises as loading it does."""
    try:
        return option in inspect.signature(_find(kind, name).make).parameters
    except ValueError:
        return False


def _check_options(factory: _Factory, options: Mapping[str, Any]) -> None:
    try:
        parameters = inspect.signature(factory.make).parameters.values()
    except ValueError:  # a factory written in C may have no signature; its own error has to do
        return
    accepted = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [] if takes_any else [name for name in options if name not in accepted]
    if unknown:
        raise ConfigError(_unknown_option(factory.label, unknown[0], accepted))
    missing = [n for n, p in accepted.items() if p.default is p.empty and n not in options]
    if missing:
        raise ConfigError(f"{factory.label} needs the option {missing[0]!r}")


def _unknown_option(label: str, name: str, accepted: Iterable[str]) -> str:
    accepted = list(accepted)
    near = difflib.get_close_matches(name, accepted, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{label} has no option {name!r}; {hint}accepted: {', '.join(accepted) or 'no options'}"


def _checked(factory: _Factory, made: Any, lacks: Callable[[Any], list[str]]) -> Any:
    missing = lacks(made)
    if missing:
        raise ContractError(
            f"{factory.label}: the factory returned {type(made).__name__}, lacking {', '.join(missing)}"
        )
    return made


def _lacks_as_drafter(made: Any) -> list[str]:
    from agentbench_spec.drafting import Drafter, DrafterSpec, SequenceDrafter

    lacking = [] if isinstance(getattr(made, "spec", None), DrafterSpec) else ["spec (a DrafterSpec)"]
    lacking += [f"{method}()" for method in _DRAFTER_METHODS if not callable(getattr(made, method, None))]
    if getattr(type(made), "propose", None) is Drafter.propose:
        lacking.append("propose()")
    if getattr(type(made), "propose_one", None) is SequenceDrafter.propose_one:
        lacking.append("propose_one()")
    return lacking


def _lacks_as_workload(made: Any) -> list[str]:
    lacking = [] if isinstance(getattr(made, "name", None), str) else ["name (a string)"]
    return lacking + ([] if callable(getattr(made, "rollouts", None)) else ["rollouts()"])
