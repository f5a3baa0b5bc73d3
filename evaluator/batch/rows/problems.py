"""What is wrong with rows, and where."""

from __future__ import annotations

from typing import Any

from evaluator.errors import UsageError


class RowError(UsageError):
    """A row, or the source that rows come from, cannot be used; reading ends there.

    `source` is a file's path or the kind of the object that gave the rows. `line` and `column` count from 1, `place`
    counts rows from 0; None: not known, or of the whole source. `id` is the row's, where it is known.
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
        where = [source]
        if line is not None:
            where.append(str(line) if column is None else f"{line}:{column}")
        elif place is not None:
            where.append(f"row {place}")
        who = "" if id is None else f" (id {id!r})"
        super().__init__(f"{':'.join(where)}{who}: {message}")
        self.message, self.source, self.line, self.column, self.place, self.id = (
            message, source, line, column, place, id,
        )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: getattr(self, name) for name in ("source", "line", "column", "place", "id")}
        return (_row_error, (self.message, fields))


def _row_error(message: str, fields: dict[str, Any]) -> RowError:
    return RowError(message, **fields)
