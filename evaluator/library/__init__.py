"""The template library: loading, checking and matching templates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluator.library.bounds import CallBound, bound
    from evaluator.library.checks import check
    from evaluator.library.loader import Template, TemplateLibrary
    from evaluator.library.matching import Match, Ranker

__all__ = ["CallBound", "Match", "Ranker", "Template", "TemplateLibrary", "bound", "check"]

# Loaded at first use, so that an import of one module does not load the XML reader.
_HOMES = {
    "CallBound": "bounds",
    "Match": "matching",
    "Ranker": "matching",
    "Template": "loader",
    "TemplateLibrary": "loader",
    "bound": "bounds",
    "check": "checks",
}

if not TYPE_CHECKING:
    # A type checker sees the imports above and reports every other name as an error.
    def __getattr__(name: str) -> Any:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return __all__
