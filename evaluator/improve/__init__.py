"""Better templates, with a proof: a search over edits of a template, and a decision on rows that
the search has not seen.

`run.improve` is the way in; `search` has the search as a function of its evidence, `evidence` where
that is recorded, `certificate` the result. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluator.lazy_names import lazy_names

if TYPE_CHECKING:
    from evaluator.improve.certificate import Certificate as Certificate
    from evaluator.improve.certificate import Verification as Verification
    from evaluator.improve.certificate import verify as verify
    from evaluator.improve.decide import Decision as Decision
    from evaluator.improve.judges import improve_judge as improve_judge
    from evaluator.improve.judges import improve_judge_sync as improve_judge_sync
    from evaluator.improve.run import improve as improve
    from evaluator.improve.run import improve_sync as improve_sync
    from evaluator.improve.run import write_template as write_template
    from evaluator.improve.search import OutOfBudget as OutOfBudget

_HOMES = {
    ".certificate": ("Certificate", "Verification", "verify"),
    ".decide": ("Decision",),
    ".judges": ("improve_judge", "improve_judge_sync"),
    ".run": ("improve", "improve_sync", "write_template"),
    ".search": ("OutOfBudget",),
}

__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    name for names in _HOMES.values() for name in names
)

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
