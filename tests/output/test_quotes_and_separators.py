"""Surplus and missing quotes, colons, commas and semicolons: what is read, and what of it belongs to a text."""

from __future__ import annotations

from typing import Any

import pytest

from evaluator import parse_output

SURPLUS: list[tuple[str, Any]] = [
    ('{"name": "Ada", ""age": 36}', {"name": "Ada", "age": 36}),
    ('{"zip"": 3000, "a": 1}', {"zip": 3000, "a": 1}),
    ('{"a" ": "x", "b": 1}', {"a": "x", "b": 1}),
    ('{"key"": ",", "b": 1}', {"key": ",", "b": 1}),
    ('{"größe"": 3, ""長さ": 4}', {"größe": 3, "長さ": 4}),
    ('["red", ""blue"]', ["red", "blue"]),
    ('["red"", "blue"]', ["red", "blue"]),
    ('{"a": {"b": "Ünal""}, "c": 1}', {"a": {"b": "Ünal"}, "c": 1}),
    ('{"a": "x" ", "b": 1}', {"a": "x", "b": 1}),
    ('{"a": "Bern"\n", "b": 1}', {"a": "Bern", "b": 1}),
    ('{"a": """Bern", "b": 1}', {"a": "Bern", "b": 1}),
    ('{"a": "Bern""", "b": 1}', {"a": "Bern", "b": 1}),
    ('{"a": "one.\ntwo."", "b": 1}', {"a": "one.\ntwo.", "b": 1}),
    ('{"a": "he said \\"no\\"" and", "b": 1}', {"a": 'he said "no" and', "b": 1}),
    ('{"a": "say \\""no\\" now", "b": 1}', {"a": 'say "no" now', "b": 1}),
    ("{'a'': 'x', ''b': 'y''}", {"a": "x", "b": "y"}),
    ("{“a””: “x”, ““b”: “y””}", {"a": "x", "b": "y"}),
    ("{«a»: ««x», «b»: «y»»}", {"a": "x", "b": "y"}),
    (
        '{"id": "0042"", "t": "10:30:00"", "day": "2026-01-02"", "p": "$5.00""}',
        {"id": "0042", "t": "10:30:00", "day": "2026-01-02", "p": "$5.00"},
    ),
    ("{'sku': 'B-2'', 'n': 1}", {"sku": "B-2", "n": 1}),
    ('{"a": """\n}\n""", "b": 1}', {"a": "\n}\n", "b": 1}),
    ('["Sure!"", "Ok."]', ["Sure!", "Ok."]),
]
SURPLUS_KEPT: list[tuple[str, Any]] = [
    ('{"a": "", "b": "",}', {"a": "", "b": ""}),
    ('["", "x", "",]', ["", "x", ""]),
    ('{"screen": "27"", "w": 70}', {"screen": '27"', "w": 70}),
    ('{"height": "5\'10""}', {"height": "5'10\""}),
    ('{"a": "He said "yes"", "b": 1}', {"a": 'He said "yes"', "b": 1}),
    ('{"a": ""Yes", she said", "b": 1}', {"a": '"Yes", she said', "b": 1}),
    ('[""Yes", said Ann", "b"]', ['"Yes", said Ann', "b"]),
    ('{"a": ""Yes", "no" and "why"", "b": 1}', {"a": '"Yes", "no" and "why"', "b": 1}),
    ('{"key with "quotes"": 1, "b": 2}', {'key with "quotes"': 1, "b": 2}),
    ('{"a": "x = """, "b": 1}', {"a": 'x = ""', "b": 1}),
    ("{'a': 'the boys'', 'b': 1}", {"a": "the boys'", "b": 1}),
    ("{'a': ''tis so', 'b': 1}", {"a": "'tis so", "b": 1}),
    ('{"a": "x = \\"\\"", "b": "a\\"",}', {"a": 'x = ""', "b": 'a"'}),
    ('{"\\"＂": "“so””, he said",}', {'"＂': "“so””, he said"}),
    ('{"a": """, "b": """}', {"a": '"', "b": '"'}),
    ("{'who': 'O'Hara', \"n\": 1}", {"who": "O'Hara", "n": 1}),
    (
        '{"board": "3/4"", "pipe": "2 1/2"", "tv": "about 13.3""}',
        {"board": '3/4"', "pipe": '2 1/2"', "tv": 'about 13.3"'},
    ),
]
NOT_CLOSED: list[tuple[str, Any]] = [
    ("{«name»: «Ada, «age»: 36}", {"name": "Ada", "age": 36}),
    ("{'who': 'O'Hara, 'n': 1}", {"who": "O'Hara", "n": 1}),
]
NOT_OPENED: list[tuple[str, Any]] = [
    ('{"steps": ["Open", Walk in", "Close"]}', {"steps": ["Open", "Walk in", "Close"]}),
    ('["Open", Walk in, then rest", "Close"]', ["Open", "Walk in, then rest", "Close"]),
    ('["Open",\n "Walk in",\n Close it"\n]', ["Open", "Walk in", "Close it"]),
    ('[Open the door", "Walk in"]', ["Open the door", "Walk in"]),
    ('["a", https://x.example/b", "c"]', ["a", "https://x.example/b", "c"]),
    ('["red", 東京 駅", "blue"]', ["red", "東京 駅", "blue"]),
    ('["Open", don\'t walk", "Close"]', ["Open", "don't walk", "Close"]),
    ('{"title": First, best", "n": 1}', {"title": "First, best", "n": 1}),
    ('{"title": Second: good"}', {"title": "Second: good"}),
    (
        '{"a": He said \\"no\\" and left.\\nThen", "n": 1}',
        {"a": 'He said "no" and left.\nThen', "n": 1},
    ),
    ('{"a": {"last": Ünal"\n}, "b": 1}', {"a": {"last": "Ünal"}, "b": 1}),
    (
        '{"q": SELECT * FROM t WHERE a = \'x\'", "n": 10}',
        {"q": "SELECT * FROM t WHERE a = 'x'", "n": 10},
    ),
    ('{"a": "x", first name": "y"}', {"a": "x", "first name": "y"}),
    ('{"a": "x", größe": "y"}', {"a": "x", "größe": "y"}),
    ("{'steps': ['Open', don't walk', 'Close']}", {"steps": ["Open", "don't walk", "Close"]}),
    ("{“a”: [“Open”, Walk in”, “Close”]}", {"a": ["Open", "Walk in", "Close"]}),
    ('{first name": "y", "b": 1}', {"first name": "y", "b": 1}),
    ("{'a b': 1, c d': 2}", {"a b": 1, "c d": 2}),
    ('{"a": def f(x): return x[0]", "n": 1}', {"a": "def f(x): return x[0]", "n": 1}),
    ('["x", see [1] there", "y"]', ["x", "see [1] there", "y"]),
    ("{«a»: «b c», «d»: [e f», «g»], h i»: 1}", {"a": "b c", "d": ["e f", "g"], "h i": 1}),
    ("[`a`, b c`, `d`]", ["a", "b c", "d"]),
]
NOT_OPENED_KEPT: list[tuple[str, Any]] = [
    ('["a "b", c", "d"]', ['a "b", c', "d"]),
    ('["say "x", then go", "d"]', ['say "x", then go', "d"]),
    ('["Use "a", "b" or "c"", "n"]', ['Use "a", "b" or "c"', "n"]),
    ('{"cmd": ["print("a", b)", "c"]}', {"cmd": ['print("a", b)', "c"]}),
    ('["f("a", "b", 1)", "c"]', ['f("a", "b", 1)', "c"]),
    ('["["a", "b"]", "c"]', ['["a", "b"]', "c"]),
    ('["echo "a" "b"", "c"]', ['echo "a" "b"', "c"]),
    ('[red, green, "blue"]', ["red", "green", "blue"]),
    ('{"a": foo, "b": "x"}', {"a": "foo", "b": "x"}),
    ('{"a": foo(x, "y"), "b": 1}', {"a": 'foo(x, "y")', "b": 1}),
    ('{"a": yes, // he said "x",\n "b": 1}', {"a": "yes", "b": 1}),
    ('see [the note" here] {"a": 1}', {"a": 1}),
]
SEPARATORS: list[tuple[str, Any, str]] = [
    (
        '{"name""Ada","age"36,"ok"true,"x"null,"o"{"p":1}}',
        {"name": "Ada", "age": 36, "ok": True, "x": None, "o": {"p": 1}},
        "missing colon",
    ),
    ('{"a":1,"count"-3.5e2}', {"a": 1, "count": -350.0}, "missing colon"),
    ("{'first''Zoë','n'3}", {"first": "Zoë", "n": 3}, "missing colon"),
    ("{“größe”“Zoë”,“last”:“Ünal”}", {"größe": "Zoë", "last": "Ünal"}, "missing colon"),
    ('{"a":"x","text""' + "word " * 60 + '"}', {"a": "x", "text": "word " * 60}, "missing colon"),
    (
        '{"zip":3000"pos":{"lat":1.5"n":null}}',
        {"zip": 3000, "pos": {"lat": 1.5, "n": None}},
        "missing comma",
    ),
    ('{"ok":true"roles":[1"x",2]}', {"ok": True, "roles": [1, "x", 2]}, "missing comma"),
    ('{"a":["x"1,2]}', {"a": ["x", 1, 2]}, "missing comma"),
    ('{"a": "say \\"x\\".",, "b": 1}', {"a": 'say "x".', "b": 1}, "extra commas"),
    ('{"a": "x\\ny",,\n"b": ["x", , "y\\n"]}', {"a": "x\ny", "b": ["x", "y\n"]}, "extra commas"),
    ('["red"; "green", "blue"]', ["red", "green", "blue"], "separators"),
    (
        '{"c": [1; 2, 3], "d": [1.5;-2], "e": [true; false]}',
        {"c": [1, 2, 3], "d": [1.5, -2], "e": [True, False]},
        "separators",
    ),
    ('{"a"; 1, "b" ; "x"}', {"a": 1, "b": "x"}, "separators"),
    ('["a"; 1, 2]', ["a", 1, 2], "separators"),
    (
        "{'items'[{'sku':'A-1'}],'total':1}",
        {"items": [{"sku": "A-1"}], "total": 1},
        "missing colon",
    ),
    ("{“steps” [“a”, “b”], “c”: 1}", {"steps": ["a", "b"], "c": 1}, "missing colon"),
    ('{"n":[1[2,["a"]]],"m":2}', {"n": [1, [2, ["a"]]], "m": 2}, "missing comma"),
    ('{"n": [1, [2; ["a", "b"]]]}', {"n": [1, [2, ["a", "b"]]]}, "separators"),
]
SEPARATORS_KEPT: list[tuple[str, Any]] = [
    ('{"say "hi", ok": 1, "b": 2}', {'say "hi", ok': 1, "b": 2}),
    ('{"the "36" one": 1, "b": 2}', {'the "36" one': 1, "b": 2}),
    ('{"a": "x, , y", "b": ",,",}', {"a": "x, , y", "b": ",,"}),
    ('{"code": "print("a"; "b")", "n": 1}', {"code": 'print("a"; "b")', "n": 1}),
    ('{"code": "x = "a"; y = "b";", "n": 1}', {"code": 'x = "a"; y = "b";', "n": 1}),
    ('{"a;b": 1, "c;": 2,}', {"a;b": 1, "c;": 2}),
    ('{"t": ["a; b", "1; 2",]}', {"t": ["a; b", "1; 2"]}),
]


@pytest.mark.parametrize(("text", "value"), SURPLUS)
def test_a_surplus_quote_beside_a_closed_string_is_left_out(text: str, value: Any) -> None:
    _is_repaired(text, value, "doubled or tripled quotes")


@pytest.mark.parametrize(("text", "value"), NOT_OPENED)
def test_a_missing_opening_quote_is_added(text: str, value: Any) -> None:
    _is_repaired(text, value, "missing opening quote")


@pytest.mark.parametrize(("text", "value"), NOT_CLOSED)
def test_a_missing_closing_quote_is_added(text: str, value: Any) -> None:
    _is_repaired(text, value, "missing closing quote")


@pytest.mark.parametrize(("text", "value", "fragment"), SEPARATORS)
def test_missing_extra_and_other_separators_are_read(text: str, value: Any, fragment: str) -> None:
    _is_repaired(text, value, fragment)


@pytest.mark.parametrize(("text", "value"), SURPLUS_KEPT + NOT_OPENED_KEPT + SEPARATORS_KEPT)
def test_quotes_and_separators_that_belong_to_a_text_stay_in_it(text: str, value: Any) -> None:
    parsed = parse_output(text)
    assert parsed.value == value
    assert not any(
        "doubled" in warning or "opening quote" in warning for warning in parsed.warnings
    )


def _is_repaired(text: str, value: Any, fragment: str) -> None:
    parsed = parse_output(text)
    assert parsed.value == value
    assert repr(parsed.value) == repr(value)
    assert any(fragment in warning for warning in parsed.warnings), parsed.warnings
    assert parse_output(text, strict=True).error is not None
