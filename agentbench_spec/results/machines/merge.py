"""Shards joined to one run: the rows that one machine would have left, in the same order.

Nothing is joined that was not measured alike: code, settings, data and the model of the GPU must be the same, field by
field, and every shard must be there, finished, and hold its own rollouts and no others.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.folder import ROLLOUTS, lines_of, read_manifest, read_rounds, read_run
from agentbench_spec.results.loaded import Run
from agentbench_spec.results.machines.blocks import machine_lines
from agentbench_spec.results.machines.store import reading, writing
from agentbench_spec.results.manifest import counting
from agentbench_spec.results.provenance import differing_keys
from agentbench_spec.results.row_formats import parse_object
from agentbench_spec.results.rows import RoundRow, TurnRow
from agentbench_spec.results.writer import RunWriter, refuse_early

_OF_A_SHARD = ("shard", "schema", "started", "finished", "resumes", "argv", "warm_up_s", "round_costs", "other_cores")
"""Entries of a manifest that are one shard's own."""
_KEPT_OF_A_SHARD = ("started", "finished", "resumes", "host", "card", "warm_up_s", "other_cores", "contended", "notes")


@dataclass(frozen=True, slots=True)
class _Shard:
    folder: Path
    manifest: dict[str, Any]

    @property
    def index(self) -> int:
        return int(self.manifest["shard"]["index"])

    @property
    def own(self) -> list[str]:
        return list(self.manifest["shard"]["rollouts"])


def merge(folders: Sequence[str | Path], out: str | Path) -> Run:
    """Join the shards in `folders` to one run in the folder `out`; returns it.

    Raises ConfigError naming the fields in which shards differ, the shards that are missing with the command that makes
    them, a shard that is not finished or holds other rollouts than its own, and a folder `out` that holds a run.
    """
    shards = [_read(Path(folder)) for folder in folders]
    if not shards:
        raise ConfigError("merge: name the folders of the shards")
    for other in shards[1:]:
        refuse_unlike_shards(shards[0].folder, shards[0].manifest, other.folder, other.manifest)
    ordered = _every(shards)
    out = writing(out)
    refuse_early(out, {}, resume=False)
    target = (ordered[0].manifest["settings"].get("target") or {}).get("source")
    parts = [_rows(shard, target) for shard in ordered]
    with RunWriter.create(out, _manifest(ordered)) as writer:
        for name in ordered[0].manifest["shard"]["all"]:
            _write(writer, name, next(part for part in parts if name in part))
        rows = [row for part in parts for own in part.values() for row in own.rows]
        writer.manifest["notes"] = [*writer.manifest["notes"], *machine_lines(rows)]
        writer.finish(**counting(ordered[0].manifest))
    return Run.load(out)


def _read(folder: Path) -> _Shard:
    folder = reading(folder)
    manifest = read_manifest(folder)
    if not isinstance(manifest.get("shard"), dict):
        raise ConfigError(f"{folder} is no shard: it was made without --shard; only shards of one run are joined")
    if not manifest.get("finished"):
        way_on = shlex.join(["agentbench-spec", "run", "--resume", "--out", str(folder)])
        raise ConfigError(f"{folder} is not finished; go on with: {way_on}")
    return _Shard(folder, manifest)


def refuse_unlike_shards(first: Path, one: Mapping[str, Any], second: Path, other: Mapping[str, Any]) -> None:
    """Raises ConfigError naming every field of code, settings, data, GPU or cut in which two manifests differ."""
    if unlike := differing_keys(_measured_alike(one), _measured_alike(other)):
        raise ConfigError(f"{first} and {second} are not shards of one run: {'; '.join(unlike[:8])}")


def _measured_alike(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What shards of one run have in common, by field.

    Which of several equal GPUs a shard had is none of it, nor the folder that a file lies in, where digests tell what
    is in it: those of rollouts, drafters and the target. A target too large for a digest is told by its place.
    """
    given, model = dict(manifest.get("settings") or {}), dict(manifest.get("model") or {})
    settings, target = _without_folders(given), dict(given.get("target") or {})
    for tree in (target, model):
        if isinstance(tree.get("device"), str):
            tree["device"] = tree["device"].partition(":")[0]
        if model.get("sha256"):
            tree["source"] = None
    cut = manifest.get("shard") or {}
    return {
        "git": {name: (manifest.get("git") or {}).get(name) for name in ("sha", "dirty")},
        "packages": manifest.get("packages"),
        "settings": {**settings, "target": target},
        "model": model,
        "data": manifest.get("data"),
        "host": _accelerator(manifest),
        "shard": {"of": cut.get("of"), "all": cut.get("all")},
    }


def _without_folders(value: Any) -> Any:
    """Settings in which "/folder/name" and "dlite=/folder/name" are "name" and "dlite=name"; hub ids stay."""
    if isinstance(value, Mapping):
        return {name: _without_folders(own) for name, own in value.items()}
    if isinstance(value, list):
        return list(map(_without_folders, value))
    if isinstance(value, str):
        name, sign, path = value.rpartition("=")
        return f"{name}{sign}{Path(path).name}" if path.startswith(("/", "~", "./", "../")) else value
    return value


def _accelerator(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The model of the GPU that decoded; of a run on a CPU, the CPU's and its threads."""
    host = manifest.get("host") or {}
    device = str((manifest.get("card") or {}).get("device") or (manifest.get("model") or {}).get("device") or "cpu")
    if not device.startswith("cuda"):
        return {"cpu": host.get("cpu"), "threads": host.get("threads")}
    gpus, index = host.get("gpus") or [], int(device.partition(":")[2] or 0)
    return {"gpu": gpus[index].get("name") if index < len(gpus) else None}


def _every(shards: Sequence[_Shard]) -> list[_Shard]:
    """The shards by their index. Raises ConfigError if one is there twice, or missing."""
    found: dict[int, _Shard] = {}
    for shard in shards:
        if shard.index in found:
            raise ConfigError(f"{found[shard.index].folder} and {shard.folder} are both shard {shard.index}: name one")
        found[shard.index] = shard
    of = int(shards[0].manifest["shard"]["of"])
    missing = [index for index in range(1, of + 1) if index not in found]
    if missing:
        made = "; ".join(command_for(shards[0].manifest, index) for index in missing)
        names = ", ".join(f"{index}/{of}" for index in missing)
        raise ConfigError(f"shards {names} are missing; make them with: {made}")
    return [found[index] for index in range(1, of + 1)]


def command_for(manifest: Mapping[str, Any], index: int) -> str:
    """The command that makes another shard of the run of which `manifest` is one."""
    of = manifest["shard"]["of"]
    words = ["agentbench-spec", *map(str, list(manifest.get("argv") or [])[1:])]
    given: dict[str, str] = {"--shard": f"{index}/{of}", "--out": f"FOLDER-{index}"}
    kept: list[str] = []
    skip = False
    for word in words:
        name = word.partition("=")[0]
        if skip or name in given or word == "--resume":
            skip = not skip and name in given and "=" not in word
            continue
        kept.append(word)
    return shlex.join([*kept, *(part for pair in given.items() for part in pair)])


@dataclass(slots=True)
class _Rollout:
    """What a shard holds of one rollout."""

    rows: list[TurnRow]
    rounds: list[RoundRow]
    status: str = "ok"
    error: str | None = None


def _rows(shard: _Shard, target: str | None) -> dict[str, _Rollout]:
    """Rollout -> what the shard holds of it. Raises ConfigError if these are not its own rollouts.

    target: its name in all rows, wherever on the shard's machine it lay; None: as it is.
    """
    _, rows = read_run(shard.folder)
    path = shard.folder / ROLLOUTS
    found: dict[str, _Rollout] = {}
    for number, line in lines_of(path, lenient=False):
        done = parse_object(line, path, number)
        found[done["rollout"]] = _Rollout([], [], str(done.get("status", "ok")), done.get("error"))
    if strange := sorted({*found, *(row.rollout for row in rows)} ^ set(shard.own)):
        raise ConfigError(
            f"{shard.folder}: shard {shard.index} holds other rollouts than its own ({', '.join(strange[:3])}): files "
            "were mixed up; restore the folder, or make the shard again"
        )
    for row in rows:
        row.target = target or row.target
        found[row.rollout].rows.append(row)
    for each in read_rounds(shard.folder):
        found[each.rollout].rounds.append(each)
    return found


def _write(writer: RunWriter, name: str, part: Mapping[str, _Rollout]) -> None:
    own = part[name]
    for turn in dict.fromkeys(row.turn for row in own.rows):
        writer.turn([row for row in own.rows if row.turn == turn], [each for each in own.rounds if each.turn == turn])
    writer.rollout_done(name, status=own.status, error=own.error)


def _manifest(shards: Sequence[_Shard]) -> dict[str, Any]:
    """The manifest of the whole run: what all shards have in common, and what each has of its own."""
    first = {name: value for name, value in shards[0].manifest.items() if name not in _OF_A_SHARD}
    cores = [shard.manifest.get("other_cores") for shard in shards]
    notes = [note for shard in shards for note in shard.manifest.get("notes") or ()]
    return {
        **first,
        "argv": list(sys.argv),
        "started": min(str(shard.manifest.get("started")) for shard in shards),
        "notes": list(dict.fromkeys([*_doubts(shards[0].manifest), *notes])),
        "contended": any(shard.manifest.get("contended") for shard in shards),
        "other_cores": max((own for own in cores if own is not None), default=None),
        "shards": [dict(_own(shard)) for shard in shards],
    }


def _doubts(manifest: Mapping[str, Any]) -> Iterator[str]:
    if (manifest.get("git") or {}).get("dirty"):
        yield "the shards ran files that were changed since their commit: nothing tells that the changes were the same"


def _own(shard: _Shard) -> Iterator[tuple[str, Any]]:
    yield "folder", shard.folder.resolve().name
    yield "rollouts", shard.own
    yield from ((name, shard.manifest[name]) for name in _KEPT_OF_A_SHARD if name in shard.manifest)
