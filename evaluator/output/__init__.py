"""The output gate: from a model's text to a value, with a warning for each change, and one error at most."""

from __future__ import annotations

from evaluator.output.extract import split_thinking
from evaluator.output.gate import parse_output
from evaluator.output.result import ErrorKind, OutputError, ParsedOutput
from evaluator.output.types import TYPE_NAMES, describe, is_type_name, matches, read_scalar

__all__ = [
    "TYPE_NAMES",
    "ErrorKind",
    "OutputError",
    "ParsedOutput",
    "describe",
    "is_type_name",
    "matches",
    "parse_output",
    "read_scalar",
    "split_thinking",
]
