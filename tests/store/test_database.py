"""Databases that several processes open at once: created once, never seen incomplete, no write lost."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import pytest

from evaluator import ConfigurationError, disk
from evaluator.errors import ContextError
from evaluator.memory import store
from evaluator.models import cache_store
from evaluator.store import database

PROCESSES, ROUNDS = 4, 25
ADD = {
    "index": "INSERT INTO root (place, kind, describers) VALUES (?, 'folder', 1)",
    "cache": "INSERT INTO missed VALUES (?, 1)",
}
ALL = {"index": "SELECT place FROM root ORDER BY 1", "cache": "SELECT model FROM missed ORDER BY 1"}
OF_BOTH = pytest.mark.parametrize("kind", ["index", "cache"])


def opened(kind: str, path: Path) -> sqlite3.Connection:
    return (
        store.connect(path) if kind == "index" else database.connect(path, cache_store.FORMAT, 30.0)
    )


def add(connection: sqlite3.Connection, kind: str, name: str) -> None:
    with database.transaction(connection):
        connection.execute(ADD[kind], (name,))


def held(kind: str, path: Path) -> list[str]:
    with closing(opened(kind, path)) as connection:
        return [row[0] for row in connection.execute(ALL[kind])]


class Interrupted(sqlite3.Connection):
    """Before one of its statements, something happens."""

    statements = 0
    before: tuple[int, Callable[[], None]] = (-1, lambda: None)

    def execute(self, *args: Any) -> sqlite3.Cursor:
        at, happens = self.before
        # One that writes would have to wait.
        if self.statements == at and not self.in_transaction:
            type(self).before = (-1, happens)
            happens()
        self.statements += 1
        return super().execute(*args)


@pytest.mark.parametrize("statement", range(8))
@pytest.mark.parametrize("before", ["no file", "an empty file"])
@OF_BOTH
def test_another_process_may_make_the_file_between_any_two_statements(
    kind: str, before: str, statement: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "a.db"
    if before == "an empty file":
        path.touch()
    real, others = sqlite3.connect, []

    def make_it() -> None:
        monkeypatch.setattr(sqlite3, "connect", real)
        with closing(opened(kind, path)) as other:
            add(other, kind, "another")
        others.append("another")

    monkeypatch.setattr(Interrupted, "before", (statement, make_it))
    monkeypatch.setattr(sqlite3, "connect", partial(real, factory=Interrupted))
    with closing(opened(kind, path)) as connection:
        add(connection, kind, "this")
    monkeypatch.undo()
    assert held(kind, path) == [*others, "this"]


class Uneven(sqlite3.Connection):
    """Takes its time between two statements, as a process does that has to wait for its turn of the processor."""

    def execute(self, *args: Any) -> sqlite3.Cursor:
        if random.random() < 0.5:
            time.sleep(random.random() * 0.001)
        return super().execute(*args)


def make_and_write(folder: str, kind: str, number: int, together: Any, said: Any) -> None:
    sqlite3.connect = partial(sqlite3.connect, factory=Uneven)
    random.seed(number)
    for turn in range(ROUNDS):
        try:
            together.wait(200)
            with closing(opened(kind, Path(folder, f"{turn}.db"))) as connection:
                add(connection, kind, f"process {number}")
        except BrokenBarrierError:
            break
        except Exception as error:
            said.put(f"{type(error).__name__}: {error}")
    said.put(None)


@pytest.mark.parametrize(("kind", "before"), [("index", "no file"), ("cache", "an empty file")])
def test_processes_that_make_one_file_at_the_same_moment_all_write_to_it(
    kind: str, before: str, tmp_path: Path
):
    if before == "an empty file":
        for turn in range(ROUNDS):
            (tmp_path / f"{turn}.db").touch(0o600)
    context = multiprocessing.get_context("spawn")
    together, said = context.Barrier(PROCESSES), context.Queue()
    processes = [
        context.Process(target=make_and_write, args=(str(tmp_path), kind, number, together, said))
        for number in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    errors, ended = [], 0
    while ended < PROCESSES:
        error = said.get(timeout=200)
        ended += error is None
        errors += [] if error is None else [error]
    for process in processes:
        process.join()
    assert errors == []
    for turn in range(ROUNDS):
        path = tmp_path / f"{turn}.db"
        assert held(kind, path) == [f"process {number}" for number in range(PROCESSES)]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    # Processes that close at the same moment may leave SQLite's own files; the next one to close removes them.
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{turn}.db" for turn in range(ROUNDS)
    )


OTHER = """
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_database import add, opened
with closing(opened(sys.argv[2], Path(sys.argv[3]))) as connection:
    add(connection, sys.argv[2], sys.argv[4])
"""


def in_another_process(kind: str, path: Path, name: str, code: str = OTHER) -> int:
    return subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), kind, str(path), name]
    ).returncode


@OF_BOTH
def test_opening_it_again_does_not_drop_the_locks_of_this_process(kind: str, tmp_path: Path):
    """Else another process takes itself for the last one, and unlinks the log that this one goes on writing to."""
    path = tmp_path / "a.db"
    with closing(opened(kind, path)) as first:
        add(first, kind, "1 here")
        with closing(opened(kind, path)) as second:
            assert in_another_process(kind, path, "2 there") == 0
            add(second, kind, "3 here")
        add(first, kind, "4 here")
        assert in_another_process(kind, path, "5 there") == 0
        assert [row[0] for row in first.execute(ALL[kind])][-1] == "5 there"
    assert held(kind, path) == ["1 here", "2 there", "3 here", "4 here", "5 there"]


KILLED = OTHER.replace(
    "import sys\n",
    "import os, signal, sys\nos.link = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n",
    1,
)


@OF_BOTH
def test_a_process_killed_while_it_creates_the_file_leaves_no_database(kind: str, tmp_path: Path):
    path = tmp_path / "a.db"
    assert in_another_process(kind, path, "killed", KILLED) < 0
    assert not path.exists()
    assert in_another_process(kind, path, "next") == 0
    assert held(kind, path) == ["next"]


def no_links(name: str, path: Path) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def is_there_first(kind: str) -> Callable[[str, Path], None]:
    def link(name: str, path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(name)) as made:
            made.backup(connection)
            connection.execute(ADD[kind], ("there",))
            connection.commit()
        raise FileExistsError(errno.EEXIST, "File exists")

    return link


@OF_BOTH
def test_a_database_that_another_process_created_first_is_kept(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(disk, "link", is_there_first(kind))
    assert held(kind, tmp_path / "a.db") == ["there"]
    assert os.listdir(tmp_path) == ["a.db"]


@OF_BOTH
def test_a_file_system_without_links_has_databases_too(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(disk, "link", no_links)
    path = tmp_path / "a.db"
    with closing(opened(kind, path)) as connection:
        add(connection, kind, "one")
    assert held(kind, path) == ["one"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["a.db"]


def test_a_disk_that_refuses_the_link_for_another_reason_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(name: str, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "link", full)
    with pytest.raises(OSError, match="No space"):
        database.connect(tmp_path / "a.db", cache_store.FORMAT, 1.0)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["a?mode=ro", "50% #1", "eine Spule", "Äther", os.fsdecode(b"latin \xe4")]
)
@OF_BOTH
def test_any_name_is_a_files_name(kind: str, name: str, tmp_path: Path):
    path = tmp_path / name / f"{name}.db"
    with closing(opened(kind, path)) as connection:
        add(connection, kind, "one")
    assert held(kind, path) == ["one"]
    assert os.listdir(path.parent) == [path.name]


def test_a_database_of_the_other_kind_is_refused(tmp_path: Path):
    store.connect(tmp_path / "a.db").close()
    with pytest.raises(
        ConfigurationError, match="another program; name another file for the cache"
    ):
        database.connect(tmp_path / "a.db", cache_store.FORMAT, 1.0)


@pytest.mark.parametrize("table", ["root", "file_missing"])
def test_a_database_whose_tables_were_changed_is_refused(tmp_path: Path, table: str):
    path = tmp_path / "a.db"
    store.connect(path).close()
    with closing(sqlite3.connect(path)) as connection:
        if table == "root":
            connection.execute("ALTER TABLE root RENAME TO real_root")
            connection.execute("CREATE VIEW root AS SELECT * FROM real_root")
        else:
            connection.execute("DROP TABLE vector")
    with pytest.raises(ContextError, match="its tables are damaged"):
        store.connect(path)


@pytest.mark.parametrize("kind", [0x6969, 0xFE534D42, 0x0BD00BD0])
def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
):
    path = tmp_path / "a.db"
    assert database.network_file_system(tmp_path) is None
    database.connect(path, cache_store.FORMAT, 1.0).close()  # the control
    monkeypatch.setattr(database, "file_system_type", lambda folder: kind)
    for use in (
        lambda: database.connect(path, cache_store.FORMAT, 1.0),
        lambda: database.snapshot(path, cache_store.FORMAT),
        lambda: database.connect(tmp_path / "new.db", cache_store.FORMAT, 1.0),
    ):
        with pytest.raises(ConfigurationError, match=r"network file system \(\w.*a disk of this"):
            use()


def test_the_type_of_a_file_system_is_the_one_that_stat_says(tmp_path: Path):
    told = subprocess.run(["stat", "-f", "-c", "%t", tmp_path], capture_output=True, text=True)
    assert database.file_system_type(tmp_path) == int(told.stdout, 16)
    assert database.file_system_type(tmp_path / "missing") == 0


LEFT = OTHER.replace("    add(", "    import os, signal\n    add(").rstrip() + (
    "\n    os.kill(os.getpid(), signal.SIGKILL)\n"
)


@pytest.mark.parametrize("state", ["closed", "open", "killed", "a copy without the index"])
@OF_BOTH
def test_a_snapshot_has_what_was_committed_and_leaves_the_folder_as_it_is(
    kind: str, state: str, tmp_path: Path
):
    path = tmp_path / "a.db"
    format_ = {"index": store.FORMAT, "cache": cache_store.FORMAT}[kind]
    with closing(opened(kind, path)) as connection:
        add(connection, kind, "1 here")
        if state == "open":
            check_snapshot(path, kind, format_, ["1 here"])
    names = ["1 here"]
    if state not in ("closed", "open"):
        assert in_another_process(kind, path, "2 there", LEFT) < 0
        assert (tmp_path / "a.db-wal").stat().st_size
        names.append("2 there")
    if state == "a copy without the index":
        (tmp_path / "a.db-shm").unlink()
    check_snapshot(path, kind, format_, names)


def check_snapshot(path: Path, kind: str, format_: database.Format, names: list[str]) -> None:
    # The index of the log is shared memory, which also readers use.
    before = {p.name: p.read_bytes() for p in path.parent.iterdir() if p.suffix != ".db-shm"}
    files = sorted(os.listdir(path.parent))
    with closing(database.snapshot(path, format_)) as copy:
        assert [row[0] for row in copy.execute(ALL[kind])] == names
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            add(copy, kind, "new")
    assert sorted(os.listdir(path.parent)) == files
    assert before == {
        p.name: p.read_bytes() for p in path.parent.iterdir() if p.suffix != ".db-shm"
    }


@pytest.mark.parametrize("large", ["a.db", "a.db-wal"])
def test_a_large_database_has_no_snapshot(
    large: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with closing(opened("cache", tmp_path / "a.db")) as connection:
        add(connection, "cache", "one")
    with (tmp_path / large).open("ab") as file:
        file.write(bytes(1_000_000))
    with closing(database.snapshot(tmp_path / "a.db", cache_store.FORMAT)) as copy:
        assert copy.execute(ALL["cache"]).fetchall() == [("one",)]
    monkeypatch.setattr(database, "MAX_SNAPSHOT_BYTES", 1_000_000)
    with pytest.raises(ConfigurationError, match="can be read without changing it"):
        database.snapshot(tmp_path / "a.db", cache_store.FORMAT)


def test_a_snapshot_of_no_file_is_empty(tmp_path: Path):
    with closing(database.snapshot(tmp_path / "missing.db", cache_store.FORMAT)) as copy:
        assert copy.execute(ALL["cache"]).fetchall() == []


def test_a_snapshot_is_taken_again_if_the_file_changes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "a.db"
    with closing(opened("cache", path)) as connection:
        add(connection, "cache", "one")
    read, changed = database._read, []  # pyright: ignore[reportPrivateUsage]

    def change(*arguments: Any) -> None:
        read(*arguments)
        if not changed:
            changed.append(True)
            with closing(opened("cache", path)) as other:
                add(other, "cache", "two")

    monkeypatch.setattr(database, "_read", change)
    with closing(database.snapshot(path, cache_store.FORMAT)) as copy:
        assert [row[0] for row in copy.execute(ALL["cache"])] == ["one", "two"]
