"""One declaration of a field: its type, check, default, flag, JSON form and help.

`kinds` says what an annotation accepts, `records` makes checked dataclasses of annotations, `hints`
suggests names. The names below are common annotations.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

from evaluator.fields.kinds import After as After
from evaluator.fields.kinds import Before as Before
from evaluator.fields.kinds import Expected as Expected
from evaluator.fields.kinds import FieldError as FieldError
from evaluator.fields.kinds import Kind as Kind
from evaluator.fields.kinds import Range as Range
from evaluator.fields.kinds import kind_of as kind_of
from evaluator.fields.kinds import shown as shown
from evaluator.fields.records import MERGED as MERGED
from evaluator.fields.records import REQUIRED as REQUIRED
from evaluator.fields.records import SESSION as SESSION
from evaluator.fields.records import Checked as Checked
from evaluator.fields.records import Doc as Doc
from evaluator.fields.records import Field as Field
from evaluator.fields.records import Flag as Flag
from evaluator.fields.records import JsonForm as JsonForm
from evaluator.fields.records import Key as Key
from evaluator.fields.records import Place as Place
from evaluator.fields.records import Section as Section
from evaluator.fields.records import accept as accept
from evaluator.fields.records import as_json as as_json
from evaluator.fields.records import check_fields as check_fields
from evaluator.fields.records import check_names as check_names
from evaluator.fields.records import fields_of as fields_of
from evaluator.fields.records import fits as fits
from evaluator.fields.records import stored_fields as stored_fields
from evaluator.fields.records import to_dict as to_dict
from evaluator.fields.records import use_defaults as use_defaults


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
