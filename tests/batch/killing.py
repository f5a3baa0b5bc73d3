"""A server on loopback that counts, and kills whoever asks at the moment that it was told to."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from evaluator import TaskStore
from evaluator.batch import open_batch

QUIZ = (
    '<library><task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions></task>"
    '<task name="twice" type="sequential"><description>Ask and ask again</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs><steps>'
    '<task type="atomic" name="first"><description>First</description><instructions>{{ question }}</instructions></task>'
    '<task type="atomic" name="last"><description>Last</description>'
    "<instructions>again: {{ question }}</instructions></task></steps></task></library>"
)
PROFILE = """<handler name="wire"><backend>openai_compatible</backend><model>m</model>
<base_url>http://127.0.0.1:{port}/v1</base_url></handler>"""
PROMPT_TOKENS = 5
"""What each answer says that it took."""


class KillingServer(ThreadingHTTPServer):
    """Answers a prompt with its length, or with a call of the first function that is offered. `asked` counts prompts,
    `answered` those whose answer was sent whole; `seen` are all conversations, as JSON.

    Before it answers the request that brings `asked` to `kill_at`, it kills `victim` (SIGKILL); with `after` once
    it has answered it. Prompts that end with one of `refused` get the status 429.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.seen: list[str] = []
        self.refused: tuple[str, ...] = ()
        self.kill_at: int | None = None
        self.after = False
        self.victim: int | None = None
        self.lock = threading.Lock()
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    @property
    def posts(self) -> int:
        return self.asked.total()

    def kill(self) -> None:
        if self.victim is not None:
            os.kill(self.victim, signal.SIGKILL)
            self.victim = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The other side was killed, as it should be."""


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: KillingServer

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][-1]["content"]
        with server.lock:
            server.asked[prompt] += 1
            server.seen.append(json.dumps(body["messages"]))
            is_time = server.kill_at is not None and server.posts >= server.kill_at
            if is_time and not server.after:
                server.kill()
        message: dict[str, Any] = {"role": "assistant", "content": str(len(prompt))}
        if tools := body.get("tools"):
            function = {
                "name": tools[0]["function"]["name"],
                "arguments": json.dumps({"n": len(prompt)}),
            }
            message = {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": function}],
            }
        answer = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {"index": 0, "finish_reason": "tool_calls" if tools else "stop", "message": message}
            ],
            "usage": {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": 1,
                "total_tokens": PROMPT_TOKENS + 1,
            },
        }
        data = json.dumps(answer).encode()
        self.send_response(429 if prompt.endswith(server.refused) else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()
        with server.lock:
            server.answered[prompt] += 1
            if is_time and server.after:
                server.kill()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""


def begun_calls(folder: Path) -> int:
    """The calls that the records of a batch have, without refused ones. At a kill some of them may
    not have been sent: what tasks of one turn of the event loop begin is recorded together, before
    the first is sent.
    """
    store = TaskStore(folder / "tasks")
    # A task that was resumed has a file and is in a segment: it has two places, and one record.
    steps = [step for number in set(store.ids()) for step in store.read(number).steps]
    return sum(step.start.kind == "model" and step.status != "failed" for step in steps)


def counted_calls(folder: Path) -> int:
    """The calls that the summary of a batch counts, by their tokens, with those in flight at a
    kill.
    """
    summary = open_batch(folder).summarise()
    counted = 0
    for spending in (summary.spending, summary.replaced_spending):
        if spending is not None:
            tokens = spending.input_tokens.known + spending.scoring_input_tokens.known
            counted += round(tokens / PROMPT_TOKENS) + spending.interrupted_calls
    return counted
