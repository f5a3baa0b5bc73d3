"""A template names a role; the call or the profile maps it to a model."""

from __future__ import annotations

import asyncio

import pytest

from evaluator import HandlerConfig
from evaluator.xml.build import build
from evaluator.xml.source import read_source
from evaluator.xml.write import to_xml

TASK = """<task name="t" type="sequential"><description>t</description><steps>
  <task name="write" type="atomic"><description>w</description><instructions>Write</instructions></task>
  <task name="grade" type="atomic"><description>g</description><model role="grader">{own}</model>
    <instructions>Grade</instructions></task></steps></task>"""


@pytest.mark.parametrize(
    ("called", "profiled", "model", "own", "expected"),
    [
        (
            {"grader": "simulated/called"},
            {"grader": "simulated/profiled"},
            "simulated/all",
            "simulated/own",
            "simulated/called",
        ),
        (
            {},
            {"grader": "simulated/profiled"},
            "simulated/all",
            "simulated/own",
            "simulated/profiled",
        ),
        ({"other": "simulated/other"}, {}, "simulated/all", "simulated/own", "simulated/all"),
        ({}, {}, None, "simulated/own", "simulated/own"),
        ({}, {}, None, "", "simulated/default"),
    ],
)
def test_the_role_comes_before_what_is_said_for_all(
    make_evaluator, called, profiled, model, own, expected
):
    profile = HandlerConfig(name="p", backend="simulated", roles=profiled)
    evaluator = make_evaluator(
        TASK.format(own=own),
        backend=None,
        handler=profile,
        profiles={"p": profile},
        model=model,
        model_roles=called,
    )
    asyncio.run(evaluator.evaluate("t")).unwrap()
    models = [
        s.start.name for s in evaluator.services.store.read(1).steps if s.start.kind == "model"
    ]
    assert models[1] == expected
    assert models[0] == (model or "simulated/default")


def test_roles_of_the_call_are_those_of_a_resumed_run(make_evaluator, tmp_path):
    from tests.interpreter.crashes import cut

    options = {"backend": None, "model_roles": {"grader": "simulated/grader"}}
    whole = asyncio.run(make_evaluator(TASK.format(own=""), **options).evaluate("t")).unwrap()
    cut(tmp_path, "steps[2]/turn[1]")
    again = asyncio.run(make_evaluator(TASK.format(own=""), backend=None).resume(1)).unwrap()
    assert again.content == whole.content


def test_a_role_survives_being_written() -> None:
    node = build(read_source(TASK.format(own="a/b").encode(), "t.xml")).templates[0]
    again = build(read_source(to_xml(node).encode(), "t.xml")).templates[0]
    assert again.steps[1].model_role == "grader"
    assert again.steps[1].model.value == "a/b"


def test_a_role_that_is_not_mapped_is_told_once(make_evaluator):
    xml = """<task name="t" type="sequential"><description>t</description><steps>
      <task name="a" type="atomic"><description>a</description><model role="grader"/></task>
      <task name="b" type="atomic"><description>b</description><model role="grader"/></task></steps></task>
    <task name="own" type="atomic"><description>c</description><model role="grader">simulated/own</model></task>"""
    told = "role 'grader' is not mapped: simulated/default answers"

    def warnings(name, **options):
        return (
            asyncio.run(make_evaluator(xml, backend=None, **options).evaluate(name))
            .unwrap()
            .notes["warnings"]
        )

    assert [w for w in warnings("t") if "role" in w] == [f"a: {told}"]
    assert [w for w in warnings("own") if "role" in w] == []
    assert [w for w in warnings("t", model_roles={"grader": "simulated/x"}) if "role" in w] == []
