"""The paper's values as shipped, and where a measured one stands."""

from __future__ import annotations

import pytest

from agentbench_spec.errors import ConfigError
from agentbench_spec.results.intervals import Interval
from agentbench_spec.results.paper import check_table, paper_facts, paper_target, published, verdict


def interval(low: float, high: float) -> Interval:
    return Interval(low, high, 0.95, 12, 2000)


def test_every_fact_says_where_it_was_read() -> None:
    """Fails if a number of the paper is shipped without its provenance, or cells of tables 2 and 3 were lost."""
    assert all(fact.source and fact.value for fact in paper_facts())
    assert sum(fact.table in "23" and fact.metric == "speedup" for fact in paper_facts()) == 64
    assert sum(fact.table in "23" and fact.metric == "tau" for fact in paper_facts()) == 10


def test_a_known_cell_and_an_unknown_one() -> None:
    """Fails if a cell nobody knows gets a value, or a known one the wrong cell's."""
    found = published("table3", "Qwen3-4B", "BFCL-v3", "dspark", "speedup")
    assert found is not None and found.text == "2.11" and "chart data" in found.source
    assert (found.low, found.high) == (pytest.approx(2.105), pytest.approx(2.115))
    assert published("table3", "Qwen3-4B", "BFCL-v3", "dspark", "tau_raw") is None
    assert published("table3", "Qwen3-14B", "BFCL-v3", "dspark", "speedup") is None
    assert published("table2", "Qwen3-4B", "BFCL-v3", "dspark", "speedup") is None
    whole = published("table4", "Qwen3-4B", "Alpaca (concurrency 64)", "dlite", "tokens_per_s")
    assert whole is not None and (whole.low, whole.high) == (14299.5, 14300.5)


def test_clipped_tau_has_no_value_of_the_paper() -> None:
    """The released loop does not clip. Fails if our clipped τ is compared with its unclipped one."""
    assert published("table3", "Qwen3-4B", "SWE-Bench", "dlite", "tau") is None
    assert published("table3", "Qwen3-4B", "SWE-Bench", "dlite", "tau_raw") is not None


def test_figure_1b_gives_a_range_for_existing_drafters_only() -> None:
    """Fails if the range of the others is taken for DLite's."""
    found = published("figure1b", "", "agentic", "eagle3", "tau_raw")
    assert found is not None and (found.low, found.high, found.text) == (1.0, 2.0, "about 1-2")
    assert published("figure1b", "", "agentic", "dlite", "tau_raw") is None


def test_verdicts() -> None:
    """Fails if a verdict is turned round, forgets that a published number is rounded, or is given without interval."""
    paper = published("table3", "Qwen3-4B", "BFCL-v3", "dspark", "speedup")  # 2.11
    assert verdict(interval(2.0, 2.3), paper) == "inside"
    assert verdict(interval(2.112, 2.3), paper) == "inside"
    assert verdict(interval(2.2, 2.3), paper) == "above"
    assert verdict(interval(1.9, 2.1), paper) == "below"
    assert verdict(None, paper) == verdict(interval(2, 3), None) == "unknown"


def test_targets_are_known_by_the_last_part_of_their_name() -> None:
    """Fails if a local copy is not recognised, or another model passes for the paper's."""
    assert paper_target("Qwen/Qwen3-4B") == paper_target("/models/Qwen3-4B/") == "Qwen3-4B"
    assert paper_target("Qwen/Qwen3-4B-Base") is None and paper_target("smollm2-135m") is None


def test_an_unknown_table_lists_the_known_ones() -> None:
    """Fails if the reader has to guess names."""
    with pytest.raises(ConfigError, match="table1, table2"):
        check_table("table9")
