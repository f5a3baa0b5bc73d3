"""Who is right where a scorer and its reference disagree, and why: by kind and format of the
output.
"""

from __future__ import annotations

from parity_calls import JUDGED_CALLS
from parity_cases import CHOICE, CHOICE_SET, GRADE_OTHER, SUITE, Case

LENIENT = (
    'ours: the answer is clear without "ANSWER: LETTER"; strict = "inspect" gives the '
    "reference's reading"
)
HEDGED = "ours: two numbers are no answer; the reference takes the last one"
TEXT = (
    'ours: the number is equal; the reference compares texts; strict = "lm_eval" gives its reading'
)
BODY = "ours: the function is whole and right; the reference cuts off all before the first body"
NAMED = (
    "ours: the grade is clear; the reference takes the first A, B or C that stands alone, else C"
)
JUDGED = {
    ("numeric_default", "{O} or {N}"): HEDGED,
    (
        "numeric_default",
        "Answer: {N} (and not {O})",
    ): "ours: the labelled number counts; the reference takes the last one",
    **{("choice_default", form): LENIENT for form in CHOICE if "ANSWER:" not in form},
    ("choice_default", "ANSWER: {W}"): LENIENT,
    ("choice_default", "The ANSWER: {L} is right."): LENIENT,
    ("choice_default", "**ANSWER: {L}**"): LENIENT,
    **{
        ("choice_set_default", form): LENIENT
        for form in CHOICE_SET
        if "ANSWER:" not in form or "because" in form
    },
    **{("calls", form): why for form, why in JUDGED_CALLS.items()},
    **{("simpleqa_other", form): NAMED for form in GRADE_OTHER},
    (
        "simpleqa_other",
        GRADE_OTHER[0],
    ): "both: two letters are an error here; the reference takes the first, the wrong one",
}
# Recorded answers of the suites, by their beginning.
RECORDED = {
    ("numeric_default", "It takes 15 or 16"): HEDGED,
    **{
        ("numeric_default", start): TEXT
        for start in ("25% of 80", "\\[ \\frac{900}", "She runs 1 600", "It is now −7")
    },
    ("math", "I am not sure; maybe"): HEDGED,
    (
        "calls",
        '[{"name": "timer_set"',
    ): "ours: providers refuse dots in names; the reference has `underscore_to_dot` for this",
    ("humaneval", "```\ndef digits_sum"): BODY,
    ("humaneval", "```python\nimport math"): BODY,
    ("humaneval", "```python\ndef number"): BODY,
}


def judge(case: Case) -> str:
    """The judgement of a disagreement."""
    if case.form == SUITE:
        if case.kind == "choice_default":
            return LENIENT
        found = [
            why
            for (kind, start), why in RECORDED.items()
            if kind == case.kind and case.output.startswith(start)
        ]
        return found[0] if found else "not judged"
    return JUDGED.get((case.kind, case.form), "not judged")
