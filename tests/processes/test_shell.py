"""A shell persists from command to command, whatever a command does, and no process outlives it."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from evaluator import ToolError
from evaluator.processes import supervisor
from evaluator.processes.shell import Shell
from evaluator.tools import CallbackAsker, FileAccess, ToolContext, ToolRegistry
from evaluator.tools.anthropic import bash_tool
from tests.leftovers import children, descriptors
from tests.patience import with_enough_time


def living_in(folder):
    """The command lines of the processes whose working folder is `folder` or lies below it."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and Path(os.readlink(f"/proc/{name}/cwd")).is_relative_to(folder):
                found.append(Path(f"/proc/{name}/cmdline").read_bytes())
        except OSError:
            continue
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder. Afterwards no process is in it, and no child, descriptor or temporary folder is left."""
    (tmp_path / "work").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    files_before = descriptors()
    children_before = children()
    yield tmp_path / "work"
    assert living_in(tmp_path / "work") == []
    assert descriptors() <= files_before
    assert children() <= children_before
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.fixture
def start(folder):
    """`run = start(…)`: a shell in the folder; `run(command)` gives its result."""
    with asyncio.Runner() as runner:
        shells = []

        def make(**options):
            options.setdefault("timeout_s", 100)
            shell = Shell(folder, **options)
            shells.append(shell)
            return lambda command: runner.run(shell.run(command))

        yield make
        for shell in shells:
            runner.run(shell.end())
            runner.run(shell.end())


def test_folder_variables_functions_and_open_files_stay(start, folder):
    run = start()
    first = run(
        "mkdir sub; cd sub; x='a b'; declare -A m; m[k]=v; f() { echo \"f $1\"; }; exec 5>log; echo $$"
    )
    assert (first.exit_code, first.new) == (0, True)
    second = run('pwd; echo "$x ${m[k]}"; f 1; echo logged >&5; echo $$')
    assert second.stdout == f"{folder}/sub\na b v\nf 1\n{first.stdout}"
    assert not second.new
    assert (folder / "sub/log").read_text() == "logged\n"


@pytest.mark.parametrize(
    ("command", "stdout", "exit_code"),
    [
        ("echo out; echo err >&2; (exit 3)", "out\n", 3),
        ("printf 'no line feed'", "no line feed", 0),
        ("printf 'a\\0b\\377c'", "a\ufffdb\ufffdc", 0),
        ("printf '%s' 'ü \x01\x7f \\ \\n'", "ü \x01\x7f \\ \\n", 0),
        ("cat; echo end", "end\n", 0),
        ("read x; echo \"$? '$x'\"", "1 ''\n", 0),
        ("cat <<E\n$((1 + 1)) 'x'\nE", "2 'x'\n", 0),
        ("echo 'unclosed", "", 2),
        ('echo "unclosed', "", 2),
        ("cat <<E\nno end", "no end\n", 0),
        ("echo $(", "", 2),
        ("fi", "", 2),
        ("if true", "", 2),
        ("}; echo x", "", 2),
        ("done; exit", "", 2),
        ("-n", "", 127),
        ("no-such-program", "", 127),
        ("break", "", 0),
        ("break; echo on", "on\n", 0),
        ("continue; echo on", "on\n", 0),
        ("for i in 1 2; do echo $i; break; done; echo on", "1\non\n", 0),
        ("case x in", "", 2),
        ("f() {", "", 2),
        ("x=(1 2", "", 1),
        ("[[ a", "", 2),
        ("continue", "", 0),
        ("return 5", "", 2),
        ("exec >/dev/null 2>&1; echo lost", "", 0),
        ("exec 0<&- 1>&- 2>&-", "", 0),
        ("# nothing", "", 0),
        ("trap 'echo trapped' DEBUG; echo a; trap - DEBUG", "trapped\na\ntrapped\n", 0),
        ("set -x; set +x", "", 0),
        ("IFS=x; unset PATH; shopt -s extglob; set -f", "", 0),
        ("readonly __line 2>/dev/null; echo a", "a\n", 0),
        ("sleep 60 & echo started", "started\n", 0),
        ("setsid sleep 60 & disown; echo started", "started\n", 0),
        ("(setsid sh -c 'sleep 60 & exec sleep 60' &); echo started", "started\n", 0),
        (
            "echo 0123456789abcdef0123456789abcdef:0.; false",
            "0123456789abcdef0123456789abcdef:0.\n",
            1,
        ),
        (
            "for fd in 200 201 202 203; do (: >&$fd) 2>/dev/null || echo closed; done",
            "closed\n" * 4,
            0,
        ),
        ("exec <<<'left over'", "", 0),
        (f"x={'y' * 300_000}; echo ${{#x}}", "300000\n", 0),
    ],
)
def test_no_command_breaks_the_shell(start, command, stdout, exit_code):
    run = start()
    shell = run("echo $$").stdout
    result = run(command)
    assert (result.stdout, result.exit_code, result.ended) == (stdout, exit_code, None)
    if "readonly" not in command:
        after = run("cat; echo $$")
        assert (after.stdout, after.new) == (shell, False)


def test_output_that_repeats_the_mark_of_its_command_does_not_end_it(start):
    result = start()('echo "${__line##*}" "$__line"; echo still here; (exit 7)')
    assert (result.stdout.splitlines()[-1], result.exit_code) == ("still here", 7)


@pytest.mark.parametrize(
    ("command", "ended", "exit_code", "signalled"),
    [
        ("echo said; exit 3", "exit", 3, None),
        ("echo said; exec sh -c 'exit 4'", "exit", 4, None),
        ("echo said; set -e; false", "exit", 1, None),
        ("echo said; kill -9 $$", "exit", None, signal.SIGKILL),
        ("echo said; sleep 60 & kill -SEGV $$", "exit", None, signal.SIGSEGV),
        ("echo said; kill -STOP $$", "timeout", None, None),
        ("echo said; set -n", "timeout", None, None),
        ("echo said; printf() { :; }", "timeout", None, None),
        ("echo said; trap '' TERM INT HUP; setsid sleep 60 & sleep 60", "timeout", None, None),
        ("echo said; sleep 60 | cat <(sleep 60)", "timeout", None, None),
        ("echo said; while :; do :; done", "timeout", None, None),
    ],
)
def test_after_a_command_that_ended_the_shell_the_next_one_has_a_new_shell(
    start, command, ended, exit_code, signalled
):
    def attempt(limit_s):
        run = start(timeout_s=limit_s)
        run("x=1")
        return run(command), run('echo "new:$x"')

    first_s = 0.5 if ended == "timeout" else 100
    result, after = with_enough_time(
        attempt, lambda ran: ran[0].stdout == "said\n" and ran[1].ended is None, first_s
    )
    assert (result.stdout, result.ended) == ("said\n", ended)
    assert (result.exit_code, result.signal) == (exit_code, signalled)
    assert (after.stdout, after.new, after.ended) == ("new:\n", True, None)


def test_output_written_before_the_end_of_a_command_is_returned_with_it(start):
    run = start()
    for _ in range(1500):
        assert run("echo a; echo b >&2; echo c").stdout == "a\nc\n"


def test_output_without_end_is_killed_for_it(start, folder):
    result = start(max_output_bytes=1000)("yes")
    assert (result.ended, result.exit_code) == ("output", None)
    assert len(result.stdout) < 1100
    assert living_in(folder) == []


def test_too_many_processes_are_killed(start, folder):
    result = start(max_processes=20)("for i in {1..200}; do sleep 60 & done; wait")
    assert result.ended == "processes"
    assert living_in(folder) == []


def test_memory_is_bounded(start):
    grow = f'{sys.executable} -c "bytearray(1 << 30)"'
    result = start(memory_bytes=512 << 20)(grow)
    assert result.exit_code == 1
    assert "MemoryError" in result.stderr
    assert start()(grow).exit_code == 0


def test_a_long_output_lacks_its_middle_and_names_the_length(start):
    run = start(max_output_bytes=1000)
    result = run("seq 1 100000; seq 1 100000 >&2")
    for text in (result.stdout, result.stderr):
        assert text.startswith("1\n2\n")
        assert text.endswith("\n99999\n100000\n")
        assert "\n[… 587,895 bytes left out …]\n" in text
    whole = run("printf '%0500d\\n' 1; printf '%0498d\\n' 2")
    assert len(whole.stdout) == 1000
    assert "left out" not in whole.stdout


@pytest.mark.parametrize("before", ["", "a", "aa", "aaa"])
def test_a_character_that_the_cut_goes_through_is_left_out(start, before):
    result = start(max_output_bytes=1000)(f"printf '{before}'; printf '€%.0s' {{1..2000}}")
    assert set(result.stdout) <= set("a€\n[… bytes left out …]0123456789,")


def test_output_of_a_background_process_is_returned_with_a_later_command(start, folder):
    run = start()
    os.mkfifo(folder / "go")
    assert run("(read x <go; echo late) & echo now").stdout == "now\n"
    assert run("echo >go; wait; echo then").stdout == "late\nthen\n"


def test_a_background_process_that_kills_the_shell_between_commands_is_survived(start, folder):
    run = start()
    os.mkfifo(folder / "go")
    run("(read x <go; kill -9 $$) & x=1")
    result = run("echo >go; wait; sleep 60")
    assert (result.ended, result.signal) == ("exit", signal.SIGKILL)
    assert run("echo ${x-none}").stdout == "none\n"


def test_a_killed_supervisor_is_reported_and_the_next_command_has_a_new_shell(start, monkeypatch):
    monkeypatch.setattr(
        supervisor, "_IS_CONFINED", False
    )  # as on a kernel that does not keep signals in
    run = start()
    run("x=1")
    with pytest.raises(
        ToolError, match=r"the shell is gone: .*supervisor.*; the next command begins a new one"
    ):
        run("kill -9 $PPID; sleep 60")
    assert run("echo ${x-none}").stdout == "none\n"


def test_the_environment_contains_no_secret_and_the_shell_reads_no_startup_file(
    start, folder, monkeypatch
):
    (folder / ".bashrc").write_text("echo THE STARTUP FILE WAS READ")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("BASH_ENV", str(folder / ".bashrc"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    told = start()("env").stdout
    assert f"HOME={folder}\n" in told
    assert "sk-secret" not in told
    assert "THE STARTUP FILE" not in told


def test_concurrent_commands_run_one_after_the_other(folder):
    async def together():
        shell = Shell(folder)
        results = await asyncio.gather(*(shell.run("n=$((n + 1)); echo $n") for _ in range(5)))
        await shell.end()
        return results

    results = asyncio.run(together())
    assert [result.stdout for result in results] == ["1\n", "2\n", "3\n", "4\n", "5\n"]
    assert [result.new for result in results] == [True, False, False, False, False]


def test_when_a_command_is_cancelled_all_is_dead_before_the_caller_goes_on(folder):
    os.mkfifo(folder / "started")

    async def cancel():
        shell = Shell(folder)
        running = asyncio.create_task(shell.run("setsid sleep 60 & echo >started; sleep 60"))
        opened = await asyncio.to_thread(lambda: (folder / "started").read_text())
        assert opened == "\n"
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        left = living_in(folder)
        assert (await shell.run("echo again")).new
        await shell.end()
        return left

    assert asyncio.run(cancel()) == []


def test_an_open_shell_ends_with_the_event_loop(folder):
    assert asyncio.run(Shell(folder).run("sleep 60 & echo a")).stdout == "a\n"
    assert living_in(folder) == []


def test_nothing_outlives_a_killed_process(folder):
    program = """
        import asyncio, sys
        from pathlib import Path
        from evaluator.processes.shell import Shell

        async def main():
            shell = Shell(Path(sys.argv[1]))
            result = await shell.run("setsid sleep 60 & echo $!; echo $$; echo $PPID")
            print(*result.stdout.split(), flush=True)
            await asyncio.Event().wait()
            await shell.end()

        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            pids = [int(word) for word in process.stdout.readline().split()]
            assert len(pids) == 3
            watched = [os.pidfd_open(pid) for pid in pids]
        finally:
            process.kill()
    for descriptor in watched:
        assert select.select([descriptor], [], [], 200)[0], "it is still alive"
        os.close(descriptor)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("a\0b", "NUL"),
        ("echo \ud800", "character that the system cannot take"),
    ],
)
def test_an_invalid_command_is_refused(start, command, words):
    with pytest.raises(ToolError, match=words):
        start()(command)


def test_a_missing_bash_or_folder_is_a_clear_error(start, folder, monkeypatch):
    run = start()
    folder.rmdir()
    with pytest.raises(ToolError, match=r"the working folder .* cannot be entered"):
        run("echo")
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(ToolError, match=r"program not found: 'bash'"):
        run("echo")


@pytest.fixture
def call(folder):
    """`call(arguments…)`: what a model is told that calls the tool `bash`."""
    with asyncio.Runner() as runner:
        shell = Shell(folder, timeout_s=100)
        registry = ToolRegistry([bash_tool(shell)])

        def ask(*, consent="yes", remaining_s=60.0, **arguments):
            context = ToolContext(
                FileAccess([folder]), CallbackAsker(lambda _: consent), remaining_s=remaining_s
            )
            return runner.run(registry.call("bash", json.dumps(arguments), context))

        yield ask
        runner.run(shell.end())


def test_the_model_receives_exit_code_output_and_a_note_about_a_new_shell(call):
    new = "a new shell, in the initial folder and without the variables of an earlier one"
    first = json.loads(call(command="x=1; echo out; echo err >&2; false").content)
    assert first == {"exit_code": 1, "stdout": "out\n", "stderr": "err\n", "notes": [new]}
    assert json.loads(call(command="echo $x").content) == {
        "exit_code": 0,
        "stdout": "1\n",
        "stderr": "",
    }
    assert call(restart=True).content.startswith("the shell was ended")
    assert json.loads(call(command="echo $x").content)["notes"] == [new]
    ended = json.loads(call(command="kill -9 $$").content)
    assert ended == {
        "exit_code": None,
        "stdout": "",
        "stderr": "",
        "signal": 9,
        "notes": ["the shell has ended; the next command starts a new shell"],
    }


def test_a_restart_kills_what_runs_in_the_background(call, folder):
    call(command="setsid sleep 60 & sleep 60 &")
    assert len(living_in(folder)) >= 3
    call(restart=True)
    assert living_in(folder) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "command is missing"),
        ({"restart": False}, "command is missing"),
        ({"command": "echo", "restart": True}, "not both"),
        ({"command": 1}, "is not of type"),
        ({"command": "echo", "timeout": 1}, "Additional properties"),
    ],
)
def test_an_invalid_call_runs_nothing(call, arguments, words):
    outcome = call(**arguments)
    assert not outcome.ok
    assert words in outcome.content


def test_a_command_needs_consent(call, folder):
    assert call(consent="no", command="touch made").code == "denied"
    assert list(folder.iterdir()) == []


def test_a_command_that_outlasts_the_task_is_stopped_with_all_that_it_started(call, folder):
    outcome = call(remaining_s=0.5, command="setsid sleep 60 & sleep 60")
    assert (outcome.ok, outcome.code) in ((False, "timeout"), (True, None))
    assert outcome.code == "timeout" or "its time is used up" in outcome.content
    assert living_in(folder) == []
