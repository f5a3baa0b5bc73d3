"""Typing: no broken text makes the project raise, and the findings are those of `lint`."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from lsprotocol import types

from evaluator import Diagnostic, TemplateError, TemplateLibrary, UsageError, load_profiles
from evaluator.editor.actions import actions
from evaluator.editor.completion import completions
from evaluator.editor.hover import folding, hover, lenses, symbols
from evaluator.editor.project import Document, Project
from evaluator.editor.server import rendered, simulated
from evaluator.interpreter.linting import lint
from evaluator.xml.source import read_source
from tests.editor.conftest import PLAN, POLITE, write_project

OPENED = re.compile(r"<(\w+)(?:\s[^<>]*)?(?<!/)\Z")
PIECES = ["<", ">", '"', "&", "</", "<input na", "<!--", "<![CDATA[", "{{", "<<", "/>", "=", "\x01"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    folder = write_project(tmp_path.resolve())
    monkeypatch.chdir(folder)
    return Project(folder, types.PositionEncodingKind.Utf16)


def is_well_formed(text: str) -> bool:
    try:
        read_source(text)
    except TemplateError:
        return False
    return True


def ask_everything(project: Project, path: str, offset: int) -> None:
    document = project.documents[path]
    position = document.position(offset)
    completions(project, document, position, with_snippets=True)
    hover(project, document, position)
    symbols(document)
    folding(document)
    view = project.view(path)
    assert view is not None
    lenses(project, view)
    findings = project.findings().get(path, [])
    list(actions(project, document, max(0, offset - 40), offset, findings, can_create=True))


def linted(path: Path, text: str) -> list[Diagnostic]:
    """What `evaluator lint templates` finds in a file with this text."""
    path.write_text(text, encoding="utf-8")
    found = lint(TemplateLibrary.load("templates"), load_profiles(trust=True))
    return [d for d in found if Path(d.span.file or "").resolve() == path]


def test_a_session_of_many_keystrokes_finds_what_lint_finds(project: Project) -> None:
    """The author types a template, makes mistakes, and deletes and types parts of it again; the
    editor closes each tag.
    """
    generator = random.Random(7)
    path = project.folder / "templates" / "new.xml"
    text = ""
    cursor = 0
    waiting = list(PLAN.replace('name="plan"', 'name="new"'))
    before_mistake = None
    compared = 0
    for keystroke in range(800):
        if before_mistake is not None and keystroke % 8 == 7:
            text, cursor = before_mistake
            before_mistake = None
        elif keystroke % 8 == 0 and generator.random() < 0.3:
            before_mistake = (text, cursor)
            cursor = generator.choice([cursor, generator.randrange(len(text) + 1)])
            piece = generator.choice(PIECES)
            text = text[:cursor] + piece + text[cursor + generator.randint(0, 9) :]
            cursor += len(piece)
        elif before_mistake is not None or not waiting:
            text = text[:cursor] + generator.choice("ae{}<> \n") + text[cursor:]
            cursor += 1
        else:
            key = waiting.pop(0)
            end = "".join([key, *waiting[:40]]).partition(">")[0] + ">"
            tag = OPENED.search(text[:cursor]) if key == ">" else None
            closing = "" if tag is None else f"</{tag[1]}>"
            if end.startswith("</") and text.startswith(end, cursor):
                del waiting[: len(end) - 1]
                cursor += len(end)
            else:
                text = text[:cursor] + key + closing + text[cursor:]
                cursor += 1
        project.open(str(path), text, keystroke)
        findings = project.findings().get(str(path), [])
        if keystroke % 25 == 0:
            ask_everything(project, str(path), cursor)
        if is_well_formed(text) and keystroke % 6 == 0:
            compared += 1
            assert findings == linted(path, text)
    assert compared > 30


@pytest.mark.parametrize("seed", range(2))
def test_edits_of_several_files_find_what_a_fresh_load_finds(project: Project, seed: int) -> None:
    generator = random.Random(seed)
    texts = {
        "plan.xml": PLAN,
        "polite.xml": POLITE,
        "heir.xml": '<task name="heir" type="sequential" ref="plan"><description>d</description></task>',
        "caller.xml": (
            '<task name="caller" type="sequential"><description>d</description><steps>'
            '<call template="plan"><arg name="letter">x</arg></call><call template="heir"/>'
            "</steps></task>"
        ),
    }
    changes = [
        ("text, tone", "body, tone"),
        ("{{ tone }}", "{{ tune }}"),
        ('name="polite"', 'name="rude"'),
        ('name="words" type="integer" default="80"', 'name="words" type="string" required="true"'),
        ("</description>", "<description>"),
        ('ref="plan"', 'ref="heir"'),
        ('template="heir"', 'template="caller"'),
        ("<steps>", "<steps><bogus/>"),
        ('{"type": "array"}', '{"type": "string"}'),
    ]
    for number in range(25):
        name = generator.choice(list(texts))
        old, new = generator.choice(changes)
        if generator.random() < 0.5:
            old, new = new, old
        texts[name] = texts[name].replace(old, new, 1)
        path = project.folder / "templates" / name
        project.open(str(path), texts[name], number)
        for other, text in texts.items():
            (project.folder / "templates" / other).write_text(text, encoding="utf-8")
            if str(project.folder / "templates" / other) not in project.documents:
                project.open(str(project.folder / "templates" / other), text, number)
        found = lint(TemplateLibrary.load("templates"), load_profiles(trust=True))
        mine = [d for each in project.findings().values() for d in each]
        assert sorted(map(str, mine)) == sorted(map(str, found)), (name, old, new)


def test_positions_count_in_the_units_of_the_client() -> None:
    text = "é𝄞x\r\n<a/>"
    for encoding, units in (("utf-8", 6), ("utf-16", 3), ("utf-32", 2)):
        document = Document("/t.xml", text, encoding)
        assert document.position(2) == types.Position(0, units)
        assert document.offset(types.Position(0, units)) == 2
        assert document.offset(types.Position(1, 1)) == document.text.index("<") + 1


def test_opening_a_file_imports_no_code_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_project(tmp_path.resolve())
    (folder / "shapes.py").write_text("open('imported', 'w')", encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    text = PLAN.replace(
        '{"type": "object", "properties": {"points": {"type": "array"}, "mood": {"type": "string"}}}',
        "",
    ).replace('<output_format type="json">', '<output_format type="json" schema="shapes:Facts">')
    assert 'schema="shapes:Facts"' in text
    project = Project(folder, types.PositionEncodingKind.Utf16)
    path = str(folder / "templates" / "plan.xml")
    project.open(path, text, 1)
    ask_everything(project, path, text.index("letter | trim"))
    assert project.findings().get(path, []) == []
    assert not (folder / "imported").exists()


def test_looking_at_a_hostile_project_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_project(tmp_path.resolve())
    (folder / "handlers").mkdir()
    profile = '<handler name="default"><mcp><server name="m" command="touch"><arg>MARK-mcp</arg></server></mcp></handler>'
    (folder / "handlers" / "default.xml").write_text(profile, encoding="utf-8")
    monkeypatch.chdir(folder)
    project = Project(folder, types.PositionEncodingKind.Utf16)
    for name, text in {
        "run": '<task name="run" type="script"><description>d</description><command>touch MARK</command></task>',
        "list": '<task name="list" type="atomic"><description>d</description><file_paths source="command"><command>touch MARK</command></file_paths></task>',
    }.items():
        path = str(folder / "templates" / f"{name}.xml")
        project.open(path, text, 1)
        ask_everything(project, path, text.index("<description"))
        view = project.view(path)
        assert view is not None and "MARK" not in rendered(project, view, name)
        with pytest.raises(UsageError, match="runs programs"):
            simulated(project, view, name)
    assert list(folder.rglob("MARK*")) == []
