"""A script runs within its limits, and no process that it started outlives it."""

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from evaluator import ToolError
from evaluator.processes import supervisor
from evaluator.tools import ScriptResult, run_script
from tests.leftovers import descriptors, is_running
from tests.patience import is_gone, with_enough_time

# Announces its own pid through a named pipe, then stays.
STAY = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)"


def run(argv, **options) -> ScriptResult:
    options.setdefault("timeout_s", 100)
    return asyncio.run(run_script(argv, **options))


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "announce"
    os.mkfifo(path)
    return path


def test_exit_code_and_both_output_streams_are_returned():
    result = run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert result.signal is None
    assert not result.timed_out
    assert not result.stdout_truncated


def test_an_argument_is_never_read_by_a_shell(tmp_path):
    result = run(["printf", "%s", "$(touch pwned); `id` && x"], cwd=tmp_path)
    assert result.stdout == "$(touch pwned); `id` && x"
    assert list(tmp_path.iterdir()) == []


def test_text_from_a_provider_with_half_a_character_can_be_input():
    assert run(["wc", "-c"], stdin="a\ud800").stdout.strip() == "4"


@pytest.mark.parametrize("size", [0, 1, 1_000_000])
def test_input_arrives_completely(size):
    assert run(["wc", "-c"], stdin=b"x" * size).stdout.strip() == str(size)


def test_unread_input_is_not_an_error():
    assert run(["true"], stdin=b"x" * 5_000_000).exit_code == 0


def test_without_input_the_script_reads_an_empty_one():
    assert run(["cat"]).exit_code == 0


def test_a_script_leads_a_session_of_its_own_without_a_terminal():
    told = run(
        [
            sys.executable,
            "-c",
            "import os; print(os.getsid(0) == os.getpid(), open('/proc/self/stat').read())",
        ]
    )
    leads, _, rest = told.stdout.partition(" ")
    assert leads == "True"
    assert rest.rpartition(")")[2].split()[4] == "0"  # the terminal's number


def test_the_environment_contains_no_secret(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    names = {line.partition("=")[0] for line in run(["env"]).stdout.splitlines()}
    assert "PATH" in names
    assert {name for name in names if not name.startswith("LC_")} <= {
        "PATH",
        "HOME",
        "LANG",
        "TMPDIR",
        "EVALUATOR_SCRIPT_ID",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    }


def test_a_given_environment_replaces_the_scrubbed_one():
    result = run(["/usr/bin/env"], env={"ONLY": "this"})
    assert [line for line in result.stdout.splitlines() if "SCRIPT_ID" not in line] == ["ONLY=this"]


def test_only_the_three_standard_descriptors_are_inherited():
    listed = run(
        [sys.executable, "-I", "-c", "import os; print(sorted(os.listdir('/proc/self/fd')))"]
    ).stdout
    assert listed == "['0', '1', '2', '3']\n"  # 3 is the listing itself


def test_a_signal_that_ends_the_script_is_named():
    result = run("kill -SEGV $$")
    assert (result.exit_code, result.signal) == (None, signal.SIGSEGV)


def test_a_broken_pipe_ends_the_writer_as_in_a_shell():
    assert run("yes | head -n 1").stdout == "y\n"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "empty"),
        ([""], "empty"),
        ("  ", "empty"),
        (["no-such-program"], "program not found: 'no-such-program'"),
        (["/etc/passwd"], "not executable"),
        (["/"], "not executable"),
        (["echo", "a\0b"], "NUL"),
        (["echo", 3], "each has to be a string"),
        (["echo", "\ud800"], "cannot take"),
        (["echo", "x" * 3_000_000], "too long"),
    ],
)
def test_a_program_that_cannot_be_started_is_a_clear_error(argv, words):
    with pytest.raises(ToolError, match=words):
        run(argv)


def test_a_file_without_a_first_line_for_the_system_is_a_clear_error(tmp_path):
    program = tmp_path / "program"
    program.write_bytes(b"\x00\x01\x02")
    program.chmod(0o755)
    with pytest.raises(ToolError, match="first line"):
        run([str(program)])


def test_a_missing_working_folder_is_a_clear_error(tmp_path):
    with pytest.raises(ToolError, match="working folder"):
        run(["true"], cwd=tmp_path / "none")


def test_no_time_left_is_a_clear_error():
    with pytest.raises(ToolError, match="no time"):
        run(["true"], timeout_s=0)


def test_fifty_megabytes_are_cut_and_the_script_ends_by_itself():
    result = run("head -c 50000000 /dev/zero | tr '\\0' x", max_output_bytes=1_000_000)
    assert (len(result.stdout), result.stdout_truncated, result.exit_code) == (1_000_000, True, 0)
    assert not result.stderr_truncated


def test_a_script_with_endless_output_is_killed():
    result = run(["yes"], max_output_bytes=1000)
    assert (result.overrun, result.signal, len(result.stdout)) == ("output", signal.SIGKILL, 1000)


def test_a_character_cut_in_two_is_left_out_and_broken_bytes_are_marked():
    assert run(["printf", "éé"], max_output_bytes=3).stdout == "é"
    assert run(["printf", r"a\377b"]).stdout == "a\ufffdb"


def test_memory_is_bounded():
    result = run([sys.executable, "-c", "bytearray(10**9)"], memory_bytes=300_000_000)
    assert result.exit_code == 1
    assert "MemoryError" in result.stderr


def test_memory_is_bounded_of_all_processes_together():
    grow = "import os, time\nfor _ in range(4):\n    if os.fork() == 0: break\nkept = bytearray(os.urandom(1) * 10**8); time.sleep(20)"
    result = run([sys.executable, "-c", grow], memory_bytes=250_000_000)
    assert (result.overrun, result.signal, result.survivors) == ("memory", signal.SIGKILL, 0)


def test_memory_that_processes_share_is_counted_once():
    share = "import os, time\nkept = bytes(10**8)[:-1]\nfor _ in range(6):\n    if os.fork() == 0: break\ntime.sleep(0.5)"
    result = run([sys.executable, "-c", share], memory_bytes=250_000_000)
    assert (result.overrun, result.exit_code) == (None, 0)


def test_address_space_that_is_only_reserved_is_not_counted():
    reserve = "import mmap; mmap.mmap(-1, 10**10, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ); print('ok')"
    assert run([sys.executable, "-c", reserve], memory_bytes=250_000_000).stdout == "ok\n"


def test_too_many_processes_are_killed():
    # Bounded by itself: 60 children that sleep.
    fork = "import os, time\nfor _ in range(60):\n    if os.fork() == 0: break\ntime.sleep(20)"
    result = run([sys.executable, "-c", fork], max_processes=20)
    assert (result.overrun, result.survivors) == ("processes", 0)


def test_a_grandchild_in_its_own_session_dies_on_timeout(tmp_path):
    note = tmp_path / "pids"
    child = (
        f"import os, time; open({str(note)!r}, 'a').write(str(os.getpid()) + ' '); time.sleep(60)"
    )
    script = textwrap.dedent(
        f"""
        import os, subprocess, sys, time
        def start():
            subprocess.Popen([sys.executable, "-I", "-S", "-c", {child!r}])
        start()
        if os.fork() == 0:  # forks twice, away from its parent and its session
            os.setsid()
            if os.fork() == 0:
                os.environ.clear()
                start()
                time.sleep(60)
            os._exit(0)
        time.sleep(60)
        """
    )

    def attempt(limit_s):
        note.write_text("")
        result = run([sys.executable, "-c", script], timeout_s=limit_s)
        return result, [int(pid) for pid in note.read_text().split()]

    result, pids = with_enough_time(attempt, lambda tried: len(tried[1]) == 2)
    assert result.timed_out
    assert len(pids) == 2
    assert [pid for pid in pids if is_running(pid)] == []


def test_a_process_left_behind_does_not_delay_the_result(fifo):
    script = f"""setsid {sys.executable} -I -S -c "{STAY}" '{fifo}' & cat '{fifo}'"""
    result = run(script)
    assert result.exit_code == 0
    assert not is_running(int(result.stdout))


def test_a_process_that_ends_shortly_after_the_script_may_finish_writing():
    # It has 0.2 s, which may pass on a busy machine before it runs at all.
    outputs = (run("(sleep 0.05; echo late) & echo early").stdout for _ in range(50))
    assert "early\nlate\n" in outputs


def test_a_cancelled_run_leaves_no_process(fifo):
    async def cancel() -> int:
        argv = ["setsid", "--wait", sys.executable, "-I", "-S", "-c", STAY, str(fifo)]
        task = asyncio.create_task(run_script(argv, timeout_s=60))
        pid = int(await asyncio.to_thread(fifo.read_text))
        assert is_running(pid)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pid

    assert not is_running(asyncio.run(cancel()))


def test_cancelling_again_and_again_still_waits_for_the_dead(fifo):
    async def cancel() -> int:
        task = asyncio.create_task(
            run_script([sys.executable, "-c", STAY, str(fifo)], timeout_s=60)
        )
        pid = int(await asyncio.to_thread(fifo.read_text))
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        assert task.cancelled()
        return pid

    assert not is_running(asyncio.run(cancel()))


@pytest.mark.parametrize("steps", range(8))
def test_a_run_may_be_cancelled_at_any_point_of_its_start(steps):
    async def cancel():
        task = asyncio.create_task(run_script(["sleep", "60"], stdin="x", timeout_s=60))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(cancel())


def test_a_process_that_forks_away_from_itself_without_end_is_caught():
    # One process at a time, each in a session of its own, for eight seconds at most.
    hop = textwrap.dedent(
        """
        import os, time
        end = time.monotonic() + 8
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
            os.setsid()
        """
    )
    assert run([sys.executable, "-c", hop]).survivors == 0


needs_landlock = pytest.mark.skipif(
    ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1)) < 6,
    reason="the kernel cannot keep signals in",
)


@needs_landlock
@pytest.mark.parametrize("name", ["KILL", "STOP", "TERM"])
def test_a_script_can_send_signals_only_to_processes_that_it_started(fifo, name):
    script = f"""
        kill -{name} $PPID && echo reached its launcher
        kill -{name} {os.getpid()} && echo reached the evaluator
        sleep 60 & kill $! && echo reached its own
        setsid env -i {sys.executable} -I -S -c "{STAY}" '{fifo}' &
        read pid < '{fifo}'; echo $pid
    """
    result = run(script)
    said, pid = result.stdout.splitlines()
    assert said == "reached its own"
    assert not is_running(int(pid))


@pytest.fixture
def unconfined(monkeypatch):
    """As on a kernel that does not keep signals in."""
    monkeypatch.setattr(supervisor, "_IS_CONFINED", False)


def test_a_script_that_kills_its_launcher_is_swept_up(fifo, unconfined):
    script = f"""
        setsid {sys.executable} -I -S -c "{STAY}" '{fifo}' &
        read pid < '{fifo}'; echo $pid > '{fifo}.pid'; kill -9 $PPID; sleep 60
    """
    with pytest.raises(ToolError, match="supervisor"):
        run(script)
    assert is_gone(int(Path(f"{fifo}.pid").read_text()))


def test_a_script_that_stops_its_launcher_still_ends_in_time_and_is_told_so(unconfined):
    result = run("kill -STOP $PPID; sleep 60", timeout_s=0.2)
    assert (result.signal, result.timed_out) == (signal.SIGKILL, True)


def test_a_killed_evaluator_takes_its_scripts_along(fifo):
    program = textwrap.dedent(
        """
        import asyncio, sys
        from evaluator.tools import run_script
        asyncio.run(run_script([sys.executable, "-c", sys.argv[1], sys.argv[2]], timeout_s=60))
        """
    )
    with subprocess.Popen([sys.executable, "-c", program, STAY, str(fifo)]) as evaluator:
        pid = int(fifo.read_text())
        evaluator.kill()
    assert is_gone(pid), "the script outlived its evaluator"


def test_many_at_once_each_get_their_own_output():
    async def all_of_them():
        return await asyncio.gather(
            *(run_script(["echo", str(n)], timeout_s=100) for n in range(16))
        )

    assert [result.stdout for result in asyncio.run(all_of_them())] == [f"{n}\n" for n in range(16)]


def test_a_script_runs_where_more_than_a_thousand_files_are_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1_200:
        pytest.skip("the system allows fewer open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1_200), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_050)]
    try:
        assert run(["echo", "here"]).stdout == "here\n"
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_descriptor_is_left_open():
    before = descriptors()
    for argv in (["true"], "yes | head -c 100", "exit 3"):
        run(argv, stdin="x")
    with pytest.raises(ToolError):
        run(["no-such-program"])
    assert descriptors() <= before
