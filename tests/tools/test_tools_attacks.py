"""Every file tool against every way out that we know: tried, counted, and none gets out."""

import asyncio
import ctypes
import itertools
import json
import os
import socket
import stat
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from evaluator import disk
from evaluator.tools import CallbackAsker, FileAccess, ToolContext, ToolRegistry, builtin_tools
from evaluator.tools.anthropic import TEXT_EDITOR, text_editor_tool

SECRET = "what lies outside"


pytestmark = pytest.mark.usefixtures("road")


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    (folder / "empty").mkdir(parents=True)
    for name in ("secret.txt", "hard.txt", "a.txt"):
        (folder / name).write_text(SECRET)
    return folder


@pytest.fixture
def root(tmp_path, outside, monkeypatch):
    inside = tmp_path / "root"
    (inside / "sub").mkdir(parents=True)
    (inside / "a.txt").write_text("inside")
    (tmp_path / "root-evil").symlink_to(outside)
    for name, target in {
        "link": "../outside/secret.txt",
        "absolute": outside / "secret.txt",
        "again": "link",
        "dangling": "../outside/new.txt",
        "door": "../outside",
        "sub/up": "../..",
        "proc": "/proc/self/root",
        "fd": "/proc/self/fd",
        "null": "/dev/null",
        "loop": "loop",
    }.items():
        (inside / name).symlink_to(target)
    os.link(outside / "hard.txt", inside / "hard")
    os.mkfifo(inside / "pipe")
    monkeypatch.chdir(inside)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    try:
        os.mknod(inside / "device", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pass  # only root can make one; /dev/zero is tried below all the same
    return inside


def look(folder):
    """All that somebody could have changed in a folder."""
    found = {}
    for path in sorted([folder, *folder.rglob("*")]):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
        changed = status.st_mtime_ns if stat.S_ISREG(status.st_mode) else None
        found[str(path)] = (status.st_ino, status.st_mode, status.st_nlink, changed, content)
    return found


PATHS = [
    "link",
    "absolute",
    "again",
    "dangling",
    "door",
    "door/secret.txt",
    "door/new.txt",
    "door/empty",
    "door/../outside/a.txt",
    "sub/up/outside/secret.txt",
    "sub/up",
    "proc/etc/passwd",
    "proc/tmp/new.txt",
    "fd/0",
    "null",
    "loop",
    "loop/x",
    "door/",
    "door/.",
    "hard",
    "./hard",
    "{root}/hard",
    "pipe",
    "pipe/x",
    "socket",
    "device",
    "/dev/zero",
    "/dev/null",
    "/dev/stdin",
    "..",
    "../outside/secret.txt",
    "sub/../../outside/secret.txt",
    "{root}/../outside/a.txt",
    "../../../../../../etc/passwd",
    "sub/../link",
    "..//outside/a.txt",
    "./../outside/a.txt",
    "{outside}/secret.txt",
    "{outside}/new.txt",
    "{outside}/empty",
    "{root}-evil/secret.txt",
    "{root}/../root-evil/secret.txt",
    "//{outside}/secret.txt",
    "/etc/passwd",
    "/",
    "//",
    ".",
    "",
    "/proc/self/environ",
    "/proc/self/mem",
    "/proc/self/cwd/a.txt",
    "/proc/self/root/etc/passwd",
    "/proc/thread-self/fd/0",
    "a.txt\0",
    "\0",
    "link\0.txt",
    "a.txt\0/../../outside/a.txt",
    "\ud800",
    "x" * 256,
    "x/" * 3000 + "y",
    "x" * 5000,
    "x/" * 500,
    "a\n.txt",
    "..\n/outside/a.txt",
    "../outside/a.txt\n",
    "\n../outside/a.txt",
    "{outside}\n/secret.txt",
    " ../outside/a.txt",
    "../OUTSIDE/SECRET.TXT",
    "LINK",
    "DOOR/secret.txt",
    "Link",
    "..\\outside\\secret.txt",
    "%2e%2e/outside/secret.txt",
    "．．/outside/secret.txt",
    "..%2foutside%2fsecret.txt",
    "~/secret.txt",
    "file://{outside}/secret.txt",
    "$OLDPWD/a.txt",
    "a.txt/",
    "a.txt/../../outside/a.txt",
    "-rf",
    "*",
    "**",
    "../*",
    "door/*",
    "[a]*",
    "sub",
    "{root}",
    ".evaluator-x.tmp",
]
DEEDS = [
    ("read_file", {}),
    ("list_files", {}),
    ("search_files", {"pattern": "."}),
    ("write_file", {"content": "theirs"}),
    ("write_file", {"content": "theirs", "create_only": True}),
    ("edit_file", {"old": "i", "new": "I", "count": 9}),
    ("delete_file", {}),
    (TEXT_EDITOR, {"command": "view"}),
    (TEXT_EDITOR, {"command": "create", "file_text": "theirs"}),
    (TEXT_EDITOR, {"command": "str_replace", "old_str": "i", "new_str": "I"}),
    (TEXT_EDITOR, {"command": "insert", "insert_line": 0, "insert_text": "theirs"}),
]
FILE_TOOLS = ToolRegistry(
    [*(builtin_tools().get(name) for name in builtin_tools().names()), text_editor_tool()]
)


def act(access, name, path, arguments):
    """A call as a model makes it, with the consent of somebody who never looks."""
    context = ToolContext(roots=access, asker=CallbackAsker(lambda question: "y"))
    named = {("pattern" if name == "glob" else "path"): path}
    tool = "list_files" if name == "glob" else name
    return asyncio.run(FILE_TOOLS.call(tool, json.dumps({**named, **arguments}), context))


def test_every_tool_with_a_path_is_attacked():
    tools = [FILE_TOOLS.get(name) for name in FILE_TOOLS.names()]
    with_path = {tool.spec.name for tool in tools if "path" in tool.spec.parameters["properties"]}
    assert with_path == {name for name, _ in DEEDS}, (
        "add each tool with a `path` to DEEDS in tests/tools/test_tools_attacks.py"
    )


@pytest.mark.parametrize(
    ("name", "arguments"), [*DEEDS, ("glob", {})], ids=lambda value: str(value)[:20]
)
def test_no_path_leads_out(root, outside, name, arguments, record_property, road):
    before = look(outside)
    special = {
        path: path.lstat().st_ino
        for path in root.rglob("*")
        if not path.is_file() or path.is_symlink()
    }
    hard = (root / "hard").stat().st_ino
    access = FileAccess([root])
    ended = {"refused": 0, "done inside": 0}
    began = time.monotonic()
    for path in PATHS:
        named = path.format(root=root, outside=outside) if "{" in path else path
        outcome = act(access, name, named, arguments)
        assert SECRET not in outcome.content, path
        assert "hard.txt" not in outcome.content, path  # a name that there is outside only
        assert look(outside) == before, path
        ended["done inside" if outcome.ok else "refused"] += 1
    kept = {path: path.lstat().st_ino for path in special if path.is_symlink() or not path.is_dir()}
    assert kept == {path: number for path, number in special.items() if path in kept}
    assert (root / "hard").stat().st_ino == hard
    assert [path.name for path in root.rglob("*.tmp") if path.name != ".evaluator-x.tmp"] == []
    record_property("attempts", len(PATHS))
    record_property("got out", 0)
    print(
        f"{name} ({road}): {len(PATHS)} attempts, {ended}, 0 got out, in {time.monotonic() - began:.1f} s"
    )
    assert ended["refused"] > 30, ended


SWAPPER = """
import ctypes, os, select, sys
exchange = ctypes.CDLL(None).renameat2
pairs = [[os.fsencode(name) for name in pair.split(":")] for pair in sys.argv[1:]]
swaps = 0
print("ready", flush=True)
while not select.select([0], [], [], 0.00002)[0] or swaps % 2:
    for one, other in pairs:
        if exchange(-100, one, -100, other, 2):
            sys.exit(f"cannot swap {one} and {other}")
    swaps += 1
print(swaps)
"""


class Swapping:
    """Another process that swaps pairs of names, in one stroke each, as fast as it can."""

    def __init__(self, *pairs):
        self.pairs = [f"{one}:{other}" for one, other in pairs]
        self.swaps = 0

    def __enter__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", SWAPPER, *self.pairs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *error):
        out, _ = self.process.communicate()
        assert self.process.returncode == 0
        self.swaps = int(out)


needs_exchange = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "renameat2"),
    reason="this system cannot exchange two names in one stroke",
)
ROUNDS = 200


def race_deeds(number):
    """Deeds on what is being swapped, each a tool's name, a path and arguments; `number` makes names new."""
    text = f"mine {number}"
    return [
        ("read_file", "door/secret.txt", {}),
        ("read_file", "file", {}),
        ("write_file", "door/secret.txt", {"content": text}),
        ("write_file", f"door/new/{number}.txt", {"content": text}),
        ("write_file", f"door/{number}.txt", {"content": text, "create_only": True}),
        ("write_file", "file", {"content": text}),
        ("edit_file", "door/secret.txt", {"old": "m", "new": "mm"}),
        ("edit_file", "file", {"old": "m", "new": "mm"}),
        ("delete_file", f"door/{number}.txt", {}),
        ("delete_file", "door/a.txt", {}),
        ("delete_file", "door/empty", {}),
        ("list_files", "door", {}),
    ]


async def raced(access, deeds, outside, before):
    """Runs the deeds of all rounds; how many ended how."""
    registry = ToolRegistry(replace(tool, policy="allow") for tool in builtin_tools())
    context = ToolContext(roots=access)
    ended = {"done inside": 0, "refused": 0, "got out": 0}
    for number in range(100 * ROUNDS):
        # On a busy machine the names may stay as they are for a while.
        if number >= ROUNDS and min(ended["done inside"], ended["refused"]) > 100:
            break
        for name, path, arguments in deeds(number):
            outcome = await registry.call(name, json.dumps({"path": path, **arguments}), context)
            got_out = SECRET in outcome.content or "hard.txt" in outcome.content
            ended["got out" if got_out else "done inside" if outcome.ok else "refused"] += 1
        if number % 50 == 0:
            ended["got out"] += look(outside) != before
    return ended


def naive(path, rounds=2_000_000):
    """What a program gets that trusts a path: the proof that the trap is set."""
    got_out = 0
    for _ in range(rounds):
        try:
            with open(path, encoding="utf-8") as file:
                got_out += SECRET in file.read()
        except OSError:
            continue
        if got_out == 10:
            break
    return got_out


@needs_exchange
def test_a_folder_or_file_swapped_for_a_link_never_lets_a_tool_out(
    tmp_path, outside, record_property, road
):
    root = tmp_path / "race"
    (root / "door").mkdir(parents=True)
    for name in ("door/secret.txt", "file"):
        (root / name).write_text("mine")
    (root / "trap").symlink_to(outside)
    (root / "lure").symlink_to(outside / "secret.txt")
    before = look(outside)
    with Swapping((root / "door", root / "trap"), (root / "file", root / "lure")) as swapping:
        assert naive(root / "door" / "secret.txt") == 10
        assert naive(root / "file") == 10
        ended = asyncio.run(raced(FileAccess([root]), race_deeds, outside, before))
    report(record_property, f"folder and file ({road})", ended, swapping.swaps)
    assert look(outside) == before
    assert list(root.rglob("*.tmp")) == []


@needs_exchange
def test_a_root_swapped_for_a_link_never_lets_a_tool_out(tmp_path, outside, record_property, road):
    root = tmp_path / "race"
    root.mkdir()
    (root / "a.txt").write_text("mine")
    (tmp_path / "trap").symlink_to(outside)
    before = look(outside)
    deeds = [
        ("read_file", "a.txt", {}),
        ("write_file", "a.txt", {"content": "mine"}),
        ("write_file", "new.txt", {"content": "mine"}),
        ("edit_file", "a.txt", {"old": "m", "new": "mm"}),
        ("delete_file", "new.txt", {}),
        ("delete_file", "secret.txt", {}),
        ("delete_file", "empty", {}),
        ("list_files", ".", {}),
    ]
    access = FileAccess([root])
    with Swapping((root, tmp_path / "trap")) as swapping:
        assert naive(root / "a.txt") == 10
        ended = asyncio.run(raced(access, lambda number: deeds, outside, before))
    report(record_property, f"root ({road})", ended, swapping.swaps)
    assert look(outside) == before


def report(record_property, what, ended, swaps):
    attempts = sum(ended.values())
    record_property("attempts", attempts)
    record_property("swaps", swaps)
    record_property("got out", ended["got out"])
    print(f"{what}: {attempts:,} attempts against {swaps:,} swaps: {ended}")
    assert ended["got out"] == 0, ended
    assert swaps > 100
    assert min(ended["done inside"], ended["refused"]) > 100, ended


@pytest.mark.parametrize("above", ["the root itself", "a folder above it"])
def test_a_root_that_has_become_a_link_is_used_by_no_tool(root, outside, tmp_path, above):
    swapped, link = (
        (root, outside) if above == "the root itself" else (tmp_path / "above", tmp_path)
    )
    if swapped != root:
        swapped.mkdir()
        (swapped / "outside").mkdir()
    access = FileAccess([root if swapped == root else swapped / "outside"])
    swapped.rename(tmp_path / "moved")
    swapped.symlink_to(link)
    before = look(outside)
    for (name, arguments), path in itertools.product(
        DEEDS, ["a.txt", "secret.txt", "new.txt", "empty", "."]
    ):
        outcome = act(access, name, path, arguments)
        assert not outcome.ok, (name, path)
        assert SECRET not in outcome.content
    assert look(outside) == before


def test_what_is_swapped_for_a_link_between_look_and_rename_is_not_written_through(
    root, outside, monkeypatch
):
    """The narrowest moment, hit for certain: the name becomes a link after it was checked for the last time."""
    real = os.rename

    def late(*args, **options):
        (root / "a.txt").unlink()
        (root / "a.txt").symlink_to(outside / "secret.txt")
        return real(*args, **options)

    before = look(outside)
    monkeypatch.setattr(disk, "rename", late)
    assert act(FileAccess([root]), "write_file", "a.txt", {"content": "mine"}).ok
    monkeypatch.undo()
    assert (root / "a.txt").read_text() == "mine"
    assert not (root / "a.txt").is_symlink()
    assert look(outside) == before


RECORD = [
    "tasks",
    "tasks/active",
    "tasks/active/TASK-1.md",
    "./tasks//active/./TASK-1.md",
    "tasks/active/new.md",
    "tasks/new/deep/new.md",
    "{root}/tasks/active/TASK-1.md",
    "index.db",
    "index.db-wal",
    "tasks/active/empty",
]


@pytest.mark.parametrize(
    ("name", "arguments"), [*DEEDS, ("glob", {})], ids=lambda value: str(value)[:20]
)
def test_what_is_closed_is_touched_by_no_tool_whatever_the_way(tmp_path, name, arguments):
    root = tmp_path / "root"
    (root / "tasks" / "active" / "empty").mkdir(parents=True)
    (root / "tasks" / "active" / "TASK-1.md").write_text(SECRET)
    (root / "index.db").write_text(SECRET)
    (tmp_path / "alias").symlink_to(root)
    before = look(root)
    record, index = tmp_path / "alias" / "tasks", root / "index.db"
    for folder, prefix in (
        (root, ""),
        (tmp_path / "alias", ""),
        (tmp_path, "root/"),
        (root / "tasks", None),
    ):
        access = FileAccess([folder]).without([record, index, f"{index}-wal"])
        for path in RECORD:
            named = path.format(root=root)
            if not named.startswith("/"):
                named = named.removeprefix("tasks/") if prefix is None else prefix + named
            outcome = act(access, name, named, arguments)
            assert SECRET not in outcome.content, (folder, named)
            assert look(root) == before, (folder, named)


def test_what_is_closed_is_passed_over_by_whatever_looks_below(tmp_path):
    for name in ("tasks/active/TASK-1.md", "tasks/.last-id", "notes/a.md", "index.db"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("needle")
    access = FileAccess([tmp_path], [tmp_path / "tasks", tmp_path / "index.db"])
    assert access.glob("**/*") == ("notes/a.md",)
    assert list(access.find()) == ["notes/a.md"]
    assert (
        "notes/a.md:1:needle\n[1 file searched]"
        in act(access, "search_files", ".", {"pattern": "needle"}).content
    )
    assert access.read_text("notes/a.md").text == "needle"
    assert "the program itself" in act(access, "read_file", "tasks/active/TASK-1.md", {}).content
