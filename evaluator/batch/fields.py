"""The metadata fields, or expressions, `cluster` and `group_by`, checked before a batch runs.

Without the check, a misspelt name would give intervals as if all results were independent, and a
single group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from evaluator.batch.records import Sample, SampleResult
from evaluator.batch.rows.mapping import Getter, MissingField, getter, is_blank
from evaluator.errors import ExpressionError, UsageError
from evaluator.errors.messages import did_you_mean, listed
from evaluator.language.syntax import has_markup

if TYPE_CHECKING:
    from evaluator.batch.rows import RowSource

MOST_FIELDS = 1_000
"""At most this many names are searched for the nearest one."""


def value_of(metadata: Mapping[str, Any], field: str) -> Any:
    """The value of a field; None if it is missing, null, or blank, as an empty cell of a CSV file
    is.
    """
    return _unless_blank(metadata.get(field))


def reader_of(field: str, what: str) -> Callable[[Sample | SampleResult], Any]:
    """A function that reads a metadata field, or evaluates an expression in `{{ … }}` over
    metadata, inputs and target.

    None stands for a value that is missing, null or blank, and for an expression that cannot be
    evaluated.

    Raises: UsageError, for an invalid expression.
    """
    if not has_markup(field):
        return lambda sample: value_of(sample.metadata, field)
    return partial(_evaluated, getter(field, what))


def _evaluated(get: Getter, sample: Sample | SampleResult) -> Any:
    try:
        return _unless_blank(get(_fields_of(sample)))
    except (ExpressionError, MissingField):
        return None


def _fields_of(sample: Sample | SampleResult) -> dict[str, Any]:
    return {"target": sample.target, **sample.inputs, **sample.metadata}


def _unless_blank(value: Any) -> Any:
    if is_blank(value):
        return None
    return value


def nearest_field(name: str, fields: Collection[str]) -> str:
    """A hint for a field that no row has a value of."""
    if name in fields:
        return "it is empty in every row that has it"
    if not fields:
        return "the rows have no metadata"
    return did_you_mean(name, fields) or f"the fields are {listed(fields)}"


def check_fields(
    rows: RowSource, wanted: Mapping[str, str | None], target: str | None = None
) -> None:
    """Checks that some row has each field in its metadata. `wanted`: fields or expressions by the
    option with them.
    `target`: the field with the target, None for `target`.

    Rows are read until each field is found, usually in the first row; expressions are evaluated for
    all rows. Rows from an iterator, which can be read only once, and rows that have to be waited
    for are not checked.

    Raises: UsageError, for a field that no row has, or that is empty in each; says which one is
    near, or how an input or the target becomes metadata; for an invalid expression, and one that
    cannot be evaluated for a row.
    """
    missing = {purpose: name for purpose, name in wanted.items() if name is not None}
    for purpose in [purpose for purpose, name in missing.items() if has_markup(name)]:
        _check_expression(rows, missing.pop(purpose), purpose=purpose)
    if not missing:
        return
    fields: dict[str, None] = {}
    taken: dict[str, str] = {}
    for sample in rows.read_ahead():
        if sample is None:
            return
        missing = {
            purpose: name
            for purpose, name in missing.items()
            if value_of(sample.metadata, name) is None
        }
        if not missing:
            return
        if len(fields) < MOST_FIELDS:
            fields.update(dict.fromkeys(sample.metadata))
        if len(taken) < MOST_FIELDS:
            taken.update(dict.fromkeys(sample.inputs, "an input"))
        if sample.target is not None:
            taken[target or "target"] = "the target"
    for purpose, name in missing.items():
        raise UsageError(
            f"{purpose}: no row has {name!r} in its metadata; {_hint(name, fields, taken=taken)}"
        )


def _check_expression(rows: RowSource, text: str, purpose: str) -> None:
    get = getter(text, purpose)
    has_value = False
    for sample in rows.read_ahead():
        if sample is None:
            return
        try:
            has_value = _unless_blank(get(_fields_of(sample))) is not None or has_value
        except (ExpressionError, MissingField) as error:
            if isinstance(error, ExpressionError):
                message = f"{error.span}: {error.message}"
            else:
                message = str(error)
            raise UsageError(f"{purpose}, row {sample.id!r:.80}: {message}") from error
    if not has_value:
        raise UsageError(f"{purpose}: {text} has no value for any row")


def _hint(name: str, fields: Collection[str], taken: Mapping[str, str]) -> str:
    if name in taken and name not in fields:
        return (
            f"it is {taken[name]}; to make it metadata too, list it in `metadata` (--metadata "
            f"{name}), "
            "with all other fields to keep"
        )
    return nearest_field(name, fields)
