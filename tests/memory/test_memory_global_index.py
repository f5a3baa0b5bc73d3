"""The index follows the files: what is added, changed, renamed and removed, in folders and in repositories."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from evaluator import GlobalIndex, Memory, TaskStore, UsageError
from evaluator.memory import ContextRequest, describe

Tree = Callable[..., Path]
T = TypeVar("T")

FILES = {
    "src/ferry.py": '"""Ferries across the strait."""\ndef depart_at_dawn(): ...\n',
    "src/gate.ts": "export function openGate() {}\n",
    "docs/tides.md": "# Tides of the north\n\n## Neap and spring\n",
    "data/ports.csv": "port,tonnage\nRiga,3\n",
}


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def ask(index: GlobalIndex, request: ContextRequest | str, limit: int = 10) -> list[str]:
    return [found.path for found in run(index.get_relevant_context_for(request, limit))]


def git(folder: Path, *args: str) -> None:
    who = ["-c", "user.name=tests", "-c", "user.email=tests@example.org"]
    subprocess.run(["git", *who, *args], cwd=folder, check=True, capture_output=True, timeout=200)


@pytest.fixture(scope="module")
def harbour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlobalIndex]:
    """An index over FILES that tests only ask."""
    folder = tmp_path_factory.mktemp("harbour")
    for name, content in FILES.items():
        path = folder / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    with GlobalIndex(folder / "memory.sqlite", relative_to=folder) as made:
        report = run(made.add_folder(folder / "tree"))
        assert (report.kind, report.files, report.added, report.changed, report.removed) == (
            "folder",
            4,
            4,
            0,
            0,
        )
        yield made


@pytest.mark.parametrize(
    ("request_", "path", "term", "field"),
    [
        ("across which strait", "tree/src/ferry.py", "strait", "summary"),
        ("departing at dawn", "tree/src/ferry.py", "departing", "definition"),
        ("opened gates", "tree/src/gate.ts", "gates", "name"),
        ("spring tide", "tree/docs/tides.md", "spring", "heading"),
        ("tonnage of each port", "tree/data/ports.csv", "tonnage", "definition"),
        ("markdown documents", "tree/docs/tides.md", "markdown", "language"),
    ],
)
def test_a_request_finds_the_file_and_names_the_word_and_its_field(
    request_: str, path: str, term: str, field: str, harbour: GlobalIndex
) -> None:
    best = run(harbour.get_relevant_context_for(request_))[0]
    assert best.path == path
    assert 0 < best.score <= 1
    assert (term, field) in [(reason.term, reason.field) for reason in best.why]
    assert f"{term} ({field})" in best.reason
    assert best.score == pytest.approx(sum(reason.weight for reason in best.why), abs=0.001)


def test_the_index_is_a_memory_and_takes_requests_with_inputs(harbour: GlobalIndex) -> None:
    assert isinstance(harbour, Memory)
    request = ContextRequest("Answer", {"question": "how high are tides?"})
    assert ask(harbour, request) == ["tree/docs/tides.md"]


@pytest.mark.parametrize("request_", ["", "   ", "zebra", "?!", "a" * 10_000])
def test_a_file_that_shares_no_word_is_not_returned(
    request_: str, harbour: GlobalIndex, index: GlobalIndex
) -> None:
    assert ask(index, request_) == []
    assert ask(harbour, request_) == []


def test_limit_and_equal_scores_by_path(index: GlobalIndex, tree: Tree) -> None:
    run(index.add_folder(tree({"b/x.md": "# plum", "a/x.md": "# plum", "c/x.md": "# plum"})))
    assert ask(index, "plum") == ["tree/a/x.md", "tree/b/x.md", "tree/c/x.md"]
    assert ask(index, "plum", 2) == ["tree/a/x.md", "tree/b/x.md"]
    assert ask(index, "plum", 0) == [] == ask(index, "plum", -1)


def test_paths_are_absolute_by_default(database: Path, tree: Tree) -> None:
    root = tree(FILES)
    with GlobalIndex(database) as index:
        run(index.add_folder(root))
        assert ask(index, "ferries") == [str(root / "src/ferry.py")]
    with GlobalIndex(database, relative_to=root / "docs") as index:
        assert ask(index, "ferries") == [str(root / "src/ferry.py")]
        assert ask(index, "neap") == ["tides.md"]


def test_the_index_follows_files_that_are_added_changed_renamed_and_removed(
    index: GlobalIndex, tree: Tree
) -> None:
    root = tree(FILES)
    run(index.add_folder(root))
    (root / "src/gate.ts").write_text("export function closeSluice() {}\n")
    (root / "docs/tides.md").rename(root / "docs/currents.md")
    (root / "data/ports.csv").unlink()
    tree({"new.go": "package whale\n"})
    report = run(index.add_folder(root))
    assert (report.files, report.added, report.changed, report.removed) == (4, 2, 1, 2)
    assert ask(index, "sluice") == ["tree/src/gate.ts"]
    assert ask(index, "neap") == ["tree/docs/currents.md"]
    assert ask(index, "whale") == ["tree/new.go"]
    assert ask(index, "tonnage") == []
    again = run(index.add_folder(root))
    assert (again.files, again.added, again.changed, again.removed) == (4, 0, 0, 0)


def test_a_removed_file_leaves_nothing_in_the_database(
    index: GlobalIndex, tree: Tree, database: Path
) -> None:
    root = tree({"a.py": "class Leviathan: ...", "b.py": "class Kraken: ..."})
    run(index.add_folder(root))
    (root / "a.py").unlink()
    run(index.add_folder(root))
    assert run(index.remove_root(root)) is True
    assert run(index.remove_root(root)) is False
    with sqlite3.connect(database) as connection:
        for table in ("root", "file", "search", "vocabulary", "vector"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    connection.close()


def edit_in_the_same_tick(file: Path, database: Path, content: str) -> None:
    """Gives the file another content of the same length, with every time as the index recorded it."""
    before = file.stat()
    assert len(content) == before.st_size
    file.write_text(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE file SET ctime_ns = ?", (file.stat().st_ctime_ns,))
    connection.close()


@pytest.mark.parametrize(("later_s", "changed"), [(0, 1), (60, 0)])
def test_a_file_modified_within_the_tick_of_its_reading_is_read_again(
    later_s: int, changed: int, index: GlobalIndex, tree: Tree, database: Path
) -> None:
    root = tree({"a.py": "class Whale: ..."})
    run(index.add_folder(root))
    edit_in_the_same_tick(root / "a.py", database, "class Shark: ...")
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE file SET seen_ns = seen_ns + ?", (later_s * 10**9,))
    connection.close()
    assert run(index.add_folder(root)).changed == changed


def test_a_change_that_keeps_size_and_modification_time_is_seen(
    index: GlobalIndex, tree: Tree
) -> None:
    root = tree({"a.py": "class Whale: ..."})
    run(index.add_folder(root))
    before = (root / "a.py").stat()
    (root / "a.py").write_text("class Shark: ...")
    os.utime(root / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert run(index.add_folder(root)).changed == 1
    assert ask(index, "shark") == ["tree/a.py"]


def test_a_touched_file_is_not_described_again(index: GlobalIndex, tree: Tree) -> None:
    root = tree({"a.py": "class Whale: ..."})
    run(index.add_folder(root))
    os.utime(root / "a.py", ns=(1, 1))
    assert run(index.add_folder(root)).changed == 0
    assert ask(index, "whale") == ["tree/a.py"]


def test_a_new_version_of_the_describers_describes_everything_again(
    index: GlobalIndex, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(FILES)
    run(index.add_folder(root))
    monkeypatch.setattr(describe, "VERSION", describe.VERSION + 1)
    assert run(index.add_folder(root)).changed == 4
    assert run(index.add_folder(root)).changed == 0


def test_skipped_files_are_counted_with_the_reason(
    index: GlobalIndex, tree: Tree, tmp_path: Path
) -> None:
    root = tree(
        {
            "kept.py": "",
            ".hidden/a.py": "",
            ".env": "KEY=1",
            "__pycache__/a.py": "",
            "lib/node_modules/a.js": "",
            "env/pyvenv.cfg": "",
            "env/lib/a.py": "",
            "cache/CACHEDIR.TAG": "",
            "cache/a.py": "",
            "image.bin": b"a\0b",
        }
    )
    (root / "outside").symlink_to(tmp_path)
    (root / "link.py").symlink_to(root / "kept.py")
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    with (root / "line.txt").open("wb") as file:
        file.truncate(100_000_000)
    os.link(root / "image.bin", tmp_path / "second")
    (root / "hard.py").write_text("x")
    os.link(root / "hard.py", tmp_path / "third")
    (tmp_path / "second").unlink()
    (root / os.fsdecode(b"caf\xe9.py")).write_text("")
    TaskStore(root / "tasks").create("what was asked").abandon()
    for _ in range(2):
        report = run(index.add_folder(root))
        assert report.files == 1
        assert dict(report.skipped) == {
            "is hidden": 2,
            "is a folder of task files": 1,
            "is a cache folder": 3,
            "is a virtual environment": 1,
            "is a symbolic link": 3,
            "is not a regular file": 1,
            "is larger than 4,000,000 bytes": 1,
            "is a binary file": 1,
            "has 2 hard links and may be a file from outside; it is not read": 1,
            "has a name that is not UTF-8": 1,
        }
        assert ("link.py", "is a symbolic link") in report.examples
    (tmp_path / "third").unlink()
    assert run(index.add_folder(root)).added == 1


def test_a_file_that_becomes_binary_is_removed_from_the_index(
    index: GlobalIndex, tree: Tree
) -> None:
    root = tree({"a.py": "class Whale: ..."})
    run(index.add_folder(root))
    (root / "a.py").write_bytes(b"\0" * 100)
    report = run(index.add_folder(root))
    assert (report.files, report.removed) == (0, 1)
    assert ask(index, "whale") == []
    (root / "a.py").write_text("class Orca: ...")
    assert run(index.add_folder(root)).added == 1


def test_only_what_git_tracks_is_indexed(index: GlobalIndex, tree: Tree) -> None:
    root = tree(FILES | {".gitignore": "*.log\n", "run.log": "whale", "new.py": "class Whale: ..."})
    git(root, "init")
    git(root, "add", "src", "docs", ".gitignore")
    (root / "docs" / "link").symlink_to("tides.md")
    git(root, "add", "docs/link")
    report = run(index.add_git(root))
    assert (report.kind, report.files, dict(report.skipped)) == (
        "git",
        4,
        {"is a symbolic link": 1},
    )
    assert ask(index, "whale") == [] == ask(index, "tonnage")
    (root / "src/gate.ts").unlink()
    assert run(index.add_git(root)).removed == 1
    assert run(index.add_folder(root)).kind == "folder"
    assert ask(index, "whale") == ["tree/new.py"]


def test_a_subfolder_and_a_worktree_of_a_repository_are_indexed(
    index: GlobalIndex, tree: Tree, tmp_path: Path
) -> None:
    root = tree(FILES)
    git(root, "init")
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    assert run(index.add_git(root / "src")).files == 2
    assert ask(index, "ferries tides") == ["tree/src/ferry.py"]
    git(root, "worktree", "add", str(tmp_path / "other"))
    assert run(index.add_git(tmp_path / "other")).files == 4
    assert ask(index, "neap") == ["other/docs/tides.md"]


def test_a_program_that_a_repository_names_is_not_run(
    index: GlobalIndex, tree: Tree, tmp_path: Path
) -> None:
    root = tree(FILES)
    git(root, "init")
    git(root, "add", ".")
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(root, "config", "core.fsmonitor", str(program))
    run(index.add_git(root))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("method", "folder"),
    [
        ("add_git", "tree"),
        ("add_git", "missing"),
        ("add_folder", "missing"),
        ("add_folder", "tree/src/ferry.py"),
    ],
)
def test_a_root_that_cannot_be_indexed_is_an_error(
    method: str, folder: str, index: GlobalIndex, tree: Tree, tmp_path: Path
) -> None:
    tree(FILES)
    with pytest.raises(
        UsageError, match=r"git cannot list its files: .*not a git repository|no folder at"
    ):
        run(getattr(index, method)(tmp_path / folder))


def test_the_index_never_indexes_itself(tree: Tree) -> None:
    root = tree(FILES)
    with GlobalIndex(root / "memory.sqlite", relative_to=root) as index:
        assert run(index.add_folder(root)).files == 4
        assert dict(run(index.add_folder(root)).skipped) == {}


def test_an_index_moves_with_the_folder_that_holds_it(tree: Tree, tmp_path: Path) -> None:
    root = tree(FILES)
    with GlobalIndex(root / ".index" / "memory.sqlite") as index:
        run(index.add_folder(root))
    shutil.move(root, tmp_path / "moved")
    with GlobalIndex(tmp_path / "moved/.index/memory.sqlite") as index:
        assert ask(index, "ferries") == [str(tmp_path / "moved/src/ferry.py")]
        report = run(index.add_folder(tmp_path / "moved"))
        assert (report.added, report.changed, report.removed) == (0, 0, 0)


def test_a_file_below_two_roots_is_one_result(index: GlobalIndex, tree: Tree) -> None:
    root = tree({f"in/{n}.md": "# plum" for n in range(6)})
    run(index.add_folder(root))
    run(index.add_folder(root / "in"))
    assert ask(index, "plum", 4) == [f"tree/in/{n}.md" for n in range(4)]
    assert len(ask(index, "plum")) == 6


def test_no_text_of_a_body_is_in_the_database(tmp_path: Path, tree: Tree) -> None:
    secret = "xyzzyplugh"
    root = tree(
        {
            "a.py": f'"""Doc.\n\n{secret}"""\nNAME = "{secret}"\ndef f():\n    # {secret}\n    return "{secret}"\n',
            "bad.py": f'def f(:\n    x = "{secret}"\n',
            "a.js": f"const a = '{secret}'; // {secret}\nfunction f() {{ return {secret} }}\n",
            "a.md": f"# Doc\n\n{secret}\n\n```\n# {secret}\n```\n",
            "a.csv": f"name\n{secret}\n",
            "b.csv": f"{secret * 10},3\n",
            "a.json": f'{{"a": "{secret}", "b": {{"{secret}": 1}}}}',
            "a.toml": f'[t]\nkey = "{secret}"\n',
            "a.ini": f"key = {secret}\n",
            "a.sql": f"CREATE TABLE t (a TEXT DEFAULT '{secret}');",
            "a.xml": f"<a b='{secret}'>{secret}</a>",
            "a.html": f"<h1>Doc</h1><p>{secret}</p><!-- {secret} --><script>{secret}</script>",
            "a.sh": f"PASSWORD={secret}\nf() {{ echo {secret}; }}\n",
            "password": f"{secret}\n",
            "a.ipynb": f'{{"cells": [{{"cell_type": "code", "source": "x = 1 # {secret}", "outputs": ["{secret}"]}}]}}',
        }
    )
    database = tmp_path / "index" / "memory.sqlite"
    with GlobalIndex(database) as index:
        assert run(index.add_folder(root)).files == 15
        assert ask(index, secret) == []
        stored = b"".join(path.read_bytes() for path in database.parent.iterdir())
    assert b"Doc" in stored
    assert secret.encode() not in stored


def test_the_description_of_a_path_can_be_read(harbour: GlobalIndex) -> None:
    assert (
        run(harbour.description_of("tree/src/ferry.py"))
        == "Ferries across the strait.\ndepart_at_dawn"
    )
    assert run(harbour.description_of("tree/nowhere.py")) is None


def test_the_files_of_the_database_are_the_owners_alone(
    index: GlobalIndex, tree: Tree, database: Path
) -> None:
    run(index.add_folder(tree(FILES)))
    files = sorted(database.parent.glob("memory.sqlite*"))
    assert len(files) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_statistics_count_the_contents(index: GlobalIndex, tree: Tree) -> None:
    root = tree(FILES | {"x.bin": b"\0", "LICENSE": "x"})
    run(index.add_folder(root))
    stats = run(index.stats())
    assert (stats.files, stats.vectors, dict(stats.roots)) == (5, 0, {str(root): 5})
    assert dict(stats.languages) == {"": 1, "csv": 1, "markdown": 1, "python": 1, "typescript": 1}
    assert dict(stats.skipped) == {"is a binary file": 1}
    assert stats.terms > 10 and stats.size_bytes > 0


def test_consolidation_looks_for_folders_outside_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of a network that is gone may take minutes to say so."""
    threads: list[int] = []
    is_dir = Path.is_dir

    def spy(path: Path) -> bool:
        if path == tmp_path / "tree":
            threads.append(threading.get_ident())
        return is_dir(path)

    (tmp_path / "tree").mkdir()
    with GlobalIndex(tmp_path / "memory.sqlite") as index:
        run(index.add_folder(tmp_path / "tree"))
        monkeypatch.setattr(Path, "is_dir", spy)
        run(index.consolidate())
        assert threads and threading.get_ident() not in threads
        (tmp_path / "tree").rmdir()
        assert run(index.consolidate()).pruned == 1
