"""`check`: does a drafter keep its contract?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentbench_spec.bars import Bar
from agentbench_spec.cli import flags
from agentbench_spec.cli.console import console, last_line, verb
from agentbench_spec.cli.preflight import check_models
from agentbench_spec.config import parse_options
from agentbench_spec.conformance.places import PLACES, check_places
from agentbench_spec.errors import ConfigError
from agentbench_spec.runs.early import check_drafters, checkpoints

if TYPE_CHECKING:
    from agentbench_spec.engine.target import Target


@verb
def check(
    drafter: Annotated[
        str,
        typer.Argument(help="Name, module:factory, or NAME=CHECKPOINT.", autocompletion=flags.names("drafter")),
    ],
    on: Annotated[
        str | None,
        typer.Option(help="Targets to check on, comma-separated: toy, embedded; by default those that fit."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Check on this model instead: hub id or folder, for a drafter trained for it.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="A slow, plain drafter that must propose the same.", autocompletion=flags.names("drafter")),
    ] = None,
    floor: Annotated[float | None, typer.Option(help="Least τ on the embedded target.")] = None,
    set_: flags.Options = None,
) -> None:
    """Does a drafter keep its contract? Says which law broke, and at which call."""
    places = None if on is None else tuple(dict.fromkeys(name.strip() for name in on.split(",") if name.strip()))
    if places is not None and not places:
        raise ConfigError(f"--on names no target: {on!r}; known: {', '.join(PLACES)}")
    check_places(places or ())
    options = parse_options(set_ or ())
    named = [drafter, *([reference] if reference else [])]
    check_drafters(named)
    check_models(target, *checkpoints(named))
    from agentbench_spec.conformance.kit import check_drafter

    with Bar(unit="law", leave=False) as bar:

        def tried(law: str) -> None:
            bar.set_description_str(law)
            bar.update()

        report = check_drafter(
            drafter,
            on=places,
            target=_load_target(target) if target else None,
            reference=reference,
            floor=floor,
            options=options,
            progress=tried,
        )
    console.print(report)
    last_line(report.as_dict())
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _load_target(source: str) -> Target:
    from agentbench_spec.engine.loading import load_model
    from agentbench_spec.engine.target import Target

    return Target(load_model(source)[0], name=source, capacity=512)
