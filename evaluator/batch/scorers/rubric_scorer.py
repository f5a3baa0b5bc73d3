"""`rubric`: a judge gives points for each criterion of a rubric."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, cast

from evaluator.batch.records import Score
from evaluator.batch.scorers.builtin_scorer import (
    question_of,
    text_or_json,
)
from evaluator.batch.scorers.contract import ScorerInput, graded_score
from evaluator.batch.scorers.model_graded import (
    InvalidJudgement,
    ModelGradedScorer,
    fields_of,
    judgement,
    points,
    reason_of,
    shape_of,
)
from evaluator.errors import UsageError
from evaluator.errors.results import Outcome
from evaluator.fields import Share
from evaluator.language.scopes import describe as type_of
from evaluator.lazy_dataclass import frozen

_POINTS = re.compile(r"(\d+(?:\.\d+)?)\s*(?:points?|pts?)\b", re.IGNORECASE)
# The judge sees this after a criterion's name, and may repeat it.
_WITH_POINTS = re.compile(r"\(\d+(?:\.\d+)? points?\)\s*$")


@frozen(kw_only=True)
class RubricScorer(ModelGradedScorer):
    """A judge gives points for each criterion; the value is their share of `out_of`, the sum of the
    maximum points.

    `rubric` is a table of criteria to maximum points, or a text with `(4 points)` or similar for
    each; without one, the target is the rubric. `out_of` is needed where the text does not state
    the points. The inputs of the template are `rubric`, and `task` and `work` or those of `inputs`.
    The sum is computed here, not taken from the judge.

    Criteria of a table are matched by name, each judged once, in any order; case, spaces and
    punctuation do not matter. Those of a text are matched by position.
    """

    type: ClassVar[str] = "rubric"
    template: str = "grade_with_rubric"
    rubric: str | Mapping[str, float] | None = None
    out_of: float | None = None
    pass_at: Share = 0.5

    def check(self) -> None:
        if self.rubric is not None:
            _scale(self.rubric, self.out_of)

    def check_target(self, target: Any) -> None:
        if self.rubric is None:
            _scale(target, self.out_of)

    def needs_target(self) -> bool:
        return self.rubric is None or ModelGradedScorer.needs_target(self)

    def own_inputs(self, scored: ScorerInput) -> dict[str, Any]:
        return {"task": question_of(scored.sample.inputs), "work": self.text(scored)}

    def judge_inputs(self, scored: ScorerInput) -> dict[str, Any]:
        rubric = self._rubric_of(scored.sample.target)
        _scale(rubric, self.out_of)  # an invalid rubric is an error before the call
        if isinstance(rubric, Mapping):
            rows = cast("Mapping[str, float]", rubric).items()
            text = "\n".join(
                f"{name} ({most:g} {'point' if most == 1 else 'points'})" for name, most in rows
            )
        else:
            text = text_or_json(rubric)
        return {"rubric": text, **ModelGradedScorer.judge_inputs(self, scored)}

    def read_answer(self, answer: Outcome, target: Any) -> Score:
        rubric = self._rubric_of(target)
        most, limits = _scale(rubric, self.out_of)
        names = None
        if isinstance(rubric, Mapping):
            names = list(cast("Mapping[str, float]", rubric))
        return judgement(
            answer, partial(self._read, most=most, limits=limits, names=names), about=self.about()
        )

    def _rubric_of(self, target: Any) -> Any:
        return target if self.rubric is None else self.rubric

    def _read(
        self, parsed: Any, most: float, limits: list[float] | None, names: list[str] | None
    ) -> Score:
        criteria: Any = fields_of(parsed).get("criteria")
        if not isinstance(criteria, list) or not criteria:
            raise InvalidJudgement(f"expected the field criteria, got {shape_of(parsed)}")
        rows = [fields_of(row) for row in cast("list[Any]", criteria)]
        if names:
            rows = _by_name(rows, names)
        if limits is not None and len(rows) != len(limits):
            raise InvalidJudgement(f"it has {len(rows)} criteria, the rubric {len(limits)}")
        limits = limits or [most] * len(rows)
        given = [
            points(row.get("points"), limit, what="points")
            for row, limit in zip(rows, limits, strict=True)
        ]
        if sum(given) > most:
            raise InvalidJudgement(f"it gave {sum(given):g} points of {most:g}")
        names = names or [str(row.get("criterion", "")) for row in rows]
        return graded_score(
            sum(given) / most,
            self.pass_at,
            answer=f"{sum(given):g} of {most:g}",
            explanation=reason_of(fields_of(parsed)),
            metadata={
                "criteria": [
                    {"criterion": n, "points": p} for n, p in zip(names, given, strict=True)
                ]
            },
        )


def _by_name(rows: list[Mapping[str, Any]], names: list[str]) -> list[Mapping[str, Any]]:
    """The judge's rows in the order of the rubric. Raises: InvalidJudgement, unless each criterion
    occurs once.
    """
    exact = {name.strip(): name for name in names}
    folded: dict[str, list[str]] = {}
    for name in names:
        folded.setdefault(_folded(name), []).append(name)
    found: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        written = str(row.get("criterion", "")).strip()
        spellings = (written, _WITH_POINTS.sub("", written).strip())
        # Names such as "C" and "C#" are equal without punctuation: they have to be written exactly.
        near = [folded.get(_folded(each), []) for each in spellings]
        matches = [exact[each] for each in spellings if each in exact] or [
            each[0] for each in near if len(each) == 1
        ]
        if not matches:
            raise InvalidJudgement(
                f"the rubric has no criterion {written!r:.60}; it has {', '.join(names)[:200]}"
            )
        name = matches[0]
        if name in found:
            raise InvalidJudgement(f"it judges {name!r:.60} twice")
        found[name] = row
    if missing := [name for name in names if name not in found]:
        raise InvalidJudgement(f"it does not judge {', '.join(missing)[:200]}")
    return [found[name] for name in names]


def _folded(name: str) -> str:
    """A criterion's name without case, spaces and punctuation."""
    text = unicodedata.normalize("NFKC", name).casefold()
    return "".join(c for c in text if unicodedata.category(c)[0] not in "PZC")


def _scale(rubric: Any, out_of: float | None) -> tuple[float, list[float] | None]:
    """The maximum sum, and the maximum points of each criterion where the rubric states them.

    Raises: UsageError, where it states none and there is no `out_of`, or the two differ.
    """
    each: list[float] | None
    if isinstance(rubric, Mapping):
        each = []
        for name, most in cast("Mapping[str, Any]", rubric).items():
            if isinstance(most, bool) or not isinstance(most, int | float) or not most > 0:
                raise UsageError(
                    f"rubric: {name!r} has {most!r:.40} points, expected a number above 0"
                )
            each.append(float(most))
    elif isinstance(rubric, str):
        each = [float(number) for number in _POINTS.findall(rubric)] or None
    else:
        raise UsageError(
            f"a rubric is text, or a table of criteria to points, not {type_of(rubric)}"
        )
    if out_of is not None and out_of <= 0:
        raise UsageError(f"rubric: out_of is {out_of!r}, expected a number above 0")
    if not each:
        if out_of is None:
            raise UsageError(
                "rubric: its criteria have no '(N points)'; give out_of, the maximum sum"
            )
        return out_of, None
    if out_of is not None and out_of != sum(each):
        raise UsageError(
            f"rubric: the sum of its points is {sum(each):g}, but out_of is {out_of:g}; leave out "
            "one of them"
        )
    return sum(each), each
