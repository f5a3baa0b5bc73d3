"""What a script in a sandbox writes is never run or believed afterwards, and it keeps no place to write to.

Each attempt is one shell command of a script in bubblewrap that may write to the first root.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from evaluator import HandlerConfig, Sandbox, ToolError
from evaluator.handler.profiles import names_of
from evaluator.processes.script_folders import (
    ReservedNames,
    TemporaryFolder,
    is_placeholder,
    protected_paths,
    remove_leftovers,
)
from evaluator.processes.scripts import ScriptResult, run_script
from evaluator.tools import FileAccess
from evaluator.tools.searching import search_files
from tests.sandboxes import require_bubblewrap

FILES = {
    "evaluator.toml": 'template = "t"',
    "scorers.py": "def score(): ...",
    "other.toml": 'template = "t"',
    ".env": "KEY=very-secret-value",
    "templates/t.xml": "<task/>",
    "nested/batch.toml": 'template = "t"',
    "nested/grade.py": "def grade(): ...",
    "nested/conftest.py": "",
    "nested/deep/templates.toml": "",
    "repository/.git/config": "[core]",
    "queue/queue.sqlite": "rows",
    "queue/task-queue.json": "{}",
    "results/manifest.json": '{"crc32": "00000000"}',
    "results/results.jsonl": "{}",
    "venv/pyvenv.cfg": "",
    "venv/lib/module.py": "",
    "records/TASK-1.md": "# Task",
    "code/program.py": "old",
    "web/manifest.json": '{"name": "app"}',
}
OUTSIDERS = ("handlers/evil.xml", "conftest.py", ".git/hooks/pre-commit", "schemas/task.xsd")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def run(command: str, sandbox: Sandbox, cwd: Path) -> ScriptResult:
    return asyncio.run(run_script(command, timeout_s=100, cwd=cwd, sandbox=sandbox))


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_a_script_works_in_a_folder_of_its_own_that_is_removed(project: Path) -> None:
    sandbox = require_bubblewrap()
    result = run(
        'pwd; echo x > new && cat new; cat "$EVALUATOR_ROOT/code/program.py"; cat "$EVALUATOR_ROOT/.env"; '
        'echo x > "$EVALUATOR_ROOT/code/program.py" || echo refused',
        sandbox,
        project,
    )
    assert result.stdout == "/evaluator-work\nx\noldrefused\n"
    assert contents(project) == FILES
    assert run("ls -A", sandbox, project).stdout == ""  # another script, another folder


def test_a_script_in_the_root_changes_nothing_that_is_run_or_believed(project: Path) -> None:
    sandbox = replace(require_bubblewrap(), folder="root")
    (project / "handlers").mkdir()
    (project / "handlers" / "mine.xml").write_text("<handler/>")
    before = contents(project)
    protected = [name for name in before if not name.startswith(("code/", "web/"))]
    attempts = [
        *(f"echo evil > {name}" for name in (*protected, *OUTSIDERS)),
        *(f"rm -rf {name} && echo evil > {name}" for name in protected),
        *(
            f"mv {name} {name}2 && mkdir {name}"
            for name in ("nested", "nested/deep", "repository", "results", "queue", "handlers")
        ),
        "ln -sf ../code handlers/link",
        "echo evil > queue/new.sqlite; echo evil > results/new.jsonl; echo evil > venv/lib/new.pth",
    ]
    result = run("\n".join(f"({attempt}) 2>/dev/null" for attempt in attempts), sandbox, project)
    assert result.exit_code is not None
    assert contents(project) == before
    assert "secret" not in run("cat .env", sandbox, project).stdout
    control = "echo new > code/program.py; echo new > web/manifest.json; mkdir -p build; echo new > build/file"
    run(control, sandbox, project)
    changed = {name: text for name, text in contents(project).items() if before.get(name) != text}
    assert changed == dict.fromkeys(("code/program.py", "web/manifest.json", "build/file"), "new\n")


def test_the_placeholders_of_a_killed_script_are_removed_by_the_next_one(tmp_path: Path) -> None:
    killed = ReservedNames(tmp_path)
    other = ReservedNames(tmp_path)
    other.release()
    assert is_placeholder(tmp_path / "conftest.py")  # the first script still works there
    os.close(killed._descriptor)  # as if it was killed
    last = ReservedNames(tmp_path)
    (tmp_path / "handlers" / "mine.xml").write_text("<handler/>")
    (tmp_path / "evaluator.toml").write_text("rows = 1")
    last.release()
    assert contents(tmp_path) == {"handlers/mine.xml": "<handler/>", "evaluator.toml": "rows = 1"}


def test_a_link_that_cannot_be_protected_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    root = tmp_path / "root"
    root.mkdir()
    assert protected_paths(root) == []  # the control
    (root / "templates").symlink_to(tmp_path / "real")
    with pytest.raises(ToolError, match="templates is a link, which a sandbox cannot protect"):
        run("true", replace(require_bubblewrap(), folder="root"), root)


def test_a_profile_of_a_project_needs_permission_to_give_scripts_its_folder() -> None:
    def named(folder: str) -> tuple[str, ...]:
        return names_of(HandlerConfig(sandbox=Sandbox("bubblewrap", folder=folder)), ".")

    assert named("fresh") == ()
    assert named("root") == ("the first root, which scripts in the sandbox may change",)


# -- what is left ------------------------------------------------------------------------------------------------------


def test_a_folder_that_a_killed_process_left_is_removed_and_one_in_use_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from evaluator.processes.script_folders import TemporaryFolder\n"
        "print(TemporaryFolder().path, flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    left = Path(process.stdout.readline().strip())
    (left / "work").mkdir()
    (left / "work" / "file").write_text("x")
    used = TemporaryFolder()
    remove_leftovers()
    assert left.exists()  # its process lives
    process.send_signal(signal.SIGKILL)
    process.communicate()
    remove_leftovers()
    assert not left.exists()
    assert used.path.exists()
    used.remove()
    assert not used.path.exists()


def test_a_folder_is_removed_whatever_a_script_did_in_it(project: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(project.parent))
    program = (
        "import os\nos.makedirs('closed/inner'); open('closed/inner/f', 'w').close(); os.chmod('closed', 0)\n"
        "os.symlink(os.environ['EVALUATOR_ROOT'], 'link')\n"
        "for _ in range(3000):\n    os.mkdir('d'); os.chdir('d')"
    )
    argv = ["python3", "-I", "-c", program]
    result = asyncio.run(run_script(argv, timeout_s=100, cwd=project, sandbox=require_bubblewrap()))
    assert result.exit_code == 0, result.stderr
    assert [path.name for path in project.parent.iterdir()] == ["project"]
    assert contents(project) == FILES


# -- what a script leaves for those who read its files -----------------------------------------------------------------

TRAPS = """
import os
with open("sparse.txt", "wb") as file:
    file.truncate(100 << 30)
os.symlink(os.environ["OUTSIDE"] + "/secret.txt", "link.txt")
os.symlink("/dev/zero", "endless.txt")
os.symlink(os.environ["OUTSIDE"], "folder")
os.mkfifo("pipe.txt")
open("honest.txt", "w").write("honest")
"""


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A folder in which a script in a sandbox has left files that are not what they seem."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("very-secret")
    sandbox = replace(require_bubblewrap(), folder="root")
    argv = ["python3", "-I", "-c", TRAPS]
    ended = asyncio.run(
        run_script(
            argv, timeout_s=100, cwd=root, sandbox=sandbox, env={"OUTSIDE": str(outside), **PATH}
        )
    )
    assert ended.exit_code == 0, ended.stderr
    return root


PATH = {"PATH": os.environ["PATH"]}
REFUSED = {
    "sparse.txt": "is too large: 107,374,182,400 bytes, at most 10,000,000 are read",
    "link.txt": "link",
    "endless.txt": "link",
    "folder/secret.txt": "link",
    "pipe.txt": "not a regular file",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_trap_of_a_script_is_refused_with_its_reason(trapped: Path, name: str) -> None:
    files = FileAccess([trapped])
    assert files.read_text("honest.txt").text == "honest"  # the control
    with pytest.raises(ToolError, match=re.escape(REFUSED[name])):
        files.read_bytes(name)
    assert "very-secret" not in str(asyncio.run(search_files(files, "secret")))


def test_a_task_names_the_traps_among_its_files_in_a_warning(trapped: Path, make_evaluator) -> None:
    paths = "".join(f"<path>{name}</path>" for name in ("honest.txt", *REFUSED))
    xml = f"""<task name="t" type="atomic"><description>d</description><instructions>go</instructions>
    <file_paths source="literal">{paths}</file_paths></task>"""
    seen: list[str] = []

    def answer(request):
        seen.append(str(request))
        return "done"

    result = make_evaluator(xml, script=answer, roots=[trapped]).evaluate_sync("t").unwrap()
    assert "honest" in seen[0] and "very-secret" not in seen[0]
    warnings = "\n".join(result.notes["warnings"])
    assert all(name in warnings for name in REFUSED)


def test_a_deliverable_that_is_a_trap_is_not_read(trapped: Path) -> None:
    files = FileAccess([trapped])
    assert files.path_of("honest.txt")  # the control
    for name in ("link.txt", "endless.txt", "folder/secret.txt"):
        with pytest.raises(ToolError, match="link"):
            files.path_of(name)
