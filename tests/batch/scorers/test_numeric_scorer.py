"""`numeric` finds the number of an answer, in any of the ways in which numbers are written."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
