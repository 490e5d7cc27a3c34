"""`serve`: an OpenAI-compatible endpoint over our own engine, whose every request becomes a row."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from agentbench_spec.cli import flags
from agentbench_spec.cli.console import console, last_line, say, verb
from agentbench_spec.cli.preflight import warn
from agentbench_spec.config import load_config
from agentbench_spec.config.bridge_limits import BridgeConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.runs.early import check_drafters, check_hub
from agentbench_spec.serving.needs import refuse_without_web_server


@verb
def serve(
    drafter: Annotated[
        str, typer.Option(help="Name, module:factory, or NAME=CHECKPOINT.", autocompletion=flags.names("drafter"))
    ],
    target: flags.Target = None,
    k: flags.DraftTokens = None,
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens of an answer whose request names no cap.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Of all requests; 0 is greedy.")] = None,
    device: flags.Device = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float64, float32, bfloat16, float16.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's need a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any free one.")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="AGENTBENCH_SPEC_API_KEY", help="Key that clients must send. Never stored."),
    ] = None,
    in_flight: Annotated[int, typer.Option(help="Requests decoded or waiting; one more is refused.")] = 16,
    body_bytes: Annotated[int, typer.Option(help="Largest request.")] = 8 << 20,
    sessions: Annotated[int, typer.Option(help="Sessions that may go on at once.")] = 256,
    config: Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")] = None,
    set_: flags.Assignments = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default results/<time>-<target>-serve.")] = None,
) -> None:
    """Serve a target with a drafter to any OpenAI client, one row a request, until Ctrl-C."""
    refuse_without_web_server()
    given = {
        "target.source": target,
        "target.device": device,
        "target.dtype": dtype,
        "drafters": [drafter],
        "decode.k": k,
        "decode.max_new_tokens": max_new_tokens,
        "decode.temperature": temperature,
        "measure.seed": seed,
        "replay.history": "live",
        "workload.name": "serve",
    }
    settings = load_config(config, set_ or (), given)
    if settings.backend != "engine":
        raise ConfigError(f"backend={settings.backend}: serve is our own engine's; leave it out")
    bridge = _bridge(host=host, port=port, in_flight=in_flight, body_bytes=body_bytes, sessions=sessions)
    check_drafters(settings.drafters)
    check_hub(settings, warn)
    from agentbench_spec.runs.execute import new_folder  # loads torch
    from agentbench_spec.serving.bridge.serve_run import serve as serve_requests

    folder = out or new_folder(settings.target.source, "serve")
    done = serve_requests(settings, bridge, folder, key=api_key or None, tell=lambda line: say(line, "dim"))
    from agentbench_spec.results.summary import render, summary_dict

    if done.rows:
        console.print(render(done.summary))
    for note in done.notes:
        say(f"note: {note}", "yellow")
    met = len({row.rollout for row in done.rows})
    say(f"{len(done.rows)} requests in {met} sessions; rows, sessions and summary: {folder}")
    last_line({"run": str(folder), "requests": len(done.rows), "sessions": met, **summary_dict(done.summary)})


def _bridge(**given: object) -> BridgeConfig:
    try:
        return BridgeConfig.model_validate(given)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        option = "--" + str(fault["loc"][0]).replace("_", "-")
        raise ConfigError(f"{option} {fault['input']!r:.80}: {fault['msg']}") from None
