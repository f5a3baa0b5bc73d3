"""What is doubtful in a template is a warning or a note; what is sound has no finding."""

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
