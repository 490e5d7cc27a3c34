"""A served target in a thread of the test, scripted or free, and a real client of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from runkit import rows_of

pytest.importorskip("uvicorn", reason="the endpoint needs uvicorn: pip install 'agentbench-spec[serve]'")
pytest.importorskip("starlette", reason="the endpoint needs starlette: pip install 'agentbench-spec[serve]'")

from transformers import PreTrainedTokenizerFast

from agentbench_spec.config import RunConfig, load_config
from agentbench_spec.config.bridge_limits import BridgeConfig
from agentbench_spec.results.rows import TurnRow
from agentbench_spec.rollout import Rollout, read_rollouts
from agentbench_spec.serving.bridge.engine_room import Script
from agentbench_spec.serving.bridge.serve_run import Server, serve

ROOM = ("--set", "target.capacity_tokens=6000", "--set", "target.beyond_window=flag")
"""More than the tiny target was trained for: a byte is a token, and agents are wordy."""
DONE = "Done."


def settings(tiny: Path, **more: Any) -> RunConfig:
    tree = {
        "target.source": str(tiny),
        "target.fast_linears": False,
        "target.capacity_tokens": 6000,
        "target.beyond_window": "flag",
        "drafters": ["ngram"],
        "decode.max_new_tokens": 24,
        "replay.history": "live",
        "workload.name": "serve",
        **more,
    }
    return load_config(flags=tree)


def saying(tiny: Path, *texts: str, first: Callable[[], object] = lambda: None) -> Script:
    """A script that says `texts`, one a request, then that it is done; first: called before each."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny)
    left = iter(texts)

    def script(rollout: Rollout, index: int) -> list[int]:
        first()
        return [*tokenizer.encode(next(left, DONE), add_special_tokens=False), tokenizer.eos_token_id]

    return script


@dataclass
class Running:
    """A server at work; its folder is finished when the block is left."""

    url: str
    folder: Path
    server: Server

    def client(self, key: str = "none", **options: Any) -> Any:
        """The `openai` client; no retries, so that a refusal is seen."""
        openai = pytest.importorskip("openai", reason="the client is needed: pip install openai")
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=60, **options)

    def say(self, *messages: Any, **options: Any) -> Any:
        """The answer to a request; a text is a user's message."""
        sent = [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]
        return self.client().chat.completions.create(model="tiny", messages=sent, **options)

    @property
    def rows(self) -> list[TurnRow]:
        return rows_of(self.folder)

    @property
    def sessions(self) -> list[Rollout]:
        return list(read_rollouts(self.folder / "live.jsonl"))


@contextmanager
def serving(
    config: RunConfig, folder: Path, *, key: str | None = None, script: Script | None = None, **bridge: Any
) -> Iterator[Running]:
    """A server on a free port, and its finished folder afterwards. What it raises is raised here."""
    told: Queue[tuple[str, Server] | BaseException] = Queue()
    ended: list[BaseException] = []

    def work() -> None:
        try:
            limits = BridgeConfig(port=0, **bridge)
            serve(config, limits, folder, key=key, argv=[], script=script, begun=lambda *begun: told.put(begun))
        except BaseException as error:
            ended.append(error)
            told.put(error)

    thread = threading.Thread(target=work)
    thread.start()
    begun = told.get(timeout=120)
    if isinstance(begun, BaseException):
        raise begun
    try:
        yield Running(begun[0], folder, begun[1])
    finally:
        begun[1].should_exit = True
        thread.join(timeout=120)
    if ended:
        raise ended[0]


def outputs(rows: Sequence[TurnRow]) -> list[tuple[str, int, str]]:
    """(session, turn, status) of each row."""
    return [(row.rollout, row.turn, row.status) for row in rows]
