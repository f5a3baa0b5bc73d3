"""Each mistake that an author makes is found, with its code, line and column."""

from __future__ import annotations

import pytest

from evaluator import Diagnostic, TemplateLibrary


def findings(tmp_path, xml: str) -> list[Diagnostic]:
    (tmp_path / "t.xml").write_text(xml, encoding="utf-8")
    return list(TemplateLibrary.load(tmp_path, shipped=False).diagnostics)


def atomic(body: str, attributes: str = "") -> str:
    return (
        f'<task type="atomic" name="t"{attributes}>\n<description>d</description>\n{body}\n</task>'
    )


def sequence(steps: str, inputs: str = "") -> str:
    return f'<task type="sequential" name="t">\n<description>d</description>{inputs}\n<steps>\n{steps}\n</steps></task>'


def step(name: str, text: str, more: str = "") -> str:
    return (
        f'<task type="atomic" name="{name}"><description>d</description>'
        f"<instructions>{text}</instructions>{more}</task>"
    )


def library(*members: str) -> str:
    return "<library>\n" + "\n".join(members) + "\n</library>"


TITLE_OF = '<template name="title_of" params="doc, style=short"><task type="atomic"><description>d</description><instructions>{{ doc }} {{ style }}</instructions></task></template>'
TITLE_SCHEMA = '<output_format type="json">{"type":"object","properties":{"title":{"type":"string"},"tags":{"type":"array"}}}</output_format>'
DIRECTOR = '<director type="atomic"><description>d</description></director>'
JUDGE = '<evaluator type="atomic"><description>d</description></evaluator>'

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

WARNINGS = [
    (
        "an input that no step of a sequence uses",
        sequence(step("a", "x"), '<inputs>\n  <input name="doc"/></inputs>'),
        "unused-input",
        3,
        3,
    ),
    (
        "an input that no text of an atomic task names",
        atomic('<inputs>\n  <input name="doc"/></inputs><instructions>x</instructions>'),
        "appended-input",
        4,
        3,
    ),
    (
        "an input that only a description names that is not sent",
        '<task name="t">\n<description>about {{ doc }}</description>\n<inputs><input name="doc"/></inputs>'
        "<instructions>x</instructions></task>",
        "appended-input",
        3,
        9,
    ),
    ("no type", '<task name="t"><description>d</description></task>', "no-type", 1, 1),
    (
        "a case after one that always holds",
        sequence(
            f'<cond><case test="true">{step("a", "x")}</case>\n<case test="1 == 2">{step("b", "x")}</case></cond>'
        ),
        "unreachable-case",
        5,
        1,
    ),
    (
        "a case that never holds",
        sequence(f'<cond>\n<case test="!true">{step("a", "x")}</case></cond>'),
        "unreachable-case",
        5,
        13,
    ),
    (
        "the same test twice",
        sequence(
            '<cond><case test="doc == 1">'
            + step("a", "x")
            + '</case>\n<case test="doc  ==  1">'
            + step("b", "x")
            + "</case></cond>",
            '<inputs><input name="doc"/></inputs>',
        ),
        "unreachable-case",
        5,
        13,
    ),
    (
        "accumulate_data on an atomic task",
        atomic("<context_management><accumulate_data>true</accumulate_data></context_management>"),
        "setting-without-effect",
        3,
        1,
    ),
    (
        "accumulate_data on an atomic task, where it is false anyway",
        atomic("<context_management><accumulate_data>false</accumulate_data></context_management>"),
        "setting-without-effect",
        3,
        1,
    ),
    (
        "context on a script",
        '<task type="script" name="t"><description>d</description>\n<context_management><fresh_context>disabled'
        "</fresh_context></context_management><command>ls</command></task>",
        "setting-without-effect",
        2,
        1,
    ),
    (
        "files for a script",
        '<task type="script" name="t"><description>d</description><command>ls</command>\n'
        "<file_paths><path>a.md</path></file_paths></task>",
        "setting-without-effect",
        2,
        1,
    ),
    *(
        (
            f"<{name}> on a composite",
            sequence(step("a", "x"), f"\n<{name}>x</{name}>"),
            "setting-without-effect",
            3,
            len(name) + 3,
        )
        for name in ("criteria", "instructions", "system", "model")
    ),
    (
        "no step sees any context",
        '<task type="sequential" name="t"><description>d</description>\n<context_management><inherit_context>none'
        "</inherit_context><accumulate_data>false</accumulate_data><fresh_context>disabled</fresh_context>"
        f"</context_management><steps>{step('a', 'x')}</steps></task>",
        "no-context",
        2,
        1,
    ),
    (
        "feedback that no text of the director names",
        '<task type="director_evaluator_loop" name="t"><description>d</description>\n<max_iterations>2</max_iterations>'
        f"{DIRECTOR}<evaluator><description>{{{{ director_result }}}}</description></evaluator></task>",
        "setting-without-effect",
        2,
        35,
    ),
    (
        "a result that no text of the evaluator names",
        '<task type="director_evaluator_loop" name="t"><description>d</description>\n<max_iterations>2</max_iterations>'
        f"<director><description>{{{{ evaluation_feedback }}}}</description></director>{JUDGE}</task>",
        "setting-without-effect",
        2,
        108,
    ),
    (
        "accumulate_data on a map",
        '<task type="map" name="t"><description>d</description>\n'
        "<context_management><accumulate_data>true</accumulate_data></context_management><inputs><input name='i'/></inputs>"
        '<inner_task type="atomic"><description>d</description></inner_task></task>',
        "setting-without-effect",
        2,
        1,
    ),
    (
        "accumulation_format where nothing accumulates",
        '<task type="sequential" name="t"><description>d</description>\n<context_management>'
        "<accumulate_data>false</accumulate_data><accumulation_format>full_output</accumulation_format>"
        f"</context_management><steps>{step('a', 'x')}</steps></task>",
        "setting-without-effect",
        2,
        1,
    ),
    (
        "a loop by default",
        f'<task type="director_evaluator_loop" name="t"><description>d</description>{DIRECTOR}{JUDGE}</task>',
        "loop-by-default",
        1,
        1,
    ),
    (
        "an argument that is almost a variable",
        library(
            TITLE_OF,
            sequence(
                '<call template="title_of"><arg>documnt</arg><arg>document</arg></call>',
                '<inputs><input name="document"/></inputs>',
            ),
        ),
        "literal-argument",
        6,
        32,
    ),
    (
        "a function that calls itself in a text",
        '<template name="f" params="a"><task type="atomic"><description>d</description>\n'
        "<instructions>{% if a %}{{ f(a) }}{% endif %}</instructions></task></template>",
        "call-cycle",
        2,
        28,
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


@pytest.mark.parametrize(
    ("xml", "code", "line", "column"), [row[1:] for row in WARNINGS], ids=[r[0] for r in WARNINGS]
)
def test_a_doubt_is_a_warning_or_a_note_at_its_place(tmp_path, xml, code, line, column):
    found = findings(tmp_path, xml)
    assert [d for d in found if d.severity == "error"] == []
    assert (code, line, column) in [(d.code, d.span.line, d.span.column) for d in found]


SOUND = [
    (
        "a function whose result an input gives to a setting",
        library(
            TITLE_OF,
            atomic(
                '<inputs><input name="m" from="title_of(1)"/></inputs><model>{{ m }}</model>'
                "<instructions>{{ m }}</instructions>"
            ),
        ),
    ),
    (
        "everything that a sequence binds",
        sequence(
            step("a", "{{ doc }}", TITLE_SCHEMA)
            + step("b", "{{ previous.content }} {{ steps[0].parsed.title }}")
            + step(
                "c",
                "{{ steps.a.parsed.tags | length }} {{ steps.b.content }} {{ steps['a'].notes.warnings }}",
            ),
            '<inputs><input name="doc"/></inputs>',
        ),
    ),
    (
        "everything that a loop binds",
        '<task type="director_evaluator_loop" name="t"><description>d</description><max_iterations>3</max_iterations>'
        '<director type="atomic"><description>{{ evaluation_feedback }} {{ current_iteration }}</description></director>'
        "<script_execution><command>echo {{ director_result }}</command></script_execution>"
        '<evaluator type="atomic"><description>{{ script_output.stdout }} {{ script_output.exit_code }}</description>'
        "</evaluator><termination_condition>evaluation.success &amp;&amp; evaluation.score > 3</termination_condition>"
        "</task>",
    ),
    (
        "everything that reduce binds",
        '<task type="reduce" name="t"><description>d</description><inputs><input name="docs" type="string[]"/></inputs>'
        '<inner_task type="atomic"><description>{{ current_input }} {{ index }}</description></inner_task>'
        '<reduction_task type="atomic"><description>{{ accumulator }} {{ current_result }} {{ current_input }}'
        "</description></reduction_task></task>",
    ),
    (
        "a default that reads an input beside it",
        atomic(
            '<inputs><input name="a"/><input name="b" default="{{ a }}!"/></inputs><instructions>{{ b }}</instructions>'
        ),
    ),
    (
        "everything that map binds",
        '<task type="map" name="t"><description>d</description><inputs><input name="docs" type="string[]"/></inputs>'
        '<inner_task type="atomic"><description>{{ current_input }} {{ index }}</description></inner_task></task>',
    ),
    (
        "a variable that need not be there",
        atomic("<instructions>{{ doc | default('none') }}</instructions>"),
    ),
    (
        "a variable of the text itself",
        atomic("<instructions>{% for x in [1, 2] %}{{ x }}{% endfor %}</instructions>"),
    ),
    ("literal braces", atomic("<instructions>{% raw %}{{ doc }}{% endraw %}</instructions>")),
    (
        "a recursion that a cond ends",
        '<template name="f" params="a"><cond><case test="a"><call template="f"><arg>a</arg></call></case></cond></template>',
    ),
    (
        "an inner task that sees the inputs around it",
        sequence(step("a", "{{ doc }}"), '<inputs><input name="doc"/></inputs>'),
    ),
]


@pytest.mark.parametrize("xml", [row[1] for row in SOUND], ids=[row[0] for row in SOUND])
def test_a_sound_template_has_no_findings(tmp_path, xml):
    assert findings(tmp_path, xml) == []
