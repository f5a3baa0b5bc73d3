"""Numbers, choices and JSON, at their edges."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.batch.scorers.choice_scorer import choose
from evaluator.batch.scorers.json_scorers import ComparisonRules, canonical, json_difference
from evaluator.batch.scorers.numeric_scorer import find_numbers
from tests.batch.scorers.scorer_inputs import score
from tests.tables import each_case


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("about 1,234.5 km", ["1234.5"]),
        ("12 742 km and 1\u202f000", ["12742", "1000"]),
        ("1'000 or 2_000", ["1000", "2000"]),
        ("6.02 × 10^23, 6.02e23, 6.02·10²³, 6.02 \\times 10^{23}", ["6.02E+23"] * 4),
        ("1.6 x 10⁻¹⁹ C and 10^-3", ["1.6E-19", "0.001"]),
        (
            "3/4, 1 3/4, ½, 1½, \\frac{3}{8}, 5 / 8",
            ["0.75", "1.75", "0.5", "1.5", "0.375", "0.625"],
        ),
        ("50%, 50 %, 12.5 percent, 7\\%", ["0.5", "0.5", "0.125", "0.07"]),
        ("$5 million, 2 billion", ["5E+6", "2E+9"]),
        ("−40 °C, -5, +3, -$5, x=-2, 5-7", ["-40", "-5", "3", "-5", "-2", "5", "7"]),
        ("5 m^2, 20 m², CO2, H2O, v2, x_1, B12", ["5", "20"]),
        ("1.2.3, 10:30, 1/2/2020, 192.168.0.1", []),
        ("\\boxed{42}, **7**, (8), 9.", ["42", "7", "8", "9"]),
        ("1,2,3", ["1", "2", "3"]),
        ("1/0", []),
        ("٣ and １２", ["3", "12"]),
        ("1e999999999, 6 × 10^9999999, 6·10⁹⁹⁹⁹⁹⁹⁹, 10^-9999999, 2e" + "9" * 5_000, []),
        ("1e0000005, 1e5kg", ["1E+5", "1E+5"]),
        ("1.234,5 and 1.234,567 and 1.234.567,8", []),
        ("1.5,2.5 and 1,234,567,8901", ["1.5", "2.5", "1234567", "8901"]),
        ("5 ± 2, 5 kg ±2 kg, 5 \\pm 2, 5 +/- 2", ["5"] * 4),
        ("±2 or ± 3", ["2", "3"]),
        ("no number, NaN, infinity, two", []),
        ("", []),
    ],
)
def test_numbers_are_found_as_they_are_written(text: str, found: list[str]) -> None:
    assert [found.value for found in find_numbers(text)] == [Decimal(number) for number in found]


@pytest.mark.parametrize(
    ("text", "found"),
    [("1.234,5", ["1234.5"]), ("1,5", ["1.5"]), ("1,234.5 1,234,567 1,234,567.8", [])],
)
def test_with_a_decimal_comma_the_other_notation_is_not_a_number(
    text: str, found: list[str]
) -> None:
    assert [found.value for found in find_numbers(text, ",")] == [
        Decimal(number) for number in found
    ]


NUMERIC = [
    *(
        ("numeric:strict=lm_eval", text, target, passed)
        for text, target, passed in (
            ("70 or 71", "71", True),
            ("Answer: 70 (and not 71)", "71", True),
            ("It is $1,234.", "1,234", True),
            ("#### 72", 72, True),
            ("72.0", "72", False),
            ("so \\boxed{72}$.", "72", False),
            ("72", "27", False),
            ("", "72", False),
        )
    ),
    ("numeric", "So the answer is 42.", 42, True),
    ("numeric", "3, then 4", 4, True),
    ("numeric:take=first", "3, then 4", 3, True),
    *(
        ("numeric", hedge, 70, False)
        for hedge in (
            "70 or 71",
            "3 or maybe 70",
            "The answer is 70 or 71.",
            "between 70 and 75",
            "70-75",
            "70–75 km",
            "70 km to 75 km",
            "\\boxed{70 or 71}",
            "Answer: 69, or 70",
        )
    ),
    *(
        ("numeric", text, 70, True)
        for text in (
            "Answer: 70, not 71",
            "It rises from 20 to 70",
            "70 or 70.0",
            "20 of 70",
            "20 - 50 = -30; so 70",
            "1 or 2 trials give 70",
            "Answer: x = 70 (7 tens)",
            "5 and 70",
        )
    ),
    *(
        ("numeric", text, "between 20 and 25", True)
        for text in ("20-25", "22", "between 21 and 24", "20")
    ),
    *(("numeric", text, "20-25", False) for text in ("26", "20-26", "19 or 20")),
    ("numeric", "$18", "$18.00", True),
    ("numeric", "18 apples", "18 apples", True),
    ("numeric", "5 m/s", "5 m/s", True),
    ("numeric", "0.75", "\\frac{3}{4}", True),
    ("numeric", "5", "5\\text{ cm}", True),
    ("numeric", "9007199254740993", 9007199254740992, False),
    ("numeric", "0.30000000000000004", 0.3, False),
    ("numeric:abs_tol=0.001", "0.30000000000000004", 0.3, True),
    ("numeric:rel_tol=0.01", "101", 100, True),
    ("numeric:rel_tol=0.01", "101.1", 100, False),
    ("numeric:abs_tol=1", "101", 100, True),
    ("numeric", "1/3", "1/3", True),
    ("numeric", "50%", 0.5, True),
    ("numeric", "50%", 50, False),
    ("numeric:percent=number", "50%", 50, True),
    ("numeric:percent=number", "50%", "50 %", True),
    ('numeric:decimal=","', "1.234,5 km", 1234.5, True),
    ("numeric", "193 km", "193 miles", True),
    ("numeric", "5", [4, 5], True),
    ("numeric", "none", 0, False),
    ("numeric", "1e999999", 5, False),
    ("numeric", "1e999999999", 1, False),
    ("numeric", "1.234,5", 5, False),
    ("numeric", "5 ± 2", 5, True),
    ("numeric", "\\boxed{7} because 3", 7, True),
    ("numeric", "\\boxed{3}, no: \\boxed{x = \\frac{3}{4}}. It has 2 parts. Answer: 9", 0.75, True),
    ("numeric", "\\boxed{x}: 8", 8, True),
    ("numeric", "**Answer:** 42, as 6 times 7 shows", 42, True),
    ("numeric", "Answer: (42) since 6 times 7", 42, True),
    ("numeric", "Answer: f(2) = 8 (not 9)", 8, True),
    ("numeric", "Answer: 3 + 4 = 7 (in base 10)", 7, True),
    ("numeric", "The answer is 5. No, the answer is $6 because 2 + 4 = 6 and 1 more is 7", 6, True),
    ("numeric", "Answer:\n\n1,234 km, about 767 miles", 1234, True),
    ("numeric:take=first", "1 or 2. Answer: 2", 2, True),
    ("numeric", "The answer is below.\n12", 12, True),
    ('numeric:decimal=","', "1.234,5", "1234.5", True),
    ('numeric:decimal=","', "1.234", 1.234, False),
    ("numeric", "9" * 100_000, 5, False),
]


@each_case(("spec", "text", "target", "passed"), NUMERIC)
def test_numbers_pass_or_fail(spec: str, text: str, target: object, passed: bool) -> None:
    given = score(spec, text, target)
    assert given.error is None
    assert (given.value, given.passed) == (float(passed), passed)


@pytest.mark.parametrize(
    "target",
    [
        True,
        float("nan"),
        float("inf"),
        "no number",
        "1 and 2",
        {"a": 1},
        [True],
        "6\\pi",
        "(-\\infty, 2]",
        "2x",
        "x^2",
        "\\sqrt{2}",
        "25-20",
        "x = 3",
    ],
    ids=repr,
)
def test_a_target_that_is_not_a_number_is_an_error(target: object) -> None:
    given = score("numeric", "1", target)
    assert given.passed is None and given.error is not None


@pytest.mark.parametrize(
    ("parsed", "passed"),
    [(1, True), (1.0, True), (True, False), ([1], False), ({"n": 1}, False)],
    ids=repr,
)
def test_a_parsed_number_is_used(parsed: object, passed: bool) -> None:
    assert score("numeric", "1", 1, parsed=parsed).passed is passed


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_is_found_as_it_is_printed(number: float) -> None:
    assert score("numeric", f"It is {number!r}.", number).passed is True


@given(st.text(alphabet="0123456789.,-+/^%e ×½'²", max_size=40))
def test_any_text_of_number_characters_is_read_without_a_crash(text: str) -> None:
    assert all(found.value.is_finite() for found in find_numbers(text))


@pytest.mark.parametrize(
    "piece",
    [
        "1,234,",
        "1 ",
        "1/",
        "9",
        "10^",
        "1.",
        "-",
        "\\frac{1}{",
        "1e",
        "½ ",
        "234,",
        "234 ",
        "234.",
        "±1",
    ],
)
def test_long_texts_are_read_to_their_end(piece: str) -> None:
    # Were the time quadratic, this would take longer than a test may.
    for decimal in (".", ","):
        assert isinstance(list(find_numbers(piece * 50_000 + "234^2", decimal)), list)


OPTIONS = {"A": "Paris", "B": "London", "C": "Rome", "D": "Guinea", "E": "Guinea-Bissau"}


@each_case(
    ("text", "chosen"),
    [
        *(
            (text, "B")
            for text in (
                "B",
                "b",
                "(B)",
                "B.",
                "B)",
                "**B**",
                "`B`",
                "Answer: B",
                "**Answer:** B",
                "The answer is (b).",
                "The answer is:\n\n**(B)**",
                "the best choice is B",
                "I choose B",
                "Option B",
                "Answer is option B",
                "\\boxed{B}",
                "$\\boxed{\\text{B}}$",
                "London",
                "london.",
                "It is London.",
                "B. London",
                "B - London",
                "B) London\n\nA is wrong",
                "(B) is right because (A) is wrong",
                "Answer: B because Paris is not",
                "The correct answer is **B) London**, not Paris.",
                "Answer: A\nNo. Final answer: B",
                "A capital of note is London",
                "I think (B)",
                "A good question. B",
                "I think A is wrong, so B",
                "A is tempting. Therefore, **(B)**.",
                "Is it A? B.",
                "A) is near.\n\nThus B",
                "Hard to say!\n\n**B**\n",
                "It must be B",
                "So it should be B.",
                "B is correct",
                "Option B is the correct answer.",
                "<answer>B</answer>",
                "The answer must be B.",
                "The answer is a city. B",
                "A is correct if it rains. So B",
                "Answer: B, London",
                "B, Paris is too far",
                "A is not correct. B is correct.",
                "Answer: B) London, in the UK",
            )
        ),
        ("Guinea", "D"),
        ("Guinea-Bissau", "E"),
        ("It is Guinea-Bissau, not somewhere else", "E"),
        *(
            (text, None)
            for text in (
                "",
                "Z",
                "Answer: Z",
                "A or B",
                "Answer: A or B",
                "Answer: (A) and (B)",
                "B. Paris",
                "Paris or London",
                "I think so",
                "Answer: Brown",
                "(A) or (B)",
                "A capital question",
                "x" * 100_000,
                "𝐁",
                "B, Paris",
                "Answer: B, Paris",
                "ANSWER: B A",
                "Answer: B (C)",
                "Answer: B (Paris)",
                "It must be a place",
                "Answer: I think so",
                "A\nB",
                "Paris. B",
                "so A or B",
                "A good question. B or C",
                "Vitamin B",
                "Written by J. B.",
                "so b",
            )
        ),
    ],
)
def test_the_chosen_option_is_found(text: str, chosen: str | None) -> None:
    letter, why = choose(text, OPTIONS)
    assert letter == chosen
    assert bool(why) is (chosen is None)


@pytest.mark.parametrize(
    ("target", "inputs", "spec", "passed"),
    [
        ("B", {}, "choice", True),
        ("London", {"options": ["Paris", "London"]}, "choice", True),
        (1, {"choices": ["Paris", "London"]}, "choice", True),
        (0, {"choices": ["Paris", "London"]}, "choice", False),
        ("(B)", {"choices": {"A": "Paris", "B": "London"}}, "choice", True),
        ("B", {}, 'choice:choices=["Paris","London"]', True),
    ],
)
def test_options_come_from_the_argument_or_the_row(
    target: object, inputs: dict[str, Any], spec: str, passed: bool
) -> None:
    given = score(spec, "Answer: B", target, inputs=inputs)
    assert given.error is None and given.passed is passed and given.answer == "B"


@pytest.mark.parametrize(
    ("options", "text", "target", "passed"),
    [
        (["x", "x", "y"], "B", "B", True),
        (["x", "x", "y"], "A", "x", True),
        (["x", "x", "y"], "B. x", "B", True),
        (["x", "x", "y"], "x", "A", False),
        (["us", "US"], "B) US", "B", True),
        (["us", "US"], "US", "US", True),
        (["us", "US"], "us", "US", False),
        (["Paris, France", "London"], "B) Paris, France", "B", False),
        (["Paris, France", "London"], "A) Paris, France", "A", True),
        (["B", "A"], "A", "A", True),
    ],
)
def test_the_letter_decides_and_options_may_be_equal(
    options: list[str], text: str, target: str, passed: bool
) -> None:
    given = score("choice", text, target, inputs={"choices": options})
    assert given.error is None and given.passed is passed


@pytest.mark.parametrize(
    ("text", "target", "exact", "partial"),
    [
        *(
            (text, ["A", "C"], 1.0, 1.0)
            for text in (
                "A, C",
                "AC",
                "A and C",
                "Answer: A, C",
                "Answer: AC.",
                "C\nA",
                "(A), (C)",
                "Paris and Rome",
                "Answer: A, C because of that",
                "\\boxed{A,C}",
                "So: A & C",
            )
        ),
        ("A", ["A", "C"], 0.0, 0.5),
        ("A, B, C", ["A", "C"], 0.0, 2 / 3),
        ("B", ["A", "C"], 0.0, 0.0),
        ("ANSWER: A, C, Z", ["A", "C"], 0.0, 0.0),
        ("A", ["A"], 1.0, 1.0),
        ("Answer: A", [0], 1.0, 1.0),
        ("no idea", ["A"], 0.0, 0.0),
    ],
)
def test_a_list_is_the_set_of_right_options(
    text: str, target: list[Any], exact: float, partial: float
) -> None:
    inputs = {"choices": ["Paris", "London", "Rome"]}
    assert score("choice", text, target, inputs=inputs).value == exact
    given = score("choice:credit=partial", text, target, inputs=inputs)
    assert given.value == pytest.approx(partial) and given.passed is (exact == 1.0)


def test_a_text_of_letters_is_a_set_unless_it_is_an_option() -> None:
    inputs = {"choices": ["Paris", "London", "Rome"]}
    assert score("choice", "ANSWER: C, A", "A, C, ", inputs=inputs).passed
    assert not score("choice", "ANSWER: A", "A, C", inputs=inputs).passed
    assert score("choice", "ANSWER: A", "A, ", inputs=inputs).passed
    assert "not one of the options" in str(
        score("choice", "ANSWER: A", "A, Z", inputs=inputs).error
    )
    assert score("choice", "ANSWER: B", "A, C", inputs={"choices": ["A, B", "A, C"]}).passed
    assert score("choice", "ANSWER: A, C", "AC", inputs=inputs).passed
    assert score("choice", "ANSWER: B", "AC", inputs={"choices": ["DC", "AC", "none"]}).passed
    for target in ("AD", "CA", "AA"):
        assert "not one of the options" in str(
            score("choice", "ANSWER: A", target, inputs=inputs).error
        )


@pytest.mark.parametrize(
    ("target", "text", "options", "passed"),
    [
        ([1, 0, 1], "A, C", 3, True),
        ([1, 0, 1], "A, B", 3, False),
        ([True, False, True], "A, C", 3, True),
        ([0, 1], "B", 2, True),
        ([0, 1], "A, B", 2, False),
        ([0, 1], "A, B", 3, True),
        ([0, 0, 0], "A", 3, False),
    ],
)
def test_a_list_with_a_flag_for_each_option_is_the_set_of_right_options(
    target: list[Any], text: str, options: int, passed: bool
) -> None:
    given = score(
        "choice",
        f"ANSWER: {text}",
        target,
        inputs={"choices": ["Paris", "London", "Rome"][:options]},
    )
    assert given.passed is passed and given.error is None


@pytest.mark.parametrize(
    ("text", "passed"),
    [("ANSWER: B", True), ("B", False), ("so\nAnswer: **B**", True), ("The answer is B", False)],
)
def test_the_strict_reading_is_that_of_inspect(text: str, passed: bool) -> None:
    assert (
        score("choice:strict=inspect", text, "B", inputs={"choices": ["x", "y"]}).passed is passed
    )


@pytest.mark.parametrize("target", ["Madrid", 7, -1, True, "BB", {"a": 1}], ids=repr)
def test_a_target_that_is_not_an_option_is_an_error(target: object) -> None:
    assert score("choice", "B", target, inputs={"choices": ["Paris", "London"]}).error


def test_an_ambiguous_choice_fails_and_names_the_options() -> None:
    given = score("choice", "A or B? Answer: A or B", "B")
    assert given.passed is False and given.explanation == "ambiguous: A, B"


EQUAL = [
    ({"a": 1, "b": [1, 2]}, {"b": [1.0, 2], "a": 1.0}, {}, None),
    (1, True, {}, "$"),
    (0, False, {}, "$"),
    ("1", 1, {}, "$"),
    (None, None, {}, None),
    (float("nan"), float("nan"), {}, None),
    (
        {"a": {"b": [1, {"c": 2}]}},
        {"a": {"b": [1, {"c": 3}]}},
        {},
        "$.a.b[1].c: expected 2, found 3",
    ),
    ({"a": 1}, {}, {}, "$.a: missing"),
    ({"a": 1}, {"a": 1, "z": 2}, {}, "$.z: not expected"),
    ({"a": 1}, {"a": 1, "z": 2}, {"subset": True}, None),
    ({"a": {"x": 1}}, {"a": {"x": 1, "y": 2}, "b": 3}, {"subset": True}, None),
    ([1, 2], [1, 2, 3], {}, "$: expected 2 items, found 3"),
    ([1, 2], [1, 2, 3], {"subset": True}, "$: expected 2 items, found 3"),
    ([2, 1], [1, 2], {}, "$[0]: expected 2, found 1"),
    ([2, 1], [1, 2.0], {"ignore_order": True}, None),
    ([1, 1, 2], [1, 2, 2], {"ignore_order": True}, "$[1]: 1 is not in the answer"),
    ([{"a": [1, 2]}], [{"a": [2, 1]}], {"ignore_order": True}, None),
    ([3, 1], [1, 2, 3], {"ignore_order": True, "subset": True}, None),
    ([{"a": 1}, {}], [{"a": 1}, {"a": 1, "b": 2}], {"ignore_order": True, "subset": True}, None),
    ([1.0, 1.1], [1.1, 1.2], {"ignore_order": True, "abs_tol": 0.1}, None),
    (
        [1.0, 1.0],
        [1.0, 1.2],
        {"ignore_order": True, "abs_tol": 0.1},
        "$[1]: 1.0 is not in the answer",
    ),
    (1.0, 1.05, {"rel_tol": 0.05}, None),
    (0.1, 0.10000000000000001, {}, None),
    ({}, [], {}, "$"),
    ("a\nb", "a\nc", {}, '$, line 2: expected "b", found "c"'),
]


@pytest.mark.parametrize(("expected", "found", "rules", "said"), EQUAL)
def test_json_is_compared_and_the_first_difference_named(
    expected: Any, found: Any, rules: dict[str, Any], said: str | None
) -> None:
    difference_ = json_difference(expected, found, ComparisonRules(**rules))
    assert (difference_ is None) is (said is None)
    assert said is None or (difference_ or "").startswith(said)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=15,
)
RULES = st.builds(
    ComparisonRules,
    st.booleans(),
    st.sampled_from([0.0, 0.5]),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
)


@given(JSON, RULES)
def test_every_value_equals_itself_under_all_rules(value: Any, rules: ComparisonRules) -> None:
    assert json_difference(value, value, rules) is None


@given(JSON, JSON)
def test_equality_is_symmetric_and_agrees_with_the_canonical_text(a: Any, b: Any) -> None:
    rules = ComparisonRules(ignore_order=True)
    assert (
        (json_difference(a, b, rules) is None)
        == (json_difference(b, a, rules) is None)
        == (canonical(a) == canonical(b))
    )


@given(st.lists(JSON, max_size=5), st.randoms())
def test_the_order_of_arrays_can_be_ignored(items: list[Any], random: Any) -> None:
    shuffled = [*items]
    random.shuffle(shuffled)
    assert json_difference(items, shuffled, ComparisonRules(ignore_order=True)) is None
    assert json_difference(items, shuffled, ComparisonRules(ignore_order=True, abs_tol=0.1)) is None


@given(
    st.dictionaries(st.text(max_size=3), JSON, max_size=4),
    st.dictionaries(st.text(max_size=3), JSON, max_size=4),
)
def test_an_object_is_a_subset_of_itself_with_more(
    small: dict[str, Any], more: dict[str, Any]
) -> None:
    assert json_difference(small, {**more, **small}, ComparisonRules(subset=True)) is None


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_deeply_nested_json_is_an_error() -> None:
    assert score("json_equal", "", nested(100), parsed=nested(100)).passed is True
    given = score("json_equal", "", nested(100_000), parsed=nested(100_000))
    assert given.error is not None and given.value is None


def test_long_arrays_without_order() -> None:
    rows = [{"id": n} for n in range(5_000)]
    assert score("json_equal:ignore_order=true", "", rows, parsed=rows[::-1]).passed is True
    error = score("json_equal:ignore_order=true,abs_tol=0.1", "", rows, parsed=rows[::-1]).error
    assert error and "limit is 300" in error


@pytest.mark.parametrize(
    ("content", "parsed", "passed"),
    [
        ('Here: ```json\n{"a": 1}\n```', None, True),
        ('{"a": 2}', None, False),
        ("no JSON here", None, False),
        ("", None, False),
        ("ignored", {"a": 1.0}, True),
    ],
)
def test_the_value_is_the_parsed_one_or_read_from_the_text(
    content: str, parsed: Any, passed: bool
) -> None:
    given = score("json_equal", content, {"a": 1}, parsed=parsed)
    assert given.error is None and given.passed is passed
    assert passed or given.explanation


@pytest.mark.parametrize(
    ("spec", "target", "found", "passed"),
    [
        ("json_equal", ' {"a": [1.0]}\n', {"a": [1]}, True),
        ("json_equal", "[1, 2]", [1, 2], True),
        ("json_equal:ignore_order=true", "[2, 1]", [1, 2], True),
        ("json_equal", '{"a": 1}', {"a": 2}, False),
        ("json_subset", '{"a": 1}', {"a": 1, "b": 2}, True),
        # Texts stay texts: where the answer is one, and within a value.
        ("json_equal", '{"a": 1}', '{"a": 1}', True),
        ("json_equal", '{"a": 1}', '{"a":1}', False),
        ("json_equal", {"a": "[1]"}, {"a": [1]}, False),
        ("json_equal", '{"a": "[1]"}', {"a": "[1]"}, True),
        # What is neither object nor array may be meant as it stands.
        ("json_equal", "5", 5, False),
        ("json_equal", "true", True, False),
        ("json_equal", '"x"', "x", False),
        ("json_equal", "{x}", {"x": 1}, False),
        ("json_equal", "[" * 100_000, [1], False),
    ],
    ids=lambda given: f"{given}"[:30],
)
def test_a_target_that_is_json_text_of_an_object_or_array_is_read(
    spec: str, target: Any, found: Any, passed: bool
) -> None:
    given = score(spec, "", target, parsed=found)
    assert given.error is None and given.passed is passed


@given(st.text(), st.text())
def test_two_texts_are_compared_as_texts(target: str, found: str) -> None:
    for text in (target, found):
        given = score("json_equal", "", target, parsed=text)
        assert given.error is None and given.passed is (text == target)


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 1}},
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("schema", "content", "said"),
    [
        (SCHEMA, '{"n": 1}', None),
        (SCHEMA, '{"n": 0}', "$.n"),
        (SCHEMA, "{}", "required property 'n' is missing"),
        ("string[]", '["a"]', None),
        ("string[]", '["a", 1]', "$[1]"),
        (SCHEMA, "sorry", "no JSON"),
    ],
)
def test_the_first_violation_of_a_schema_is_named(
    schema: Any, content: str, said: str | None
) -> None:
    given = score({"type": "json_schema", "schema": schema}, content)
    assert given.error is None and given.passed is (said is None)
    assert (said or "") in given.explanation


def test_a_slow_pattern_of_a_schema_is_an_error() -> None:
    given = score(
        "json_schema", f'{{"a": "{"a" * 60}b"}}', {"properties": {"a": {"pattern": "^(a|a)+$"}}}
    )
    assert given.passed is None and given.value is None
    assert given.error is not None and "$.a: the pattern '^(a|a)+$' took too long" in given.error


def test_a_schema_may_be_the_target_or_a_file(tmp_path: Any) -> None:
    assert score("json_schema", '{"n": 1}', SCHEMA).passed is True
    assert score("json_schema", "1", "string").error
    path = tmp_path / "s.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    assert score({"type": "json_schema", "schema": str(path)}, '{"n": 0}').passed is False
