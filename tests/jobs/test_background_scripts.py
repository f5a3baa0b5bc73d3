"""Scripts in the background: real processes, whose output is in their file and whose end is told once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from evaluator import RecordError
from evaluator.background import BackgroundStore, BackgroundTasks, ScriptWork
from evaluator.jobs import scripts
from evaluator.jobs.output import Output, StallWatch, prompt_hint, read_output
from evaluator.jobs.tasks import End, Work
from evaluator.testing import FakeClock
from tests.jobs.instant import Instant
from tests.leftovers import is_running

DETACHED = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("pid.new", "w").write(str(os.getpid())); os.rename("pid.new", "pid")
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


async def until(condition, timeout_s: float = 200.0):
    async with asyncio.timeout(timeout_s):
        while not (found := condition()):  # noqa: ASYNC110  (the condition is that of another process)
            await asyncio.sleep(0.01)
    return found


@pytest.fixture
def clock():
    with FakeClock() as found:
        yield found


def run(work):
    return asyncio.run(work)


@pytest.mark.parametrize(
    ("script", "status", "code", "number"),
    [
        ("echo out; echo err >&2", "completed", 0, None),
        ("exit 3", "failed", 3, None),
        ("kill -TERM $$", "failed", None, 15),
        ("/nowhere/at/all", "failed", 127, None),
    ],
)
def test_a_script_ends_with_its_exit_code(tmp_path, script, status, code, number):
    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(ScriptWork(script, cwd=tmp_path), "a script")
            assert task.status == "pending" and task.id[0] == "b"
            ended = await tasks.wait(task.id)
            assert (ended.status, ended.exit_code, ended.signal) == (status, code, number)
            assert len(tasks.store.notices(task.id)) == 1
            return read_output(Path(task.output_file), 0, 1000)

    output = run(work())
    assert script.startswith("echo") is (output == b"out\nerr\n")


def test_a_program_that_cannot_be_started_has_failed(tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path) as tasks:
            ended = await tasks.wait(tasks.start(ScriptWork(["/nowhere/at/all"]), "nothing").id)
            assert ended.status == "failed" and "program not found" in (ended.reason or "")

    run(work())


def test_output_can_be_read_while_the_script_runs_and_its_input_is_closed(tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path) as tasks:
            task = tasks.start(ScriptWork("cat; echo first; sleep 600"), "slow")
            await until(lambda: read_output(Path(task.output_file), 0, 100) == b"first\n")
            killed = await tasks.kill(task.id, "not needed any more", timeout_s=200)
            assert (killed.status, killed.signal, killed.reason) == (
                "killed",
                9,
                "not needed any more",
            )
            again = await tasks.kill(task.id, "once more")
            assert again == killed and len(tasks.store.notices(task.id)) == 1

    run(work())


def test_input_is_open_where_it_was_asked_for(tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path) as tasks:
            script = ScriptWork("read answer; echo got $answer", has_input=True)
            task = tasks.start(script, "asks")
            await until(lambda: script._input is not None)
            script.write(b"yes\n")
            assert (await tasks.wait(task.id)).status == "completed"
            assert read_output(Path(task.output_file), 0, 100) == b"got yes\n"

    run(work())


def test_too_much_output_kills_and_the_file_is_cut(tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path, max_output_bytes=10_000) as tasks:
            task = tasks.start(ScriptWork("exec yes"), "endless")
            ended = await tasks.wait(task.id)
            assert (ended.status, ended.signal) == ("killed", 9)
            assert "output passed 10,000 bytes" in (ended.reason or "")
            assert len(read_output(Path(task.output_file), 0, 20_000)) == 10_000

    run(work())


def test_the_end_of_a_session_ends_what_it_started_detached_processes_too(tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            mine = tasks.start(
                ScriptWork([sys.executable, "-c", DETACHED], cwd=tmp_path), "mine", session="one"
            )
            other = tasks.start(ScriptWork("sleep 600"), "other", session="two")
            await until((tmp_path / "pid").exists)
            pid = int((tmp_path / "pid").read_text())
            assert is_running(pid)
            await tasks.end_session("one")
            assert not is_running(pid)
            assert tasks.store.get(mine.id).status == "killed"
            await until(lambda: tasks.store.get(other.id).status == "running")

    run(work())


def test_another_process_kills_a_task_and_sees_that_its_owner_is_gone(tmp_path):
    code = (
        "import asyncio, sys\n"
        "from evaluator.background import BackgroundTasks, ScriptWork\n"
        "async def main():\n"
        "    async with BackgroundTasks(sys.argv[1]) as tasks:\n"
        "        for _ in range(2): print(tasks.start(ScriptWork('echo here; sleep 600'), 'x').id, flush=True)\n"
        "        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )

    async def work():
        owner = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert owner.stdout is not None
        ids = [(await owner.stdout.readline()).decode().strip() for _ in range(2)]
        async with BackgroundTasks(tmp_path) as tasks:
            outputs = [Path(tasks.store.get(each).output_file) for each in ids]
            await until(lambda: all(read_output(path, 0, 10) == b"here\n" for path in outputs))
            killed = await tasks.kill(ids[0], "from elsewhere", timeout_s=200)
            assert (killed.status, killed.signal, killed.reason) == ("killed", 9, "from elsewhere")
            owner.send_signal(signal.SIGKILL)
            await owner.wait()
            gone = await tasks.wait(ids[1], 200)
            assert gone.status == "failed" and "is gone" in (gone.reason or "")
            assert read_output(outputs[1], 0, 10) == b"here\n"
            assert [len(tasks.store.notices(each)) for each in ids] == [1, 1]

    run(work())


def test_tasks_that_end_while_they_are_killed_have_one_notification_each(tmp_path):
    async def work():
        told = []
        async with BackgroundTasks(tmp_path, callback=told.append) as tasks:
            started = [tasks.start(Instant(n % 5), str(n), session="s").id for n in range(200)]
            kills = [tasks.kill(each, "race", timeout_s=200) for each in started for _ in range(2)]
            await asyncio.gather(*kills)
            found = [tasks.store.get(each) for each in started]
            assert all(task.status in ("completed", "killed") for task in found)
            assert sorted(notice.task_id for notice in told) == sorted(started)
            assert all((task.status == "killed") == (task.kill_reason == "race") for task in found)

    run(work())


class Finishing(Work):
    """Work that completes when it is killed."""

    type = "b"

    def __init__(self):
        self.began = asyncio.Event()
        self.killed = asyncio.Event()

    async def run(self, output):
        self.began.set()
        await self.killed.wait()
        return End("completed", exit_code=0)

    def kill(self, reason=""):
        self.killed.set()


def test_a_task_that_completes_after_it_was_killed_is_reported_as_killed(tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path) as tasks:
            finishing = Finishing()
            started = tasks.start(finishing, "x", session="s").id
            await finishing.began.wait()
            await tasks.kill(started, "enough", timeout_s=200)
            ended = await tasks.wait(started)
            assert (ended.status, ended.kill_reason) == ("killed", "enough")
            (notice,) = tasks.store.claim(task_id=started)
            assert "<status>killed</status>" in notice.xml
            untouched = Finishing()
            other = tasks.start(untouched, "y").id
            untouched.killed.set()
            assert (await tasks.wait(other)).status == "completed"

    run(work())


def test_a_command_gets_the_notification(tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path) as tasks:
            command = ["/bin/sh", "-c", f"cat > '{tmp_path}/told'"]
            ended = await tasks.wait(
                tasks.start(ScriptWork("exit 4"), "a & b", notify_command=command).id
            )
            assert ended.status == "failed"
            assert tasks.store.claim(task_id=ended.id) == []

    run(work())
    told = (tmp_path / "told").read_text()
    assert "<status>failed</status>" in told and "a &amp; b" in told


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["sh", "-c", "echo nobody home >&2; exit 1"], "failed: nobody home"),
        (["sh", "-c", "exit 3"], "failed: exit code 3"),
        (["/nowhere"], "cannot be run"),
    ],
)
def test_a_notification_command_that_fails_is_named_in_the_state_of_its_task(
    tmp_path, command, says
):
    async def work():
        noticed = []
        async with BackgroundTasks(tmp_path, notice=noticed.append) as tasks:
            ended = await tasks.wait(
                tasks.start(ScriptWork("exit 0"), "x", notify_command=command).id
            )
            assert ended.status == "completed" and says in (ended.notify_error or "")
            assert noticed == [f"{ended.id}: {ended.notify_error}"]

    run(work())


def test_a_script_that_waits_at_a_prompt_is_noticed_and_goes_on(tmp_path, clock):
    async def work():
        async with BackgroundTasks(tmp_path) as tasks:
            script = ScriptWork(
                "printf 'Overwrite? [y/N] '; read answer; echo $answer", has_input=True
            )
            asks = tasks.start(script, "asks")
            quiet = tasks.start(ScriptWork("echo working; sleep 600"), "quiet")
            await until(
                lambda: all(Path(each.output_file).stat().st_size for each in (asks, quiet))
            )
            await clock.advance(44)
            assert tasks.store.notices(asks.id) == []
            await clock.advance(11)
            (notice,) = tasks.store.notices(asks.id)
            assert (
                notice.kind == "stall"
                and "<status>" not in notice.xml
                and "yes or no" in notice.xml
            )
            assert (
                tasks.store.get(asks.id).is_waiting and tasks.store.get(asks.id).status == "running"
            )
            assert tasks.store.notices(quiet.id) == []
            await clock.advance(300)
            assert len(tasks.store.notices(asks.id)) == 1
            script.write(b"y\n")
            assert (await tasks.wait(asks.id)).status == "completed"
            assert [notice.kind for notice in tasks.store.notices(asks.id)] == ["stall", "end"]

    run(work())


def test_an_output_is_looked_at_every_5_s_and_its_last_kilobyte_is_read_once(
    tmp_path, monkeypatch, clock
):
    looks = []

    class Watched(StallWatch):
        def is_due(self, now):
            looks.append(now)
            return super().is_due(now)

    async def work():
        async with BackgroundTasks(tmp_path) as tasks:
            words = f"printf 'Password: {'x' * 1_030}: '; read a"
            task = tasks.start(ScriptWork(words, has_input=True), "x")
            running = tasks._running[task.id]
            running.watch = Watched(clock.time())
            tails = []
            tail = Output.tail
            monkeypatch.setattr(
                Output, "tail", lambda output, size: tails.append(size) or tail(output, size)
            )
            running.work.is_waiting = lambda: None
            await until(lambda: Path(task.output_file).stat().st_size)
            began = clock.time()
            await clock.advance(61)
            assert [round(each - began) for each in looks[:3]] == [5, 10, 15]
            # The prompt begins before the last kilobyte.
            assert (tails, tasks.store.notices(task.id)) == ([1_024], [])

    run(work())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is of Linux")
def test_a_program_that_reads_its_input_after_unknown_words_is_noticed(tmp_path, clock):
    """`asks` reads its standard input, in a child of the shell. `works` has written the same and
    reads a pipe of its own."""

    async def work():
        async with BackgroundTasks(tmp_path) as tasks:
            words = "printf 'the name of the ship, captain '"
            asks = tasks.start(ScriptWork(f"{words}; cat > /dev/null", has_input=True), "asks")
            works = tasks.start(ScriptWork(f"{words}; sleep 600 | cat", has_input=True), "works")
            both = (asks, works)
            await until(lambda: all(Path(each.output_file).stat().st_size for each in both))
            running = tasks._running
            await until(lambda: running[asks.id].work.is_waiting())
            assert running[works.id].work.is_waiting() is False
            await clock.advance(55)
            (notice,) = tasks.store.notices(asks.id)
            assert notice.kind == "stall" and "reads its standard input" in notice.xml
            assert tasks.store.notices(works.id) == []

    run(work())


@pytest.mark.parametrize("how", ["a kill", "the end"])
def test_a_disk_that_takes_no_more_does_not_keep_a_task_alive(tmp_path, monkeypatch, how):
    def full(*_):
        raise RecordError("the background tasks cannot be read or written: the disk is full")

    async def work():
        noticed = []
        async with BackgroundTasks(tmp_path / "bg", notice=noticed.append) as tasks:
            task = tasks.start(ScriptWork([sys.executable, "-c", DETACHED], cwd=tmp_path), "mine")
            await until((tmp_path / "pid").exists)
            with monkeypatch.context() as patch:
                patch.setattr(tasks.store, "request_kill", full)
                if how == "a kill":
                    with pytest.raises(RecordError):
                        await tasks.kill(task.id, "enough", timeout_s=200)
                    await tasks.wait(task.id, 200)
                else:
                    await tasks.aclose()
                    assert "cannot be written" in noticed[0]
            assert not is_running(int((tmp_path / "pid").read_text()))
            store = BackgroundStore(tmp_path / "bg")
            assert store.get(task.id).status == "killed"
            store.close()

    run(work())


@pytest.mark.parametrize("how", ["removed", "a link to a file of the user"])
def test_an_output_whose_name_was_taken_is_neither_read_nor_written_and_nothing_else_changes(
    tmp_path, how, clock
):
    (tmp_path / "mine").write_bytes(b"mine")

    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            asks = tasks.start(
                ScriptWork("printf 'Password: '; read a; echo more", has_input=True), "asks"
            )
            path = Path(asks.output_file)
            await until(lambda: path.stat().st_size)
            os.unlink(path)
            if how != "removed":
                os.symlink(tmp_path / "mine", path)
            await clock.advance(55)
            (notice,) = tasks.store.notices(asks.id)
            assert notice.kind == "stall" and "password" in notice.xml
            says = (
                "No such file" if how == "removed" else "replaced by a link, which is not followed"
            )
            with pytest.raises(OSError, match=f"{says}.*{path.name}"):
                read_output(path, 0, 100)
            other = BackgroundStore(tmp_path / "bg")  # as another process has it
            other.request_kill(asks.id, "from elsewhere")
            other.close()
            await clock.advance(1)
            assert (await tasks.wait(asks.id, 200)).reason == "from elsewhere"

    run(work())
    assert (tmp_path / "mine").read_bytes() == b"mine"


def test_a_watcher_that_fails_once_goes_on(tmp_path, monkeypatch):
    async def work():
        said: list[str] = []
        async with BackgroundTasks(tmp_path, notice=said.append) as tasks:
            task = tasks.start(ScriptWork("sleep 600"), "x")
            await until(lambda: tasks.store.get(task.id).status == "running")
            with monkeypatch.context() as patch:
                patch.setattr(tasks.store, "kill_requests", lambda owner: 1 / 0)
                other = BackgroundStore(tmp_path)
                other.request_kill(task.id, "from elsewhere")
                other.close()
                await until(lambda: said)
            assert (await tasks.wait(task.id, 200)).reason == "from elsewhere"
            assert said == ["the background tasks cannot be watched: division by zero"]

    run(work())


@pytest.mark.parametrize(
    ("tail", "hint"),
    [
        ("[sudo] password for me: ", "password"),
        ("Enter passphrase for key '/x': ", "password"),
        ("Passwort: ", "password"),
        ("Mot de passe : ", "password"),
        ("Contraseña: ", "password"),
        ("密码：", "password"),
        ("パスワード: ", "password"),
        ("Введите пароль: ", "password"),
        ("Continue? [y/N] ", "yes or no"),
        ("Do you want to continue? (yes/no) ", "yes or no"),
        ("Fortfahren? [J/n] ", "yes or no"),
        ("Voulez-vous continuer ? [O/n] ", "yes or no"),
        ("¿Desea continuar? [S/n] ", "yes or no"),
        ("Продолжить? [Д/н] ", "yes or no"),
        ("继续吗？", "yes or no"),
        ("(yes/no/[fingerprint])? ", "yes or no"),
        ("Press any key to continue . . .", "key"),
        ("Press ENTER to continue:", "key"),
        ("--More--", "key"),
        ("Drücken Sie eine beliebige Taste...", "key"),
        ("Appuyez sur une touche pour continuer...", "key"),
        ("\x1b[1mUsername: \x1b[0m", "entry"),
        ("Please enter a number (1-3): ", "entry"),
        ("password changed\n", None),
        ("compiling 3/7", None),
        ("", None),
        ("done.\n$ ", None),
        ("Downloading model...", None),
        ("epoch 3, loss: ", None),
        # The commonest prompts, as the programs write them.
        ("Press Enter to continue", "key"),
        ("Press Enter to continue\n", "key"),
        ("Press any key…", "key"),
        ("Press any key to quit", "key"),
        ("Hit return to continue ", "key"),
        ("Please press ENTER", "key"),
        ("Shall I go on?", "yes or no"),
        ("Should I remove the old files? ", "yes or no"),
        ("Would you like to install it? ", "yes or no"),
        ("Is this OK? (yes) ", "yes or no"),
        ("Ok to proceed? (y) ", "yes or no"),
        ("Do you accept the license terms? [yes|no] ", "yes or no"),
        ("replace a.txt? [y]es, [n]o, [A]ll, [N]one, [r]ename: ", "yes or no"),
        ("rm: remove regular file 'a'? ", "yes or no"),
        ("2FA code: ", "code"),
        ("Verification code:", "code"),
        ("One-time password (OTP): ", "code"),
        ("Username for 'https://github.com': ", "entry"),
        ("Choice: ", "entry"),
        ("Which branch? ", "question"),
        ("Python 3.12.1\n>>> ", "interpreter"),
        ("sqlite> ", "interpreter"),
        ("postgres=# ", "interpreter"),
        ("-> a()\n(Pdb) ", "interpreter"),
        ("In [1]: ", "interpreter"),
        # These go on by themselves.
        ("Is this OK? (yes)\nyes\n", None),
        ("Press Ctrl-C to stop\n", None),
        ("Listening on http://localhost:8000 (Press CTRL+C to quit)", None),
        ("Resolving packages: ", None),
        ("[12/40] building a>b", None),
        ("100%|####| 3/3 [00:01<00:00]", None),
        ("Why? Because it was slow", None),
        ("is it working? yes", None),
    ],
)
def test_prompts_are_recognised(tail, hint):
    found = prompt_hint(tail.encode())
    assert (found is None) if hint is None else (found is not None and hint in found)


def test_a_key_is_neither_in_the_output_nor_in_the_description(tmp_path, monkeypatch):
    key = "not-a-real-key-9876543210"
    monkeypatch.setenv("SOME_API_KEY", key)
    monkeypatch.setattr(scripts, "_SILENCE_S", 60)  # the two halves come apart
    script = f"printf %s not-a-real-; sleep 0; printf '%s\\n' key-9876543210; printf 'last\\377'; printf {key} | base64"

    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(ScriptWork(script, cwd=tmp_path), f"prints {key}")
            ended = await tasks.wait(task.id)
            return ended.description, read_output(Path(task.output_file), 0, 1000)

    description, output = run(work())
    assert description == "prints [redacted:SOME_API_KEY]"
    assert output.startswith(b"[redacted:SOME_API_KEY]\nlast\xff[redacted:SOME_API_KEY]")


def test_a_long_output_is_written_as_it_is(tmp_path):
    script = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; printf end"

    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(ScriptWork(script, cwd=tmp_path), "prints")
            await tasks.wait(task.id)
            return task.output_file

    assert (
        Path(run(work())).read_text()
        == "".join(f"line {number}\n" for number in range(20_000)) + "end"
    )
