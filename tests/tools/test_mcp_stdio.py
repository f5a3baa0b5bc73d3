"""A local MCP server: its tools, its results as text, its failures, and that no process of it is left.

The server is a real process that speaks the protocol by hand, so that it can also break it.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from evaluator import ConfigurationError, ToolError
from evaluator.tools import (
    CallbackAsker,
    FileAccess,
    PolicyRule,
    ToolContext,
    ToolRegistry,
)
from evaluator.tools.mcp.content import answer_of_result
from tests.optional import needs
from tests.tools.mcp_play import Client

pytestmark = needs("mcp", "the extra mcp is not installed")


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
