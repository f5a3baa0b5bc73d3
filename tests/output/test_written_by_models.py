"""What models write when they mean JSON, and the one value that a reader of the text would take from it."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator import parse_output
from tests.tables import each_case

Case = tuple[str, Any]

KEYS: list[Case] = [
    ("{7: 'up', 8: 'down'}", {"7": "up", "8": "down"}),
    ("{1.5: 'a', -2: 'b'}", {"1.5": "a", "-2": "b"}),
    ('{größe: "x", 長さ: "y"}', {"größe": "x", "長さ": "y"}),
    ('{"a": "x", größe: "y", ñ: 1}', {"a": "x", "größe": "y", "ñ": 1}),
    ('{user.name: "Ada", user.age: 36}', {"user.name": "Ada", "user.age": 36}),
    ('{first name: "Ada", last name: "King"}', {"first name": "Ada", "last name": "King"}),
    ('{"a": "x", zip code: 3000, "b": "y"}', {"a": "x", "zip code": 3000, "b": "y"}),
    (
        '{content-type: "json", x_y: 1, $ref: "#/a"}',
        {"content-type": "json", "x_y": 1, "$ref": "#/a"},
    ),
    ('{"a": "x",\n  b: "y",\n  c: [1]\n}', {"a": "x", "b": "y", "c": [1]}),
    ('{"name": "Ada", 2: "two", "x": 1}', {"name": "Ada", "2": "two", "x": 1}),
    ("{'a': 'b', c: 'd'}", {"a": "b", "c": "d"}),
    ("{True: 1, null: 2}", {"True": 1, "null": 2}),
    ('{"a b": 1, "c,d": 2, "e:f": 3,}', {"a b": 1, "c,d": 2, "e:f": 3}),
]

QUOTES: list[Case] = [
    ('{"city": "Bern, "zip": 3000}', {"city": "Bern", "zip": 3000}),
    ('{"city": "Bern, "zip": "3000", "x": 1}', {"city": "Bern", "zip": "3000", "x": 1}),
    ('{"city": Bern", "zip": 3000}', {"city": "Bern", "zip": 3000}),
    ('{"city": "Bern", zip": 3000}', {"city": "Bern", "zip": 3000}),
    ('{"city": "Bern", "zip: 3000}', {"city": "Bern", "zip": 3000}),
    ('{"city: "Bern", "zip": 3000}', {"city": "Bern", "zip": 3000}),
    ('{city": "Bern", "zip": 3000}', {"city": "Bern", "zip": 3000}),
    ('{"city": "Bern\n"zip": 3000}', {"city": "Bern", "zip": 3000}),
    ('{"a": "x "b": "y"}', {"a": "x", "b": "y"}),
    ('{"a": "x, "b": "y, "c": "z"}', {"a": "x", "b": "y", "c": "z"}),
    ('["a, "b", "c"]', ["a", "b", "c"]),
    ('["a", b", "c"]', ["a", "b", "c"]),
    ('["a", "b, "c"]', ["a", "b", "c"]),
    ('{"tags": ["red, "green"], "n": 1}', {"tags": ["red", "green"], "n": 1}),
    ('{"code": "if (x == "}") return", "b": 1}', {"code": 'if (x == "}") return', "b": 1}),
    ('{"code": "a["k"]", "b": 1}', {"code": 'a["k"]', "b": 1}),
    ('{"code": "print("]")", "b": 1}', {"code": 'print("]")', "b": 1}),
    (
        '{"fmt": "wrap it in "[" and "]" marks", "n": 1}',
        {"fmt": 'wrap it in "[" and "]" marks', "n": 1},
    ),
    (
        '{"outer": {"code": "x = {"a": "b"}"}, "n": 1}',
        {"outer": {"code": 'x = {"a": "b"}'}, "n": 1},
    ),
    (
        '{"a": "he said "yes, really" and left", "b": 2}',
        {"a": 'he said "yes, really" and left', "b": 2},
    ),
    ('{"a": "he said "yes", then left", "b": 2}', {"a": 'he said "yes", then left', "b": 2}),
    ('{"a": "the "best", "most" liked", "n": 1}', {"a": 'the "best", "most" liked', "n": 1}),
    ('["the "best", "most" liked", "x"]', ['the "best", "most" liked', "x"]),
    ('{"a": ""quoted" start", "b": 1}', {"a": '"quoted" start', "b": 1}),
    ('{"a": "end "quoted"", "b": 1}', {"a": 'end "quoted"', "b": 1}),
    ('{"a": "all "quoted""}', {"a": 'all "quoted"'}),
    (
        '{"title": "The "Great" Gatsby", "year": 1925}',
        {"title": 'The "Great" Gatsby', "year": 1925},
    ),
    (
        '{"html": "<a href="x.html">link</a>", "n": 1}',
        {"html": '<a href="x.html">link</a>', "n": 1},
    ),
    ('{"h": "5\' 10"", "w": 3}', {"h": "5' 10\"", "w": 3}),
    ('{"a": """triple""", "b": 1}', {"a": "triple", "b": 1}),
    ('{"a": """line one\nsays "hi"\n""", "b": 1}', {"a": 'line one\nsays "hi"\n', "b": 1}),
    ("{'a': '''it's''', 'b': 1}", {"a": "it's", "b": 1}),
    ('{""a"": ""x"", ""b"": 1}', {"a": "x", "b": 1}),
    ('{"a": "", "b": ""}  ', {"a": "", "b": ""}),
    ('{"a": "", "b": "",}', {"a": "", "b": ""}),
    ("{'name': 'O'Brien', 'age': 3}", {"name": "O'Brien", "age": 3}),
    (
        '{"steps": ["Open the "File" menu", "Click "Save""], "n": 2}',
        {"steps": ['Open the "File" menu', 'Click "Save"'], "n": 2},
    ),
    ('{"code": "x = ["a", "b"]", "n": 2}', {"code": 'x = ["a", "b"]', "n": 2}),
    ('["one",\n"two\n]', ["one", "two"]),
    ('{"a": "one\n}', {"a": "one"}),
    ('{"a": \\"one\\", "b": 3}', {"a": "one", "b": 3}),
    ("['don't', 'can't', 'x']", ["don't", "can't", "x"]),
    ("{'q': 'What's the dog's name?', 'a': 'Rex'}", {"q": "What's the dog's name?", "a": "Rex"}),
    ("{'a': \"it's\", 'b': 'x'}", {"a": "it's", "b": "x"}),
    ("{«a»: «b», «c»: 1}", {"a": "b", "c": 1}),
    ("{「a」: 「b」}", {"a": "b"}),
    ("{“name”: “Ada “the” King”, “n”: 1}", {"name": "Ada “the” King", "n": 1}),
    ("{`a`: `b`, `c`: 2}", {"a": "b", "c": 2}),
    ("{'a\": 'b', 'c': 1}", {"a": "b", "c": 1}),
    ('{"a\': "b", "c": 1}', {"a": "b", "c": 1}),
    ('{"a": "b\', "c": 1}', {"a": "b", "c": 1}),
    ('{"a": \'b", "c": 1}', {"a": "b", "c": 1}),
    ('{"a": b\'x\', "c": r"y", "d": u"z", "e": f"w"}', {"a": "x", "c": "y", "d": "z", "e": "w"}),
    ('{"a": "one " + "two", "b": 1}', {"a": "one two", "b": 1}),
    ('{"a": "one "\n   + "two"\n   + "three", "b": 1}', {"a": "one twothree", "b": 1}),
    ('{"quote": "\\"To be\\"", "by": "Hamlet",}', {"quote": '"To be"', "by": "Hamlet"}),
    ('{"path": "C:\\new\\table", "x": 1,}', {"path": r"C:\new\table", "x": 1}),
]

BRACKETS: list[Case] = [
    ('{"rows": ["a"}, "meta": {"n": 1}}', {"rows": ["a"], "meta": {"n": 1}}),
    ('{"rows": [1, 2}, "n": 1}', {"rows": [1, 2], "n": 1}),
    ('{"rows": [{"a": 1], "n": 1}', {"rows": [{"a": 1}], "n": 1}),
    ('{"rows": [{"a": 1}, {"a": 2}, "n": 1}', {"rows": [{"a": 1}, {"a": 2}], "n": 1}),
    ('{"a": [1, 2]], "b": 3}', {"a": [1, 2], "b": 3}),
    ('{"a": {"x": 1}}, "b": 2}', {"a": {"x": 1}, "b": 2}),
    ('{"a": {"x": 1], "b": 2}', {"a": {"x": 1}, "b": 2}),
    ('{"a": ["x", "y"), "b": 2}', {"a": ["x", "y"], "b": 2}),
    ('{"x": {"rows": ["a"}, "meta": 1}', {"x": {"rows": ["a"]}, "meta": 1}),
    ('[{"a": 1}, {"b": 2]', [{"a": 1}, {"b": 2}]),
    ('[{"a": 1, {"b": 2}]', [{"a": 1}, {"b": 2}]),
    ('{"a": 1]', {"a": 1}),
    ('["a", "b"}', ["a", "b"]),
    ('{"a": {"b": {"c": 1}}', {"a": {"b": {"c": 1}}}),
    ('{"a": [[1, 2], [3, 4], "b": 5}', {"a": [[1, 2], [3, 4]], "b": 5}),
    ('{"a": {"b": [1, 2, 3}, "c": 4}}', {"a": {"b": [1, 2, 3], "c": 4}}),
    ('{"pair": (1, 2), "n": ("a", "b")}', {"pair": [1, 2], "n": ["a", "b"]}),
    ("{'pair': ('a',), 'x': ()}", {"pair": ["a"], "x": []}),
    ("{'tags': {'a', 'b'}, 'n': 1}", {"tags": ["a", "b"], "n": 1}),
    ("{'ids': {1, 2, 3}}", {"ids": [1, 2, 3]}),
    ("[('a', 1), ('b', 2)]", [["a", 1], ["b", 2]]),
    ('{"a": set(), "b": 1}', {"a": "set()", "b": 1}),
    ('｛"a"：1，"b"：［2，3］｝', {"a": 1, "b": [2, 3]}),
    ('{"a"："x"，"b"："y"}', {"a": "x", "b": "y"}),
    ('{"a": "x"； "b": "y"}', {"a": "x", "b": "y"}),
]

LITERALS: list[Case] = [
    ('{"a": Null, "b": nil, "c": none, "d": NONE}', {"a": None, "b": None, "c": None, "d": None}),
    ('{"a": TRUE, "b": False, "c": tRUE}', {"a": True, "b": False, "c": True}),
    ('{"a": 0xFF, "b": 0b101, "c": 0o17}', {"a": 255, "b": 5, "c": 15}),
    ('{"a": 10 kg, "b": 3}', {"a": "10 kg", "b": 3}),
    ('{"a": 10kg, "b": 3}', {"a": "10kg", "b": 3}),
    ('{"a": 10 kg}', {"a": "10 kg"}),
    ('{"a": 5 %, "b": 3}', {"a": "5 %", "b": 3}),
    ('{"a": 12:30, "b": 3}', {"a": "12:30", "b": 3}),
    ('{"a": 2024-01-05, "b": 3}', {"a": "2024-01-05", "b": 3}),
    ('{"a": 3/4, "b": 1}', {"a": "3/4", "b": 1}),
    ('{"a": 1.2.3, "b": 1}', {"a": "1.2.3", "b": 1}),
    ("[10 kg, 5 kg]", ["10 kg", "5 kg"]),
    ('{"a": 1., "b": +2, "c": 1e5, "d": .25}', {"a": 1.0, "b": 2, "c": 1e5, "d": 0.25}),
    ('{"a": $5, "b": 1}', {"a": "$5", "b": 1}),
    ('{"a": http://example.org/x, "b": 1}', {"a": "http://example.org/x", "b": 1}),
    ('{"a": https://example.org/x?y=1#z\n}', {"a": "https://example.org/x?y=1#z"}),
    ('{"a": Infinity, "b": 1}', {"a": None, "b": 1}),
    ('{"a": None, "b": True}', {"a": None, "b": True}),
    ('{"a": undefined, "b": 1,}', {"a": None, "b": 1}),
    ('{"name": Ada Lovelace, "n": 1}', {"name": "Ada Lovelace", "n": 1}),
    ("[apple, pear, fig]", ["apple", "pear", "fig"]),
]

BLANKS: list[Case] = [
    ('{"song": "Heron", \\n"bars": \\n[8, 16]\\n}', {"song": "Heron", "bars": [8, 16]}),
    ('{\\n  "a": "x\\ny",\\n  "b": null,\\n}', {"a": "x\ny", "b": None}),
    ('```json\\n{\\n\\t"a": 1\\r\\n}\\n```', {"a": 1}),
    ('[\\n  {"a": 1},\\n  {"a": 2}\\n]', [{"a": 1}, {"a": 2}]),
    ('Here: {"a": [1,\\n2]}\\n', {"a": [1, 2]}),
    ('["print("\\n")", "x"]', ['print("\n")', "x"]),
    ('{"dir": C:\\new, "n": 1}', {"dir": "C:\\new", "n": 1}),
    ("{'a': 'x\\ny', 'b': 1}", {"a": "x\ny", "b": 1}),
]

ABANDONED: list[Case] = [
    (
        'I begin with {"dose": ... no, the weight is first. Final record:\n\n{"weight": 61, "dose": 305}',
        {"weight": 61, "dose": 305},
    ),
    ('{"dose": 3, wait, that is wrong. Correct:\n{"dose": 4}', {"dose": 4}),
    ('{"dose": 3, wait, that is wrong.\n\n```json\n{"dose": 4}\n```', {"dose": 4}),
]

NOT_ABANDONED = [
    '{"a": ... this is no key at all\n{"x": 1}, {"y": 2}]}',
    '{"items": [\n{"a": 1}, and so on it goes on:\n\n{"a": 2},\n{"a": 3}\n',
    '{"a": {"b": ... no, that is not so. Again:\n{"b": 1}',
]

COMMENTS: list[Case] = [
    ('{"a": 1//one\n, "b": 2/*two*/}', {"a": 1, "b": 2}),
    ('{"a": 1, # one\n"b": true# two\n}', {"a": 1, "b": True}),
    ('{"a": "x" // one\n, "b": 2}', {"a": "x", "b": 2}),
    ('{"a": "x", // one, two: "three"\n "b": 2}', {"a": "x", "b": 2}),
    ("[1, // one\n 2, // two\n 3]", [1, 2, 3]),
    ('{"a": [1, 2 /* more */], "b": 1}', {"a": [1, 2], "b": 1}),
    ('{ // start\n "a": 1\n // end\n}', {"a": 1}),
    ('{"a": 1, <!-- note --> "b": 2}', {"a": 1, "b": 2}),
    ('{"a": 1, ...}', {"a": 1}),
    ('{"a": 1, "b": [1, 2, ...], "c": 3}', {"a": 1, "b": [1, 2], "c": 3}),
    ('{"a": 1,\n ...\n "b": 2}', {"a": 1, "b": 2}),
]

PUNCTUATION: list[Case] = [
    ("{a: 1 b: 2}", {"a": 1, "b": 2}),
    ('{a: "x" b: "y"}', {"a": "x", "b": "y"}),
    ("{a: true b: [1] c: {d: 2}}", {"a": True, "b": [1], "c": {"d": 2}}),
    ('{"a" 1, "b" "x"}', {"a": 1, "b": "x"}),
    ('{"a" {"x": 1}, "b" [2]}', {"a": {"x": 1}, "b": [2]}),
    ('{name "Ada", age 36}', {"name": "Ada", "age": 36}),
    ('{"a": 1\n"b": 2\n"c": [3]\n}', {"a": 1, "b": 2, "c": [3]}),
    ('{"a": {"x": 1} "b": 2}', {"a": {"x": 1}, "b": 2}),
    ('{"a": [1] "b": 2}', {"a": [1], "b": 2}),
    ('{,"a": 1}', {"a": 1}),
    ('{"a": 1,,, "b": 2}', {"a": 1, "b": 2}),
    ('{"a":: 1, "b": 2}', {"a": 1, "b": 2}),
    ('{"a": = 1, "b": 2}', {"a": 1, "b": 2}),
    ('{"a": "x"; "b": "y";}', {"a": "x", "b": "y"}),
    ('{"a": , "b": 2}', {"b": 2}),
    ('{"a": 1. "b": 2}', {"a": 1.0, "b": 2}),
    ('{"a": "x". "b": 2}', {"a": "x", "b": 2}),
    ('{\u00a0"a":\u00a01,\u2003"b": 2}', {"a": 1, "b": 2}),
    ("[1 2 3]", [1, 2, 3]),
    ('["a" "b"\n"c"]', ["a", "b", "c"]),
]

AROUND: list[Case] = [
    ('"name": "Ada", "age": 36}', {"name": "Ada", "age": 36}),
    ('\n  "name": "Ada",\n  "age": 36\n}\n```', {"name": "Ada", "age": 36}),
    ('{\\"a\\": \\"b\\", \\"n\\": 1}', {"a": "b", "n": 1}),
    ('{\\n  \\"a\\": [\\"x\\", 2]\\n}', {"a": ["x", 2]}),
    ("{&quot;a&quot;: &quot;x &amp; y&quot;, &quot;n&quot;: 1}", {"a": "x & y", "n": 1}),
    ('> ```json\n> {"a": 1,\n>  "b": [2, 3]}\n> ```', {"a": 1, "b": [2, 3]}),
    ('> {"a": 1,\n>  "b": 2}', {"a": 1, "b": 2}),
    ('The answer:\n```json\n{"a": 1}\n```\nThe schema was {"a": "number"}.', {"a": 1}),
    ('```json\n{"a": 1}\n```\nYou could also use {"a": 2} instead.', {"a": 1}),
    ('{"a": 1}\n```\nsome notes\n```', {"a": 1}),
    ('~~~json\n{"a": 1}\n~~~', {"a": 1}),
    ('```{"a": 1}```', {"a": 1}),
    ('`{"a": 1}`', {"a": 1}),
    ('json\n{"a": 1}', {"a": 1}),
    ('result = {"a": 1};', {"a": 1}),
    ('const x = {\n  a: 1,\n  b: "y",\n};\n', {"a": 1, "b": "y"}),
    ('<json>{"a": 1}</json>', {"a": 1}),
    ('<answer>\n{"a": 1}\n</answer>', {"a": 1}),
    ("print(json.dumps({'a': 1, 'b': None}))", {"a": 1, "b": None}),
    ('{"a": 1}}', {"a": 1}),
    ('[{"a": 1}]]', [{"a": 1}]),
    ('{"a": 1}, {"a": 2}', [{"a": 1}, {"a": 2}]),
    ('Either {"a": 1}, {"a": 2} would do.', {"a": 2}),
    ("'Paris'", "Paris"),
    ("“To be, or not to be”", "To be, or not to be"),
    ('"one line\nand another"', "one line\nand another"),
    (r'"C:\path\x"', r"C:\path\x"),
    ('"cut off', "cut off"),
    ('"one " + "text"', "one text"),
    ("+.5", 0.5),
    ("TRUE", True),
    ('```json\n{"a": "use ```code``` here", "b": 1}\n```', {"a": "use ```code``` here", "b": 1}),
]

CUT: list[Case] = [
    ('{"a": 1, nam', {"a": 1}),
    ("{a: 1, nam", {"a": 1}),
    ('{"a": 1, // and th', {"a": 1}),
    ('{"a": 1, /* and th', {"a": 1}),
    ('{"a": "x" // and', {"a": "x"}),
    ('{"a": "x", # c', {"a": "x"}),
    ('{"a": [{"b": 1}, {"b', {"a": [{"b": 1}, {}]}),
    ("{'a': 'x', 'b': 'it", {"a": "x", "b": "it"}),
    ('{"a": [1, 2], "b": {"c": "d", "e": ["f', {"a": [1, 2], "b": {"c": "d", "e": ["f"]}}),
    ('{"a": "x", "b"', {"a": "x"}),
    ('{"a": tru', {}),
    ('{a: "x", b: "y', {"a": "x", "b": "y"}),
    ('{"a": "x", größ', {"a": "x"}),
]

GROUPS = {
    "keys": KEYS,
    "quotes": QUOTES,
    "brackets": BRACKETS,
    "literals": LITERALS,
    "comments": COMMENTS,
    "blanks": BLANKS,
    "abandoned": ABANDONED,
    "punctuation": PUNCTUATION,
    "around": AROUND,
    "cut": CUT,
}


@each_case(("text", "value"), [case for cases in GROUPS.values() for case in cases])
def test_the_value_that_a_person_would_take_is_read_with_a_warning(text: str, value: Any) -> None:
    parsed = parse_output(text)
    assert (parsed.value, parsed.error) == (value, None), parsed.warnings
    assert parsed.warnings or text.strip() == '{"a": "", "b": ""}'
    assert type(parsed.value) is type(value)


@pytest.mark.parametrize("text", NOT_ABANDONED)
def test_a_block_inside_one_that_is_unreadable_is_not_the_answer(text: str) -> None:
    assert parse_output(text).value is None


UNION = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
            "required": ["kind", "radius"],
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "square"}, "side": {"type": "number"}},
            "required": ["kind", "side"],
        },
    ]
}
MOOD = {"type": "string", "enum": ["positive", "negative", "neutral"]}
LABELS = {"type": "string", "enum": ["bug-report", "feature_request", "Other"]}
REVIEW = {
    "type": "object",
    "properties": {"mood": MOOD, "stars": {"type": "integer"}},
    "required": ["mood"],
}
ARGUMENTS = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "args": {"type": "object"}},
}

WITH_SCHEMA: list[tuple[str, Any, Any]] = [
    ('"{\\"a\\": 1}"', "object", {"a": 1}),
    ('"[1, 2]"', "number[]", [1, 2]),
    ('{"name": "f", "args": "{\\"x\\": 1}"}', ARGUMENTS, {"name": "f", "args": {"x": 1}}),
    ('{"a": 1}\n{"a": 2}\n{"a": 3}', "object[]", [{"a": 1}, {"a": 2}, {"a": 3}]),
    ('{"a": 1},\n{"a": 2}', "object[]", [{"a": 1}, {"a": 2}]),
    ('```jsonl\n{"a": 1}\n{"a": 2}\n```', "object[]", [{"a": 1}, {"a": 2}]),
    ('"a", "b", "c"]', "string[]", ["a", "b", "c"]),
    ("<answer>yes</answer>", "boolean", True),
    ("I thought about it.\n<answer> 42 </answer>", "integer", 42),
    ("<result>blue</result>", {"type": "string", "enum": ["red", "blue"]}, "blue"),
    ("Positive", MOOD, "positive"),
    ("**positive**", MOOD, "positive"),
    ("Sentiment: **Positive**.", MOOD, "positive"),
    ("The sentiment is: NEGATIVE", MOOD, "negative"),
    ("Category: Bug report", LABELS, "bug-report"),
    ("`Feature Request`", LABELS, "feature_request"),
    ('"Neutral."', MOOD, "neutral"),
    ("The overall sentiment of this review is negative.", MOOD, "negative"),
    ("The answer is (B) because A is wrong.", {"type": "string", "enum": ["A", "B", "C"]}, "B"),
    ('{"mood": "Positive", "stars": "4"}', REVIEW, {"mood": "positive", "stars": 4}),
    ('{"mood": "NEUTRAL"}', REVIEW, {"mood": "neutral"}),
    ('{"kind": "circle", "radius": "2.5"}', UNION, {"kind": "circle", "radius": 2.5}),
    ('{"kind": "square", "side": "$1,200"}', UNION, {"kind": "square", "side": 1200}),
    ('[{"a": 1}] and [{"a": 2}]', "object[]", [{"a": 2}]),
    ("{'red', 'blue'}", "string[]", ["red", "blue"]),
    ("('red', 'blue')", "string[]", ["red", "blue"]),
    ('"red", "blue"', "array", ["red", "blue"]),
    ("1\n2.5\nnull", "array", [1, 2.5, None]),
    ("Yes.", "boolean", True),
    ("- 7", "integer", -7),
]


@pytest.mark.parametrize(("text", "schema", "value"), WITH_SCHEMA)
def test_the_schema_settles_what_the_text_means(text: str, schema: Any, value: Any) -> None:
    parsed = parse_output(text, schema=schema)
    assert (parsed.value, parsed.error) == (value, None), parsed.warnings
    assert parsed.warnings
    assert type(parsed.value) is type(value)


REFUSED: list[tuple[str, Any]] = [
    ("No. 5 is best.", "boolean"),
    ("No 5 of them.", "boolean"),
    ("not positive", MOOD),
    ("It is neither positive nor negative.", MOOD),
    ("positive or negative", MOOD),
    ("Answer: A or B", {"type": "string", "enum": ["A", "B"]}),
    ('{"mood": "rather good"}', REVIEW),
    ("[" * 250 + "1" + "]" * 250, "number"),
    ('{"kind": "circle", "radius": "wide"}', UNION),
    ('{"w": 10 or 12 kg}', {"type": "object", "properties": {"w": {"type": "number"}}}),
    ("{x, y}", "string[]"),
    ("1, two, 3", "array"),
    ("7", "array"),
    ('{"a": 1}\nand\n{"a": 2}', "string[]"),
]


@pytest.mark.parametrize(("text", "schema"), REFUSED)
def test_a_text_with_no_single_reading_is_an_error(text: str, schema: Any) -> None:
    parsed = parse_output(text, schema=schema)
    assert parsed.value is None
    assert parsed.error is not None


MEMBERS, FENCED = (
    {"x": 1, "y": ["a"]},
    '```json\n{"code": "```python\nx = 1\n```\nand more", "n": 1}\n```',
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('Here it is:\n```json\n"x": 1, "y": ["a"]}\n```\nDone.', MEMBERS),
        ('<think>Is it {"a": 1}?</think>\n"x": 1, "y": ["a"]}', MEMBERS),
        ('**Result:** "x": 1, "y": ["a"]}', MEMBERS),
        ('```\n"a", "b"]\n```\nDone.', ["a", "b"]),
        ('```json\n{"x": 1, "y": ["a]}\n```\nDone.', MEMBERS),
        ('```json\n{\n  "x": "b\n}\n```\nSay "so".\n', {"x": "b"}),
        (FENCED, {"code": "```python\nx = 1\n```\nand more", "n": 1}),
        (FENCED + "\nDone.", {"code": "```python\nx = 1\n```\nand more", "n": 1}),
    ],
)
def test_what_surrounds_a_damaged_block_is_not_taken_into_it(text: str, value: Any) -> None:
    assert parse_output(text).value == value


@pytest.mark.parametrize("text", ['It has: "a", "b" and [more]', '{"k": 1}\nNote: "x": 1}'])
def test_no_bracket_is_added_in_prose(text: str) -> None:
    assert "a missing opening bracket was added" not in parse_output(text).warnings


def test_a_second_block_that_is_cut_off_is_reported() -> None:
    parsed = parse_output('{"a": 1}\n{"b"')
    assert parsed.value == {"a": 1}
    assert any("cut off" in warning for warning in parsed.warnings)


def test_the_reading_of_a_value_that_needs_no_quote_repair_stays_exact() -> None:
    for text in (
        '{"a": "x, \\"b\\": 1", "c": "}", "d": "]", "e": "\\"}",}',
        '["}", "]", ",", ":",]',
    ):
        parsed = parse_output(text)
        assert parsed.warnings == ("a trailing comma was left out",)
