"""What a labeller sees of a result, and how an answer is read.

The sheet has the inputs, the target and the answer of a sample, and the criteria of the scorer that
is checked: its rubric or its grades. It has neither the verdict nor the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, cast

from evaluator.batch.labels import LabelVerdict
from evaluator.batch.records import SampleResult
from evaluator.lazy_dataclass import dataclass

PASS_AT = 0.5
_WORDS = {
    "p": LabelVerdict.PASSED,
    "f": LabelVerdict.FAILED,
    "?": LabelVerdict.UNDECIDED,
    "passed": LabelVerdict.PASSED,
    "pass": LabelVerdict.PASSED,
    "failed": LabelVerdict.FAILED,
    "fail": LabelVerdict.FAILED,
    "undecided": LabelVerdict.UNDECIDED,
}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a labeller for a result, see `labels.Label`."""

    verdict: LabelVerdict
    value: float | None = None
    grade: str = ""


@dataclass(frozen=True, slots=True)
class LabelSheet:
    """The question of a scorer. A value of at least `pass_at` passes. `grades` are the names of
    grades with their values; None for a grade that does not decide.
    """

    criteria: str = ""
    grades: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    pass_at: float = PASS_AT

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> LabelSheet:
        """The sheet of a scorer by its description in the manifest, which may have graders
        inside.
        """
        grades: dict[str, float | None] = {}
        given = _find(described, "grades")
        if isinstance(given, Mapping):
            for name, value in cast("Mapping[str, Any]", given).items():
                grades[name] = float(value) if _is_number(value) else None
        pass_at = _find(described, "pass_at")
        rubric = _find(described, "rubric")
        criteria = ""
        if isinstance(rubric, Mapping):
            points = cast("Mapping[str, Any]", rubric)
            criteria = "\n".join(f"{name} ({most} points)" for name, most in points.items())
        elif rubric is not None:
            criteria = as_text(rubric)
        return cls(criteria, grades, pass_at=float(pass_at) if _is_number(pass_at) else PASS_AT)

    @property
    def choices(self) -> tuple[tuple[str, str], ...]:
        """The keys that answer, with their meanings."""
        grades = [(str(number), name) for number, name in enumerate(self.grades, 1)]
        return (("p", "passed"), ("f", "failed"), *grades, ("?", "cannot decide"))

    def sections(self, result: SampleResult) -> Iterator[tuple[str, str]]:
        """Titles and texts, in the order in which they are shown."""
        for name, value in result.inputs.items():
            yield name, as_text(value)
        if result.target is not None:
            yield "target", as_text(result.target)
        if self.criteria:
            yield "criteria", self.criteria
        yield "answer", result.content

    def read(self, word: str) -> Answer:
        """The answer for a key, a verdict, a grade or a value. Raises: ValueError, with the
        reason.
        """
        verdict = _WORDS.get(word.lower())
        if verdict is not None:
            return Answer(verdict)
        names = list(self.grades)
        if word in names:
            return self._grade(word)
        if names:
            if word.isdecimal() and 1 <= int(word) <= len(names):
                return self._grade(names[int(word) - 1])
            raise ValueError(f"{word!r:.40} is none of the keys")
        try:
            value = float(word)
        except ValueError:
            raise ValueError(f"{word!r:.40} is neither a key nor a number from 0 to 1") from None
        if not 0 <= value <= 1:
            raise ValueError(f"{word!r:.40} is not a number from 0 to 1")
        return self._value(value, grade="")

    def _grade(self, name: str) -> Answer:
        value = self.grades[name]
        if value is None:
            return Answer(LabelVerdict.UNDECIDED, grade=name)
        return self._value(value, grade=name)

    def _value(self, value: float, grade: str) -> Answer:
        if value >= self.pass_at:
            return Answer(LabelVerdict.PASSED, value, grade=grade)
        return Answer(LabelVerdict.FAILED, value, grade=grade)


def as_text(value: Any) -> str:
    """A string as it is, any other JSON value as indented JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, indent=2)


def _find(described: Any, name: str) -> Any:
    """The first value under `name` in a description, or in one inside of it."""
    if isinstance(described, Mapping):
        mapping = cast("Mapping[str, Any]", described)
        if mapping.get(name) is not None:
            return mapping[name]
        inner: Sequence[Any] = list(mapping.values())
    elif isinstance(described, list):
        inner = cast("list[Any]", described)
    else:
        return None
    for each in inner:
        value = _find(each, name)
        if value is not None:
            return value
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
