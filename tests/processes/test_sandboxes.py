"""Each sandbox runs a script as `none` does, inside its walls, and leaves nothing running."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from evaluator import ConfigurationError, Sandbox, ToolError, UsageError
from evaluator.processes.sandboxes import KINDS
from evaluator.processes.scripts import SandboxTrials, ScriptResult, try_sandbox
from evaluator.processes.shell import Shell
from evaluator.tools import run_script
from tests.patience import with_enough_time
from tests.sandboxes import StandIn, require_bubblewrap, working

# Elsewhere their arguments are checked with a stand-in.
CONTAINERS = [kind for kind in ("docker", "podman") if shutil.which(kind)]


def run(argv, sandbox: Sandbox, cwd: Path, **options) -> ScriptResult:
    options.setdefault("timeout_s", 100)
    return asyncio.run(run_script(argv, sandbox=sandbox, cwd=cwd, **options))


def in_root(sandbox: Sandbox) -> Sandbox:
    return replace(sandbox, folder="root")


# -- conformance: what every sandbox does; each needs only a shell ----------------------------------------------------


@pytest.fixture(params=["none", "bubblewrap", *CONTAINERS])
def sandbox(request) -> Sandbox:
    return Sandbox() if request.param == "none" else working(request.param)


def test_output_exit_code_and_input_pass_through(sandbox, tmp_path):
    result = run("cat; echo err >&2; exit 3", sandbox, tmp_path, stdin="in")
    assert (result.stdout, result.exit_code, result.signal) == ("in", 3, None)
    # Podman warns there of limits that it cannot set without a privilege.
    assert result.stderr == "err\n" or (sandbox.is_container and result.stderr.endswith("\nerr\n"))


@pytest.mark.parametrize("code", [1, 125, 126, 127])
def test_an_exit_code_of_the_script_is_never_taken_for_one_of_the_sandbox(sandbox, tmp_path, code):
    result = run(f"echo 'bwrap: docker: Error: no' >&2; exit {code}", sandbox, tmp_path)
    assert result.exit_code == code


def test_a_script_that_works_in_the_root_finds_and_leaves_files_there(sandbox, tmp_path):
    (tmp_path / "old").write_text("old")
    result = run("pwd; cat old; echo new > new", in_root(sandbox), tmp_path)
    assert result.stdout == f"{tmp_path}\nold"
    assert (tmp_path / "new").read_text() == "new\n"
    assert (tmp_path / "new").stat().st_uid == os.getuid()


def test_a_program_that_does_not_exist_is_a_clear_error(sandbox, tmp_path):
    if sandbox.is_container:  # its engine has started it before it looks for the program
        assert run(["no-such-program"], sandbox, tmp_path).exit_code == 127
        return
    with pytest.raises(ToolError, match="no-such-program"):
        run(["no-such-program"], sandbox, tmp_path)


def test_a_working_folder_that_does_not_exist_is_a_clear_error(sandbox, tmp_path):
    with pytest.raises(ToolError, match="working folder"):
        run(["true"], sandbox, tmp_path / "missing")


def test_the_time_limit_ends_the_script_and_what_it_started(sandbox, tmp_path):
    script = "echo before; (sleep 1000 &) ; sleep 1000"
    result = with_enough_time(
        lambda limit_s: run(script, sandbox, tmp_path, timeout_s=limit_s), lambda ran: ran.stdout
    )
    assert (result.stdout, result.timed_out) == ("before\n", True)
    assert result.survivors == 0


def test_endless_output_ends_the_script(sandbox, tmp_path):
    script = "line=$(printf '%4000s' x); while :; do echo \"$line\"; done"
    result = run(script, sandbox, tmp_path)
    assert result.overrun == "output"


def test_a_shell_keeps_its_state_between_commands(sandbox, tmp_path):
    async def session() -> list[str]:
        shell = Shell(tmp_path, sandbox=sandbox)
        try:
            return [
                (await shell.run(command)).stdout
                for command in ("x=7; cd /; pwd", 'echo "$x"; pwd')
            ]
        finally:
            await shell.end()

    if sandbox.is_container and "python" not in str(sandbox) and "debian" not in str(sandbox):
        pytest.skip(f"the image {sandbox.image} has no bash")
    assert asyncio.run(session()) == ["/\n", "7\n/\n"]


# -- the walls that all sandboxes have in common ----------------------------------------------------------------------


@pytest.fixture(params=["bubblewrap", *CONTAINERS])
def walls(request) -> Sandbox:
    return working(request.param)


def test_other_roots_can_be_read_and_not_changed(walls, tmp_path):
    work, other = tmp_path / "work", tmp_path / "other"
    work.mkdir()
    other.mkdir()
    (other / "data").write_text("data")
    shown = Sandbox(walls.kind, walls.image, readable=(other,))
    result = run(["sh", "-c", 'cat "$1/data"; echo x > "$1/data"', "sh", str(other)], shown, work)
    assert (result.stdout, (other / "data").read_text()) == ("data", "data")
    assert result.exit_code != 0
    assert run(["cat", str(other / "data")], walls, work).exit_code != 0


def test_hidden_files_and_folders_cannot_be_seen(walls, tmp_path):
    (tmp_path / "tasks" / "done").mkdir(parents=True)
    (tmp_path / "tasks" / "done" / "TASK-1.md").write_text("record")
    (tmp_path / "index").write_text("index")
    hidden = (
        tmp_path / "tasks",
        tmp_path / "tasks" / "done",
        tmp_path / "index",
        tmp_path / "missing",
    )
    result = run(
        "ls -A tasks; cat index; echo x > tasks/new; echo x > index",
        Sandbox(walls.kind, walls.image, hidden=hidden),
        tmp_path,
    )
    assert result.stdout == ""
    assert sorted(os.listdir(tmp_path / "tasks")) == ["done"]
    assert (tmp_path / "index").read_text() == "index"


def test_a_folder_reached_by_a_link_hides_the_same_files(walls, tmp_path):
    (tmp_path / "real" / "tasks").mkdir(parents=True)
    (tmp_path / "real" / "tasks" / "secret").write_text("secret")
    (tmp_path / "link").symlink_to("real")
    hidden = Sandbox(walls.kind, walls.image, hidden=(tmp_path / "real" / "tasks",))
    assert run("cat tasks/secret", hidden, tmp_path / "link").stdout == ""


@pytest.mark.parametrize("name", ["handlers", ".git"])
def test_what_decides_about_later_runs_cannot_be_changed(walls, tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "file").write_text("old")
    result = run(
        f"cat {name}/file; echo new > {name}/file; mv {name} gone; mkdir {name}",
        in_root(walls),
        tmp_path,
    )
    assert result.stdout == "old"
    assert (tmp_path / name / "file").read_text() == "old"


def test_a_script_has_a_folder_of_its_own_and_only_reads_the_root(walls, tmp_path):
    (tmp_path / "old").write_text("old")
    result = run(
        'pwd; echo x > new; cat "$EVALUATOR_ROOT/old"; echo x > "$EVALUATOR_ROOT/old"',
        walls,
        tmp_path,
    )
    assert result.stdout == "/evaluator-work\nold"
    assert os.listdir(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "old"


def test_what_does_not_exist_yet_and_decides_about_later_runs_cannot_be_created(walls, tmp_path):
    program = "mkdir handlers; for f in handlers/x templates/x .env conftest.py; do echo evil > $f; done; echo x > f"
    run(program, in_root(walls), tmp_path)
    assert os.listdir(tmp_path) == ["f"]


# -- containers, with a stand-in for the engine -----------------------------------------------------------------------


@pytest.fixture(params=["docker", "podman"])
def engine(request, tmp_path, monkeypatch) -> tuple[StandIn, Sandbox, Path]:
    programs, work = tmp_path / "programs", tmp_path / "work, with a comma"
    programs.mkdir()
    work.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return StandIn(programs, request.param), Sandbox(request.param, "img:1", cpus=1.5), work


def pairs(words: list[str]) -> set[tuple[str, str]]:
    return set(pairwise(words))


def test_a_container_gets_every_limit_no_network_and_no_variable(engine, monkeypatch):
    stand_in, sandbox, work = engine
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    result = run(
        ["sh", "-c", "pwd; exit 4"], in_root(sandbox), work, memory_bytes=64 << 20, max_processes=20
    )
    assert (result.stdout, result.exit_code) == (f"{work}\n", 4)
    words, cleanup = stand_in.calls()
    options, command = words[: words.index("--")], words[words.index("--") + 1 :]
    assert command == ["img:1", "sh", "-c", "pwd; exit 4"]
    size = str(64 << 20)
    assert pairs(options) >= {
        ("--network", "none"),
        ("--memory", size),
        ("--memory-swap", size),
        ("--pids-limit", "20"),
        ("--cpus", "1.5"),
        ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges"),
        ("--pull", "never"),
        ("--workdir", str(work)),
        ("--user", f"{os.getuid()}:{os.getgid()}"),
        ("--mount", f'type=bind,"source={work}","target={work}"'),
    }
    assert {"--rm", "--read-only", "--interactive"} <= set(options)
    assert "sk-secret" not in str(words)
    variables = {value.partition("=")[0] for option, value in pairs(options) if option == "--env"}
    assert variables <= {"HOME", "LANG", "EVALUATOR_SCRIPT_ID"} | {
        n for n in variables if n.startswith("LC_")
    }
    assert cleanup == ["rm", "--force", dict(pairs(options))["--name"]]


def test_a_container_is_removed_when_the_time_is_over(engine):
    stand_in, sandbox, work = engine
    attempts = []

    def attempt(limit_s):
        before = len(stand_in.calls())
        attempts.append(run(["sleep", "1000"], sandbox, work, timeout_s=limit_s))
        return [words[0] for words in stand_in.calls()[before:]]

    calls = with_enough_time(attempt, lambda calls: "run" in calls)
    assert attempts[-1].timed_out and calls == ["run", "rm"]


def test_a_container_that_never_started_is_an_error_with_the_engines_reason(engine):
    stand_in, sandbox, work = engine
    stand_in.broken.touch()
    with pytest.raises(ToolError, match="cannot start 'true': no such image"):
        run(["true"], sandbox, work)
    with pytest.raises(ConfigurationError, match="does not work here"):
        asyncio.run(try_sandbox(sandbox, work))


def test_the_network_is_given_only_where_the_profile_says_so(engine):
    stand_in, sandbox, work = engine
    run(["true"], Sandbox(sandbox.kind, "img:1", network=True), work)
    assert ("--network", "bridge") in pairs(stand_in.calls()[0])


def test_a_sandbox_that_works_is_tried_once(engine):
    stand_in, sandbox, work = engine

    async def check() -> None:
        trials = SandboxTrials()
        await trials.check(sandbox, work)
        await trials.check(Sandbox(sandbox.kind, "img:1", sandbox.cpus, hidden=(work,)), work)

    asyncio.run(check())
    assert [words[0] for words in stand_in.calls()] == ["run", "rm"]


# -- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "none"])
def test_a_missing_program_is_an_error_that_names_the_package(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigurationError, match=f"install .*{kind.replace('docker', 'docker.io')}"
    ):
        Sandbox(kind, "img").program()
    with pytest.raises(ToolError, match="is not installed"):
        run([sys.executable, "-c", ""], Sandbox(kind, "img"), tmp_path)


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (Sandbox(), "bubblewrap", Sandbox("bubblewrap")),
        (Sandbox("bubblewrap"), None, Sandbox("bubblewrap")),
        (Sandbox("bubblewrap"), "none", Sandbox("bubblewrap")),
        (Sandbox("bubblewrap"), Sandbox(), Sandbox("bubblewrap")),
        (Sandbox("bubblewrap", "img"), "docker", Sandbox("docker", "img")),
        (Sandbox("docker", "img"), "bubblewrap", Sandbox("docker", "img")),
        (Sandbox("docker", "img"), "podman", Sandbox("docker", "img")),
        (Sandbox("docker", "img"), Sandbox("docker", "other"), Sandbox("docker", "img")),
        (Sandbox(), Sandbox("docker", "img", network=True), Sandbox("docker", "img", network=True)),
        (Sandbox("bubblewrap"), Sandbox("docker", "img", network=True), Sandbox("docker", "img")),
        (Sandbox("bubblewrap", network=True), Sandbox("bubblewrap"), Sandbox("bubblewrap")),
        (Sandbox("bubblewrap", network=True), Sandbox(), Sandbox("bubblewrap", network=True)),
        (Sandbox("none", folder="root"), "bubblewrap", Sandbox("bubblewrap", folder="root")),
        (Sandbox("bubblewrap", folder="root"), Sandbox("bubblewrap"), Sandbox("bubblewrap")),
    ],
)
def test_the_stricter_of_two_sandboxes_is_chosen_and_never_more_network(own, other, expected):
    assert own.stricter(other) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("docker+root", "needs an image"),
        ("bubblewrap+home", "expected one of none, bubblewrap"),
        ("docker", "needs an image"),
        ("jail", "expected one of none, bubblewrap"),
        ("bubblewrap:img", "take an image"),
    ],
)
def test_an_invalid_sandbox_is_a_clear_error(text, words):
    with pytest.raises(UsageError, match=words):
        Sandbox.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "none",
        "bubblewrap",
        "bubblewrap+root",
        "docker:python:3.12-slim",
        "podman+root:localhost:5000/a/b",
    ],
)
def test_a_sandbox_is_written_as_it_is_read(text):
    assert str(Sandbox.parse(text)) == text


def test_an_evaluator_that_is_killed_takes_its_sandbox_along(tmp_path):
    import signal
    import subprocess

    require_bubblewrap()
    fifo = tmp_path / "announce"
    os.mkfifo(fifo)
    code = (
        "import asyncio, sys; from pathlib import Path; from evaluator.processes.sandboxes import Sandbox;"
        "from evaluator.tools import run_script;"
        "asyncio.run(run_script('exec 9>announce; echo up >&9; sleep 1000', timeout_s=1000, cwd=Path(sys.argv[1]),"
        " sandbox=Sandbox('bubblewrap', folder='root')))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    with open(fifo) as reading:
        assert reading.readline() == "up\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert reading.read() == ""  # ends when the script, which holds the other end, is dead


def test_task_files_that_are_hidden_in_the_root_do_not_stop_a_script(tmp_path):
    (tmp_path / "tasks" / "active").mkdir(parents=True)
    (tmp_path / "tasks" / "active" / "TASK-1.md").write_text("record")
    sandbox = replace(require_bubblewrap(), folder="root", hidden=(tmp_path / "tasks",))
    assert run("ls -A tasks; echo done", sandbox, tmp_path).stdout == "done\n"
