"""Objects and arrays that are not written as JSON: lists, labelled lines, tables, XML, calls, and values inside others."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator import parse_output
from tests.tables import each_case


def record(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """A schema of an object; a string is a type name. All properties are required, or those that are named."""
    fields = {
        name: {"type": kind} if isinstance(kind, str) else kind for name, kind in properties.items()
    }
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields) if required is None else required,
    }


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


STRINGS = array({"type": "string"})
PERSON = record(name="string", age="integer")
ITEM = record(item="string", qty="integer")
LEVELS = array({"type": "string", "enum": ["low", "high"]})
ARTICLE = record(title="string", tags=STRINGS, published="boolean")
TAGGED = record(tags=STRINGS)
ADDRESS = record(name="string", address=record(street="string", zip_code="string"))
OPTIONAL = record(
    ["name"],
    name="string",
    nickname={"type": ["string", "null"]},
    age={"anyOf": [{"type": "integer"}, {"type": "null"}]},
)
SHAPE = {
    "oneOf": [
        record(kind={"const": "circle"}, radius="number"),
        record(kind={"const": "rect"}, width="number"),
    ]
}
TREE = {
    "$ref": "#/$defs/n",
    "$defs": {"n": record(["label"], label="string", children=array({"$ref": "#/$defs/n"}))},
}
ANNA = {"name": "Anna", "age": 34}
TWO = [{"name": "A", "age": 1}, {"name": "B", "age": 2}]

READ: list[tuple[str, Any, Any]] = [
    ("\tname: Anna\n\tage: 34", PERSON, ANNA),
    ("  - Oslo\n  - Lima", STRINGS, ["Oslo", "Lima"]),
    ("name: Anna,\nage: 34,", PERSON, ANNA),
    ("[Person(name='Anna', age=34)]", PERSON, ANNA),
    ("| Name | Anna |\n|---|---|\n| Age | 34 |", PERSON, ANNA),
    ('{"items": []}', STRINGS, []),
    ("Name – Anna\nAge – 34", PERSON, ANNA),
    ("1. **Name** - Anna\n2. **Age** - 34", PERSON, ANNA),
    ("```yaml\nname: Anna # first\nage: 34\n```", PERSON, ANNA),
    ("Name: Anna\nAge: 34<|im_end|>", PERSON, ANNA),
    ('Person(name: "Anna", age: 34)', PERSON, ANNA),
    ('- "Oslo",\n- "Lima"', STRINGS, ["Oslo", "Lima"]),
    ("1. Oslo;\n2. Lima.", STRINGS, ["Oslo", "Lima"]),
    ("a) Oslo\nb) Lima", STRINGS, ["Oslo", "Lima"]),
    ("(1) Oslo\n(2) Lima", STRINGS, ["Oslo", "Lima"]),
    ("① Oslo\n② Lima", STRINGS, ["Oslo", "Lima"]),
    ("1、Oslo\n2、Lima", STRINGS, ["Oslo", "Lima"]),
    ("1) Oslo\n2) Lima", "string[]", ["Oslo", "Lima"]),
    ("* **Oslo**\n* **Lima**", "string[]", ["Oslo", "Lima"]),
    ("Sure!\n\n- a\n- b\n\nLet me know!", "string[]", ["a", "b"]),
    ("- a\n\n- b", "string[]", ["a", "b"]),
    ("apples\npears\nplums", "string[]", ["apples", "pears", "plums"]),
    ("3, 5, 8", "integer[]", [3, 5, 8]),
    ("3\n5\n8", "integer[]", [3, 5, 8]),
    ("3\n5", "integer[]", [3, 5]),
    ("low\nhigh", LEVELS, ["low", "high"]),
    ("Tags:\nsea\nphoto", "string[]", ["sea", "photo"]),
    ("Tags:\nsea\nphoto", TAGGED, {"tags": ["sea", "photo"]}),
    (
        "New York\nSan Luis Obispo\nLos Angeles",
        "string[]",
        ["New York", "San Luis Obispo", "Los Angeles"],
    ),
    ("• a\n• b", "string[]", ["a", "b"]),
    ("- [ ] a\n- [ ] b", "string[]", ["a", "b"]),
    ('- "a"\n- "b"', "string[]", ["a", "b"]),
    ("```\n- a\n- b\n```", "string[]", ["a", "b"]),
    ("- Low\n- **high**", LEVELS, ["low", "high"]),
    ("Low, high", LEVELS, ["low", "high"]),
    ("- yes\n- no", "boolean[]", [True, False]),
    ("1. 12 kg\n2. 15 kg", "integer[]", [12, 15]),
    ("'alpha'\n'omega'", "string[]", ["alpha", "omega"]),
    ("```yaml\n- sea\n- photo\n```", "string[]", ["sea", "photo"]),
    ("tags:\n  - sea\n  - photo", "string[]", ["sea", "photo"]),
    ("<ul><li>a</li><li>b</li></ul>", "string[]", ["a", "b"]),
    ("- a", "string[]", ["a"]),
    ('"a", "b"', "string[]", ["a", "b"]),
    ("- a: 1\n- b: 2", "string[]", ["a: 1", "b: 2"]),
    ("Name: Anna\nAge: 34\n\nLet me know!", PERSON, {"name": "Anna", "age": 34}),
    (
        "Here is the person:\n\n**Name**: Anna Holm\n**Age**: 34 years",
        PERSON,
        {"name": "Anna Holm", "age": 34},
    ),
    ("# Name\nAnna\n\n# Age\n34", PERSON, {"name": "Anna", "age": 34}),
    ("**Name**\nAnna\n\n**Age**\n34", PERSON, {"name": "Anna", "age": 34}),
    ("Name: Anna, Age: 34", PERSON, {"name": "Anna", "age": 34}),
    ("name = Anna\nage = 34", PERSON, {"name": "Anna", "age": 34}),
    ("- **Name:** Anna\n- **Age:** 34", PERSON, {"name": "Anna", "age": 34}),
    ("1. Name: Anna\n2. Age: 34", PERSON, {"name": "Anna", "age": 34}),
    ('name: "Anna"\nage: 34', PERSON, {"name": "Anna", "age": 34}),
    ("Name : Anna\nAge : 34", PERSON, {"name": "Anna", "age": 34}),
    ("> name: Anna\n> age: 34", PERSON, {"name": "Anna", "age": 34}),
    (
        "name: Anna\naddress:\n  street: Kai 4\n  zip code: 5003",
        ADDRESS,
        {"name": "Anna", "address": {"street": "Kai 4", "zip_code": "5003"}},
    ),
    (
        "Name: Anna\nAddress:\n- Street: Kai 4\n- Zip-Code: 05003",
        ADDRESS,
        {"name": "Anna", "address": {"street": "Kai 4", "zip_code": "05003"}},
    ),
    (
        "title: Low\ntags: [sea, photo]\npublished: true",
        ARTICLE,
        {"title": "Low", "tags": ["sea", "photo"], "published": True},
    ),
    (
        "Title: Low tide\nTags: sea, photo\nPublished: yes",
        ARTICLE,
        {"title": "Low tide", "tags": ["sea", "photo"], "published": True},
    ),
    (
        "**Title:** Low\n**Tags:**\n- sea\n- photo\n\n**Published:** no",
        ARTICLE,
        {"title": "Low", "tags": ["sea", "photo"], "published": False},
    ),
    (
        "title: >\n  Low\n  tide\ntags:\n- a\n- b\npublished: false",
        ARTICLE,
        {"title": "Low tide", "tags": ["a", "b"], "published": False},
    ),
    ("kind: circle\nradius: 2.5", SHAPE, {"kind": "circle", "radius": 2.5}),
    ("Kind: **Rect**\nWidth: 3", SHAPE, {"kind": "rect", "width": 3}),
    (
        "name: Bo\nnickname: null\nage: null",
        OPTIONAL,
        {"name": "Bo", "nickname": None, "age": None},
    ),
    ("name: Bo", OPTIONAL, {"name": "Bo"}),
    ("name: Bo\nage:", OPTIONAL, {"name": "Bo", "age": None}),
    ("---\nname: Anna\nage: 34\n---", PERSON, {"name": "Anna", "age": 34}),
    (
        "- name: Anna\n  age: 34\n- name: Piet\n  age: 61",
        array(PERSON),
        [{"name": "Anna", "age": 34}, {"name": "Piet", "age": 61}],
    ),
    (
        "Name: Anna\nAge: 34\n\nName: Piet\nAge: 61",
        array(PERSON),
        [{"name": "Anna", "age": 34}, {"name": "Piet", "age": 61}],
    ),
    (
        "1. **Name:** Anna\n   **Age:** 34\n2. **Name:** Piet\n   **Age:** 61",
        array(PERSON),
        [{"name": "Anna", "age": 34}, {"name": "Piet", "age": 61}],
    ),
    (
        "- Name: Anna, Age: 34\n- Name: Piet, Age: 61",
        array(PERSON),
        [{"name": "Anna", "age": 34}, {"name": "Piet", "age": 61}],
    ),
    (
        "### Person 1\n- Name: Anna\n- Age: 34\n\n### Person 2\n- Name: Piet\n- Age: 61",
        array(PERSON),
        [{"name": "Anna", "age": 34}, {"name": "Piet", "age": 61}],
    ),
    ("people:\n  - name: Anna\n    age: 34", array(PERSON), [{"name": "Anna", "age": 34}]),
    ("Note: this is it\n\nName: Anna\nAge: 34", PERSON, {"name": "Anna", "age": 34}),
    ("Name: Anna\nAge: 34\n\nNote: I guessed.", PERSON, {"name": "Anna", "age": 34}),
    ("“Name”: Anna\nAge: 34", PERSON, {"name": "Anna", "age": 34}),
    ("Name:Anna\nAge:34", PERSON, {"name": "Anna", "age": 34}),
    ("| Item | Qty |\n|:--|--:|\n| rope | 4 |\n\nDone.", array(ITEM), [{"item": "rope", "qty": 4}]),
    (
        "Item | Qty\n--- | ---\nrope | 4\nhook | 5",
        array(ITEM),
        [{"item": "rope", "qty": 4}, {"item": "hook", "qty": 5}],
    ),
    (
        "| Field | Value |\n|---|---|\n| Name | Anna |\n| Age | 34 |",
        PERSON,
        {"name": "Anna", "age": 34},
    ),
    ("| name | age |\n|---|---|\n| Anna | 34 |", PERSON, {"name": "Anna", "age": 34}),
    (
        'item,qty\n"bolt, big",40\nwasher,75',
        array(ITEM),
        [{"item": "bolt, big", "qty": 40}, {"item": "washer", "qty": 75}],
    ),
    ("```tsv\nitem\tqty\nbolt\t40\n```", array(ITEM), [{"item": "bolt", "qty": 40}]),
    ("item;qty\nbolt;40", array(ITEM), [{"item": "bolt", "qty": 40}]),
    ("| item | qty |\n|---|---|\n| **flour** | 2 kg |", array(ITEM), [{"item": "flour", "qty": 2}]),
    ("Here:\n\n```csv\nitem,qty\nbolt,40\n```", array(ITEM), [{"item": "bolt", "qty": 40}]),
    (
        "[Person(name='A', age=1), Person(name='B', age=2)]",
        array(PERSON),
        [{"name": "A", "age": 1}, {"name": "B", "age": 2}],
    ),
    ('person = Person(name="A", age=1)', PERSON, {"name": "A", "age": 1}),
    ("```python\nPerson(name='Ilse', age=70)\n```", PERSON, {"name": "Ilse", "age": 70}),
    ("Person(name='Il(s)e, age=3', age=70)", PERSON, {"name": "Il(s)e, age=3", "age": 70}),
    ("dict(name='A', age=1)", PERSON, {"name": "A", "age": 1}),
    ('get_person(name="A", age=1)', PERSON, {"name": "A", "age": 1}),
    ("<name>Sven</name>\n<age>19</age>", PERSON, {"name": "Sven", "age": 19}),
    ("<person name='Sven' age='19'/>", PERSON, {"name": "Sven", "age": 19}),
    (
        "<people><person><name>A</name><age>1</age></person><person><name>B</name><age>2</age></person></people>",
        array(PERSON),
        [{"name": "A", "age": 1}, {"name": "B", "age": 2}],
    ),
    (
        "```xml\n<person><name>Sven</name><age>19</age></person>\n```",
        PERSON,
        {"name": "Sven", "age": 19},
    ),
    (
        "<doc><title>L</title><tags><tag>a</tag><tag>b</tag></tags><published>true</published></doc>",
        ARTICLE,
        {"title": "L", "tags": ["a", "b"], "published": True},
    ),
    (
        '<invoke name="x"><parameter name="name">A</parameter><parameter name="age">3</parameter></invoke>',
        PERSON,
        {"name": "A", "age": 3},
    ),
    (
        "<tool_call>f\n<arg_key>name</arg_key>\n<arg_value>A</arg_value>\n<arg_key>age</arg_key><arg_value>3</arg_value></tool_call>",
        PERSON,
        {"name": "A", "age": 3},
    ),
    ("<person><Name>A</Name><AGE>1</AGE></person>", PERSON, {"name": "A", "age": 1}),
    ("<tags><tag>a</tag><tag>b</tag></tags>", "string[]", ["a", "b"]),
    (
        "<result><person><name>A</name><age>1</age></person></result>",
        PERSON,
        {"name": "A", "age": 1},
    ),
    ('{"people": [{"name":"A","age":1}]}', array(PERSON), [{"name": "A", "age": 1}]),
    ('[{"name":"A","age":1}]', PERSON, {"name": "A", "age": 1}),
    ('{"person": {"name":"A","age":1}}', PERSON, {"name": "A", "age": 1}),
    ('{"name":"f","parameters":{"name":"A","age":"1"}}', PERSON, {"name": "A", "age": 1}),
    ('[{"name":"f","arguments":{"name":"A","age":1}}]', PERSON, {"name": "A", "age": 1}),
    ('{"result":{"data":{"name":"A","age":1}}}', PERSON, {"name": "A", "age": 1}),
    ("{'tool': 'f', 'tool_input': {'name': 'A', 'age': 1}}", PERSON, {"name": "A", "age": 1}),
    (
        '<tool_call>{"name":"f","arguments":{"name":"A","age":1}}</tool_call>',
        PERSON,
        {"name": "A", "age": 1},
    ),
    (
        '{"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\\"name\\":\\"A\\",\\"age\\":1}"}}]}',
        PERSON,
        {"name": "A", "age": 1},
    ),
    ('{"properties":{"name":"A","age":3}}', PERSON, {"name": "A", "age": 3}),
    ('{"keywords": ["lo', "string[]", ["lo"]),
    ('{"person": {"name":"A","age":1}, "x": ', PERSON, {"name": "A", "age": 1}),
]

REFUSED: list[tuple[str, Any]] = [
    ('{"error": "none found", "items": []}', STRINGS),
    ("-Oslo\n-Lima", STRINGS),
    ("1.Oslo\n2.Lima", STRINGS),
    ("Item: rope\n\nQty: 4\n\nItem: hook\n\nQty: 5", ITEM),
    ("Age: 34\n\nName: Anna is here.\n\nShe likes tea.", PERSON),
    ("b) Oslo\na) Lima", STRINGS),
    ("- a\n  - b\n- c", "string[]"),
    ("1. a\n3. b", "string[]"),
    ("I'm sorry, I can't do this:\n- a\n- b", "string[]"),
    ("I cannot do that.\nPlease ask again.", "string[]"),
    ("Hello\nWorld", "string[]"),
    ("apples\npears", "string[]"),
    ("Sure\nHere you go\nBye", "string[]"),
    ("Dear Anna\nThank you\nBest regards", "string[]"),
    ("No tags found\nTry again\nLater", "string[]"),
    ("The sea is calm\nThe tide is full\nThe moon lies fair", "string[]"),
    ("The quick brown fox\njumps over the lazy\ndog", "string[]"),
    ("A walk along the beach\nA night under the stars\nA day in the hills", "string[]"),
    ("import os\nimport sys\nprint(os)", "string[]"),
    ("x = 1\ny = 2\nz = 3", "string[]"),
    ("red\nblue\nThese are colors", "string[]"),
    ("Tags:\nThe text has none\nPlease check", TAGGED),
    ("- [x] a\n- [ ] b", "string[]"),
    ("- a\n- b\n\nOr:\n- c", "string[]"),
    ("Tags: sea, photo", "string[]"),
    ("- None", "string[]"),
    ("Not found", "string[]"),
    ("a;b", "string[]"),
    ("- 1,5\n- 2", "number[]"),
    ("Name: Anna", PERSON),
    ("Name: Anna\nAge: unknown", PERSON),
    ("Name: Anna\nAge: 34\nJob: baker", PERSON),
    ("Name: Anna\nName: Bob\nAge: 3", PERSON),
    ("The name: Anna is 34", PERSON),
    ("name: Anna\nage: 34 # years", PERSON),
    ("Note: this is it\nName: Anna\nAge: 34", PERSON),
    ("Name: Anna\nAge: thirty", PERSON),
    ("Name: Anna\nthe great\nAge: 3", PERSON),
    ("| # | item | qty |\n|---|---|---|\n|1|a|2|", array(ITEM)),
    ("| item | qty |\n|---|---|\n| flour | 2 |\n| yeast | |", array(ITEM)),
    ("qty,item,color\n1,a,red", array(ITEM)),
    ("name='A' age=1", PERSON),
    ("Person('Ilse', 70)", PERSON),
    ("Person(name=None, age=70)", PERSON),
    ("<person><name>Sven</name></person>", PERSON),
    ("<person><name>A</name><age>1</age><x>2</x></person>", PERSON),
    ("<person>\n<name>Sven\n<age>19", PERSON),
    ('{"a":["x"],"b":["y"]}', "string[]"),
    ('{"keywords": ["loom"], "errors": []}', "string[]"),
    ('{"label": 1, "children":[{"label":"x"}]}', TREE),
    ('{"old":{"name":"A","age":1},"new":{"name":"B","age":2}}', PERSON),
    ('{"answer": 42}', "integer"),
]


@each_case(("text", "schema", "value"), READ)
def test_another_form_is_read_where_a_schema_asks_for_it(
    text: str, schema: Any, value: Any
) -> None:
    parsed = parse_output(text, schema=schema)
    assert (parsed.value, parsed.error) == (value, None)
    assert parsed.warnings
    assert parse_output(text, schema=schema, strict=True).error is not None


@each_case(("text", "schema"), REFUSED)
def test_a_form_with_no_reading_or_two_is_refused(text: str, schema: Any) -> None:
    parsed = parse_output(text, schema=schema)
    assert parsed.error is not None, parsed.value


@pytest.mark.parametrize(
    ("text", "schema", "warning"),
    [
        ("- a\n- b", STRINGS, "the items of a list"),
        ("Name: Anna\nAge: 34", PERSON, "labelled lines"),
        ("| item | qty |\n|---|---|\n| rope | 4 |", array(ITEM), "the rows of a table"),
        ("<name>Anna</name><age>34</age>", PERSON, "XML elements"),
        ("P(name='Anna', age=34)", PERSON, "constructor calls"),
        ('{"tags": ["a"]}', STRINGS, "a value inside another one"),
    ],
)
def test_each_form_has_a_warning_of_its_own(text: str, schema: Any, warning: str) -> None:
    assert any(one.startswith(warning) for one in parse_output(text, schema=schema).warnings)


def test_without_a_schema_no_other_form_is_read() -> None:
    for text in ("- a\n- b", "name: Anna\nage: 34", "| a |\n|---|\n| 1 |", "P(a=1)"):
        assert parse_output(text).value is None


def test_json_that_violates_the_schema_is_not_read_as_labelled_lines() -> None:
    assert parse_output('{\n  "zip": 90210\n}', schema=record(zip="string")).error is not None
