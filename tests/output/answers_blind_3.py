"""A third table in the form of `answers_blind_1`, written after the repairs that the first two led to were in."""

from __future__ import annotations

from typing import Any


def record(**properties: Any) -> dict[str, Any]:
    """A schema of an object that requires these properties; a string is a type name."""
    fields = {
        name: {"type": kind} if isinstance(kind, str) else kind for name, kind in properties.items()
    }
    return {"type": "object", "properties": fields, "required": list(fields)}


SPAM = {"type": "string", "enum": ["spam", "not_spam"]}
LEVEL = {"type": "string", "enum": ["1 - poor", "2 - fair", "3 - good"]}
LANGUAGE = {"type": "string", "enum": ["C", "C++", "C#", "Python"]}
STRINGS = {"type": "array", "items": {"type": "string"}}
PAPER = record(title="string", authors=STRINGS, year="integer")

PLAIN: list[tuple[str, Any]] = [
    ('{"dialog": ["- "Hi!"", "- "Bye!""]}', {"dialog": ['- "Hi!"', '- "Bye!"']}),
    ('{"note": "Use "a", "b" or "c"", "n": 1}', {"note": 'Use "a", "b" or "c"', "n": 1}),
    (
        '{"term": "so-called "smart" phone", "tags": ["a", "b"]}',
        {"term": 'so-called "smart" phone', "tags": ["a", "b"]},
    ),
    ('{"regex": "^"[^"]*"$", "n": 1}', {"regex": '^"[^"]*"$', "n": 1}),
    (
        '{"svg": "<path d="M0,0 L1,1" fill="none"/>", "n": 1}',
        {"svg": '<path d="M0,0 L1,1" fill="none"/>', "n": 1},
    ),
    ('{"cmd": "git commit -m "fix: a, b"", "n": 1}', {"cmd": 'git commit -m "fix: a, b"', "n": 1}),
    (
        '{"sql": "INSERT INTO t VALUES ("a", "b");", "n": 1}',
        {"sql": 'INSERT INTO t VALUES ("a", "b");', "n": 1},
    ),
    (
        '{"code": "const x = {a: "b"};\nreturn x;", "n": 1}',
        {"code": 'const x = {a: "b"};\nreturn x;', "n": 1},
    ),
    (
        '{"yaml": "key: "value"\nother: [1, 2]\n", "n": 1}',
        {"yaml": 'key: "value"\nother: [1, 2]\n', "n": 1},
    ),
    (
        '{"test": "assert f("x") == {"y": 1}", "n": 1}',
        {"test": 'assert f("x") == {"y": 1}', "n": 1},
    ),
    ("{'a': 'Ben & Jerry's', 'b': 'Levi's'}", {"a": "Ben & Jerry's", "b": "Levi's"}),
    ("{'s': 'O\\'Neil said \"hi\"', 'n': None}", {"s": 'O\'Neil said "hi"', "n": None}),
    ('{"a": "1,5", "b": "2;3",}', {"a": "1,5", "b": "2;3"}),
    ('{"key with "quotes"": 1, "b": 2}', {'key with "quotes"': 1, "b": 2}),
    (
        '{"title": "Dune, "author": "Herbert", "year": 1965}',
        {"title": "Dune", "author": "Herbert", "year": 1965},
    ),
    ('{"a": {"b": "x}, "c": "y"}', {"a": {"b": "x"}, "c": "y"}),
    ('{"rows": [["a", "b"], ["c", "d]], "n": 1}', {"rows": [["a", "b"], ["c", "d"]], "n": 1}),
    ('[{"t": "a"}, {"t": "b}, {"t": "c"}]', [{"t": "a"}, {"t": "b"}, {"t": "c"}]),
    ('{"a": "x"; "b": ["y"; "z"]}', {"a": "x", "b": ["y", "z"]}),
    ('{"a": {"x": 1} "b": {"y": 2}}', {"a": {"x": 1}, "b": {"y": 2}}),
    ('{"a": [1, 2]], "b": 3}', {"a": [1, 2], "b": 3}),
    ('{"a": {"b": 1}}, "c": 2}', {"a": {"b": 1}, "c": 2}),
    ('{"a": [{"x": 1}, {"x": 2}, "b": 1}', {"a": [{"x": 1}, {"x": 2}], "b": 1}),
    ('{"a": "b" /* c */ , /* d */ "e": "f" /* g */}', {"a": "b", "e": "f"}),
    ('{\n  # "old": 1,\n  "new": 2\n}', {"new": 2}),
    ('{"a": 1, "b": 2} // "c": 3', {"a": 1, "b": 2}),
    (
        "{a: 1, b: 'x', c: [true, false], d: {e: null}}",
        {"a": 1, "b": "x", "c": [True, False], "d": {"e": None}},
    ),
    ('{"state": on hold, "owner": nobody}', {"state": "on hold", "owner": "nobody"}),
    (
        '{"addr": 12 Main St, "city": Springfield, IL, "zip": 62701}',
        {"addr": "12 Main St", "city": "Springfield, IL", "zip": 62701},
    ),
    ('{"cron": */5 * * * *, "n": 1}', {"cron": "*/5 * * * *", "n": 1}),
    ('{"temp": -4°C, "hum": 80 %}', {"temp": "-4°C", "hum": "80 %"}),
    ('{"sha": 0e4f9a1b, "n": 1}', {"sha": "0e4f9a1b", "n": 1}),
    (
        '{"uuid": 550e8400-e29b-41d4-a716-446655440000, "n": 1}',
        {"uuid": "550e8400-e29b-41d4-a716-446655440000", "n": 1},
    ),
    ('{"x": 1., "y": -.5, "z": +3, "w": 1E3,}', {"x": 1.0, "y": -0.5, "z": 3, "w": 1000.0}),
    ("{\"s\": '''He said \"hi\"''', \"n\": 1}", {"s": 'He said "hi"', "n": 1}),
    (r'{"p": "\\server\share\", "n": 1}', {"p": "\\server\\share\\", "n": 1}),
    (r'{"dirs": ["C:\A\", "D:\B\"], "n": 1}', {"dirs": ["C:\\A\\", "D:\\B\\"], "n": 1}),
    ('{"a": "x",\n"b": "y"\n\nI hope that helps.', {"a": "x", "b": "y"}),
    ('```json\n[\n  {"a": 1},\n  {"a": 2},\n```', [{"a": 1}, {"a": 2}]),
    ('{"a": [["x", "y"], ["z', {"a": [["x", "y"], ["z"]]}),
    ('{"text": "ends with comma,', {"text": "ends with comma,"}),
    ('{"a": "{b}', {"a": "{b}"}),
    ("The JSON object {'status': 'ok'} was returned by the API.", {"status": "ok"}),
    ('{"a": 1}\n\n```python\nx = {"b": 2}\n```', {"a": 1}),
    ('JSON:\n\n    {"a": 1}\n', {"a": 1}),
]

TYPED: list[tuple[str, Any, Any]] = [
    ("Not spam", SPAM, "not_spam"),
    ("**Spam.**", SPAM, "spam"),
    ("NOT_SPAM", SPAM, "not_spam"),
    ("2 - Fair", LEVEL, "2 - fair"),
    ("Python", LANGUAGE, "Python"),
    ("`python`", LANGUAGE, "Python"),
    ("C++", LANGUAGE, "C++"),
    ("Language: C#", LANGUAGE, "C#"),
    ('{"language": "c++"}', record(language=LANGUAGE), {"language": "C++"}),
    (
        '{"title": "On "Sense"", "authors": ["A. B", "C. D\'s"], "year": "1892"}',
        PAPER,
        {"title": 'On "Sense"', "authors": ["A. B", "C. D's"], "year": 1892},
    ),
    (
        '{"title": Dune, "authors": [Frank Herbert], "year": 1965}',
        PAPER,
        {"title": "Dune", "authors": ["Frank Herbert"], "year": 1965},
    ),
    (
        '{"title": "X", "authors": "[\'A\', \'B\']", "year": 2000}',
        PAPER,
        {"title": "X", "authors": ["A", "B"], "year": 2000},
    ),
    ("The year was 1965.", "integer", 1965),
    ("= 12", "integer", 12),
    ("Answer: 12.", "integer", 12),
    ("Answer: $5.00", "number", 5.0),
    ("The final answer is \\(\\boxed{-3}\\)", "integer", -3),
    ("Answer: **True**", "boolean", True),
    ("That statement is true.", "boolean", True),
    ("{'tags': {'x', 'y'}}", record(tags=STRINGS), {"tags": ["x", "y"]}),
]

XML: list[tuple[str, Any]] = [
    (
        "<answer><value>3 < 4</value><unit>km/h</unit></answer>",
        {"answer": {"value": "3 < 4", "unit": "km/h"}},
    ),
    ("<r><a>R&D</a><b>AT&amp;T</b></r>", {"r": {"a": "R&D", "b": "AT&T"}}),
    ("<r><x y = 'z'>t</x></r>", {"r": {"x": {"@y": "z", "#text": "t"}}}),
    ("Ok.\n<r>\n<a>1</a>\n</r>\n\nAnything else?", {"r": {"a": "1"}}),
]

REFUSED: list[tuple[str, Any]] = [
    ("C or C++", LANGUAGE),
    ("Java", LANGUAGE),
    ("I can't tell if it is spam.", SPAM),
    ("good", SPAM),
    ("192.168.100.200", "integer"),
    ("1.2.3", "number"),
    ("2024", "boolean"),
    ("{'tags': 'x'}", record(tags=STRINGS)),
    ('{"title": "X", "authors": [], "year": "c. 1900"}', PAPER),
    ('{"title": "X", "authors": [1], "year": 1900}', PAPER),
    ("nothing", "number"),
    ("No idea", "integer"),
]
