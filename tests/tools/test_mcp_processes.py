"""The processes of MCP servers: what they see, how they start, end and are replaced."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from evaluator import ConfigurationError, McpServer, ToolError
from evaluator.tools.mcp.connections import MAX_RESTARTS, McpConnections
from tests.optional import needs
from tests.patience import with_enough_time
from tests.tools.mcp_play import Client

pytestmark = needs("mcp", "the extra mcp is not installed")


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
