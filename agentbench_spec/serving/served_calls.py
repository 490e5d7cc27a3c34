"""Tool calls of an answer: those the server took out of the text itself, or those its text makes."""

from __future__ import annotations

from agentbench_spec.results.rows import TurnRow
from agentbench_spec.rollout import Rollout
from agentbench_spec.rollouts.toolcalls.spoken import call, gathered_pieces
from agentbench_spec.rollouts.toolcalls.verdicts import CallJudge, judge, reference_of
from agentbench_spec.runs.fill import fill_calls
from agentbench_spec.serving.stream import Answer


def judge_answer(row: TurnRow, answer: Answer, rollout: Rollout, message: int, judge_text: CallJudge | None) -> None:
    """Fill what is said of the calls of an answer that counts; judge_text: None on the chat route.

    There the server finds the calls. Where it found none, whether it looks for any is not known: nothing is judged.
    """
    if row.status not in ("ok", "retracted"):
        return
    if answer.calls:
        found = gathered_pieces([call(one["name"], one["arguments"].strip() or "{}") for one in answer.calls])
        fill_calls(row, judge(found, *reference_of(rollout, message)))
    elif judge_text is not None and answer.output_ids is not None:
        fill_calls(row, judge_text.of_ids(rollout, message, answer.output_ids))
