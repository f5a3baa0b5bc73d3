"""Each capability of the language server, asked by a client over standard input and output."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from lsprotocol import types

from tests.editor.conftest import PLAN, POLITE, write_project
from tests.editor.lsp_client import Editor, apply

# pygls 2.1 calls it, also for the test's own client. Python warns of it from 3.14 on.
pytestmark = pytest.mark.filterwarnings(
    "ignore:'asyncio.iscoroutinefunction' is deprecated:DeprecationWarning"
)

NAME = "templates/plan.xml"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    folder = write_project(tmp_path_factory.mktemp("project").resolve())
    with Editor(folder, model="openai/gpt-4o-mini") as editor:
        editor.open(NAME)
        yield editor


@pytest.fixture
def editor(session: Editor) -> Editor:
    """The session with the text as it was at first."""
    session.change(NAME, PLAN)
    session.messages.clear()
    return session


def changed(editor: Editor, old: str, new: str) -> None:
    assert PLAN.count(old) == 1
    editor.change(NAME, PLAN.replace(old, new))


def test_findings_are_those_of_lint_and_follow_the_text(editor: Editor) -> None:
    assert editor.findings(NAME) == []
    changed(editor, "{{ letter | trim }}", "{{ lettr | trim }} é𝄞 {{ letter | uper }}")
    found = editor.findings(NAME)
    assert [d.code for d in found] == ["undefined-variable", "unknown-filter"]
    line = PLAN[: PLAN.index("{{ letter")].count("\n")
    assert str(found[0].range) == f"{line}:41-{line}:46"
    # In UTF-16 the clef counts twice.
    assert found[1].range.start.character == 41 + len("lettr | trim }} é𝄞 {{ letter | ") + 1
    changed(editor, "</steps>", "</step>")
    assert [d.code for d in editor.findings(NAME)] == ["not-well-formed"]


def test_a_change_shows_what_it_breaks_in_other_files(editor: Editor) -> None:
    editor.open("templates/polite.xml", POLITE.replace("text, tone", "body, tone"))
    try:
        editor.findings("templates/polite.xml")
        changed(editor, "<steps>", "<steps><!-- x -->")
        assert [d.code for d in editor.findings(NAME)] == ["wrong-arity", "wrong-arity"]
        editor.change("templates/polite.xml", POLITE)
        editor.findings("templates/polite.xml")
    finally:
        identifier = editor.identifier("templates/polite.xml")
        editor.client.text_document_did_close(types.DidCloseTextDocumentParams(identifier))
    changed(editor, "<steps>", "<steps><!-- y -->")
    assert editor.findings(NAME) == []


@pytest.mark.parametrize(
    ("old", "new", "after", "labels"),
    [
        ("<steps>", "<steps>\n<", "<steps>\n<", {"task", "call", "cond"}),
        ('name="facts" type', 'name="facts"  type', 'facts" ', {"subtype", "ref", "version"}),
        ("  <steps>", "<cri  <steps>", "<cri", {"criteria"}),
        ('<task name="facts" type="atomic">', '<task na type="atomic">', "  <steps>\n    <task na", {"name"}),
        ('type="atomic"', 'type=""', 'facts" type="', {"atomic", "script", "director_evaluator_loop"}),
        ('template="polite"', 'template=""', 'call template="', {"polite", "summarise"}),
        ('<arg name="text">', '<arg name="">', '<arg name="', {"text", "tone"}),
        ("{{ letter | trim }}", "{{ le", "{{ le", {"letter", "polite"}),
        ("{{ letter | trim }}", "<<le", "<<le", {"letter", "polite"}),
        ("{{ letter | trim }}", "{{ letter | tr }}", "| tr", {"trim", "truncate"}),
        ("{{ letter | trim }}", "{% if letter is def", "is def", {"defined", "undefined"}),
        ("steps.facts.content", "steps.", ">steps.", {"facts"}),
        ("steps.facts.content", "steps.facts.", "facts.", {"content", "parsed", "notes"}),
        ("steps.facts.content", "steps.facts.parsed.", "parsed.", {"points", "mood"}),
        ("  <steps>", '<handler ref=""/>  <steps>', 'ref="', {"offline", "default"}),
        ("  <steps>", '<tools><tool name=""/></tools>  <steps>', '<tool name="', {"read_file", "polite"}),
        ("  <steps>", "<model>openai/gpt-4o-m</model>  <steps>", "openai/gpt-4o-m", {"openai/gpt-4o-mini"}),
        ("  <steps>", '<include href=""/>  <steps>', 'href="', {"_rules.xml"}),
        ('type="integer" default', 'type="" default', 'words" type="', {"integer", "string[]"}),
    ],
)  # fmt: skip
def test_completion_offers_what_may_be_written_there(
    editor: Editor, old: str, new: str, after: str, labels: set[str]
) -> None:
    editor.change(NAME, PLAN.replace(old, new, 1))
    items = editor.complete(NAME, after, len(after))
    assert labels <= items.keys()


def test_a_completed_word_replaces_what_is_typed_of_it(editor: Editor) -> None:
    changed(editor, "{{ letter | trim }}", "{{ le }}")
    item = editor.complete(NAME, "{{ le", 5)["letter"]
    assert item.text_edit is not None and item.detail == "input, string"
    assert apply(editor.texts[NAME], [item.text_edit]) == PLAN.replace("letter | trim", "letter")
    filters = editor.complete(NAME, "{{ le", 5)
    assert "trim" not in filters and "string" not in filters


@pytest.mark.parametrize(
    ("mark", "shift", "expected"),
    [
        ("letter | trim", 1, ["`letter`: input, string", "The letter", "required"]),
        ("words }}", 1, ["`words`: input, integer", "default `80`"]),
        ("steps.facts.content", 8, ["`steps.facts`: object"]),
        ("steps.facts.content", 14, ["`steps.facts.content`: string"]),
        ('"polite"', 2, ["polite(text, tone=…)", "at most 1 model call"]),
        ("trim }}", 1, ["filter `trim(chars=None)`"]),
        ('type="sequential"', 8, ["**sequential**: Runs its steps in order"]),
        ("<steps>", 2, ["`<steps>`", "`plan`: at most 2 model calls; at most $"]),
        ("List the facts of", 2, ["`facts`: at most 1 model call; at most $"]),
    ],
)
def test_hover_says_what_stands_there(
    editor: Editor, mark: str, shift: int, expected: list[str]
) -> None:
    shown = editor.hover(NAME, mark, shift)
    assert [part for part in expected if part not in shown] == [], shown


def test_hover_has_the_bound_of_the_innermost_task_while_the_text_is_broken(
    editor: Editor,
) -> None:
    changed(editor, "</steps>", "<")
    assert "`facts`: at most 1 model call" in editor.hover(NAME, "List the facts of", 2)
    assert "with openai/gpt-4o-mini" in editor.hover(NAME, "<steps>", 2)


@pytest.mark.parametrize(
    ("mark", "shift", "file", "target"),
    [
        ("letter | trim", 1, NAME, 'letter" type'),
        ('polite" name', 1, "templates/polite.xml", 'polite" params'),
        ("facts.content", 1, NAME, 'facts" type'),
        ('text">', 1, "templates/polite.xml", "text, tone"),
    ],
)
def test_definition_finds_where_a_name_is_declared(
    editor: Editor, mark: str, shift: int, file: str, target: str
) -> None:
    params = types.DefinitionParams(editor.identifier(NAME), editor.place(NAME, mark, shift))
    found = editor.run(editor.client.text_document_definition_async(params))
    text = PLAN if file == NAME else POLITE
    line = text[: text.index(target)].count("\n")
    column = text.index(target) - text.rfind("\n", 0, text.index(target)) - 1
    assert found.uri == editor.uri(file)
    assert (found.range.start.line, found.range.start.character) == (line, column)


def renamed(editor: Editor, mark: str, new: str) -> dict[str, str]:
    params = types.RenameParams(editor.identifier(NAME), editor.place(NAME, mark, 1), new)
    found = editor.run(editor.client.text_document_rename_async(params))
    if found is None:
        return {}
    texts = {editor.uri(NAME): PLAN, editor.uri("templates/polite.xml"): POLITE}
    return {Path(uri).name: apply(texts[uri], edits) for uri, edits in found.changes.items()}


def test_rename_changes_an_input_wherever_it_is_meant(editor: Editor) -> None:
    expected = PLAN.replace('"letter"', '"mail"').replace("{{ letter", "{{ mail")
    assert renamed(editor, "letter | trim", "mail") == {"plan.xml": expected}


def test_rename_changes_templates_and_parameters_across_files(editor: Editor) -> None:
    assert renamed(editor, 'polite" name', "courteous") == {
        "plan.xml": PLAN.replace('"polite"', '"courteous"'),
        "polite.xml": POLITE.replace('"polite"', '"courteous"'),
    }
    assert renamed(editor, 'text">', "body") == {
        "plan.xml": PLAN.replace('"text"', '"body"'),
        "polite.xml": POLITE.replace('"text, tone', '"body, tone').replace("{{ text", "{{ body"),
    }
    assert renamed(editor, "facts.content", "found") == {
        "plan.xml": PLAN.replace('name="facts"', 'name="found"').replace(
            "steps.facts", "steps.found"
        )
    }


@pytest.mark.parametrize(
    ("mark", "new", "reason"),
    [
        ("letter | trim", "words", "in scope already"),
        ("letter | trim", "two words", "is not a name"),
        ('polite" name', "plan", "already"),
    ],
)
def test_rename_is_refused_where_it_would_change_the_meaning(
    editor: Editor, mark: str, new: str, reason: str
) -> None:
    assert renamed(editor, mark, new) == {}
    assert reason in editor.messages[-1]


def test_references_are_found_across_files(editor: Editor) -> None:
    params = types.ReferenceParams(
        types.ReferenceContext(True), editor.identifier(NAME), editor.place(NAME, 'polite"', 1)
    )
    found = editor.run(editor.client.text_document_references_async(params))
    assert sorted(Path(each.uri).name for each in found) == ["plan.xml", "polite.xml"]


def test_actions_fix_declare_and_extract(editor: Editor) -> None:
    changed(editor, "letter | trim", "letter | trm }} {{ tone")
    found = editor.actions(NAME, "trm")
    edit = found["Change to trim"].edit.changes[editor.uri(NAME)]
    assert "letter | trim }}" in apply(editor.texts[NAME], edit)
    edit = editor.actions(NAME, "tone }} in")["Declare the input tone"].edit
    text = apply(editor.texts[NAME], edit.changes[editor.uri(NAME)])
    assert 'default="80"/>\n    <input name="tone"/>\n  </inputs>' in text
    changed(editor, "<steps>", "<steps> ")
    found = editor.actions(NAME, '<task name="facts"', "</task>")
    own, created, new = found["Extract these steps as a template"].edit.document_changes
    text = apply(editor.texts[NAME], own.edits)
    assert '<call template="plan_part" name="facts"><arg name="letter">letter</arg>' in text
    assert created.uri == editor.uri("templates/plan_part.xml")
    # In this order, as each version of a text has findings once for each change around it.
    editor.open("templates/plan_part.xml", new.edits[0].new_text)
    editor.change(NAME, text)
    assert editor.findings("templates/plan_part.xml") == []
    assert editor.findings(NAME) == []
    changed(editor, "<steps>", "<steps>\n")
    assert editor.actions(NAME, "List the", "facts") == {}, "half a step"


def test_symbols_folding_and_formatting(editor: Editor) -> None:
    changed(editor, "  <inputs>", "        <inputs>")
    client = editor.client
    params = types.DocumentFormattingParams(
        editor.identifier(NAME), types.FormattingOptions(tab_size=2, insert_spaces=True)
    )
    edits = editor.run(client.text_document_formatting_async(params))
    assert apply(editor.texts[NAME], edits) == PLAN
    symbols = editor.run(
        client.text_document_document_symbol_async(
            types.DocumentSymbolParams(editor.identifier(NAME))
        )
    )
    assert [each.name for each in symbols] == ["plan"]
    assert [each.name for each in symbols[0].children] == ["inputs", "steps", "examples"]
    folds = editor.run(
        client.text_document_folding_range_async(types.FoldingRangeParams(editor.identifier(NAME)))
    )
    assert (0, PLAN.count("\n") - 2) in [(fold.start_line, fold.end_line) for fold in folds]


@pytest.mark.parametrize("name", ["half-\ud800", "zero-%00", "nowhere"])
def test_a_document_that_no_file_can_have_has_no_answers(editor: Editor, name: str) -> None:
    document = types.TextDocumentIdentifier(f"file:///tmp/{name}.xml")
    place = types.Position(0, 0)
    client = editor.client
    assert not editor.run(client.text_document_hover_async(types.HoverParams(document, place)))
    assert not editor.run(client.text_document_code_lens_async(types.CodeLensParams(document)))


def test_lenses_show_the_bound_and_run_only_when_they_are_clicked(editor: Editor) -> None:
    lenses = editor.run(
        editor.client.text_document_code_lens_async(types.CodeLensParams(editor.identifier(NAME)))
    )
    titles = [lens.command.title for lens in lenses]
    assert titles[0].startswith("at most 2 model calls; at most $")
    assert titles[1:] == ["render", "run with the simulated model"]
    render = lenses[1].command
    shown = editor.command(render.command, *render.arguments)
    assert "List the facts of Dear all, the lift is broken. in 80 words." in shown
    run = lenses[2].command
    assert "(simulated model)" in editor.command(run.command, *run.arguments)
    assert "(simulated model)" in editor.messages[-1]
    changed(editor, "  <steps>", "  <tools><tool name='bash'/></tools><steps>")
    editor.findings(NAME)
    assert "runs programs" in editor.command(run.command, *run.arguments)


def test_typing_through_broken_states_answers_every_request(editor: Editor) -> None:
    name = "templates/typed.xml"
    (editor.folder / name).write_text("", encoding="utf-8")
    text = PLAN.replace('name="plan"', 'name="typed"')
    editor.open(name, "")
    for end in range(1, len(text), 7):
        editor.change(name, text[:end])
        line = text.count("\n", 0, end)
        place = types.Position(line, end - text.rfind("\n", 0, end) - 1)
        params = types.CompletionParams(editor.identifier(name), place)
        editor.run(editor.client.text_document_completion_async(params))
    editor.change(name, text)
    assert editor.findings(name) == []
    assert editor.messages == []
    (editor.folder / name).unlink()


@pytest.mark.parametrize("is_told", [True, False])
def test_the_end_is_no_error(tmp_path: Path, is_told: bool) -> None:
    """`is_told`: the editor sends `shutdown` and `exit`, else it closes the pipe."""
    server = subprocess.Popen(
        [sys.executable, "-m", "evaluator", "lsp"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    messages: list[dict[str, object]] = [
        {"id": 1, "method": "initialize", "params": {"capabilities": {}}},
    ]
    if is_told:
        messages += [{"id": 2, "method": "shutdown"}, {"method": "exit"}]
    data = b""
    for message in messages:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        data += b"Content-Length: %d\r\n\r\n" % len(body) + body
    _, err = server.communicate(data, timeout=200)
    assert (server.returncode, err) == (0, b"")
