"""A library keeps its good templates, says what is wrong with the others, and follows its files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evaluator import TemplateError, TemplateLibrary, UsageError
from evaluator.library import check
from evaluator.library.files import MAX_FILE_BYTES
from evaluator.nodes import Atomic, Function
from tests.library.library_files import codes, load, put, task


def test_one_bad_template_does_not_stop_the_others(tmp_path):
    library = load(
        put(tmp_path, a=task("a"), b="<task", c=task("c"), d='<task type="atomic" colour="x"/>')
    )
    assert list(library) == ["a", "c"]
    assert {Path(d.span.file or "").name for d in library.errors} == {"b.xml", "d.xml"}


def test_a_bad_member_does_not_stop_the_others_of_its_file(tmp_path):
    members = [
        task("a"),
        task("b", attributes=' colour="x"'),
        task("c", "{{ nowhere }}"),
        task("d"),
    ]
    library = load(put(tmp_path, l="<library>\n" + "\n".join(members) + "\n</library>"))
    assert list(library) == ["a", "d"]
    assert sorted(d.span.line for d in library.errors) == [3, 4]


def test_an_earlier_folder_hides_the_names_of_a_later_one(tmp_path):
    mine, theirs = (
        put(tmp_path / "mine", x=task("t", "mine")),
        put(tmp_path / "theirs", x=task("t", "theirs")),
    )
    library = load(mine, theirs)
    assert library.get("t").file == str(mine / "x.xml")
    assert library.diagnostics == ()


def test_a_broken_template_hides_the_one_of_a_later_folder_too(tmp_path):
    mine = put(tmp_path / "mine", x=task("t", "{{ nowhere }}"))
    library = load(mine, put(tmp_path / "theirs", x=task("t")))
    assert "t" not in library
    with pytest.raises(TemplateError, match="nowhere"):
        library.get("t")


NOT_WELL_FORMED = [
    ('<task name="t" type="atomic"><description>d</descrip></task>', "not-well-formed"),
    ('<task name="t" type="atomic"><description>a < b</description></task>', "not-well-formed"),
    (
        '<library><task name="s"><description>d</descr></task><task name="t" type="atomic"/></library>',
        "not-well-formed",
    ),
    ('<task name="t"><description><<doc</description></task>', "unclosed-placeholder"),
    ('<!DOCTYPE task><task name="t"><description>d</description></task>', "doctype"),
    ('<task name="t" type="atomic"/>', "missing-element"),
    ('<task name="t" type="atomik"><description>d</description></task>', "invalid-value"),
]


@pytest.mark.parametrize(("text", "code"), NOT_WELL_FORMED)
def test_a_file_that_cannot_be_read_as_xml_keeps_its_names_from_later_folders(tmp_path, text, code):
    library = load(put(tmp_path / "mine", x=text), put(tmp_path / "theirs", x=task("t", "theirs")))
    assert "t" not in library
    assert "t" in library.broken
    with pytest.raises(TemplateError) as caught:
        library.get("t")
    assert code in {one.code for one in caught.value.diagnostics}
    assert {one.span.file for one in caught.value.diagnostics} == {str(tmp_path / "mine" / "x.xml")}


def test_a_file_without_a_readable_name_keeps_that_of_the_file(tmp_path):
    library = load(
        put(tmp_path / "mine", t="<task"), put(tmp_path / "theirs", x=task("t", "theirs"))
    )
    assert library.broken == {"t"}


def test_a_name_given_twice_in_a_folder_is_an_error_at_the_later_one(tmp_path):
    library = load(put(tmp_path, a=task("t", "first"), b=task("t", "second")))
    assert library.get("t").file == str(tmp_path / "a.xml")
    assert [(d.code, d.span.file) for d in library.errors] == [
        ("duplicate-name", str(tmp_path / "b.xml"))
    ]


def test_a_task_without_a_name_has_the_name_of_its_file(tmp_path):
    library = load(put(tmp_path, greet='<task type="atomic"><description>d</description></task>'))
    assert library.get("greet").node.name == "greet"


def test_a_missing_folder_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="nothing-here"):
        load(tmp_path / "nothing-here")


def test_a_single_file_can_be_loaded(tmp_path):
    put(tmp_path, a=task("a"), b=task("b"))
    assert list(load(tmp_path / "b.xml")) == ["b"]


def test_without_folders_the_current_directorys_templates_are_loaded(tmp_path, monkeypatch):
    put(tmp_path / "templates", a=task("here"))
    monkeypatch.chdir(tmp_path)
    library = TemplateLibrary.load(shipped=False)
    assert list(library) == ["here"]
    assert library.get("here").file == os.path.join("templates", "a.xml")


def test_partials_and_hidden_files_are_not_templates(tmp_path):
    put(
        tmp_path,
        a=task("a"),
        _part="<partial><tool name='read_file'/></partial>",
        part="<partial>text</partial>",
    )
    put(tmp_path / ".git", b=task("b"))
    put(tmp_path / "_parts", c=task("c"))
    library = load(tmp_path)
    assert list(library) == ["a"]
    assert library.diagnostics == ()


def test_the_error_for_an_unknown_name_lists_similar_names(tmp_path):
    with pytest.raises(UsageError, match="`summarise`"):
        load(put(tmp_path, a=task("summarise"))).get("sumarise")


def test_templates_are_loaded_in_the_order_of_their_paths(tmp_path):
    folder = put(tmp_path, **{name: task(name) for name in "dbca"})
    assert list(load(folder)) == ["a", "b", "c", "d"]


def test_functions_are_listed_separately(tmp_path):
    xml = '<template name="f" params="a"><task type="atomic"><description>{{ a }}</description></task></template>'
    library = load(put(tmp_path, a=task("a"), f=xml))
    assert isinstance(library.functions["f"], Function)
    assert list(library.functions) == ["f"]


# Links, sizes, names


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    outside = put(tmp_path / "outside", secret=task("secret"))
    inside = put(tmp_path / "inside", a=task("a"))
    (inside / "b.xml").symlink_to(outside / "secret.xml")
    (inside / "c").symlink_to(outside)
    library = load(inside)
    assert list(library) == ["a"]
    assert codes(library) == ["link-refused"]
    assert [d.code for d in library.warnings] == ["link-refused"]


def test_a_link_inside_the_folder_is_the_file_that_it_leads_to(tmp_path):
    folder = put(tmp_path, a=task("a"))
    (folder / "z.xml").symlink_to(folder / "a.xml")
    library = load(folder)
    assert list(library) == ["a"]
    assert library.diagnostics == ()


def test_a_folder_whose_name_begins_alike_is_outside(tmp_path):
    evil = put(tmp_path / "root-evil", a=task("evil"))
    root = put(tmp_path / "root")
    (root / "a.xml").symlink_to(evil / "a.xml")
    assert codes(load(root)) == ["link-refused"]


def test_a_file_above_the_limit_is_refused_before_it_is_read(tmp_path):
    folder = put(tmp_path, a=task("a"))
    with open(folder / "big.xml", "wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    library = load(folder)
    assert list(library) == ["a"]
    assert codes(library) == ["too-large"]


def test_a_fifo_in_the_folder_does_not_stop_the_load(tmp_path):
    folder = put(tmp_path, a=task("a"))
    os.mkfifo(folder / "b.xml")
    library = load(folder)
    assert list(library) == ["a"]
    assert codes(library) == ["unreadable"]


def test_a_file_name_that_is_not_utf8_loads_and_prints(tmp_path):
    with open(os.fsencode(tmp_path) + b"/\xff\x1b.xml", "w", encoding="utf-8") as file:
        file.write(task("odd", "{{ nowhere }}"))
    library = load(tmp_path)
    printed = library.format_diagnostic(library.errors[0])
    assert r"\xff\x1b.xml:1:" in printed
    printed.encode("utf-8")


def test_a_schema_file_is_relative_to_the_template_that_names_it(tmp_path, monkeypatch):
    schema = '{"type": "object", "properties": {"title": {"type": "string"}}}'
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "title.json").write_text(schema, encoding="utf-8")
    put(
        tmp_path / "templates",
        a=task("a", more='<output_format type="json" schema="../schemas/title.json"/>'),
    )
    monkeypatch.chdir(tmp_path)
    library = TemplateLibrary.load("templates", shipped=False)
    assert library.diagnostics == ()
    node = library.get("a").node
    assert isinstance(node, Atomic)
    assert node.output is not None
    assert node.output.schema == str(tmp_path / "schemas" / "title.json")


def test_the_registered_tools_are_the_only_ones_where_they_are_known(tmp_path):
    library = load(put(tmp_path, a=task("a", more='<tools><tool name="read_fil"/></tools>')))
    nodes = {name: template.node for name, template in library.templates.items()}
    assert check(nodes) == []
    found = check(nodes, known_tools=frozenset({"read_file"}))
    assert [(d.severity, d.code, d.hint) for d in found] == [
        ("error", "unknown-tool", "did you mean `read_file`?")
    ]


# match, printing


def test_matching_finds_the_template_and_refuses_an_empty_request(tmp_path):
    library = load(put(tmp_path, summarise=task("summarise"), grade=task("grade")))
    assert library.match("summarise this")[0].template.name == "summarise"
    for request in ("", " \n"):
        with pytest.raises(UsageError, match="empty"):
            library.match(request)
    with pytest.raises(UsageError, match="limit"):
        library.match("summarise", limit=0)


def test_a_ranker_of_the_callers_own_is_given_the_atomic_templates_once(tmp_path):
    made: list[list[str]] = []

    class Nothing:
        def rank(self, request, limit=5):
            return []

    def make(templates):
        made.append([t.name for t in templates])
        return Nothing()

    xml = '<task type="script" name="s"><description>d</description><command>true</command></task>'
    library = TemplateLibrary.load(put(tmp_path, a=task("a"), s=xml), shipped=False, ranker=make)
    assert library.match("a") == []
    assert library.match("b") == []
    assert made == [["a"]]


def test_a_diagnostic_prints_its_line_and_a_caret(tmp_path):
    xml = '<task type="atomic" name="a">\n<description>d</description>\n\t<model>漢 {{ nowhere }}</model></task>'
    folder = put(tmp_path, a=xml)
    library = load(folder)
    assert library.format_diagnostic(library.errors[0]).split("\n") == [
        f"{folder}/a.xml:3:14: error: `nowhere` is not defined [undefined-variable]",
        "    \t<model>漢 {{ nowhere }}</model></task>",
        "    \t" + " " * len("<model>") + "  " + " " * len(" {{ ") + "^",
        '  hint: declare it: <input name="nowhere"/>',
    ]


def test_a_long_line_and_control_characters_are_printed_safely(tmp_path):
    text = "a" * 5000 + " {{ nowhere }} " + "b" * 5000
    library = load(put(tmp_path, a=task("a", text)))
    lines = library.format_diagnostic(library.errors[0]).split("\n")
    assert len(lines[1]) < 200
    assert lines[1][lines[2].index("^") :].startswith("nowhere")
