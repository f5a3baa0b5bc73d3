"""A second table in the form of `answers_blind_1`, written before the repairs that the first one led to were measured."""

from __future__ import annotations

from typing import Any


def record(**properties: Any) -> dict[str, Any]:
    """A schema of an object that requires these properties; a string is a type name."""
    fields = {
        name: {"type": kind} if isinstance(kind, str) else kind for name, kind in properties.items()
    }
    return {"type": "object", "properties": fields, "required": list(fields)}


URGENCY = {"type": "string", "enum": ["low", "medium", "high", "critical"]}
TOPIC = {"type": "string", "enum": ["billing", "tech_support", "account-access", "Other"]}
CHOICE = {"type": "string", "enum": ["A", "B", "C", "D", "E"]}
STRINGS = {"type": "array", "items": {"type": "string"}}
PERSON = record(name="string", email="string", phones=STRINGS)
EVENT = {
    "anyOf": [
        record(event={"enum": ["login"]}, user="string"),
        record(event={"enum": ["purchase"]}, amount="number", paid="boolean"),
    ]
}
STEPS = record(steps={"type": "array", "items": record(n="integer", text="string")}, done="boolean")

PLAIN: list[tuple[str, Any]] = [
    # around the value
    (
        'Okay, so the JSON would be:\n\n{\n  "city": "Oslo",\n  "temp": -3.5\n}\n\nHope this helps! :)',
        {"city": "Oslo", "temp": -3.5},
    ),
    ("```\n{'x': 1}\n```\n\n**Explanation:** the value of `x` is {1}.", {"x": 1}),
    ('<|assistant|>\n{"ok": true}\n<|end|>', {"ok": True}),
    ('<start_of_turn>model\n{"ok": true}<end_of_turn>', {"ok": True}),
    (
        '<function_call>{"name": "f", "arguments": {"q": "a b"}}</function_call>',
        {"name": "f", "arguments": {"q": "a b"}},
    ),
    ('<think>First, {"x": 0}, then more.</think>\nThe final JSON is:\n{"x": 5}', {"x": 5}),
    (
        'Ergebnis:\n```json\n{"größe": 3, "farbe": "grün"}\n```\nViel Erfolg!',
        {"größe": 3, "farbe": "grün"},
    ),
    ('以下のとおりです。\n{"名前": "太郎", "年齢": 20}\n以上です。', {"名前": "太郎", "年齢": 20}),
    ('Вот результат: {"имя": "Анна"}', {"имя": "Анна"}),
    ("let result = {ok: true, items: ['a', 'b']}; // done", {"ok": True, "items": ["a", "b"]}),
    ("print({'a': (1, 2), 'b': None})", {"a": [1, 2], "b": None}),
    (
        "module.exports = {\n  entry: \"./a.js\",\n  mode: 'production'\n};",
        {"entry": "./a.js", "mode": "production"},
    ),
    ('Result: `["a", "b"]`', ["a", "b"]),
    ("The list [a, b] was sorted: ['a', 'b'].", ["a", "b"]),
    ('| key | value |\n|-----|-------|\n| a | [1] |\n\n```json\n{"a": [1]}\n```\n', {"a": [1]}),
    ('> **Note**\n> this is the result\n\n{"a": 1}', {"a": 1}),
    # quotes
    (
        '{"quote": "She whispered, "come here", and left.", "page": 4}',
        {"quote": 'She whispered, "come here", and left.', "page": 4},
    ),
    (
        '{"name": "Dwayne "The Rock" Johnson", "job": "actor"}',
        {"name": 'Dwayne "The Rock" Johnson', "job": "actor"},
    ),
    ('{"inch": "3.5" drive", "n": 1}', {"inch": '3.5" drive', "n": 1}),
    ('{"a": "the word "end"", "b": "x"}', {"a": 'the word "end"', "b": "x"}),
    ("{'title': 'Rock 'n' Roll', 'year': 1971}", {"title": "Rock 'n' Roll", "year": 1971}),
    ("{'possessive': 'the dogs' bowl', 'n': 1}", {"possessive": "the dogs' bowl", "n": 1}),
    ("['don't', 'won't', 'it's']", ["don't", "won't", "it's"]),
    (
        '{"html": "<p class="x">Hi, <b id="y">you</b></p>", "n": 1}',
        {"html": '<p class="x">Hi, <b id="y">you</b></p>', "n": 1},
    ),
    ('{"js": "alert("hi"); return false;", "n": 1}', {"js": 'alert("hi"); return false;', "n": 1}),
    ('{"py": "a = ["x", "y"]", "n": 1}', {"py": 'a = ["x", "y"]', "n": 1}),
    ('{"py": "d["k"] = d["j"]"}', {"py": 'd["k"] = d["j"]'}),
    (
        '{"rust": "let s = "a"; println!("{}", s);", "n": 1}',
        {"rust": 'let s = "a"; println!("{}", s);', "n": 1},
    ),
    ('{"tpl": "Dear "{{name}}", welcome", "n": 1}', {"tpl": 'Dear "{{name}}", welcome', "n": 1}),
    ('{"json": "{"a": 1}", "n": 1}', {"json": '{"a": 1}', "n": 1}),
    ('{"go": "fmt.Println("a", "b")", "n": 1}', {"go": 'fmt.Println("a", "b")', "n": 1}),
    ("{„titel“: „Faust“, „jahr“: 1808}", {"titel": "Faust", "jahr": 1808}),
    ('{"titel": "Er sagte „Hallo“", "n": 1,}', {"titel": "Er sagte „Hallo“", "n": 1}),
    ("{“a”: “it’s “fine””, “b”: 2}", {"a": "it’s “fine”", "b": 2}),
    ("{\"a\": 'x', 'b': \"y\"}", {"a": "x", "b": "y"}),
    ('{"a": "one", "b: "two", "c": "three"}', {"a": "one", "b": "two", "c": "three"}),
    ('{"a": "one, "b": "two", "c": "three}', {"a": "one", "b": "two", "c": "three"}),
    ('{"a": one", "b": "two"}', {"a": "one", "b": "two"}),
    ('["x, "y", "z"]', ["x", "y", "z"]),
    ('{"l": ["x", "y, "z"], "n": 1}', {"l": ["x", "y", "z"], "n": 1}),
    # values
    (
        "{name: Jean-Luc Picard, rank: captain, ship: NCC-1701}",
        {"name": "Jean-Luc Picard", "rank": "captain", "ship": "NCC-1701"},
    ),
    ('{"note": see above, but carefully, "n": 1}', {"note": "see above, but carefully", "n": 1}),
    ('{"size": 10x20, "weight": 5kg, "n": 3}', {"size": "10x20", "weight": "5kg", "n": 3}),
    ('{"date": May 5, 2024, "n": 1}', {"date": "May 5, 2024", "n": 1}),
    ('{"id": ObjectId("65a1"), "n": 1}', {"id": 'ObjectId("65a1")', "n": 1}),
    ('{"colors": [#fff, #a0b1c2], "n": 1}', {"colors": ["#fff", "#a0b1c2"], "n": 1}),
    ('{"when": 12/05/2024, "tz": UTC+2}', {"when": "12/05/2024", "tz": "UTC+2"}),
    ('{"total": $2,500.00, "n": 1}', {"total": "$2,500.00", "n": 1}),
    ('{"count": 12,500, "n": 1}', {"count": 12500, "n": 1}),
    (
        "{enabled: True, retries: 3, backoff: .25, mask: 0b101}",
        {"enabled": True, "retries": 3, "backoff": 0.25, "mask": 5},
    ),
    # paths and patterns
    ('{"from": "C:\\Data\\", "to": "E:\\Sync\\"}', {"from": "C:\\Data\\", "to": "E:\\Sync\\"}),
    (r'{"glob": "src\**\*.py", "n": 1,}', {"glob": r"src\**\*.py", "n": 1}),
    (r'{"re": "(\d+)\s*(?:km|mi)\.", "n": 1}', {"re": r"(\d+)\s*(?:km|mi)\.", "n": 1}),
    (r'{"tex": "\(x\) and \[y\]", "n": 1}', {"tex": r"\(x\) and \[y\]", "n": 1}),
    # comments, lists
    ('{\n  "a": 1, // first, "quoted"\n  // "b": 2,\n  "c": 3\n}', {"a": 1, "c": 3}),
    ('{"a": 1, /* "b": 2, */ "c": 3}', {"a": 1, "c": 3}),
    ('[\n  "a", # first\n  "b"  # second\n]', ["a", "b"]),
    ('{"items": [\n  * "a"\n  * "b"\n]}', {"items": ["a", "b"]}),
    ('[\n  1) "a",\n  2) "b"\n]', ["a", "b"]),
    ('["a", "b", …]', ["a", "b"]),
    ('{"rows": [{"id": 1}, {"id": 2}, ...], "n": 5}', {"rows": [{"id": 1}, {"id": 2}], "n": 5}),
    # brackets and separators
    ('{"a": {"b": [1, 2}, "c": 3}', {"a": {"b": [1, 2]}, "c": 3}),
    (
        '{"list": [{"k": 1}, "k": 2}, {"k": 3}], "n": 1}',
        {"list": [{"k": 1}, {"k": 2}, {"k": 3}], "n": 1},
    ),
    (
        '[{"k": 1, "v": "a"}, {"k": 2, "v": "b", {"k": 3, "v": "c"}]',
        [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}, {"k": 3, "v": "c"}],
    ),
    ('{"a": [1, 2, 3, "b": [4, 5]}', {"a": [1, 2, 3], "b": [4, 5]}),
    ('{"a": "x" "b": ["y" "z"], "c" : 1}', {"a": "x", "b": ["y", "z"], "c": 1}),
    ('{"a": 1,\n\n,"b": 2}', {"a": 1, "b": 2}),
    ('{"a" : 1 , "b" ; 2}', {"a": 1, "b": 2}),
    ('{"a" -> 1, "b" -> "x"}', {"a": 1, "b": "x"}),
    ('{{"a": [{{"b": "x"}}, {{"b": "y"}}]}}', {"a": [{"b": "x"}, {"b": "y"}]}),
    ('{"msg": ("part one, " "part two"), "n": 1}', {"msg": "part one, part two", "n": 1}),
    ('{"msg": "part one, "\n  "part two",\n  "n": 1}', {"msg": "part one, part two", "n": 1}),
    ('{"a"：1，"b"：［1，2］}', {"a": 1, "b": [1, 2]}),
    # cut off
    ('{"a": [{"b": "c"}, {"b": "d', {"a": [{"b": "c"}, {"b": "d"}]}),
    ('{"a": "He said "no" and th', {"a": 'He said "no" and th'}),
    ('{"code": "if (x) { y(); }', {"code": "if (x) { y(); }"}),
    ('{"a": true, "b": fal', {"a": True}),
    ('{"a": "x", "b": [1, 2, 3', {"a": "x", "b": [1, 2]}),
    ('{"a": "x",\n "b": "y",\n[output truncated]', {"a": "x", "b": "y"}),
    ("{'a': ['x', 'y'], 'b", {"a": ["x", "y"]}),
]

TYPED: list[tuple[str, Any, Any]] = [
    ("So the final result is 1,024.", "integer", 1024),
    ("**Answer: 3.5**", "number", 3.5),
    ("The total comes to EUR 2.500,75.", "number", 2500.75),
    ("Total = £12.50", "number", 12.5),
    ("<answer>-7</answer>", "integer", -7),
    ("१२", "integer", 12),
    ("6.02 × 10^23", "number", 6.02e23),
    ("The answer is $\\boxed{1{,}000}$", "integer", 1000),
    ('{"amount": "1.234.567,89"}', record(amount="number"), {"amount": 1234567.89}),
    ('{"amount": €1.234,50}', record(amount="number"), {"amount": 1234.5}),
    ("This claim is true.", "boolean", True),
    ("It is false.", "boolean", False),
    ("Sí, claro.", "boolean", True),
    ("Non.", "boolean", False),
    ("no — the file does not exist", "boolean", False),
    ("Urgency: High", URGENCY, "high"),
    ("high\n\nReason: low stock is a medium risk.", URGENCY, "high"),
    ("Urgency.CRITICAL", URGENCY, "critical"),
    ("[medium]", URGENCY, "medium"),
    ("I'd rate it *medium*.", URGENCY, "medium"),
    ("TechSupport", TOPIC, "tech_support"),
    ("Category: account access", TOPIC, "account-access"),
    ("other.", TOPIC, "Other"),
    ("(E)", CHOICE, "E"),
    ("Answer - C", CHOICE, "C"),
    ("The best option is B: Rome", CHOICE, "B"),
    ("A", CHOICE, "A"),
    ("I pick A.", CHOICE, "A"),
    ('{"topic": "TECH SUPPORT"}', record(topic=TOPIC), {"topic": "tech_support"}),
    (
        '{"event": "Purchase", "amount": "$9.90", "paid": "yes"}',
        EVENT,
        {"event": "purchase", "amount": 9.9, "paid": True},
    ),
    ("{event: login, user: ada}", EVENT, {"event": "login", "user": "ada"}),
    (
        "{'name': 'Ada', 'email': 'ada@x.org', 'phones': \"['+41 79', '+41 78']\"}",
        PERSON,
        {"name": "Ada", "email": "ada@x.org", "phones": ["+41 79", "+41 78"]},
    ),
    (
        'Here is the string: "{\\"name\\": \\"Ada\\", \\"email\\": \\"a@x.org\\", \\"phones\\": []}"',
        PERSON,
        {"name": "Ada", "email": "a@x.org", "phones": []},
    ),
    (
        '{"name": "Ada "Lady" L.", "email": ada@x.org, "phones": ["1", "2}',
        PERSON,
        {"name": 'Ada "Lady" L.', "email": "ada@x.org", "phones": ["1", "2"]},
    ),
    (
        '{"steps": [{"n": "1", "text": "say "go""}, {"n": 2, "text": "it\'s over"}], "done": "true"}',
        STEPS,
        {"steps": [{"n": 1, "text": 'say "go"'}, {"n": 2, "text": "it's over"}], "done": True},
    ),
    (
        'Step list: {"steps": [{"n": 1, "text": "a"}], "done": False}\nDone: {}',
        STEPS,
        {"steps": [{"n": 1, "text": "a"}], "done": False},
    ),
    ('* {"n": 1}\n* {"n": 2}', "object[]", [{"n": 1}, {"n": 2}]),
    ('```json\n{"n": 1}\n```\n```json\n{"n": 2}\n```', "object[]", [{"n": 1}, {"n": 2}]),
    ('{"n": 1}\n,\n{"n": 2}\n]', "object[]", [{"n": 1}, {"n": 2}]),
    ('"x", "y"]', "string[]", ["x", "y"]),
    ('"event": "login", "user": "ada"}', EVENT, {"event": "login", "user": "ada"}),
    (
        '{"a": "None", "b": "null"}',
        record(a={"type": ["number", "null"]}, b={"type": ["boolean", "null"]}),
        {"a": None, "b": None},
    ),
    (
        '<result>{"event": "login", "user": "ada"}</result>',
        EVENT,
        {"event": "login", "user": "ada"},
    ),
]

XML: list[tuple[str, Any]] = [
    (
        'Sure:\n```xml\n<plan>\n  <step n="1">Wash & dry</step>\n  <step n="2">Fold</step>\n</plan>\n```\nDone!',
        {"plan": {"step": [{"@n": "1", "#text": "Wash & dry"}, {"@n": "2", "#text": "Fold"}]}},
    ),
    ("<r><link>See <https://x.org/a> now</link></r>", {"r": {"link": "See <https://x.org/a> now"}}),
    ("<r><v>a <= b</v><w>3 > 2</w></r>", {"r": {"v": "a <= b", "w": "3 > 2"}}),
    ("<r><a>x</a>\n<b>y</b>\n", {"r": {"a": "x", "b": "y"}}),
    ("&lt;note&gt;Hi &amp;amp; bye&lt;/note&gt;", {"note": "Hi & bye"}),
    ('<r><a href="u?x=1&y=2">z</a></r>', {"r": {"a": {"@href": "u?x=1&y=2", "#text": "z"}}}),
    ("<r><!-- c --><a>1</a><!-- d --></r>", {"r": {"a": "1"}}),
    ("<summary>Short &mdash; sweet</summary>", {"summary": "Short — sweet"}),
    ("<r>\n<code><![CDATA[a < b]]></code>\n<ok>yes</ok>", {"r": {"code": "a < b", "ok": "yes"}}),
]

REFUSED: list[tuple[str, Any]] = [
    ("A bit of both.", CHOICE),
    ("I have no idea.", CHOICE),
    ("low or medium", URGENCY),
    ("low\nmedium\nhigh", URGENCY),
    ("lowest", URGENCY),
    ("not critical", URGENCY),
    ("true or false", "boolean"),
    ("It is unclear whether this is true.", "boolean"),
    ("3.5 to 4", "number"),
    ("twelve", "integer"),
    ("1.5", "integer"),
    ("2-3 times", "integer"),
    ('{"paid": "maybe", "event": "purchase", "amount": 3}', EVENT),
    ('{"event": "logout", "user": "ada"}', EVENT),
    ('{"phones": "1, 2", "name": "a", "email": "b"}', PERSON),
    ('{"steps": {"n": 1, "text": "a"}, "done": true}', STEPS),
    ('{"steps": [], "done": 0}', STEPS),
    ('{"n": 1} is first, then {"n": 2}', "object[]"),
    ('{"amount": "1,5"}', record(amount="number")),
    ("Sorry, I can't help.", "boolean"),
]
