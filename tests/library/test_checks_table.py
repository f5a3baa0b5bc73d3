"""Each mistake that an author makes is found, with its code, line and column."""

from __future__ import annotations

import pytest

from tests.library.checked import (
    DIRECTOR,
    JUDGE,
    TITLE_OF,
    TITLE_SCHEMA,
    atomic,
    findings,
    library,
    sequence,
    step,
)

# (name, template, code, line, column)
ERRORS = [
    (
        "undefined variable",
        atomic("<instructions>Read {{ doc }}</instructions>"),
        "undefined-variable",
        3,
        23,
    ),
    (
        "undefined variable, the other spelling",
        atomic("<instructions>Read <<doc>></instructions>"),
        "undefined-variable",
        3,
        22,
    ),
    (
        "undefined variable in the second line of a text",
        atomic("<instructions>Read\n   this: {{ doc }}</instructions>"),
        "undefined-variable",
        4,
        13,
    ),
    (
        "undefined variable in a setting",
        atomic('<handler max_turns="{{ n }}"/>'),
        "undefined-variable",
        3,
        24,
    ),
    (
        "previous in the first step",
        sequence(step("a", "{{ previous.content }}")),
        "undefined-variable",
        4,
        75,
    ),
    (
        "a later step",
        sequence(step("a", "{{ steps.b.content }}") + "\n" + step("b", "x")),
        "unknown-field",
        4,
        81,
    ),
    ("the step itself", sequence(step("a", "{{ steps.a.content }}")), "unknown-field", 4, 81),
    (
        "a field that the schema does not have",
        sequence(step("a", "x", TITLE_SCHEMA) + "\n" + step("b", "{{ steps.a.parsed.titel }}")),
        "unknown-field",
        5,
        90,
    ),
    (
        "a field of a text",
        sequence(step("a", "x") + "\n" + step("b", "{{ steps.a.parsed.title }}")),
        "unknown-field",
        5,
        90,
    ),
    (
        "a field that no result has",
        sequence(step("a", "x") + "\n" + step("b", "{{ steps.a.output }}")),
        "unknown-field",
        5,
        83,
    ),
    (
        "steps outside a sequence",
        atomic("<instructions>{{ steps.a }}</instructions>"),
        "undefined-variable",
        3,
        18,
    ),
    (
        "two steps of one name",
        sequence(step("a", "x") + "\n" + step("a", "y")),
        "duplicate-name",
        5,
        1,
    ),
    (
        "accumulator in the inner task",
        '<task type="reduce" name="t"><description>d</description>\n<inputs><input name="i"/></inputs>\n'
        '<inner_task type="atomic"><description>{{ accumulator }}</description></inner_task>\n'
        '<reduction_task type="atomic"><description>d</description></reduction_task></task>',
        "undefined-variable",
        3,
        43,
    ),
    (
        "accumulator in a map",
        '<task type="map" name="t"><description>d</description>\n<inputs><input name="i"/></inputs>\n'
        '<inner_task type="atomic"><description>{{ accumulator }}</description></inner_task></task>',
        "undefined-variable",
        3,
        43,
    ),
    (
        "a field of the list that a map gives",
        sequence(
            '<task type="map" name="m"><description>d</description><inputs over="x"><input name="x" default="y"/></inputs>'
            '<inner_task type="atomic"><description>{{ current_input }}</description></inner_task></task>\n'
            + step("b", "{{ steps.m.parsed.title }}")
        ),
        "unknown-field",
        5,
        90,
    ),
    (
        "over names no input",
        '<task type="reduce" name="t"><description>d</description>\n<inputs over="docs"><input name="doc"/></inputs>\n'
        '<inner_task type="atomic"><description>d</description></inner_task>\n'
        '<reduction_task type="atomic"><description>d</description></reduction_task></task>',
        "unknown-input",
        2,
        15,
    ),
    (
        "a name of the loop that does not exist",
        f'<task type="director_evaluator_loop" name="t"><description>d</description>{DIRECTOR}{JUDGE}\n'
        "<termination_condition>evaluation.succes</termination_condition></task>",
        "unknown-field",
        2,
        35,
    ),
    (
        "a field that a script's output does not have",
        f'<task type="director_evaluator_loop" name="t"><description>d</description>{DIRECTOR}\n'
        "<script_execution><command>true</command></script_execution>\n"
        '<evaluator type="atomic"><description>{{ script_output.output }}</description></evaluator></task>',
        "unknown-field",
        3,
        56,
    ),
    (
        "a function that sees more than its parameters",
        library(
            '<template name="f" params="a"><task type="atomic"><description>d</description>',
            "<instructions>{{ a }} {{ b }}</instructions></task></template>",
        ),
        "undefined-variable",
        3,
        26,
    ),
    ("call of nothing", sequence('<call template="nothing"/>'), "unknown-template", 4, 1),
    (
        "call of nothing in a text",
        atomic("<instructions>{{ f(1) }}</instructions>"),
        "unknown-template",
        3,
        18,
    ),
    (
        "too few arguments in a text",
        library(TITLE_OF, atomic("<instructions>{{ title_of() }}</instructions>")),
        "wrong-arity",
        5,
        18,
    ),
    (
        "too many arguments",
        library(
            TITLE_OF,
            sequence('<call template="title_of"><arg>1</arg><arg>2</arg><arg>3</arg></call>'),
        ),
        "wrong-arity",
        6,
        1,
    ),
    (
        "an unknown keyword",
        library(TITLE_OF, atomic('<instructions>{{ title_of("x", stile="y") }}</instructions>')),
        "wrong-arity",
        5,
        32,
    ),
    (
        "a keyword given twice",
        library(
            TITLE_OF,
            sequence('<call template="title_of"><arg>1</arg><arg name="doc">2</arg></call>'),
        ),
        "wrong-arity",
        6,
        39,
    ),
    (
        "a function that is not called",
        library(TITLE_OF, atomic("<instructions>{{ title_of }}</instructions>")),
        "function-not-called",
        5,
        18,
    ),
    (
        "a variable that is called",
        atomic('<inputs><input name="x"/></inputs><instructions>{{ x(1) }}</instructions>'),
        "not-a-function",
        3,
        52,
    ),
    (
        "a function called in a path",
        library(TITLE_OF, atomic('<file_paths><path>{{ title_of("x") }}</path></file_paths>')),
        "call-not-allowed",
        5,
        22,
    ),
    (
        "a function called in the name of a model",
        library(TITLE_OF, atomic('<model>{{ title_of("x") }}</model>')),
        "call-not-allowed",
        5,
        11,
    ),
    (
        "a function called in a setting",
        library(TITLE_OF, atomic("<handler max_turns=\"{{ title_of('x') }}\"/>")),
        "call-not-allowed",
        5,
        24,
    ),
    (
        "a function called for the functions of a row",
        library(TITLE_OF, atomic("<tools from=\"title_of('x')\"/>")),
        "call-not-allowed",
        5,
        14,
    ),
    (
        "a function called in the setting of a turn",
        library(
            TITLE_OF,
            atomic(
                '<turns><turn role="user">a</turn><turn role="user" max="{{ title_of(1) }}">'
                '<call template="title_of"><arg>a</arg></call></turn></turns>'
            ),
        ),
        "call-not-allowed",
        5,
        60,
    ),
    (
        "a step that adds a number to the text of an earlier one",
        sequence(step("a", "x") + step("b", "{{ steps.a.content + 1 }}")),
        "wrong-type",
        4,
        176,
    ),
    (
        "a method that the declared type does not have",
        atomic(
            '<inputs><input name="n" type="integer"/></inputs><instructions>{{ n.upper() }}</instructions>'
        ),
        "unknown-method",
        3,
        69,
    ),
    (
        "a method that is not called",
        atomic(
            '<inputs><input name="x" type="string"/></inputs><instructions>{{ x.upper }}</instructions>'
        ),
        "unknown-field",
        3,
        68,
    ),
    (
        "an index of a number",
        atomic(
            '<inputs><input name="n" type="integer"/></inputs><instructions>{{ n[0] }}</instructions>'
        ),
        "unknown-field",
        3,
        68,
    ),
    (
        "a loop over a number",
        atomic(
            '<inputs><input name="n" type="integer"/></inputs>'
            "<instructions>{% for i in n %}{{ i }}{% endfor %}</instructions>"
        ),
        "wrong-type",
        3,
        76,
    ),
    (
        "an argument of the wrong type",
        library(
            '<task type="atomic" name="n"><description>d</description>'
            '<inputs><input name="count" type="integer"/></inputs><instructions>{{count}}</instructions></task>',
            sequence('<call template="n"><arg name="count">many</arg></call>'),
        ),
        "argument-type",
        6,
        38,
    ),
    (
        "a placeholder of the wrong type as an argument",
        library(
            '<task type="atomic" name="n"><description>d</description>'
            '<inputs><input name="count" type="integer"/></inputs><instructions>{{count}}</instructions></task>',
            sequence(
                '<call template="n"><arg name="count">{{ x }}</arg></call>',
                inputs='<inputs><input name="x" type="string"/></inputs>',
            ),
        ),
        "argument-type",
        6,
        38,
    ),
    (
        "a field of the only item of a map, a number",
        '<task type="map" name="t"><description>d</description>'
        '<inputs><input name="n" type="integer"/></inputs>\n'
        '<inner_task type="atomic"><description>{{ current_input.size }}</description></inner_task></task>',
        "unknown-field",
        2,
        57,
    ),
    (
        "a list where a number is declared",
        sequence(
            step("a", "x", '<output_format type="json" schema="string[]"/>')
            + '\n<task type="atomic" name="b"><description>d</description><inputs>'
            '<input name="n" type="number" from="steps.a.parsed"/></inputs><instructions>{{ n }}</instructions></task>'
        ),
        "type-mismatch",
        5,
        102,
    ),
    (
        "a text where a number is declared",
        sequence(
            step("a", "x") + '\n<task type="atomic" name="b"><description>d</description><inputs>'
            '<input name="n" type="number" from="steps.a.content"/></inputs><instructions>{{ n }}</instructions></task>'
        ),
        "type-mismatch",
        5,
        102,
    ),
    (
        "from a name that does not exist",
        sequence(
            '<task type="atomic" name="b"><description>d</description><inputs>'
            '<input name="n" from="nowhere"/></inputs><instructions>{{ n }}</instructions></task>'
        ),
        "undefined-variable",
        4,
        88,
    ),
    (
        "a step's required input that nothing gives",
        sequence(
            '<task type="atomic" name="b"><description>d</description><inputs>'
            '<input name="n"/></inputs><instructions>{{ n }}</instructions></task>'
        ),
        "missing-input",
        4,
        66,
    ),
    (
        "a step's required input behind a ref",
        library(
            atomic('<inputs><input name="n"/></inputs><instructions>{{ n }}</instructions>'),
            sequence('<task type="atomic" ref="t"/>').replace('name="t"', 'name="s"'),
        ),
        "missing-input",
        9,
        1,
    ),
    (
        "a step's own required input beside a ref",
        library(
            atomic('<inputs><input name="n"/></inputs><instructions>{{ n }}</instructions>'),
            sequence(
                '<task type="atomic" ref="t"><inputs>\n<input name="n" type="string"/></inputs></task>'
            ).replace('name="t"', 'name="s"'),
        ),
        "missing-input",
        10,
        1,
    ),
    (
        "a default of the wrong type",
        atomic(
            '<inputs><input name="n" type="integer" default="many"/></inputs><instructions>{{n}}</instructions>'
        ),
        "default-type",
        3,
        49,
    ),
    (
        "an example of another task",
        atomic(
            '<inputs><input name="doc"/></inputs><instructions>{{doc}}</instructions>\n<examples>'
            '<example><input name="dok">x</input><output>y</output></example></examples>'
        ),
        "example-input",
        4,
        33,
    ),
    (
        "an unknown schema",
        atomic('<output_format type="json" schema="strings"/>'),
        "unknown-schema",
        3,
        1,
    ),
    (
        "a schema that is no JSON",
        atomic('<output_format type="json">{"type": </output_format>'),
        "invalid-schema",
        3,
        36,
    ),
    (
        "a schema file that is not there",
        atomic('<output_format type="json" schema="no/such.json"/>'),
        "missing-schema",
        3,
        1,
    ),
    (
        "returns and schema that differ",
        '<template name="f" params="a" returns="string[]">\n<task type="atomic"><description>d</description>'
        '<instructions>{{ a }}</instructions>\n<output_format type="json" schema="object"/></task></template>',
        "type-mismatch",
        3,
        1,
    ),
    (
        "a function that calls itself for ever",
        '<template name="f" params="a">\n<call template="f"><arg>a</arg></call></template>',
        "endless-call",
        2,
        1,
    ),
    ("an unknown ref", atomic("", ' ref="nothing"'), "unknown-ref", 1, 1),
    ("a ref to itself", atomic("", ' ref="t"'), "ref-cycle", 1, 1),
    (
        "a syntax error in a text",
        atomic("<instructions>{{ a b }}</instructions>"),
        "syntax",
        3,
        20,
    ),
]


@pytest.mark.parametrize(
    ("xml", "code", "line", "column"), [row[1:] for row in ERRORS], ids=[r[0] for r in ERRORS]
)
def test_a_mistake_is_an_error_at_its_place(tmp_path, xml, code, line, column):
    found = [
        (d.code, d.span.line, d.span.column)
        for d in findings(tmp_path, xml)
        if d.severity == "error"
    ]
    assert found == [(code, line, column)]


def test_two_names_that_cannot_be_used_are_not_the_same_name(tmp_path):
    found = findings(tmp_path, atomic('<inputs><input name="x y"/><input name="1x"/></inputs>'))
    assert [each.code for each in found] == ["invalid-value", "invalid-value"]
