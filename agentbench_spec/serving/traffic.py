"""Rollouts through servers: the turns of one rollout in order, rollouts at a fixed concurrency, servers sharing them.

A request that fails ends its rollout as a row that says so. A server that dies gives its unfinished rollouts back, to
be replayed whole on another server or by a resumed run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

from agentbench_spec.errors import AgentBenchError, MeasurementError
from agentbench_spec.results.rows import Status, TurnRow
from agentbench_spec.rollout import Message, Rollout
from agentbench_spec.rollouts.render import common_prefix
from agentbench_spec.rollouts.toolcalls.verdicts import CallJudge
from agentbench_spec.runs.fill import describe
from agentbench_spec.runs.replay import Renders
from agentbench_spec.serving.bodies import Ask
from agentbench_spec.serving.client import Client, Unauthorised
from agentbench_spec.serving.served_calls import judge_answer
from agentbench_spec.serving.server_rows import Served, blank_row, fill_answer
from agentbench_spec.serving.servers import Server
from agentbench_spec.serving.stream import Answer, RequestFailed


class ServerGone(AgentBenchError):
    """A server no longer answers its health check."""


@dataclass(slots=True)
class Walk:
    """Where one rollout stands."""

    said: Rollout
    served_ids: list[list[int]] = field(default_factory=list)
    """Prompt with answer of each earlier turn: what the server's prefix cache has seen of this rollout."""
    expected: list[int] = field(default_factory=list)
    """Prompt with history's reply of the last turn: what the next prompt should begin with."""


class OneAtATime:
    """A renderer for several threads: tokenizers may not be entered twice at once."""

    def __init__(self, renderer: Renders) -> None:
        self._renderer, self._lock = renderer, threading.Lock()

    def prompt(self, rollout: Rollout, index: int) -> list[int]:
        """As the renderer's."""
        with self._lock:
            return self._renderer.prompt(rollout, index)

    def reply(self, rollout: Rollout, index: int) -> list[int]:
        """As the renderer's."""
        with self._lock:
            return self._renderer.reply(rollout, index)

    def text(self, ids: Sequence[int]) -> str:
        """As the renderer's."""
        with self._lock:
            return self._renderer.text(ids)


class ServedReplayer:
    """Replays rollouts on one server. Used by several threads at once.

    renderer: messages to token ids; not needed for the chat route.
    """

    def __init__(
        self,
        client: Client,
        server: Server,
        served: Served,
        ask: Ask,
        renderer: Renders | None,
        judge: CallJudge | None = None,
    ) -> None:
        """judge: of the calls in texts of the native route; on the chat route the server finds the calls."""
        self.client, self.server, self.served, self.ask, self.renderer = client, server, served, ask, renderer
        self.judge = judge
        self.heard: Callable[[TurnRow, Answer], None] = lambda row, answer: None
        """Told each answer with its row, by the thread that asked."""

    def replay(self, rollout: Rollout) -> list[TurnRow]:
        """The rows of all turns; those after a failed one say so. Raises ServerGone if it died, or Unauthorised."""
        walk, rows = Walk(rollout), []
        ended: TurnRow | None = None
        for turn, message in enumerate(rollout.decode_points()[: self.served.max_turns]):
            row = blank_row(self.served, self.server, rollout, turn, message)
            rows.append(row)
            if ended is not None:
                row.status, row.error = "not_reached", f"turn {ended.turn} ended the rollout: {ended.error}"
                continue
            with self.faults_into(row):
                self._turn(walk, row, rollout, message)
            if row.status == "error":
                ended = row
        return rows

    @contextmanager
    def faults_into(self, row: TurnRow) -> Iterator[None]:
        """What goes wrong becomes the row's error. Raises ServerGone if the server died, or Unauthorised."""
        try:
            yield
        except RequestFailed as error:
            if not self.client.healthy():
                gone = f"{self.server.base_url} died during {row.rollout} turn {row.turn}: {error}"
                raise ServerGone(gone) from error
            row.status, row.error = "error", describe(error)
        except Unauthorised:
            raise
        except Exception as error:  # one bad rollout never ends a run
            row.status, row.error = "error", describe(error)

    def _turn(self, walk: Walk, row: TurnRow, rollout: Rollout, message: int) -> None:
        if self.renderer is None:
            tools = rollout.tools_at(message)
            answer = self.client.chat(walk.said.messages[:message], tools, self.ask, self._name)
            fill_answer(row, answer, self.server)
            judge_answer(row, answer, rollout, message, None)
            self.heard(row, answer)
            return
        prompt = self.renderer.prompt(walk.said, message)
        if (heard := self.ask_for(walk, row, prompt)) is not None:
            judge_answer(row, heard, rollout, message, self.judge)
            self.heard(row, heard)
            self._advance(walk, prompt, heard, message)

    def ask_for(self, walk: Walk, row: TurnRow, prompt: list[int]) -> Answer | None:
        """The answer to a prompt, in its row; None if the row says why nothing was asked. Raises RequestFailed."""
        row.context_tokens = len(prompt)
        row.drift_tokens = len(walk.expected) - common_prefix(walk.expected, prompt)
        if refusal := self.refusal(prompt):
            row.status, row.error = refusal
            return None
        row.expected_reused_tokens = self._expected_reuse(walk, prompt)
        answer = self.client.generate(prompt, self.ask, self._name)
        fill_answer(row, answer, self.server)
        if answer.prompt_tokens not in (None, len(prompt)):
            row.status, row.error = (
                "invalid",
                f"{len(prompt)} prompt ids sent, the server counted {answer.prompt_tokens}",
            )
        walk.served_ids.append([*prompt, *(answer.output_ids or ())])
        return answer

    @property
    def _name(self) -> str:
        """What the model is called on the OpenAI routes."""
        return str(self.server.model.get("id") or self.served.target)

    def refusal(self, prompt: list[int]) -> tuple[Status, str] | None:
        """(status, why) if a prompt cannot be sent at all."""
        window, need = self.server.window, len(prompt) + self.ask.max_new_tokens
        if window is None or need <= window:
            return None
        return (
            "oversized",
            f"{len(prompt)} prompt tokens + {self.ask.max_new_tokens} new ones exceed the window of {window}",
        )

    def _expected_reuse(self, walk: Walk, prompt: list[int]) -> int | None:
        if self.server.keeps_prefixes is False:
            return 0
        found = [self.server.expected_reuse(before, prompt) for before in walk.served_ids]
        known = [tokens for tokens in found if tokens is not None]
        return max(known, default=0) if len(known) == len(found) else None

    def _advance(self, walk: Walk, prompt: list[int], answer: Answer, message: int) -> None:
        assert self.renderer is not None
        if self.served.history_mode == "self":
            if answer.output_ids is None:
                raise RequestFailed("history=self needs output ids, and the server sent none")
            output = answer.output_ids
            spoken = Message(role="assistant", content=self.renderer.text(output), synthetic=True)
            before, after = walk.said.messages[:message], walk.said.messages[message + 1 :]
            walk.said = walk.said.model_copy(update={"messages": (*before, spoken, *after)})
            walk.expected = [*prompt, *output]
        else:
            walk.expected = [*prompt, *self.renderer.reply(walk.said, message)]


def serve(
    rollouts: Sequence[Rollout],
    replayers: Sequence[ServedReplayer],
    concurrency: int,
    done: Callable[[Rollout, list[TurnRow]], None],
) -> None:
    """Replay `rollouts`, `concurrency` at a time on each server, those behind a router too.

    `done` is called once per rollout, by this thread; those that ask never wait for it, so that what it writes to disk
    costs no server time. Raises MeasurementError if every server died before the end; what `done` was told stays valid.
    """
    pool = _Pool(rollouts)
    threads = [
        threading.Thread(target=pool.work, args=(replayer,), name=f"{replayer.server.base_url}#{i}", daemon=True)
        for replayer in replayers
        for i in range(concurrency * replayer.server.size)
    ]
    for thread in threads:
        thread.start()
    try:
        for rollout, rows in pool.finished(len(threads)):
            try:
                done(rollout, rows)
            except Exception as error:
                pool.stop(error)
    except BaseException as error:  # an interrupt while waiting
        pool.stop(error)
        raise
    pool.raise_failures()


class _Pool:
    """The rollouts still to do, shared by all workers of all servers."""

    def __init__(self, rollouts: Sequence[Rollout]) -> None:
        self._todo = deque(rollouts)
        self._changed = threading.Condition()
        self._busy = 0
        self._gone: dict[str, ServerGone] = {}
        self._failure: BaseException | None = None
        self._results: SimpleQueue[tuple[Rollout, list[TurnRow]] | None] = SimpleQueue()

    def work(self, replayer: ServedReplayer) -> None:
        """Take rollouts until none is left, this server is gone, or something broke."""
        try:
            for rollout in self._rollouts(replayer.server.base_url):
                self._results.put((rollout, replayer.replay(rollout)))
                self._leave()
        except ServerGone as error:
            self._give_back(rollout, replayer.server.base_url, error)
        except BaseException as error:
            self.stop(error)
            self._leave()
        finally:
            self._results.put(None)

    def finished(self, workers: int) -> Iterator[tuple[Rollout, list[TurnRow]]]:
        """Each rollout with its rows as it is done, until all workers have left."""
        while workers:
            result = self._results.get()
            if result is None:
                workers -= 1
            else:
                yield result

    def _rollouts(self, base_url: str) -> Iterator[Rollout]:
        while True:
            with self._changed:
                # an idle worker waits for the busy ones: one of them may yet give its rollout back
                while not self._todo and self._busy and not self._failure:
                    self._changed.wait()
                if not self._todo or self._failure or base_url in self._gone:
                    return
                self._busy += 1
                rollout = self._todo.popleft()
            yield rollout

    def _leave(self) -> None:
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()

    def _give_back(self, rollout: Rollout, base_url: str, error: ServerGone) -> None:
        with self._changed:
            self._todo.appendleft(rollout)
            self._gone.setdefault(base_url, error)
        self._leave()

    def stop(self, error: BaseException) -> None:
        """Hand out no more rollouts, and keep why."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def raise_failures(self) -> None:
        """Raise what stopped the workers, if anything did."""
        if self._failure:
            raise self._failure
        if self._todo:
            reasons = "; ".join(str(error) for error in self._gone.values())
            raise MeasurementError(
                f"{len(self._todo)} rollouts were not replayed, no server is left ({reasons}); start the server again "
                "and continue with --resume"
            )
