"""Any text is read with bounded work, without an exception, and without inventing anything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evaluator import parse_output
from evaluator.output.reader import BlockReader
from evaluator.output.result import MESSAGES
from evaluator.output.strict import MAX_DEPTH, StrictScanner, Unreadable

# No text has a backspace or a form feed: before a letter, their escapes keep their backslash.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\b\f"))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=12
)
CONTAINERS = st.lists(VALUES, min_size=1) | st.dictionaries(TEXT, VALUES, min_size=1)
PROSE = st.sampled_from(["", "Here it is: ", "Sure!\n\n", "It's done.\n", "I think <b>this</b>:\n"])
FRAGMENTS = st.lists(
    st.sampled_from(
        [
            '{"a":',
            '"',
            "'",
            "[",
            "]",
            "{",
            "}",
            ",",
            ":",
            "\\",
            "\\u12",
            "```",
            "```json\n",
            "<think>",
            "</think>",
            "//",
            "/*",
            "#",
            "1",
            "-",
            "1,299",
            "NaN",
            "True",
            "tru",
            "…",
            "...",
            "“",
            "”",
            "\n",
            " ",
            "a",
            "\\boxed{",
            "Answer:",
            "yes",
            "$",
            "=",
            ";",
            "\ud800",
            "\x00",
            "４",
            '{"k": "v"}',
            "[1]",
            "(",
            "<a>",
            "%",
        ]
    ),
    max_size=40,
).map("".join)
SCHEMAS = st.sampled_from(
    [None, "object", "string[]", "number", "integer", "boolean", "string", "array", "number[]"]
)


REPRS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner, min_size=1).map(tuple)
        | st.dictionaries(TEXT, inner, min_size=1)
    ),
    max_leaves=12,
).filter(lambda value: isinstance(value, dict | list | tuple) and len(value) > 0)


@settings(deadline=None, max_examples=60)
@given(REPRS)
@example([{"it's": 'say "it\'s"', "n": None, "t": [True, 1.5, "a\nb\\c", ""]}])
@example((("a, (b",), ((1,),), {"c)": (2, [3])}))
@example([(), ("x",)])
def test_the_repr_of_a_value_is_read_as_that_value(value: Any) -> None:
    text = repr(value)
    if "\\x" in text or "\\u" in text or "\\U" in text:
        return  # escapes that JSON does not have
    wanted = json.loads(json.dumps(value))
    assert parse_output(text).value == wanted
    assert parse_output(f"```python\n{text}\n```").value == wanted
    if not isinstance(value, tuple):
        assert parse_output(f"The result:\n{text}\nIt's done.").value == wanted


def test_a_long_repr_needs_no_repairs_that_are_counted() -> None:
    rows = [{"id": n, "name": f"it's {n}", "said": f'"{n}"', "ok": None} for n in range(9_000)]
    text = repr(rows)
    assert len(text) > 450_000
    parsed = parse_output(text)
    assert parsed.value == rows
    assert parsed.warnings == (MESSAGES["single"], MESSAGES["literal"])
    mixed = json.dumps(rows)[:-1] + ", {'a': 1,}]"
    assert parse_output(mixed).value == [*rows, {"a": 1}]


def test_a_long_repr_with_tuples_needs_no_repairs_that_are_counted() -> None:
    rows = [(n, f"it's {n}", (f'"{n}"', None), ()) for n in range(9_000)]
    wanted = json.loads(json.dumps(rows))
    for written in (rows, tuple(rows)):
        text = repr(written)
        assert len(text) > 250_000
        parsed = parse_output(text)
        assert parsed.value == wanted
        assert set(parsed.warnings) == {MESSAGES[kind] for kind in ("single", "literal", "tuple")}
    assert parse_output(repr(["it's"] * 60_000)).value == ["it's"] * 60_000


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("['a', (1)]", ["a", 1], "parentheses"),
        ("['a', ((1, 2))]", ["a", [1, 2]], "parentheses"),
        ("['a', (1, 2])", ["a", [1, 2]], "mismatched"),
    ],
)
def test_parentheses_that_make_no_tuple_are_repaired(text: str, value: Any, kind: str) -> None:
    parsed = parse_output(text)
    assert parsed.value == value
    assert MESSAGES[kind] in parsed.warnings


@pytest.mark.parametrize("text", ["(1, 2) and (3, 4)", "(a, b)", "(1)", "((1, 2)"])
def test_parentheses_in_prose_are_not_a_tuple(text: str) -> None:
    assert parse_output(text).value is None


@given(VALUES, st.sampled_from([None, 2]))
def test_any_value_written_as_json_comes_back_unchanged(value: Any, indent: int | None) -> None:
    for ascii_only in (True, False):
        parsed = parse_output(json.dumps(value, indent=indent, ensure_ascii=ascii_only))
        assert (parsed.value, parsed.warnings, parsed.error) == (value, (), None)


@settings(deadline=None, max_examples=40)
@given(CONTAINERS, PROSE, PROSE)
def test_prose_and_fences_around_a_value_do_not_change_it(
    value: Any, before: str, after: str
) -> None:
    written = json.dumps(value)
    for text in (
        f"{before}\n```json\n{written}\n```\n{after}",
        f"{before}```\n{written}\n```",
        f"<think>{{}}</think>{written}",
    ):
        parsed = parse_output(text)
        assert parsed.value == value
        assert parsed.error is None
        assert parsed.warnings


QUOTED = st.text(alphabet='"”“＂,:}] a\\1\n/#', max_size=6)
QUOTED_VALUES = st.recursive(
    QUOTED, lambda inner: st.lists(inner) | st.dictionaries(QUOTED, inner), max_leaves=6
)


@settings(deadline=None, max_examples=100)
@given(
    CONTAINERS
    | st.lists(QUOTED_VALUES, min_size=1)
    | st.dictionaries(QUOTED, QUOTED_VALUES, min_size=1)
)
@example({'"＂': None})
@example(["\n＂}a"])
@example({":\n\n”,": 3})
def test_a_trailing_comma_changes_nothing_else(value: Any) -> None:
    written = json.dumps(value, ensure_ascii=False)
    parsed = parse_output(f"{written[:-1]},{written[-1]}")
    assert parsed.value == value
    assert len(parsed.warnings) == 1


def _holds(whole: Any, part: Any) -> bool:
    """Whether `part` is `whole` with ends left out: fewer items or members, or a shorter string."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            key in whole and _holds(whole[key], part[key]) for key in part
        )
    if isinstance(part, list):
        return isinstance(whole, list) and len(part) <= len(whole) and all(map(_holds, whole, part))
    if isinstance(part, str):
        return isinstance(whole, str) and whole.startswith(part)
    return type(whole) is type(part) and whole == part


@settings(deadline=None, max_examples=40)
@given(CONTAINERS)
@example({"[": None})
@example({"a": 1375, "b": [1.25, 'x\\"y\\u00e9', True, None, -0.5e-7], "c\\n": {"": ["😀"]}})
def test_a_text_cut_anywhere_gives_a_part_of_its_value_and_says_so(value: Any) -> None:
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)
        step = max(1, len(text) // 60)
        for end in range(1, len(text), step):
            parsed = parse_output(text[:end])
            assert parsed.error is None
            assert parsed.warnings
            assert parsed.value is None or _holds(value, parsed.value), (text[:end], parsed.value)


@settings(deadline=None, max_examples=120)
@given(FRAGMENTS | st.text(), SCHEMAS, st.sampled_from(["json", "text", "xml"]))
def test_no_text_raises_and_the_original_is_kept(text: str, schema: str | None, kind: Any) -> None:
    parsed = parse_output(text, type=kind, schema=schema)
    assert parsed.text == text
    assert parsed.error is None or parsed.value is None
    json.dumps(parsed.value, allow_nan=False)


# Work that grew with its square would not end within the time of a test.
LENGTH = 500_000
HOSTILE = [
    "[",
    "{",
    '"',
    "'",
    "\\",
    "```",
    "<think>",
    "</think>",
    "[1,",
    "[]",
    "{}",
    "[[],",
    '{"a":',
    '{"a":1 ',
    '["',
    "['",
    '["a" ',
    '{"a"}',
    "[}",
    '{"a":"',
    "/*",
    "[/*",
    "[,",
    "{a:",
    "\\boxed{",
    "Answer: ",
    "1,",
    "9",
    "[...,",
    "“",
    "<a>",
    '{"a":1]',
    "{'a':1}\n",
    "[1 ",
    "$1,299",
    "`",
    '\\frac{\\"',
    "[(1,),'",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_long_hostile_text_is_read_with_bounded_work(piece: str) -> None:
    prefix = '{"a":["b",' if len(piece) % 2 else ""
    text = prefix + piece * (LENGTH // len(piece))
    parsed = parse_output(text, schema="number" if prefix else None)
    assert parsed.text is text
    assert parsed.warnings or parsed.error or piece == "9"


def test_a_long_damaged_list_that_uses_up_the_repairs_is_an_error_and_not_an_exception() -> None:
    parsed = parse_output('["a",' + '{"a":1}\n' * (LENGTH // 8), schema="number")
    assert parsed.error is not None


def test_nesting_is_read_up_to_its_bound_and_never_overflows() -> None:
    for depth in (MAX_DEPTH - 1, MAX_DEPTH):
        parsed = parse_output("[" * depth + "]" * depth)
        assert parsed.warnings == ()
        assert json.dumps(parsed.value) == "[" * depth + "]" * depth
    for depth in (MAX_DEPTH + 1, 1000, 100_000):
        for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth):
            parsed = parse_output(text, schema="array")
            assert parsed.value is None
            assert parsed.error is not None
            assert str(MAX_DEPTH) in parsed.error.message


@pytest.mark.parametrize(
    "part",
    ["[\"a\",']'," + '"",' * 830, "[{'a':1},", '\n- "{"a":\\', '["a', '{"a":{"b":[' + '"a" ' * 99],
)
def test_the_work_is_bounded_by_the_length_of_the_text(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = part * (400_000 // len(part))
    scanners: list[StrictScanner] = []
    total = 0
    read = BlockReader.read

    def counted(reader: BlockReader) -> None:
        nonlocal total
        if reader.strict not in scanners:
            scanners.append(reader.strict)
        try:
            read(reader)
            total += reader.end - reader.start
        except Unreadable as error:
            total += min(max(error.at, error.resume), len(reader.text)) - reader.start
            raise

    monkeypatch.setattr(BlockReader, "read", counted)
    parse_output(text)
    assert total < 6 * len(text)
    assert all(scanner.steps > -100_000 for scanner in scanners)


@pytest.mark.parametrize(("prefix", "count"), [("[", 20_000), ('["a",', 20_001), ("  [", 20_000)])
def test_a_long_list_that_is_cut_off_is_kept(
    prefix: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json.JSONDecoder, "raw_decode", pytest.fail)  # would scan it once more
    parsed = parse_output(prefix + "[]," * 20_000)
    assert len(parsed.value) == count
    assert parsed.warnings == (MESSAGES["cut"],)


def test_an_answer_after_many_hostile_places_is_still_found() -> None:
    for noise in ("{a ", "[x] ", "[1] ", "{}", "(`", '{"a" '):
        text = noise * 50_000 + '\n\n{"answer": 42}'
        assert parse_output(text, schema="object").value == {"answer": 42}
