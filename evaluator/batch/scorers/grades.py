"""Grades of a judge: a table of names to values, found in an answer by name or by letter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from evaluator.errors import UsageError
from evaluator.language.types import describe as type_of

UNSCORED = "unscored"
# A capital letter that stands alone, not the word in "A good answer".
_LETTER = re.compile(r"(?<![\w'’])([A-Z])(?![\w'’]|\s+(?!(?:is|was)\b)[a-z])")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class InvalidJudgement(Exception):
    """A judge's answer is not a valid judgement."""


def check_grades(kind: str, grades: Mapping[str, float | str]) -> None:
    """Raises: UsageError, unless there are 2 to 26 different grades with values in [0, 1] or
    "unscored".
    """
    if not 2 <= len({_plain(name) for name in grades} - {""}) == len(grades) <= len(_LETTERS):
        raise UsageError(
            f"{kind}: grades has {len(grades)} names, expected 2 to {len(_LETTERS)} different ones"
        )
    for name, value in grades.items():
        if value != UNSCORED and (isinstance(value, str) or not 0 <= value <= 1):
            raise UsageError(
                f"{kind}: the grade {name!r} is {value!r}, expected a number in [0, 1] or "
                f"{UNSCORED!r}"
            )


def find_grade(answer: Any, names: Sequence[str]) -> str:
    """The one grade that an answer names, in its last line or else anywhere: by its name, or by a
    capital letter.

    Raises: InvalidJudgement, if it names none or several.
    """
    if not isinstance(answer, str):
        raise InvalidJudgement(
            f"expected a grade ({', '.join(names)[:120]}), got {type_of(answer)}"
        )
    lines = [line for line in answer.splitlines() if line.strip()]
    for text in [*lines[-1:], answer]:
        found = _named(text, names)
        if len(found) == 1:
            return found[0]
        if found:
            raise InvalidJudgement(f"it names several grades: {', '.join(found)[:120]}")
    raise InvalidJudgement(
        f"it names none of the grades {', '.join(names)[:120]}: {answer.strip()[-80:]!r}"
    )


def _named(text: str, names: Sequence[str]) -> list[str]:
    rest = f" {_plain(text)} "
    found = list[str]()
    for name in sorted(names, key=len, reverse=True):
        if len(name.strip()) > 1 and f" {_plain(name)} " in rest:
            found.append(name)
            rest = rest.replace(f" {_plain(name)} ", " | ")
    if found:
        return found
    letter = re.fullmatch(
        r"[\W_]*(?:(?:grade|answer|verdict)\W+)?([A-Za-z])[\W_]*", text.strip(), re.IGNORECASE
    )
    by_letter = {name.strip().upper(): name for name in names if len(name.strip()) == 1}
    by_letter = by_letter or dict(zip(_LETTERS, names, strict=False))
    if letter is None:
        letters = _LETTER.findall(text)
    else:
        letters = [letter[1].upper()]
    return list(dict.fromkeys(by_letter[each] for each in letters if each in by_letter))


def _plain(text: str) -> str:
    """A name without case and punctuation: `NOT_ATTEMPTED` and `Not attempted.` are equal."""
    return " ".join(re.sub(r"[\W_]+", " ", text).casefold().split())
