"""MCP over streamable HTTP: a server made with the SDK, as a process on loopback that can die, hang and be replaced."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator import ConfigurationError, McpServer, ToolError
from evaluator.tools import FileAccess, ToolContext, ToolOutcome, ToolRegistry
from evaluator.tools.mcp import McpHeader
from evaluator.tools.mcp.connections import McpConnections
from tests.optional import needs
from tests.patience import with_enough_time
from tests.ports import silent_port

pytestmark = needs("mcp", "the extra mcp is not installed")

SERVER = r'''
import os, signal, socket, sys
import anyio, uvicorn
from mcp.server.mcpserver import Context, MCPServer
from starlette.responses import PlainTextResponse

server = MCPServer("house")

@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@server.tool()
def die() -> str:
    os._exit(1)

@server.tool()
async def hang() -> str:
    await anyio.sleep_forever()

@server.tool()
def long(characters: int) -> str:
    return "x" * characters

@server.tool()
async def learn(ctx: Context) -> str:
    """Teaches the server another tool."""
    server.add_tool(add, name="sum")
    await ctx.session.send_tool_list_changed()
    return "learned"

@server.resource("memo://rules")
def rules() -> str:
    return "Keep the door shut."

def serve(port, answers):
    app = server.streamable_http_app(json_response=answers == "json")

    async def guarded(scope, receive, send):
        headers = dict(scope.get("headers", ()))
        if scope["type"] == "http" and headers.get(b"authorization", b"") != b"Bearer open sesame":
            return await PlainTextResponse("who is there?", 401)(scope, receive, send)
        await app(scope, receive, send)

    listener = socket.create_server(("127.0.0.1", int(port)))
    print(os.getpid(), flush=True)
    uvicorn.Server(uvicorn.Config(guarded, log_level="critical")).run([listener])
    os._exit(0)

for line in sys.stdin:
    command, *words = line.split()
    if command == "start" and os.fork() == 0:
        serve(*words)
    if command == "stop":
        os.kill(int(words[0]), signal.SIGKILL)
        os.waitpid(int(words[0]), 0)
        print("stopped", flush=True)
'''


class Street:
    """A process that has imported the SDK, which takes seconds, and forks the servers."""

    def __init__(self, folder: Path) -> None:
        script = folder / "server.py"
        script.write_text(SERVER, encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *words: object) -> list[str]:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(*words, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().split()


class House:
    """The server's process; `start` again takes the same port."""

    def __init__(self, street: Street, port: int, answers: str) -> None:
        self.street = street
        self.port = port
        self.answers = answers
        self.pid = 0

    def start(self) -> None:
        (pid,) = self.street.ask("start", self.port, self.answers)
        self.pid = int(pid)

    def stop(self) -> None:
        if self.pid:
            self.street.ask("stop", self.pid)
            self.pid = 0


@pytest.fixture(scope="module")
def street(tmp_path_factory) -> Iterator[Street]:
    made = Street(tmp_path_factory.mktemp("street"))
    yield made
    made.process.communicate()


@pytest.fixture(scope="module")
def lasting(street) -> Iterator[House]:
    """One for the tests that leave it as it is."""
    with silent_port() as port:
        house = House(street, port, "events")
        house.start()
        try:
            yield house
        finally:
            house.stop()


@pytest.fixture
def house(street, request) -> Iterator[House]:
    with silent_port() as port:
        house = House(street, port, getattr(request, "param", "events"))
        house.start()
        try:
            yield house
        finally:
            house.stop()


HEADER = McpHeader("Authorization", "HOUSE_WORD", "Bearer ")


def server_at(port: int, **more: Any) -> McpServer:
    more.setdefault("headers", (HEADER,))
    return McpServer(
        name="house",
        url=f"http://127.0.0.1:{port}/mcp",
        timeout_s=more.pop("timeout_s", 100.0),
        **more,
    )


def connections() -> McpConnections:
    return McpConnections(environ={"HOUSE_WORD": "open sesame"})


async def call(
    made: McpConnections, server: McpServer, tool: str, arguments: str = "{}"
) -> ToolOutcome:
    said = {
        "name": f"house__{tool}",
        "tool": tool,
        "description": "",
        "parameters": {"type": "object"},
    }
    (found,) = made.tools_of(server, [said | {"reads_only": False, "repeatable": False}])
    context = ToolContext(FileAccess([Path.cwd()]))
    return await ToolRegistry([replace(found, policy="allow")]).call(
        f"house__{tool}", arguments, context
    )


@pytest.mark.parametrize("house", ["json", "events"], indirect=True)
def test_a_server_at_an_address_is_used_dies_in_mid_call_and_is_found_again(house):
    async def scene() -> None:
        server, made = server_at(house.port), connections()
        (described,) = await made.describe(server, ["house__add"])
        assert described["description"] == "Add two numbers."
        assert await made.read_resource(server, "memo://rules") == "Keep the door shut."
        outcomes = await asyncio.gather(
            *(call(made, server, "add", f'{{"a": {n}, "b": {n}}}') for n in range(8)),
        )
        assert [outcome.content.split("\n")[0] for outcome in outcomes] == [
            str(2 * n) for n in range(8)
        ]

        endless = await call(made, server, "long", '{"characters": 17000000}')
        assert not endless.ok and "MCP server 'house'" in str(endless.error)

        lost = await call(made, server, "die")
        assert lost.error is not None
        assert lost.error.startswith("MCP server 'house' was lost during house__die: ")
        assert "the call was not repeated" in lost.error

        house.stop()
        gone = await call(made, server, "add", '{"a": 1, "b": 1}')
        assert str(gone.error).startswith(
            "MCP server 'house' cannot be used: All connection attempts failed"
        )
        house.start()
        assert (await call(made, server, "add", '{"a": 1, "b": 1}')).ok
        await made.aclose()

    asyncio.run(scene())


def test_a_session_that_a_restarted_server_does_not_know_is_replaced(house):
    async def scene() -> None:
        server, made = server_at(house.port), connections()
        assert (await call(made, server, "add", '{"a": 1, "b": 1}')).ok
        house.stop()
        house.start()
        outcome = await call(made, server, "add", '{"a": 1, "b": 1}')
        assert not outcome.ok and "MCP server 'house'" in str(outcome.error)
        assert (await call(made, server, "add", '{"a": 1, "b": 1}')).ok
        await made.aclose()

    asyncio.run(scene())


def test_a_call_that_hangs_ends_in_its_time_and_others_go_on(lasting):
    async def scene(limit_s: float) -> tuple[bool, str]:
        made = connections()
        server = server_at(lasting.port, timeout_s=limit_s)
        first = await call(made, server, "add", '{"a": 1, "b": 1}')
        hung, good = await asyncio.gather(
            call(made, server, "hang"), call(made, server, "add", '{"a": 1, "b": 1}')
        )
        last = await call(made, server, "add", '{"a": 1, "b": 1}')
        await made.aclose()
        return first.ok and good.ok and last.ok, str(hung.error)

    others_went_on, error = with_enough_time(
        lambda limit_s: asyncio.run(scene(limit_s)), lambda result: result[0], first_s=1.0
    )
    assert others_went_on
    assert re.search(r"did not answer house__hang within [0-9.]+ s", error)


def test_a_changed_list_of_tools_is_asked_for_again(lasting):
    async def scene() -> None:
        server, made = server_at(lasting.port), connections()
        with pytest.raises(ConfigurationError, match="no tool 'house__sum'"):
            await made.describe(server, ["house__sum"])
        assert (await call(made, server, "learn")).ok
        while True:  # the word of it comes over a stream of its own
            try:
                assert len(await made.describe(server, ["house__sum"])) == 1
                break
            except ConfigurationError:
                await made.read_resource(server, "memo://rules")
        await made.aclose()

    asyncio.run(scene())


def test_a_server_that_refuses_access_is_an_error_with_its_status_and_without_the_secret(lasting):
    async def scene() -> None:
        server = server_at(lasting.port)
        made = McpConnections(environ={"HOUSE_WORD": "open barley"})
        with pytest.raises(
            ToolError, match=r"MCP server 'house' cannot be used: .*HTTP 401"
        ) as caught:
            await made.describe(server, ["house__add"])
        assert "barley" not in str(caught.value)
        await made.aclose()

    asyncio.run(scene())


def test_an_address_without_a_server_is_an_error():
    async def scene() -> None:
        made = connections()
        with pytest.raises(
            ToolError, match="MCP server 'house' cannot be used: All connection attempts failed"
        ):
            await made.describe(server_at(9), ["house__add"])
        await made.aclose()

    asyncio.run(scene())


def test_a_server_that_accepts_the_connection_and_stays_silent_is_an_error_within_its_time(
    tmp_path,
):
    async def scene() -> None:
        waiting = asyncio.Event()

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await waiting.wait()
            writer.close()

        silent = await asyncio.start_server(hold, "127.0.0.1", 0)
        made = connections()
        with pytest.raises(ToolError, match=r"MCP server 'house' .*0\.5 s"):
            await made.describe(
                server_at(silent.sockets[0].getsockname()[1], timeout_s=0.5), ["house__add"]
            )
        await made.aclose()
        waiting.set()
        silent.close()
        await silent.wait_closed()

    asyncio.run(scene())
