"""The names of types, shared with declared inputs.

any, string, number, integer, boolean, object, array, [] and T[].

Defined in `evaluator.binding.types`, which stands to the left of this package; named here for its readers.
"""

from __future__ import annotations

from typing import Any

from evaluator.binding.types import TYPE_NAMES, describe, is_type_name, matches, read_typed

__all__ = ["TYPE_NAMES", "describe", "is_type_name", "matches", "read_scalar"]


def read_scalar(text: str, type_name: str) -> Any:
    """A value of a type from its text, as in a `default` or on the command line; nothing is guessed.

    Raises: UsageError, if the text is not of the type, or if there is no such type.
    """
    return read_typed(text, type_name)
