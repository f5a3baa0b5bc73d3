"""The error for rows that cannot be used, with their position."""

from __future__ import annotations

from functools import partial
from typing import Any

from evaluator.errors import UsageError


class RowError(UsageError):
    """A row, or the source of the rows, cannot be used; reading ends there.

    `source` is a file's path or the type of the object with the rows. `line` and `column` count
    from 1, `place` counts rows from 0; None where unknown, or for the whole source. `id` is the
    row's id, if known.
    """

    def __init__(
        self,
        message: str,
        *,
        source: str,
        line: int | None = None,
        column: int | None = None,
        place: int | None = None,
        id: str | None = None,
    ) -> None:
        where = source
        if line is not None:
            where += f":{line}" if column is None else f":{line}:{column}"
        elif place is not None:
            where += f":row {place}"
        super().__init__(f"{where}{'' if id is None else f' (id {id!r})'}: {message}")
        self.message = message
        self.source = source
        self.line = line
        self.column = column
        self.place = place
        self.id = id

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in ("source", "line", "column", "place", "id")}
        return (partial(RowError, **fields), (self.message,))
