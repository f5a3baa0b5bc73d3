"""Attempts of scripts to leave their sandbox: files, processes, network, environment, and the machine's resources.

Each attempt prints REACHED where it succeeds. Its control is the same program without a sandbox, so that the check can
fail; a control that only root can run is left out for other users.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator import (
    Evaluator,
    HandlerConfig,
    Sandbox,
    SimulatedBackend,
    TaskError,
    TaskResult,
    TemplateError,
    TemplateLibrary,
    UsageError,
)
from evaluator.batch import read_definition
from evaluator.processes import supervisor
from tests.sandboxes import require_bubblewrap

SECRET = "not-a-real-key-9876543210"
SHM_KEY = 0x5EC2E7
TEMPLATE = """<task name="program" type="script"><description>d</description>
  <inputs><input name="stdin" type="string" required="true">a program in Python</input></inputs>
  <command>python3 -I -</command><timeout>100</timeout></task>"""
libc = ctypes.CDLL(None, use_errno=True)


class World:
    """What is around a script: files outside its folder, a program with a key, and servers."""

    def __init__(self, folder: Path) -> None:
        self.work, self.outside = folder / "work", folder / "outside"
        for path in (self.work / "handlers", self.work / ".git" / "hooks", self.outside):
            path.mkdir(parents=True)
        (self.outside / "secret").write_text(SECRET)
        (self.work / "handlers" / "mine.xml").write_text('<handler name="mine"/>')
        (folder / "t").mkdir()
        (folder / "t" / "t.xml").write_text(TEMPLATE)
        self.library = TemplateLibrary.load(folder / "t", shipped=False)
        self.shared = tempfile.NamedTemporaryFile(dir="/dev/shm")  # noqa: SIM115  (closed in `close`)
        self.bystander = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys; print(flush=True); sys.stdin.read()",
                "argument-" + SECRET,
            ],
            env={**os.environ, "SOME_API_KEY": SECRET},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.bystander.stdout is not None
        self.bystander.stdout.readline()
        self.memory = libc.shmget(SHM_KEY, 4096, 0o1666)
        self.socket_folder = Path(
            tempfile.mkdtemp(prefix="s", dir="/tmp")
        )  # a path that fits into a socket's address
        self.servers = [
            socket.create_server(("127.0.0.1", 0)),
            *(socket.socket(socket.AF_UNIX) for _ in range(2)),
        ]
        self.servers[1].bind(str(self.socket_folder / "s"))
        self.servers[2].bind(f"\0evaluator-{os.getpid()}")
        for server in self.servers:
            server.listen(50)

    def close(self) -> None:
        for server in self.servers:
            server.close()
        (self.socket_folder / "s").unlink()
        self.socket_folder.rmdir()
        libc.shmctl(self.memory, 0, None)
        self.shared.close()
        self.bystander.communicate()

    def run(self, program: str, sandbox: Sandbox | str, **settings: int) -> TaskResult | TaskError:
        values = {
            "OUTSIDE": self.outside,
            "WORK": self.work,
            "SHARED": self.shared.name,
            "BYSTANDER": self.bystander.pid,
            "SECRET": SECRET,
            "PORT": self.servers[0].getsockname()[1],
            "SOCKET": self.socket_folder / "s",
            "ABSTRACT": f"evaluator-{os.getpid()}",
            "SHM_KEY": SHM_KEY,
            "PREFIX": sys.prefix,
        }
        program = re.sub("|".join(values), lambda match: str(values[match[0]]), program)
        config = HandlerConfig(backend="simulated", **settings)
        with Evaluator(
            self.library,
            config,
            profiles={},
            backend=SimulatedBackend(),
            roots=[self.work],
            tasks_dir=self.work / "tasks",
            sandbox=sandbox,
        ) as evaluator:
            return evaluator.evaluate_sync(
                "program", {"stdin": "import ctypes, glob, os, socket\n" + program}
            )


def in_root() -> Sandbox:
    """A sandbox whose scripts may change the first root."""
    return replace(require_bubblewrap(), folder="root")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"))
    yield world
    world.close()


SHOW = "print('REACHED' if {} else '')"
ATTEMPTS: dict[str, str] = {
    # files
    "read-a-file-outside": SHOW.format("open('OUTSIDE/secret').read() == 'SECRET'"),
    "read-it-relative": SHOW.format("open('../outside/secret').read()"),
    "read-it-through-a-link": "os.path.lexists('link') or os.symlink('OUTSIDE/secret', 'link')\n"
    + SHOW.format("open('link').read()"),
    "read-it-through-a-hard-link": "os.path.exists('hard') and os.unlink('hard')\nos.link('OUTSIDE/secret', 'hard')\n"
    + SHOW.format("open('hard').read()"),
    "read-it-through-proc-cwd": SHOW.format("open('/proc/self/cwd/../outside/secret').read()"),
    "list-a-folder-outside": SHOW.format("os.listdir('OUTSIDE')"),
    "write-outside": "open('OUTSIDE/new', 'w').close()\n" + SHOW.format("True"),
    "read-the-record": SHOW.format("glob.glob('tasks/*/TASK-*.md')"),
    "forge-the-record": "open('tasks/forged', 'w').close()\n" + SHOW.format("True"),
    "change-a-profile": "open('handlers/mine.xml', 'a').close()\n" + SHOW.format("True"),
    "add-a-profile": "open('handlers/other.xml', 'w').close()\n" + SHOW.format("True"),
    "replace-the-profiles": "os.rename('handlers', 'h2'); os.rename('h2', 'handlers')\n"
    + SHOW.format("True"),
    "add-a-git-hook": "open('.git/hooks/pre-commit', 'w').close()\n" + SHOW.format("True"),
    "change-the-evaluators-python": SHOW.format("os.access('PREFIX', os.W_OK)"),
    "read-a-shared-file-in-memory": "open('SHARED').close()\n" + SHOW.format("True"),
    "see-sys": SHOW.format("os.listdir('/sys')"),
    "see-var": SHOW.format("os.listdir('/var')"),
    "see-run": SHOW.format("os.listdir('/run')"),
    # processes
    "read-an-environment": SHOW.format(
        "any(b'SECRET' in open(p, 'rb').read() for p in glob.glob('/proc/BYSTANDER/environ'))"
    ),
    "read-a-command-line": SHOW.format(
        "any(b'argument-SECRET' in open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/cmdline'))"
    ),
    "find-the-supervisor": SHOW.format(
        "any(b'launcher.py' in open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/cmdline'))"
    ),
    "see-a-process": "try: os.kill(BYSTANDER, 0)\nexcept PermissionError: pass\n"
    + SHOW.format("True"),
    "use-shared-memory": SHOW.format("ctypes.CDLL(None).shmget(SHM_KEY, 4096, 0o666) >= 0"),
    # network
    "connect-over-tcp": "socket.create_connection(('127.0.0.1', PORT), 5).close()\n"
    + SHOW.format("True"),
    "connect-to-a-socket-file": "socket.socket(socket.AF_UNIX).connect('SOCKET')\n"
    + SHOW.format("True"),
    "connect-to-an-abstract-socket": "socket.socket(socket.AF_UNIX).connect('\\0ABSTRACT')\n"
    + SHOW.format("True"),
    "create-a-user-namespace": SHOW.format("ctypes.CDLL(None).unshare(0x10000000) == 0"),
}
OF_ROOT: dict[str, str] = {
    "read-it-through-the-parent": SHOW.format(
        "open(f'/proc/{STARTER}/root/OUTSIDE/secret').read()"
    ),
    "have-capabilities": SHOW.format(
        "int(open('/proc/self/status').read().split('CapEff:')[1].split()[0], 16)"
    ),
    "write-to-the-system": SHOW.format("os.access('/usr', os.W_OK)"),
    "write-to-the-root-folder": SHOW.format("os.access('/', os.W_OK)"),
    "change-a-kernel-setting": "value = open('/proc/sys/vm/overcommit_memory').read()\n"
    "open('/proc/sys/vm/overcommit_memory', 'w').write(value)\n" + SHOW.format("True"),
    "set-the-core-pattern": SHOW.format("os.access('/proc/sys/kernel/core_pattern', os.W_OK)"),
    "mount-a-file-system": "os.makedirs('m', exist_ok=True)\n"
    + SHOW.format(
        "ctypes.CDLL(None).unshare(0x20000) == 0 and ctypes.CDLL(None).mount(b'n', b'm', b'tmpfs', 0, 0) == 0"
    ),
    "open-a-raw-socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)\n"
    + SHOW.format("True"),
    "make-a-device": "os.path.exists('d') and os.unlink('d')\nos.mknod('d', 0o60600, os.makedev(7, 0))\n"
    + SHOW.format("True"),
    "enter-the-namespaces-of-the-evaluator": "fd = os.open('/proc/BYSTANDER/ns/mnt', os.O_RDONLY)\n"
    + SHOW.format("fd"),
    "read-the-memory-of-a-process": "open('/proc/BYSTANDER/mem', 'rb').close()\n"
    + SHOW.format("True"),
    "read-through-the-root-of-a-process": SHOW.format(
        "open('/proc/BYSTANDER/root/OUTSIDE/secret').read()"
    ),
}


# Each attempt is made in a process of its own, so that an error or a changed namespace is its own too.
ALL_ATTEMPTS = """
STARTER = os.getppid()
for name, program in PROGRAMS.items():
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        sys.stdout = io.StringIO()
        with contextlib.suppress(BaseException):
            exec(program, globals())
        reached = "REACHED" in sys.stdout.getvalue()
        sys.stdout = sys.__stdout__
        print(f"{name}: {reached}", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
"""


def reached(world: World, sandbox: Sandbox | str) -> dict[str, bool]:
    """Which attempts succeed."""
    programs = ATTEMPTS | OF_ROOT
    program = f"import contextlib, io, sys\nPROGRAMS = {programs!r}\n" + ALL_ATTEMPTS
    lines = world.run(program, sandbox).content.splitlines()
    found = {name: answer == "True" for name, answer in (line.split(": ") for line in lines)}
    assert found.keys() == programs.keys()
    return found


@pytest.fixture(scope="module")
def in_bubblewrap(world: World) -> dict[str, bool]:
    return reached(world, in_root())


@pytest.fixture(scope="module")
def without_sandbox(world: World) -> dict[str, bool]:
    """The control."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "_IS_CONFINED", False)  # Landlock prevents some of them too
        return reached(world, "none")


@pytest.mark.parametrize("name", [*ATTEMPTS, *OF_ROOT])
def test_a_script_in_bubblewrap_reaches_nothing_outside(
    in_bubblewrap: dict[str, bool], without_sandbox: dict[str, bool], name: str
) -> None:
    assert not in_bubblewrap[name]
    if name in ATTEMPTS or os.geteuid() == 0:
        assert without_sandbox[name]


def test_a_file_written_beside_the_folder_is_not_outside(world: World) -> None:
    sandbox, new = in_root(), world.work.parent / "new"
    program = "open('../new', 'w').close()"
    world.run(program, sandbox)
    assert not new.exists()
    world.run(program, "none")
    assert new.exists()  # the control


def test_a_script_in_bubblewrap_sees_its_own_variables_and_processes_only(
    world: World, monkeypatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", SECRET)
    sandbox = require_bubblewrap()
    program = (
        "names = set(os.environ) | {e.partition(b'=')[0].decode() for p in glob.glob('/proc/[0-9]*/environ')"
        " for e in open(p, 'rb').read().split(b'\\0')}\n"
        "print(*sorted(names - {''}), *(int(p[6:]) for p in glob.glob('/proc/[0-9]*')))"
    )
    words = world.run(program, sandbox).content.split()
    assert {word for word in words if not word.startswith("LC_") and not word.isdecimal()} <= {
        "PATH",
        "HOME",
        "LANG",
        "EVALUATOR_ROOT",
        "EVALUATOR_SCRIPT_ID",
        "PWD",
    }
    assert sum(word.isdecimal() for word in words) <= 3


# -- resources: the same in a sandbox and without one ------------------------------------------------------------------


@pytest.fixture(params=["none", "bubblewrap"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox | str:
    return in_root() if request.param == "bubblewrap" else "none"


FORK = "import time\nfor _ in range(COUNT):\n    if os.fork() == 0:\n        time.sleep(WAIT)\n        os._exit(0)\n"


def test_a_fork_bomb_is_ended(world: World, sandbox: Sandbox | str) -> None:
    few = world.run(FORK.replace("COUNT", "20").replace("WAIT", "0") + "print('done')", sandbox)
    assert few.content == "done\n"  # the control
    many = world.run(
        FORK.replace("COUNT", "900").replace("WAIT", "100") + "time.sleep(100)", sandbox
    )
    assert isinstance(many, TaskError)
    assert "too much processes" in str(many.notes["warnings"])


def test_an_output_bomb_is_ended(world: World, sandbox: Sandbox | str) -> None:
    ended = world.run("import sys\nwhile True: sys.stdout.write('x' * 1000000)", sandbox)
    assert isinstance(ended, TaskError)
    assert "too much output" in str(ended.notes["warnings"])
    assert len(ended.content) <= 1_000_000


@pytest.mark.parametrize(
    "bomb",
    [
        "x = bytearray(400 << 20)",
        "x = [bytearray(1 << 20) for _ in range(400)]",
        "import time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = b'x' * (60 << 20)\n        time.sleep(100)\n"
        "time.sleep(100)",
    ],
    ids=["one-block", "many-blocks", "several-processes"],
)
def test_a_memory_bomb_is_ended(world: World, sandbox: Sandbox | str, bomb: str) -> None:
    assert (
        world.run("x = bytearray(50 << 20)\nprint('done')", sandbox, script_memory_mb=200).content
        == "done\n"
    )
    ended = world.run(bomb + "\nprint('REACHED')", sandbox, script_memory_mb=200)
    assert isinstance(ended, TaskError)
    assert "MemoryError" in str(ended.details) or "too much memory" in str(ended.notes["warnings"])


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_files_in_memory_are_bounded(world: World, folder: str) -> None:
    sandbox = require_bubblewrap()
    program = f"import tempfile\nwith tempfile.TemporaryFile(dir={folder!r}) as f:\n    f.write(bytes(SIZE << 20))\nprint('ok')"
    assert world.run(program.replace("SIZE", "20"), sandbox, script_memory_mb=400).content == "ok\n"
    ended = world.run(program.replace("SIZE", "150"), sandbox, script_memory_mb=400)
    assert "No space left" in str(ended)


LEAVE = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(0); os.close(1); os.close(2)
        open('announce', 'w').write('up')
        import time
        keep = open('held', 'w')
        time.sleep(1000)
    os._exit(0)
os.wait()
open('announce').read()
print('done')
"""


def test_a_process_that_detaches_itself_does_not_outlive_the_script(
    world: World, sandbox: Sandbox | str
) -> None:
    for name in ("announce", "held"):
        (world.work / name).unlink(missing_ok=True)
        os.mkfifo(world.work / name)
    ends: list[bytes] = []
    reader = threading.Thread(target=lambda: ends.append((world.work / "held").read_bytes()))
    reader.start()
    assert world.run(LEAVE, sandbox).content == "done\n"
    if reader.is_alive() and not ends:
        # The process may have been killed before it opened the pipe.
        try:
            os.close(os.open(world.work / "held", os.O_WRONLY | os.O_NONBLOCK))
        except OSError:
            pass
    reader.join(60)
    assert ends == [b""]  # the pipe has no writer left


# -- who decides: these need no sandbox --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["none", "", "docker:img", "NONE", "{{ kind }}"])
def test_a_template_cannot_switch_a_sandbox_off(tmp_path: Path, value: str) -> None:
    def load(name: str) -> TemplateLibrary:
        xml = TEMPLATE.replace("<command>", f'<handler sandbox="{name}"/><command>')
        (tmp_path / "t.xml").write_text(xml)
        return TemplateLibrary.load(tmp_path, shipped=False)

    assert "program" in load("bubblewrap")  # the control
    library = load(value)
    with pytest.raises(TemplateError, match="sandbox"):
        library.get("program")


def test_the_definition_of_a_batch_cannot_choose_a_sandbox(tmp_path: Path) -> None:
    file = tmp_path / "b.toml"
    file.write_text('template = "t"\nrows = "r.jsonl"\n')
    assert read_definition(file).templates == ("t",)  # the control
    file.write_text('template = "t"\nrows = "r.jsonl"\nsandbox = "none"\n')
    with pytest.raises(UsageError, match="sandbox"):
        read_definition(file)
