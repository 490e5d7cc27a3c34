"""A run of generated rollouts cannot be read as a run of the workload they stand in for."""

from __future__ import annotations

from pathlib import Path

from localmodel import save_model
from servedkit import FakeServer, served, settings

from agentbench_spec.config import load_config
from agentbench_spec.runs.execute import run


def test_a_run_of_a_standin_is_named_so_in_every_row(tmp_path: Path) -> None:
    """Fails if rows of generated rollouts carry the name of the workload they stand in for."""
    flags = {
        "target.source": str(save_model(tmp_path / "model")),
        "workload.name": "mt_bench",
        "workload.options.offline_standin": True,
        "workload.limit": 1,
        "decode.max_new_tokens": 2,
        "drafters": [],
        "target.device": "cpu",
    }
    done = run(load_config(flags=flags), tmp_path / "run")
    assert len(done.rows) == 2
    for row in done.rows:
        assert row.workload == "mt_bench-standin" and row.rollout.startswith("mt_bench-standin-")
        assert row.labels["standin"] == "True"


def test_a_served_run_of_a_standin_is_named_so_too(tmp_path: Path) -> None:
    """Fails if servers' rows take the workload's name from the settings: the stand-in passed for the real one."""
    more = {"workload__options": {"offline_standin": True}, "workload__limit": 1}
    with FakeServer() as server:
        config = settings(save_model(tmp_path / "model"), Path("mt_bench"), server.base_url, **more)
        rows = served(config, tmp_path / "run").rows
    assert rows and {row.workload for row in rows} == {"mt_bench-standin"}
