"""Watches on an MCP server, which is a real process over standard input and output."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from evaluator import HandlerConfig, McpServer, ToolGrant
from evaluator.background import BackgroundTasks, BackgroundTools, WatchWork
from evaluator.interpreter.background import BACKGROUND_TOOLS
from tests.jobs.test_background_scripts import until
from tests.leftovers import is_running
from tests.optional import needs

pytestmark = needs("mcp", "the extra mcp is not installed")

# Announces what the file `commands` asks for, line by line, as soon as the client has subscribed.
SERVER = r"""
import json, os, subprocess, sys, threading, time

mode, folder = sys.argv[1], sys.argv[2]
child = subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)"])
with open(folder + "/pids.new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(folder + "/pids.new", folder + "/pids")
stamp = {}

def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()

def announce():
    os.mkfifo(folder + "/commands")
    while True:
        with open(folder + "/commands") as file:  # until its writer closes it
            for line in file:
                act(line)

def act(line):
    word, _, rest = line.strip().partition(" ")
    if word == "die":
        os._exit(3)
    if word == "log":
        send({"method": "notifications/message", "params": {"level": "info", "logger": "x", "data": rest}})
    elif word == "tools":
        send({"method": "notifications/tools/list_changed", "params": stamp})
    else:
        send({"method": "notifications/resources/updated", "params": {"uri": rest, **stamp}})

for line in sys.stdin:
    message = json.loads(line)
    id, method, params = message.get("id"), message["method"], message.get("params", {})
    if id is None:
        continue
    more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if mode == "modern" else {}
    if method == "initialize" and mode != "modern":
        result = {"protocolVersion": params["protocolVersion"], "serverInfo": {"name": "raw", "version": "1"},
                  "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}, "logging": {}}}
    elif method == "server/discover" and mode == "modern":
        result = {"supportedVersions": ["2026-07-28"],
                  "capabilities": {"tools": {"listChanged": True}, "resources": {"subscribe": True}}, **more}
    elif method == "subscriptions/listen" and mode == "modern":
        stamp = {"_meta": {"io.modelcontextprotocol/subscriptionId": id}}
        send({"method": "notifications/subscriptions/acknowledged", "params": {"notifications": params["notifications"], **stamp}})
        threading.Thread(target=announce, daemon=True).start()
        continue
    elif method == "resources/subscribe" and mode == "legacy":
        result = {}
        send({"id": id, "result": result})
        threading.Thread(target=announce, daemon=True).start()
        continue
    elif method == "resources/read" and params["uri"] != "memo://hangs":
        result = {"contents": [{"uri": params["uri"], "text": "text of " + params["uri"]}], **more}
    elif method == "resources/read":
        continue
    elif method == "ping":
        result = {}
    else:
        send({"id": id, "error": {"code": -32601, "message": f"no method {method}"}})
        continue
    send({"id": id, "result": result})
"""


def server_in(folder: Path, mode: str = "legacy") -> McpServer:
    (folder / "server.py").write_text(SERVER, encoding="utf-8")
    return McpServer(
        name="raw", command=sys.executable, args=(str(folder / "server.py"), mode, str(folder))
    )


async def tell(folder: Path, *lines: str) -> None:
    """Has the server announce this, once it has a subscription."""
    await until((folder / "commands").exists)
    await asyncio.to_thread(
        (folder / "commands").write_text, "".join(f"{line}\n" for line in lines)
    )


def lines(task):
    return [
        json.loads(line) for line in Path(task.output_file).read_text(encoding="utf-8").splitlines()
    ]


@pytest.mark.parametrize("mode", ["legacy", "modern"])
def test_events_are_in_the_output_and_told_while_the_watch_goes_on(tmp_path, mode):
    async def work():
        told = []
        async with BackgroundTasks(tmp_path / "bg", callback=told.append) as tasks:
            task = tasks.start(
                WatchWork(server_in(tmp_path, mode), ("memo://two",), max_events=2), "watch"
            )
            assert (task.id[0], task.priority) == ("m", "next")
            await tell(tmp_path, "updated memo://two")
            await until(lambda: told)
            assert (
                told[0].kind == "event"
                and "<status>" not in told[0].xml
                and "memo://two" in told[0].xml
            )
            assert tasks.store.get(task.id).status == "running"
            await until(lambda: len(lines(task)) == 2)
            await tell(tmp_path, "tools")
            ended = await tasks.wait(task.id, 200)
            assert (ended.status, ended.summary) == ("completed", "2 events")
            assert [notice.kind for notice in told if notice.kind == "end"] == ["end"]
            return ended

    found = lines(asyncio.run(work()))
    assert [(each["event"], each.get("text")) for each in found] == [
        ("resource_updated", None),
        ("resource", "text of memo://two"),
        ("tools_changed", None),
    ]


def test_log_messages_are_events_and_the_latest_unclaimed_notice_replaces_the_former(tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(
                WatchWork(server_in(tmp_path), ("memo://two",)), "watch", session="s"
            )
            for number in range(3):
                await tell(tmp_path, f"log number {number}")
                await until(
                    lambda n=number: any(
                        f"number {n}" in each.xml for each in tasks.store.notices(task.id)
                    )
                )
            (notice,) = tasks.store.claim(session="s")
            assert (notice.kind, notice.priority) == (
                "event",
                "next",
            ) and "event 3: log number 2" in notice.xml

    asyncio.run(work())


@pytest.mark.parametrize("uri", ["memo://two", "memo://hangs"])
def test_a_kill_ends_the_server_and_all_that_it_started(tmp_path, uri):
    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(WatchWork(server_in(tmp_path), (uri,)), "watch")
            await tell(tmp_path, f"updated {uri}")
            await until(lambda: lines(task))
            pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
            assert all(map(is_running, pids))
            killed = await tasks.kill(task.id, "enough", timeout_s=200)
            assert (killed.status, killed.reason) == ("killed", "enough")
            assert not any(map(is_running, pids)) and len(tasks.store.notices(task.id)) >= 1

    asyncio.run(work())


@pytest.mark.parametrize(
    ("mode", "says"),
    [("legacy", "it ended with exit code 3"), ("deaf", "does not announce changes of memo://two")],
)
def test_a_server_that_is_lost_or_cannot_be_watched_is_a_failure(tmp_path, mode, says):
    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(WatchWork(server_in(tmp_path, mode), ("memo://two",)), "watch")
            if mode == "legacy":
                await tell(tmp_path, "die")
            ended = await tasks.wait(task.id, 200)
            assert ended.status == "failed" and says in (ended.reason or "")
            assert not any(
                is_running(int(word)) for word in (tmp_path / "pids").read_text().split()
            )

    asyncio.run(work())


def test_a_program_that_cannot_be_started_is_a_failure(tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path) as tasks:
            server = McpServer(name="raw", command="/nowhere/at/all")
            ended = await tasks.wait(tasks.start(WatchWork(server), "watch").id, 60)
            assert ended.status == "failed" and "program not found" in (ended.reason or "")

    asyncio.run(work())


def test_a_model_watches_a_server_of_its_profile_and_no_other(make_evaluator, tmp_path):
    calls = [
        ("start_watch", {"server": "other"}),
        ("start_watch", {"server": "raw", "resources": ["memo://two"], "max_events": 1}),
        ("wait_background", {}),
        ("read_background", {}),
    ]
    told: list[str] = []

    def script(request):
        told[:] = [message.content for message in request.messages if message.role == "tool"]
        if len(told) == len(calls):
            return "done"
        name, arguments = calls[len(told)]
        found = {"task_id": json.loads(told[1])["task_id"]} if len(told) > 1 else {}
        return {"tool": name, "arguments": arguments | found}

    profile = HandlerConfig(
        name="p",
        backend="simulated",
        mcp=(server_in(tmp_path),),
        tools=tuple(ToolGrant(n, "allow") for n in BACKGROUND_TOOLS),
    )
    evaluator = make_evaluator(
        '<task name="work" type="atomic"><description>Work</description><instructions>Work</instructions></task>',
        script=script,
        handler=profile,
        profiles={"p": profile},
        background=BackgroundTools(tmp_path / "bg"),
    )

    async def work():
        evaluation = asyncio.ensure_future(evaluator.evaluate("work"))
        await tell(tmp_path, "updated memo://two")
        return await evaluation

    assert asyncio.run(work()).ok
    assert "has no MCP server 'other'; its servers are: raw" in told[0]
    assert (
        json.loads(told[2])["status"] == "completed"
        and "text of memo://two" in json.loads(told[3])["text"]
    )
