"""Templates that are broken or hostile: an error with file, line, column and what to do; the others still load."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evaluator import Evaluator, SimulatedBackend, TaskError, TemplateLibrary

GOOD = '<task name="good" type="atomic"><description>Say hello.</description></task>'
TASK = '<task name="t" type="atomic"><description>d</description>{}</task>'

# name → (content, line, what the message says, what the hint says)
BROKEN: dict[str, tuple[str | bytes, int, str, str]] = {
    "no end": (
        '<task name="t" type="atomic">\n<description>d</description>\n',
        1,
        "task",
        "</task>",
    ),
    "wrong end": (
        '<task name="t" type="atomic">\n<description>d</instructions>\n</task>',
        2,
        "description",
        "",
    ),
    "bare ampersand": (TASK.format("\n<instructions>a & b</instructions>"), 2, "&", "&amp;"),
    "two roots": (TASK.format("") + "\n<task/>", 2, "", ""),
    "empty": ("", 1, "empty", "<task"),
    "only blanks": ("\n \n", 1, "", "<task"),
    "not xml": ("name: t\ntype: atomic\n", 1, "", ""),
    "a NUL": (TASK.format("<instructions>a\x00b</instructions>"), 1, "", ""),
    "not UTF-8": (
        TASK.format("<instructions>caf\xe9</instructions>").encode("latin-1"),
        1,
        "utf-8",
        "UTF-8",
    ),
    "entity bomb": (
        '<!DOCTYPE task [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>\n'
        + TASK.format("&b;"),
        1,
        "document type",
        "remove",
    ),
    "external entity": (
        '<!DOCTYPE task [<!ENTITY x SYSTEM "file:///etc/passwd">]>\n'
        + TASK.format("<instructions>&x;</instructions>"),
        1,
        "document type",
        "remove",
    ),
    "external DTD": (
        '<!DOCTYPE task SYSTEM "http://127.0.0.1:1/x.dtd">\n' + TASK.format(""),
        1,
        "document type",
        "remove",
    ),
    "undeclared entity": (TASK.format("\n<instructions>&nbsp;</instructions>"), 2, "nbsp", ""),
    "XInclude": (
        TASK.format(
            '\n<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="/etc/passwd" parse="text"/>'
        ),
        2,
        "XInclude",
        "",
    ),
    "include outside": (
        TASK.format('\n<include href="../../../etc/passwd"/>'),
        2,
        "etc/passwd",
        "",
    ),
    "unknown element": (
        TASK.format("\n<instruction>x</instruction>"),
        2,
        "instruction",
        "instructions",
    ),
    "unknown attribute": (
        '<task name="t" type="atomic"\n modle="x"><description>d</description></task>',
        2,
        "modle",
        "",
    ),
    "unknown type": (
        '<task name="t" type="atomc"><description>d</description></task>',
        1,
        "atomc",
        "atomic",
    ),
    "no description": ('<task name="t" type="atomic"/>', 1, "description", ""),
    "wrong root": ("<tasks/>", 1, "tasks", "task"),
    "duplicate input": (
        TASK.format(
            '<instructions>{{ a }}</instructions>\n<inputs><input name="a"/>\n<input name="a"/></inputs>'
        ),
        3,
        "a",
        "",
    ),
    "undefined variable": (
        TASK.format("\n<instructions>{{ nothing }}</instructions>"),
        2,
        "nothing",
        "",
    ),
    "open placeholder": (TASK.format("\n<instructions>{{ a</instructions>"), 2, "", ""),
    "open block": (
        TASK.format("\n<instructions>{% for x in [1] %}{{ x }}</instructions>"),
        2,
        "for",
        "",
    ),
    "a call of nothing": (
        '<task name="t" type="sequential"><description>d</description>\n<steps><call template="nope"/></steps></task>',
        2,
        "nope",
        "",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_template_is_an_error_with_its_place_and_the_others_load(
    case: str, tmp_path: Path
) -> None:
    content, line, says, hint = BROKEN[case]
    bad = tmp_path / "bad.xml"
    bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "good.xml").write_text(GOOD)
    library = TemplateLibrary.load(tmp_path, shipped=False)
    assert list(library) == ["good"]
    first = library.errors[0]
    assert first.span.file == str(bad)
    assert first.span.line == line, str(first)
    assert first.span.column >= 1
    assert says.lower() in first.message.lower(), str(first)
    assert hint.lower() in f"{first.message} {first.hint or ''}".lower(), str(first)
    shown = library.format_diagnostic(first)
    assert f"{bad}:{line}:" in shown
    assert "root:" not in shown, "the message shows a file that the template must not reach"


def test_an_entity_bomb_is_refused(tmp_path: Path) -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    (tmp_path / "bomb.xml").write_text(
        f'<!DOCTYPE task [<!ENTITY e0 "aaaa">{entities}]>' + TASK.format("&e11;")
    )
    library = TemplateLibrary.load(tmp_path, shipped=False)
    assert len(library.errors) == 1


def test_a_template_of_100_MB_is_refused_unread(tmp_path: Path) -> None:
    big = tmp_path / "big.xml"
    with open(big, "wb") as file:
        file.write(b'<task name="big" type="atomic"><description>')
        file.truncate(100_000_000)
    (tmp_path / "good.xml").write_text(GOOD)
    library = TemplateLibrary.load(tmp_path, shipped=False)
    assert list(library) == ["good"]
    (error,) = library.errors
    assert "has more than 4,194,304 bytes, which is the limit" in error.message


@pytest.mark.parametrize(
    "text",
    [
        "<task>" * 5_000 + "</task>" * 5_000,
        TASK.format("<inputs>" + "<input/>" * 300_000 + "</inputs>"),
    ],
    ids=["5,000 levels", "300,000 elements"],
)
def test_a_template_too_deep_or_too_wide_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.xml").write_text(text)
    library = TemplateLibrary.load(tmp_path, shipped=False)
    assert [d.code for d in library.errors] in (["too-deep"], ["too-many-elements"], ["too-large"])


def test_one_name_in_two_files_is_an_error_that_names_both_places(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text("\n" + GOOD)
    (tmp_path / "b.xml").write_text(GOOD.replace("hello", "goodbye"))
    library = TemplateLibrary.load(tmp_path, shipped=False)
    (error,) = library.errors
    assert error.code == "duplicate-name"
    assert str(tmp_path / "b.xml") == error.span.file
    assert f"{tmp_path / 'a.xml'}, line 2" in error.message
    assert "rename" in (error.hint or "")


def test_a_link_that_leads_out_of_the_library_is_refused(tmp_path: Path) -> None:
    outside = tmp_path / "outside.xml"
    outside.write_text(GOOD.replace("good", "secret"))
    inside = tmp_path / "library"
    inside.mkdir()
    (inside / "link.xml").symlink_to(outside)
    (inside / "nowhere.xml").symlink_to(inside / "missing")
    library = TemplateLibrary.load(inside, shipped=False)
    assert list(library) == []
    assert {d.code for d in library.errors} == {"link-refused"}
    assert all("leads" in d.message for d in library.errors)


def test_a_pipe_or_a_folder_in_place_of_a_template_does_not_stop_the_load(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.xml")
    (tmp_path / "folder.xml").mkdir()
    (tmp_path / "good.xml").write_text(GOOD)
    library = TemplateLibrary.load(tmp_path, shipped=False)
    assert list(library) == ["good"]
    assert all(str(tmp_path) in str(d) for d in library.errors)


def test_evaluating_a_broken_template_by_name_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    (tmp_path / "t.xml").write_text(TASK.format("\n<instructions>{{ nothing }}</instructions>"))
    library = TemplateLibrary.load(tmp_path, shipped=False)
    evaluator = Evaluator(
        library, "offline", backend=SimulatedBackend(), tasks_dir=tmp_path / "tasks"
    )
    error = evaluator.evaluate_sync("t")
    assert isinstance(error, TaskError)
    assert not error.ok
    assert "t.xml:2:" in f"{error.location} {error.message} {error.violations}", str(error)
