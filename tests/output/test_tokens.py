"""Each pattern of the lenient reader has an example, with what it matches there, and a counter-example."""

from __future__ import annotations

from evaluator.output import tokens
from evaluator.patterns import Pattern
from tests.tables import each_case

SEARCHED = ("CONTROL", "ESCAPE", "LAST_LINE", "LONE_BACKSLASH", "MEASURE")
WHOLE = ("JSON_NUMBER", "RADIX")
TABLE = [
    ("GAP", ' /* b */ // c\n"d"', " /* b */ // c\n", '"a"'),
    ("NEXT_MEMBER", ' "key": 1', ' "', " more words."),
    ("NEXT_ITEM", " none, 2", " none", " and so on."),
    ("NEXT_MEMBER_IN_QUOTES", ' "key": 1', ' "', ' "aside", he said'),
    ("NEXT_ITEM_IN_QUOTES", ' "b", "c"]', ' "', ' "b" he said'),
    ("MEMBER_AFTER_GAP", "key: 1", "key: 1", "key one"),
    ("MEMBER_AFTER_GAP_IN_QUOTES", '"key": 1', '"key":', "key: 1"),
    ("ITEM_AFTER_GAP", '"b", "c"', '"', '"b" he said'),
    ("STRICT_MEMBER", " key: 1", " key:", " return 1"),
    ("STRICT_ITEM", ' "b"; "c"', ' "b";', ' "b" + c'),
    ("MORE_COMMAS", ",, 1", ",,", "1"),
    ("SCALAR_ITEM", " 2.5, 3", " 2.5,", " two, 3"),
    ("CLOSING_NEXT", " } x", " ", ", }"),
    ("BLANK_LINE", " \n\t\nx", " \n\t\n", "\nx"),
    ("NEXT_LINE_ITEM", '\n- "b"', "\n- ", "\n- b"),
    ("NEXT_LINE", "\n  key: 1", "\n  key:", "\n  key"),
    ("BROKEN_LINE", '\n  "rest",', "\n  ", '\n  "key": 1'),
    ("TEXT_END", ");\n", ");\n", ");\nx"),
    ("NOT_AFTER_BLOCK", ', "b": 1', ', "b":', ', then "b"'),
    ("STILL_INSIDE", '; return"}', '; return"}', '; return", then'),
    ("KEY_END", " /* b */ : 1", " /* b */ :", " , 1"),
    ("WEAK_KEY_END", ' "value"', ' "', " and so on"),
    ("OPENS_MEMBER", '"key": 1', '"key": 1', '"key", 1'),
    ("OPENS_ITEM", '"b", 1', '"b",', '"b" he said'),
    ("ARGUMENTS", ', "b", 1)', ', "b", 1)', ', "b", 1;'),
    ("ANY_BRACKET", '"a[b"', '"a[b"', "x"),
    ("KEY", ' "a" : 1', ' "a" :', "'a': 1"),
    ("ITEM", '"a" , "b",', '"a" ,', '"a" "b",'),
    ("MEMBER", '12.5e3, "b": 1', "12.5e3,", "12,500"),
    (
        "RUN",
        "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,",
        "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,",
        "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,",
    ),
    ("SPACE", " \t\xa0x", " \t\xa0", "x"),
    ("ANY_COMMENT", "<!-- b --> c", "<!-- b -->", "<! b"),
    ("BARE_KEY", "name = 1", "name =", "name is"),
    ("WORDS_KEY", "first name: 'A'", "first name:", "first name is"),
    ("KEY_ALONE", "name 'A'", "name ", "name A"),
    ("VALUE_NEXT", " true,", " true", " truth,"),
    ("KEY_CUT", "nam", "nam", "name "),
    ("ANY_COLON", "=> 1", "=>", "- 1"),
    ("KEY_IN_ARRAY", "'a': 1", "'a':", "'a', 1"),
    ("CONTAINER", "{'a': 1", "{'a':", "{a: 1"),
    ("ANY_MARK", '- "b"', "- ", "- b"),
    ("COLOR", " #ff8800,", " #ff8800", " #one,"),
    ("SET", '{"a", "b"}', '{"a", "b"}', '{"a": 1}'),
    ("TUPLE", "('a', 1)", "('", "(see a)"),
    ("ESCAPED_QUOTES", '\\"a b\\",', '\\"a b\\"', '\\"a" b'),
    ("PREFIX", "b'a'", "b", "b', 'a'"),
    ("JOIN", ' + "b"', " + ", " + b"),
    ("JOIN_LINES", '\n  "rest",', "\n  ", '\n  "rest": 1'),
    ("JOIN_NEXT", ' "b"', " ", " b"),
    ("STOP", '. "b": 1', ". ", '. "b", 1'),
    ("MEMBER_TOKEN", "None // c", "None", "Nonesuch // c"),
    ("ITEM_TOKEN", "1 'b'", "1", "1 b"),
    ("OPEN_TEXT", 'a, b",', 'a, b"', 'a\n"'),
    ("OPEN_ITEM", 'a b",', 'a b"', 'a, b",'),
    ("ATOM", "f(1, 2),", "f(1, 2)", "f(1, 2) and"),
    ("BARE_MEMBER", "one, or two\n", "one, or two", 'one "two"'),
    ("BARE_ITEM", "one two,", "one two", "one: two,"),
    ("LINES", "one\ntwo,\n]", "one\ntwo,\n]", "One.\ntwo\n]"),
    ("RADIX", "0x1F", "0x1F", "0x1G"),
    ("REMARK", " (3 more)", " (3 more)", " (3 more) b"),
    ("GROUPED", '1,299, "b"', "1,299", "1,299, 300"),
    ("ABANDONED", "no, it ends here:\n{", "no, it ends here:\n", "no, it ends here\n{"),
    ("BOUNDARY", "</think>", "</think>", "</p>"),
    ("BRACKET", '"a]b"', '"a]b"', "(x"),
    ("TRIPLE_QUOTES", '"""a', '"""', '""a'),
    ("NOT_TRIPLE", ' ], "b"', " ],", " ] b"),
    ("MIXED_KEY", "key': 1", "key'", "key', 1"),
    ("OPEN_KEY", "key: 1", "key", "key = 1"),
    ("CLOSED_LATER", "a, b]", "a, b]", "a, b"),
    ("APOSTROPHE", "n't", "n't", "n' "),
    ("LAST_LINE", "a\n  ]}\n```\n", "\n  ]}\n```\n", "a ]}"),
    ("PATH_IN_QUOTES", 'C:\\temp\\",', 'C:\\temp\\"', 'temp\\",'),
    ("MEASURE", "is 5'10\"", "'10\"", 'is tall"'),
    ("ELISION", "'tis so", "'tis", "'this'"),
    ("SURPLUS_QUOTES", ' ""', ' ""', ' a"'),
    ("SURPLUS_IN_KEY", '"": 1', '""', '"", 1'),
    ("AFTER_TEXT", " he said, 1", " he said", ", 1"),
    ("CONTROL", "a\nb", "\n", "a b"),
    ("ESCAPE", "a\\nb", "\\n", "a/b"),
    ("LONE_BACKSLASH", "a\\\\\\", "\\\\\\", "a\\\\"),
    ("PARTIAL_ESCAPE", "\\u00e", "\\u00e", "\\u00e9"),
    ("JSON_NUMBER", "-1.5e3", "-1.5e3", "+1"),
]
"""Name, example, its part that is matched, counter-example: nothing is matched at its beginning."""


def _matched(name: str, text: str) -> str:
    pattern: Pattern = getattr(tokens, name)
    if name in SEARCHED:
        match = pattern.search(text)
    elif name in WHOLE:
        match = pattern.fullmatch(text)
    else:
        match = pattern.match(text)
    return match[0] if match is not None else ""


@each_case(("name", "example", "matched", "counter_example"), TABLE)
def test_a_pattern_matches_its_example_and_not_its_counter_example(
    name: str, example: str, matched: str, counter_example: str
) -> None:
    assert matched
    assert _matched(name, example) == matched
    assert _matched(name, counter_example) == ""


def test_each_pattern_has_its_row() -> None:
    names = [name for name, value in vars(tokens).items() if isinstance(value, Pattern)]
    assert sorted(names) == sorted(row[0] for row in TABLE)
