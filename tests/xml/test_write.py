"""Writing: what is written reads back as the same tree."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator import Span, UsageError
from evaluator.nodes import (
    Argument,
    Atomic,
    Call,
    Case,
    Cond,
    ContextSettings,
    DirectorEvaluatorLoop,
    Example,
    Expression,
    FilePaths,
    Function,
    HandlerSpec,
    Input,
    Map,
    OutputFormat,
    Param,
    Reduce,
    Script,
    Sequential,
    Text,
)
from evaluator.xml.build import build
from evaluator.xml.schema import validate
from evaluator.xml.source import read_source
from evaluator.xml.write import to_xml

AT = Span()


def bare(value):
    """The tree without its places."""
    if isinstance(value, Text):
        return value.value
    if dataclasses.is_dataclass(value):
        fields = ((one.name, getattr(value, one.name)) for one in dataclasses.fields(value))
        return (
            type(value).__name__,
            {
                name: bare(one)
                for name, one in fields
                if name not in ("span", "tool_spans", "places")
            },
        )
    return [bare(one) for one in value] if isinstance(value, tuple) else value


def read_back(node):
    text = to_xml(node)
    source = read_source(
        text if isinstance(node, Function) or hasattr(node, "type") else f"<x>{text}</x>"
    )
    assert validate(source, "task") == [], text
    result = build(source)
    assert result.diagnostics == (), text
    return result.templates[0]


hard = st.sampled_from(
    [
        "a",
        "b ",
        " c",
        "\n",
        "\n  ",
        "\t",
        "<",
        "&",
        "]]>",
        "{{ x }}",
        "<<y>>",
        '"',
        "'",
        "é😀",
        "\r",
        "\\",
        ",",
    ]
)
words = st.lists(hard, max_size=6).map("".join)
texts = words.map(lambda value: Text(value, AT))
filled = words.map(lambda value: Text("x" + value, AT))
names = st.sampled_from(["a", "b1", "c_d", "ü"])
setting = st.sampled_from([Text("{{ n }}", AT), None])
expressions = st.sampled_from(["a < b", 'x == "y"', "not z", "f(a)\n and b"]).map(
    lambda value: Expression(Text(value, AT))
)
attribute_expressions = st.sampled_from(["a < b", 'x["y"]', "a && b"]).map(
    lambda value: Expression(Text(value, AT))
)
calls = st.builds(
    Call,
    names,
    st.lists(st.builds(Argument, st.none(), texts, st.just(AT)), max_size=2).map(tuple),
    st.none() | names,
    st.just(AT),
)
unique = {"unique_by": lambda one: one.name}


def common(nodes):
    inputs = st.builds(
        Input,
        names,
        st.sampled_from(["any", "string[]"]),
        st.booleans(),
        st.none() | texts,
        st.none(),
        st.none() | nodes,
        words.map(lambda value: value.strip()),
        st.just(AT),
    ) | st.builds(
        Input,
        names,
        st.just("any"),
        st.booleans(),
        st.none(),
        attribute_expressions,
        st.none(),
        words,
        st.just(AT),
    )
    handlers = st.builds(
        HandlerSpec,
        ref=st.none() | names,
        max_turns=st.integers(1, 99) | setting,
        max_context_fraction=st.floats(1e-7, 1) | setting,
        timeout_s=st.floats(1e-6, 1e9) | setting,
        max_cost_usd=st.floats(0, 1e6) | setting,
        top_k=st.none() | st.integers(0, 9),
        seed=st.none() | st.integers(-9, 9),
        stop=st.none() | st.lists(words.filter(bool), min_size=1, max_size=2).map(tuple),
        extra_body=st.none()
        | st.dictionaries(st.sampled_from(["a", "b"]), words | st.integers(-9, 9)),
    )
    optional = st.none() | texts
    return {
        "name": st.none() | names,
        "subtype": st.none() | names,
        "version": st.none() | st.just("1.0"),
        "description": filled,
        "instructions": optional,
        "system": optional,
        "model": st.none() | filled,
        "model_role": st.none() | names,
        "handler": st.none() | handlers,
        "inputs": st.lists(inputs, min_size=1, max_size=2, **unique).map(tuple),
        "tools": st.lists(names, unique=True, max_size=2).map(tuple),
        "examples": st.lists(
            st.builds(Example, st.dictionaries(names, words, max_size=2), words, st.just(AT)),
            max_size=2,
        ).map(tuple),
        "shots": st.booleans(),
        "context": st.builds(
            ContextSettings,
            st.sampled_from(["full", None]),
            st.sampled_from([True, False, None]),
            st.sampled_from(["notes_only", None]),
            st.sampled_from(["enabled", None]),
        ),
        "file_paths": st.none()
        | st.builds(
            FilePaths,
            st.sampled_from(["literal", "glob", "command"]),
            st.tuples(filled, filled),
            st.just(AT),
        ),
        "output": st.sampled_from(
            [
                None,
                OutputFormat("json", "string[]", AT),
                OutputFormat("json", '{"a": "<b>"}', AT),
                OutputFormat("xml", None, AT),
            ]
        ),
        "manual_xml": st.booleans() | st.just(Text("{{ m }}", AT)),
        "disable_reparsing": st.booleans(),
    }


def tasks(nodes):
    shared = common(nodes)
    scripts = st.builds(
        Script, description=texts, command=st.tuples(filled, texts), timeout_s=st.floats(0.001, 1e5)
    )
    return st.one_of(
        st.builds(Atomic, **shared),
        st.builds(
            Sequential,
            **shared,
            steps=st.lists(
                nodes, min_size=1, max_size=3, unique_by=lambda one: one.name or id(one)
            ).map(tuple),
        ),
        st.builds(
            Reduce,
            **shared,
            inner_task=nodes,
            reduction_task=nodes,
            initial_value=st.none() | texts,
            concurrency=st.integers(1, 4),
        ),
        st.builds(
            Map,
            **shared,
            inner_task=nodes,
            concurrency=st.integers(1, 4) | st.just(Text("{{ n }}", AT)),
        ),
        st.builds(
            Script,
            **shared,
            command=st.tuples(filled),
            shell=st.booleans(),
            timeout_s=st.none() | setting,
        ),
        st.builds(
            DirectorEvaluatorLoop,
            **shared,
            max_iterations=st.integers(1, 9),
            director=nodes,
            evaluator=nodes,
            script_execution=st.none() | scripts,
            termination_condition=st.none() | expressions,
        ),
    )


def conds(nodes):
    cases = st.lists(
        st.builds(Case, attribute_expressions, nodes, st.just(AT)), min_size=1, max_size=2
    ).map(tuple)
    return st.builds(Cond, cases, st.none() | nodes, st.none() | names, st.just(AT))


simple = st.one_of(calls, st.builds(Atomic, description=filled))
nested = st.one_of(simple, conds(simple))
params = st.builds(Param, names, st.none() | words, st.sampled_from(["any", "integer", "string[]"]))
functions = st.builds(
    Function,
    names,
    st.lists(params, max_size=3, **unique).map(tuple),
    st.none() | names,
    nested,
    words,
    st.just(AT),
)


@settings(max_examples=150, deadline=None)
@given(tasks(nested))
def test_a_task_reads_back_as_it_was_written(node):
    assert bare(read_back(node)) == bare(node)


@settings(max_examples=100, deadline=None)
@given(functions)
def test_a_function_reads_back_as_it_was_written(function):
    assert bare(read_back(function)) == bare(function)


def test_what_is_written_is_for_people_to_read():
    node = Atomic(name="a", description=Text("Say\n  <hello>", AT), tools=("t",))
    assert to_xml(node) == (
        '<task name="a" type="atomic">\n  <description>\n    Say\n      &lt;hello>\n  </description>\n'
        '  <tools>\n    <tool name="t"/>\n  </tools>\n</task>\n'
    )


def test_a_character_that_xml_cannot_hold_is_refused():
    with pytest.raises(UsageError, match="U\\+0000"):
        to_xml(Atomic(description=Text("\0", AT)))
