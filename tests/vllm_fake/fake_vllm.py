"""A stand-in for a vLLM 0.32 server on a loopback socket, with the shapes that a real one was recorded with.

Text, prefix cache and sockets are the fake SGLang server's. What is vLLM's own: reports that leave out steps without a
draft, a padded step after a full hit, counting before trimming, a silent cap, aborts that are counted nowhere.

As a script it takes vLLM's flags and its own, which begin with --fake, and serves until it is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "sglang_fake"))

from fake_server import Behaviour, FakeServer, Plumbing, common

BLOCK_DROP = {"eagle3", "mtp", "dflash", "dspark"}
NO_ASYNC = {"ngram", "suffix", "medusa", "custom_class"}


@dataclass
class VLLMBehaviour(Behaviour):
    """What the server is, and what goes wrong with it."""

    method: str | None = None
    k: int = 3
    steps: tuple[int | None, ...] = (0, 1, 2, 3)
    """Drafts accepted by decode step 0, 1, 2, ..., repeated; None: a step without a draft."""
    reports: str | None = "detailed"
    """summary, detailed, or None: without --per-request-spec-decode-metrics."""
    version: str = "0.32.0"
    request_metrics: bool = True
    prompt_details: bool = True
    dev_mode: bool = True
    block_size: int = 16
    prefix_caching: bool = True
    async_scheduling: bool = True
    """As asked for; methods that cannot have it go without, and say nothing."""


@dataclass
class Decoded:
    """One answer."""

    ids: list[int]
    chunks: list[int]
    cached: int
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    iterations: int = 1


class FakeVLLM(FakeServer):
    """Serves on a free loopback port within its `with` block."""

    behaviour: VLLMBehaviour

    def __init__(self, behaviour: VLLMBehaviour | None = None, port: int = 0) -> None:
        super().__init__(behaviour or VLLMBehaviour(), port)
        names = ("drafts", "draft_tokens", "accepted_tokens")
        self.totals = dict.fromkeys(("generation", "iterations", "requests", *names), 0)
        self.closed = 0
        """Requests whose client closed the connection."""
        self.abort_calls = 0

    def handler(self) -> type[BaseHTTPRequestHandler]:
        return _handler(self)

    def model(self) -> dict[str, Any]:
        return {
            "id": "tiny",
            "object": "model",
            "root": "tiny-root",
            "max_model_len": self.behaviour.max_model_len or 2048,
        }

    def metrics(self) -> str:
        """Counters under the recorded names, the spec ones only with speculation."""
        own, label = self.behaviour, '{engine="0",model_name="tiny"}'
        cache = f'block_size="{own.block_size}",cache_dtype="auto",enable_prefix_caching="{own.prefix_caching}"'
        lines = [
            f'vllm:cache_config_info{{{cache},engine="0",kv_cache_size_tokens="4096"}} 1.0',
            f"vllm:num_preemptions_total{label} 0.0",
            f"vllm:generation_tokens_total{label} {self.totals['generation']}.0",
            f"vllm:iteration_tokens_total_count{label} {self.totals['iterations']}.0",
            f'vllm:request_success_total{{finished_reason="length"}} {self.totals["requests"]}.0',
            'vllm:request_success_total{finished_reason="abort"} 0.0',
            "vllm:request_success_created 1.796e+09",
        ]
        if own.method:
            lines += [
                f"vllm:spec_decode_num_{name}_total{label} {self.totals[name]}.0"
                for name in ("drafts", "draft_tokens", "accepted_tokens")
            ]
        return "\n".join([*lines, ""])

    def configuration(self) -> str:
        own = self.behaviour
        speculative = f"SpeculativeConfig(method='{own.method}', model=None, num_spec_tokens={own.k})"
        return f"model='tiny-root', speculative_config={speculative if own.method else None}, dtype=torch.float32"

    def settings(self) -> dict[str, Any]:
        """The configuration as an object, the one form that has the scheduler in it."""
        own = self.behaviour
        scheduling = own.async_scheduling and own.method not in NO_ASYNC
        return {"scheduler_config": {"async_scheduling": scheduling, "max_num_seqs": 64, "stream_interval": 1}}

    def cached(self, prompt: list[int]) -> int:
        """Whole blocks below the prompt's end, one less for methods that read the target's states."""
        block, drop = self.behaviour.block_size, self.behaviour.method in BLOCK_DROP
        with self._lock:
            kept = [min(common(each, prompt), len(each) - 1, len(prompt) - 1) for each in self._cache]
        found = max(kept, default=0) // block * block
        return max(found - block * drop, 0) if self.behaviour.prefix_caching else 0

    def decode(self, prompt: list[int], cap: int, stops: set[int]) -> Decoded:
        own = self.behaviour
        done = Decoded([self._next(prompt, [])], [1], self.cached(prompt))
        if own.method and done.cached == len(prompt) - 1:
            done.accepted, done.drafted = [0], [own.k]
        cap = min(cap, (own.max_model_len or 2048) - len(prompt))
        step = 0
        while len(done.ids) < cap and done.ids[-1] not in stops:
            accepted = own.steps[step % len(own.steps)] if own.method else None
            if accepted is not None:
                done.accepted.append(min(accepted, own.k))
                done.drafted.append(own.k)
            done.chunks.append(self._round(prompt, done.ids, min(accepted or 0, own.k) + 1, cap, stops))
            step += 1
        done.iterations += step
        return done

    def report(self, done: Decoded, fault: str | None) -> dict[str, Any] | None:
        own = self.behaviour
        if not own.method or not own.reports or fault == "abort":
            return None
        v, c, d = len(done.accepted), sum(done.accepted), sum(done.drafted)
        detailed = own.reports == "detailed" and v
        return {
            "mean_acceptance_length": 1 + c / v if v else 1.0,
            "draft_acceptance_rate": c / d if d else 0.0,
            "acceptance_histogram": [done.accepted.count(i) for i in range(own.k + 1)],
            "num_spec_steps": v,
            "num_accepted_draft_tokens": c + (1 if fault == "lie" else 0),
            "num_draft_tokens": d,
            "num_spec_tokens": own.k,
            "per_step_accepted": done.accepted if detailed else None,
            "per_step_drafted": done.drafted if detailed else None,
        }

    def events(self, body: dict[str, Any], fault: str | None) -> Iterator[dict[str, Any]]:
        """The stream of either route; the last event, with usage and metrics, only if usage was asked for."""
        prompt, chat = _prompt(body), "messages" in body
        done = self.decode(prompt, body["max_tokens"], set(body.get("stop_token_ids") or ()))
        chunks, finish = done.chunks, "stop" if len(done.ids) < body["max_tokens"] else "length"
        if (self.behaviour.max_model_len or 2048) - len(prompt) == len(done.ids):
            finish = "length"
        if fault == "merge" and len(chunks) > 2:
            chunks = [*chunks[:1], sum(chunks[1:3]), *chunks[3:]]
        if fault == "abort":
            chunks, finish = chunks[: len(chunks) // 2], "abort"
        if chat:
            yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
        sent = 0
        try:
            for number, new in enumerate(chunks):
                time.sleep(self.behaviour.step_s)
                ids, sent = done.ids[sent : sent + new], sent + new
                last = number == len(chunks) - 1
                text = ("the prompt " if not number else "") + "".join(f"t{token} " for token in ids)
                said: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
                if body.get("return_token_ids"):
                    said["token_ids"] = ids
                yield {"id": "cmpl-1", "choices": [{"index": 0, **said, "finish_reason": finish if last else None}]}
        finally:
            self.end()
            with self._lock:
                self._cache.append([*prompt, *done.ids[:sent]])
        self._count(done, sent, aborted=fault == "abort")
        if (body.get("stream_options") or {}).get("include_usage"):
            yield self._last(prompt, done, sent, fault)

    def _last(self, prompt: list[int], done: Decoded, sent: int, fault: str | None) -> dict[str, Any]:
        own = self.behaviour
        usage: dict[str, Any] = {"prompt_tokens": len(prompt), "completion_tokens": sent}
        usage["prompt_tokens_details"] = {"cached_tokens": done.cached} if own.prompt_details else None
        times = {"time_to_first_token_ms": 11.0, "generation_time_ms": 20.0, "queue_time_ms": 1.0, "mean_itl_ms": 2.0}
        metrics = (times if own.request_metrics else {}) | {"speculative_decoding": self.report(done, fault)}
        told = {"metrics": metrics} if own.request_metrics or own.reports else {}
        return {"id": "cmpl-1", "choices": [], "usage": usage, **(told if own.version >= "0.32" else {})}

    def _count(self, done: Decoded, sent: int, *, aborted: bool) -> None:
        with self._lock:
            self.totals["generation"] += sent
            self.totals["iterations"] += done.iterations
            if aborted:
                return
            self.totals["requests"] += 1
            self.totals["drafts"] += len(done.accepted)
            self.totals["draft_tokens"] += sum(done.drafted)
            self.totals["accepted_tokens"] += sum(done.accepted)


def _prompt(body: dict[str, Any]) -> list[int]:
    if "prompt" in body:
        ids: list[int] = body["prompt"]
        return ids
    return [ord(letter) % 60 for letter in json.dumps(body["messages"])]


def _handler(server: FakeVLLM) -> type[BaseHTTPRequestHandler]:
    class Handler(Plumbing):
        def do_GET(self) -> None:
            dev = server.behaviour.dev_mode
            if server.dead:
                self.close_connection = True
            elif self.path == "/health":
                self.send(200 if server.healthy() else 503, "")
            elif self.path == "/version":
                self.send(200, json.dumps({"version": server.behaviour.version}))
            elif self.path == "/v1/models":
                self.send(200, json.dumps({"object": "list", "data": [server.model()]}))
            elif self.path == "/metrics":
                self.send(200, server.metrics())
            elif self.path == "/server_info" and dev:
                self.send(200, json.dumps({"vllm_config": server.configuration()}))
            elif self.path == "/server_info?config_format=json" and dev:
                shown = server.settings() if server.behaviour.version >= "0.32" else server.configuration()
                self.send(200, json.dumps({"vllm_config": shown}))
            else:
                self.send(404, json.dumps({"detail": "Not Found"}))

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("content-length") or 0))
            if server.dead:
                self.close_connection = True
            elif self.path == "/reset_prefix_cache" and server.behaviour.dev_mode:
                self.send(200, json.dumps({"success": server.flush()}))
            elif self.path == "/abort_requests" and server.behaviour.dev_mode:
                server.abort_calls += 1
                self.send(200, json.dumps({"aborted": 1}))  # and the request goes on, as recorded
            elif self.path in ("/v1/completions", "/v1/chat/completions"):
                self._generation(json.loads(text))
            else:
                self.send(404, json.dumps({"detail": "Not Found"}))

        def _generation(self, body: dict[str, Any]) -> None:
            if body.get("logprobs"):
                top = {f"token_id:{i}": -0.1 * i for i in range(body["logprobs"])}
                self.send(200, json.dumps({"choices": [{"logprobs": {"top_logprobs": [top]}}]}))
                return
            fault = server.begin(body)
            if body.get("n", 1) > 1:
                server.end()
                self._several(body)
                return
            if fault == "overloaded":
                server.end()
                self.send(503, "the queue is full")
                return
            try:
                self.stream(server.events(body, fault), fault)
            except (BrokenPipeError, ConnectionResetError):
                server.closed += 1
                self.close_connection = True

        def _several(self, body: dict[str, Any]) -> None:
            """Refused where greedy; sampled, several choices and no metrics at all."""
            if not body.get("temperature", 1.0):
                said = f"n must be 1 when using greedy sampling, got {body['n']}."
                self.send(400, json.dumps({"error": {"message": said, "type": "BadRequestError", "code": 400}}))
                return
            prompt = _prompt(body)
            done = server.decode(prompt, body["max_tokens"], set())
            choices = [
                {"index": index, "text": "", "finish_reason": "length", "token_ids": done.ids}
                for index in range(body["n"])
            ]
            usage = {"prompt_tokens": len(prompt), "completion_tokens": body["n"] * len(done.ids)}
            self.send(200, json.dumps({"id": "cmpl-1", "choices": choices, "usage": usage, "metrics": None}))

    return Handler


def main() -> None:
    """Serve as `vllm serve MODEL` would, ignoring what does not matter here."""
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--block-size", type=int, default=128)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--no-enable-prefix-caching", action="store_true")
    parser.add_argument("--no-async-scheduling", action="store_true")
    parser.add_argument("--speculative-config", type=json.loads, default={})
    parser.add_argument("--per-request-spec-decode-metrics")
    parser.add_argument("--enable-per-request-metrics", action="store_true")
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    parser.add_argument("--fake-step-s", type=float, default=0.0)
    parser.add_argument("--fake-unknown", help="a method it does not know")
    parser.add_argument("--fake-pid-file", type=Path)
    parser.add_argument("--fake-log", type=Path)
    given, _ = parser.parse_known_args()
    if given.fake_pid_file:
        with given.fake_pid_file.open("a") as file:
            file.write(f"{os.getpid()}\n")
    method = given.speculative_config.get("method")
    if given.fake_unknown and method == given.fake_unknown:
        sys.exit(
            f"1 validation error for SpeculativeConfig method: Input should be 'ngram' or 'eagle3', got {method!r}"
        )
    behaviour = VLLMBehaviour(
        method=method,
        k=given.speculative_config.get("num_speculative_tokens", 3),
        steps=(0, None, 2, None) if method in ("ngram", "suffix") else (0, 1, 2, 3),
        reports=given.per_request_spec_decode_metrics,
        request_metrics=given.enable_per_request_metrics,
        prompt_details=given.enable_prompt_tokens_details,
        dev_mode=os.environ.get("VLLM_SERVER_DEV_MODE") == "1",
        block_size=given.block_size,
        prefix_caching=not given.no_enable_prefix_caching,
        async_scheduling=not given.no_async_scheduling,
        max_model_len=given.max_model_len,
        step_s=given.fake_step_s,
        loading_polls=2,
        log=given.fake_log,
    )
    with FakeVLLM(behaviour, given.port):
        threading.Event().wait()


if __name__ == "__main__":
    main()
