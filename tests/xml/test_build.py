"""Building: every construct, every refusal, and includes with their own places."""

import pytest

from evaluator import Diagnostic, Span, TemplateError
from evaluator.nodes import (
    Call,
    Cond,
    DirectorEvaluatorLoop,
    Function,
    Reduce,
    Script,
    Sequential,
    Text,
)
from evaluator.nodes.walk import is_stand_in
from evaluator.xml.build import build
from evaluator.xml.build_context import SplitError, split_command
from evaluator.xml.source import read_source

NAMED = 'name="a" type="atomic"'


def built(text, **partials):
    def read_partial(href, span):
        if href not in partials:
            raise TemplateError([Diagnostic("error", "unreadable", f"no {href}", span)])
        return read_source(partials[href], href)

    return build(read_source(text, "f.xml"), read_partial=read_partial)


def one(text, **partials):
    result = built(text, **partials)
    assert not [found for found in result.diagnostics if found.severity == "error"], (
        result.diagnostics
    )
    (template,) = result.templates
    return template


def task(inner, attributes='type="atomic"'):
    return f"<task {attributes}><description>d</description>{inner}</task>"


def test_an_atomic_task_has_all_its_parts():
    node = one(
        task(
            '<handler ref="p" max_turns="3" max_context_fraction="0.5" timeout="<<t>>" max_cost="0"/>'
            '<inputs><input name="a" type="integer" default="1">an a</input><input name="b" from="{{ x.y }}"/>'
            '<input name="c">see<call template="f"/></input></inputs><tools><tool name="t"/></tools>'
            '<examples shots="1"><example><input name="a">1</input><output> two </output></example></examples>'
            "<context_management><accumulation_format>minimal</accumulation_format></context_management>"
            '<output_format>{"type": "object"}</output_format><manual_xml>true</manual_xml>'
            "<disable_reparsing>{{x}}</disable_reparsing>",
            'name="n" type="atomic" subtype="s" version="2"',
        )
    )
    assert (node.name, node.type, node.subtype, node.version, node.shots, node.tools) == (
        "n",
        "atomic",
        "s",
        "2",
        True,
        ("t",),
    )
    assert (
        node.handler.max_turns,
        node.handler.max_context_fraction,
        node.handler.max_cost_usd,
    ) == (
        3,
        0.5,
        0.0,
    )
    assert node.handler.timeout_s.value == "{{t}}"
    a, b, c = node.inputs
    assert (a.required, a.default.value, a.description, b.required, b.source.source.value) == (
        False,
        "1",
        "an a",
        True,
        "x.y",
    )
    assert isinstance(c.task, Call)
    assert c.description == "see"
    assert (node.examples[0].inputs, node.examples[0].output) == ({"a": "1"}, "two")
    assert node.context.accumulation_format == "notes_only"
    assert (node.output.type, node.output.schema, node.manual_xml) == (
        "json",
        '{"type": "object"}',
        True,
    )
    assert isinstance(node.disable_reparsing, Text)


def test_older_spellings_are_read_with_a_warning():
    text = task(
        "<context_management><accumulation_format>full</accumulation_format></context_management>"
    )
    (found,) = built(text).diagnostics
    assert (found.severity, found.code) == ("warning", "old-spelling")


@pytest.mark.parametrize("tag", ["task", "director", "evaluator", "inner_task", "reduction_task"])
def test_a_task_without_a_type_is_atomic(tag):
    if tag == "task":
        result = built("<task name='t'><description>d</description></task>")
        assert [(found.severity, found.code) for found in result.diagnostics] == [
            ("note", "no-type")
        ]
        assert result.templates[0].type == "atomic"
        return
    others = {"director": "evaluator", "evaluator": "director", "inner_task": "reduction_task"}
    other = others.get(tag, "inner_task")
    kind = "director_evaluator_loop" if "tor" in tag else "reduce"
    inputs = "" if "tor" in tag else '<inputs><input name="a"/></inputs>'
    roles = "".join(f"<{name}><description>d</description></{name}>" for name in (tag, other))
    node = one(task(inputs + roles, f'type="{kind}"'))
    assert getattr(node, tag).type == "atomic"


def test_a_part_of_another_operator_says_that_the_type_is_missing():
    (found,) = [one for one in built(task("<steps/>", "")).diagnostics if one.severity == "error"]
    assert found.message == "<steps> is not allowed in <task> without a type, which is atomic"


PIPELINES = [
    ("ls -t | head -3", "|"),
    ("cd notes && ls", "&&"),
    ("ls notes; ls more", "notes;"),
    ("ls ;", ";"),
    ("ls > out", ">"),
    ("ls 2>/dev/null", "2>/dev/null"),
    ("cat < names", "<"),
    ("ls $(pwd)", "$(pwd)"),
    ("a || b", "||"),
    ("run &", "&"),
]


@pytest.mark.parametrize(("text", "word"), PIPELINES)
@pytest.mark.parametrize(
    "form",
    [
        '<file_paths source="command"><command{}>{}</command></file_paths>',
        "<command{}>{}</command>",
    ],
)
def test_a_command_that_needs_a_shell_says_so(form, text, word):
    kind = 'type="atomic"' if "file_paths" in form else 'type="script"'
    escaped = text.replace("&", "&amp;").replace("<", "&lt;")
    (found,) = built(task(form.format("", escaped), kind)).diagnostics
    assert (found.code, found.severity) == ("shell-syntax", "error")
    assert found.message.startswith(f"{word} needs a shell")
    assert 'shell="true"' in found.hint
    node = one(task(form.format(' shell="true"', escaped), kind))
    items = node.file_paths.items if "file_paths" in form else node.command
    assert [item.value for item in items] == [text]


@pytest.mark.parametrize(
    "text",
    [
        "grep -E a|b",
        "awk -F '|' x",
        "find . -exec ls {} \\;",
        "curl http://a/?b=1&amp;c=2",
        "x {{ a | upper }}",
        'a "> b"',
    ],
)
def test_a_command_with_such_characters_inside_arguments_needs_no_shell(text):
    assert built(task(f"<command>{text}</command>", 'type="script"')).diagnostics == ()


def test_the_other_operators_have_their_parts():
    inner = task("")
    steps = one(
        task(
            f'<steps>{inner}<call template="f" name="c"/><cond><case test="a &lt; 1">{inner}</case></cond></steps>',
            'type="sequential"',
        )
    )
    assert isinstance(steps, Sequential)
    assert [type(step).__name__ for step in steps.steps] == ["Atomic", "Call", "Cond"]
    assert isinstance(steps.steps[2], Cond)
    assert steps.steps[2].cases[0].test.source.value == "a < 1"
    roles = "<description>r</description>"
    reduce = one(
        task(
            f'<inputs over="a, b"><input name="a"/><input name="b"/></inputs><inner_task name="i">{roles}</inner_task>'
            f'<reduction_task><call template="f"/></reduction_task>',
            'type="reduce" concurrency="4"',
        )
    )
    assert isinstance(reduce, Reduce)
    assert (
        reduce.over,
        reduce.concurrency,
        reduce.inner_task.name,
        reduce.reduction_task.template,
    ) == (
        ("a", "b"),
        4,
        "i",
        "f",
    )
    script = one(
        task("<command>run 'a b' {{ x('c d') }}</command><timeout>2.5</timeout>", 'type="script"')
    )
    assert isinstance(script, Script)
    assert [part.value for part in script.command] == ["run", "a b", "{{ x('c d') }}"]
    assert script.timeout_s == 2.5
    shell = one(task('<command shell="true">a | b "c</command>', 'type="script"'))
    assert (shell.shell, [part.value for part in shell.command]) == (True, ['a | b "c'])
    loop = one(
        task(
            f"<director>{roles}</director><evaluator>{roles}</evaluator><max_iterations>2</max_iterations><script_execution>"
            "<command><arg>x y</arg></command></script_execution><termination_condition>ok</termination_condition>",
            'type="director_evaluator_loop"',
        )
    )
    assert isinstance(loop, DirectorEvaluatorLoop)
    assert (
        loop.max_iterations,
        loop.script_execution.command[0].value,
        loop.termination_condition.source.value,
    ) == (2, "x y", "ok")


def test_a_function_has_typed_parameters_with_defaults():
    node = one(
        """<template name="f" returns="string" params="doc, sep=', ', n: integer = 3, j=[1,2]"><call template="x"/></template>"""
    )
    assert isinstance(node, Function)
    assert [(p.name, p.type, p.default) for p in node.params] == [
        ("doc", "any", None),
        ("sep", "any", ", "),
        ("n", "integer", "3"),
        ("j", "any", "[1,2]"),
    ]


def test_a_task_that_refers_may_leave_out_its_parts():
    node = one('<task type="reduce" ref="other"/>')
    assert (node.ref, node.description.value) == ("other", "")
    assert is_stand_in(node.inner_task)


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ('<task type="atomic"/>', "missing-element", "1:1"),
        (task("\n<description>e</description>"), "duplicate-element", "2:1"),
        (task("\n<steps/>"), "misplaced-element", "2:1"),
        (task("", 'type="sequential"'), "missing-element", "1:1"),
        (task("\n<steps/>", 'type="sequential"'), "missing-element", "2:1"),
        (task("", 'type="script"'), "missing-element", "1:1"),
        (task("\n<command>a 'b</command>", 'type="script"'), "invalid-command", "2:12"),
        (task("\n<command>a {{ b</command>", 'type="script"'), "invalid-command", "2:12"),
        (task("\n<command/>", 'type="script"'), "missing-value", "2:1"),
        (task('\n<handler max_turns="0"/>'), "invalid-value", "2:21"),
        (task('\n<handler max_context_fraction="1.5"/>'), "invalid-value", "2:32"),
        (task('\n<handler max_cost="-1"/>'), "invalid-value", "2:20"),
        (task('<inputs><input name="a"/>\n<input name="a"/></inputs>'), "duplicate-name", "2:1"),
        (task('\n<inputs over="a"/>'), "misplaced-attribute", "2:15"),
        (
            task('\n<inputs><input name="a" from="b"><call template="f"/></input></inputs>'),
            "two-sources",
            "2:9",
        ),
        (task('\n<output_format schema="x">{}</output_format>'), "two-schemas", "2:24"),
        (task("\n<output_format>{1}</output_format>"), "invalid-schema", "2:17"),
        (task("\n<output_format>[]</output_format>"), "invalid-schema", "2:16"),
        (task("\n<examples><example/></examples>"), "missing-element", "2:11"),
        (task('\n<file_paths source="glob"/>'), "missing-element", "2:1"),
        (
            task("\n<file_paths><path>a</path><command>b</command></file_paths>"),
            "misplaced-element",
            "2:27",
        ),
        (
            '<template name="f"\n params="a, 1b"><call template="x"/></template>',
            "invalid-params",
            "2:13",
        ),
        (
            '<template name="f"\n params="a, a"><call template="x"/></template>',
            "duplicate-name",
            "2:13",
        ),
        ('<template name="f"/>', "missing-element", "1:1"),
        (
            '<template name="f"><call template="x"/>\n<call template="x"/></template>',
            "duplicate-element",
            "2:1",
        ),
        (f"<library>{task('', NAMED)}\n{task('', NAMED)}</library>", "duplicate-name", "2:1"),
        (task("\n<steps><cond/></steps>", 'type="sequential"'), "missing-element", "2:8"),
        (
            task(
                '<steps><call template="x"><arg name="a"/>\n<arg/></call></steps>',
                'type="sequential"',
            ),
            "misplaced-element",
            "2:1",
        ),
    ],
)
def test_what_has_the_wrong_shape_is_an_error_at_its_place(text, code, place):
    found = built(text).diagnostics
    assert [(one.code, str(one.span)) for one in found] == [(code, f"f.xml:{place}")]


def test_one_bad_template_leaves_the_others_of_its_file():
    result = built(f"<library><task type='atomic'/>{task('', NAMED)}</library>")
    assert [template.name for template in result.templates] == ["a"]
    assert len(result.diagnostics) == 1


def test_includes_bring_children_and_text_with_their_own_places():
    result = built(
        '<task type="atomic"><description>see <include href="t"/>!</description><include href="p"/></task>',
        t="<partial>\n  the <<text>>\n</partial>",
        p='<partial>\n<instructions>go</instructions><tools><include href="q"/></tools></partial>',
        q='<partial><tool name="x"/></partial>',
    )
    (node,) = result.templates
    assert node.description.value == "see the {{text}}!"
    assert str(node.description.locate(8)) == "t:2:7"
    assert str(node.description.locate(node.description.value.index("!"))) == "f.xml:1:57"
    assert str(node.instructions.span) == "p:2:15"
    assert node.tools == ("x",)
    assert set(result.includes) == {"t", "p", "q"}


def test_what_cannot_be_included_is_an_error_at_the_include():
    cases = {
        '<include href="missing"/>': "include",
        '<include href="root"/>': "include",
        '<include href="loop"/>': "include-cycle",
        '<include href="words"/>': "misplaced-text",
    }
    for text, code in cases.items():
        result = built(
            task(text),
            root="<task type='atomic'/>",
            loop="<partial><include href='loop'/></partial>",
            words="<partial>words</partial>",
        )
        assert code in {found.code for found in result.diagnostics}, text
        assert result.templates == ()


def test_includes_that_multiply_are_stopped():
    def include(n):
        return f'<include href="p{n}"/>'

    partials = {f"p{n}": f"<partial>{include(n + 1) * 10}</partial>" for n in range(9)}
    result = built(task('<include href="p0"/>'), **partials, p9="<partial/>")
    assert "include" in {found.code for found in result.diagnostics}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a  b\n c", ["a", "b", "c"]),
        (r"a\ b 'c\d' " + r'"e\"f\\g\h"', ["a b", r"c\d", r"e\"f\g\h".replace('\\"', '"', 1)]),
        ("a'b'\"c\" ''", ["abc", ""]),
        (
            "--x={{ f('a b', \"c\") }}y {% if z %}q{% endif %}",
            ["--x={{ f('a b', \"c\") }}y", "{% if z %}q{% endif %}"],
        ),
        ("'{{ \"it's\" }}' {x}", ['{{ "it\'s" }}', "{x}"]),
    ],
)
def test_a_command_is_split_like_a_shell_does(line, expected):
    found = split_command(Text(line, Span()))
    assert [one.value for one in found] == expected
    assert all(
        line[one.locate(i).column - 1] == c
        for one in found
        for i, c in enumerate(one.value)
        if "\n" not in line
    )


@pytest.mark.parametrize("line", ["a 'b", 'a "b', "a \\", "{{ x", "'{{ x'"])
def test_a_command_that_is_not_completed_is_refused(line):
    with pytest.raises(SplitError):
        split_command(Text(line, Span()))
