"""docs/live.md: the environment on the page works as it stands, and every installed one is in its table."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from agentbench_spec.errors import ConfigError, ContractError
from agentbench_spec.plugins import available
from agentbench_spec.rollout import Message
from agentbench_spec.runs.live.live_tasks import each_task, open_live

PAGE = (Path(__file__).parents[2] / "docs" / "live.md").read_text("utf-8")


@pytest.fixture
def greetings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the page's live workload, as a module that can be imported."""
    (code,) = re.findall(r"^```python\n(import agentbench_spec.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "page_of_greetings.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("page_of_greetings", None)
    return "page_of_greetings:Greetings"


def test_the_environment_on_the_page(greetings: str) -> None:
    """Fails if the page's class lacks what a run asks for, or does not solve its own task."""
    (task,) = each_task(open_live(greetings, {}), limit=None, seed=0)
    assert [message.content for message in task.start()] == ["Say hello."]
    assert task.step(Message(role="assistant", content="Hello!")) is None
    assert task.score() == {"solved": True}
    task.start()
    assert task.score() == {"solved": False}


def test_every_environment_is_on_the_page() -> None:
    """Fails if one is added without a word on its world."""
    ours = [name for name, owner in available("environment").items() if owner.startswith("agentbench-spec ")]
    assert ours and [name for name in ours if f"| `{name}` |" not in PAGE] == []


class Odd:
    """A live workload whose tasks are whatever it is made with."""

    name = "odd"

    def __init__(self, *tasks: object) -> None:
        self._tasks = tasks

    def environments(self, *, limit: int | None = None, seed: int = 0) -> list[object]:
        return list(self._tasks)


def test_tasks_that_are_none_are_named(greetings: str) -> None:
    """Fails if a broken plugin is found out in the middle of a run."""
    (task,) = each_task(open_live(greetings, {}), limit=None, seed=0)
    for tasks, kind, says in (
        ((7,), ContractError, "a task lacks tools\\(\\), start\\(\\)"),
        ((task, task), ContractError, "two tasks have the id 'greeting/0'"),
        ((), ConfigError, "gave no tasks"),
    ):
        with pytest.raises(kind, match=says):
            list(each_task(Odd(*tasks), limit=None, seed=0))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="bfcl_v3"):
        open_live("bfcl_v4", {})
