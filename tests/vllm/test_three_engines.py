"""One tiny model and the same three rollouts through our engine, SGLang and vLLM: one text, and three look-up rules.

Needs the environments of both servers; skipped, naming the script that builds it, where SGLang's is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from cpu_servers import Servers, against_plain, own_engine
from lookup_rules import Steps, Trie, first_place, last_place, play
from transformers import AutoTokenizer
from vllm_servers import NGRAM, VLLMServers, server_python

from agentbench_spec.results.rows import TurnRow
from agentbench_spec.results.summary import summarise
from agentbench_spec.rollout import read_rollouts
from agentbench_spec.rollouts.render import Renderer
from agentbench_spec.runs.execute import run
from agentbench_spec.serving.engines import engine_of
from agentbench_spec.serving.served_run import run_served

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

EMITTED = 48
RULE = {"most": NGRAM["prompt_lookup_max"], "least": NGRAM["prompt_lookup_min"], "k": NGRAM["num_speculative_tokens"]}
WIDTH = RULE["k"] + 1
"""Tokens that SGLang verifies in a step, the anchor among them: as many drafts as the others have."""

Turns = dict[tuple[str, int], TurnRow]


class SGLangServers(Servers):
    """SGLang's servers, n-gram with as many drafts as the others."""

    def _kind(self, name: str) -> tuple[Any, dict[str, str]]:
        if name == "ngram":
            return engine_of("sglang").launchable("NGRAM", {"num_draft_tokens": WIDTH}), {}
        return super()._kind(name)


@dataclass(frozen=True)
class Measured:
    """The rows of three engines, by drafter, and what the rules are played on."""

    rows: dict[str, list[TurnRow]]
    prompts: dict[tuple[str, int], list[int]]
    texts: dict[tuple[str, int], list[int]]
    """The target's greedy answers, longer than those measured."""

    def turns(self, engine: str, drafter: str) -> Turns:
        return {(row.rollout, row.turn): row for row in self.rows[engine] if row.drafter == drafter}


@pytest.fixture(scope="module")
def sglang(servers: VLLMServers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """SGLang's servers for the same target and rollouts."""
    if server_python("SGLANG_VENV") is None:
        pytest.skip("no SGLang environment: tests/sglang/run.sh builds it; then run tests/vllm/run.sh again")
    with ExitStack() as stack:
        own = SGLangServers(tmp_path_factory.mktemp("sglang"), stack)
        own.target, own.rollouts = servers.target, servers.rollouts
        yield own


@pytest.fixture(scope="module")
def measured(servers: VLLMServers, sglang: Servers, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """All engines, one after another: idle servers poll."""
    folder, rows, most = tmp_path_factory.mktemp("engines"), {}, {"decode__max_new_tokens": EMITTED}
    look_up = {"drafter_options__ngram": {"max_n": RULE["most"], "min_n": RULE["least"]}}
    ours = own_engine(servers, ["none", "ngram"], k=RULE["k"], **most, **look_up)
    rows["engine"] = run(ours, folder / "engine").rows
    longer = run(own_engine(servers, ["none"], decode__max_new_tokens=EMITTED + WIDTH), folder / "longer").rows
    config = servers.config(servers.url("none"), servers.url("ngram"), vllm__warm_up_rollouts=0, **most)
    rows["vllm"] = run_served(config, folder / "vllm", environ={}).rows
    servers.stop()
    rows["sglang"] = against_plain(sglang, "ngram", folder / "sglang", sglang__warm_up_rollouts=0, **most).rows
    texts = {(row.rollout, row.turn): row.output_ids or [] for row in longer}
    return Measured(rows, prompts(servers), texts)


def prompts(servers: VLLMServers) -> dict[tuple[str, int], list[int]]:
    """Prompt of each turn, rollouts and turns in the order in which they were served."""
    renderer = Renderer(AutoTokenizer.from_pretrained(servers.target))
    return {
        (rollout.id, turn): renderer.prompt(rollout, message)
        for rollout in read_rollouts(servers.rollouts)
        for turn, message in enumerate(rollout.decode_points())
    }


def test_three_engines_say_the_same(measured: Measured) -> None:
    """Fp32 greedy, nine turns, plain and drafted, in three engines: one text, token for token."""
    said = {
        (engine, drafter): {turn: row.output_ids for turn, row in measured.turns(engine, drafter).items()}
        for engine in measured.rows
        for drafter in ("none", "ngram")
    }
    assert len(said) == 6 and len(said["engine", "none"]) == 9
    assert all(text == said["engine", "none"] for text in said.values())
    assert all(row.status == "ok" for rows in measured.rows.values() for row in rows)


def played(measured: Measured, draft: Callable[..., list[int]]) -> dict[tuple[str, int], Steps]:
    return {
        turn: play(prompt, measured.texts[turn], EMITTED, partial(draft, **RULE))
        for turn, prompt in measured.prompts.items()
    }


def test_vllm_looks_for_the_first_place(measured: Measured) -> None:
    """Its rule explains every reported step, in order, and how many steps had no draft; so τ is explained whole."""
    rows = measured.turns("vllm", "ngram")
    for turn, steps in played(measured, first_place).items():
        row, drafted = rows[turn], [step for step in steps if step[1]]
        assert list(zip(row.matched_lengths, row.proposed_lengths, strict=True)) == [
            *drafted,
            *[(0, 0)] * (len(steps) - len(drafted)),
        ]


def test_our_engine_looks_for_the_last_place(measured: Measured) -> None:
    """The same for ours: every round in order, always k drafts where anything was found."""
    rows = measured.turns("engine", "ngram")
    for turn, steps in played(measured, last_place).items():
        assert rows[turn].matched_lengths == [accepted for accepted, _ in steps]


def test_sglang_remembers_what_it_said(measured: Measured) -> None:
    """A trie of all that was generated since the flush, and nothing of the prompts but their tails, explains how many
    drafts each of its steps accepted. It learns across turns, which the others do not."""
    rows, trie = measured.turns("sglang", "ngram"), Trie(WIDTH)
    for turn, prompt in measured.prompts.items():
        accepted = trie.play(prompt, measured.texts[turn], EMITTED)
        counted = [accepted.count(length) for length in range(WIDTH)]
        histogram = rows[turn].matched_histogram
        assert histogram == counted[: len(histogram)] and sum(histogram) == len(accepted), turn


def test_one_table_holds_all_engines(measured: Measured) -> None:
    """Measured alike, the engines stand in one table, each line with its engine and version. One text, and yet three
    values of τ: the rules are not interchangeable, and one played in another's place would be noticed."""
    summary = summarise((row for rows in measured.rows.values() for row in rows), include_degenerate=True)
    print(*(f"{own.drafter}: {own.tau.pooled:.4f} over {own.turns} turns" for own in summary.drafters), sep="\n")
    drafted = {own.drafter: own.tau.pooled for own in summary.drafters if own.drafter.startswith("ngram")}
    assert set(drafted) == {"ngram (engine)", "ngram (sglang 0.5.23)", "ngram (vllm 0.32.0)"}
    assert len(set(drafted.values())) == 3 and all(tau and tau > 1 for tau in drafted.values())
    assert len(summary.drafters) == 6 and not any("different turns" in line for line in summary.warnings)
