"""The metadata fields `cluster` and `group_by` and the targets, checked before a batch runs.

Without the check, a misspelt name would give intervals as if all results were independent, and a single group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from evaluator.batch.scorers import Scorer
from evaluator.batch.scorers.builtin_scorer import BuiltinScorer
from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean, listed

if TYPE_CHECKING:
    from evaluator.batch.rows import RowSource

MOST_FIELDS = 1_000
"""At most this many names are searched for the nearest one."""


def value_of(metadata: Mapping[str, Any], field: str) -> Any:
    """The value of a field; None if it is missing, null, or blank, as an empty cell of a CSV file is."""
    value = metadata.get(field)
    return None if isinstance(value, str) and not value.strip() else value


def nearest_field(name: str, fields: Collection[str]) -> str:
    """A hint for a field that no row has a value of."""
    if name in fields:
        return "it is empty in every row that has it"
    if not fields:
        return "the rows have no metadata"
    return did_you_mean(name, fields) or f"the fields are {listed(fields)}"


def check_fields(rows: RowSource, wanted: Mapping[str, str | None]) -> None:
    """Checks that some row has each field in its metadata. `wanted`: the names of fields by the option that names them.

    Rows are read until each field is found, usually in the first row. Rows from an iterator, which can be read only
    once, and rows that have to be waited for are not checked.

    Raises: UsageError, for a field that no row has, or that is empty in each; says which one is near, or how an input
    becomes metadata.
    """
    missing = {purpose: name for purpose, name in wanted.items() if name is not None}
    if not missing:
        return
    fields: dict[str, None] = {}
    inputs: dict[str, None] = {}
    for sample in rows.read_ahead():
        if sample is None:
            return
        missing = {purpose: name for purpose, name in missing.items() if value_of(sample.metadata, name) is None}
        if not missing:
            return
        for seen, names in ((fields, sample.metadata), (inputs, sample.inputs)):
            if len(seen) < MOST_FIELDS:
                seen.update(dict.fromkeys(names))
    for purpose, name in missing.items():
        raise UsageError(f"{purpose}: no row has {name!r} in its metadata; {_hint(name, fields, inputs)}")


def check_targets(rows: RowSource, scorers: Iterable[Scorer]) -> None:
    """Checks the targets of the first 1,000 rows, as far as they can be read ahead, with the scorers that can.

    Raises: UsageError, for a target that a scorer cannot compare; says which row has it.
    """
    checked = [
        each
        for each in scorers
        if isinstance(each, BuiltinScorer) and type(each).check_target is not BuiltinScorer.check_target
    ]
    if not checked:
        return
    for sample in islice(rows.read_ahead(), MOST_FIELDS):
        if sample is None:
            return
        for scorer in checked if sample.target is not None else ():
            try:
                scorer.check_target(sample.target)
            except UsageError as error:
                raise UsageError(f"scorer {scorer.name!r}, row {sample.id!r:.80}: {error}") from error


def _hint(name: str, fields: Collection[str], inputs: Collection[str]) -> str:
    if name in inputs and name not in fields:
        return (
            f"it is an input; to make it metadata too, list it in `metadata` (--metadata {name}), "
            "with all other fields to keep"
        )
    return nearest_field(name, fields)
