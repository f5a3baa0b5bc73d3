"""The outputs of `parity.py`: formats of an answer, combined with rows; and the recorded answers of
the suites.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from parity_calls import FUNCTIONS, calls

from evaluator.batch import read_definition
from evaluator.batch.records import Sample
from evaluator.batch.rows import RowMapping, Selection, open_rows

SUITES = Path(__file__).parents[1] / "examples" / "suites"
FENCE = "```"

OPTIONS = ["Paris", "London", "Rome", "Berlin"]
# Format of an output, with {L} the letter, {W} its words, {O} another letter and {X} the other's
# words.
CHOICE = (
    "ANSWER: {L}",
    "Answer: {L}",
    "answer: {L}.",
    "Some thoughts.\n\nANSWER: {L}",
    "ANSWER: **{L}**",
    "ANSWER: ({L})",
    "ANSWER: {L}\n",
    "ANSWER: {O}\nNo, wait.\nANSWER: {L}",
    "ANSWER : {L}",
    "ANSWER: ${L}$",
    "ANSWER:{L}",
    "ANSWER: {O}",
    "I do not know.",
    "",
    "ANSWER: Z",
    "ANSWER: {L}, {O}",
    "ANSWER: {L} {O}",
    "The ANSWER: {L} is right.",
    "{O} is tempting.\nANSWER: {L}",
    "ANSWER: {W}",
    "**ANSWER: {L}**",
    "{L}",
    "({L})",
    "{L}) {W}",
    "The answer is {L}.",
    "It must be {L}.",
    "{L} is correct.",
    "\\boxed{{{L}}}",
    "<answer>{L}</answer>",
    "{W}",
    "{L} or {O}",
    "{L}) {X}",
)
SETS = (["A", "C"], ["B"], ["A", "B", "D"], ["C", "D"])
# Formats of a set, with {S} the letters and commas, {J} joined, {R} in reverse, {N} with "and", {O}
# a wrong one.
CHOICE_SET = (
    "ANSWER: {S}",
    "ANSWER: {J}",
    "Answer: {R}",
    "ANSWER: {N}",
    "ANSWER: {S}.",
    "ANSWER: **{S}**",
    "ANSWER: {S}, {O}",
    "Some thoughts.\n\nANSWER: {S}",
    "ANSWER: {O}\nNo, wait.\nANSWER: {S}",
    "ANSWER: {O}",
    "",
    "ANSWER: none",
    "I cannot decide.",
    "ANSWER : {S}",
    "ANSWER:{S}",
    "ANSWER: ${S}$",
    "ANSWER: {S}\n",
    "ANSWER: {J}{O}",
    "answer: {S}",
    "{O} is tempting.\nANSWER: {S}",
    "ANSWER: {S}, Z",
    "ANSWER: {S} because of the rest",
    "{S}",
    "{J}",
    "The answers are {N}.",
    "\\boxed{{{S}}}",
    "ANSWER: {S},",
    "ANSWER: {R} ",
)
EMPTY = "an empty target"
NUMBERS = [
    ("72", "70"),
    ("1234", "1230"),
    ("-5", "5"),
    ("0.5", "0.25"),
    ("18", "9"),
    ("1000000", "999999"),
]
NUMERIC = (
    "{N}",
    "The answer is {N}.",
    "So we get {N}",
    "#### {N}",
    "{O} + 1 is more, so {N}",
    "${N}",
    "{C}",
    "${C}.",
    "**{N}**",
    "\\boxed{{{N}}}",
    "The answer is {O}.",
    "",
    "I cannot say.",
    "{N} dollars",
    "She has {N}. That is it.",
    "{O}\n{N}",
    "{N} apples",
    "= {N}",
    "Total: {C} miles",
    "{N}.",
    "{O} or {N}",
    "Answer: {N} (and not {O})",
)
QA = [
    ["Denver Broncos", "the Broncos"],
    ["1999"],
    ["New York City", "NYC"],
    ["the red car"],
    ["Smith & Sons"],
    [],
]
SQUAD = (
    "{A}",
    "{A}.",
    "The {A}",
    "{U}",
    '"{A}"',
    "It was {A}",
    "in {A} then",
    "a {A} an",
    "{A} {A}",
    "unknown",
    "",
    "the",
    "{H}",
    "{A}, indeed!",
    " {A} ",
    "({A})",
    "_{A}_",
    "unanswerable",
    "Unanswerable.",
    "It is unanswerable",
)
SPANS = [
    [["5"]],
    [["12.5"], ["13"]],
    [["John Smith"], ["Smith"]],
    [["red", "blue"]],
    [["10 yard line"]],
    [["3 May 1998"]],
]
DROP = (
    "{A}",
    "{A}.",
    "The {A}",
    "{U}",
    "about {A}",
    "{A} yards",
    "6",
    "",
    "{H}",
    "not {A}",
    "{A} and {A}",
    "a",
    "{A}-{A}",
    "({A})",
    "$ {A}",
    "5.0",
    "red blue",
    "Smith, John",
)
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
]
MATH = ("\\boxed{{{A}}}", "The answer is ${A}$.", "So ${A}$", "It is not ${W}$ but \\boxed{{{A}}}")
# What a judge of SimpleQA writes, with {L} the letter and {N} the name of a grade, {M} another
# letter.
GRADES = ("CORRECT", "INCORRECT", "NOT_ATTEMPTED")
GRADE = (
    "{L}",
    "{L}.",
    "({L})",
    "**{L}**",
    "`{L}`",
    " {L}\n",
    "{L}: {N}",
    "{L}\n",
    '"{L}"',
    "[{L}]",
    "{L} ({N})",
    "{L})",
    "Grade: {L}",
    "The grade is {L}.",
    "The answer agrees with the target.\n\n{L}",
    "<grade>{L}</grade>",
    "{L} - {N}",
    "I think the answer is {L}",
    "\\boxed{{{L}}}",
    "Grade: **{L}**",
    "It names the target.\nGrade: {L}",
    "{L}, {N}",
    "Verdict: {L}",
    "{L}\n\n{N}",
    "> {L}",
    "= {L}",
    "Final grade: {L}",
    "{L} is the grade.",
    "Output: {L}",
    "'{L}'",
    "{L}!",
    "I would say {L}.",
    "The predicted answer is graded {L}.",
    "{L}\nThe answer agrees with the target.",
)
GRADE_OTHER = (
    "It is not {M}, it is {L}.",
    "A fact of the target is there.\n{L}",
    "{N}",
    "{N}.",
    "**{N}**",
    "Grade: {N}",
    "The grade is {N}.",
    "{n}",
    "It agrees in part.\n\n{N}",
    '"{N}"',
)
# What a judge of MT-bench writes, with {R} the rating.
RATING = (
    "Rating: [[{R}]]",
    "[[{R}]]",
    "A good answer.\n\nRating: [[{R}]]",
    "Rating: [{R}]",
    "[{R}]",
    "Rating: {R}",
    "{R}/10",
    "Rating: [[{R}]]\nRating: [[1]]",
    "It has [1] a flaw. Rating: [[{R}]]",
    "**Rating: [[{R}]]**",
    "Rating: [[{R}]].",
    "Rating:[[{R}]]",
    "rating [[ {R} ]]",
    "",
    "The answer deserves [[{R}]] of [[10]].",
    "Rating: ({R})",
    "[[rating]] would be [[{R}]]",
)
RATINGS = ("1", "3", "5", "7", "8.5", "10")


class Case(NamedTuple):
    """An output to score. `form` is the format that it was made of; `row` is what else a scorer
    reads.
    """

    kind: str
    form: str
    output: str
    target: Any = None
    options: list[Any] | None = None
    row: dict[str, Any] | None = None


def cases() -> Iterator[Case]:
    yield from _choices()
    for number, other in NUMBERS:
        names = {
            "N": number,
            "O": other,
            "C": f"{float(number):,.10g}" if "." in number else f"{int(number):,}",
        }
        for kind in ("numeric", "numeric_default"):
            yield from (Case(kind, form, form.format(**names), number) for form in NUMERIC)
    for target in QA:
        words = target or [EMPTY]
        names = {"A": words[0], "U": words[-1].upper(), "H": words[0][: len(words[0]) // 2]}
        for kind in ("squad_em", "squad_f1"):
            yield from (
                Case(kind, form, form.format(**names), target or ["unanswerable"]) for form in SQUAD
            )
    for spans in SPANS:
        names = {
            "A": " ".join(spans[0]),
            "U": spans[-1][0].upper(),
            "H": spans[0][0][: len(spans[0][0]) // 2],
        }
        yield from (Case("drop", form, form.format(**names), spans) for form in DROP)
    for expression, answers in EXPRESSIONS:
        for answer in [expression, *answers]:
            names = {"A": answer, "W": "17"}
            yield from (Case("math", form, form.format(**names), expression) for form in MATH)
    yield from _judged()
    yield from _code()
    yield from _instructions()
    yield from (Case("calls", form, output, target, FUNCTIONS) for form, output, target in calls())
    yield from _suites()


def _choices() -> Iterator[Case]:
    for number, letter in enumerate("ABCD"):
        other = "ABCD"[(number + 1) % 4]
        names = {"L": letter, "O": other, "W": OPTIONS[number], "X": OPTIONS[(number + 1) % 4]}
        for kind in ("choice", "choice_default"):
            yield from (Case(kind, form, form.format(**names), letter, OPTIONS) for form in CHOICE)
    for letters in SETS:
        other = next(each for each in "ABCD" if each not in letters)
        names = {
            "S": ", ".join(letters),
            "J": "".join(letters),
            "R": ", ".join(reversed(letters)),
            "N": " and ".join(letters),
            "O": other,
        }
        for kind in ("choice_set", "choice_set_default"):
            yield from (
                Case(kind, form, form.format(**names), letters, OPTIONS) for form in CHOICE_SET
            )


def _judged() -> Iterator[Case]:
    for letter, name in zip("ABC", GRADES, strict=True):
        names = {
            "L": letter,
            "N": name,
            "n": name.replace("_", " ").capitalize(),
            "M": "B" if letter == "A" else "A",
        }
        yield from (Case("simpleqa", form, form.format(**names)) for form in GRADE)
        yield from (Case("simpleqa_other", form, form.format(**names)) for form in GRADE_OTHER)
    for rating in RATINGS:
        yield from (Case("mt_bench", form, form.format(R=rating)) for form in RATING)


def _code() -> Iterator[Case]:
    """The functions of the suite HumanEval, each in every form that a model gives."""
    for row in _rows("humaneval")[:10]:
        signature = row["prompt"].split("\n", 1)[0]
        body = row["canonical_solution"]
        whole = f"{signature}\n{body}"
        forms = {
            "body": body,
            "function": whole,
            "fence": f"{FENCE}python\n{whole}{FENCE}",
            "fence in prose": f"Here it is:\n\n{FENCE}python\n{whole}{FENCE}\n\nIt is short.",
            "fence without language": f"{FENCE}\n{whole}{FENCE}",
            "prompt repeated": f"{FENCE}python\n{row['prompt']}{body}{FENCE}",
            "wrong": f"{FENCE}python\n{signature}\n    return None\n{FENCE}",
            "invalid": f"{FENCE}python\n{signature}\n    return (\n{FENCE}",
            "raises": f"{FENCE}python\n{signature}\n    raise ValueError\n{FENCE}",
            "exits": f"{FENCE}python\n{signature}\n    import sys\n    sys.exit(0)\n{FENCE}",
            "empty": "",
            "prose": "I would solve this with a loop.",
            "two blocks": f"{FENCE}python\n{whole}{FENCE}\nUse "
            f"it:\n{FENCE}python\nprint(1)\n{FENCE}",
        }
        yield from (Case("humaneval", form, output, row=row) for form, output in forms.items())


def _instructions() -> Iterator[Case]:
    """The rows of the suite IFEval, each with its answer, changes of it, and the answer of another
    row.
    """
    rows = _rows("ifeval")
    for row, other in zip(rows, [*rows[1:], rows[0]], strict=True):
        output = row["output"]
        forms = {
            SUITE: output,
            "introduction": f"Sure, here it is:\n{output}",
            "remark": f"{output}\nI hope this helps!",
            "other row": other["output"],
            "bold": f"**{output}**",
            "empty": "",
            "upper case": output.upper(),
            "without commas": output.replace(",", ""),
        }
        for kind in ("ifeval", "ifeval_loose"):
            yield from (Case(kind, form, text, row=row) for form, text in forms.items())


KINDS_OF_SUITES = {
    "gsm8k": ("numeric", "numeric_default"),
    "mmlu": ("choice", "choice_default"),
    "arc": ("choice", "choice_default"),
    "truthfulqa": ("choice", "choice_default"),
    "drop": ("drop",),
    "squad2": ("squad_em", "squad_f1"),
    "math": ("math",),
}
SUITE = "recorded answer of a suite"


def _suites() -> Iterator[Case]:
    for suite, kinds in KINDS_OF_SUITES.items():
        for sample in asyncio.run(_samples(SUITES / suite / "evaluator.toml")):
            for kind in kinds:
                target: Any = sample.target
                if kind == "drop":
                    target = [each if isinstance(each, list) else [each] for each in target if each]
                yield Case(kind, SUITE, sample.answer or "", target, sample.inputs.get("choices"))
    for row in _rows("humaneval"):
        yield Case("humaneval", SUITE, row["output"], row=row)
    for row in _rows("bfcl"):
        if row["output"].startswith("["):
            yield Case("calls", SUITE, row["output"], row["ground_truth"], row["function"])
    for row in _rows("mt_bench"):
        yield from (Case("mt_bench", SUITE, judgement) for judgement in row["judgements"])


def _rows(suite: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (SUITES / suite / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    ]


async def _samples(path: Path) -> list[Sample]:
    definition = read_definition(path)
    options = definition.options
    mapping = RowMapping(
        options.inputs, options.id, options.target, None, "output", options.shuffle_choices
    )
    return [
        sample
        async for sample in open_rows(
            definition.rows, mapping, Selection(), declared=None, required=[]
        )
    ]
