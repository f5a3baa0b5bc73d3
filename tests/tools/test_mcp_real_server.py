"""A third-party server, as its package ships it: `mcp-server-time`."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from evaluator import McpServer
from evaluator.tools import FileAccess, PolicyRule, ToolContext, ToolRegistry
from evaluator.tools.mcp.connections import McpConnections
from tests.optional import needs

pytestmark = needs("mcp_server_time", "the package mcp-server-time is not installed")

TIME = McpServer(
    name="time",
    command=sys.executable,
    args=("-m", "mcp_server_time", "--local-timezone", "UTC"),
    trusted=True,
)


def test_the_tools_of_a_real_server_are_listed_called_and_refused(tmp_path):
    async def scene() -> None:
        made = McpConnections(tmp_path)
        try:
            described = await made.describe(TIME, ["time__convert_time", "time__get_current_time"])
            tools = made.tools_of(TIME, described)
            assert [(tool.policy, tool.effect, tool.retryable) for tool in tools] == [
                ("ask", False, True)
            ] * 2
            deny = PolicyRule("deny", "target_timezone", "Europe/*")
            registry = ToolRegistry(replace(tool, policy="allow", rules=(deny,)) for tool in tools)
            context = ToolContext(FileAccess([Path(tmp_path)]), remaining_s=20.0)

            arguments = {
                "source_timezone": "Asia/Tokyo",
                "time": "12:00",
                "target_timezone": "Asia/Kolkata",
            }
            outcome = await registry.call("time__convert_time", json.dumps(arguments), context)
            assert outcome.ok, outcome.error
            told = json.loads(
                outcome.content
            )  # its text alone: the structured content says the same
            assert (told["time_difference"], told["target"]["datetime"][11:16]) == (
                "-3.5h",
                "08:30",
            )

            refused = await registry.call(
                "time__convert_time",
                json.dumps(arguments | {"target_timezone": "Europe/Vienna"}),
                context,
            )
            assert refused.code == "denied"
            missing = await registry.call("time__convert_time", '{"time": "12:00"}', context)
            assert missing.code == "bad_arguments"
            nowhere = await registry.call(
                "time__get_current_time", '{"timezone": "Nowhere/X"}', context
            )
            assert (nowhere.ok, nowhere.code) == (False, "failed")
            assert "Invalid timezone" in str(nowhere.error)
        finally:
            await made.aclose()

    asyncio.run(scene())
