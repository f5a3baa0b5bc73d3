"""The batch APIs of providers on loopback, with a virtual clock and a ledger.

The wire formats of OpenAI, Anthropic, Gemini and Mistral are served at one port. Batches end by the virtual clock; `ledger` has the dollars
that were billed for each `custom_id`, one entry for each time. `faults` says what goes wrong.
"""

from __future__ import annotations

import email
import email.policy
import json
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.provider_jobs import Job, show_anthropic, show_gemini, show_mistral, show_openai
from tests.provider_replies import START, price_of, reply_to

_NAMES = {"anthropic": "msgbatch_", "gemini": "batches/batch_"}
SLOW_S = 0.05


@dataclass
class Fault:
    """What goes wrong at a request of `operation`, after `skip` others.

    Operations: upload, create, get, list, results, cancel, delete, call. `what`: an HTTP status;
    "before" or "after" (the connection is closed before or after the effect); "kill before" or
    "kill after" (the client is killed then); "slow" (the effect comes later).
    """

    operation: str
    what: int | str
    skip: int = 0
    times: int = 1


class ProviderServer(ThreadingHTTPServer):
    """Serves both APIs in threads, inside `with`.

    `now` is the virtual time; each look at a batch adds `step_s`. A batch ends after `takes_s`.
    `fate` says what becomes of a request, by its custom_id and body: succeeded, errored (the request
    is invalid), failed (the server had an error), expired, missing, double, foreign. `invalid` makes
    OpenAI's validation fail with that code. A cancelled batch has answered `share` of its requests.
    `answer` makes the text of an answer from the last prompt. A batch is shown without the fields
    `unreturned`, as some servers do, and with the values `returned` in place of the right ones.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.lock = threading.RLock()
        self.now = float(START)
        self.step_s = 600.0
        self.takes_s = 1800.0
        self.share = 0.5
        self.fate: Callable[[str, Mapping[str, Any]], str] = lambda custom_id, body: "succeeded"
        self.answer: Callable[[str], str] = lambda prompt: str(len(prompt))
        self.invalid: str | None = None
        self.empty_ids = False
        self.is_azure = False
        self.unreturned: tuple[str, ...] = ()
        self.returned: dict[str, Any] = {}
        self.faults: list[Fault] = []
        self.ledger: defaultdict[str, list[float]] = defaultdict(list)
        self.interactive: list[float] = []
        self.files: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, Job] = {}
        self.operations: list[str] = []
        self.created = 0
        self.victim: int | None = None
        self.keys: set[str] = set()
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()

    def __exit__(self, *_: Any) -> None:
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def billed(self) -> float:
        """All dollars of the ledger."""
        return sum(map(sum, self.ledger.values())) + sum(self.interactive)

    @property
    def twice(self) -> list[str]:
        """The requests that were billed more than once."""
        return [custom_id for custom_id, bills in self.ledger.items() if len(bills) > 1]

    def take_fault(self, operation: str) -> int | str | None:
        with self.lock:
            self.operations.append(operation)
            for fault in self.faults:
                if fault.operation != operation or not fault.times:
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault.what
        return None

    def kill(self) -> None:
        if self.victim is not None:
            os.kill(self.victim, signal.SIGKILL)
            self.victim = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The other side is gone, as it should be."""

    # -- jobs --------------------------------------------------------------------------------------

    def new_job(self, requests: list[tuple[str, Mapping[str, Any]]], **fields: Any) -> Job:
        self.created += 1
        number = self.created
        format = fields["format"]
        name = f"{_NAMES.get(format, 'batch_')}{number}"
        job = Job(name, created=self.now, requests=requests, **fields)
        self.jobs[name] = job
        seen = [custom_id for custom_id, _ in requests]
        if format != "anthropic" and (self.invalid or len(set(seen)) < len(seen)):
            job.status = "failed"
            code = self.invalid or "duplicate_custom_id"
            job.errors = [{"code": code, "message": f"invalid: {code}", "line": 1, "param": None}]
        return job

    def tick(self, job: Job) -> None:
        """Ends a job whose time has come."""
        if job.ended is not None or job.status == "failed":
            return
        if job.cancelled is not None:
            done = int(len(job.requests) * self.share)
            fates = [self.fate(*request) for request in job.requests]
            job.fates = [fate if place < done else "cancelled" for place, fate in enumerate(fates)]
            self._end(job, "cancelled")
        elif self.now >= job.created + self.takes_s:
            job.fates = [self.fate(*request) for request in job.requests]
            partial = [status for status in ("expired", "cancelled") if status in job.fates]
            self._end(job, partial[0] if partial else "completed")

    def _end(self, job: Job, status: str) -> None:
        job.ended = self.now
        job.status = status
        for (custom_id, body), fate in zip(job.requests, job.fates, strict=True):
            if fate in ("succeeded", "missing", "double", "foreign"):
                self.ledger[custom_id].append(price_of(body, self.reply(body)) / 2)
        if job.format == "gemini":
            job.output_file_id = self._output(self._gemini_lines(job))
        elif job.format != "anthropic":
            good: list[bytes] = []
            bad: list[bytes] = []
            # Order is not kept.
            pairs = reversed(list(zip(job.requests, job.fates, strict=True)))
            for (custom_id, body), fate in pairs:
                self._openai_lines(custom_id, body, fate, good=good, bad=bad)
            job.output_file_id = self._output(good)
            job.error_file_id = self._output(bad)

    def _output(self, lines: list[bytes]) -> str | None:
        if not lines:
            return "" if self.empty_ids else None
        return self.add_file("output.jsonl", b"".join(lines), "batch_output")

    def _openai_lines(
        self,
        custom_id: str,
        body: Mapping[str, Any],
        fate: str,
        good: list[bytes],
        bad: list[bytes],
    ) -> None:
        line: dict[str, Any] = {"id": f"line-{custom_id}", "custom_id": custom_id, "error": None}
        answer = {"status_code": 200, "request_id": "r", "body": self.reply(body)}
        if fate == "foreign":
            good.append(_line({**line, "custom_id": "somebody-elses", "response": answer}))
            fate = "succeeded"
        if fate in ("succeeded", "double"):
            good += [_line({**line, "response": answer})] * (1 + (fate == "double"))
        elif fate in ("expired", "cancelled"):
            code = f"batch_{fate}"
            error = {"code": code, "message": f"This request could not be executed: {code}"}
            bad.append(_line({**line, "response": None, "error": error}))
        elif fate in ("errored", "failed"):
            status = 400 if fate == "errored" else 500
            error = {"message": f"{fate} request", "type": "error", "param": None, "code": None}
            response = {"status_code": status, "request_id": "r", "body": {"error": error}}
            bad.append(_line({**line, "response": response}))

    def _gemini_lines(self, job: Job) -> list[bytes]:
        lines: list[bytes] = []
        for (custom_id, body), fate in zip(job.requests, job.fates, strict=True):
            answer = _line({"key": custom_id, "response": self.reply(body)})
            if fate == "foreign":
                lines.append(_line({"key": "somebody-elses", "response": self.reply(body)}))
            if fate in ("succeeded", "double", "foreign"):
                lines += [answer] * (1 + (fate == "double"))
            elif fate != "missing":
                code = {"errored": 400, "failed": 500}.get(fate, 504)
                error = {"code": code, "message": f"{fate} request"}
                lines.append(_line({"key": custom_id, "error": error}))
        return lines[::-1]

    def anthropic_lines(self, job: Job) -> bytes:
        lines: list[bytes] = []
        for (custom_id, body), fate in zip(job.requests, job.fates, strict=True):
            message = {"type": "succeeded", "message": self.reply(body)}
            if fate == "foreign":
                lines.append(_line({"custom_id": "somebody-elses", "result": message}))
                fate = "succeeded"
            if fate in ("succeeded", "double"):
                line = _line({"custom_id": custom_id, "result": message})
                lines += [line] * (1 + (fate == "double"))
            elif fate in ("expired", "cancelled"):
                kind = {"expired": "expired", "cancelled": "canceled"}[fate]
                lines.append(_line({"custom_id": custom_id, "result": {"type": kind}}))
            elif fate in ("errored", "failed"):
                kind = "invalid_request_error" if fate == "errored" else "api_error"
                error = {"type": "error", "error": {"type": kind, "message": f"{fate} request"}}
                result = {"type": "errored", "error": error}
                lines.append(_line({"custom_id": custom_id, "result": result}))
        return b"".join(reversed(lines))

    def add_file(self, name: str, data: bytes, purpose: str) -> str:
        self.created += 1
        number = f"file-{self.created}"
        status = "pending" if self.is_azure and purpose == "batch" else "processed"
        self.files[number] = {"name": name, "data": data, "purpose": purpose, "status": status}
        return number

    def reply(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return reply_to(body, self.answer)


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ProviderServer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on standard error."""

    def do_GET(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def _handle(self) -> None:
        server = self.server
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        url = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.format, parts = self._route(url.path)
        names = ("Authorization", "x-api-key", "x-goog-api-key")
        server.keys.add(next((self.headers[name] for name in names if self.headers[name]), ""))
        operation = self._operation(parts)
        fault = server.take_fault(operation)
        if fault == "kill before":
            server.kill()
            fault = "before"
        if fault == "slow":
            time.sleep(SLOW_S)
        if fault == "before":
            self._close()
            return
        if isinstance(fault, int):
            headers = {"Retry-After": "0"} if fault in (429, 503) else {}
            self._send({"error": {"message": f"fault {fault}", "type": "error"}}, fault, headers)
            return
        with server.lock:
            status, answer = self._answer(operation, parts)
        if fault == "kill after":
            server.kill()
        if fault in ("after", "kill after"):
            self._close()
            return
        self._send(answer, status)

    def _route(self, path: str) -> tuple[str, list[str]]:
        """The wire format of a path, and the path with its names as OpenAI's."""
        if "/v1beta/" in path:
            name, _, verb = path.partition("/v1beta/")[2].partition(":")
            parts = name.split("/")
            if verb == "batchGenerateContent":
                self.model = parts[1]
                return "gemini", ["batches"]
            return "gemini", [
                *parts,
                *(["content"] if verb == "download" else [verb] if verb else []),
            ]
        parts = [part for part in path.removeprefix("/v1").split("/") if part]
        if parts[:2] == ["batch", "jobs"]:
            return "mistral", ["batches", *parts[2:]]
        if parts[:2] == ["messages", "batches"]:
            return "anthropic", parts[1:]
        return "openai", parts

    def _close(self) -> None:
        self.close_connection = True

    def _send(self, answer: Any, status: int, headers: Mapping[str, str] | None = None) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        kind = "octet-stream" if isinstance(answer, bytes) else "json"
        self.send_header("Content-Type", f"application/{kind}")
        self.send_header("Content-Length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _operation(self, parts: list[str]) -> str:
        if parts[-1:] == ["completions"] or parts == ["messages"]:
            return "call"
        if parts[-1] in ("content", "results"):
            return "results"
        if parts[-1] == "cancel":
            return "cancel"
        if self.command == "DELETE":
            return "delete"
        if self.command == "POST":
            return "upload" if parts == ["files"] else "create"
        if parts[-1] in ("batches", "files"):
            return "list"
        return "get"

    def _answer(self, operation: str, parts: list[str]) -> tuple[int, Any]:
        server = self.server
        if operation == "call":
            body = json.loads(self.body)
            answer = server.reply(body)
            server.interactive.append(price_of(body, answer))
            return 200, answer
        if parts[0] == "files":
            return self._files(operation, parts)
        if operation == "create":
            try:
                job = self._create()
            except KeyError as error:
                return 404, {"error": {"message": f"no file {error}", "type": "not_found_error"}}
            return 200, self._show(job)
        if operation == "list":
            return 200, self._list()
        name = f"batches/{parts[1]}" if self.format == "gemini" else parts[1]
        job = server.jobs.get(name)
        if job is None or job.format != self.format:
            return 404, {"error": {"message": f"no batch {name}", "type": "not_found_error"}}
        if operation == "get":
            server.now += server.step_s
        if operation == "cancel" and job.ended is None and job.cancelled is None:
            job.cancelled = server.now
            return 200, self._show(job)
        server.tick(job)
        if operation == "results":
            return 200, server.anthropic_lines(job)
        if operation == "delete":
            del server.jobs[name]
            return 200, {"id": name, "type": "message_batch_deleted"}
        return 200, self._show(job)

    def _files(self, operation: str, parts: list[str]) -> tuple[int, Any]:
        server = self.server
        if operation == "upload":
            head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
            form = email.message_from_bytes(head + self.body, policy=email.policy.HTTP)
            if self.format == "gemini":
                about, content = form.iter_parts()
                name = json.loads(about.get_payload(decode=True))["file"]["displayName"]
                number = server.add_file(name, content.get_payload(decode=True), "batch")
                return 200, {"file": self._show_file(number)}
            fields = {
                part.get_param("name", header="content-disposition"): part
                for part in form.iter_parts()
            }
            data = fields["file"].get_payload(decode=True)
            number = server.add_file(fields["file"].get_filename() or "", data, "batch")
            return 200, self._show_file(number)
        if operation == "list":
            shown = [self._show_file(number) for number in server.files]
            name = "files" if self.format == "gemini" else "data"
            return 200, {"object": "list", name: shown, "has_more": False, "total": len(shown)}
        file = server.files.get(parts[1])
        if file is None:
            return 404, {"error": {"message": f"no file {parts[1]}", "type": "not_found_error"}}
        if operation == "results":
            return 200, file["data"]
        if operation == "delete":
            del server.files[parts[1]]
            return 200, {"id": parts[1], "object": "file", "deleted": True}
        shown = self._show_file(parts[1])
        file["status"] = "processed"
        return 200, shown

    def _show_file(self, number: str) -> dict[str, Any]:
        file = self.server.files[number]
        if self.format == "gemini":
            size = str(len(file["data"]))
            return {"name": f"files/{number}", "displayName": file["name"], "sizeBytes": size}
        return {
            "id": number,
            "object": "file",
            "bytes": len(file["data"]),
            "created_at": int(self.server.now),
            "filename": file["name"],
            "purpose": file["purpose"],
            "status": file["status"],
            "sample_type": "batch_request",
            "source": "upload",
        }

    def _create(self) -> Job:
        body = json.loads(self.body)
        new_job = partial(self.server.new_job, format=self.format)
        if self.format == "anthropic":
            return new_job([(each["custom_id"], each["params"]) for each in body["requests"]])
        if self.format == "gemini":
            file = body["batch"]["inputConfig"]["fileName"].removeprefix("files/")
            lines = self._lines_of(file)
            return new_job(
                [(line["key"], {**line["request"], "model": self.model}) for line in lines],
                input_file_id=file,
                metadata={"displayName": body["batch"]["displayName"]},
            )
        [file] = body.get("input_files") or [body["input_file_id"]]
        requests = [(line["custom_id"], line["body"]) for line in self._lines_of(file)]
        return new_job(
            requests,
            input_file_id=file,
            metadata=body.get("metadata") or {},
            endpoint=body["endpoint"],
        )

    def _lines_of(self, file: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.server.files[file]["data"].splitlines()]

    def _list(self) -> dict[str, Any]:
        jobs = [job for job in self.server.jobs.values() if job.format == self.format][::-1]
        self.server.now += self.server.step_s
        for job in jobs:
            self.server.tick(job)
        total = len(jobs)
        names = [job.id for job in jobs]
        query = self.query
        after = query.get("after") or query.get("after_id") or query.get("pageToken")
        if after in names:
            jobs = jobs[names.index(after) + 1 :]
        size = int(query.get("limit") or query.get("page_size") or query.get("pageSize") or 20)
        jobs = jobs[int(query.get("page", "0")) * size :]
        page = [self._show(job) for job in jobs[:size]]
        has_more = len(jobs) > size
        if self.format == "gemini":
            token = {"nextPageToken": page[-1]["name"]} if has_more else {}
            return {"operations": page, **token}
        ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {}
        return {"object": "list", "data": page, "has_more": has_more, "total": total, **ends}

    def _show(self, job: Job) -> dict[str, Any]:
        if job.format == "openai":
            shown = show_openai(job, absent="" if self.server.empty_ids else None)
        elif job.format == "anthropic":
            shown = show_anthropic(job, self.server.url)
        elif job.format == "gemini":
            shown = show_gemini(job)
        else:
            shown = show_mistral(job)
        shown |= self.server.returned
        return {name: shown[name] for name in shown if name not in self.server.unreturned}
