"""Reads a value from a model's text, with a warning for each repair and at most one error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluator.lazy_names import lazy_names

if TYPE_CHECKING:
    from evaluator.output.parsing import parse_output
    from evaluator.output.result import ErrorKind, OutputError, ParsedOutput
    from evaluator.output.thinking import split_thinking

__all__ = ["ErrorKind", "OutputError", "ParsedOutput", "parse_output", "split_thinking"]

if not TYPE_CHECKING:
    # An answer without a declared format is not parsed.
    __getattr__ = lazy_names(
        __name__,
        {
            ".parsing": ("parse_output",),
            ".result": ("ErrorKind", "OutputError", "ParsedOutput"),
            ".thinking": ("split_thinking",),
        },
    )


def __dir__() -> list[str]:
    return __all__
