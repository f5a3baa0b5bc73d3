"""Fields of the metadata by which numbers are made: `cluster` and `group_by`, refused where no row has them.

A name that is misspelt would otherwise be no name at all: intervals as if every result were independent, and one group.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from evaluator.errors import UsageError
from evaluator.library.near import did_you_mean, listed

if TYPE_CHECKING:
    from evaluator.batch.rows import RowSource

MOST_FIELDS = 1_000
"""Of so many names the nearest is looked for."""


def value_of(metadata: Mapping[str, Any], field: str) -> Any:
    """The value of a field; None where it is missing: not there, null, or blank, as an empty cell of a CSV file is."""
    value = metadata.get(field)
    return None if isinstance(value, str) and not value.strip() else value


def nearest_field(name: str, fields: Collection[str]) -> str:
    """What the metadata has instead of a field of which no value is there."""
    if name in fields:
        return "it is empty in every row that has it"
    if not fields:
        return "there is no metadata"
    return did_you_mean(name, fields) or f"there is {listed(fields)}"


def check_fields(rows: RowSource, wanted: Mapping[str, str | None]) -> None:
    """Whether some row has each field in its metadata; `wanted` are their names by what they are for.

    Rows are read until each field was found, which is the first row as a rule. Nothing is said of rows from an
    iterator, which can be read only once, and of rows that have to be waited for.

    Raises: UsageError, for what is no name, and a field that no row has, or that is empty in each: with the nearest, or
    how an input becomes one.
    """
    for purpose, name in wanted.items():
        if name is not None and not (isinstance(name, str) and name.strip()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"{purpose} is {name!r}, expected the name of a metadata field")
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
        raise UsageError(f"{purpose}: no row has {name!r} in its metadata; {_instead(name, fields, inputs)}")


def _instead(name: str, fields: Collection[str], inputs: Collection[str]) -> str:
    if name in inputs and name not in fields:
        return "it is an input; to have it there too, name it in `metadata`, with all else that is to be there"
    return nearest_field(name, fields)
