"""A geometry from its name to a folder of rows: every method at every context and concurrency, resumed row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from agentbench_spec.config import MOST_DRAFT_TOKENS, RunConfig
from agentbench_spec.engine.loading import resolve_device, resolve_dtype
from agentbench_spec.engine.machine import host_facts, measure_bandwidth_bytes_per_s, without_plans
from agentbench_spec.engine.steps.fused_norms import fuse_norms
from agentbench_spec.engine.steps.static_target import Static
from agentbench_spec.engine.target import Target
from agentbench_spec.errors import ConfigError, cause_of, raise_interrupt, unknown_name
from agentbench_spec.results.folder import MANIFEST, now, read_manifest
from agentbench_spec.results.metrics import BASELINE
from agentbench_spec.results.provenance import differing_keys, make_manifest, write_json_atomic
from agentbench_spec.runs.card import launches_of
from agentbench_spec.runs.geometry.cell import (
    LOOKUP,
    Cell,
    GeometryPlan,
    Method,
    memory_reason,
    needed_bytes,
    without_memory,
)
from agentbench_spec.runs.geometry.geometry_rows import (
    GeometryRow,
    append_row,
    drop_what_is_tried_again,
    key_of,
    read_geometry,
)
from agentbench_spec.runs.geometry.published_shapes import drafts_for, target_config
from agentbench_spec.runs.geometry.random_models import empty_model, random_target, weight_bytes, write_draft
from agentbench_spec.runs.graph_mode import static_rounds

Tell = Callable[[str], None]
DRAFTS = "drafts"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where and in what numbers a geometry is measured."""

    device: torch.device
    dtype: torch.dtype
    graphs: bool


def run_geometry(plan: GeometryPlan, folder: Path, tell: Tell = lambda line: None) -> list[GeometryRow]:
    """Measure what the folder does not hold yet and return all its rows.

    A cell that memory cannot hold is a row that says so. Raises ConfigError for what cannot be measured as asked, and
    for a folder that holds another measurement.
    """
    methods = list(_methods(plan))
    config, notes = _config(plan)
    place = _place(plan)
    _begin(plan, folder, config, notes, place, tell)
    done = {key_of(row) for row in read_geometry(folder)}
    todo = [
        (context, rows, left)
        for context in plan.contexts
        for rows in plan.concurrency
        if (left := [m for m in methods if (context, rows, m.drafter, m.k) not in done])
    ]
    if todo:
        _measure_all(plan, folder, config, place, todo, tell)
    write_json_atomic(folder / MANIFEST, {**read_manifest(folder), "finished": now()})
    return read_geometry(folder)


def _methods(plan: GeometryPlan) -> Iterator[Method]:
    """Plain steps first: the others are held against them."""
    published = drafts_for(plan.geometry, thin=plan.thin)
    wanted = tuple(published) if plan.drafters is None else plan.drafters
    yield Method(BASELINE, 0)
    for width in plan.widths:
        yield Method(LOOKUP, width - 1)
    for name in wanted:
        if name not in published:
            raise unknown_name(f"published draft for {plan.geometry}:", name, published)
        yield Method(name, published[name].k, published[name])


def _config(plan: GeometryPlan) -> tuple[dict[str, Any], list[str]]:
    """The target's config, its window stretched where a context is beyond it; and what a reader must know."""
    for name, least in (("contexts", 1), ("concurrency", 1), ("widths", 2)):
        if not all(value >= least for value in getattr(plan, name)):
            raise ConfigError(f"{name} {list(getattr(plan, name))}: each must be at least {least}")
    if not 1 <= plan.tau <= MOST_DRAFT_TOKENS:
        raise ConfigError(f"tau {plan.tau:g}: a round emits at least 1 token, and {MOST_DRAFT_TOKENS} at most")
    config = target_config(plan.geometry, thin=plan.thin)
    notes = [f"τ = {plan.tau:g} is scripted: an input, not a result; weights are random"]
    if plan.thin:
        notes.append("thin: another width than published; no figure of this folder says anything of the model")
    window, longest = config["max_position_embeddings"], max(plan.contexts)
    if longest > window:
        notes.append(f"contexts beyond the published window of {window} tokens are run all the same: speed alone")
    return {**config, "max_position_embeddings": max(window, 2 * longest)}, notes


def _place(plan: GeometryPlan) -> _Place:
    device = resolve_device(plan.device)
    wanted = resolve_dtype(plan.dtype, device)
    dtype = wanted if isinstance(wanted, torch.dtype) else torch.bfloat16  # random weights have none of their own
    return _Place(device, dtype, _static(plan, device) is not None)


def _static(plan: GeometryPlan, device: torch.device) -> Static | None:
    """What makes the rounds of a cell static. Raises ConfigError for a mode that is unknown or cannot be had."""
    try:
        config = RunConfig.model_validate({"target": {"graphs": plan.graphs, "device": str(device)}})
    except ValidationError as error:
        raise ConfigError(f"graphs {plan.graphs!r}: {error.errors()[0]['msg']}") from None
    return static_rounds(config, {}, device)[0]


def _begin(
    plan: GeometryPlan, folder: Path, config: Mapping[str, Any], notes: list[str], place: _Place, tell: Tell
) -> None:
    """Start the folder, or go on with it. Raises ConfigError if it holds another measurement."""
    settings = {**asdict(plan), "dtype": str(place.dtype), "device": str(place.device), "graphs": place.graphs}
    settings["tau_scripted"] = settings.pop("tau")
    settings["drafters"] = [method.drafter for method in _methods(plan) if method.draft is not None]
    model = {"weights": "random", "seed": plan.seed, "config": dict(config)}
    manifest = make_manifest(host=host_facts(), settings=settings, model=model, data={"text": "random ids"})
    for note in notes:
        tell(note)
    if not (folder / MANIFEST).exists():
        folder.mkdir(parents=True, exist_ok=True)
        speed = None if plan.thin else measure_bandwidth_bytes_per_s(place.device)["read"]
        write_json_atomic(folder / MANIFEST, {"schema": 1, **manifest, "read_bytes_per_s": speed, "notes": notes})
        return
    held = read_manifest(folder)
    if held.get("settings_digest") != manifest["settings_digest"]:
        apart = differing_keys(held.get("settings") or {}, manifest["settings"])
        raise ConfigError(f"{folder} holds another measurement ({'; '.join(apart[:3])}); choose another folder")
    drop_what_is_tried_again(folder)


def _measure_all(
    plan: GeometryPlan,
    folder: Path,
    config: Mapping[str, Any],
    place: _Place,
    todo: list[tuple[int, int, list[Method]]],
    tell: Tell,
) -> None:
    empty: Any = empty_model(config, place.dtype)
    for name, draft in drafts_for(plan.geometry, thin=plan.thin).items():
        longer = {**draft.config, "max_position_embeddings": config["max_position_embeddings"]}
        write_draft(folder / DRAFTS / name, longer, draft.shapes, plan.seed)
    models: list[nn.Module] = []

    def make() -> None:
        without_plans(place.device)
        tell(f"making {plan.geometry}{' (thin)' if plan.thin else ''} on {place.device} in {place.dtype}")
        models.append(random_target(config, place.dtype, place.device, plan.seed))
        if place.device.type == "cuda":
            fuse_norms(models[0])

    lacking = memory_reason(weight_bytes(empty), place.device) or without_memory(make, place.device)
    speed = read_manifest(folder).get("read_bytes_per_s")
    for context, rows, methods in todo:
        blank = [(m, _blank(plan, place, context, rows, m)) for m in methods]
        why = f"the weights do not fit: {lacking}" if lacking else None
        if why is None:
            tell(f"{plan.geometry}: context {context:,}, {rows} row{'s' if rows > 1 else ''}")
            why = _measure_cell(plan, folder, models[0], blank, speed, tell)
        for _, row in blank if why else ():
            row.status, row.reason = "out_of_memory", why
            append_row(folder, row)


def _measure_cell(
    plan: GeometryPlan,
    folder: Path,
    model: Any,
    blank: Sequence[tuple[Method, GeometryRow]],
    speed: float | None,
    tell: Tell,
) -> str | None:
    """Measure all methods of a cell, adding each row once it is filled; why the cell does not fit, None if it does."""
    first = blank[0][1]
    context, rows, most = first.context_tokens, first.concurrency, max(m.k for m in _methods(plan))
    device = next(model.parameters()).device
    if why := memory_reason(needed_bytes(plan, model.config, model.dtype, context, rows, most), device):
        return why
    cells: list[Cell] = []

    def make() -> None:
        static = _static(plan, device)
        cells.append(Cell.open(plan, model, context, rows, folder / DRAFTS, most=most, speed=speed, static=static))

    if why := without_memory(make, device):
        return why
    cell = cells.pop()
    if device.type == "cuda" and rows == 1 and not read_manifest(folder).get("launches"):
        write_json_atomic(folder / MANIFEST, {**read_manifest(folder), "launches": _launches(cell.target)})
    try:
        for method, row in blank:
            _fill(cell, method, row, tell)
            append_row(folder, row)
    finally:
        cell.target.close()
    return None


def _launches(target: Target) -> dict[str, Any]:
    """How a plain step is given to the GPU, as the card of a run tells it; rows do not depend on it."""
    try:
        return launches_of(target)
    except RuntimeError as error:
        return {"unknown": str(error)}


def _fill(cell: Cell, method: Method, row: GeometryRow, tell: Tell) -> None:
    """Fill the row; a method that fails leaves its reason there, and the others go on."""
    try:
        why = without_memory(lambda: cell.measure(method, row), cell.target.info.device)
        if why:
            row.status, row.reason = "out_of_memory", why
    except (Exception, SystemExit) as error:
        raise_interrupt(error)
        row.status, row.reason = "error", cause_of(error)
    if row.reason:
        tell(f"{method.drafter} k={method.k}: {row.reason}")


def _blank(plan: GeometryPlan, place: _Place, context: int, rows: int, method: Method) -> GeometryRow:
    return GeometryRow(
        geometry=plan.geometry,
        thin=plan.thin,
        dtype=str(place.dtype).removeprefix("torch."),
        device=str(place.device),
        graphs=place.graphs,
        context_tokens=context,
        concurrency=rows,
        drafter=method.drafter,
        k=method.k,
        tau_scripted=float(min(plan.tau, method.k + 1)),
    )
