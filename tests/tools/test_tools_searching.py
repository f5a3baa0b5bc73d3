"""A search finds all matches, skips files that are not text, and ends for every pattern."""

import asyncio
import json
import os
import threading

import pytest

from evaluator import ToolError
from evaluator.files import roots
from evaluator.tools import FileAccess, ToolContext, builtin_tools
from evaluator.tools.searching import FileMatch, search_files
from tests.patience import with_enough_time


@pytest.fixture
def root(tmp_path):
    inside = tmp_path / "root"
    (inside / "src" / "deep").mkdir(parents=True)
    (inside / ".git").mkdir()
    (inside / "notes.txt").write_text("alpha\r\nbeta needle\r\n")
    (inside / "src" / "a.py").write_text("needle = 1\nno\nneedle = 2\n")
    (inside / "src" / "deep" / "b.py").write_bytes("# é\nNeedle".encode("utf-16"))
    (inside / ".git" / "config").write_text("needle")
    (inside / "bin").write_bytes(b"needle\0")
    (inside / "empty").touch()
    return inside


def search(root, pattern, *args, **options):
    return asyncio.run(search_files(FileAccess([root]), pattern, *args, **options))


def test_matches_have_file_and_line(root):
    found = search(root, "(?i)needle")
    assert found.matches == [
        FileMatch("notes.txt", 2, "beta needle"),
        FileMatch("src/a.py", 1, "needle = 1"),
        FileMatch("src/a.py", 3, "needle = 2"),
        FileMatch("src/deep/b.py", 2, "Needle"),
    ]
    assert (found.searched, found.binary, found.refused) == (4, 1, 0)


@pytest.mark.parametrize(
    ("pattern", "path", "glob", "files"),
    [
        ("needle", "src", None, ["src/a.py"]),
        ("needle", "src/a.py", None, ["src/a.py"]),
        ("needle", "{root}/src", None, ["src/a.py"]),
        ("needle", ".", "*.txt", ["notes.txt"]),
        ("needle", ".", "*.py", ["src/a.py"]),
        ("needle", ".", "src/*", ["src/a.py"]),
        ("needle", ".git", "*", [".git/config"]),
        ("needle", ".", ".git/*", [".git/config"]),
        (r"^\S+ needle$", ".", None, ["notes.txt"]),
        ("(?i)n.edle$", "src/deep", None, ["src/deep/b.py"]),
        ("^$", "src/deep", None, []),
    ],
)
def test_the_files_searched_are_those_of_path_and_glob(root, pattern, path, glob, files):
    found = search(root, pattern, path.format(root=root), glob)
    assert sorted({match.path for match in found.matches}) == files


@pytest.mark.parametrize(
    ("pattern", "path", "glob", "words"),
    [
        ("(", ".", None, r"the pattern '\(' is invalid: missing"),
        ("(" * 5000, ".", None, "is invalid"),
        ("(?:a{1000}){1000}", ".", None, "more than 10000 parts"),
        ("x", "../", None, r"'\.\.'"),
        ("x", "/etc", None, "outside the folders"),
        ("x", ".", "../*", r"'\.\.'"),
        ("x", ".", "/etc/*", "begins with '/'"),
        ("x", "none", None, "does not exist"),
        ("x", "link", None, "symbolic link"),
        ("x", "hard", None, "hard links"),
        ("x", "pipe", None, "named pipe"),
    ],
)
def test_an_invalid_search_is_refused_with_the_reason(root, pattern, path, glob, words):
    (root / "link").symlink_to("/etc")
    os.link(root / "empty", root / "hard")
    os.mkfifo(root / "pipe")
    with pytest.raises(ToolError, match=words):
        search(root, pattern, path, glob)


def test_unreadable_files_are_counted_and_skipped(root):
    secret = root.parent / "secret"
    secret.write_text("needle")
    (root / "link").symlink_to(secret)
    (root / "door").symlink_to(root.parent)
    os.link(secret, root / "hard")
    found = search(root, "needle")
    assert {match.path for match in found.matches} == {"notes.txt", "src/a.py"}
    assert found.refused == 1  # the hard link; a link is not even looked at


def test_a_search_that_takes_too_long_returns_the_matches_so_far(root):
    (root / "zz.txt").write_text("needle\nab\n" + "ab" * 40 + "!")
    (root / "aa.txt").write_text("aba\n")
    found = with_enough_time(
        lambda limit_s: search(root, "^(?:a|b|ab)+$", timeout_s=limit_s),
        lambda found: len(found.matches) == 2,
    )
    assert found.matches == [FileMatch("aa.txt", 1, "aba"), FileMatch("zz.txt", 2, "ab")]
    assert found.stopped_in == "zz.txt"
    assert "the time ran out in zz.txt" in str(found)


def test_a_search_that_is_cancelled_reads_no_further_file(root):
    reading, go_on, read = threading.Event(), threading.Event(), []

    class Watched(FileAccess):
        def read_bytes(self, path, **options):
            read.append(path)
            reading.set()
            go_on.wait(200)
            return super().read_bytes(path, **options)

    async def cancelled():
        before = set(threading.enumerate())
        task = asyncio.create_task(search_files(Watched([root]), "needle"))
        await asyncio.to_thread(reading.wait, 200)
        (thread,) = [
            each for each in set(threading.enumerate()) - before if each.name == "evaluator-tool"
        ]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await asyncio.to_thread(thread.join, 200)

    asyncio.run(cancelled())
    assert len(read) == 1


def test_a_search_that_needs_too_much_memory_is_an_error(root):
    (root / "zz.txt").write_text("ab" * 4_500_000)
    with pytest.raises(ToolError, match=r"too much memory in 'zz\.txt'"):
        search(root, "(a|b|ab)*[cd]", "zz.txt")


def test_a_search_lets_other_threads_run(root):
    (root / "zz.txt").write_text("ab" * 40 + "!")

    async def beside(limit_s):
        files = FileAccess([root])
        task = asyncio.create_task(search_files(files, "^(?:a|b|ab)+$", timeout_s=limit_s))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.01)
            turns += 1
        return turns

    turns = with_enough_time(
        lambda limit_s: asyncio.run(beside(limit_s)), lambda turns: turns > 2, 0.5
    )
    assert turns > 2


def test_the_number_of_matches_is_limited_and_the_limit_reported(root):
    found = search(root, "needle", max_matches=2)
    assert [match.path for match in found.matches] == ["notes.txt", "src/a.py"]
    assert found.full
    assert "stopped at 2 matches" in str(found)
    for wrong in (0, 2_001):
        with pytest.raises(ToolError, match="from 1 to 2,000"):
            search(root, "needle", max_matches=wrong)


def test_a_long_line_is_shown_around_its_match(root):
    (root / "long").write_text("x" * 10_000 + "needle" + "y" * 10_000)
    (match,) = search(root, "needle", "long").matches
    assert match.text == "…" + "x" * 50 + "needle" + "y" * 244 + "…"


def test_names_and_lines_cannot_forge_a_result(root):
    (root / "a\nb.txt").write_text("needle\x1b[2J")
    assert (
        str(search(root, "needle", ".", "a*.txt"))
        == "a\\nb.txt:1:needle\\x1b[2J\n[1 file searched]"
    )


def test_too_many_names_are_an_error(root, monkeypatch):
    monkeypatch.setattr(roots, "MAX_VISITED", 3)
    with pytest.raises(ToolError, match="names would have to be examined"):
        search(root, "x")


def test_the_tool_answers_in_lines(root):
    arguments = json.dumps({"pattern": "needle", "glob": "*.py", "max_matches": 1})
    context = ToolContext(roots=FileAccess([root]))
    outcome = asyncio.run(builtin_tools().call("search_files", arguments, context))
    assert outcome.content == (
        "src/a.py:1:needle = 1\n[1 file searched; stopped at 1 match; there may be more, narrow the search]"
    )
    outcome = asyncio.run(builtin_tools().call("search_files", '{"pattern": "none"}', context))
    assert outcome.content == "no match\n[4 files searched, 1 binary file skipped]"


def test_every_root_is_searched(root, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "c.txt").write_text("needle")
    found = asyncio.run(search_files(FileAccess([root, other]), "needle", glob="*.txt"))
    assert [match.path for match in found.matches] == ["notes.txt", str(other / "c.txt")]
