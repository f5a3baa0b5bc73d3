"""An MCP server of a profile in a run: its tools are called, its resources read, and a replay starts nothing."""

from __future__ import annotations

import asyncio
import sys

import pytest

from evaluator import load_profiles
from tests.optional import needs

pytestmark = needs("mcp", "the extra evaluator[mcp] is not installed")

SERVER = """
from mcp.server.mcpserver import MCPServer
import pathlib, sys

pathlib.Path(sys.argv[1]).open("a").write("started\\n")
server = MCPServer("notes")

@server.tool()
def shout(text: str) -> str:
    "Say it loudly."
    return text.upper()

@server.resource("memo://lake")
def lake() -> str:
    return "Lake Baikal is the deepest."

server.run()
"""
TASK = """<task name="look" type="atomic"><description>Look</description>
  <file_paths source="literal"><path>mcp://notes/memo://lake</path></file_paths>
  <instructions>Look around</instructions></task>"""


@pytest.fixture
def profiles(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "handlers").mkdir()
    (tmp_path / "handlers" / "p.xml").write_text(
        f"""<handler name="p"><backend>simulated</backend>
          <mcp><server name="notes" command="{sys.executable}"><arg>{tmp_path}/server.py</arg><arg>{tmp_path}/log</arg></server></mcp>
          <tools><tool name="notes__shout" policy="allow"/></tools></handler>"""
    )
    return load_profiles(tmp_path / "handlers")


def test_tools_and_resources_of_a_server_in_a_run_and_in_its_replay(
    make_evaluator, profiles, tmp_path
):
    def script(request):
        answers = [m.content for m in request.messages if m.role == "tool"]
        return (
            f"it said {answers[0]}"
            if answers
            else {"tool": "notes__shout", "arguments": {"text": "hello"}}
        )

    evaluator = make_evaluator(TASK, script=script, handler="p", profiles=profiles)

    async def run():
        outcome = await evaluator.evaluate("look")
        await evaluator.aclose()
        return outcome

    result = asyncio.run(run()).unwrap()
    assert "HELLO" in result.content
    assert (tmp_path / "log").read_text() == "started\n"
    steps = {s.start.path: s for s in evaluator.services.store.read(1).steps}
    assert "Lake Baikal is the deepest." in steps["turn[1]"].start.args["messages"][-1]["content"]
    (tmp_path / "server.py").unlink()
    replay = make_evaluator(TASK, script=script, handler="p", profiles=profiles).replay_sync(1)
    assert replay.ok
    assert (tmp_path / "log").read_text() == "started\n"


def test_a_preview_starts_no_server(make_evaluator, profiles, tmp_path):
    outcome, requests = make_evaluator(TASK, handler="p", profiles=profiles).render("look")
    assert outcome.ok
    assert requests[0].tools == ("notes__shout",)
    assert not (tmp_path / "log").exists()
