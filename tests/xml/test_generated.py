"""Reading a generated task: what is repaired, what is left out with a warning, what is refused, what never happens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evaluator import nodes
from evaluator.xml.build import build
from evaluator.xml.generated import MAX_CHARACTERS, GeneratedTask, read_generated_task
from evaluator.xml.source import read_source
from evaluator.xml.write import to_xml

ROOT = Path(__file__).parents[2]
ONE = '<task type="atomic"><description>one</description></task>'


def steps(*inside: str, end: str = "</steps></task>") -> str:
    return '<task type="sequential"><description>d</description><steps>\n' + "\n".join(inside) + end


def step(name: str, text: str = "do it", type_: str = "atomic") -> str:
    return f'<task name="{name}" type="{type_}"><description>{text}</description></task>'


def codes(generated: GeneratedTask) -> set[str]:
    return {warning.code for warning in generated.warnings}


def names(generated: GeneratedTask) -> list[str | None]:
    assert isinstance(generated.node, nodes.Sequential)
    return [one.name for one in generated.node.steps]


# Valid tasks


def whole_tasks() -> list[Path]:
    """The shipped templates that are a task by themselves."""
    found: list[Path] = []
    for path in sorted((ROOT / "templates").rglob("*.xml")):
        source = read_source(path.read_bytes())
        if source.root.tag == "task" and not build(source).diagnostics:
            found.append(path)
    return found


@pytest.mark.parametrize("path", whole_tasks(), ids=lambda path: path.name)
def test_a_valid_task_is_read_unchanged_and_without_a_warning(path: Path) -> None:
    text = path.read_text()
    generated = read_generated_task(text)
    assert generated.node == build(read_source(text, "<answer>")).templates[0]
    assert (generated.errors, generated.warnings) == ((), ())
    assert generated.xml in text


def test_canonical_xml_is_read_unchanged() -> None:
    node = read_generated_task(
        steps(step("a"), step("b", "<![CDATA[{{ steps.a.content }} & <x>]]>"))
    ).node
    assert node is not None
    again = read_generated_task(to_xml(node))
    assert (again.xml + "\n", again.warnings, again.errors) == (to_xml(node), (), ())


def test_places_are_those_in_the_answer_also_after_prose() -> None:
    generated = read_generated_task(f"Here it is:\n\nsee: {ONE}")
    assert generated.node is not None
    assert (generated.node.span.line, generated.node.span.column) == (3, 6)


# Repairs


@pytest.mark.parametrize(
    ("text", "xml", "warning"),
    [
        (f"Sure:\n```xml\n{ONE}\n```\nBye", ONE, "text outside"),
        (f"<plan>{ONE}</plan>", ONE, None),
        (f"<think>\n<task/></think>{ONE}", ONE, "reasoning"),
        (
            '<task type="atomic"><description>a & b < c</description></task>',
            '<task type="atomic"><description>a &amp; b &lt; c</description></task>',
            "bare `&`",
        ),
        (
            '<task type="atomic"><description>Say <b>it</b> </p></description></task>',
            '<task type="atomic"><description>Say &lt;b&gt;it&lt;/b&gt; &lt;/p&gt;</description></task>',
            "markup in the text",
        ),
        (
            '<task type="atomic"><description>Return <output>x &amp; y</output>.</description></task>',
            '<task type="atomic"><description>Return &lt;output&gt;x &amp; y&lt;/output&gt;.</description></task>',
            "markup in the text",
        ),
        ('<task type="atomic"><description>one</task>', ONE, "<description> is not closed"),
        (
            '<task type="atomic"><description>one</desc></task>',
            '<task type="atomic"><description>one&lt;/desc&gt;</description></task>',
            "<description> is not closed",
        ),
        (
            '<task type="atomic"><description>one</descriptoin></description></task>',
            '<task type="atomic"><description>one&lt;/descriptoin&gt;</description></task>',
            "markup",
        ),
        (
            '<task type="atomic"><description>one',
            '<task type="atomic"/>',
            "<description> was cut off",
        ),
        ('```xml\n<task type="atomic"><description>one\n```', ONE, "closing fence"),
        ('<Task Type="ATOMIC"><Description>one</description></Task>', ONE, "<Task> read as <task>"),
        (
            '<task type="atomic"><description>one</description><handler max-turns="3" maxTurns="4"/></task>',
            '<task type="atomic"><description>one</description><handler max_turns="3"/></task>',
            "'max-turns'",
        ),
        (
            '<task type="atomic"><desciption>one</desciption></task>',
            ONE,
            "<desciption> read as <description>",
        ),
        ('<task type="atomic" description="one"/>', ONE, "the attribute 'description'"),
        (
            "<task><type>atomic</type><description>one</description></task>",
            ONE,
            "<type> read as the attribute",
        ),
        (
            "<task><description>one</description></task>",
            "<task><description>one</description></task>",
            "no type, so it is atomic",
        ),
        (
            '<task type="atomic" colour="red"><description>one</description><colour>red</colour></task>',
            ONE,
            "<colour> is not known",
        ),
        (
            '<task type="atomic"><description>one</description>stray</task>',
            ONE,
            "text in <task> left out: 'stray'",
        ),
        (
            '<task type="atomic"><body><description>one</description></body></task>',
            ONE,
            "its content is read in its place",
        ),
        (
            '<task type="atomic" xmlns="http://example.org/"><description>one</description></task>',
            ONE,
            "'xmlns'",
        ),
        (
            '<task type="atomic"><description>one</description><input name="q" default="1"/></task>',
            ONE.replace("</task>", '<inputs><input name="q" default="1"/></inputs></task>'),
            "put into <inputs>",
        ),
        (
            '<task type="atomic"><description>one</description><inputs><input name="q" required="True"><description>the q</description></input></inputs></task>',
            ONE.replace(
                "</task>", '<inputs><input name="q" required="true">the q</input></inputs></task>'
            ),
            "read as its text",
        ),
        (
            '<task type="atomic"><description><<x>> \0</description></task>',
            '<task type="atomic"><description>{{x}} </description></task>',
            None,
        ),
    ],
)
def test_a_task_with_a_clear_meaning_is_repaired_with_a_warning(
    text: str, xml: str, warning: str | None
) -> None:
    generated = read_generated_task(text)
    assert generated.xml == xml
    assert warning is None or any(warning in one.message for one in generated.warnings)
    assert generated.original == text


def test_misspelt_and_unclosed_steps_are_read() -> None:
    text = steps(
        '<Step name="a"><description>one</Step>',
        '<subtask name="b"><description>{{ steps.a.content }}</description></subtask>',
    )
    generated = read_generated_task(text.replace(' type="sequential"', ""))
    assert names(generated) == ["a", "b"]
    assert {"respelt", "type-told", "repaired"} <= codes(generated)
    assert generated.doubts == ()


def test_steps_without_their_element_are_put_into_one() -> None:
    generated = read_generated_task(
        f'<task type="sequential"><description>d</description>{step("a")}{step("b")}</task>'
    )
    assert names(generated) == ["a", "b"]
    assert codes(generated) == {"misplaced"}


def test_a_warning_names_the_line() -> None:
    generated = read_generated_task(
        '<task type="atomic">\n<description>one</description>\n\n<bogus/>\n<handler\n colour="x"/></task>'
    )
    assert [(w.span.line, w.code) for w in generated.warnings] == [(4, "left-out"), (5, "left-out")]


def test_an_error_after_repairs_names_the_line_of_the_answer() -> None:
    generated = read_generated_task(
        'Look:\n<task type="atomic"><bogus>\n</bogus>\n<description>one</description>\n\n<output_format type="yaml"/></task>'
    )
    assert [(e.span.line, e.code) for e in generated.errors] == [(6, "invalid-value")]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("I cannot do that", "no-task"),
        ("", "no-task"),
        (
            '<template name="f"><task type="atomic"><description>d</description></task></template',
            None,
        ),
        ('<task type="atomic"><instructions>Do it</instructions></task>', "missing-element"),
        (
            "<task><description>d</description><steps/><command>x</command></task>",
            "misplaced-element",
        ),
        (
            '<task type="atomic"><description>d</description><description>e</description></task>',
            "duplicate-element",
        ),
        ("<task " + " ".join(f'a{n}="1"' for n in range(200)) + "/>", "too-broken"),
        (ONE.replace("</task>", "<x/>" * 600 + "</task>"), "too-broken"),
        (ONE.replace("</task>", "<x/>" * 3000 + "</task>"), "too-many-elements"),
        (ONE + " " * MAX_CHARACTERS, "too-large"),
    ],
)
def test_what_is_ambiguous_or_missing_is_an_error_and_nothing_is_invented(
    text: str, code: str | None
) -> None:
    generated = read_generated_task(text)
    assert (generated.node is None) == (code is not None)
    assert {error.code for error in generated.errors} == ({code} if code else set())


@pytest.mark.parametrize("name", ["output", "tasks_of", "in", "desc", "step", "include"])
def test_a_name_that_may_mean_several_things_or_nothing_is_left_out(name: str) -> None:
    generated = read_generated_task(ONE.replace("</task>", f"<{name}>x</{name}></task>"))
    assert (generated.xml, codes(generated)) == (ONE, {"left-out"})


# Steps


def test_a_step_that_cannot_be_repaired_is_left_out_and_named() -> None:
    generated = read_generated_task(
        steps(step("a"), step("bad", type_="script"), step("c", "{{ steps.a.content }}"))
    )
    assert names(generated) == ["a", "c"]
    assert [(w.code, w.span.line) for w in generated.warnings] == [("left-out", 3)]
    assert "'bad'" in generated.warnings[0].message and "<command>" in generated.warnings[0].message
    assert generated.doubts == ()


@pytest.mark.parametrize(
    "text",
    [
        "{{ steps.bad.content }}",
        "{{ steps['bad'].content }}",
        "{{ steps[0].content }}",
        "{{ previous.content }}",
        "{% for s in steps %}x{% endfor %}",
        "<<steps.bad.content>>",
    ],
)
def test_a_step_that_a_later_one_reads_is_never_left_out(text: str) -> None:
    generated = read_generated_task(steps(step("bad", type_="script"), step("c", text)))
    assert generated.node is None
    assert "left-out" not in codes(generated)
    assert any("<command>" in error.message for error in generated.errors)


def test_a_sequence_without_its_last_step_is_doubtful() -> None:
    generated = read_generated_task(steps(step("a"), step("bad", type_="script")))
    assert names(generated) == ["a"]
    assert [doubt.code for doubt in generated.doubts] == ["lost-part"]


def test_a_sequence_of_only_invalid_steps_cannot_be_used() -> None:
    assert read_generated_task(steps(step("bad", type_="script"))).node is None


# Cut off


@pytest.mark.parametrize("end", ["", "</steps>", "</ste", "</steps></ta"])
def test_missing_end_tags_alone_are_not_a_loss(end: str) -> None:
    generated = read_generated_task(steps(step("a"), step("b"), end=end))
    assert names(generated) == ["a", "b"]
    assert codes(generated) == {"repaired"}


@pytest.mark.parametrize(
    "tail",
    [
        '<task name="c" type="atomic"><description>tw',
        '<task name="c" type="atomic"><description>two</description><instructions>go and',
        '<task name="c" ty',
        "<ta",
    ],
)
def test_the_complete_parts_of_a_cut_answer_are_kept_and_doubtful(tail: str) -> None:
    generated = read_generated_task(steps(step("a"), step("b"), tail, end=""))
    assert names(generated) == ["a", "b"]
    assert {doubt.code for doubt in generated.doubts} == {"lost-part"}


def test_a_cut_example_is_left_out_without_doubt() -> None:
    text = ONE.replace(
        "</task>", "<examples><example><output>x</output></example><example><output>y is"
    )
    generated = read_generated_task(text)
    assert generated.node is not None and len(generated.node.examples) == 1
    assert generated.doubts == () and "cut-off" in codes(generated)


def test_of_several_tasks_side_by_side_the_last_whole_one_is_read_and_doubtful() -> None:
    generated = read_generated_task(f"{ONE} Or rather: {ONE.replace('one', 'two')} Or <task><desc")
    assert generated.node is not None and generated.node.description.value == "two"
    assert [doubt.code for doubt in generated.doubts] == ["several-tasks"]


# What never happens


def test_nothing_is_fetched_and_no_entity_is_resolved(tmp_path: Path) -> None:
    secret = tmp_path / "secret.xml"
    secret.write_text("<partial>hidden</partial>")
    text = (
        f'<!DOCTYPE task [<!ENTITY s SYSTEM "{secret}">]><task type="atomic" xmlns:xi="http://www.w3.org/2001/XInclude">'
        f'<description>a &s; b</description><include href="{secret}"/><xi:include href="{secret}"/>'
        f'<instructions>c <include href="{secret}"/></instructions></task>'
    )
    generated = read_generated_task(text)
    assert generated.node is not None and "hidden" not in to_xml(generated.node)
    assert "&s;" in generated.node.description.value


PIECES = [
    '<task type="atomic">',
    '<task name="a" type="sequential">',
    "<task>",
    "</task>",
    "<steps>",
    "</steps>",
    "<description>",
    "</description>",
    "text",
    " & ",
    " < ",
    "<input name='q'>",
    "</input>",
    "<inputs>",
    "</inputs>",
    "<Step>",
    "<foo a=1>",
    "</foo>",
    "<![CDATA[",
    "]]>",
    "<!--",
    "-->",
    "<<x>>",
    "{{ steps.a }}",
    "<call template='f'/>",
    "<command>",
    "```",
    "<think>",
    "\0",
    "<output_format type='json'>{",
    "<handler max-turns='x'/>",
    "<cond><case test='1'>",
    "<!DOCTYPE x [",
    "&#0;",
    "\ud800",
    "<",
    '"',
]


@settings(max_examples=120, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join) | st.text(max_size=200))
@example("<task><task><steps><task>")
@example("<task><include/><task/>")
def test_any_text_is_read_or_refused_with_a_reason(text: str) -> None:
    generated = read_generated_task(text)
    assert (generated.node is None) == bool(generated.errors)
    assert generated.original == text
    if generated.node is not None:
        source = read_source(to_xml(generated.node))
        assert len(build(source).templates) == 1


HOSTILE = {
    "opened": "<task>" * 50_000,
    "less": "<task><description>" + "<" * 280_000,
    "attributes": "<task" + ' b=""' * 55_000 + "/>",
    "unknown": "<task>" + "".join(f"<x{n}/>" for n in range(30_000)),
    "placeholders": "<task><description>" + "<<a" * 90_000,
    "markup": '<task type="atomic"><description>' + "<b>x</b>" * 30_000 + "</description></task>",
    "steps": steps(*['<task type="script"><description>{{steps}}</description></task>'] * 600),
    "nested": '<task type="sequential"><description>d</description><steps><task type="script"/>'
    * 40,
    "unclosed": '<task type="sequential"><description>d' + "<steps><task><description>x" * 1_000,
    "values": ONE.replace(
        "</task>", "<inputs>" + '<input name="a b" type="q"/>' * 1_500 + "</inputs></task>"
    ),
    "braces": steps(step("bad", type_="script"), step("c", "{{" * 140_000)),
    "humps": "<task><" + "aB" * 140_000 + "/></task>",
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.timeout(20)
def test_hostile_text_is_read_or_refused_in_bounded_time(name: str) -> None:
    text = HOSTILE[name]
    assert len(text) <= MAX_CHARACTERS
    generated = read_generated_task(text)
    assert (generated.node is None) == bool(generated.errors)
