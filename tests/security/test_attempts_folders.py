"""A batch folder or a task folder of somebody else whose files are links, pipes, devices or far too large.

Each command ends with a reason, reads nothing outside of the folder, and needs little time and memory.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evaluator.batch import folder as batch_folder
from evaluator.cli import main
from tests.viewer.site import Site, visit

QUIZ = (
    '<task name="quiz" type="atomic"><description>Answer a quiz question</description>'
    '<inputs><input name="question" type="string" required="true">it</input></inputs>'
    "<instructions>{{ question }}</instructions></task>"
)
SECRET = "content-of-a-file-outside"
SPARSE_BYTES = 100 << 30
MEMORY_BYTES = 4 << 30


def link(path: Path) -> None:
    path.symlink_to(next(above for above in path.parents if (above / "secret").exists()) / "secret")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SPARSE_BYTES)


@pytest.fixture(scope="module")
def whole_batch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished batch `b` and a finished task in `tasks`."""
    root = tmp_path_factory.mktemp("batch")
    (root / "secret").write_text(SECRET)
    (root / "templates").mkdir()
    (root / "templates" / "quiz.xml").write_text(QUIZ)
    rows = [{"id": f"r{n}", "question": f"How much is {n}?", "target": "x"} for n in range(3)]
    (root / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("EVALUATOR_CONFIG_DIR", str(root / "user"))
        common = ("--template", "quiz", "--handler", "offline")
        for arguments in (
            ("batch", *common, "--rows", "rows.jsonl", "--scorer", "exact", "--output", "b"),
            ("run", *common, "--input", "question=x"),
        ):
            with pytest.raises(SystemExit) as ended:
                main(list(arguments))
            assert not ended.value.code
    return root


@pytest.fixture
def project(whole_batch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it, and a bound of this process's memory."""
    root = tmp_path / "project"
    shutil.copytree(whole_batch, root)
    monkeypatch.chdir(root)
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(root / "user"))
    monkeypatch.setattr(batch_folder, "MAX_LINE_BYTES", 1_000_000)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, limits[1]))
    yield root
    resource.setrlimit(resource.RLIMIT_AS, limits)


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], project: Path) -> Run:
    def act(*arguments: str) -> tuple[int, str]:
        os.chdir(project)  # a resumed batch changes to the folder that it was started in
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capfd.readouterr()
        assert "bug of evaluator" not in err and SECRET not in out + err, err
        return int(ended.value.code or 0), err

    return act


READERS = [
    ("summary", "b"),
    ("compare", "b", "b"),
    ("export", "b", "--format", "csv", "--output", "b.csv"),
    ("report", "b", "--output", "b.html"),
]
WRITERS = [("batch", "--resume", "b", "--trust"), ("batch", "--resume", "b", "--trust", "--repair")]
KINDS = [link, pipe, device, sparse]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["manifest.json", "results.jsonl"])
def test_a_file_of_a_batch_that_is_not_a_regular_file_is_refused(
    name: str, kind: Callable[[Path], None], project: Path, run: Run
) -> None:
    if kind is link:
        for arguments in READERS + WRITERS:
            assert run(*arguments)[0] == 0, "the control"
    (project / "b" / name).unlink()
    kind(project / "b" / name)
    for arguments in READERS + WRITERS:
        code, err = run(*arguments)
        assert code == 3 and (name in err or "not a batch" in err), (arguments, err)
    assert (project / "secret").read_text() == SECRET


@pytest.mark.parametrize("kind", [pipe, device, sparse])
@pytest.mark.parametrize("name", ["rows.jsonl", "evaluator.toml"])
def test_rows_and_definitions_without_an_end_are_refused(
    name: str, kind: Callable[[Path], None], project: Path, run: Run
) -> None:
    definition = 'template = "quiz"\nrows = "rows.jsonl"\nhandlers = ["offline"]\noutput = "new"\n'
    (project / "evaluator.toml").write_text(definition)
    original = (project / name).read_bytes()
    if kind is sparse:
        # A first part that is valid; what follows is a hole.
        os.truncate(project / name, SPARSE_BYTES)
    else:
        (project / name).unlink()
        kind(project / name)
    for arguments in (("batch", "evaluator.toml", "--dry-run"), ("batch", "evaluator.toml")):
        code, err = run(*arguments)
        assert code == 2 and name in err, (arguments, err)
        assert "not a regular file" in err or "bytes" in err
    (project / name).unlink()
    (project / name).write_bytes(original)
    assert run("batch", "evaluator.toml")[0] == 0, "the control"


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_file_that_is_not_a_regular_file_is_refused(
    kind: Callable[[Path], None], project: Path, run: Run
) -> None:
    path = project / "tasks" / "done" / "TASK-1.md"
    assert run("tasks", "show", "1")[0] == 0, "the control"
    path.unlink()
    kind(path)
    for arguments in (("show", "1"), ("resume", "1"), ("replay", "1")):
        code, err = run("tasks", *arguments)
        assert (code == 3 and "TASK-1" in err) or "no task 1" in err, (arguments, err)
    assert run("tasks", "list")[0] == 0
    assert (project / "secret").read_text() == SECRET


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["b/manifest.json", "b/results.jsonl", "b/progress.json", "tasks/done/TASK-1.md"]
)
def test_the_viewer_shows_no_file_that_is_not_a_regular_file(
    name: str, kind: Callable[[Path], None], project: Path
) -> None:
    (project / name).unlink(missing_ok=True)
    kind(project / name)

    async def steps(site: Site) -> None:
        lists = [await site.get(path) for path in ("/runs", "/batches", "/compare")]
        below = [await site.get(link) for each in lists for link in dict.fromkeys(each.links)]
        for answer in lists + below:
            assert SECRET not in answer.text and "bug of evaluator" not in answer.text

    visit(project, steps)


def test_looking_at_pages_changes_no_file(project: Path) -> None:
    """Tasks that a kill left open, a torn line, leftovers and a folder without an index stay as they are."""
    (project / "tasks" / "active" / "TASK-2.md").touch()
    (project / "tasks" / "active" / ".TASK-9.md.0.tmp").write_text("left over")
    started = (project / "tasks" / "done" / "TASK-1.md").read_bytes()
    (project / "tasks" / "active" / "TASK-3.md").write_bytes(started[: len(started) // 2])
    with (project / "b" / "results.jsonl").open("ab") as file:
        file.write(b'{"crc32":"0')

    def state() -> dict[str, tuple[int, ...]]:
        return {
            str(path): (
                found.st_ino,
                found.st_mode,
                found.st_size,
                found.st_mtime_ns,
                found.st_ctime_ns,
            )
            for path in (project, *project.rglob("*"))
            for found in [path.lstat()]
        }

    before = state()

    async def steps(site: Site) -> int:
        seen = set[str]()
        left = ["/runs", "/batches", "/compare", "/queue", "/background", "/templates"]
        while left:
            path = left.pop()
            if path.partition("#")[0] in seen or len(seen) > 150:
                continue
            seen.add(path.partition("#")[0])
            left += (await site.get(path)).links
        return len(seen)

    assert visit(project, steps) > 15
    assert state() == before
