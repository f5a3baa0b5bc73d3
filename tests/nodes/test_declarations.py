"""The declarations of the node classes and the schema say the same; every operator has everything it needs."""

from __future__ import annotations

import ast
from pathlib import Path

import lxml.etree as etree
import pytest

from evaluator.files.locations import schemas_dir, shipped
from evaluator.interpreter import operators
from evaluator.interpreter.operators import RUNNERS, outcomes
from evaluator.language.scopes import matches
from evaluator.nodes import BOUND_NAMES, Call, Cond, ContextSettings, Function, HandlerSpec
from evaluator.nodes.declare import FIELDS, OPERATORS
from evaluator.nodes.values import TYPE_NAMES, VALUE_TYPES
from evaluator.xml.build_task import READERS
from evaluator.xml.write import WRITERS
from tests.recovery.recovery_cases import BY_NAME

XS = "{http://www.w3.org/2001/XMLSchema}"
SCHEMA = etree.parse(str(schemas_dir() / "task.xsd")).getroot()


def component(kind: str, name: str):
    return next(one for one in SCHEMA.iterchildren(f"{XS}{kind}") if one.get("name") == name)


def enumeration(name: str) -> list[str]:
    return [one.get("value") for one in component("simpleType", name).iter(f"{XS}enumeration")]


def names(kind: str, name: str, child: str) -> set[str]:
    return {one.get("name") for one in component(kind, name).iter(f"{XS}{child}")}


ADD_ELEMENT = "add it to the group taskChild of schemas/task.xsd"
ADD_ATTRIBUTE = "add it to the attribute group taskAttributes of schemas/task.xsd"


def test_the_schema_has_the_type_of_every_operator():
    assert set(enumeration("taskType")) == set(OPERATORS), (
        "list them in the simple type taskType of schemas/task.xsd"
    )


def test_every_operator_has_a_runner():
    assert set(RUNNERS) == set(OPERATORS.values()), (
        "add it to RUNNERS in evaluator/interpreter/operators/__init__.py"
    )


def test_the_details_of_every_operator_are_known_as_progress():
    """Otherwise the error of an outer task has those of a task inside it as its own."""
    used: set[str | None] = set()
    for path in Path(operators.__file__).parent.glob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call):
                called = ast.unparse(call.func)
                if called == "failed" or called.endswith(".details.update"):
                    used |= {keyword.arg for keyword in call.keywords}
    missing = used - {*outcomes._PROGRESS, "what", "error", "bound", None}
    assert not missing, "add it to _PROGRESS in evaluator/interpreter/operators/outcomes.py"


def test_models_know_every_operator_that_runs_no_process():
    instructions = (shipped("templates") / "plan" / "compile_task.xml").read_text(encoding="utf-8")
    missing = [
        name
        for name, cls in OPERATORS.items()
        if not cls.runs_process and f"\n- `{name}`: " not in instructions
    ]
    assert not missing, (
        "add a line for each to the list of types in templates/plan/compile_task.xml"
    )


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_an_operator_states_which_names_its_children_see(operator):
    for field in FIELDS[operator]:
        assert field.role != "node" or field.binds is not None, (
            f"{field.name} of {operator.type} has no `binds`"
        )


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_the_schema_has_every_element_and_attribute_of_an_operator(operator):
    elements = {field.element for field in FIELDS[operator]} - {None}
    attributes = {field.attribute for field in FIELDS[operator] if field.element is None} - {None}
    assert elements <= names("group", "taskChild", "element"), ADD_ELEMENT
    assert attributes <= names("attributeGroup", "taskAttributes", "attribute"), ADD_ATTRIBUTE


def test_the_meaning_of_every_bound_name_is_declared():
    bound = {
        name
        for operator in OPERATORS.values()
        for field in FIELDS[operator]
        for name in field.binds or ()
    }
    assert bound == set(BOUND_NAMES), "say what they mean in BOUND_NAMES of evaluator/nodes"


def test_the_docs_say_what_the_element_of_a_child_contains():
    roles = [
        one.get("name")
        for one in component("group", "taskChild").iter(f"{XS}element")
        if one.get("type") == "role"
    ]
    page = (Path(__file__).parents[2] / "docs/reference/templates.md").read_text(encoding="utf-8")
    (sentence,) = [line for line in page.splitlines() if " contain one `<task>`" in line]
    missing = [name for name in roles if f"`{name}`" not in sentence]
    assert not missing, "write it again: python docs/generate_templates.py"


def test_every_operator_is_killed_and_resumed():
    resumed = "".join(case.xml for case in BY_NAME.values())
    # A map runs its items as a reduce does.
    missing = [name for name in OPERATORS if name != "map" and f'type="{name}"' not in resumed]
    assert not missing, "add a case to tests/recovery/recovery_cases.py"


def test_every_element_and_attribute_of_a_task_in_the_schema_belongs_to_an_operator():
    fields = [field for operator in OPERATORS.values() for field in FIELDS[operator]]
    elements = {field.element for field in fields} | {"include"}
    assert names("group", "taskChild", "element") <= elements, (
        "no operator declares it in evaluator/nodes/__init__.py"
    )
    attributes = {field.attribute for field in fields if field.element is None}
    assert names("attributeGroup", "taskAttributes", "attribute") <= attributes, (
        "no operator declares it"
    )


@pytest.mark.parametrize(("name", "cls"), [("handler", HandlerSpec), ("context", ContextSettings)])
def test_the_schema_has_the_settings_of_a_part(name, cls):
    declared = {field.attribute or field.element for field in FIELDS[cls]}
    assert declared == names("complexType", name, "attribute") | names(
        "complexType", name, "element"
    ) - {"include"}


def test_the_schema_has_the_choices_of_every_context_setting():
    types = {
        "inherit_context": "inheritContext",
        "accumulation_format": "accumulationFormat",
        "fresh_context": "freshContext",
    }
    for field in FIELDS[ContextSettings]:
        if field.name in types:
            assert set(enumeration(types[field.name])) == set(field.choices)


def test_the_schema_has_the_value_types():
    assert set(enumeration("valueType")) == set(VALUE_TYPES)


def test_every_form_can_be_read_and_written():
    forms = {
        (field.form, field.attribute is None) for cls in OPERATORS.values() for field in FIELDS[cls]
    }
    assert {form for form, _ in forms} <= set(READERS)
    assert {form for form, is_element in forms if is_element} <= set(WRITERS)


def test_every_node_class_declares_its_fields():
    assert {Call, Cond, Function, *OPERATORS.values()} <= set(FIELDS)


def test_every_type_name_has_a_check():
    samples = {
        "any": None,
        "string": "x",
        "number": 1.5,
        "integer": 1,
        "boolean": True,
        "object": {},
        "array": [],
        "[]": [],
    }
    assert set(samples) == set(TYPE_NAMES)
    assert all(matches(value, name) for name, value in samples.items())
