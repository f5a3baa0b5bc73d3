"""Commands and templates on another node: on a stand-in, whose object is in this process, and on a cluster of Ray where there is one."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evaluator import MissingExtra, TaskStore
from evaluator.background import BackgroundTasks, NodeWork
from evaluator.batch.engines.node_template import IDS, NodeTemplate, TemplateWork
from evaluator.jobs.output import read_output
from evaluator.jobs.scripts import NodeCommand
from evaluator.processes.supervisor import Command
from tests.jobs.test_background_evaluations import ONE, SLOW, lines
from tests.jobs.test_background_scripts import DETACHED, until
from tests.leftovers import is_running


class Lost(Exception):
    """The node is gone."""


class LostNode(NodeCommand):
    """A node that is lost when the command has written something."""

    async def read(self, offset):
        if data := await super().read(offset):
            await self.stop()
            raise Lost(f"after {data!r}")
        return data


def stand_in(node=NodeCommand):
    @asynccontextmanager
    async def open_node(is_killed):
        command = node()
        yield command
        await command.stop()

    return open_node


def command(tmp_path, *words):
    return Command(words, cwd=tmp_path)


@pytest.mark.parametrize(
    ("words", "status", "code", "says"),
    [
        (("sh", "-c", "echo out; echo err >&2"), "completed", 0, ""),
        (("sh", "-c", "exit 3"), "failed", 3, ""),
        (("/nowhere/at/all",), "failed", None, "program not found"),
    ],
)
def test_a_command_on_a_node_ends_as_a_script_does(tmp_path, words, status, code, says):
    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(NodeWork(command(tmp_path, *words), stand_in()), "there")
            assert task.id[0] == "r"
            ended = await tasks.wait(task.id, 200)
            assert (ended.status, ended.exit_code) == (status, code) and says in (
                ended.reason or ""
            )
            assert len(tasks.store.notices(task.id)) == 1
            return read_output(Path(task.output_file), 0, 1000)

    assert asyncio.run(work()) == (b"out\nerr\n" if code == 0 else b"")


def test_a_kill_ends_the_whole_tree_on_the_node(tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            task = tasks.start(
                NodeWork(command(tmp_path, sys.executable, "-c", DETACHED), stand_in()), "there"
            )
            await until((tmp_path / "pid").exists)
            pid = int((tmp_path / "pid").read_text())
            assert is_running(pid)
            killed = await tasks.kill(task.id, "enough", timeout_s=200)
            assert (killed.status, killed.signal, killed.reason) == ("killed", 9, "enough")
            assert not is_running(pid)

    asyncio.run(work())


def test_output_arrives_while_the_command_runs_and_too_much_of_it_kills(tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path / "bg", max_output_bytes=10_000) as tasks:
            slow = tasks.start(
                NodeWork(command(tmp_path, "sh", "-c", "echo first; sleep 600"), stand_in()), "slow"
            )
            await until(lambda: read_output(Path(slow.output_file), 0, 100) == b"first\n")
            endless = tasks.start(NodeWork(command(tmp_path, "yes"), stand_in()), "endless")
            ended = await tasks.wait(endless.id, 60)
            assert ended.status == "killed" and "output passed 10,000 bytes" in (ended.reason or "")
            assert len(read_output(Path(endless.output_file), 0, 20_000)) == 10_000

    asyncio.run(work())


def test_a_node_ends_a_command_whose_output_nobody_fetches(tmp_path):
    async def work():
        node = NodeCommand(max_bytes=1_000)
        running = asyncio.ensure_future(node.run(command(tmp_path, "yes")))
        while not running.done():
            await node.read(0)
            await asyncio.wait([running], timeout=0.01)
        return running.result()

    end = asyncio.run(work())
    assert end.status == "killed"


def test_a_node_that_is_lost_is_a_failure_and_what_it_wrote_before_is_kept(tmp_path):
    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            work = NodeWork(
                command(tmp_path, "sh", "-c", "echo here; sleep 600"), stand_in(LostNode)
            )
            ended = await tasks.wait(tasks.start(work, "there").id, 60)
            assert (ended.status, ended.reason) == ("failed", r"Lost: after b'here\n'")

    asyncio.run(work())


def test_nothing_is_left_when_the_process_on_the_node_ends_and_kills_its_children(tmp_path):
    code = (
        "import asyncio, os, signal, sys\n"
        "from pathlib import Path\n"
        "from evaluator.jobs.scripts import NodeCommand\n"
        "from evaluator.processes.supervisor import Command\n"
        "async def main():\n"
        "    running = asyncio.ensure_future(NodeCommand().run(Command((sys.executable, '-c', sys.argv[1]))))\n"
        "    while not Path('pid').exists(): await asyncio.sleep(0.01)\n"
        "    children = Path(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read_text().split()\n"
        "    for child in children: os.kill(int(child), signal.SIGKILL)\n"
        "    print(len(children), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )

    async def work():
        ended = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, DETACHED, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        assert (await ended.communicate())[0] == b"1\n"
        pid = int((tmp_path / "pid").read_text())
        await until(lambda: not is_running(pid))

    asyncio.run(work())


async def on_a_node(evaluator, folder, name, inputs, until_then=None, node=NodeTemplate):
    """The ended task of a template on a stand-in for a node; killed after `until_then`."""
    async with BackgroundTasks(folder) as tasks:
        work = TemplateWork(evaluator, name, inputs, stand_in(node))
        task = tasks.start(work, name)
        if until_then is None:
            return await tasks.wait(task.id, 200)
        await until(until_then)
        return await tasks.kill(task.id, "enough", timeout_s=200)


def test_a_template_on_a_node_leaves_its_transcript_and_its_task_file_here(
    make_evaluator, tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    evaluator = make_evaluator(ONE, script=lambda request: "hello")
    task = asyncio.run(on_a_node(evaluator, tmp_path / "bg", "one", {"word": "hello"}))
    assert (task.type, task.status, task.summary) == ("r", "completed", "hello")
    assert [each["type"] for each in lines(task)] == ["message", "message", "outcome"]

    store = TaskStore(tmp_path / "tasks")
    (record,) = store.list()
    assert task.task_file == f"TASK-{record.id}" and record.status == "completed"
    assert store.read(record.id).header.request == "one"
    here = asyncio.run(evaluator.evaluate("one", {"word": "x"}))
    assert here.task_id == record.id + IDS - 1  # the next one after those that were reserved
    assert not list(tmp_path.glob("evaluator-tasks-*"))


def test_a_kill_closes_the_record_of_a_template_on_a_node(make_evaluator, tmp_path):
    evaluator = make_evaluator(SLOW, script=lambda request: "fine")
    started = (tmp_path / "started").exists
    task = asyncio.run(on_a_node(evaluator, tmp_path / "bg", "slow", {}, started))
    assert (task.type, task.status, task.reason) == ("r", "killed", "enough")
    (record,) = TaskStore(tmp_path / "tasks").list()
    assert task.task_file == f"TASK-{record.id}" and record.status == "aborted"


def test_a_node_gets_no_key_and_refuses_a_request_of_another_version(
    make_evaluator, tmp_path, monkeypatch
):
    key = "sk-" + "a1B2" * 8
    monkeypatch.setenv("OPENAI_API_KEY", key)
    requests = []

    class Watched(NodeTemplate):
        async def run(self, command):
            versions, packed = command
            requests.append(packed)
            return await super().run((f"{versions}.1", packed))

    evaluator = make_evaluator(ONE, script=lambda request: "hello")
    task = asyncio.run(on_a_node(evaluator, tmp_path / "bg", "one", {"word": "x"}, node=Watched))
    assert task.status == "failed" and "install the same everywhere" in task.reason
    assert len(requests) == 1 and b"one" in requests[0] and key.encode() not in requests[0]


def test_a_node_cannot_write_a_task_file_with_an_id_that_was_not_reserved(make_evaluator, tmp_path):
    class Forging(NodeTemplate):
        async def run(self, command):
            end, files = await super().run(command)
            return end, [*files, (7_000, b"forged")]

    evaluator = make_evaluator(ONE, script=lambda request: "hello")
    task = asyncio.run(on_a_node(evaluator, tmp_path / "bg", "one", {"word": "x"}, node=Forging))
    assert task.status == "failed" and "1 task files beyond the 999 ids" in task.reason
    assert len(list((tmp_path / "tasks" / "done").iterdir())) == 1


def test_without_ray_the_extra_is_named(monkeypatch):
    from evaluator.batch.engines.ray_engine import ray_node

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"pip install 'evaluator\[ray\]'"):
        ray_node()


@pytest.mark.timeout(300)
def test_a_command_and_a_template_run_on_a_node_of_ray_and_a_kill_ends_them_there(
    make_evaluator, tmp_path
):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'evaluator[ray]'")
    from evaluator.batch.engines.ray_engine import ray_node
    from tests.batch.engines.test_ray import a_cluster

    async def work(nodes):
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            said = tasks.start(
                NodeWork(command(tmp_path, "sh", "-c", "echo $PPID; echo err >&2"), ray_node()),
                "said",
            )
            detached = Command((sys.executable, "-c", DETACHED), cwd=tmp_path)
            killed = tasks.start(NodeWork(detached, ray_node()), "killed")
            ended = await tasks.wait(said.id, 120)
            assert (ended.status, ended.exit_code, ended.reason) == ("completed", 0, None)
            assert read_output(Path(said.output_file), 0, 1000).endswith(b"\nerr\n")
            await until((tmp_path / "pid").exists)
            pid = int((tmp_path / "pid").read_text())
            ended = await tasks.kill(killed.id, "enough", timeout_s=200)
            assert (ended.status, ended.signal) == ("killed", 9) and not is_running(pid)

            evaluator = make_evaluator(ONE + SLOW, script=lambda request: "hello")
            there = ray_node(kind=NodeTemplate)
            answered = tasks.start(TemplateWork(evaluator, "one", {"word": "x"}, there), "one")
            slow = tasks.start(TemplateWork(evaluator, "slow", {}, there), "slow")
            ended = await tasks.wait(answered.id, 120)
            assert (ended.status, ended.summary, ended.reason) == ("completed", "hello", None)
            await until((tmp_path / "started").exists)
            assert (await tasks.kill(slow.id, "enough", timeout_s=200)).status == "killed"
            statuses = {record.status for record in TaskStore(tmp_path / "tasks").list()}
            assert statuses == {"completed", "aborted"}

            nobody = tasks.start(NodeWork(detached, ray_node("nobody")), "no such node")
            ended = await tasks.wait(nobody.id, 60)
            assert ended.status == "failed" and "no node 'nobody' with a CPU" in (
                ended.reason or ""
            )

            (tmp_path / "pid").unlink()
            lost = tasks.start(NodeWork(detached, ray_node()), "lost")
            await until((tmp_path / "pid").exists)
            pid = int((tmp_path / "pid").read_text())
            nodes.kill()
            nodes.kill()
            ended = await tasks.wait(lost.id, 120)
            assert ended.status == "failed" and "HostLost" in (ended.reason or "")
            await until(lambda: not is_running(pid))

    with a_cluster() as nodes:
        asyncio.run(work(nodes))


@pytest.mark.timeout(300)
def test_a_cluster_that_is_started_for_a_command_lives_until_its_end(tmp_path):
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'evaluator[ray]'")
    from evaluator.batch.engines.ray_engine import ray_node

    async def work():
        async with BackgroundTasks(tmp_path / "bg") as tasks:
            there = tasks.start(
                NodeWork(command(tmp_path, "echo", "there"), ray_node(address="local")), "there"
            )
            ended = await tasks.wait(there.id, 120)
            assert (ended.status, ended.reason) == ("completed", None)
            assert read_output(Path(there.output_file), 0, 100) == b"there\n"

    asyncio.run(work())
    assert not ray.is_initialized()
