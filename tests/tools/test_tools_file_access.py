"""Files are read only below their roots, for every path and against concurrent changes."""

import asyncio
import errno
import os
import socket
import threading

import pytest

from evaluator import ToolError, UsageError
from evaluator.files import open_below, roots
from evaluator.tools import FileAccess, FolderEntry, file_access
from tests.leftovers import descriptors

SECRET = "outside"


pytestmark = pytest.mark.usefixtures("road")


@pytest.fixture
def root(tmp_path):
    inside = tmp_path / "root"
    (inside / "sub").mkdir(parents=True)
    (inside / "a.txt").write_text("one\ntwo\nthree\n")
    (inside / "sub" / "b.py").write_text("b")
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "root-evil").mkdir()
    (tmp_path / "root-evil" / "c.txt").write_text(SECRET)
    return inside


@pytest.mark.parametrize(
    "path", ["a.txt", "./a.txt", "sub/../a.txt", "sub//b.py", "{root}/a.txt", "{root}/./sub/b.py"]
)
def test_files_below_a_root_are_read(root, path):
    access = FileAccess([root])
    if ".." in path:
        with pytest.raises(ToolError, match=r"\.\."):
            access.read_text(path)
    else:
        assert access.read_text(path.format(root=root)).text in ("one\ntwo\nthree\n", "b")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("../secret.txt", r"'\.\.'"),
        ("sub/../../secret.txt", r"'\.\.'"),
        ("{root}/../secret.txt", r"'\.\.'"),
        ("{above}/secret.txt", "outside the folders"),
        ("{above}/root-evil/c.txt", "outside the folders"),
        ("/etc/passwd", "outside the folders"),
        ("/", "outside the folders"),
        ("", "empty"),
        ("a\0.txt", "NUL"),
        ("\ud800", "cannot take"),
        ("x" * 5000, "too long"),
        ("none.txt", "does not exist"),
        ("a.txt/b", "not a folder"),
        ("sub", "a folder, not a regular file"),
        (".", "a folder, not a regular file"),
    ],
)
def test_an_unreadable_path_is_refused_with_the_reason(root, path, words):
    with pytest.raises(ToolError, match=words):
        FileAccess([root]).read_bytes(path.format(root=root, above=root.parent))


@pytest.mark.parametrize(
    "target", ["{above}/secret.txt", "../secret.txt", "a.txt", "/dev/null", "dangling"]
)
def test_a_link_is_never_followed_wherever_it_leads(root, target):
    (root / "link").symlink_to(target.format(above=root.parent))
    with pytest.raises(ToolError, match="symbolic link"):
        FileAccess([root]).read_bytes("link")


def test_a_link_in_the_middle_of_a_path_is_not_followed(root):
    (root / "door").symlink_to(root.parent)
    (root / "proc").symlink_to("/proc/self/root")
    for path in ("door/secret.txt", "proc/etc/passwd", "door/root/a.txt"):
        with pytest.raises(ToolError, match="symbolic link"):
            FileAccess([root]).read_bytes(path)


def test_a_hard_link_is_refused(root):
    os.link(root.parent / "secret.txt", root / "hard.txt")
    with pytest.raises(ToolError, match="hard links"):
        FileAccess([root]).read_bytes("hard.txt")


def test_pipes_sockets_and_devices_are_refused_without_waiting(root, monkeypatch):
    os.mkfifo(root / "pipe")
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
        for name, words in (("pipe", "named pipe"), ("sock", "not a regular file")):
            with pytest.raises(ToolError, match=words):
                FileAccess([root]).read_bytes(name)
    with pytest.raises(ToolError, match="device"):
        FileAccess(["/dev"]).read_bytes("zero")


def test_a_file_above_the_bound_is_refused_with_both_numbers(root):
    (root / "big").write_bytes(b"x" * 2001)
    with pytest.raises(ToolError, match=r"2,001 bytes, at most 2,000"):
        FileAccess([root]).read_bytes("big", max_bytes=2000)
    assert len(FileAccess([root]).read_bytes("big", max_bytes=2001)) == 2001


def test_a_file_that_reports_no_size_is_limited_too():
    with pytest.raises(ToolError, match="more than 10 bytes"):
        FileAccess(["/proc/self"]).read_bytes("status", max_bytes=10)


def test_a_folder_swapped_for_a_link_never_lets_a_secret_out(root):
    """Two threads read while another swaps a folder and a file for links to the outside."""
    (root / "door").mkdir()
    (root / "door" / "secret.txt").write_text("inside")
    (root / "trap").symlink_to(root.parent)
    (root / "file").write_text("inside")
    (root / "lure").symlink_to(root.parent / "secret.txt")
    access = FileAccess([root])
    swaps = 0
    seen = {"inside": 0, "refused": 0, SECRET: 0}

    def is_going_on():
        return swaps < 1000 or seen["inside"] < 1000 or seen["refused"] < 1000

    def swap():
        nonlocal swaps
        while is_going_on():
            for one, other in (("door", "trap"), ("file", "lure")):
                os.rename(root / one, root / "away")
                os.rename(root / other, root / one)
                os.rename(root / one, root / other)
                os.rename(root / "away", root / one)
            swaps += 1

    def read():
        while is_going_on():
            for path in ("door/secret.txt", "file"):
                try:
                    seen[access.read_text(path).text] += 1
                except ToolError:
                    seen["refused"] += 1

    threads = [threading.Thread(target=work) for work in (swap, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen[SECRET] == 0
    assert not is_going_on()


def test_a_root_swapped_for_a_link_is_refused(root):
    access = FileAccess([root])
    root.rename(root.parent / "moved")
    root.symlink_to(root.parent / "root-evil")
    with pytest.raises(ToolError):
        access.read_text("c.txt")


def test_a_root_reached_through_a_link_may_be_named_both_ways(root):
    (root.parent / "alias").symlink_to(root)
    access = FileAccess([root.parent / "alias"])
    for path in ("a.txt", f"{root.parent}/alias/a.txt", f"{root}/a.txt"):
        assert access.read_text(path).text.startswith("one")


def test_roots_are_searched_in_their_order(root):
    other = root.parent / "root-evil"
    access = FileAccess([root, other])
    assert access.read_text("a.txt").text.startswith("one")
    assert access.read_text("c.txt").text == SECRET
    assert access.glob("*.txt") == tuple(sorted(["a.txt", str(other / "c.txt")]))


def test_without_roots_nothing_is_read():
    with pytest.raises(ToolError, match="it has none"):
        FileAccess([]).read_text("a.txt")
    with pytest.raises(UsageError):
        FileAccess("folder")


@pytest.mark.parametrize(
    ("start", "count", "text", "truncated"),
    [
        (1, None, "one\ntwo\nthree\n", False),
        (2, 1, "two\n", True),
        (2, 2, "two\nthree\n", False),
        (3, 10, "three\n", False),
        (9, 1, "", False),
    ],
)
def test_a_range_of_lines_is_read(root, start, count, text, truncated):
    found = FileAccess([root]).read_text("a.txt", start_line=start, max_lines=count)
    assert (found.text, found.truncated, found.total_lines) == (text, truncated, 3)


@pytest.mark.parametrize(
    ("data", "given", "text", "encoding"),
    [
        ("é".encode(), None, "é", "utf-8"),
        ("é".encode("utf-8-sig"), None, "é", "utf-8-sig"),
        ("é".encode("utf-16"), None, "é", "utf-16"),
        ("é\n".encode("utf-16-be"), "utf-16-be", "é\n", "utf-16-be"),
        (b"\xfe\xff\0a", None, "a", "utf-16"),
        (b"\xff\xfe\0\0a\0\0\0", None, "a", "utf-32"),
        (b"\xef\xbb\xbf", None, "", "utf-8-sig"),
        ("é".encode("latin-1"), None, "é", "latin-1"),
        ("é".encode("cp437"), "cp437", "é", "cp437"),
        (b"a\r\nb", None, "a\r\nb", "utf-8"),
        (b"", None, "", "utf-8"),
    ],
)
def test_the_encoding_is_found_and_named(root, data, given, text, encoding):
    (root / "text").write_bytes(data)
    found = FileAccess([root]).read_text("text", encoding=given)
    assert (found.text, found.encoding) == (text, encoding)


@pytest.mark.parametrize(
    ("data", "given", "words"),
    [
        (b"a\0b", None, "binary"),
        (b"\xff", "utf-8", "cannot be read as utf-8"),
        (b"a", "no-such", "no-such"),
        (b"\xff\xfea", None, "cannot be read as utf-16"),
        (b"a", "", "not a known encoding"),
        (b"a", "utf-8\0", "not a known encoding"),
        (b"a", "\ud800", "not a known encoding"),
        (b"YQ==", "base64", "not a known encoding"),
        (b"a", "punycode", "not an encoding of files"),
        (b"a", "IDNA", "not an encoding of files"),
    ],
)
def test_bytes_that_are_not_text_are_refused(root, data, given, words):
    (root / "text").write_bytes(data)
    with pytest.raises(ToolError, match=words):
        FileAccess([root]).read_text("text", encoding=given)


def test_a_folder_is_listed_with_its_links_named_and_not_followed(root):
    (root / "link").symlink_to(root.parent)
    assert FileAccess([root]).list() == (
        FolderEntry("a.txt", "file", 14),
        FolderEntry("link", "link", None),
        FolderEntry("sub", "folder", None),
    )
    with pytest.raises(ToolError, match="symbolic link"):
        FileAccess([root]).list("link")
    with pytest.raises(ToolError, match="more than 2 entries"):
        FileAccess([root]).list(limit=2)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ("a.txt",)),
        ("*.py", ()),
        ("**/*.py", ("sub/b.py", "sub/deep/c.py")),
        ("**", ("a.txt", "sub/b.py", "sub/deep/c.py")),
        ("sub/*", ("sub/b.py",)),
        ("s*/**/c.py", ("sub/deep/c.py",)),
        ("**/**/a.txt", ("a.txt",)),
        ("?.[tx]*", ("a.txt",)),
        (".hidden/*", (".hidden/d.py",)),
        ("sub", ()),
        ("{root}/*.txt", ("a.txt",)),
    ],
)
def test_a_pattern_finds_regular_files_without_following_links(root, pattern, expected):
    (root / "sub" / "deep").mkdir()
    (root / "sub" / "deep" / "c.py").write_text("c")
    (root / ".hidden").mkdir()
    (root / ".hidden" / "d.py").write_text("d")
    (root / "loop").symlink_to(root)
    (root / "out").symlink_to(root.parent / "secret.txt")
    assert FileAccess([root]).glob(pattern.format(root=root)) == expected


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "sub/../../*"])
def test_a_pattern_cannot_leave_the_root(root, pattern):
    with pytest.raises(ToolError):
        FileAccess([root]).glob(pattern)


def test_a_pattern_with_too_many_matches_is_an_error_and_not_a_part(root, monkeypatch):
    with pytest.raises(ToolError, match="more than 1 file match"):
        FileAccess([root]).glob("**", limit=1)
    monkeypatch.setattr(roots, "MAX_VISITED", 2)
    with pytest.raises(ToolError, match="names would have to be examined"):
        FileAccess([root]).glob("**")


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        (".", "**", ["a.txt", "sub/b.py", "sub/deep/[c].py"]),
        (".", "*.py", ["sub/b.py", "sub/deep/[c].py"]),
        ("sub", "./*.py", ["sub/b.py"]),
        ("sub", "*/*.py", ["sub/deep/[c].py"]),
        ("{root}/sub", "b*", ["sub/b.py"]),
        ("a.txt", "**", ["a.txt"]),
        ("sub/deep/[c].py", "**", ["sub/deep/[c].py"]),
        ("sub", "none", []),
    ],
)
def test_files_are_found_below_a_folder_whose_name_is_taken_as_it_stands(
    root, path, pattern, expected
):
    (root / "sub" / "deep").mkdir()
    (root / "sub" / "deep" / "[c].py").write_text("c")
    (root / "sub" / ".hidden").write_text("h")
    (root / "sub" / "door").symlink_to(root.parent)
    assert list(FileAccess([root]).find(path.format(root=root), pattern)) == expected


def test_a_large_file_is_read_beside_the_event_loop_and_a_small_one_on_it(root, monkeypatch):
    (root / "large").write_bytes(b"x" * 1_000_000)
    seen = []
    real = file_access.read_all

    def watched(*args, **options):
        seen.append(threading.current_thread() is threading.main_thread())
        return real(*args, **options)

    monkeypatch.setattr(file_access, "read_all", watched)

    async def both():
        access = FileAccess([root])
        return [len(await access.aread_bytes(name)) for name in ("large", "a.txt")]

    assert asyncio.run(both()) == [1_000_000, 14]
    assert seen == [False, True]


def test_no_descriptor_is_left_open(root):
    (root / "link").symlink_to("a.txt")
    os.mkfifo(root / "pipe")
    access = FileAccess([root])
    before = descriptors()
    for path in ("a.txt", "link", "pipe", "none", "sub", "../x"):
        try:
            access.read_bytes(path)
        except ToolError:
            continue
    access.glob("**")
    access.list()
    assert descriptors() <= before


@pytest.mark.parametrize(
    "parts", [[".."], ["sub", "..", "..", "secret.txt"], ["", "etc", "passwd"]]
)
def test_the_lowest_layer_refuses_an_escape_by_itself(root, parts):
    folder = os.open(root, os.O_RDONLY)
    try:
        with pytest.raises(OSError) as caught:  # noqa: PT011  (the errno is what counts)
            os.close(open_below.open_beneath(folder, parts, open_below.FILE))
        assert caught.value.errno == errno.EXDEV
    finally:
        os.close(folder)
