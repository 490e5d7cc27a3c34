"""A run of generated rollouts cannot be read as a run of the workload they stand in for."""

from __future__ import annotations

from pathlib import Path

from localmodel import save_model

from agentbench_spec.config import load_config
from agentbench_spec.run import run


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
