"""Validation: what the schemas accept, and how each violation is reported."""

import pytest
from lxml import etree

from evaluator.files.locations import schemas_dir
from evaluator.xml.schema import validate
from evaluator.xml.source import read_source

WHOLE = """<library name="all">
<task name="a" type="atomic" subtype="director" version="1"><include href="x.xml"/>
<handler ref="default" max_turns="{{n}}" timeout="1.5" max_cost="<<c>>"/><description>d <include href="y"/></description>
<inputs><input name="x" type="string[]" required="false" default="" from="y"/></inputs><tools><tool name="t"/></tools>
<examples shots="true"><example><input name="x">1</input><output>2</output></example></examples>
<context_management><accumulate_data>true</accumulate_data><accumulation_format>minimal</accumulation_format></context_management>
<file_paths source="glob"><path>*.md</path></file_paths><output_format type="json">{}</output_format>
<manual_xml>{{m}}</manual_xml><disable_reparsing>true</disable_reparsing></task>
<task type="sequential"><steps><task type="atomic" ref="a"/><call template="f"><arg>x</arg></call><cond><default/></cond></steps></task>
<task type="reduce" concurrency="{{n}}"><inputs over="x"/><inner_task/><reduction_task type="script"/><initial_value/></task>
<task type="script"><command shell="true">ls</command><timeout>{{t}}</timeout></task>
<task type="director_evaluator_loop"><max_iterations>3</max_iterations><director/><evaluator/><script_execution>
<command><arg>x</arg></command></script_execution><termination_condition><condition>x</condition></termination_condition></task>
<template name="f" params="a, b=1" returns="string"><call template="a"/></template></library>"""


@pytest.mark.parametrize("kind", ["task", "handler"])
def test_the_schemas_compile(kind):
    assert etree.XMLSchema(etree.parse(str(schemas_dir() / f"{kind}.xsd")))


def test_the_whole_language_is_accepted():
    assert validate(read_source(WHOLE), "task") == []
    assert (
        validate(read_source("<partial>text <task type='atomic'/><arg>x</arg></partial>"), "task")
        == []
    )


def test_a_whole_profile_is_accepted():
    profile = """<handler name="p"><prices input="1" output="2.5"/><context_window>8000</context_window>
    <simulated latency="0.1" wrong="0.5"/><roots><root path="."/></roots><tools><tool name="t" policy="ask"/></tools>
    <retries max="3" backoff="2 6 18"/><limits max_turns="3" max_context_fraction="0.8" timeout="60"/><seed>1</seed>
    <temperature>0</temperature><system>x</system><api_key_env>KEY</api_key_env><base_url>http://x</base_url>
    <model>m</model><backend>auto</backend><description>d</description></handler>"""
    assert validate(read_source(profile), "handler") == []


@pytest.mark.parametrize(
    ("text", "kind", "code", "column", "words", "hint"),
    [
        ("<tsk/>", "task", "unknown-element", 1, "<tsk> cannot be the root", "`task`"),
        ('<task xmlns="urn:x"/>', "task", "unknown-element", 1, "root", "xmlns"),
        ('<handler name="p"/>', "task", "unknown-element", 1, "root", "`evaluator handlers`"),
        (
            '<handler name="p"><limits><timeout>3</timeout></limits></handler>',
            "handler",
            "unknown-element",
            27,
            "<limits> cannot contain elements",
            '<limits timeout="…">',
        ),
        (
            '<task type="atomic"><name>a</name></task>',
            "task",
            "unknown-element",
            21,
            "<name> is not known in <task>",
            '<task name="…">',
        ),
        (
            '<task type="atomic"><descripton/></task>',
            "task",
            "unknown-element",
            21,
            "<descripton>",
            "`description`",
        ),
        (
            '<task type="atomic"><system><b/></system></task>',
            "task",
            "unknown-element",
            29,
            "<include>",
            "CDATA",
        ),
        ('<task typ="x" type="atomic"/>', "task", "unknown-attribute", 7, "'typ'", "type"),
        (
            '<task type="atomic" description="x"/>',
            "task",
            "unknown-attribute",
            21,
            "'description'",
            "is an element: <description>",
        ),
        (
            '<task type="atomic"><handler max_turn="1"/></task>',
            "task",
            "unknown-attribute",
            30,
            "'max_turn'",
            "max_turns",
        ),
        ("<template/>", "task", "missing-attribute", 1, "'name'", None),
        ('<task type="atomik"/>', "task", "invalid-value", 13, "'atomik'", "atomic"),
        (
            '<task type="atomic"><handler max_turns="x"/></task>',
            "task",
            "invalid-value",
            41,
            "whole number",
            None,
        ),
        (
            '<task type="atomic"><handler timeout="x"/></task>',
            "task",
            "invalid-value",
            39,
            "a number, or",
            None,
        ),
        (
            '<task type="atomic"><manual_xml>x</manual_xml></task>',
            "task",
            "invalid-value",
            33,
            "true or false, or",
            None,
        ),
        ('<task type="script"><timeout/></task>', "task", "invalid-value", 21, "a number", None),
        ('<template name="a-b"/>', "task", "invalid-value", 17, "letters, digits", None),
        (
            '<task type="sequential"><steps>x</steps></task>',
            "task",
            "misplaced-text",
            32,
            "not text",
            "<!--",
        ),
        ("<handler/>", "handler", "missing-attribute", 1, "'name'", None),
        (
            '<handler name="x"><seed>1</seed><seed>1</seed></handler>',
            "handler",
            "unknown-element",
            33,
            "only once",
            None,
        ),
        (
            '<handler name="x"><limits max_turns="0"/></handler>',
            "handler",
            "invalid-value",
            38,
            "positive",
            None,
        ),
        (
            '<handler name="x"><simulated wrong="2"/></handler>',
            "handler",
            "invalid-value",
            37,
            "from 0 to 1",
            None,
        ),
        (
            '<handler name="x"><bakend/></handler>',
            "handler",
            "unknown-element",
            19,
            "<bakend>",
            "`backend`",
        ),
    ],
)
def test_each_violation_has_a_place_and_a_reason(text, kind, code, column, words, hint):
    (found,) = validate(read_source("\n" + text, "f.xml"), kind)
    assert (found.code, found.span.file, found.span.line, found.span.column) == (
        code,
        "f.xml",
        2,
        column,
    )
    assert words in found.message
    assert (hint in found.hint) if hint else found.hint is None


def test_all_violations_are_reported_in_the_order_of_the_source():
    text = '<task type="x">\n<tools><tool/></tools>\n<handler a="1" b="2"/><c/>\n<c/></task>'
    found = validate(read_source(text), "task")
    assert [str(one.span)[9:] for one in found] == ["1:13", "2:8", "3:10", "3:16", "3:23", "4:1"]


def test_no_schema_hint_in_a_document_is_followed():
    text = (
        '<task xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" type="atomic" '
        'xsi:noNamespaceSchemaLocation="http://127.0.0.1:1/x.xsd"><x/></task>'
    )
    assert [one.code for one in validate(read_source(text), "task")] == ["unknown-element"]
