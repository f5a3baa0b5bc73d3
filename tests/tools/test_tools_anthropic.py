"""The text editor that Anthropic's models know views and edits files, and never leaves the task's folders."""

import asyncio
import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.processes.shell import Shell
from evaluator.tools import CallbackAsker, FileAccess, ToolContext, ToolRegistry
from evaluator.tools.anthropic import NATIVE, TEXT_EDITOR, bash_tool, text_editor_tool


@pytest.fixture
def folder(tmp_path):
    inside = tmp_path / "root"
    (inside / "sub/deep/deeper").mkdir(parents=True)
    (inside / "a.txt").write_text("one\ntwo\nthree\n")
    (inside / "sub/b.txt").write_text("b\n")
    (inside / "sub/deep/c.txt").write_text("c\n")
    (inside / ".hidden").write_text("h\n")
    (inside / "link").symlink_to("/etc")
    (tmp_path / "outside.txt").write_text("secret\n")
    return inside


def call(folder, asker=None, *, policy="allow", **arguments):
    tool = text_editor_tool()
    registry = ToolRegistry([tool])
    if policy == "allow":
        registry = ToolRegistry([replace(tool, policy="allow")])
    context = ToolContext(roots=FileAccess([folder]), asker=asker)
    return asyncio.run(registry.call(TEXT_EDITOR, json.dumps(arguments), context))


def snapshot(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("view_range", "shown"),
    [
        (None, "     1\tone\n     2\ttwo\n     3\tthree"),
        ([1, -1], "     1\tone\n     2\ttwo\n     3\tthree"),
        ([2, 2], "     2\ttwo"),
        ([2, 99], "     2\ttwo\n     3\tthree"),
        ([4, -1], "Error: 'a.txt' has 3 lines; view_range begins at 4"),
        (
            [0, 2],
            "Error: view_range is [0, 2]; its lines count from 1, and the last may be -1 for the end",
        ),
        (
            [3, 2],
            "Error: view_range is [3, 2]; its lines count from 1, and the last may be -1 for the end",
        ),
        (
            [2, -2],
            "Error: view_range is [2, -2]; its lines count from 1, and the last may be -1 for the end",
        ),
    ],
)
def test_view_numbers_the_lines_of_a_file(folder, view_range, shown):
    arguments = {} if view_range is None else {"view_range": view_range}
    assert call(folder, command="view", path="a.txt", **arguments).content == shown


def test_a_long_file_is_cut_and_names_the_range_that_follows(folder):
    (folder / "long.txt").write_text("".join(f"{n}\n" for n in range(1, 2502)))
    shown = call(folder, command="view", path="long.txt").content
    assert shown.endswith(
        "  2000\t2000\n[lines 1 to 2000 of 2501; continue with view_range=[2001, -1]]"
    )
    assert (
        call(folder, command="view", path="long.txt", view_range=[2501, -1]).content
        == "  2501\t2501"
    )
    part = call(folder, command="view", path="long.txt", view_range=[101, 2400]).content
    assert part.endswith("[lines 101 to 2100 of 2501; continue with view_range=[2101, 2400]]")


def test_an_empty_file_is_shown_as_empty(folder):
    (folder / "empty").write_text("")
    assert call(folder, command="view", path="empty").content == "[empty is empty]"


def test_a_folder_is_shown_two_levels_deep_without_hidden_names(folder):
    expected = "./\n./a.txt\n./link (link)\n./sub/\n./sub/b.txt\n./sub/deep/"
    assert call(folder, command="view", path=".").content == expected
    assert call(folder, command="view", path="sub/").content == (
        "sub/\nsub/b.txt\nsub/deep/\nsub/deep/c.txt\nsub/deep/deeper/"
    )
    assert (
        "view_range is for files"
        in call(folder, command="view", path=".", view_range=[1, 2]).content
    )


def test_an_absolute_path_below_the_root_is_that_file(folder):
    assert (
        call(folder, command="view", path=str(folder / "a.txt"), view_range=[1, 1]).content
        == "     1\tone"
    )


def test_create_makes_a_file_with_its_folders_and_never_replaces_one(folder):
    assert (
        call(folder, command="create", path="n/é.txt", file_text="ü\n").content
        == "created n/é.txt (3 bytes)"
    )
    assert (folder / "n/é.txt").read_text() == "ü\n"
    before = snapshot(folder)
    assert "exists already" in call(folder, command="create", path="a.txt", file_text="x").content
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    ("before", "arguments", "after", "said"),
    [
        (b"a b c", {"old_str": "b", "new_str": "x"}, b"a x c", "edited f in 1 place"),
        (b"a b c", {"old_str": " b"}, b"a c", "edited f in 1 place"),
        (
            b"a\r\nb\r\n",
            {"old_str": "a\nb", "new_str": "x\ny"},
            b"x\r\ny\r\n",
            "edited f in 1 place",
        ),
        (b"\xe4 b", {"old_str": "b", "new_str": "\xf6"}, b"\xe4 \xf6", "edited f in 1 place"),
        (
            b"\xef\xbb\xbfa",
            {"old_str": "a", "new_str": "b"},
            b"\xef\xbb\xbfb",
            "edited f in 1 place",
        ),
        (b"a b", {"old_str": "c", "new_str": "x"}, None, "old does not occur in 'f'"),
        (
            b"a\nb a\n",
            {"old_str": "a", "new_str": "x"},
            None,
            "occurs 2 times in 'f' (lines 1, 2); give more",
        ),
        (
            b"a\r\nb\r\na\r\nb",
            {"old_str": "a\nb", "new_str": "x"},
            None,
            "occurs 2 times in 'f' (lines 1, 3); give",
        ),
        (
            b"x\n" * 9,
            {"old_str": "x", "new_str": "y"},
            None,
            "occurs 9 times in 'f' (lines 1, 2, 3, 4, 5, …)",
        ),
        (b"a", {"old_str": "", "new_str": "x"}, None, "old is empty"),
        (b"a", {"old_str": "a", "new_str": "a"}, None, "the same text"),
        (b"a", {"new_str": "x"}, None, "str_replace needs old_str"),
        (b"\0a", {"old_str": "a", "new_str": "x"}, None, "binary"),
    ],
)
def test_str_replace_changes_a_text_that_occurs_once(folder, before, arguments, after, said):
    (folder / "f").write_bytes(before)
    outcome = call(folder, command="str_replace", path="f", **arguments)
    assert said in outcome.content
    assert outcome.ok == (after is not None)
    assert (folder / "f").read_bytes() == (before if after is None else after)


@pytest.mark.parametrize(
    ("before", "line", "text", "after"),
    [
        (b"a\nb\n", 0, "x", b"x\na\nb\n"),
        (b"a\nb\n", 1, "x\n", b"a\nx\nb\n"),
        (b"a\nb\n", 1, "x\ny", b"a\nx\ny\nb\n"),
        (b"a\nb\n", 2, "x\n", b"a\nb\nx\n"),
        (b"a\nb", 2, "x", b"a\nb\nx"),
        (b"a\r\nb\r\n", 1, "x\ny\n", b"a\r\nx\r\ny\r\nb\r\n"),
        (b"\xe4\n", 1, "\xf6\n", b"\xe4\n\xf6\n"),
        (b"", 0, "x\n", b"x\n"),
        (b"a\n", 2, "x", None),
        (b"", 1, "x", None),
        (b"a\n", 1, "", None),
    ],
)
def test_insert_puts_whole_lines_after_a_line(folder, before, line, text, after):
    (folder / "f").write_bytes(before)
    outcome = call(folder, command="insert", path="f", insert_line=line, insert_text=text)
    assert outcome.ok == (after is not None)
    assert (folder / "f").read_bytes() == (before if after is None else after)


def test_the_text_to_insert_may_also_be_called_new_str(folder):
    assert call(folder, command="insert", path="a.txt", insert_line=0, new_str="zero").ok
    assert (folder / "a.txt").read_text() == "zero\none\ntwo\nthree\n"


@given(
    st.lists(st.text(st.sampled_from("ab\r "), max_size=3), max_size=5),
    st.booleans(),
    st.lists(st.text(st.sampled_from("xyz"), min_size=1, max_size=3), min_size=1, max_size=3),
    st.data(),
)
def test_an_insert_adds_text_after_its_line_and_changes_nothing_else(
    tmp_path_factory, lines, ended, added, data
):
    folder = tmp_path_factory.mktemp("insert")
    text = "\n".join(lines) + ("\n" if ended and lines else "")
    count = text.count("\n") + (0 if not text or text.endswith("\n") else 1)
    line = data.draw(st.integers(0, count))
    (folder / "f").write_bytes(text.encode())
    assert call(
        folder, command="insert", path="f", insert_line=line, insert_text="\n".join(added)
    ).ok
    plain = [part.rstrip("\r") for part in (folder / "f").read_bytes().decode().split("\n")]
    assert plain[line : line + len(added)] == added
    rest = plain[:line] + plain[line + len(added) :]
    was = [part.rstrip("\r") for part in text.split("\n")]
    assert [part for part in rest if part] == [part for part in was if part]


@pytest.mark.parametrize(
    "path",
    [
        "../outside.txt",
        "/etc/passwd",
        "link/passwd",
        "sub/../../outside.txt",
        "hard",
        "pipe",
        "",
        "a\0b",
    ],
)
@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "view"},
        {"command": "create", "file_text": "x"},
        {"command": "str_replace", "old_str": "secret", "new_str": "x"},
        {"command": "insert", "insert_line": 0, "insert_text": "x"},
    ],
    ids=lambda arguments: arguments["command"],
)
def test_nothing_outside_is_shown_or_changed(folder, path, arguments):
    os.link(folder.parent / "outside.txt", folder / "hard")
    os.mkfifo(folder / "pipe")
    before = snapshot(folder.parent)
    outcome = call(folder, path=path, **arguments)
    assert not outcome.ok
    assert "secret" not in outcome.content
    assert snapshot(folder.parent) == before


def test_viewing_is_allowed_and_a_change_asks_showing_the_lines_that_change(folder):
    asked = []

    def answer(question):
        asked.append(question)
        return "yes"

    asker = CallbackAsker(answer)
    assert call(folder, asker, policy=None, command="view", path="a.txt").ok
    assert asked == []
    assert call(
        folder, asker, policy=None, command="str_replace", path="a.txt", old_str="two", new_str="2"
    ).ok
    assert call(
        folder, asker, policy=None, command="insert", path="a.txt", insert_line=0, insert_text="0"
    ).ok
    assert call(folder, asker, policy=None, command="create", path="new", file_text="n\n").ok
    assert [question.splitlines()[1:-1] for question in asked] == [
        ['"a.txt": edits the file', "@@ from line 1 @@", " one", "-two", "+2", " three"],
        ['"a.txt": edits the file', "@@ from line 1 @@", "+0", " one", " 2", " three"],
        ['"new": a new file', "@@ from line 1 @@", "+n"],
    ]


@pytest.mark.parametrize("command", ["create", "str_replace", "insert"])
def test_without_an_asker_nothing_is_changed(folder, command):
    texts = {
        "file_text": "x",
        "old_str": "two",
        "new_str": "2",
        "insert_line": 0,
        "insert_text": "0",
    }
    before = snapshot(folder)
    outcome = call(
        folder,
        policy=None,
        command=command,
        path="new" if command == "create" else "a.txt",
        **texts,
    )
    assert outcome.code == "denied"
    assert snapshot(folder) == before


def test_a_change_that_cannot_succeed_does_not_ask(folder):
    def answer(question):
        raise AssertionError(question)

    outcome = call(
        folder,
        CallbackAsker(answer),
        policy=None,
        command="str_replace",
        path="a.txt",
        old_str="none",
        new_str="x",
    )
    assert "does not occur" in outcome.content


def test_the_names_by_which_the_models_know_these_tools_are_the_names_of_the_tools():
    for tool in (text_editor_tool(), bash_tool(Shell())):
        assert NATIVE[tool.name]["name"] == tool.name
        assert (tool.policy, tool.retryable, tool.effect) == ("ask", False, True)
