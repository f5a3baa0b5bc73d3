"""MCP servers in profiles: reading, errors with positions, and that nothing is loaded for them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import ConfigurationError, HandlerConfig, McpServer, MissingExtra, load_profiles
from evaluator.handler.profiles import profile_named
from evaluator.tools.mcp import McpHeader
from evaluator.tools.mcp.connections import McpConnections
from evaluator.tools.mcp.servers import offered_name, server_of_tool, split_resource
from tests.optional import needs

FILES = McpServer(name="files", command="serve", env=("FILES_TOKEN",))
HOUSE = McpServer(name="house", url="https://house.example/mcp")


def read(tmp_path, servers: str) -> tuple[McpServer, ...]:
    (tmp_path / "p.xml").write_text(
        f'<handler name="p"><mcp>\n{servers}</mcp></handler>', encoding="utf-8"
    )
    return profile_named(load_profiles(tmp_path), "p").mcp


def test_a_command_has_its_arguments_as_they_stand_and_environment_variables_by_name(tmp_path):
    found = read(
        tmp_path,
        '<server name="git-house" command="uvx" timeout="2.5" trust="true"><arg>mcp-server-git</arg>'
        '<arg> two  words </arg><arg/><env name="GIT_TOKEN"/><env name="GIT_USER"/></server>',
    )
    assert found == (
        McpServer(
            name="git-house",
            command="uvx",
            args=("mcp-server-git", " two  words ", ""),
            env=("GIT_TOKEN", "GIT_USER"),
            timeout_s=2.5,
            trusted=True,
        ),
    )


def test_an_address_has_headers_with_values_from_the_environment(tmp_path):
    found = read(
        tmp_path,
        '<server name="house" url="https://house.example:8443/mcp">'
        '<header name="Authorization" prefix="Bearer " env="HOUSE_TOKEN"/></server>',
    )
    header = McpHeader("Authorization", "HOUSE_TOKEN", "Bearer ")
    assert found == (
        McpServer(name="house", url="https://house.example:8443/mcp", headers=(header,)),
    )
    assert (found[0].timeout_s, found[0].trusted) == (60.0, False)


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ('<server name="a"/>', "p.xml:2:1: error: MCP server 'a': give it either a command"),
        (
            '<server name="a" command="x" url="http://h/"/>',
            "p.xml:2:1: error: MCP server 'a': give it either a command",
        ),
        (
            '<server name="a" url="http://h/"><arg>x</arg></server>',
            "p.xml:2:1: error: MCP server 'a': arg and env",
        ),
        (
            '<server name="a" url="http://h/"><env name="X"/></server>',
            "p.xml:2:1: error: MCP server 'a': arg and env",
        ),
        (
            '<server name="a" command="x"><header name="H" env="X"/></server>',
            "p.xml:2:1: error: MCP server 'a': a header",
        ),
        (
            '<server name="a" url="ftp://h/"/>',
            "p.xml:2:1: error: MCP server 'a': 'ftp://h/' is not an address",
        ),
        ('<server name="a" url="http://h:99999/"/>', "is not an address"),
        ('<server name="a" url="http:///mcp"/>', "is not an address"),
        (
            '<server name="a" command="x"/>\n<server name="a" command="y"/>',
            "p.xml:3:15: error: the MCP server 'a' is there twice",
        ),
        ('<server name="a__b" command="x"/>', "p.xml:2:15"),
        ('<server name="a_" command="x"/>', "p.xml:2:15"),
        ('<server name="a.b" command="x"/>', "p.xml:2:15"),
        (f'<server name="{"a" * 33}" command="x"/>', "p.xml:2:15"),
        ('<server name="a" command=""/>', "p.xml:2:27"),
        ('<server name="a" command="x" timeout="0"/>', "p.xml:2:39"),
        ('<server name="a" command="x" trust="perhaps"/>', "p.xml:2:37"),
        ('<server name="a" command="x" cwd="/"/>', "cwd"),
        ('<server name="a" command="x"><env name="TOKEN=sk-1"/></server>', "p.xml:2:41"),
        ('<server name="a" command="x"><env name="TOKEN" value="sk-1"/></server>', "value"),
        ('<server name="a" url="http://h/"><header name="A: b" env="X"/></server>', "p.xml:2:48"),
        ('<server name="a" url="http://h/"><header name="A" value="secret"/></server>', "value"),
        ("", "server"),
    ],
)
def test_an_invalid_server_is_an_error_with_its_position(tmp_path, server, says):
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, server)
    assert says in str(caught.value)
    assert "p.xml:" in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"command": "x", "timeout_s": float("inf")},
        {"command": "x", "name": "a b"},
        {"url": "no"},
        {},
    ],
)
def test_a_server_made_in_python_is_checked_as_well(wrong):
    with pytest.raises(ConfigurationError, match="MCP server"):
        McpServer(**{"name": "a", **wrong})


def test_a_profile_shows_the_names_of_its_servers():
    assert HandlerConfig(mcp=(FILES, HOUSE)).to_dict()["mcp"] == ["files", "house"]


PARTS = st.lists(st.text("aZ09", min_size=1, max_size=3), min_size=1, max_size=4)
NAMES = st.builds(lambda parts, between: between.join(parts), PARTS, st.sampled_from("_-"))


@given(st.lists(NAMES, unique=True, min_size=1), st.text(max_size=20), st.data())
def test_the_server_of_a_tool_is_always_found_again(names, tool, data):
    servers = [McpServer(name=name, command="x") for name in names]
    server = data.draw(st.sampled_from(servers))
    assert server_of_tool(offered_name(server, tool), servers) is server


@pytest.mark.parametrize("name", ["read_file", "files", "files_read", "nobody__read", "__read", ""])
def test_another_tools_name_belongs_to_no_server(name):
    assert server_of_tool(name, [FILES, HOUSE]) is None


@pytest.mark.parametrize(
    ("tool", "offered"),
    [
        ("read_file", "files__read_file"),
        ("a.b/c", "files__a_b_c"),
        ("öl", "files___l"),
        ("x__y", "files__x__y"),
    ],
)
def test_an_invalid_character_of_a_tool_name_becomes_an_underscore(tool, offered):
    assert offered_name(FILES, tool) == offered


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("mcp://files/memo://insights", "memo://insights"),
        ("mcp://files/file:///a%20b?c#d", "file:///a%20b?c#d"),
        ("mcp://files/plain", "plain"),
    ],
)
def test_a_resource_is_named_by_server_and_uri_as_it_stands(path, uri):
    assert split_resource(path, [HOUSE, FILES]) == (FILES, uri)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("mcp://files", "write mcp://SERVER/URI"),
        ("mcp://files/", "write mcp://SERVER/URI"),
        ("files/memo://x", "write mcp://SERVER/URI"),
        ("mcp://flies/memo://x", "no MCP server 'flies'; its servers are: house, files"),
    ],
)
def test_an_invalid_resource_path_is_an_error_that_shows_the_form(path, says):
    with pytest.raises(ConfigurationError) as caught:
        split_resource(path, [HOUSE, FILES])
    assert says in str(caught.value)


def test_a_missing_sdk_is_reported_before_anything_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(
        MissingExtra, match=r"mcp is not installed; install it with: pip install 'evaluator\[mcp\]'"
    ):
        McpConnections().check([HOUSE])
    McpConnections().check([])


@needs("mcp", "the extra mcp is not installed")
def test_a_missing_variable_is_reported_before_anything_starts():
    McpConnections(environ={"FILES_TOKEN": ""}).check([FILES, HOUSE])
    with pytest.raises(
        ConfigurationError, match="'files' needs the environment variable FILES_TOKEN, which is not"
    ):
        McpConnections(environ={}).check([HOUSE, FILES])


def test_a_run_without_servers_and_a_profile_with_them_load_nothing_of_the_sdk(tmp_path):
    (tmp_path / "p.xml").write_text(
        '<handler name="p"><mcp><server name="a" command="x"/></mcp></handler>', encoding="utf-8"
    )
    code = (
        "import json, sys; from evaluator import Evaluator, load_profiles\n"
        f"assert load_profiles({str(tmp_path)!r})['p'].mcp\n"
        "from evaluator.tools.mcp.connections import McpConnections; McpConnections()\n"
        "with Evaluator(handler='offline', tasks_dir=None) as e:\n"
        "    e.evaluate_sync('summarise', {'document': 'x'}).unwrap()\n"
        "print(json.dumps([m for m in sys.modules if m.split('.')[0] in ('mcp', 'mcp_types', 'anyio', 'pydantic')]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
