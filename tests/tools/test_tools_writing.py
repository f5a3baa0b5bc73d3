"""Files are written, edited and deleted completely or not at all, and keep mode and encoding."""

import os
import resource
import signal
import stat
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import ToolError, disk
from evaluator.tools import FileAccess, file_access, writing
from tests.leftovers import descriptors

pytestmark = pytest.mark.usefixtures("road")


@pytest.fixture
def root(tmp_path):
    inside = tmp_path / "root"
    (inside / "sub").mkdir(parents=True)
    (inside / "a.txt").write_text("one\ntwo\nthree\n")
    return inside


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_new_file_is_made_with_the_folders_above_it(root):
    change = writing.write_file(FileAccess([root]), "new/deep/é.txt", "a\r\nü")
    assert (root / "new/deep/é.txt").read_bytes() == "a\r\nü".encode()
    assert (change.size_before, change.before) == (None, None)
    assert names(root) == ["a.txt", "new", "new/deep", "new/deep/é.txt", "sub"]


def test_a_new_file_has_the_mode_that_the_umask_leaves(root):
    before = os.umask(0o027)
    try:
        writing.write_file(FileAccess([root]), "n/b", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / "n/b").stat().st_mode) == 0o640
    assert stat.S_IMODE((root / "n").stat().st_mode) == 0o750


@pytest.mark.parametrize(
    ("mode", "kept"), [(0o600, 0o600), (0o755, 0o755), (0o666, 0o666), (0o4755, 0o755)]
)
def test_a_replaced_file_keeps_its_mode_and_never_a_set_user_id_bit(root, mode, kept):
    (root / "a.txt").chmod(mode)
    writing.write_file(FileAccess([root]), "a.txt", "new")
    assert (root / "a.txt").read_text() == "new"
    assert stat.S_IMODE((root / "a.txt").stat().st_mode) == kept


def test_a_reader_of_the_old_file_still_reads_the_old_content(root):
    with (root / "a.txt").open() as reader:
        writing.write_file(FileAccess([root]), "a.txt", "new")
        assert reader.read() == "one\ntwo\nthree\n"


def test_create_only_makes_a_file_once(root):
    access = FileAccess([root])
    writing.write_file(access, "b", "first", create_only=True)
    with pytest.raises(ToolError, match="exists already"):
        writing.write_file(access, "b", "second", create_only=True)
    assert (root / "b").read_text() == "first"
    assert (root / "b").stat().st_nlink == 1


def test_create_only_never_replaces_a_file_created_at_the_last_moment(root, monkeypatch):
    real = disk.link

    def late(*args, **options):
        (root / "b").write_text("theirs")
        return real(*args, **options)

    monkeypatch.setattr(disk, "link", late)
    with pytest.raises(ToolError, match="exists already"):
        writing.write_file(FileAccess([root]), "b", "ours", create_only=True)
    assert (root / "b").read_text() == "theirs"
    assert names(root) == ["a.txt", "b", "sub"]


def test_a_file_that_another_process_changed_is_not_replaced(root, monkeypatch):
    real = os.fchmod

    def change_meanwhile(descriptor, mode):
        (root / "a.txt").with_name("theirs").write_text("theirs")
        (root / "theirs").replace(root / "a.txt")
        return real(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", change_meanwhile)
    with pytest.raises(ToolError, match="changed by another process"):
        writing.edit_file(FileAccess([root]), "a.txt", "two", "2")
    monkeypatch.undo()
    assert (root / "a.txt").read_text() == "theirs"
    assert names(root) == ["a.txt", "sub"]


def test_a_full_disk_leaves_the_old_file_and_no_temporary_file(root, monkeypatch):
    real = disk.open

    def open_on_a_full_disk(path, flags, *args, **options):
        descriptor = real(path, flags, *args, **options)
        if flags & os.O_CREAT:  # the new file exists, and what is written to it does not fit
            full = os.open("/dev/full", os.O_RDWR)
            os.dup2(full, descriptor)
            os.close(full)
        return descriptor

    monkeypatch.setattr(disk, "open", open_on_a_full_disk)
    monkeypatch.setattr(os, "fchmod", lambda *args: None)  # not of /dev/full
    with pytest.raises(ToolError, match="the disk is full"):
        writing.write_file(FileAccess([root]), "a.txt", "longer than two")
    monkeypatch.undo()
    assert (root / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert names(root) == ["a.txt", "sub"]


LIMITED = """
import sys
from evaluator.errors import ToolError
from evaluator.tools import FileAccess
from evaluator.tools import writing
try:
    writing.write_file(FileAccess([sys.argv[1]]), "a.txt", "x" * 100_000)
except ToolError as error:
    print(error)
"""


def test_a_write_that_fails_half_way_changes_nothing(root):
    """A real write that fails half-way, at the size limit of the process."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    done = subprocess.run(
        [sys.executable, "-B", "-c", LIMITED, str(root)],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot be written: File too large" in done.stdout
    assert (root / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert names(root) == ["a.txt", "sub"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("sub", "a folder, not a regular file"),
        ("new/", "names a folder"),
        (".", "a root folder"),
        ("{root}", "a root folder"),
        ("a.txt/b", "goes through a file"),
        ("x" * 300, "too long"),
        ("x/" * 2500 + "y", "too long a path: 5,001 bytes"),
        ("x/" * 64 + "y", "more than 64 folders deep"),
    ],
)
def test_an_impossible_path_for_a_file_is_refused_with_the_reason(root, path, words):
    with pytest.raises(ToolError, match=words):
        writing.write_file(FileAccess([root]), path.format(root=root), "x")
    assert names(root) == ["a.txt", "sub"]


def test_content_is_bounded_and_has_to_be_text(root, monkeypatch):
    monkeypatch.setattr(writing, "MAX_FILE_BYTES", 10)
    access = FileAccess([root])
    with pytest.raises(ToolError, match="11 bytes, at most 10"):
        writing.write_file(access, "b", "éééééx")
    with pytest.raises(ToolError, match=r"U\+D800"):
        writing.write_file(access, "b", "\ud800")
    assert names(root) == ["a.txt", "sub"]


def test_a_file_in_a_later_root_is_replaced_there_and_a_new_one_is_made_in_the_first(
    root, tmp_path
):
    other = tmp_path / "other"
    other.mkdir()
    (other / "b.txt").write_text("old")
    access = FileAccess([root, other])
    writing.write_file(access, "b.txt", "new")
    writing.write_file(access, "c.txt", "new")
    writing.write_file(access, str(other / "d.txt"), "new")
    assert (other / "b.txt").read_text() == "new"
    assert names(root) == ["a.txt", "c.txt", "sub"]
    assert names(other) == ["b.txt", "d.txt"]


def test_a_binary_file_can_be_replaced_and_not_edited(root):
    (root / "bin").write_bytes(b"a\0b")
    with pytest.raises(ToolError, match="binary"):
        writing.edit_file(FileAccess([root]), "bin", "a", "b")
    change = writing.write_file(FileAccess([root]), "bin", "text")
    assert (change.before, change.size_before) == (None, 3)


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"one\ntwo\n", "two", "2", b"one\n2\n"),
        (b"one\r\ntwo\r\nx\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\nx\r\n"),
        (b"one\r\ntwo\r\n", "one\r\ntwo", "1\n2", b"1\r\n2\r\n"),
        (b"one\r\ntwo\nx\r\n", "two\nx", "2\ny", b"one\r\n2\ny\r\n"),
        (b"\xef\xbb\xbfone", "one", "ü", b"\xef\xbb\xbf\xc3\xbc"),
        (b"\xff\xfeo\0n\0e\0", "one", "1\n", b"\xff\xfe1\0\n\0"),
        (b"\xfe\xff\0o\0n\0e", "n", "é", b"\xfe\xff\0o\0\xe9\0e"),
        (b"caf\xe9 one", "one", "\xfc", b"caf\xe9 \xfc"),
        (b"a.*b", ".*", "\\1", b"a\\1b"),
    ],
)
def test_an_edit_keeps_encoding_mark_and_line_ends(root, before, old, new, after):
    (root / "text").write_bytes(before)
    (root / "text").chmod(0o640)
    writing.edit_file(FileAccess([root]), "text", old, new)
    assert (root / "text").read_bytes() == after
    assert stat.S_IMODE((root / "text").stat().st_mode) == 0o640


def test_a_character_that_the_files_encoding_lacks_is_refused(root):
    (root / "text").write_bytes(b"caf\xe9")
    with pytest.raises(ToolError, match=r"U\+20AC.*latin-1 file"):
        writing.edit_file(FileAccess([root]), "text", "caf", "€")
    assert (root / "text").read_bytes() == b"caf\xe9"


@pytest.mark.parametrize(
    ("old", "count", "words"),
    [
        ("", 1, "old is empty"),
        ("x = 1", 1, "the same text"),
        ("value", 1, "occurs 3 times .* and count is 1"),
        ("value", 2, "occurs 3 times .* and count is 2"),
        (
            "the value = 4",
            1,
            "does not occur in 'text'. Nearest to its first line: line 3: 'the value = 3'",
        ),
        ("x  =\n 1", 1, "different white space"),
        ("zzzzzz", 1, "no line is similar"),
    ],
)
def test_an_edit_that_does_not_fit_names_the_reason_and_changes_nothing(root, old, count, words):
    text = "x = 1\na value = 2\nthe value = 3\nno value\n"
    (root / "text").write_text(text)
    with pytest.raises(ToolError, match=words):
        writing.edit_file(FileAccess([root]), "text", old, "x = 1", count=count)
    assert (root / "text").read_text() == text


def test_an_edit_changes_up_to_count_places(root):
    change = writing.edit_file(FileAccess([root]), "a.txt", "t", "T", count=5)
    assert ((root / "a.txt").read_text(), change.count) == ("one\nTwo\nThree\n", 2)


def test_an_edit_of_a_missing_file_is_refused(root):
    with pytest.raises(ToolError, match="does not exist"):
        writing.edit_file(FileAccess([root]), "none/x", "a", "b")
    assert names(root) == ["a.txt", "sub"]


def test_a_file_or_an_empty_folder_is_deleted_and_nothing_more(root):
    access = FileAccess([root])
    (root / "full").mkdir()
    (root / "full" / "kept").touch()
    assert writing.delete_file(access, "a.txt") == "file"
    assert writing.delete_file(access, "sub") == "folder"
    for path, words in (
        ("full", "not empty"),
        (".", "a root folder"),
        ("none", "does not exist"),
        ("a.txt", "exist"),
    ):
        with pytest.raises(ToolError, match=words):
            writing.delete_file(access, path)
    assert names(root) == ["full", "full/kept"]


def test_a_dry_run_returns_the_change_and_does_nothing(root):
    access = FileAccess([root])
    new = writing.write_file(access, "n/new", "x", dry_run=True)
    assert (new.before, new.after, new.size_before) == (None, "x", None)
    assert writing.write_file(access, "a.txt", "x", dry_run=True).before == "one\ntwo\nthree\n"
    assert writing.edit_file(access, "a.txt", "two", "2", dry_run=True).after == "one\n2\nthree\n"
    assert writing.delete_file(access, "sub", dry_run=True) == "folder"
    with pytest.raises(ToolError, match="exists already"):
        writing.write_file(access, "a.txt", "x", create_only=True, dry_run=True)
    assert names(root) == ["a.txt", "sub"]
    assert (root / "a.txt").read_text() == "one\ntwo\nthree\n"


def test_a_diff_shows_the_changed_lines_with_context():
    before = "".join(f"{n}\n" for n in range(1, 30))
    after = before.replace("\n9\n", "\nnine\n").removesuffix("\n")
    assert file_access.diff(before, after).split("\n") == [
        *["@@ from line 6 @@", " 6", " 7", " 8", "-9", "+nine", " 10", " 11", " 12"],
        *["@@ from line 26 @@", " 26", " 27", " 28", "-29", "+29  (no line feed at the end)"],
    ]
    assert file_access.diff("", "x\n") == "@@ from line 1 @@\n+x"
    assert file_access.diff("x\n", "x\n") == ""


LINES = st.text(st.sampled_from("ab\n\r"), max_size=40)


def applied(before, shown):
    """The new text, from the old one and a diff, as a person would apply it."""
    old, new, at = before.split("\n"), [], 0
    for line in shown.split("\n") if shown else []:
        if line.startswith("@@"):
            start = int(line.split()[3]) - 1
            new += old[at:start]
            at = start
        else:
            if line[0] != "+":
                assert old[at] == line[1:].removesuffix("  (no line feed at the end)")
                at += 1
            if line[0] != "-":
                new.append(line[1:])
    return "\n".join([*new, *old[at:]])


@given(LINES, LINES, st.sampled_from([0, 1_000]))
def test_applying_the_shown_diff_gives_the_new_text(before, after, bound):
    """In both forms: line by line, and as one replacement if there are too many lines to compare."""
    before, after = f"{before}\n", f"{after}\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_access, "_DIFFED_LINES", bound)
        assert applied(before, file_access.diff(before, after)) == after


@given(LINES, st.text("ab\n", min_size=1, max_size=4), st.text("ab\n", max_size=4))
def test_an_edit_replaces_every_occurrence_and_nothing_else(text, old, new):
    try:
        after, count = file_access.replace_text(text, old, new, 100, "f")
    except ToolError:
        crlf = "\r\n" in text and "\n" not in text.replace("\r\n", "")
        assert old == new or (old.replace("\n", "\r\n") if crlf else old) not in text
        return
    if "\r\n" in text and "\n" not in text.replace("\r\n", ""):
        old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
    assert after == new.join(text.split(old))
    assert count == len(text.split(old)) - 1 > 0


def test_no_descriptor_is_left_open(root):
    access = FileAccess([root])
    before = descriptors()
    (root / "link").symlink_to("a.txt")
    for path in ("a.txt", "link", "none", "sub", "../x", "b/c/d", "link/x", "."):
        for act in (
            lambda path: writing.write_file(access, path, "one"),
            lambda path: writing.write_file(access, path, "one", create_only=True),
            lambda path: writing.edit_file(access, path, "one", "two"),
            lambda path: writing.write_file(access, path, "one", dry_run=True),
            lambda path: writing.delete_file(access, path),
        ):
            try:
                act(path)
            except ToolError:
                continue
    assert descriptors() <= before
