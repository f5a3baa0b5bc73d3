"""The database survives a kill, and other versions, other programs, damage and several writers are handled."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluator import ConfigurationError, GlobalIndex, disk
from evaluator.errors import ContextError
from evaluator.memory import indexer, store

Tree = Callable[..., Path]


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def test_an_index_of_a_newer_schema_is_refused_and_left_alone(database: Path) -> None:
    GlobalIndex(database).close()
    with sqlite3.connect(database) as connection:
        connection.execute(f"PRAGMA user_version = {store.FORMAT.schema + 1}")
    connection.close()
    with pytest.raises(
        ConfigurationError,
        match=rf"schema {store.FORMAT.schema + 1}.*newer evaluator.*Upgrade, or delete",
    ):
        GlobalIndex(database)
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (store.FORMAT.schema + 1,)
    connection.close()


def test_an_index_of_an_older_schema_is_refused_with_what_to_do(database: Path) -> None:
    GlobalIndex(database).close()
    with sqlite3.connect(database) as connection:
        connection.execute(f"PRAGMA user_version = {store.FORMAT.schema - 1}")
    connection.close()
    with pytest.raises(
        ConfigurationError, match=r"older evaluator.*delete the file and index again"
    ):
        GlobalIndex(database)


def test_a_python_without_full_text_search_is_an_error_that_says_so(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = store.FORMAT.tables.replace("USING fts5(", "USING fts5_of_nobody(")
    monkeypatch.setattr(store, "FORMAT", replace(store.FORMAT, tables=tables))
    with pytest.raises(
        ConfigurationError, match=r"SQLite was built without it.*use a Python with FTS5"
    ):
        GlobalIndex(database)


@pytest.mark.parametrize(
    "statement", ["CREATE TABLE mine (a)", "PRAGMA application_id = 7", "PRAGMA user_version = 1"]
)
def test_a_database_of_another_program_is_refused(statement: str, database: Path) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute(statement)
    connection.close()
    with pytest.raises(ConfigurationError, match="another program"):
        GlobalIndex(database)


def test_a_file_that_is_not_a_database_is_refused(database: Path, tmp_path: Path) -> None:
    database.write_bytes(b"# a file of somebody\n" * 100)
    with pytest.raises(
        ContextError, match=r"memory.sqlite: the index cannot be opened: file is not a database"
    ):
        GlobalIndex(database)
    assert database.read_bytes().startswith(b"# a file of somebody")
    with pytest.raises(ContextError, match="cannot be opened"):
        GlobalIndex(database / "below" / "a file")


def test_a_folder_in_place_of_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a regular file; an index is in files that"):
        GlobalIndex(tmp_path)


def test_damage_is_an_error_with_the_databases_name(database: Path, tree: Tree) -> None:
    with GlobalIndex(database) as index:
        run(index.add_folder(tree({f"{n}.md": f"# heading{n} " * 20 for n in range(200)})))
    content = database.read_bytes()
    database.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with (
        GlobalIndex(database) as index,
        pytest.raises(ContextError, match=r"memory.sqlite: the index cannot be used"),
    ):
        run(index.get_relevant_context_for("heading7"))


def test_a_full_disk_is_an_error_that_says_what_to_do(
    database: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = store.connect

    def connect_small(path: Path, **options: Any) -> sqlite3.Connection:
        connection = connect(path, **options)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    monkeypatch.setattr(store, "connect", connect_small)
    root = tree({f"{n}.md": f"# heading{n} " * 200 for n in range(200)})
    with (
        GlobalIndex(database) as index,
        pytest.raises(ContextError, match=r"memory.sqlite: .* disk is full; free space"),
    ):
        run(index.add_folder(root))


def test_a_folder_without_room_for_an_index_is_an_error_that_says_what_to_do(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "make_folders", full)
    monkeypatch.setattr(disk, "link", full)
    with pytest.raises(ContextError, match=r"No space left on device; free space or choose"):
        GlobalIndex(database)


def test_a_closed_index_cannot_be_used(database: Path) -> None:
    index = GlobalIndex(database)
    index.close()
    index.close()
    with pytest.raises(ContextError, match="closed"):
        run(index.get_relevant_context_for("x"))


CHILD = """
import asyncio, sys
from evaluator.memory import GlobalIndex, indexer, store

write_files = store.write_files
def write_and_tell(*args):
    write_files(*args)
    print("written", flush=True)
store.write_files = write_and_tell
indexer._PAGE = 16
with GlobalIndex(sys.argv[1]) as index:
    asyncio.run(index.add_folder(sys.argv[2]))
"""


def test_a_killed_process_leaves_whole_files_and_the_next_one_continues(
    database: Path, tree: Tree
) -> None:
    root = tree({f"{n}.md": f"# plum number{n}" for n in range(400)})
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(database), str(root)], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    for _ in range(3):
        assert child.stdout.readline() == b"written\n"
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=200)
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        (kept,) = connection.execute("SELECT count(*) FROM file").fetchone()
        assert connection.execute("SELECT doc FROM vocabulary WHERE term = 'plum'").fetchone() == (
            kept,
        )
    connection.close()
    assert 48 <= kept < 400
    with GlobalIndex(database) as index:
        report = run(index.add_folder(root))
        assert (report.files, report.added) == (400, 400 - kept)
        assert len(run(index.get_relevant_context_for("plum", 1000))) == 400


def test_several_processes_may_index_and_ask_at_once(database: Path, tree: Tree) -> None:
    root = tree({f"{n}.md": f"# plum number{n}" for n in range(120)})
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(database), str(root)], stdout=subprocess.DEVNULL
        )
        for _ in range(3)
    ]
    with GlobalIndex(database) as index:
        while any(child.poll() is None for child in children):
            found = run(index.get_relevant_context_for("plum", 1000))
            assert len({relevant.path for relevant in found}) == len(found) <= 120
        assert [child.wait(timeout=200) for child in children] == [0, 0, 0]
        assert len(run(index.get_relevant_context_for("plum", 1000))) == 120
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT doc FROM vocabulary WHERE term = 'plum'").fetchone() == (
            120,
        )
    connection.close()


MISBEHAVING = """
import json, os, sys, time; sys.path[:] = json.loads(sys.argv[1])
from evaluator.memory import describer_process
real = describer_process.describe
def describe(path, text):
    if path.startswith("crash"): os.abort()
    if path.startswith("slow"): time.sleep(60)
    if path.startswith("big"): b"x" * 3_000_000_000
    if path.startswith("tells"):
        with open(os.path.join(sys.argv[2], "pipe"), "w") as pipe: pipe.write(str(os.getpid()))
        time.sleep(600)
    if path.startswith("raise"): raise RuntimeError("a fault of ours")
    if path.startswith("memory"): raise MemoryError
    return real(path, text)
describer_process.describe = describe
describer_process.main(*sys.argv[2:])
"""


def test_a_file_that_ends_its_describer_is_skipped_and_the_others_are_not(
    database: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "_PROGRAM", MISBEHAVING)
    monkeypatch.setattr(indexer, "FILE_TIMEOUT_S", 2.0)
    names = [f"{n}.md" for n in range(40)]
    bad = ["big.md", "crash1.md", "crash2.md", "slow.md", "raise.md", "memory.md"]
    root = tree(dict.fromkeys([*names, *bad], "# plum"))
    with GlobalIndex(database) as index:
        report = run(index.add_folder(root, processes=2))
        assert dict(report.skipped) == {
            "its describer crashed": 3,
            "took more than 2 s to describe": 1,
            "needs too much memory": 2,
        }
        assert report.files == 40
        # What was skipped and has not changed is not tried again.
        monkeypatch.setattr(indexer, "_PROGRAM", "raise SystemExit")
        with sqlite3.connect(database) as connection:
            connection.execute("UPDATE file SET seen_ns = seen_ns + 60000000000")
        connection.close()
        assert run(index.add_folder(root)).files == 40


def test_describers_that_do_not_start_are_an_error(
    database: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "_PROGRAM", "raise SystemExit('no such thing')")
    with (
        GlobalIndex(database) as index,
        pytest.raises(ContextError, match="does not start: no such thing"),
    ):
        run(index.add_folder(tree({"a.md": "# plum"})))


def test_cancelled_indexing_leaves_no_process_and_a_usable_index(
    database: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexer, "_PROGRAM", MISBEHAVING)
    root = tree({"tells.md": "# plum"})
    os.mkfifo(root / "pipe")

    async def cancel(index: GlobalIndex) -> int:
        task = asyncio.ensure_future(index.add_folder(root))
        process = int(await asyncio.to_thread((root / "pipe").read_text))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return process

    with GlobalIndex(database) as index:
        process = run(cancel(index))
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
        monkeypatch.undo()
        assert run(index.add_folder(root)).files == 1


def test_describers_have_no_credentials_in_their_environment(
    database: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    monkeypatch.setattr(
        indexer, "_PROGRAM", "import os, sys; sys.exit(' '.join(sorted(os.environ)))"
    )
    with GlobalIndex(database) as index, pytest.raises(ContextError) as caught:
        run(index.add_folder(tree({"a.md": "# plum"})))
    assert "PATH" in str(caught.value) and "SOME_API_KEY" not in str(caught.value)
