"""The example rows match their README, and the computable ones are correct."""

from __future__ import annotations

import ast
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable
from datetime import date, timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

from tests.tables import each_case

FOLDER = Path(__file__).parents[3] / "examples" / "data"
COUNTS = {"easy": 150, "medium": 120, "hard": 80}
FILES = {
    name: (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines() for name in COUNTS
}
ROWS: list[dict[str, Any]] = [json.loads(line) for lines in FILES.values() for line in lines]

SYMBOLS = [
    "H",
    "He",
    "Li",
    "Be",
    "B",
    "C",
    "N",
    "O",
    "F",
    "Ne",
    "Na",
    "Mg",
    "Al",
    "Si",
    "P",
    "S",
    "Cl",
    "Ar",
    "K",
    "Ca",
    "Sc",
    "Ti",
    "V",
    "Cr",
    "Mn",
    "Fe",
    "Co",
    "Ni",
    "Cu",
    "Zn",
    "Ga",
    "Ge",
    "As",
    "Se",
    "Br",
    "Kr",
    "Rb",
    "Sr",
    "Y",
    "Zr",
    "Nb",
    "Mo",
    "Tc",
    "Ru",
    "Rh",
    "Pd",
    "Ag",
    "Cd",
    "In",
    "Sn",
    "Sb",
    "Te",
    "I",
    "Xe",
    "Cs",
    "Ba",
    "La",
    "Ce",
    "Pr",
    "Nd",
    "Pm",
    "Sm",
    "Eu",
    "Gd",
    "Tb",
    "Dy",
    "Ho",
    "Er",
    "Tm",
    "Yb",
    "Lu",
    "Hf",
    "Ta",
    "W",
    "Re",
    "Os",
    "Ir",
    "Pt",
    "Au",
    "Hg",
    "Tl",
    "Pb",
    "Bi",
    "Po",
    "At",
    "Rn",
    "Fr",
    "Ra",
    "Ac",
    "Th",
    "Pa",
    "U",
    "Np",
    "Pu",
    "Am",
    "Cm",
    "Bk",
    "Cf",
    "Es",
    "Fm",
    "Md",
    "No",
    "Lr",
    "Rf",
    "Db",
    "Sg",
    "Bh",
    "Hs",
    "Mt",
    "Ds",
    "Rg",
    "Cn",
    "Nh",
    "Fl",
    "Mc",
    "Lv",
    "Ts",
    "Og",
]
# The elements whose symbol does not begin as their name does.
FROM_LATIN = {
    "sodium": "Na",
    "potassium": "K",
    "iron": "Fe",
    "copper": "Cu",
    "silver": "Ag",
    "tin": "Sn",
    "antimony": "Sb",
    "tungsten": "W",
    "gold": "Au",
    "mercury": "Hg",
    "lead": "Pb",
}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
ROMAN = {
    1000: "M",
    900: "CM",
    500: "D",
    400: "CD",
    100: "C",
    90: "XC",
    50: "L",
    40: "XL",
    10: "X",
    9: "IX",
    5: "V",
    4: "IV",
    1: "I",
}
CHOICE = re.compile(r"(?P<question>.+)\n(?P<choices>(?:[A-D]\) .+\n){4})Answer with the letter\.")


def of(subject: str, level: str = "") -> list[dict[str, Any]]:
    return [row for row in ROWS if row["subject"] == subject and row["id"].startswith(level)]


def test_the_files_have_the_row_counts_of_the_readme() -> None:
    assert {name: len(lines) for name, lines in FILES.items()} == COUNTS
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name, count in COUNTS.items():
        assert f"| `{name}.jsonl` | {count} |" in readme


@each_case("row", ROWS)
def test_a_row_has_the_shape_of_its_kind(row: dict[str, Any]) -> None:
    assert list(row)[:5] == ["id", "question", "target", "kind", "subject"]
    assert set(row) <= {"id", "question", "target", "kind", "subject", "choices", "working"}
    level, subject, number = row["id"].split("-")
    assert level in COUNTS and subject == row["subject"] and number.isdecimal()
    assert row["question"].rstrip().endswith(("?", "."))
    expected = {"number": (int, float), "text": str, "choice": str, "json": (dict, list)}[
        row["kind"]
    ]
    assert isinstance(row["target"], expected) and row["target"] not in ("", [], {})
    assert ("choices" in row) is (row["kind"] == "choice")
    if row["kind"] == "choice":
        found = CHOICE.fullmatch(row["question"])
        assert found is not None
        assert [line[3:] for line in found["choices"].splitlines()] == row["choices"]
        assert len(set(row["choices"])) == 4 and row["target"] in "ABCD"


def test_ids_questions_and_workings_are_unique() -> None:
    for field in ("id", "question", "working"):
        counts = Counter(row[field] for row in ROWS if field in row)
        assert [value for value, count in counts.items() if count > 1] == []


def test_the_correct_letters_are_evenly_distributed() -> None:
    letters = Counter(row["target"] for row in of("choice"))
    assert set(letters) == set("ABCD") and max(letters.values()) < len(of("choice")) / 2


def elements() -> list[tuple[str, str | None, int | None]]:
    """Every element that is asked for: name, symbol and number where the row says it."""
    found: list[tuple[str, str | None, int | None]] = []
    for row in of("elements"):
        if row["kind"] == "json":
            found += [
                (name, value["symbol"], value["number"]) for name, value in row["target"].items()
            ]
            assert all(name in row["question"] for name in row["target"])
        elif named := re.fullmatch(r"What is the chemical symbol of (\w+)\?", row["question"]):
            found.append((named[1], row["target"], None))
        else:
            number = re.search(r"the atomic number (\d+)\?", row["question"])
            assert number is not None
            found.append((row["target"], None, int(number[1])))
    return found


def test_all_118_elements_occur_once_with_symbol_and_number() -> None:
    found = elements()
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 118
    assert len({name for name, _, _ in found}) == len(found) == 118
    numbers: set[int] = set()
    for name, symbol, number in found:
        symbol = SYMBOLS[number - 1] if symbol is None and number is not None else symbol
        assert symbol is not None
        place = SYMBOLS.index(symbol) + 1
        assert number in (None, place), name
        numbers.add(place)
        expected = FROM_LATIN.get(name)
        is_likely = symbol[0] == name[0].upper() and symbol[1:] in ("", *name[1:])
        assert symbol == expected or (expected is None and is_likely), name
    assert numbers == set(range(1, 119))


def test_each_country_and_capital_is_asked_for_once() -> None:
    capitals: list[str] = []
    countries: list[str] = []
    for row in of("capitals"):
        if row["kind"] == "json":
            capitals += row["target"]
            countries += row["target"].values()
            assert all(re.fullmatch("[A-Z]{2}", code) for code in row["target"].values())
            assert re.search(r"capitals: (.+?)\. Answer", row["question"])[1].split(", ") == list(
                row["target"]
            )  # type: ignore[index]
        elif named := re.fullmatch(r"What is the capital of (.+)\?", row["question"]):
            countries.append(named[1])
            capitals.append(row["target"])
        else:
            capitals.append(
                re.fullmatch(r"Of which country is (.+) the capital\?", row["question"])[1]
            )  # type: ignore[index]
            countries.append(row["target"])
    assert len(capitals) == len(set(capitals)) == len(set(countries)) == 193 - 14


WORKED = [row for row in ROWS if "working" in row]


def test_computable_rows_have_a_working() -> None:
    subjects = {"units", "arithmetic", "numbers"}
    assert [row["id"] for row in ROWS if row["subject"] in subjects and "working" not in row] == []
    assert all("working" in row for row in of("dates", "medium") + of("dates", "hard"))


@each_case("row", WORKED)
def test_a_working_computes_the_target(row: dict[str, Any]) -> None:
    answer = plain(value_of(ast.parse(row["working"], mode="eval").body))
    if row["kind"] == "choice":
        assert row["choices"]["ABCD".index(row["target"])] == str(answer)
    else:
        assert answer == row["target"] and type(answer) is type(row["target"])


@each_case("row", [row for row in WORKED if row["subject"] in ("arithmetic", "units")])
def test_the_numbers_of_a_question_are_those_of_its_working(row: dict[str, Any]) -> None:
    asked = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", row["question"])}
    used = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", row["working"])}
    assert asked - used == set()


@each_case("row", of("dates", "medium") + of("dates", "hard"))
def test_the_dates_of_a_question_are_those_of_its_working(row: dict[str, Any]) -> None:
    months = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ]
    written = [
        f"{year}, {months.index(month) + 1}, {day}"
        for day, month, year in re.findall(
            rf"(\d+) ({'|'.join(months)}) (\d{{4}})", row["question"]
        )
    ]
    assert written and all(when in row["working"] for when in written)


OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
}


def value_of(node: ast.expr) -> Any:
    """The value of a working, computed exactly."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=number):
            return Fraction(str(number))
        case ast.BinOp(left, operation, right):
            return OPERATORS[type(operation)](value_of(left), value_of(right))
        case ast.List(items) | ast.Tuple(items):
            return [value_of(item) for item in items]
        case ast.Dict(keys, values):
            return {
                value_of(key): value_of(value)
                for key, value in zip(keys, values, strict=True)
                if key is not None
            }
        case ast.Call(ast.Name(name), arguments):
            return FUNCTIONS[name](*(plain(value_of(argument)) for argument in arguments))
        case _:
            raise AssertionError(f"not known in a working: {ast.dump(node)}")


def plain(value: Any) -> Any:
    match value:
        case Fraction(denominator=1):
            return int(value)
        case Fraction():
            return float(value)
        case list():
            return [plain(item) for item in value]
        case dict():
            return {key: plain(item) for key, item in value.items()}
        case _:
            return value


def divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def primes(first: int, last: int) -> list[int]:
    return [number for number in range(first, last + 1) if len(divisors(number)) == 2]


def factors(number: int) -> list[int]:
    smallest = next((divisor for divisor in range(2, number + 1) if number % divisor == 0), None)
    return [] if smallest is None else [smallest, *factors(number // smallest)]


def roman(number: int) -> str:
    step = next((step for step in ROMAN if step <= number), 0)
    return ROMAN[step] + roman(number - step) if step else ""


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "weekday": lambda year, month, day, later=0: DAYS[
        (date(year, month, day) + timedelta(later)).weekday()
    ],
    "days": lambda first, last: (date(*last) - date(*first)).days,
    "after": lambda year, month, day, later: (
        date(year, month, day) + timedelta(later)
    ).isoformat(),
    "gcd": math.gcd,
    "lcm": math.lcm,
    "len": len,
    "divisors": divisors,
    "primes": primes,
    "factors": factors,
    "roman": roman,
    "base": lambda number, base: f"{number:{ {2: 'b', 16: 'x'}[base] }}",
}
