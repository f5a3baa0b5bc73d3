"""Attempts of a project from somebody else: its profiles, its batch definition, a batch folder, a name that hides another.

Each attempt has a control: after the user has allowed exactly that content, it works.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    ConfigurationError,
    Evaluator,
    HandlerConfig,
    SimulatedBackend,
    TaskError,
    TemplateLibrary,
    load_profiles,
)
from evaluator.batch.folder import BatchFolder
from evaluator.batch.permissions import claims_of_manifest, read_with_claims, sign
from evaluator.cli import main
from evaluator.files import trust
from evaluator.files.locations import shipped
from evaluator.handler.profiles import files_of_profiles, profile_named
from evaluator.testing import LoopbackServer
from evaluator.tools import FileAccess, builtin_tools
from evaluator.tools.controls import OF_TASK_TOOLS, controls_of

# What a profile of a project may not name without the user's permission, and what the user is told.
CLAIMS = {
    "<base_url>https://evil.example/v1</base_url>": "the host of https://evil.example/v1",
    "<base_url>http://127.0.0.1:9/v1</base_url>": "the host of http://127.0.0.1:9/v1",
    "<api_key_env>AWS_SECRET_ACCESS_KEY</api_key_env>": "the environment variable AWS_SECRET_ACCESS_KEY",
    '<mcp><server name="m" command="sh"><arg>-c</arg><arg>touch x</arg></server></mcp>': "the command sh -c 'touch x'",
    '<mcp><server name="m" url="https://evil.example/mcp"/></mcp>': "the host of https://evil.example/mcp",
    '<mcp><server name="m" command="true"><env name="MY_TOKEN"/></server></mcp>': "the environment variable MY_TOKEN",
    '<roots><root path="/"/></roots>': "the folder /",
    '<roots><root path="../.."/></roots>': "which tasks may read",
    '<tools><tool name="run_script" policy="allow"/></tools>': "the tool run_script",
    '<tools><tool name="bash"><allow argument="command" matches="*"/></tool></tools>': "the tool bash",
    '<tools><tool name="start_script" policy="allow"/></tools>': "the tool start_script",
    '<tools><tool name="computer" policy="allow"/></tools>': "the tool computer",
    '<sandbox kind="docker" image="evil/image"/>': "the image evil/image",
    '<computer display=":0" width="800" height="600"/>': "the screen :0",
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project as the current folder, and a user who has allowed nothing."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "user"))
    return folder


def write_profile(folder: Path, body: str, name: str = "p", file: str = "p.xml") -> Path:
    path = folder / "handlers" / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f'<handler name="{name}"><description>d</description>{body}</handler>', encoding="utf-8"
    )
    return path


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_profile_of_a_project_is_used_only_after_the_user_has_allowed_it(
    claim: str, project: Path
) -> None:
    write_profile(project, claim)
    profiles = load_profiles()
    assert "p" not in profiles
    with pytest.raises(ConfigurationError) as caught:
        profile_named(profiles, "p")
    assert CLAIMS[claim] in str(caught.value)
    assert "evaluator trust" in str(caught.value) and "--trust" in str(caught.value)
    with pytest.raises(ConfigurationError, match="evaluator trust"):
        Evaluator(handler="p", tasks_dir=None)
    # Controls: allowed here, allowed and remembered, or the caller's own choice.
    assert "p" in load_profiles(trust=True)
    assert "p" in load_profiles("handlers")
    trust.allow(files_of_profiles(project))
    assert "p" in load_profiles()


def test_the_docs_name_every_tool_that_needs_a_permission() -> None:
    names = [name for name in (*builtin_tools().names(), *OF_TASK_TOOLS) if controls_of(name)]
    assert set(names) >= {"run_script", "bash", "start_script", "computer"}
    page = (Path(__file__).parents[2] / "docs/reference/handlers.md").read_text(encoding="utf-8")
    listed = page.partition("- a program: ")[2].partition("\n- ")[0]
    missing = [name for name in names if f"`{name}`" not in listed]
    assert not missing, "list it in docs/reference/handlers.md, section Profiles of a project"


def test_control_a_profile_that_names_none_of_these_needs_no_permission(project: Path) -> None:
    write_profile(
        project,
        '<model>openai/gpt-x</model><roots><root path="data"/></roots>'
        '<tools><tool name="run_script"/><tool name="read_file" policy="allow"/></tools>',
    )
    assert "p" in load_profiles()


def test_a_permission_is_for_one_content_of_one_file_in_one_project(
    project: Path, tmp_path: Path
) -> None:
    path = write_profile(project, "<base_url>https://a.example</base_url>")
    trust.allow(files_of_profiles(project))
    assert "p" in load_profiles()
    path.write_text(path.read_text().replace("a.example", "b.example"))
    assert "p" not in load_profiles()
    path.write_text(path.read_text().replace("b.example", "a.example"))
    assert "p" in load_profiles()
    path.rename(path.with_name("q.xml"))
    assert "p" not in load_profiles()


def test_a_copy_of_an_allowed_project_is_not_allowed(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(project, "<base_url>https://a.example</base_url>")
    trust.allow(files_of_profiles(project))
    copy = tmp_path / "copy"
    copy.mkdir()
    write_profile(copy, "<base_url>https://a.example</base_url>")
    monkeypatch.chdir(copy)
    assert "p" not in load_profiles()


@pytest.mark.parametrize(
    ("folder", "allowed"), [("project", True), (".", True), ("proj", False), ("other", False)]
)
def test_the_environment_trusts_folders_and_what_is_below_them(
    folder: str, allowed: bool, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(project, "<base_url>https://a.example</base_url>")
    monkeypatch.setenv("EVALUATOR_TRUST", f"/nowhere:{tmp_path / folder}")
    assert ("p" in load_profiles()) is allowed


def test_a_removed_permission_is_gone(project: Path) -> None:
    write_profile(project, "<base_url>https://a.example</base_url>")
    trust.allow(files_of_profiles(project))
    assert [file.file for file in trust.forget(project)] == ["handlers/p.xml"]
    assert "p" not in load_profiles()


def test_permissions_are_private_and_those_that_others_can_change_are_not_read(
    project: Path, tmp_path: Path
) -> None:
    write_profile(project, "<base_url>https://a.example</base_url>")
    trust.allow(files_of_profiles(project))
    path = tmp_path / "user" / "trust.json"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o666)
    with pytest.raises(ConfigurationError, match="others can change this file"):
        load_profiles()
    path.rename(tmp_path / "moved.json")
    path.symlink_to(tmp_path / "moved.json")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_profiles()


def test_tasks_cannot_change_permissions(project: Path, tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "trust.json").write_text("{}")
    (tmp_path / "other.json").write_text("{}")
    files = Evaluator(handler="offline", tasks_dir=None, roots=[tmp_path]).services.files
    assert files.read_bytes("other.json") == b"{}"
    with pytest.raises(Exception, match="belongs to the program itself"):
        files.read_bytes("user/trust.json")
    assert FileAccess([tmp_path]).read_bytes("user/trust.json") == b"{}", "the control"


@pytest.mark.parametrize("file", ["default.xml", "other.xml"])
def test_a_profile_that_hides_the_shipped_default_is_not_used_silently(
    file: str, project: Path
) -> None:
    write_profile(project, "<base_url>https://evil.example</base_url>", "default", file)
    with pytest.raises(ConfigurationError, match=r"evil\.example"):
        Evaluator(tasks_dir=None)
    write_profile(project, "<system>Be brief.</system>", "default", file)
    said: list[str] = []
    assert (
        Evaluator(tasks_dir=None, notice=said.append).services.default_profile.system == "Be brief."
    )
    assert said == [f"the profile 'default' is that of handlers/{file}, not the shipped one"]


def test_control_in_a_checkout_of_evaluator_its_own_profiles_need_no_permission(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(shipped("handlers").parent)
    profiles = load_profiles()
    assert "openai" in profiles and not profiles.untrusted and not profiles.replacing


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer() as server:
        yield server


def test_a_template_does_not_reach_a_profile_that_is_not_allowed(
    project: Path, server: LoopbackServer
) -> None:
    write_profile(project, f"<model>m</model><base_url>{server.base_url}</base_url>")
    library = TemplateLibrary()
    library.add(
        '<task name="t" type="atomic"><description>d</description><handler ref="p"/></task>'
    )
    outcome = Evaluator(library, tasks_dir=None).evaluate_sync("t")
    assert isinstance(outcome, TaskError)
    assert isinstance(outcome.cause, ConfigurationError) and "evaluator trust" in outcome.message
    assert server.posts == 0
    assert Evaluator(library, tasks_dir=None, trust=True).evaluate_sync("t").ok
    assert server.posts == 1
    # A profile that a Python caller makes is this person's own.
    own = HandlerConfig(
        name="own", model="m", base_url=server.base_url, backend="openai_compatible"
    )
    assert Evaluator(library, own, tasks_dir=None).evaluate_sync("t").ok
    assert server.posts == 2


# -- commands -------------------------------------------------------------------------------------------------------

TEMPLATE = '<task name="t" type="atomic"><description>Say yes</description><instructions>{{ q }}</instructions></task>'
CODE = "import pathlib\npathlib.Path(__file__).with_name('MARK').touch()\n\ndef same(output, target):\n    return True\n"


@pytest.fixture
def evaluator(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`evaluator(*arguments)`: exit code, standard output and error of a command, without a terminal."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run


@pytest.fixture
def files(project: Path, server: LoopbackServer) -> Path:
    """A project with a template, rows, code, a definition that names the code, and a profile that names a host."""
    (project / "templates").mkdir()
    (project / "templates" / "t.xml").write_text(TEMPLATE.replace("{{ q }}", "Say yes"))
    (project / "rows.jsonl").write_text('{"id": "a", "q": "1"}\n{"id": "b", "q": "2"}\n')
    (project / "score.py").write_text(CODE)
    (project / "evaluator.toml").write_text(
        'template = "t"\nrows = "rows.jsonl"\nhandlers = ["p"]\noutput = "b"\nscorers = ["score.py:same"]\n'
    )
    write_profile(project, f"<model>m</model><base_url>{server.base_url}</base_url>")
    return project


def test_without_a_terminal_a_command_says_what_to_do(
    evaluator: Any, files: Path, server: LoopbackServer, tmp_path: Path
) -> None:
    run = ("run", "--template", "t", "--handler", "p", "--tasks", tmp_path / "tasks")
    code, _, err = evaluator(*run)
    assert code == 3 and server.posts == 0
    assert f"the host of {server.base_url}" in err and "evaluator trust" in err
    assert evaluator(*run, "--trust")[0] == 0
    # It is remembered, shown and taken back.
    assert evaluator(*run)[0] == 0
    assert server.posts == 2
    _, out, _ = evaluator("trust", "--list")
    assert f"{files}/handlers/p.xml names:" in out
    assert evaluator("trust", "--remove")[0] == 0
    assert evaluator(*run)[0] == 3
    assert server.posts == 2


def test_the_command_trust_allows_profiles_and_definitions(evaluator: Any, files: Path) -> None:
    code, out, _ = evaluator("trust", files, "--json")
    assert code == 0
    assert [(entry["file"], len(entry["names"])) for entry in json.loads(out)] == [
        ("handlers/p.xml", 1),
        ("evaluator.toml", 1),
        ("score.py", 1),
    ]
    assert evaluator("handlers")[0] == 0


def test_the_command_trust_says_which_profile_cannot_be_used(evaluator: Any, project: Path) -> None:
    write_profile(project, "<limits><timeout>3</timeout></limits>")
    assert "handlers/p.xml:1:" in evaluator("trust")[2]
    write_profile(project, '<limits timeout="3"/>')
    assert "handlers/p.xml" not in evaluator("trust")[2]


def test_a_definition_that_names_code_needs_permission(
    evaluator: Any, files: Path, server: LoopbackServer
) -> None:
    code, _, err = evaluator("batch")
    assert code == 3 and "the code score.py:same" in err
    assert not (files / "MARK").exists() and server.posts == 0
    assert evaluator("batch", "--dry-run")[0] == 0
    assert not (files / "MARK").exists() and server.posts == 0
    assert evaluator("batch", "--trust")[0] == 0
    assert (files / "MARK").exists() and server.posts == 2


def test_a_folder_of_somebody_else_is_data(
    evaluator: Any,
    files: Path,
    server: LoopbackServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert evaluator("batch", "--limit", "1", "--trust")[0] == 0
    batch = (files / "b").rename(tmp_path / "b")
    (files / "MARK").unlink()
    here = tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)
    folder = BatchFolder.reader(batch)
    own = json.dumps(folder.manifest())
    for change in (
        lambda manifest: manifest.pop("signature"),
        lambda manifest: manifest.update(signature="0" * 64),
        lambda manifest: manifest.update(signature=7),
        lambda manifest: manifest["arguments"].update(scorers=["evil.py:same"]),
        lambda manifest: manifest.update(cwd=str(files / "templates")),
        lambda manifest: manifest["arguments"].update(roots=["/"]),
    ):
        manifest = json.loads(own)
        change(manifest)
        folder.write_manifest(manifest)
        for options in ((), ("--dry-run",), ("--root", ".")):
            code, _, err = evaluator("batch", "--resume", batch, "--limit", "2", *options)
            assert code == 3, err
            assert (
                "where the batch continues" in err and ".py:same, which is run as a scorer" in err
            )
            assert Path.cwd() == here
    assert not list(tmp_path.rglob("MARK")) and server.posts == 1
    # Controls: one's own folder, from elsewhere and after a move; and that of somebody else, once it is allowed.
    folder.write_manifest(json.loads(own))
    assert evaluator("batch", "--resume", batch, "--limit", "2", "--dry-run")[0] == 0
    assert not list(tmp_path.rglob("MARK"))
    monkeypatch.chdir(here)
    manifest = json.loads(own)
    del manifest["signature"]
    folder.write_manifest(manifest)
    assert evaluator("trust", batch)[0] == 0
    code, _, err = evaluator("batch", "--resume", batch, "--limit", "2")
    assert code == 0, err
    assert server.posts == 2


def test_a_signature_is_of_this_user_and_of_this_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.jsonl").write_text("{}")
    (tmp_path / "d.toml").write_text('template = "t"\nrows = "rows.jsonl"\nscorers = ["a.py:b"]')
    definition, claims = read_with_claims(tmp_path / "d.toml", tmp_path)
    assert claims[0].names
    manifest = sign({"cwd": "/elsewhere", "arguments": definition.to_dict()})

    def names(manifest: dict[str, Any]) -> tuple[str, ...]:
        return claims_of_manifest(tmp_path, manifest, definition)[0].names

    assert not names(manifest)
    assert names({**manifest, "cwd": "/other"})
    assert names({**manifest, "code": {"a.py": "0"}})
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "another"))
    assert names(manifest)


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 3)])
def test_at_a_terminal_the_user_is_asked(
    answer: str, code: int, files: Path, server: LoopbackServer
) -> None:
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "evaluator", "run", "--template", "t", "--handler", "p"],
        cwd=files,
        stdin=terminal,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        env={**os.environ, "COLUMNS": "100"},
    )
    os.close(terminal)
    os.write(controller, f"{answer}\n".encode())
    shown = b""
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # the process has ended
            break
        if not piece:
            break
        shown += piece
    os.close(controller)
    assert process.wait(200) == code, shown
    assert b"names:" in shown and b"Allow this, until the files change? [y/N]" in shown
    assert server.posts == (1 if code == 0 else 0)


NODE = """<task name="n" type="sequential"><description>d</description><steps>
<task name="a" type="atomic"><description>ask</description></task>
<task name="b" type="script"><description>mark</description><command>touch MARK</command></task>
</steps></task>"""


@pytest.mark.parametrize(
    ("is_own", "options", "runs"),
    [
        (False, {}, False),
        (True, {}, True),
        (False, {"trust": True}, True),
    ],
)
def test_a_task_in_a_task_file_of_somebody_else_is_not_run(
    is_own: bool,
    options: dict[str, Any],
    runs: bool,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = TemplateLibrary()
    library.add(NODE)
    config = HandlerConfig(backend="simulated", backoff_s=())
    failed = Evaluator(TemplateLibrary(), config, backend=SimulatedBackend(fail=1.0)).evaluate_sync(
        library.get("n").node
    )
    assert isinstance(failed, TaskError) and failed.task_id is not None
    if not is_own:
        monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(project / "another-user"))
    again = Evaluator(TemplateLibrary(), config, backend=SimulatedBackend(), **options)
    outcome = again.resume_sync(failed.task_id)
    assert (outcome.ok, (project / "MARK").exists()) == (runs, runs), outcome
    if not runs:
        assert isinstance(outcome, TaskError) and "no program of yours wrote" in outcome.message
