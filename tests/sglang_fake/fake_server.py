"""A stand-in for an SGLang server on a loopback socket: its routes, its shapes, its faults; stdlib only.

It decodes nothing: the next token is a hash of the text so far, so every drafter says the same. What it does keep
honestly is a prefix cache (by token ids, by pairs for EAGLE, in pages) and the counts of its verify steps, so that a
client's arithmetic has something true to be compared with.

As a script it takes SGLang's flags and its own, which begin with --fake, and serves until it is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

EAGLE = {"EAGLE", "EAGLE3"}


@dataclass
class Behaviour:
    """What the server is, and what goes wrong with it."""

    args: dict[str, Any] = field(default_factory=dict)
    vocab: int = 60
    stop_id: int | None = None
    accepted: tuple[int, ...] = (0, 1, 2, 3)
    """Drafts accepted by verify step 0, 1, 2, ..., repeated."""
    step_s: float = 0.0
    loading_polls: int = 0
    """Health checks answered 503 first."""
    faults: dict[int, str] = field(default_factory=dict)
    """Number of a generation request, from 0 -> drop, die, error_event, overloaded, abort, retract, lie, merge."""
    old_names: bool = False
    spec_details: bool = True
    null_details: bool = False
    server_info: bool = True
    flush_refusals: int = 0
    max_model_len: int | None = None
    token_capacity: int = 4096
    lose_prefix_tokens: int = 0
    """Prefix tokens the cache has lost, as a server that evicts."""
    api_key: str | None = None
    """Wanted as bearer on every route but /health and /metrics, as SGLang does."""
    admin_api_key: str | None = None
    """Then the only one that flushes."""
    repeats_key: bool = False
    """A refusal repeats the key it refuses, as some gateways do."""
    rekey: dict[int, str] = field(default_factory=dict)
    """Number of a generation request -> the key wanted from it on."""
    flush_text: str = "busy"
    health: bool = True
    script: Callable[[list[int]], list[int]] | None = None
    """Prompt -> what is said to it, over and over once it is said; None: tokens follow from the text so far."""
    log: Path | None = None
    """A line with the prompt's ids for each generation request: what outlives a kill."""


class FakeServer:
    """Serves on a free loopback port within its `with` block."""

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0) -> None:
        self.behaviour = behaviour or Behaviour()
        self.requests: list[dict[str, Any]] = []
        """Bodies of the generation requests, in order of arrival."""
        self.flushes = 0
        self.at_once = 0
        self.most_at_once = 0
        self.counters = dict.fromkeys(("num_requests", "generation_tokens", "spec_verify_calls"), 0)
        self._cache: list[list[int]] = []
        self._lock = threading.Lock()
        self._dead = False
        self._http = _Socket(("127.0.0.1", port), self.handler())

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """What answers a request."""
        return _handler(self)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def dead(self) -> bool:
        return self._dead

    def revive(self) -> None:
        """Start again after "die", with an empty cache."""
        self._dead, self._cache = False, []

    def healthy(self) -> bool:
        with self._lock:
            self.behaviour.loading_polls -= 1
            return self.behaviour.loading_polls < 0

    @property
    def algorithm(self) -> str | None:
        return self.behaviour.args.get("speculative_algorithm")

    @property
    def width(self) -> int:
        return int(self.behaviour.args.get("speculative_num_draft_tokens") or 1)

    def info(self) -> dict[str, Any]:
        state = {
            "avg_spec_accept_length": 9.9,
            "memory_usage": {"token_capacity": self.behaviour.token_capacity, "kvcache": 0.008},
        }
        defaults = {"page_size": 1, "max_running_requests": 64, "disable_radix_cache": False, "device": "cuda"}
        keys = {"api_key": self.behaviour.api_key, "admin_api_key": self.behaviour.admin_api_key}
        return {"model_path": "fake", "speculative_algorithm": None, **defaults, **keys, **self.behaviour.args} | {
            "internal_states": [state]
        }

    def refuses(self, path: str, bearer: str | None) -> bool:
        """SGLang's rule: /health and /metrics are open, a flush wants the admin's key where there is one."""
        if path.startswith(("/health", "/metrics")):
            return False
        with self._lock:
            self.behaviour.api_key = self.behaviour.rekey.pop(len(self.requests), self.behaviour.api_key)
        flush = path.startswith("/flush_cache") and self.behaviour.admin_api_key
        key = flush or self.behaviour.api_key
        return bool(key) and bearer != f"Bearer {key}"

    def flush(self) -> bool:
        with self._lock:
            if self.behaviour.flush_refusals:
                self.behaviour.flush_refusals -= 1
                return False
            self._cache, self.flushes = [], self.flushes + 1
            return True

    def metrics(self) -> str:
        lines = [f'sglang:{name}_total{{model_name="fake"}} {value}' for name, value in self.counters.items()]
        return "\n".join(["# HELP a comment", *lines, 'sglang:spec_accept_length{model_name="fake"} 7.7', ""])

    def cached(self, prompt: list[int]) -> int:
        page = int(self.behaviour.args.get("page_size") or 1)
        pair = self.algorithm in EAGLE
        with self._lock:
            kept = [min(common(each, prompt), len(each) - 1, len(prompt) - 1) - pair for each in self._cache]
        return max([0, *kept]) // page * page if kept else 0

    def begin(self, body: dict[str, Any]) -> str | None:
        """Count the request; its fault, if it has one."""
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
            if self.behaviour.log:
                with self.behaviour.log.open("a") as file:
                    file.write(json.dumps(body.get("input_ids", body.get("prompt"))) + "\n")
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            fault = self.behaviour.faults.get(number)
            self._dead = self._dead or fault == "die"
            return fault

    def end(self) -> None:
        with self._lock:
            self.at_once -= 1

    def answer(self, prompt: list[int], cap: int, stops: set[int], fault: str | None) -> Iterator[dict[str, Any]]:
        """Native events; the last one has everything, and is sent once the request has left the engine."""
        cached = max(self.cached(prompt) - self.behaviour.lose_prefix_tokens, 0)
        output, histogram, chunks = self._decode(prompt, cap, stops)
        meta: dict[str, Any] = {
            "id": "r",
            "prompt_tokens": len(prompt),
            "cached_tokens": cached,
            "cached_tokens_details": {"device": cached, "host": 0} if cached else None,
            "finish_reason": None,
            "num_retractions": 2 if fault == "retract" else 0,
        }
        if fault == "merge":
            chunks = [1, sum(chunks) - 1] if sum(chunks) > 1 else chunks
        sent = 0
        try:
            for new in chunks:
                sent += new
                time.sleep(self.behaviour.step_s)
                yield {
                    "text": _text(output[:sent]),
                    "output_ids": output[:sent],
                    "meta_info": meta | {"completion_tokens": sent},
                }
        finally:
            self.end()
        finish = {"type": "stop" if output[-1] in stops else "length", "length": len(output)}
        if fault == "abort":
            finish = {"type": "abort", "message": "out of memory"}
        details = self._details(histogram, len(output), fault)
        timing = {"first_token_latency": 0.011, "queue_time": 0.001}
        told = meta | details | timing | {"completion_tokens": sent, "finish_reason": finish}
        yield {"text": _text(output), "output_ids": output, "meta_info": told}
        with self._lock:
            self._cache.append([*prompt, *output])
            self.counters["num_requests"] += 1
            self.counters["generation_tokens"] += len(output)
            self.counters["spec_verify_calls"] += sum(histogram)

    def _decode(self, prompt: list[int], cap: int, stops: set[int]) -> tuple[list[int], list[int], list[int]]:
        """Output, histogram of accepted drafts, and new tokens of each chunk, the first token's own first."""
        output = [self._next(prompt, [])]
        histogram, chunks, step = [0] * self.width, [1], 0
        while len(output) < cap and output[-1] not in stops:
            accepted = min(self.behaviour.accepted[step % len(self.behaviour.accepted)], self.width - 1)
            histogram[accepted] += 1
            new = self._round(prompt, output, accepted + 1, cap, stops)
            chunks.append(new)
            step += 1
        return output, histogram if self.algorithm else [], chunks

    def _round(self, prompt: list[int], output: list[int], most: int, cap: int, stops: set[int]) -> int:
        before = len(output)
        while len(output) - before < most and len(output) < cap and output[-1] not in stops:
            output.append(self._next(prompt, output))
        return len(output) - before

    def _next(self, prompt: list[int], output: list[int]) -> int:
        if self.behaviour.script is not None:
            said = self.behaviour.script(prompt)
            return said[len(output) % len(said)]
        text = prompt + output
        return (sum((i % 7 + 1) * token for i, token in enumerate(text[-9:])) * 31 + len(text)) % self.behaviour.vocab

    def _details(self, histogram: list[int], tokens: int, fault: str | None) -> dict[str, Any]:
        steps = sum(histogram)
        if not self.algorithm or not steps or not self.behaviour.spec_details:
            return {}
        correct = sum(i * n for i, n in enumerate(histogram))
        if self.behaviour.old_names:
            return {
                "spec_verify_ct": steps,
                "spec_accept_token_num": correct,
                "spec_draft_token_num": steps * (self.width - 1),
                "spec_accept_length": tokens / steps,
            }
        return {
            "spec_verify_ct": steps,
            "spec_num_correct_drafts": correct + (1 if fault == "lie" else 0),
            "spec_num_proposed_drafts": steps * (self.width - 1),
            "spec_accept_length": tokens / steps,
            "spec_correct_drafts_histogram": histogram,
        }


class _Socket(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128


class Plumbing(BaseHTTPRequestHandler):
    """Answers, whole or as events."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Quiet."""

    def stream(self, events: Iterator[dict[str, Any]], fault: str | None) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for number, event in enumerate(events):
            if fault in ("drop", "die") and number == 2:
                self.close_connection = True
                return
            if fault == "error_event" and number == 1:
                event = {"error": {"message": "the scheduler hit an exception"}}
            self.chunk(f"data: {json.dumps(event)}\n\n")
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def send(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(Plumbing):
        def do_GET(self) -> None:
            if server.dead:
                self.close_connection = True
            elif server.refuses(self.path, self.headers.get("authorization")):
                self._unauthorised()
            elif self.path == "/health" and server.behaviour.health:
                self.send(200 if server.healthy() else 503, "")
            elif self.path == "/server_info" and server.behaviour.server_info:
                self.send(200, json.dumps(server.info()))
            elif self.path == "/v1/models":
                entry = {"id": "fake-id", "max_model_len": server.behaviour.max_model_len}
                self.send(200, json.dumps({"object": "list", "data": [entry]}))
            elif self.path == "/metrics":
                self.send(200, server.metrics())
            else:
                self.send(404, "not found")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if server.dead:
                self.close_connection = True
            elif server.refuses(self.path, self.headers.get("authorization")):
                self._unauthorised()
            elif self.path.startswith("/flush_cache"):
                done = server.flush() if server.behaviour.server_info else None
                self.send(
                    404 if done is None else 200 if done else 400,
                    "Cache flushed." if done else server.behaviour.flush_text,
                )
            elif self.path == "/generate":
                asked = json.loads(body)
                if asked.get("return_logprob"):
                    top = [[-0.1 * i, i, None] for i in range(asked["top_logprobs_num"])]
                    self.send(200, json.dumps({"meta_info": {"output_top_logprobs": [top]}}))
                else:
                    self._generation(asked, lambda events: events)
            elif self.path == "/v1/chat/completions":
                self._generation(json.loads(body), lambda events: _as_chat(events, server.behaviour))
            else:
                self.send(404, "not found")

        def _unauthorised(self) -> None:
            said = self.headers.get("authorization") if server.behaviour.repeats_key else "Unauthorized"
            self.send(401, json.dumps({"error": said}))

        def _generation(self, body: dict[str, Any], form: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
            fault = server.begin(body)
            if fault == "overloaded":
                server.end()
                self.send(503, "the queue is full")
                return
            self.stream(form(server.answer(*_asked(body), fault)), fault)

    return Handler


def _asked(body: dict[str, Any]) -> tuple[list[int], int, set[int]]:
    if "input_ids" in body:
        params = body["sampling_params"]
        return body["input_ids"], params["max_new_tokens"], set(params.get("stop_token_ids") or ())
    text = json.dumps(body["messages"])
    return [ord(letter) % 60 for letter in text], body["max_tokens"], set()


def _as_chat(events: Iterator[dict[str, Any]], behaviour: Behaviour) -> Iterator[dict[str, Any]]:
    """The chat route's chunks: a role first, text, details in a late chunk without choices, usage after it."""
    yield _delta({"role": "assistant", "content": ""})
    said = ""
    last: dict[str, Any] = {}
    for event in events:
        last = event
        if new := event["text"][len(said) :]:
            said = event["text"]
            yield _delta({"content": new})
    meta = last["meta_info"]
    yield _delta({}, meta["finish_reason"]["type"])
    spec = {name: value for name, value in meta.items() if name.startswith("spec_")} or None
    if behaviour.spec_details and not behaviour.null_details:
        extra = {"spec_tokens_details": spec, "cached_tokens_details": meta["cached_tokens_details"]}
        yield {"choices": [], "usage": None, "sglext": extra}
    details = None if behaviour.null_details else {"cached_tokens": meta["cached_tokens"]}
    usage = {"prompt_tokens": meta["prompt_tokens"], "completion_tokens": meta["completion_tokens"]}
    yield {"choices": [], "usage": usage | {"prompt_tokens_details": details}}


def _delta(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None}


def _text(ids: list[int]) -> str:
    return "".join(f"t{token} " for token in ids)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def main() -> None:
    """Serve as `sglang serve` would, ignoring what does not matter here."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model-path")
    parser.add_argument("--max-running-requests", type=int, default=64)
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--disable-radix-cache", action="store_true")
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-draft-model-path")
    parser.add_argument("--speculative-num-draft-tokens", type=int)
    parser.add_argument("--fake-step-s", type=float, default=0.0)
    parser.add_argument("--fake-exit")
    parser.add_argument("--fake-unknown", help="an algorithm it does not know")
    parser.add_argument("--fake-load-s", type=float, default=0.0)
    parser.add_argument("--fake-pid-file")
    parser.add_argument("--fake-log", type=Path)
    given, _ = parser.parse_known_args()
    if given.fake_pid_file:
        with Path(given.fake_pid_file).open("a") as file:
            file.write(f"{os.getpid()}\n")
    time.sleep(given.fake_load_s)  # nothing listens yet, as with SGLang while it loads weights
    if given.fake_exit:
        sys.exit(given.fake_exit)
    if given.fake_unknown and given.fake_unknown == given.speculative_algorithm:
        sys.exit(f"Unknown speculative algorithm: {given.fake_unknown}")
    args = {name: value for name, value in vars(given).items() if not name.startswith("fake") and name != "port"}
    if given.speculative_algorithm and not given.speculative_num_draft_tokens:
        args["speculative_num_draft_tokens"] = 4
    behaviour = Behaviour(args, step_s=given.fake_step_s, loading_polls=2, log=given.fake_log)
    with FakeServer(behaviour, given.port):
        threading.Event().wait()


if __name__ == "__main__":
    main()
