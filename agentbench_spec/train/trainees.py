"""Trainees by the name of their entry point, checked as every plugin is."""

from __future__ import annotations

from typing import Any, cast

from agentbench_spec import plugins
from agentbench_spec.train.interface import Setting, Trainee


def load_trainee(name: str, setting: Setting, /, **options: Any) -> Trainee:
    """What the trainer called `name` makes for `setting`, with `options`. Raises as `plugins.load_drafter` does."""
    made = plugins.load("trainer", name, _lacks_as_trainee, {"setting": setting, **options})
    return cast("Trainee", made)


def _lacks_as_trainee(made: Any) -> list[str]:
    if not isinstance(made, Trainee):
        return ["the base class Trainee"]
    needed = ("name", "hidden_layers", "k", "position_weights", "phases")
    lacking = [name for name in needed if not hasattr(made, name)]
    return lacking + [
        f"{name}()" for name in ("predict", "write") if getattr(type(made), name) is getattr(Trainee, name)
    ]
