"""A server of the Model Context Protocol over standard streams, and what plays with it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator import McpServer
from evaluator.tools import (
    FileAccess,
    ToolContext,
    ToolOutcome,
    ToolRegistry,
)
from evaluator.tools.mcp.connections import McpConnections

SERVER = r"""
import base64, json, os, subprocess, sys, time

mode, log = sys.argv[1], open(sys.argv[2], "a", buffering=1)
log.write(f"start {os.getpid()}\n")
obj = {"type": "object"}
late, cancelled, stamp = {}, [], {}
tools = [
    {"name": name, "description": f"does {name}", "inputSchema": obj}
    for name in ("die", "hang", "say", "garbage", "huge", "fork", "env", "cancelled", "later", "grow", "noise", "refuse", "nonsense", "stderr")
] + [
    {"name": "a.b", "inputSchema": obj}, {"name": "a/b", "inputSchema": obj},
    {"name": "n" * 70, "inputSchema": obj},
    {"name": "broken", "inputSchema": {"type": "object", "properties": {"x": {"type": "strnig"}}}},
    {"name": "large", "inputSchema": {"type": "object", "description": "x" * 200_000}},
    {"name": "plain", "title": "A plain one", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
     "annotations": {"readOnlyHint": True}},
    {"name": "again", "inputSchema": obj, "annotations": {"idempotentHint": True}},
]

def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()

def text(*texts, **more):
    return {"content": [{"type": "text", "text": t} for t in texts], **more}

def call(id, name, arguments):
    log.write(f"call {name}\n")
    if name == "die":
        sys.stderr.write("the disk is on fire\n" + os.environ.get("SECRET_WORD", "") + "\n")
        os._exit(arguments.get("code", 7))
    if name == "hang":
        if arguments.get("deaf"):
            time.sleep(60)
        return None
    if name == "say":
        return arguments["result"]
    if name == "garbage":
        sys.stdout.write("Loading model...\n{\"half\": \n\n")
        return text("done")
    if name == "huge":
        sys.stdout.write("x" * 17_000_000)
        sys.stdout.flush()
        time.sleep(60)
    if name == "fork":
        command = [sys.executable, "-c", "import os, time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True); time.sleep(60)"]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return text(child.stdout.readline().strip())
    if name == "env":
        return text(json.dumps(dict(os.environ) | {"cwd": os.getcwd()}))
    if name == "cancelled":
        return text(json.dumps(cancelled))
    if name == "later":
        late[arguments["n"]] = id
        if len(late) == 5:
            for n in sorted(late, reverse=True):
                send({"id": late[n], "result": text(str(n))})
        return None
    if name == "grow":
        tools.append({"name": "new", "inputSchema": obj})
        send({"method": "notifications/tools/list_changed", "params": stamp})
        return text("grown")
    if name == "noise":
        for n in range(5_000):
            send({"method": "notifications/message", "params": {"level": "info", "data": "x" * 100}})
        return text("quiet")
    if name == "refuse":
        send({"id": id, "error": {"code": -32602, "message": "no such thing"}})
        return None
    if name == "nonsense":
        return {"content": "not a list"}
    if name == "stderr":
        sys.stderr.write("x" * 1_000_000)
        return text("said")
    send({"id": id, "error": {"code": -32602, "message": f"unknown tool {name}"}})

resources = {
    "memo://two": [{"uri": "memo://two", "text": "one"}, {"uri": "memo://two/b", "text": "two"}],
    "memo://blob": [{"uri": "memo://blob", "mimeType": "image/png", "blob": base64.b64encode(bytes(1000)).decode()}],
    "memo://none": [],
    "memo://long": [{"uri": "memo://long", "text": "x" * 1_000_001}],
}
if mode == "listless":
    tools = [{"name": "list", "inputSchema": {"type": "array"}}]
if mode == "banner":
    print("Welcome to the server!\n" * 3, flush=True)
if mode == "silent":
    print("I speak no protocol", flush=True)
    time.sleep(60)
for line in sys.stdin:
    message = json.loads(line)
    id, method, params = message.get("id"), message["method"], message.get("params", {})
    if method == "notifications/cancelled":
        cancelled.append(params["requestId"])
    if id is None:
        continue
    if method == "initialize" and mode != "modern":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {"listChanged": True}},
                  "serverInfo": {"name": "raw", "version": "1"}}
    elif method == "server/discover" and mode == "modern":
        result = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}},
                  "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    elif method == "subscriptions/listen" and mode == "modern":
        stamp = {"_meta": {"io.modelcontextprotocol/subscriptionId": id}}
        send({"method": "notifications/subscriptions/acknowledged", "params": {"notifications": {"toolsListChanged": True}, **stamp}})
        continue
    elif method == "tools/list":
        log.write("list\n")
        start = int(params.get("cursor") or 0)
        result = {"tools": tools[start:start + 10]}
        if mode == "modern":
            result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        if start + 10 < len(tools):
            result["nextCursor"] = str(start + 10)
    elif method == "tools/call":
        result = call(id, params["name"], params.get("arguments", {}))
        if result is None:
            continue
        if mode == "modern":
            result["resultType"] = "complete"
    elif method == "resources/read" and params["uri"] in resources:
        result = {"contents": resources[params["uri"]]}
    elif method == "ping":
        result = {}
    else:
        send({"id": id, "error": {"code": -32601, "message": f"no method {method}"}})
        continue
    send({"id": id, "result": result})
"""


class Client:
    """Connections to one raw server in `folder`; `call` goes the way that a model's call goes."""

    def __init__(self, folder: Path, mode: str = "", **more: Any) -> None:
        self.folder = folder
        self.log = folder / "log"
        environ = more.pop("environ", os.environ)
        more.setdefault("timeout_s", 100.0)
        script = folder / "server.py"
        script.write_text(SERVER, encoding="utf-8")
        self.server = McpServer(
            name="raw", command=sys.executable, args=(str(script), mode, str(self.log)), **more
        )
        self.notices: list[str] = []
        self.connections = McpConnections(folder, notice=self.notices.append, environ=environ)

    async def tools(self, *names: str) -> ToolRegistry:
        described = await self.connections.describe(self.server, [f"raw__{name}" for name in names])
        return ToolRegistry(
            replace(t, policy="allow") for t in self.connections.tools_of(self.server, described)
        )

    async def outcome(self, tool: str, remaining_s: float = 100.0, **arguments: Any) -> ToolOutcome:
        context = ToolContext(FileAccess([self.folder]), remaining_s=remaining_s)
        said = {
            "name": f"raw__{tool}",
            "tool": tool,
            "description": "",
            "parameters": {"type": "object"},
        }
        tools = self.connections.tools_of(
            self.server, [said | {"reads_only": False, "repeatable": False}]
        )
        registry = ToolRegistry(replace(found, policy="allow") for found in tools)
        return await registry.call(f"raw__{tool}", json.dumps(arguments), context)

    async def call(self, tool: str, **arguments: Any) -> str:
        outcome = await self.outcome(tool, **arguments)
        assert outcome.ok, outcome.error
        return outcome.content

    async def until_called(self, tool: str, times: int) -> None:
        while len(self.logged(f"call {tool}")) < times:
            await self.call("garbage")

    def logged(self, word: str) -> list[str]:
        return [
            line
            for line in self.log.read_text(encoding="utf-8").splitlines()
            if line.startswith(word)
        ]


Play = Callable[[Client], Awaitable[Any]]
