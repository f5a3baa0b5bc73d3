"""Task lists: the next step, the owner, and that no change is lost or leaves its folder."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from evaluator import RecordError, TaskStore, UsageError
from evaluator.record import task_lists
from evaluator.record.task_list_outline import read_outline
from evaluator.record.task_lists import MAX_BYTES, TaskLists
from tests.leftovers import descriptors
from tests.record.task_list_texts import PLAN

DAY = date(2026, 3, 2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "tasks"


@pytest.fixture
def tasks(root: Path) -> TaskLists:
    return TaskLists(root)


def test_the_first_incomplete_step_has_its_line_section_and_role(tasks: TaskLists) -> None:
    task = tasks.create("move", PLAN, today=DAY)
    assert (task.name, task.done, task.total) == ("2026-03-02-move", 1, 6)
    assert str(task.next_step()) == "line 8 [PLANNER] Preparation: Choose a day"
    # A role's next step is one that it does, or that any role does.
    assert str(task.next_step("worker")) == "line 18 [WORKER] Move: Copy"
    assert str(task.next_step("reviewer")) == "line 23 Notes: Tell the others"
    [listed] = tasks.list_active()
    assert listed == task == tasks.read("2026-03-02-move.md")


def test_the_role_that_creates_a_task_owns_all_of_it_and_other_roles_read_it(
    tasks: TaskLists,
) -> None:
    made = tasks.create("move", PLAN, role="planner", today=DAY)
    assert made.content == PLAN.replace(
        "# Move the archive\n", "# Move the archive\n\n- **Owner**: planner\n", 1
    )
    assert (made.owner, tasks.read("move")) == ("planner", made)
    # The owner changes the part of the worker too, and ticks its steps.
    filled = made.content.replace("1. [ ] Copy\n", "1. [x] Copy all of it\n").replace(
        "### Risks", "### [TESTS]"
    )
    changed = tasks.update("move", filled, role="PLANNER", if_unchanged=made.version)
    assert (changed.content, changed.done) == (filled, 2)
    for refused in (
        lambda: tasks.update("move", filled + "more", role="worker", if_unchanged=changed.version),
        lambda: tasks.close("move", role="worker", force=True),
    ):
        with pytest.raises(
            UsageError,
            match="belongs to planner, which alone changes it; as worker you may read it",
        ):
            refused()
    assert tasks.read("move") == changed
    tasks.update("move", PLAN.replace("[ ]", "[x]"))  # a person may
    assert tasks.close("move").done == 6


def test_an_owner_stays_the_owner(tasks: TaskLists) -> None:
    made = tasks.create("move", PLAN, role="planner", today=DAY)
    kept = tasks.update("move", PLAN, role="planner", if_unchanged=made.version)
    assert kept.owner == "planner"
    given_away = PLAN.replace("For everybody.", "Owner: worker")
    with pytest.raises(UsageError, match="names worker as its owner, which is planner"):
        tasks.update("move", given_away, role="planner", if_unchanged=kept.version)
    with pytest.raises(UsageError, match="names worker as its owner, which is planner"):
        tasks.create("other", given_away, role="planner", today=DAY)
    assert tasks.update("move", given_away).owner == "worker"  # a person may


def test_a_task_without_an_owner_is_changed_by_any_role_and_stays_without(tasks: TaskLists) -> None:
    made = tasks.create("move", PLAN, today=DAY)
    changed = tasks.update(
        "move", PLAN.replace("1. [ ]", "1. [x]"), role="worker", if_unchanged=made.version
    )
    assert changed.owner is None
    with pytest.raises(UsageError, match="names worker as its owner, which is nobody"):
        tasks.update("move", "Owner: worker\n" + PLAN, role="worker", if_unchanged=changed.version)


# name, what the error says
NAMES: list[tuple[object, str]] = [
    *[
        (name, "expected YYYY-MM-DD-name")
        for name in (
            "",
            ".",
            "..",
            "../x",
            "/etc/passwd",
            "a/b",
            "a\\b",
            "A",
            "a b",
            "-a",
            "a.md.md",
            "a\0",
            "a\n",
            "é",
            "\ud800",
            "2026-03-02",
            "2026-03-02-",
            "2026-13-02-a",
            "2026-02-30-a",
            "2026-03-02-../a",
            "2026-03-02-A",
            "x" * 101,
            "2026-03-02-" + "x" * 101,
            "٢٠٢٦-03-02-a",
            ".hidden",
            None,
            3,
            b"a",
        )
    ],
    ("TASK-3", "file of a run"),
    ("task-3.md", "file of a run"),
]


@pytest.mark.parametrize(("name", "says"), NAMES, ids=repr)
def test_an_invalid_name_is_refused_by_every_call(
    tasks: TaskLists, root: Path, name: str, says: str
) -> None:
    tasks.create("there", "- [x] a", today=DAY)
    for call in (
        lambda: tasks.create(name, "text"),
        lambda: tasks.read(name),
        lambda: tasks.update(name, "text"),
        lambda: tasks.close(name),
    ):
        with pytest.raises(UsageError, match=says):
            call()
    files = sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())
    assert files == [
        ".gitignore",
        ".named-lock",
        "active/.gitkeep",
        "active/2026-03-02-there.md",
        "done/.gitkeep",
    ]


def test_a_name_without_a_date_is_the_one_active_task_of_that_name(tasks: TaskLists) -> None:
    tasks.create("fix", "- [x] a", today=DAY)
    tasks.create("2026-03-03-fix", "- [ ] b")
    with pytest.raises(
        UsageError,
        match="2 active tasks are called 'fix'; name one: 2026-03-02-fix, 2026-03-03-fix",
    ):
        tasks.read("fix")
    tasks.close("2026-03-02-fix")
    assert tasks.read("fix").name == "2026-03-03-fix"
    assert tasks.read("2026-03-02-fix").state == "done"
    with pytest.raises(RecordError, match="no active task is called 'other'"):
        tasks.read("other")
    with pytest.raises(RecordError, match="there is no task '2026-03-02-other'"):
        tasks.close("2026-03-02-other")


def test_nothing_is_made_by_reading(tasks: TaskLists, root: Path) -> None:
    assert tasks.list_active() == []
    for call in (tasks.read, tasks.close, lambda name: tasks.update(name, "x")):
        with pytest.raises(RecordError, match="there is no task"):
            call("2026-03-02-a")
    assert not root.exists()


def test_no_file_takes_the_place_of_another(tasks: TaskLists, root: Path) -> None:
    tasks.create("a", "- [x] first", today=DAY)
    with pytest.raises(UsageError, match="already, in active/"):
        tasks.create("a", "second", today=DAY)
    tasks.close("a")
    with pytest.raises(UsageError, match="already, in done/"):
        tasks.create("a", "second", today=DAY)
    (root / "active" / "2026-03-02-a.md").write_text("put there by hand\n")
    with pytest.raises(UsageError, match="done/ has a task of that name"):
        tasks.close("a")
    assert (root / "done" / "2026-03-02-a.md").read_text() == "- [x] first\n"
    (root / "active" / "2026-03-02-b.md").symlink_to("nowhere")
    with pytest.raises(UsageError, match="already, in active/"):
        tasks.create("b", "second", today=DAY)


def test_a_task_with_open_steps_is_closed_by_force_only_and_the_open_ones_are_named(
    tasks: TaskLists,
) -> None:
    tasks.create("move", PLAN, today=DAY)
    opened = r"line 8 \[PLANNER\] Preparation: Choose a day; line 12 .*; line 18 .*; line 19 .*; line 23 Notes: Tell the"
    with pytest.raises(UsageError, match=f"5 steps are open: {opened}"):
        tasks.close("move")
    tasks.create("many", "- [ ] a\n" * 7, today=DAY)
    with pytest.raises(UsageError, match=r"line 5: a; and 2 more$"):
        tasks.close("many")
    tasks.close("many", force=True)
    closed = tasks.close("move", force=True)
    assert (closed.state, closed.path.exists(), tasks.list_active()) == ("done", True, [])
    with pytest.raises(RecordError, match="closed and cannot be changed"):
        tasks.update(closed.name, "x")


def test_the_folders_last_in_a_repository_and_nothing_of_this_machine_shows_there(
    tasks: TaskLists, root: Path
) -> None:
    store = TaskStore(root)
    tasks.create("a", "- [x] a", today=DAY)
    store.create("run").abandon()
    subprocess.run(["git", "init", "-q", root.parent], check=True)
    git = ["git", "-C", str(root), "status", "--porcelain", "--untracked-files=all"]
    shown = subprocess.run(git, check=True, capture_output=True, text=True).stdout.split()[1::2]
    assert sorted(path.removeprefix("tasks/") for path in shown) == [
        "active/.gitkeep",
        "active/2026-03-02-a.md",
        "active/TASK-1.md",
        "done/.gitkeep",
    ]
    (root / "done" / ".gitkeep").unlink()
    tasks.create("b", "b", today=DAY)
    assert (root / "done" / ".gitkeep").read_bytes() == b""


def test_a_change_in_a_role_needs_the_version_it_is_based_on(tasks: TaskLists) -> None:
    read = tasks.create("move", PLAN, today=DAY)
    with pytest.raises(UsageError, match="needs the version"):
        tasks.update("move", PLAN, role="worker")
    with pytest.raises(UsageError, match="role is empty"):
        tasks.update("move", PLAN, role=" ", if_unchanged=read.version)
    tasks.update("move", PLAN.replace("1. [ ]", "1. [x]"), role="worker", if_unchanged=read.version)
    for role in ("worker", "planner", None):
        with pytest.raises(
            RecordError, match=f"changed since it was read: .* not '{read.version}'"
        ):
            tasks.update("move", PLAN, role=role, if_unchanged=read.version)
    assert tasks.read("move").done == 2


ADDING = """
import sys
from evaluator.errors import RecordError
from evaluator.record.task_lists import TaskLists
tasks, me = TaskLists(sys.argv[1]), sys.argv[2]
print("ready", flush=True)
sys.stdin.readline()
for n in range(20):
    while True:
        task = tasks.read("shared")
        try:
            tasks.update("shared", f"{task.content}- [x] {me} {n}\\n", role=me, if_unchanged=task.version)
            break
        except RecordError as error:
            assert "changed since" in str(error), error
"""


def test_processes_that_change_a_task_at_once_lose_nothing(tasks: TaskLists, root: Path) -> None:
    tasks.create("shared", "- [ ] begin", today=DAY)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", ADDING, str(root), f"r{n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(4)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            child.communicate("go\n")
            assert child.returncode == 0
    finally:
        for child in children:
            child.kill()
            child.wait()
    steps = [step.text for step in tasks.read("shared").outline.steps]
    assert sorted(steps) == sorted(["begin", *(f"r{n} {k}" for n in range(4) for k in range(20))])
    assert [p.name for p in (root / "active").glob("[!.]*")] == ["2026-03-02-shared.md"]


def test_others_are_locked_out_while_a_change_is_checked_and_written(
    tasks: TaskLists, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.create("a", "- [x] a", today=DAY)
    refused: list[str] = []
    read = TaskLists._read

    def read_and_try(self: TaskLists, *args: Any, **options: Any) -> Any:
        with open(root / ".named-lock") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refused.append(args[1])
        return read(self, *args, **options)

    monkeypatch.setattr(TaskLists, "_read", read_and_try)
    tasks.update("a", "- [x] b")
    tasks.close("a")
    assert refused == ["2026-03-02-a"] * 2


def test_a_file_that_an_editor_makes_meanwhile_is_not_replaced(
    tasks: TaskLists, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tasks.create("a", "by an editor", today=DAY).path
    monkeypatch.setattr(task_lists, "_exists", lambda *_: False)
    with pytest.raises(RecordError, match="cannot write the task: File exists"):
        tasks.create("a", "other", today=DAY)
    assert path.read_text() == "by an editor\n"
    assert [p.name for p in path.parent.glob("[!.]*")] == [path.name]


BAD: list[tuple[str, str]] = [
    ("", "is empty"),
    ("\ufeff \n\t", "is empty"),
    ("a\nb\0", "line 2 of the text has a NUL"),
    ("a\n\nb\ud800", "line 3 of the text has half a surrogate pair"),
    ("é" * 2_500_000, "5,000,001 bytes, more than 1,000,000"),
]


@pytest.mark.parametrize(("content", "says"), BAD, ids=[says for _, says in BAD])
def test_content_that_is_not_text_is_refused_before_anything_is_written(
    tasks: TaskLists, content: str, says: str
) -> None:
    before = tasks.create("a", "text", today=DAY)
    for call in (lambda: tasks.create("b", content), lambda: tasks.update("a", content)):
        with pytest.raises(UsageError, match=says):
            call()
    assert tasks.list_active() == [before]


def test_line_ends_are_written_as_line_feeds_and_do_not_change_a_section(tasks: TaskLists) -> None:
    path = tasks.create("a", "x", today=DAY).path
    path.write_bytes(b"\xef\xbb\xbf## [B] b\r\n\r\ntext\r\r\n## [A] a\r\n- [ ] s")
    read = tasks.read("a")
    assert read.content == "## [B] b\n\ntext\n\n## [A] a\n- [ ] s"
    assert str(read.next_step()) == "line 6 [A] a: s"
    tasks.update(
        "a", "## [B] b\r\n\r\ntext\r\n## [A] a\n- [x] s", role="a", if_unchanged=read.version
    )
    assert path.read_bytes() == b"## [B] b\n\ntext\n## [A] a\n- [x] s\n"


def test_a_text_of_the_full_size_is_read_at_once(tasks: TaskLists) -> None:
    for line in ("- [ ] a\n", "## [B] " + "#" * 93 + "\n", "`"):
        text = (line * (MAX_BYTES // len(line)))[: MAX_BYTES - 2] + "x\n"
        read_outline(text)
    assert tasks.create("big", text, today=DAY).content == text


# what lies at the file's place, made by hand → what reading it says
PLACES: list[tuple[str, str]] = [
    ("link", "it is a link, and links are never followed"),
    ("folder", "Is a directory"),
    ("pipe", "not a regular file"),
    ("latin", "not UTF-8 (byte 3)"),
    ("nul", "has a NUL (byte 1)"),
    ("large", "larger than 1,000,000 bytes"),
]


@pytest.mark.parametrize(("kind", "says"), PLACES)
def test_an_unreadable_file_is_listed_with_its_error(
    tasks: TaskLists, root: Path, tmp_path: Path, kind: str, says: str
) -> None:
    tasks.create("good", "- [ ] a", today=DAY)
    path = root / "active" / "2026-03-02-bad.md"
    secret = tmp_path / "secret"
    secret.write_text("secret")
    makers = {
        "link": lambda: path.symlink_to(secret),
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "latin": lambda: path.write_bytes(b"caf\xe9"),
        "nul": lambda: path.write_bytes(b"a\0"),
        "large": lambda: path.write_bytes(b"a" * (MAX_BYTES + 1)),
    }
    makers[kind]()
    bad, good = tasks.list_active()
    assert (good.error, bad.name, bad.total) == (None, "2026-03-02-bad", 0)
    assert bad.error is not None and says in bad.error
    for call in (tasks.read, tasks.close, lambda name: tasks.update(name, "x")):
        with pytest.raises(RecordError) as refused:
            call("bad")
        assert says in str(refused.value)
    assert secret.read_text() == "secret"


@pytest.mark.parametrize("place", ["", "active", "done"])
def test_a_folder_that_is_a_link_is_refused(
    tasks: TaskLists, root: Path, tmp_path: Path, place: str
) -> None:
    tasks.create("a", "- [x] a", today=DAY)
    moved = tmp_path / "moved"
    (root / place).rename(moved)
    (root / place).symlink_to(moved)
    for call in (
        tasks.list_active if place != "done" else lambda: tasks.read("2026-03-02-b"),
        lambda: tasks.create("b", "b"),
        lambda: tasks.update("2026-03-02-a", "b"),
        lambda: tasks.close("2026-03-02-a"),
    ):
        with pytest.raises(RecordError, match="is a link; name the folder that it leads to"):
            call()


def test_the_lock_file_is_not_followed_where_it_is_a_link(
    tasks: TaskLists, root: Path, tmp_path: Path
) -> None:
    root.mkdir()
    (root / ".named-lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="cannot be locked"):
        tasks.create("a", "a")
    assert not (tmp_path / "elsewhere").exists()


def test_files_are_0600_and_what_a_killed_process_left_does_not_matter(
    tasks: TaskLists, root: Path
) -> None:
    path = tasks.create("a", "a", today=DAY).path
    (root / "active" / ".2026-03-02-a.md.tmp").write_text("half of")
    path.chmod(0o644)
    tasks.update("a", "b")
    assert path.read_text() == "b\n"
    assert {(p.name, stat.S_IMODE(p.stat().st_mode)) for p in (root / "active").iterdir()} == {
        (path.name, 0o600),
        (".gitkeep", 0o600),
    }


def test_a_full_disk_leaves_the_old_text(tasks: TaskLists, root: Path) -> None:
    before = tasks.create("a", "short", today=DAY)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(RecordError, match="cannot write the task: File too large"):
            tasks.update("a", "long " * 1000)
        with pytest.raises(RecordError, match="cannot write the task: File too large"):
            tasks.create("b", "long " * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    assert tasks.list_active() == [before]
    assert [p.name for p in (root / "active").glob("[!.]*")] == [before.path.name]


def test_runs_and_task_lists_do_not_see_each_other(tasks: TaskLists, root: Path) -> None:
    store = TaskStore(root)
    first = store.create("run").id
    tasks.create("a", "- [ ] a", today=DAY)
    second = store.create("run").id
    assert second == first + 1
    assert [item.id for item in store.list()] == [second, first]
    assert [task.name for task in tasks.list_active()] == ["2026-03-02-a"]


def test_no_descriptor_stays_open(tasks: TaskLists) -> None:
    tasks.create("a", "- [ ] a", today=DAY)
    before = descriptors()
    for _ in range(3):
        tasks.update("a", "- [ ] b")
        tasks.list_active()
        with pytest.raises(UsageError):
            tasks.close("a")
        with pytest.raises(RecordError):
            tasks.read("2026-03-02-none")
    assert descriptors() <= before


@pytest.mark.parametrize("zone", ["UTC-14", "UTC+12"])
def test_a_new_task_gets_the_day_in_utc(
    tasks: TaskLists, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    # At any hour, one of the two zones has another day than UTC.
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        days = [datetime.now(UTC).date()]
        name = tasks.create("a", "a").name
        days.append(datetime.now(UTC).date())
    time.tzset()
    assert name in {f"{day}-a" for day in days}
