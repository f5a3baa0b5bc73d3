"""A local MCP server: its tools, its results as text, its failures, and that no process of it is left.

The server is a real process that speaks the protocol by hand, so that it can also break it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evaluator import ConfigurationError, McpServer, ToolError
from evaluator.tools import (
    CallbackAsker,
    FileAccess,
    PolicyRule,
    ToolContext,
    ToolOutcome,
    ToolRegistry,
)
from evaluator.tools.mcp.connections import MAX_RESTARTS, McpConnections
from evaluator.tools.mcp.content import answer_of_result
from tests.optional import needs
from tests.patience import with_enough_time

pytestmark = needs("mcp", "the extra mcp is not installed")

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


@pytest.fixture
def play(tmp_path):
    """Runs a scene with a client and closes its connections; returns the client."""

    def run(scene: Play, mode: str = "", **more: Any) -> Client:
        async def whole() -> Client:
            client = Client(tmp_path, mode, **more)
            try:
                await scene(client)
            finally:
                await client.connections.aclose()
            return client

        return asyncio.run(whole())

    return run


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 200)[0], f"process {pid} is still there"
    finally:
        os.close(descriptor)


# -- tools and results --------------------------------------------------------------------------------------


def test_a_servers_tools_ask_and_count_as_having_an_effect(play):
    async def scene(client: Client) -> None:
        described = await client.connections.describe(client.server, ["raw__plain", "raw__again"])
        for trusted in (False, True):
            plain, again = client.connections.tools_of(
                replace(client.server, trusted=trusted), described
            )
            assert (plain.spec.name, plain.spec.description) == ("raw__plain", "A plain one")
            assert plain.spec.parameters["properties"] == {"n": {"type": "integer"}}
            assert again.spec.parameters == {"type": "object", "properties": {}}
            assert (plain.policy, plain.effect, plain.retryable) == ("ask", not trusted, trusted)
            assert (again.policy, again.effect, again.retryable) == ("ask", True, trusted)
        assert json.loads(json.dumps(described)) == described
        assert ToolRegistry([replace(plain, rules=(PolicyRule("deny", "n", "1"),))])

    play(scene)


def test_arguments_are_checked_before_the_server_is_asked(play):
    async def scene(client: Client) -> None:
        tools = await client.tools("plain")
        outcome = await tools.call(
            "raw__plain", '{"n": "one"}', ToolContext(FileAccess([client.folder]))
        )
        assert (outcome.ok, outcome.code) == (False, "bad_arguments")

    assert play(scene).logged("call") == []


PNG = "iVBORw0KGgo="
BIG_PNG = base64.b64encode(base64.b64decode(PNG).ljust(6_000_000, b"\0")).decode()


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": []}, ""),
        ({"content": [], "structuredContent": {"é": [1]}}, '{"é": [1]}'),
        (
            {"content": [{"type": "text", "text": '{ "n":1 }'}], "structuredContent": {"n": 1}},
            '{ "n":1 }',
        ),
        (
            {"content": [{"type": "text", "text": "one"}], "structuredContent": {"n": 1}},
            'one\n{"n": 1}',
        ),
        (
            {
                "content": [{"type": "text", "text": "waited"}],
                "structuredContent": {"result": "waited"},
            },
            "waited",
        ),
        (
            {"content": [{"type": "text", "text": "3"}], "structuredContent": {"result": 3}},
            '3\n{"result": 3}',
        ),
        (
            {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]},
            "[image, image/png, 8 bytes]",
        ),
        (
            {"content": [{"type": "image", "data": PNG, "mimeType": "image/gif"}]},
            "[image, image/gif, 8 bytes: not shown]",
        ),
        (
            {"content": [{"type": "image", "data": "no", "mimeType": "image/png"}]},
            "[image, image/png, 1 byte: not shown]",
        ),
        (
            {"content": [{"type": "image", "data": BIG_PNG, "mimeType": "image/png"}]},
            "[image, image/png, 6,000,000 bytes: not shown]",
        ),
        (
            {"content": [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]},
            "[audio, audio/wav, 3 bytes: not shown]",
        ),
        (
            {"content": [{"type": "resource_link", "uri": "memo://x", "name": "x"}]},
            "[resource memo://x: x]",
        ),
        (
            {
                "content": [
                    {"type": "resource", "resource": {"uri": "memo://x", "text": "its text"}}
                ]
            },
            "its text",
        ),
        (
            {
                "content": [
                    {"type": "resource", "resource": {"uri": "memo://x", "blob": "AAAAAA=="}}
                ]
            },
            "[resource memo://x, no media type, 4 bytes: not shown]",
        ),
    ],
)
def test_a_result_becomes_text_without_base64(play, result, told):
    async def scene(client: Client) -> None:
        assert await client.call("say", result=result) == told

    play(scene)


def test_the_images_of_a_result_are_shown(play):
    blocks = [{"type": "image", "data": PNG, "mimeType": "image/png"}] * 2

    async def scene(client: Client) -> None:
        tools = await client.tools("say")
        arguments = json.dumps({"result": {"content": [{"type": "text", "text": "two:"}, *blocks]}})
        outcome = await tools.call(
            "raw__say",
            arguments,
            ToolContext(FileAccess([client.folder]), CallbackAsker(lambda _: "y")),
        )
        assert outcome.content.splitlines() == ["two:", *["[image, image/png, 8 bytes]"] * 2]
        assert [(image.size, image.source) for image in outcome.images] == [
            (8, "image 1 of raw__say"),
            (8, "image 2 of raw__say"),
        ]

    play(scene)


def test_images_that_are_too_large_together_are_named_instead():
    five = base64.b64encode(base64.b64decode(PNG).ljust(5_000_000, b"\0")).decode()
    content = [SimpleNamespace(type="image", data=five, mime_type="image/png")] * 5
    answer = answer_of_result(
        SimpleNamespace(content=content, structured_content=None, is_error=False), "x"
    )
    assert len(answer.images) == 4
    assert answer.content.splitlines()[-1] == "[image, image/png, 5,000,000 bytes: not shown]"


def test_a_failure_that_the_server_tells_is_not_tried_again():
    with pytest.raises(ToolError) as failed:
        answer_of_result(SimpleNamespace(content=[], structured_content=None, is_error=True), "x")
    assert not failed.value.retryable


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (
            {"content": [{"type": "text", "text": "the table is locked"}], "isError": True},
            "the table is locked",
        ),
        ({"content": [], "isError": True}, "the tool failed without a message"),
        (
            {"content": 3},
            "MCP server 'raw' answered raw__say with a message that violates the protocol: ",
        ),
    ],
)
def test_a_failure_that_the_server_tells_is_the_tools_error(play, result, says):
    async def scene(client: Client) -> None:
        outcome = await client.outcome("say", result=result)
        assert (outcome.ok, outcome.code) == (False, "failed")
        assert outcome.error is not None and says in outcome.error

    play(scene)


def test_a_result_is_cut_to_the_bound_of_any_tool(play):
    async def scene(client: Client) -> None:
        result = {"content": [{"type": "text", "text": "x" * 1_500_000}]}
        outcome = await client.outcome("say", result=result)
        assert outcome.truncated
        assert outcome.content.endswith("[cut: the first 1,000,000 of 1,500,000 bytes]")

    play(scene)


def test_a_tool_that_cannot_be_offered_is_skipped_with_a_notice_and_an_error_where_it_is_named(
    play,
):
    reasons = {
        "a_b": "the server's tools 'a.b' and 'a/b' would both have this name",
        "n" * 70: "its name has 75 characters",
        "broken": "its schema is not valid",
        "large": "its schema has more than 100,000 bytes",
    }

    async def scene(client: Client) -> None:
        await client.tools("say")
        for name, reason in reasons.items():
            with pytest.raises(ConfigurationError) as caught:
                await client.tools(name)
            assert reason in str(caught.value)

    notices = play(scene).notices
    assert len(notices) == len(reasons)
    for name, reason in reasons.items():
        assert any(f"raw__{name} " in notice and reason in notice for notice in notices)


def test_an_invalid_list_of_tools_is_an_error_that_names_the_field(play):
    async def scene(client: Client) -> None:
        with pytest.raises(
            ToolError,
            match=r"answered tools/list with a message that violates the protocol: tools\.0\.inputSchema",
        ):
            await client.tools("list")

    play(scene, "listless")


def test_a_tool_that_the_server_does_not_have_is_an_error_with_the_nearest(play):
    async def scene(client: Client) -> None:
        with pytest.raises(
            ConfigurationError,
            match="MCP server 'raw' has no tool 'raw__gro'; did you mean `raw__grow`",
        ):
            await client.tools("gro")

    play(scene)


def test_tools_are_listed_once_and_again_after_the_server_announced_a_change(play):
    async def scene(client: Client) -> None:
        await client.tools("say")
        await client.tools("hang")
        assert len(client.logged("list")) == 3  # its pages
        with pytest.raises(ConfigurationError):
            await client.tools("new")
        assert await client.call("grow") == "grown"
        assert "raw__new" in await client.tools("new")

    play(scene)


def test_a_server_without_handshake_can_be_used(play):
    async def scene(client: Client) -> None:
        with pytest.raises(ConfigurationError):
            await client.tools("new")
        assert await client.call("grow") == "grown"
        assert "raw__new" in await client.tools("new")

    play(scene, "modern")


# -- resources ----------------------------------------------------------------------------------------------


def test_a_resource_is_read_as_text(play):
    async def scene(client: Client) -> None:
        assert await client.connections.read_resource(client.server, "memo://two") == "one\ntwo"

    play(scene)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("memo://blob", "it is not text: resource memo://blob, image/png, 1,000 bytes: not shown"),
        ("memo://none", "the resource is empty"),
        ("memo://long", "it has 1,000,001 characters; at most 1,000,000 are read"),
        ("memo://gone", "answered memo://gone with an error: no method resources/read"),
    ],
)
def test_a_resource_that_cannot_be_read_is_an_error(play, uri, says):
    async def scene(client: Client) -> None:
        with pytest.raises(ToolError) as caught:
            await client.connections.read_resource(client.server, uri)
        assert says in str(caught.value)
        assert "MCP server 'raw'" in str(caught.value)

    play(scene)


# -- the process --------------------------------------------------------------------------------------------


def test_a_server_sees_the_scrubbed_environment_and_the_variables_named_for_it(play, tmp_path):
    async def scene(client: Client) -> None:
        seen = json.loads(await client.call("env"))
        assert seen["SECRET_WORD"] == "open sesame"
        assert "OTHER_SECRET" not in seen
        assert "OPENAI_API_KEY" not in seen
        assert seen["cwd"] == str(tmp_path)

    environ = {"SECRET_WORD": "open sesame", "OTHER_SECRET": "x"}
    play(scene, env=("SECRET_WORD",), environ=environ)


def test_many_evaluations_share_one_server_and_each_gets_its_own_answer(play):
    async def scene(client: Client) -> None:
        answers = await asyncio.gather(*(client.call("later", n=n) for n in range(5)))
        assert answers == ["0", "1", "2", "3", "4"]

    assert len(play(scene).logged("start")) == 1


def test_closing_kills_the_server_and_what_it_started(play):
    pids: list[int] = []

    async def scene(client: Client) -> None:
        pids.append(int(await client.call("fork")))
        pids.append(int(client.logged("start")[0].split()[1]))
        assert all(map(is_there, pids))

    play(scene)
    assert not any(map(is_there, pids))


def test_connections_can_be_used_again_after_closing(play):
    async def scene(client: Client) -> None:
        await client.tools("say")
        await client.connections.aclose()
        await client.tools("say")

    assert len(play(scene).logged("start")) == 2


def test_an_event_loop_that_ends_takes_its_servers_with_it(tmp_path):
    client = Client(tmp_path)
    for n in (1, 2):
        asyncio.run(client.tools("say"))
        pids = [int(line.split()[1]) for line in client.logged("start")]
        assert len(pids) == n
        assert not any(map(is_there, pids))


def test_servers_die_with_a_process_that_is_killed(tmp_path):
    code = (
        "import asyncio, sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path; from test_mcp_stdio import Client\n"
        "async def main():\n"
        "    client = Client(Path(sys.argv[1]))\n"
        "    print(await client.call('fork'), client.logged('start')[0].split()[1], flush=True)\n"
        "    await client.call('hang')\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        process.send_signal(signal.SIGKILL)
    for pid in pids:
        wait_until_gone(pid)


# -- death and other failures -------------------------------------------------------------------------------


def test_the_end_of_a_server_during_a_call_is_described_and_the_call_is_not_repeated(play):
    async def scene(client: Client) -> None:
        outcome = await client.outcome("die")
        assert outcome.error == (
            "MCP server 'raw' was lost during raw__die: it ended with exit code 7; its stderr ends: "
            "the disk is on fire\n[redacted:SECRET_WORD]; the call was not repeated and may have taken effect"
        )
        assert await client.call("garbage") == "done"

    client = play(scene, env=("SECRET_WORD",), environ={"SECRET_WORD": "open sesame"})
    assert client.logged("call") == ["call die", "call garbage"]
    assert len(client.logged("start")) == 2


def test_a_server_killed_from_outside_fails_every_call_in_flight(play):
    async def scene(client: Client) -> None:
        await client.tools("hang")
        calls = [asyncio.create_task(client.outcome("hang")) for _ in range(3)]
        await client.until_called("hang", 3)
        os.kill(int(client.logged("start")[0].split()[1]), signal.SIGKILL)
        for outcome in await asyncio.gather(*calls):
            assert (
                outcome.error is not None and "raw__hang: it was ended by SIGKILL" in outcome.error
            )

    assert len(play(scene).logged("call hang")) == 3


def test_a_server_that_always_dies_is_started_again_three_times_and_then_given_up(play):
    async def scene(client: Client) -> None:
        for _ in range(1 + MAX_RESTARTS):
            assert "exit code 7" in str((await client.outcome("die")).error)
        outcome = await client.outcome("die")
        assert "MCP server 'raw' is given up: started 4 times, it answered no call" in str(
            outcome.error
        )
        assert "exit code 7" in str(outcome.error)
        assert len(client.logged("start")) == 4
        await client.connections.aclose()
        assert await client.call("garbage") == "done"

    play(scene)


def test_an_answered_call_resets_the_count_of_restarts(play):
    async def scene(client: Client) -> None:
        for _ in range(3 + MAX_RESTARTS):
            await client.call("garbage")
            assert "exit code 7" in str((await client.outcome("die")).error)

    play(scene)


def test_a_hanging_call_ends_at_its_time_limit_and_is_cancelled_at_the_server(play, tmp_path):
    def attempt(limit_s: float) -> tuple[float, str, str, int]:
        seen: list[str] = []

        async def scene(client: Client) -> None:
            with suppress(ToolError):
                await client.tools("hang")
                seen.append(str((await client.outcome("hang")).error))
                seen.append((await client.outcome("cancelled")).content)

        (tmp_path / "log").unlink(missing_ok=True)
        client = play(scene, timeout_s=limit_s)
        return limit_s, *(seen or ["", ""]), len(client.logged("start"))

    # Its start has the same limit.
    limit_s, error, cancelled, starts = with_enough_time(
        attempt, lambda tried: tried[2].startswith("["), 1.0
    )
    assert error == (
        f"MCP server 'raw' did not answer raw__hang within {limit_s:g} s; the call was not repeated and may still take effect"
    )
    assert (len(json.loads(cancelled)), starts) == (1, 1)


def test_a_call_ends_within_the_time_of_its_task(play):
    tried: list[tuple[float, str]] = []

    def attempt(limit_s: float) -> str:
        async def scene(client: Client) -> None:
            await client.tools("hang")
            tried.append((limit_s, str((await client.outcome("hang", remaining_s=limit_s)).error)))

        play(scene)
        return tried[-1][1]

    # A twentieth of the task's time is left for the answer; on a busy machine that is over before it is noticed.
    error = with_enough_time(attempt, lambda error: "did not answer" in error, 0.2)
    waited = re.search(r"MCP server 'raw' did not answer raw__hang within ([\d.]+) s", error)
    assert waited is not None and 0 < float(waited[1]) <= tried[-1][0] * 0.95


def test_a_server_that_no_longer_reads_is_replaced(play, monkeypatch, tmp_path):
    monkeypatch.setattr("evaluator.tools.mcp.connection._CHECK_S", 0.2)

    def attempt(limit_s: float) -> int:
        async def scene(client: Client) -> None:
            await client.tools("hang")
            outcome = await client.outcome("hang", remaining_s=limit_s, deaf=True)
            assert "did not answer" in str(outcome.error)
            assert await client.call("garbage") == "done"

        (tmp_path / "log").unlink(missing_ok=True)
        return len(play(scene).logged("start"))

    # A server that was not asked in time still reads.
    assert with_enough_time(attempt, lambda starts: starts > 1, 1.0) == 2


def test_a_cancelled_call_leaves_the_session_to_others(play):
    async def scene(client: Client) -> None:
        await client.tools("hang")
        call = asyncio.create_task(client.outcome("hang"))
        await client.until_called("hang", 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(json.loads(await client.call("cancelled"))) == 1

    assert len(play(scene).logged("start")) == 1


def test_a_line_on_stdout_that_is_not_a_message_is_skipped(play):
    async def scene(client: Client) -> None:
        assert await client.call("garbage") == "done"
        assert "2 lines that are not messages to stdout, the first: 'Loading model...'" in str(
            (await client.outcome("die")).error
        )

    play(scene)


def test_a_server_that_greets_on_stdout_is_understood(play):
    async def scene(client: Client) -> None:
        assert await client.call("garbage") == "done"

    play(scene, "banner")


def test_floods_of_notifications_and_stderr_do_not_delay_calls(play):
    async def scene(client: Client) -> None:
        assert await client.call("noise") == "quiet"
        assert await client.call("stderr") == "said"
        assert "its stderr ends: xxx" in str((await client.outcome("die")).error)

    play(scene)


def test_a_message_without_end_ends_the_session(play):
    async def scene(client: Client) -> None:
        outcome = await client.outcome("huge")
        assert "was lost during raw__huge: it sent a message of more than 16,000,000 bytes" in str(
            outcome.error
        )

    play(scene)


@pytest.mark.parametrize(
    ("tool", "says"), [("refuse", "no such thing"), ("nope", "unknown tool nope")]
)
def test_an_error_of_the_protocol_is_the_tools_error_and_the_session_goes_on(play, tool, says):
    async def scene(client: Client) -> None:
        outcome = await client.outcome(tool)
        assert outcome.error == f"MCP server 'raw' answered raw__{tool} with an error: {says}"
        assert await client.call("garbage") == "done"

    assert len(play(scene).logged("start")) == 1


def test_a_server_that_never_answers_is_an_error_within_its_time_that_shows_its_output(play):
    tried: list[float] = []

    def attempt(limit_s: float) -> str:
        async def scene(client: Client) -> None:
            with pytest.raises(ToolError) as caught:
                await client.tools("say")
            errors.append(str(caught.value))

        errors: list[str] = []
        tried.append(limit_s)
        play(scene, "silent", timeout_s=limit_s)
        return errors[0]

    error = with_enough_time(attempt, lambda error: "I speak no protocol" in error)
    assert re.search(
        rf"MCP server 'raw' (did not answer|cannot be used).* {tried[-1]:g} s.*I speak no protocol",
        error,
    )


@pytest.mark.parametrize(
    ("command", "args", "says"),
    [
        ("no-such-program", (), "program not found: 'no-such-program'"),
        ("/etc/passwd", (), "not executable"),
        (
            sys.executable,
            ("-c", "import sys; sys.exit('no config')"),
            "exit code 1; its stderr ends: no config",
        ),
        ("true", (), "exit code 0"),
        ("a\0b", (), "NUL"),
    ],
)
def test_a_server_that_cannot_be_started_is_an_error_with_the_reason(tmp_path, command, args, says):
    async def scene() -> None:
        connections = McpConnections(tmp_path)
        server = McpServer(name="bad", command=command, args=args, timeout_s=100)
        with pytest.raises(ToolError) as caught:
            await connections.describe(server, ["bad__x"])
        assert str(caught.value).startswith("MCP server 'bad' cannot be used: ")
        assert says in str(caught.value)
        await connections.aclose()

    asyncio.run(scene())


def test_a_missing_variable_is_reported_when_a_server_is_needed(play):
    async def scene(client: Client) -> None:
        with pytest.raises(ConfigurationError, match="needs the environment variable NOT_THERE"):
            await client.tools("say")

    with pytest.raises(FileNotFoundError):
        play(scene, env=("NOT_THERE",)).logged("start")
