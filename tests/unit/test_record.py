"""The script that records results/: its commands, its budget, and what it does with a run that is there already."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentbench_spec.config import load_config
from agentbench_spec.engine.embedded import shipped_drafter
from agentbench_spec.plugins import available
from agentbench_spec.runs.presets import load_presets

ROOT = Path(__file__).parents[2]
METHODS = ("none", "ngram", "suffix", "eagle3", "dflash", "dspark", "dlite")


@pytest.fixture(scope="module")
def record() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("record_script", ROOT / "scripts" / "record.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["record_script"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def runs(record: ModuleType) -> list[Any]:
    """The parts that are runs, not tables."""
    return [part for part in record.PARTS if part.settings]


def test_everything_fits_into_the_budget(record: ModuleType) -> None:
    """Fails if a part grows and the estimate of the whole is no longer what one call may take."""
    assert sum(part.minutes for part in record.PARTS) + record.NOTEBOOKS_MINUTES <= record.BUDGET_MINUTES


def test_every_part_is_a_command_over_all_methods(record: ModuleType) -> None:
    """Fails if a setting is misspelt, a method or workload is unknown, or a context does not fit the window."""
    tables = [part.name for part in record.PARTS if not part.settings]
    assert tables == ["table3", "table4"] and set(tables) <= set(load_presets().tables)
    for part in runs(record):
        config = load_config(ROOT / record.DEMO, part.settings)
        assert config.drafters == METHODS and set(METHODS) <= set(available("drafter"))
        assert config.workload.name in available("workload") and config.target.source == "smollm2-135m"
        assert config.workload.name != "bfcl_v3" or config.workload.options == {"subset": "shipped"}


def test_the_notebooks_read_what_is_recorded(record: ModuleType) -> None:
    """Fails if the run they read is renamed."""
    (first, *_) = runs(record)
    for name in ("report_figures", "reproduce_tables"):
        assert first.folder.name in (ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8")


def test_a_run_is_left_alone_continued_or_replaced(
    record: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails if a finished run is measured again, a killed one started anew, or another one removed unasked."""
    monkeypatch.chdir(tmp_path)
    record.DEMO.parent.mkdir()
    shutil.copy(ROOT / record.DEMO, record.DEMO)
    part = runs(record)[0]
    assert record._begun(part, False) == "" and part.words("")[:2] == ["run", "--config"]
    settings = load_config(record.DEMO, part.settings).model_dump(mode="json")
    manifest = part.folder / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schema": 1, "settings": settings}), "utf-8")
    assert record._begun(part, False) == "killed" and "--resume" in part.words("killed")
    manifest.write_text(json.dumps({"schema": 1, "settings": settings, "finished": "now"}), "utf-8")
    assert record._begun(part, True) == "finished"
    shipped = {"none": "0", "dlite": shipped_drafter("dlite", "smollm2-135m")["revision"]}
    told = {"schema": 1, "settings": settings, "finished": "now", "model": {"drafters": shipped}}
    manifest.write_text(json.dumps(told), "utf-8")
    assert record._begun(part, False) == "finished"
    manifest.write_text(json.dumps(told | {"model": {"drafters": shipped | {"dlite": "sha256:0"}}}), "utf-8")
    with pytest.raises(SystemExit, match="other drafters"):
        record._begun(part, False)
    manifest.write_text(
        json.dumps({"schema": 1, "settings": settings | {"drafters": ["none"]}, "finished": "now"}), "utf-8"
    )
    with pytest.raises(SystemExit, match="other settings"):
        record._begun(part, False)
    assert record._begun(part, True) == "" and not manifest.exists()


def test_a_part_beyond_the_budget_waits_for_the_next_call(
    record: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if a long part is begun that cannot end in time."""
    assert not record._recorded(record.PARTS[-1], 0.0, False)
    assert "are left" in capsys.readouterr().out
