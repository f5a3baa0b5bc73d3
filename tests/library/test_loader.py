"""A library keeps its good templates, says what is wrong with the others, and follows its files."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from evaluator import TemplateError, TemplateLibrary, UsageError
from evaluator.library import check, content, loader
from evaluator.library.files import MAX_FILE_BYTES
from evaluator.library.reading import read_entry
from evaluator.nodes import Atomic, Function, Sequential


def task(name: str, text: str = "x", more: str = "", attributes: str = "") -> str:
    return (
        f'<task type="atomic" name="{name}"{attributes}><description>{name}</description>'
        f"<instructions>{text}</instructions>{more}</task>"
    )


def put(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.xml").write_text(text, encoding="utf-8")
    return folder


def load(*folders: Path) -> TemplateLibrary:
    return TemplateLibrary.load(*folders, shipped=False)


def codes(library: TemplateLibrary) -> list[str]:
    return [d.code for d in library.errors]


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


# ref


def test_a_ref_takes_the_missing_parts(tmp_path):
    base = (
        '<task type="atomic" name="base" subtype="x"><description>base</description><model>m</model>'
        '<handler max_turns="3" timeout="9"/><inputs><input name="doc" type="string"/>'
        '<input name="tone" default="dry"/></inputs>'
        "<instructions>{{ doc }} {{ tone }}</instructions></task>"
    )
    mine = (
        '<task type="atomic" name="mine" ref="base"><description>mine</description><handler max_turns="5"/>'
        '<inputs><input name="tone" default="warm"/></inputs></task>'
    )
    library = load(put(tmp_path, base=base, mine=mine))
    assert library.diagnostics == ()
    node = library.get("mine").node
    assert isinstance(node, Atomic)
    assert (node.name, node.description.value, node.subtype) == ("mine", "mine", "x")
    assert node.model is not None
    assert node.model.value == "m"
    assert node.handler is not None
    assert (node.handler.max_turns, node.handler.timeout_s) == (5, 9)
    assert [(i.name, i.type, i.default.value if i.default else None) for i in node.inputs] == [
        ("doc", "string", None),
        ("tone", "any", "warm"),
    ]
    assert node.instructions is not None
    assert node.instructions.value == "{{ doc }} {{ tone }}"


def test_a_step_may_refer_to_a_registered_template(tmp_path):
    base = (
        '<task type="atomic" name="base"><description>base</description><inputs><input name="doc"/></inputs>'
        "<instructions>{{ doc }}</instructions></task>"
    )
    whole = (
        '<task type="sequential" name="whole"><description>d</description><steps>'
        '<task type="atomic" name="one"><description>o</description></task>'
        '<task type="atomic" ref="base"><inputs><input name="doc" from="steps.one.content"/></inputs></task>'
        "</steps></task>"
    )
    library = load(put(tmp_path, base=base, whole=whole))
    assert library.diagnostics == ()
    node = library.get("whole").node
    assert isinstance(node, Sequential)
    step = node.steps[1]
    assert isinstance(step, Atomic)
    assert step.instructions is not None
    assert step.instructions.value == "{{ doc }}"


def test_a_cycle_of_refs_is_reported_where_each_begins(tmp_path):
    library = load(
        put(tmp_path, a=task("a", attributes=' ref="b"'), b=task("b", attributes=' ref="a"'))
    )
    assert codes(library) == ["ref-cycle", "ref-cycle"]
    assert {d.span.file for d in library.errors} == {
        str(tmp_path / "a.xml"),
        str(tmp_path / "b.xml"),
    }


def test_of_two_cycles_of_refs_each_template_shows_a_shortest_one(tmp_path):
    steps = '<steps><task type="sequential" ref="b"/><task type="sequential" ref="c"/></steps>'
    a = f'<task type="sequential" name="a"><description>d</description>{steps}</task>'
    back = '<task type="sequential" name="{}" ref="{}"><description>d</description></task>'
    files = {
        "a": a,
        "b": back.format("b", "c"),
        "c": back.format("c", "a"),
        "d": back.format("d", "c"),
    }
    library = load(put(tmp_path, **files))
    found = {d.message.partition(": ")[2] for d in library.errors if d.code == "ref-cycle"}
    assert found == {"a → c → a", "b → c → a → b", "c → a → c"}
    assert library.broken >= {"a", "b", "c", "d"}


def test_a_template_inside_itself_is_a_cycle(tmp_path):
    xml = (
        '<task type="sequential" name="a"><description>d</description>\n<steps>'
        '<task type="sequential" ref="a"/></steps></task>'
    )
    library = load(put(tmp_path, a=xml))
    assert [(d.code, d.span.line, d.span.column) for d in library.errors] == [("ref-cycle", 2, 8)]


def test_a_ref_to_another_kind_of_task_is_refused(tmp_path):
    xml = '<task type="script" name="a" ref="b"><description>d</description><command>true</command></task>'
    assert codes(load(put(tmp_path, a=xml, b=task("b")))) == ["ref-type-mismatch"]


def test_a_template_that_uses_a_broken_one_has_an_error(tmp_path):
    call = '<task type="sequential" name="{}"><description>d</description>\n<steps><call template="{}"/></steps></task>'
    library = load(
        put(
            tmp_path,
            a=call.format("a", "b"),
            b=call.format("b", "c"),
            c=task("c", "{{ nowhere }}"),
            d=task("d"),
        )
    )
    assert list(library) == ["d"]
    found = {Path(d.span.file or "").name: (d.code, d.span.line) for d in library.errors}
    assert found == {
        "a.xml": ("uses-broken-template", 2),
        "b.xml": ("uses-broken-template", 2),
        "c.xml": ("undefined-variable", 1),
    }


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


# include


def with_include(name: str, href: str) -> str:
    return (
        f'<task type="atomic" name="{name}"><description>d</description>\n'
        f'<instructions>Before. <include href="{href}"/></instructions></task>'
    )


def test_an_include_is_relative_to_its_own_file(tmp_path):
    put(tmp_path / "sub", a=with_include("a", "../_parts/rules.xml"))
    put(
        tmp_path / "_parts",
        rules='<partial>Rules. <include href="more.xml"/></partial>',
        more="<partial>More.</partial>",
    )
    library = load(tmp_path)
    assert library.diagnostics == ()
    node = library.get("a").node
    assert isinstance(node, Atomic)
    assert node.instructions is not None
    assert "Rules." in node.instructions.value
    assert "More." in node.instructions.value


@pytest.mark.parametrize("href", ["../outside.xml", "/etc/passwd", "_parts/../../outside.xml"])
def test_an_include_never_leaves_the_library_folder(tmp_path, href):
    put(tmp_path, outside="<partial>secret</partial>")
    library = load(put(tmp_path / "inside", a=with_include("a", href)))
    assert [(d.code, d.span.line) for d in library.errors] == [("include-outside", 2)]


def test_an_include_through_a_link_is_refused(tmp_path):
    put(tmp_path, outside="<partial>secret</partial>")
    folder = put(tmp_path / "inside", a=with_include("a", "_p.xml"))
    (folder / "_p.xml").symlink_to(tmp_path / "outside.xml")
    library = load(folder)
    assert len(library) == 0
    assert codes(library) == ["unreadable"]


def test_a_cycle_of_includes_is_an_error_at_the_include(tmp_path):
    folder = put(
        tmp_path,
        a=with_include("a", "_b.xml"),
        _b='<partial>b\n<include href="_c.xml"/></partial>',
        _c='<partial>c\n\n<include href="_b.xml"/></partial>',
    )
    library = load(folder)
    assert [(d.code, d.span.file, d.span.line) for d in library.errors] == [
        ("include-cycle", str(folder / "_c.xml"), 3)
    ]


def test_a_missing_partial_is_an_error_at_the_include(tmp_path):
    library = load(put(tmp_path, a=with_include("a", "_none.xml"), b=task("b")))
    assert list(library) == ["b"]
    assert [(d.code, d.span.line, d.span.column) for d in library.errors] == [("unreadable", 2, 38)]


def test_an_error_inside_a_partial_is_located_there(tmp_path):
    folder = put(
        tmp_path, a=with_include("a", "_b.xml"), _b="<partial>\n  Use {{ nowhere }}</partial>"
    )
    library = load(folder)
    assert [(d.code, d.span.file, d.span.line, d.span.column) for d in library.errors] == [
        ("undefined-variable", str(folder / "_b.xml"), 2, 10)
    ]
    assert "{{ nowhere }}" in library.format_diagnostic(library.errors[0])


# reload, add


def test_a_reload_returns_the_changed_names(tmp_path):
    folder = put(tmp_path, a=task("a"), b=task("b"), c=task("c"))
    library = load(folder)
    before = library.templates
    put(folder, a=task("a", "changed"), d=task("d"))
    (folder / "b.xml").unlink()
    assert library.reload() == {"a", "b", "d"}
    assert list(library) == ["a", "c", "d"]
    assert list(before) == ["a", "b", "c"]
    assert library.reload() == frozenset()


def test_a_changed_partial_changes_the_templates_that_include_it(tmp_path):
    folder = put(tmp_path, a=with_include("a", "_p.xml"), b=task("b"), _p="<partial>one</partial>")
    library = load(folder)
    digest = library.get("a").sha256
    put(folder, _p="<partial>two</partial>")
    assert library.reload() == {"a"}
    assert library.get("a").sha256 != digest


def test_an_edit_that_keeps_size_and_time_right_after_the_load_is_seen(tmp_path):
    folder = put(tmp_path, a=task("a", "one"))
    library = load(folder)
    stamp = (folder / "a.xml").stat()
    put(folder, a=task("a", "two"))
    os.utime(folder / "a.xml", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert library.reload() == {"a"}


def test_unchanged_files_are_not_read_again(tmp_path, monkeypatch):
    folder = put(tmp_path, a=task("a"), b=task("b"))
    for name in ("a.xml", "b.xml"):
        os.utime(folder / name, (1, 1))
    library = load(folder)
    put(folder, b=task("b", "changed"))
    read: list[str] = []
    from evaluator.library import loader, reading

    monkeypatch.setattr(
        loader,
        "read_entry",
        lambda root, found, *edited: read.append(found.relative) or reading.read_entry(root, found),
    )
    library.reload()
    assert read == ["b.xml"]


def test_the_hash_of_a_template_covers_the_templates_that_it_refers_to(tmp_path):
    folder = put(
        tmp_path, base=task("base", "one"), mine='<task type="atomic" name="mine" ref="base"/>'
    )
    library = load(folder)
    digest = library.get("mine").sha256
    put(folder, base=task("base", "two"))
    assert library.reload() == {"base", "mine"}
    assert library.get("mine").sha256 != digest


def test_the_hash_of_a_template_does_not_cover_the_rest_of_its_file(tmp_path):
    text = "<library>{}<!-- {} -->{}</library>"
    folder = put(tmp_path, both=text.format(task("a", "one"), "x", task("b", "one")))
    library = load(folder)
    a, b = library.get("a").sha256, library.get("b").sha256
    put(folder, both="\n\n" + text.format(task("a", "one"), "another comment", task("b", "two")))
    library.reload()
    assert library.get("a").sha256 == a and library.get("b").sha256 != b


def test_a_template_is_added_from_a_string(tmp_path):
    library = load(put(tmp_path, a=task("a", "file")))
    assert library.add(task("a", "string")) == ("a",)
    node = library.get("a").node
    assert isinstance(node, Atomic)
    assert node.instructions is not None
    assert node.instructions.value == "string"
    library.add(task("a", "again"))
    assert library.diagnostics == ()


@pytest.mark.parametrize(
    "xml", [task("b", "{{ nowhere }}"), "<task", task("b", attributes=' ref="none"'), "<x/>"]
)
def test_adding_a_template_with_errors_adds_nothing(tmp_path, xml):
    library = load(put(tmp_path, a=task("a")))
    with pytest.raises(TemplateError) as raised:
        library.add(xml)
    assert list(library) == ["a"]
    assert library.diagnostics == ()
    assert pickle.loads(pickle.dumps(raised.value)).diagnostics == raised.value.diagnostics


def test_a_template_that_calls_a_missing_one_works_after_that_is_added(tmp_path):
    call = '<task type="sequential" name="a"><description>d</description><steps><call template="b"/></steps></task>'
    library = load(put(tmp_path, a=call))
    assert "a" not in library
    library.add(task("b"))
    assert "a" in library
    assert library.diagnostics == ()


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


def shown(library: TemplateLibrary) -> list[str]:
    return sorted(map(str, library.diagnostics))


def test_an_edited_text_counts_until_it_is_withdrawn(tmp_path):
    folder = put(
        tmp_path,
        base=task("base", "one"),
        heir='<task type="atomic" name="heir" ref="base"/>',
        other=task("other", "{{ base_text }}"),
    )
    library = load(folder)
    before = shown(library)
    path = str((folder / "base.xml").resolve())
    changed = library.edit(path, task("base", "two"))
    assert changed == {"base", "heir"}
    assert library.get("heir").node.instructions.value == "two"
    assert library.source_text(library.get("base").file) == task("base", "two")
    assert library.edit(path, "<task") == {"base", "heir"}
    assert {"base", "heir"} <= library.broken and "other" not in library
    assert library.edit(path, None) == {"base", "heir"}
    assert shown(library) == before
    assert library.edit(str(tmp_path.parent / "x.xml"), task("x", "y")) == frozenset()


def test_only_what_depends_on_an_edit_is_checked_again(tmp_path, monkeypatch):
    from evaluator.library import checks

    call = '<task type="sequential" name="{0}"><description>d</description><steps><call template="{1}"/></steps></task>'
    folder = put(
        tmp_path,
        a=task("a", "one"),
        b=call.format("b", "a"),
        c=call.format("c", "b"),
        far=task("far", "x"),
    )
    library = load(folder)
    walked: list[str] = []
    top = checks.ScopeWalk.top
    monkeypatch.setattr(
        checks.ScopeWalk, "top", lambda self, node: walked.append(node.name) or top(self, node)
    )
    path = str((folder / "a.xml").resolve())
    library.edit(path, task("a", "two"))
    assert walked == ["a"], "what its caller sees of it is the same"
    walked.clear()
    needs = task("a", "{{ doc }}").replace(
        "<instructions>", '<inputs><input name="doc"/></inputs><instructions>'
    )
    library.edit(path, needs)
    assert set(walked) == {"a", "b"}
    assert [d.code for d in library.diagnostics if d.severity == "error"] == [
        "wrong-arity",
        "uses-broken-template",
    ]


@pytest.fixture
def files_read(tmp_path, monkeypatch):
    """The files of templates that are read, with `tmp_path/shipped` as the shipped folder."""
    read: list[str] = []

    def counted(root, file, *edited):
        read.append(file.relative)
        return read_entry(root, file, *edited)

    for module in (content, loader):
        monkeypatch.setattr(module, "read_entry", counted)
    monkeypatch.setattr(loader, "shipped_folder", lambda _: tmp_path / "shipped")
    return read


def test_the_shipped_files_are_read_once_for_all_libraries_of_a_process(tmp_path, files_read):
    shipped = put(tmp_path / "shipped", one=task("one"), two=task("two"))
    own = put(tmp_path / "own", three=task("three"))
    for name in ("shipped/one", "shipped/two", "own/three"):
        os.utime(tmp_path / f"{name}.xml", (1, 1))
    first = TemplateLibrary.load(own)
    assert sorted(first) == ["one", "three", "two"]
    assert sorted(files_read) == ["one.xml", "three.xml", "two.xml"]
    files_read.clear()
    assert TemplateLibrary.load(own).get("one") == first.get("one")
    assert files_read == ["three.xml"], "the user's file is read again"
    put(shipped, one=task("one", "another text"))
    files_read.clear()
    assert TemplateLibrary.load(own).get("one") != first.get("one")
    assert files_read == ["three.xml", "one.xml"]


def test_a_shipped_file_is_read_when_its_template_is_used(tmp_path, files_read):
    three = task("three", "Say which one, or two.")
    put(tmp_path / "shipped", one=task("one", "{{ two() }}"), two=TWO, three=three)
    own = put(tmp_path / "own", mine=task("mine"))
    TemplateLibrary.load(own).get("three")
    assert files_read == ["mine.xml", "three.xml"], "a word of a sentence is no mention"
    files_read.clear()
    library = TemplateLibrary.load(own)
    assert library.get("mine").name == "mine"
    assert "three" in library and "four" not in library and not library.broken
    assert files_read == ["mine.xml"]
    one = library.get("one")
    assert [*library.called_by("one")] == ["two"]
    assert files_read == ["mine.xml", "one.xml", "two.xml"], "with the one that it calls"
    assert [*library.own] == ["mine"]
    assert [*library.with_edit(f"{own}/mine.xml", task("edited")).own] == ["edited"]
    with pytest.raises(UsageError, match="there is no template 'thre'; did you mean `three`"):
        library.get("thre")
    with pytest.raises(UsageError, match=r"no template 't/three\.xml'; did you mean `three`"):
        library.get("t/three.xml")
    with pytest.raises(UsageError, match="there is no template ' three'; did you mean `three`"):
        library.get(" three")
    assert [*library.templates] == ["mine", "one", "three", "two"]
    assert library.get("one") is one


def test_all_shipped_files_are_read_where_the_findings_may_depend_on_them(tmp_path, files_read):
    put(tmp_path / "shipped", one=task("one", "{{ two() }}"), two=TWO)
    hides = TWO.replace("<template", '<template params="text"')
    library = TemplateLibrary.load(put(tmp_path / "own", two=hides))
    assert [(d.code, Path(d.span.file).name) for d in library.errors] == [
        ("wrong-arity", "one.xml")
    ]
    library = TemplateLibrary.load(put(tmp_path / "wrong", calls=task("calls", "{{ tow() }}")))
    assert [d.hint for d in library.errors] == ["did you mean `two`?"]


def test_a_template_of_a_shipped_file_with_another_name_is_found(tmp_path, files_read):
    put(tmp_path / "shipped", one=task("one"), two=task("other"))
    assert TemplateLibrary.load(put(tmp_path / "own")).get("other").name == "other"


def test_a_reload_in_between_does_not_lose_shipped_templates(tmp_path, files_read, monkeypatch):
    put(tmp_path / "shipped", one=task("one"), two=task("two"))
    library = TemplateLibrary.load(put(tmp_path / "own"))
    half_read = library._content
    whole = library._state
    contents = iter([whole])
    monkeypatch.setattr(
        TemplateLibrary, "_content", property(lambda _: next(contents, half_read)), raising=False
    )
    assert [*library.templates] == ["one", "two"]


TWO = f'<template name="two">{task("word")}</template>'


def test_a_shipped_template_is_the_same_if_it_is_read_alone() -> None:
    whole = TemplateLibrary.load()
    assert whole.templates
    for name in ("report", "summarise_each", "write_run_fix", "sentiment"):
        alone = TemplateLibrary.load()
        template = alone.get(name)
        assert (template.node, template.file) == (whole.get(name).node, whole.get(name).file)
        assert alone.called_by(name) == whole.called_by(name)


def test_the_roles_reached_follow_a_changed_template(tmp_path: Path) -> None:
    role = '<model role="judge"/>'
    named = task("two").replace("<instructions>", f"{role}<instructions>")
    library = TemplateLibrary.load(put(tmp_path, one=task("one", "{{ two() }}"), two=named))
    assert library.roles_reached("one") == {"judge"} == library.roles_reached("two")
    put(tmp_path, two=named.replace("judge", "editor"))
    library.reload()
    assert library.roles_reached("one") == {"editor"}
