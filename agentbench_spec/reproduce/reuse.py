"""The runs a table is made from: found under the digest of their settings, reused, continued or made.

A run folder is named after the digest of its settings. One that is finished is reused if its data is still the same;
one that was killed is continued. So a table can be asked for again, and another table may share its runs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from agentbench_spec.config import RunConfig
from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import MANIFEST, finished_manifest
from agentbench_spec.results.provenance import settings_digest
from agentbench_spec.runs.scale.shards import begun_shards
from agentbench_spec.runs.setup import Tell, drafter_makers
from agentbench_spec.runs.source import configured_workload, read_source


def data_is_absent(config: RunConfig) -> str | None:
    """Why the workload cannot be had; None if it can."""
    try:
        configured_workload(config)
    except ConfigError as error:
        return str(error)
    return None


def run_folder(results: Path, settings: dict[str, Any]) -> Path:
    """The folder of a run with these settings: named after target, workload and digest."""
    names = [settings["target"]["source"], settings["workload"]["name"]]
    plain = [re.sub(r"[^\w.-]+", "-", Path(name).name) for name in names]
    return results / "runs" / "-".join([*plain, settings_digest(settings)[:12]])


def measured_run(config: RunConfig, results: Path, tell: Tell, on: str | None = None) -> Path:
    """The finished run with these settings: reused, continued or made. on: "ray": made in shards on Ray.

    Raises ConfigError as `run` does.
    """
    from agentbench_spec.runs.execute import run

    settings = config.model_dump(mode="json")
    folder = run_folder(results, settings)
    if manifest := finished_manifest(folder):
        refuse_other_measurement(folder, manifest, config)
        tell(f"reusing {folder}, finished {manifest['finished']}")
        return folder
    begun, shards = (folder / MANIFEST).is_file(), begun_shards(folder)
    if on is not None and not begun:
        from agentbench_spec.runs.scale.on_ray import run_on_ray

        run_on_ray(config, folder, resume=bool(shards), tell=tell)
    elif shards:
        raise ConfigError(f"{folder} was begun in shards; go on with --on ray, or remove it")
    else:
        run(config, folder, resume=begun, tell=tell)
    return folder


def refuse_other_measurement(
    folder: Path, manifest: dict[str, Any], config: RunConfig, limit: int | None = None
) -> None:
    """Raises ConfigError if a finished run was made from other rollouts or drafters than the settings give today.

    limit: rollouts read where the settings name no number.
    """
    if read_source(config, limit=limit).facts["sha256"] != manifest["data"]["sha256"]:
        raise ConfigError(f"{folder} was made from other data of {config.workload.name}; {_ANEW}")
    before = manifest["model"].get("drafters", {})
    for label, make in drafter_makers(config).items():
        if before.get(label) != (version := make().spec.version):
            raise ConfigError(f"{folder} was made with {label} {before.get(label)}, and it is {version} now; {_ANEW}")


_ANEW = "remove it, or use --results"
