"""Detection: by keys and shape, in a fixed order, and never by guess."""

from __future__ import annotations

from typing import Any

import pytest

from agentbench_spec.rollouts.importing import RowFault
from agentbench_spec.rollouts.importing.detect import detect

MESSAGE = {"role": "user", "content": "x"}
EVENT = {"id": 0, "source": "agent", "action": "run", "args": {}}
STEP = {"action": "ls", "observation": "a", "response": "r", "state": {}}


@pytest.mark.parametrize(
    ("value", "format"),
    [
        ({"trajectory": [STEP], "history": [MESSAGE], "info": {}}, "swe_agent"),
        ({"trajectory": [STEP], "history": [MESSAGE], "instance_id": "a"}, "swe_agent"),
        ({"history": [MESSAGE]}, "swe_agent"),
        ({"trajectory": [STEP], "info": {}}, "swe_agent"),
        ({"trajectory_format": "mini-swe-agent-1.1", "messages": [MESSAGE]}, "mini_swe_agent"),
        ({"messages": [MESSAGE], "info": {"exit_status": "x"}}, "mini_swe_agent"),
        ({"messages": [MESSAGE], "info": {"anything": 1}}, "openai_chat"),
        ({"instance_id": "a", "history": [EVENT]}, "openhands"),
        ({"instance_id": "a", "history": [[EVENT, EVENT]]}, "openhands"),
        ({"instance_id": "a", "history": []}, "openhands"),
        ({"task": "os", "index": 1, "history": [MESSAGE]}, "openai_chat"),
        ({"task_id": 1, "traj": [MESSAGE]}, "tau_bench"),
        ({"turns": ["a", "b"]}, "turns"),
        ({"messages": [MESSAGE], "turns": 3}, "openai_chat"),
        ({"messages": "[]"}, "openai_chat"),
        ({"messages": [MESSAGE], "trajectory": None}, "openai_chat"),
        ({"messages": [MESSAGE], "response": {"choices": []}}, "llm_completions"),
        ({"id": "a", "workload": "w", "messages": [MESSAGE]}, "rollout"),
        ({"id": "a", "workload": "w", "messages": [MESSAGE], "extra": 1}, "openai_chat"),
        ({"conversations": [{"from": "human", "value": "x"}]}, "sharegpt"),
        ({"conversations": [MESSAGE]}, "openai_chat"),
        ({"trajectory": [{"role": "system", "text": None, "system_prompt": "s"}]}, "nebius"),
        ({"trajectory": [MESSAGE], "trajectory_id": "t"}, "openai_chat"),
        ([MESSAGE, MESSAGE], "openai_chat"),
        ([MESSAGE, {"reward": 1}], "openai_chat"),
        ([{"from": "human", "value": "x"}], "sharegpt"),
        ([EVENT, {"observation": "run", "content": "x"}], "openhands"),
        ([[EVENT, EVENT]], "openhands"),
    ],
)
def test_format_of(value: Any, format: str) -> None:
    """Fails if a row's format changes with the order of the detector."""
    assert detect(value) == format


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"messages": [MESSAGE], "conversations": [MESSAGE], "k": 1}, "(keys seen: conversations, k, messages)"),
        ({"messages": [MESSAGE], "trajectory": [STEP]}, "trajectory and messages could each be the rollout"),
        ({"traj": [MESSAGE], "messages": [MESSAGE]}, "name one with --format"),
        ({"question": "x", "answer": "y"}, "no list of messages or events (keys seen: answer, question)"),
        ({"messages": 3}, "messages holds no list"),
        ({}, "keys seen: none"),
        ([MESSAGE, EVENT], "mixes messages and events"),
        ([{"a": 1}], "a list whose first item has the keys a"),
        ([1], "a list whose first item has the keys int"),
        ([], "empty list"),
        (None, "found NoneType"),
        ("x", "found str"),
    ],
)
def test_ambiguity_is_an_error_with_the_keys_seen(value: Any, reason: str) -> None:
    """Fails if a row that may be two things, or none, is guessed at."""
    with pytest.raises(RowFault) as caught:
        detect(value)
    assert reason in str(caught.value)
