"""The command line: verbs over the library. Tables go to stderr, one JSON line comes last on stdout.

Exit codes: 0 fine; 1 the run is void or a check failed; 2 the input cannot be used; 130 interrupted; 141 nobody reads
the output any more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentbench_spec.cli.conform import check
from agentbench_spec.cli.fleet_plan import plan_fleet
from agentbench_spec.cli.geometry import geometry
from agentbench_spec.cli.grading import swebench_predictions
from agentbench_spec.cli.joining import merge
from agentbench_spec.cli.look import compare, doctor, export, figures, list_, report
from agentbench_spec.cli.reproduction import reproduce
from agentbench_spec.cli.rollout_files import build, import_, validate
from agentbench_spec.cli.rollout_stats import stats
from agentbench_spec.cli.run import run
from agentbench_spec.cli.serve import serve
from agentbench_spec.cli.training import train

app = typer.Typer(no_args_is_help=True, pretty_exceptions_show_locals=False, help=__doc__)
rollouts_app = typer.Typer(no_args_is_help=True, help="Build, import, check and describe rollout files.")

for name, verb in {
    "run": run,
    "serve": serve,
    "reproduce": reproduce,
    "merge": merge,
    "compare": compare,
    "report": report,
    "figures": figures,
    "plan-fleet": plan_fleet,
    "export": export,
    "check": check,
    "train": train,
    "swebench-predictions": swebench_predictions,
    "list": list_,
    "doctor": doctor,
}.items():
    app.command(name)(verb)
app.add_typer(rollouts_app, name="rollouts")
for name, verb in {"build": build, "import": import_, "validate": validate, "stats": stats}.items():
    rollouts_app.command(name)(verb)

bench_app = typer.Typer(no_args_is_help=True, help="Measure speed alone, with nothing downloaded.")
app.add_typer(bench_app, name="bench")
bench_app.command("geometry")(geometry)


def _tell_version(asked: bool) -> None:
    if not asked:
        return
    from agentbench_spec.results.provenance import git_state, package_versions

    version = package_versions(["agentbench-spec"])["agentbench-spec"]
    git = git_state(Path(__file__).parent)
    commit = f" (commit {git['sha'][:12]}{', changed' if git['dirty'] else ''})" if git["sha"] else ""
    print(f"agentbench-spec {version or 'not installed'}{commit}")
    raise typer.Exit


_Version = Annotated[
    bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Version, and commit of a checkout.")
]


@app.callback()
def _before_any_verb(version: _Version = False) -> None:
    pass
