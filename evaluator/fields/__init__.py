"""One declaration of a field: its type, check, default, flag, JSON form and help.

`kinds` says what an annotation accepts, `records` makes checked dataclasses of annotations. The
names below are common annotations.
"""

# The names that other packages import.
# ruff: noqa: F401
# pyright: reportUnusedImport=false
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

from evaluator.fields.kinds import (
    After,
    Before,
    Expected,
    FieldError,
    Kind,
    Range,
    kind_of,
    shown,
)
from evaluator.fields.records import (
    MERGED,
    REQUIRED,
    SESSION,
    Checked,
    Doc,
    Field,
    Flag,
    JsonForm,
    Key,
    Place,
    Section,
    accept,
    as_json,
    check_fields,
    check_names,
    fields_of,
    fits,
    stored_fields,
    to_dict,
    use_defaults,
)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError(f"is {text!r}, expected a string that is not blank")
    return text


def _as_items(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _distinct(texts: Sequence[str]) -> Sequence[str]:
    for text in texts:
        if texts.count(text) > 1:
            raise ValueError(f"names {text!r} twice")
    return texts


def _path_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


Name = Annotated[str, After(_not_blank)]
"""A string that is not blank."""
Names = Annotated[tuple[Name, ...], Before(_as_items), After(_distinct)]
"""One string, or several without duplicates."""
PathText = Annotated[Name, Before(_path_text)]
"""A path, stored as a string."""
Count = Annotated[int, Range(least=1)]
Natural = Annotated[int, Range(least=0)]
Positive = Annotated[float, Range(above=0)]
NotNegative = Annotated[float, Range(least=0)]
Share = Annotated[float, Range(least=0, most=1)]
