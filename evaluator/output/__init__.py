"""Reads a value from a model's text, with a warning for each repair and at most one error."""

from __future__ import annotations

from evaluator.output.extract import split_thinking
from evaluator.output.parsing import parse_output
from evaluator.output.result import ErrorKind, OutputError, ParsedOutput

__all__ = ["ErrorKind", "OutputError", "ParsedOutput", "parse_output", "split_thinking"]


def __dir__() -> list[str]:
    return __all__
