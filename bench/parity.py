"""Agreement of the scorers with reference implementations, on outputs written for this benchmark.

    python bench/parity.py --python /tmp/parity/bin/python    (an environment with the packages of parity.txt)

For each kind every row is combined with every format of an answer, hostile ones included; both sides score the same
outputs. Each disagreement is printed with a judgement: who is right, and why. Without the reference's packages a kind
is skipped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from evaluator.batch.records import Sample
from evaluator.batch.scorers import ScorerInput, make_scorer, run_scorer
from evaluator.errors.results import Status, TaskResult

REFERENCE = Path(__file__).with_name("parity_reference.py")
GOAL = 0.98

OPTIONS = ["Paris", "London", "Rome", "Berlin"]
# Format of an output, with {L} the letter, {W} its words, {O} another letter and {X} the other's words.
CHOICE = (
    "ANSWER: {L}", "Answer: {L}", "answer: {L}.", "Some thoughts.\n\nANSWER: {L}", "ANSWER: **{L}**", "ANSWER: ({L})",
    "ANSWER: {L}\n", "ANSWER: {O}\nNo, wait.\nANSWER: {L}", "ANSWER : {L}", "ANSWER: ${L}$", "ANSWER:{L}",
    "ANSWER: {O}", "I do not know.", "", "ANSWER: Z", "ANSWER: {L}, {O}", "ANSWER: {L} {O}",
    "The ANSWER: {L} is right.", "{O} is tempting.\nANSWER: {L}", "ANSWER: {W}", "**ANSWER: {L}**", "{L}", "({L})",
    "{L}) {W}", "The answer is {L}.",
    "It must be {L}.", "{L} is correct.", "\\boxed{{{L}}}", "<answer>{L}</answer>", "{W}", "{L} or {O}", "{L}) {X}",
)  # fmt: skip
EMPTY = "an empty target"
NUMBERS = [("72", "70"), ("1234", "1230"), ("-5", "5"), ("0.5", "0.25"), ("18", "9"), ("1000000", "999999")]
NUMERIC = (
    "{N}", "The answer is {N}.", "So we get {N}", "#### {N}", "{O} + 1 is more, so {N}", "${N}", "{C}", "${C}.",
    "**{N}**", "\\boxed{{{N}}}", "The answer is {O}.", "", "I cannot say.", "{N} dollars", "She has {N}. That is it.",
    "{O}\n{N}", "{N} apples", "= {N}", "Total: {C} miles", "{N}.", "{O} or {N}", "Answer: {N} (and not {O})",
)  # fmt: skip
QA = [["Denver Broncos", "the Broncos"], ["1999"], ["New York City", "NYC"], ["the red car"], ["Smith & Sons"], [""]]
SQUAD = (
    "{A}", "{A}.", "The {A}", "{U}", "\"{A}\"", "It was {A}", "in {A} then", "a {A} an", "{A} {A}", "unknown", "",
    "the", "{H}", "{A}, indeed!", " {A} ", "({A})", "_{A}_",
)  # fmt: skip
SPANS = [
    [["5"]], [["12.5"], ["13"]], [["John Smith"], ["Smith"]], [["red", "blue"]], [["10 yard line"]], [["3 May 1998"]],
]  # fmt: skip
DROP = (
    "{A}", "{A}.", "The {A}", "{U}", "about {A}", "{A} yards", "6", "", "{H}", "not {A}", "{A} and {A}", "a", "{A}-{A}",
    "({A})", "$ {A}", "5.0", "red blue", "Smith, John",
)  # fmt: skip
EXPRESSIONS = [
    (r"\frac{3}{4}", ["0.75", "3/4", r"\dfrac{3}{4}", r"\frac34", r"\frac{6}{8}", r"\frac{4}{3}"]),
    (r"6\pi", [r"6 \pi", r"2\pi \cdot 3", r"\pi 6", "18.85", r"6\pi\text{ cm}", "6"]),
    (r"(-\infty, 2]", [r"(-\infty,2]", r"\left(-\infty, 2\right]", r"(-\infty, 2)", "2"]),
    (r"3\sqrt{2}", [r"\sqrt{18}", r"3 \sqrt 2", r"\frac{6}{\sqrt{2}}", r"2\sqrt{3}", "4.24"]),
    (r"x^2+2x+1", ["(x+1)^2", "1+2x+x^2", "x^2+1", "x^2 + 2x + 1"]),
    ("(1,2)", ["(1, 2)", r"\left(1,2\right)", "(2,1)", "[1,2]"]),
    (r"\{1,2,3\}", [r"\{3,2,1\}", r"\{1, 2, 3\}", r"\{1,2\}"]),
    (r"90^\circ", ["90", r"90^{\circ}", "45"]),
    (r"10\%", [r"10\%", "10", "20"]),
    ("1000", ["1,000", "1000", "10^3", "100"]),
]  # fmt: skip
MATH = ("\\boxed{{{A}}}", "The answer is ${A}$.", "So ${A}$", "It is not ${W}$ but \\boxed{{{A}}}")

FUNCTIONS: list[Any] = [
    {"name": "weather.get", "description": "The weather", "parameters": {"type": "dict", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "string"},
    }, "required": ["city"]}},
    {"name": "area", "description": "An area", "parameters": {"type": "dict", "properties": {
        "base": {"type": "float"}, "height": {"type": "float"}, "exact": {"type": "boolean"},
    }, "required": ["base", "height"]}},
    {"name": "mean", "description": "A mean", "parameters": {"type": "dict", "properties": {
        "numbers": {"type": "array", "items": {"type": "float"}},
        "names": {"type": "array", "items": {"type": "string"}},
        "range": {"type": "dict"}, "rows": {"type": "array", "items": {"type": "dict"}},
    }, "required": ["numbers"]}},
    {"name": "grid", "description": "A grid", "parameters": {"type": "dict", "properties": {
        "cells": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "size": {"type": "tuple", "items": {"type": "integer"}}, "style": {"type": "dict"}, "of": {"type": "any"},
        "flags": {"type": "array", "items": {"type": "boolean"}}, "scale": {"type": "float"},
    }, "required": ["cells"]}},
]  # fmt: skip
WEATHER = {"weather.get": {"city": ["New York", "NYC"], "days": ["", 3], "units": ["", "metric"]}}
AREA = {"area": {"base": [10], "height": [5.0], "exact": ["", True]}}
MEAN = {"mean": {
    "numbers": [[1.0, 2.0, 3.0], [1, 2, 3]], "names": ["", ["A b", "c"]], "range": ["", {"from": [1], "to": ["", 9]}],
    "rows": ["", [{"x": [1]}, {"x": [2, 3]}]],
}}  # fmt: skip
GRID = {"grid": {
    "cells": [[[1, 2], [3, 4]]], "size": ["", [2, 2]], "style": ["", {"line": ["dot-ted", "solid"], "w": ["", 1.5]}],
    "of": ["", "data", "rows"], "flags": ["", [True, False]], "scale": ["", 1.0],
}}  # fmt: skip
FLOATS = {"mean": {"numbers": [[1.0, 2.0]], "names": ["", ["x"], ["y", "z"]]}}
# The expected calls, and the answers: lists of a name and its arguments.
CALLS: list[tuple[list[Any], list[list[tuple[str, Any]]]]] = [
    ([WEATHER], [
        [("weather.get", {"city": city, **more})]
        for city in ("New York", "new york", "NewYork!", "N.Y.C", "nyc", "Boston", 7, None, ["NYC"], "")
        for more in ({}, {"days": 3}, {"days": 3.0}, {"days": "3"}, {"days": True}, {"units": "Metric"}, {"wind": 1})
    ] + [[], [("weather.get", {})], [("weather", {"city": "NYC"})], [("area", {"city": "NYC"})],
         [("weather.get", {"city": "NYC"})] * 2, [("weather.get", {"days": 3})]]),
    ([AREA], [
        [("area", {"base": base, "height": height, **more})]
        for base in (10, 10.0, "10", True, 11) for height in (5, 5.0, 5.5, None)
        for more in ({}, {"exact": True}, {"exact": 1}, {"exact": False}, {"exact": "true"})
    ]),
    ([MEAN], [
        [("mean", {"numbers": numbers, **more})]
        for numbers in ([1, 2, 3], [1.0, 2, 3], [3, 2, 1], [1, 2], "1,2,3", [], [1, 2, "3"], [[1, 2, 3]])
        for more in (
            {}, {"names": ["a B", "C"]}, {"names": ["c", "a b"]}, {"names": "a b"}, {"range": {"from": 1}},
            {"range": {"from": 1, "to": 9}}, {"range": {"from": 2}}, {"range": {"to": 9}}, {"range": {"at": 1}},
            {"rows": [{"x": 1}, {"x": 3}]}, {"rows": [{"x": 1}]}, {"rows": [{"x": 2}, {"x": 1}]}, {"rows": {"x": 1}},
        )
    ]),
    ([GRID], [
        [("grid", {"cells": cells, **more})]
        for cells in ([[1, 2], [3, 4]], [[1, 2], [3, 4.0]], [[1, 2]], [1, 2, 3, 4], [[3, 4], [1, 2]])
        for more in (
            {}, {"size": [2, 2]}, {"size": [2, 2.0]}, {"size": "2,2"}, {"size": [2]}, {"of": "Data"}, {"of": 5},
            {"of": "dat a"}, {"style": {"line": "dotted"}}, {"style": {"line": "SOLID", "w": 1.5}}, {"style": {}},
            {"style": {"w": 1.5}}, {"style": {"line": "solid", "w": "1.5"}}, {"style": "solid"},
            {"flags": [True, False]}, {"flags": [1, 0]}, {"flags": [False, True]}, {"scale": 1}, {"scale": True},
            {"scale": "1.0"}, {"style": {"line": "solid", "w": None}}, {"flags": []}, {"of": None}, {"of": ""},
        )
    ]),
    ([FLOATS], [
        [("mean", {"numbers": numbers, **more})]
        for numbers in ([1.0, 2.0], [1, 2], [1, 2.0], [1.0, True], [1.0], "1.0, 2.0", [1.0, 2.5])
        for more in (
            {}, {"names": ["x"]}, {"names": ["X "]}, {"names": ["y", "z"]}, {"names": ["x", "z"]}, {"names": "x"},
        )
    ]),
    ([WEATHER, AREA], [
        [("area", {"base": 10, "height": 5}), ("weather.get", {"city": "NYC"})],
        [("weather.get", {"city": "NYC"}), ("area", {"base": 10, "height": 5})],
        [("weather.get", {"city": "NYC"}), ("area", {"base": 10, "height": 6})],
        [("weather.get", {"city": "NYC"}), ("weather.get", {"city": "NYC"})],
        [("weather.get", {"city": "NYC"})],
        [("weather.get", {"city": "NYC"}), ("area", {"base": 10, "height": 5}), ("area", {"base": 10, "height": 5})],
    ]),
    ([{"area": {"base": [1, 2], "height": [1]}}, {"area": {"base": [1], "height": [1]}}], [
        [("area", {"base": first, "height": 1}), ("area", {"base": second, "height": 1})]
        for first in (1, 2, 3) for second in (1, 2, 3)
    ]),
    ([], [[], [("area", {"base": 10, "height": 5})]]),
]  # fmt: skip
GREEDY = "an expected call that takes the only call of a later one"
OPTIONAL_ITEMS = "items of another type in an optional array"
NO_ITEMS = "an empty array for an optional parameter"

LENIENT = 'ours: the answer is clear without "ANSWER: LETTER"; strict = "inspect" gives the reference\'s reading'
JUDGED = {
    ("calls", GREEDY): "ours: each call matches an expected one; the reference never moves a match",
    ("calls", OPTIONAL_ITEMS): "ours: the declared type of items holds; the reference checks it for no optional array",
    ("calls", NO_ITEMS): "ours: the parameter may be left out, not be empty; the reference reads the mark as a value",
    ("numeric", "{O} or {N}"): "ours: two numbers are no answer; the reference takes the last one",
    ("numeric", "Answer: {N} (and not {O})"): "ours: the labelled number counts; the reference takes the last one",
    ("squad_f1", EMPTY): "ours: SQuAD 2.0's script gives 1 for two empty texts; the reference's copy is that of 1.1",
    **{("choice_default", form): LENIENT for form in CHOICE if "ANSWER:" not in form},
    ("choice_default", "ANSWER: {W}"): LENIENT,
    ("choice_default", "The ANSWER: {L} is right."): LENIENT,
    ("choice_default", "**ANSWER: {L}**"): LENIENT,
}


class Case(NamedTuple):
    """An output to score. `form` is the format that it was made of."""

    kind: str
    form: str
    output: str
    target: Any
    options: list[Any] | None = None


def cases() -> Iterator[Case]:
    for number, letter in enumerate("ABCD"):
        other = "ABCD"[(number + 1) % 4]
        names = {"L": letter, "O": other, "W": OPTIONS[number], "X": OPTIONS[(number + 1) % 4]}
        for kind in ("choice", "choice_default"):
            yield from (Case(kind, form, form.format(**names), letter, OPTIONS) for form in CHOICE)
    for number, other in NUMBERS:
        names = {"N": number, "O": other, "C": f"{float(number):,.10g}" if "." in number else f"{int(number):,}"}
        yield from (Case("numeric", form, form.format(**names), number) for form in NUMERIC)
    for target in QA:
        names = {"A": target[0], "U": target[-1].upper(), "H": target[0][: len(target[0]) // 2]}
        for kind in ("squad_em", "squad_f1"):
            form_of = EMPTY if target == [""] else None
            yield from (Case(kind, form_of or form, form.format(**names), target) for form in SQUAD)
    for spans in SPANS:
        names = {"A": " ".join(spans[0]), "U": spans[-1][0].upper(), "H": spans[0][0][: len(spans[0][0]) // 2]}
        yield from (Case("drop", form, form.format(**names), spans) for form in DROP)
    for expression, answers in EXPRESSIONS:
        for answer in [expression, *answers]:
            names = {"A": answer, "W": "17"}
            yield from (Case("math", form, form.format(**names), expression) for form in MATH)

    for expected, answers in CALLS:
        for calls in answers:
            output = json.dumps([{"name": name, "arguments": arguments} for name, arguments in calls])
            yield Case("calls", form_of_calls(calls), output, expected, FUNCTIONS)


def form_of_calls(calls: list[tuple[str, Any]]) -> str:
    arguments = [each[1] for each in calls]
    if [each.get("base") for each in arguments] == [1, 2]:
        return GREEDY
    if any(each.get("flags") == [] for each in arguments):
        return NO_ITEMS
    is_mixed = any({type(item) for item in each.get("size", ())} == {int, float} for each in arguments)
    has_numbers = any(type(flag) is int for each in arguments for flag in each.get("flags", ()))
    return OPTIONAL_ITEMS if is_mixed or has_numbers else ""


SCORERS: dict[str, Any] = {
    "calls": "calls",
    "choice": "choice:strict=inspect",
    "choice_default": "choice",
    "numeric": "numeric",
    "squad_em": "exact:normalise=squad",
    "squad_f1": "f1:normalise=squad",
    "drop": "drop",
    "math": "math",
}


async def ours(found: list[Case], spec: Any) -> list[float | None]:
    scorer = make_scorer(spec)

    async def score(case: Case) -> float | None:
        field = "functions" if case.kind == "calls" else "choices"
        sample = Sample("1", {} if case.options is None else {field: case.options}, case.target)
        scored = ScorerInput(sample, TaskResult(Status.COMPLETE, case.output), lambda: None, no_judge)
        return (await run_scorer(scorer, scored)).value

    return list(await asyncio.gather(*map(score, found)))


async def no_judge(*_: Any, **__: Any) -> Any:
    raise AssertionError("these scorers ask no model")


def theirs(python: str, by_kind: dict[str, list[Case]]) -> dict[str, Any]:
    request = json.dumps({kind: [case._asdict() for case in found] for kind, found in by_kind.items()})
    ended = subprocess.run([python, str(REFERENCE)], input=request, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"{REFERENCE.name} failed:\n{ended.stderr[-2000:]}")
    return json.loads(ended.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python with the packages of parity.txt")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    by_kind: dict[str, list[Case]] = {}
    for case in cases():
        by_kind.setdefault(case.kind, []).append(case)
    references = theirs(options.python, by_kind)
    report: dict[str, Any] = {}
    for kind, found in by_kind.items():
        if isinstance(references[kind], str):
            report[kind] = {"skipped": references[kind]}
            continue
        own = asyncio.run(ours(found, SCORERS[kind]))
        pairs = zip(found, own, references[kind], strict=True)
        differ = [(case, a, b) for case, a, b in pairs if a is None or abs(a - b) > 0.005]
        report[kind] = {
            "agree": len(found) - len(differ), "of": len(found), "goal": GOAL,
            "disagreements": [
                {"output": case.output, "target": case.target, "ours": a, "theirs": b,
                 "judgement": JUDGED.get((kind, case.form), "not judged")}
                for case, a, b in differ
            ],
        }  # fmt: skip
    print(json.dumps(report, indent=2, ensure_ascii=False) if options.json else as_text(report))


def as_text(report: dict[str, Any]) -> str:
    lines: list[str] = []
    for kind, found in report.items():
        if "skipped" in found:
            lines.append(f"{kind}: skipped, the reference cannot be imported: {found['skipped']}")
            continue
        lines.append(f"{kind}: {found['agree']} of {found['of']} agree ({found['agree'] / found['of']:.1%})")
        lines += [
            f"    {each['output']!r} for {each['target']!r}: ours {each['ours']}, reference {each['theirs']}; "
            f"{each['judgement']}"
            for each in found["disagreements"]
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
