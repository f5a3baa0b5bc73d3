"""The template library: loading, checking and matching templates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluator.lazy_names import lazy_names

if TYPE_CHECKING:
    from evaluator.library.bounds import CallBound, bound
    from evaluator.library.checks import check
    from evaluator.library.content import Template
    from evaluator.library.loader import TemplateLibrary
    from evaluator.library.matching import Match, Ranker

__all__ = ["CallBound", "Match", "Ranker", "Template", "TemplateLibrary", "bound", "check"]

if not TYPE_CHECKING:
    # So that an import of one module does not load the XML reader.
    __getattr__ = lazy_names(
        __name__,
        {
            ".bounds": ("CallBound", "bound"),
            ".matching": ("Match", "Ranker"),
            ".content": ("Template",),
            ".loader": ("TemplateLibrary",),
            ".checks": ("check",),
        },
    )


def __dir__() -> list[str]:
    return __all__
