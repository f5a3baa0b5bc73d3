"""References between templates: `ref` to registered ones, `include` of partials."""

from __future__ import annotations

from pathlib import Path

import pytest

from evaluator.nodes import Atomic, Sequential
from tests.library.library_files import codes, load, put, task, with_include


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


def test_a_finding_about_a_call_names_the_types_of_lists_and_the_number_of_inputs(tmp_path):
    scores = task("scores", "{{ s }}", '<inputs><input name="s" type="number[]"/></inputs>')
    caller = (
        '<task type="sequential" name="caller"><description>d</description>'
        '<inputs><input name="n" type="string[]"/></inputs><steps>'
        '<call template="scores"><arg>{{ n }}</arg></call>'
        '<call template="scores"><arg>[1]</arg><arg>[2]</arg></call></steps></task>'
    )
    library = load(put(tmp_path, scores=scores, caller=caller))
    assert [error.message for error in library.errors] == [
        "argument `s` of `scores` must be number[], and gets a value of type string[]",
        "`scores` takes 1 input, and 2 are given",
    ]
