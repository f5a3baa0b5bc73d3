"""Rows that show damage, and whose they are.

A row has a checksum of all that it holds and, if this user's programs have written it, a signature
of its columns with the user's key. A row without a valid checksum is damaged: reading it raises
`DamagedRow`, which names it. A row without a valid signature comes from somebody else: its values
are checked, it is shown, and it starts, sends and chooses nothing. A caller that changes such a row
signs only what may be done for everybody.

An old row that its owner had signed stays valid: a signature does not say when it was made.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from evaluator.errors import ConfigurationError, EvaluatorError
from evaluator.files.locations import user_folder
from evaluator.files.trust import signature, signature_check
from evaluator.lazy_dataclass import frozen

_INVALID = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, AttributeError)


class DamagedRow(sqlite3.DatabaseError):
    """A row is not as it was written."""


class Row(dict[str, Any]):
    """The columns of a row by name. `is_own`: this user's programs have written it as it is."""

    __slots__ = ("is_own",)

    def __init__(
        self, values: Mapping[str, Any] | Iterable[tuple[str, Any]], *, is_own: bool
    ) -> None:
        super().__init__(values)
        self.is_own = is_own


@frozen
class Table:
    """A table of such rows. The first of `columns` is its primary key, of the SQL type `key_type`;
    `name_of` makes a row's name for messages of its key. `noun` tells the tables of several kinds
    of databases apart. `check` gets each row that somebody else has written, and raises an error if
    this program would not write its values.

    The other columns have no type, so that a value is read as it was written.
    """

    name: str
    noun: str
    columns: tuple[str, ...]
    name_of: Callable[[Any], str]
    key_type: str = "INTEGER"
    check: Callable[[Mapping[str, Any]], object] | None = None

    @property
    def statement(self) -> str:
        """The SQL statement that creates the table."""
        key, *others = self.columns
        columns = ", ".join(
            [f"{key} {self.key_type} PRIMARY KEY", *others, "checksum", "signature"]
        )
        return f"CREATE TABLE {self.name} ({columns})"

    def select(
        self, db: sqlite3.Connection, where: str = "", values: Sequence[Any] = ()
    ) -> list[Row]:
        """The rows, checked; `where` is what follows the table's name in SQL.

        Raises: DamagedRow.
        """
        return list(self.each(db, where, values))

    def each(
        self, db: sqlite3.Connection, where: str = "", values: Sequence[Any] = ()
    ) -> Iterator[Row]:
        """As `select`, for a caller that needs one row at a time."""
        columns = ", ".join(f"{self.name}.{column}" for column in self.columns)
        prefix = f"{self.name}.checksum, {self.name}.signature"
        sql = f"SELECT {prefix}, {columns} FROM {self.name} {where}"
        is_signed = signature_check()
        for row in _fetch(db, sql, values):
            yield self._checked(row, is_signed)

    def get(self, db: sqlite3.Connection, key: Any) -> Row | None:
        """The row with this key. Raises: DamagedRow."""
        rows = self.select(db, f"WHERE {self.columns[0]} = ?", (key,))
        return rows[0] if rows else None

    def put(self, db: sqlite3.Connection, values: Mapping[str, Any], *, is_own: bool = True) -> Row:
        """Writes a whole row, in place of the one with its key. It is signed unless it says what
        somebody else wrote.

        Raises: ConfigurationError, if there is no key for the signature and none can be made.
        """
        content = self._hash(map(values.__getitem__, self.columns))
        if is_own:
            mark = signature(self._signed_bytes(content))
        else:
            mark = None
        if is_own and mark is None:
            raise ConfigurationError(
                f"{user_folder()}: the key that marks this user's own data cannot be read or "
                "written; set EVALUATOR_CONFIG_DIR to a folder of your own"
            )
        stored = (*(values[column] for column in self.columns), _seal(content, mark), mark)
        marks = ", ".join("?" * len(stored))
        names = (*self.columns[1:], "checksum", "signature")
        changes = ", ".join(f"{name} = excluded.{name}" for name in names)
        db.execute(
            f"INSERT INTO {self.name} VALUES ({marks}) "
            f"ON CONFLICT ({self.columns[0]}) DO UPDATE SET {changes}",
            stored,
        )
        return Row(values, is_own=is_own)

    def update(self, db: sqlite3.Connection, row: Row, **changes: Any) -> Row:
        """Changes columns of a row that was read. It is signed only if it was signed before."""
        return self.put(db, {**row, **changes}, is_own=row.is_own)

    def checksum(self, values: Mapping[str, Any]) -> str:
        """The checksum of a row without a signature."""
        return _seal(self._hash(map(values.__getitem__, self.columns)), None)

    def _hash(self, values: Iterable[Any]) -> str:
        """The hash of the values of all columns, in their order."""
        parts = [self.name]
        for value in values:
            # A list is read one row after the other, and nearly all of it is texts and None.
            if type(value) is str:
                parts.append(f"str{len(value)}:{value}")
                continue
            if value is None:
                parts.append("NoneType4:None")
                continue
            if isinstance(value, bool):
                value = int(value)  # as SQLite stores it
            text = str(value)
            parts.append(f"{type(value).__name__}{len(text)}:{text}")
        return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def _signed_bytes(self, content: str) -> bytes:
        return f"row\0{self.noun}\0{content}".encode()

    def _checked(self, stored: tuple[Any, ...], is_signed: Callable[[bytes, object], bool]) -> Row:
        checksum, mark, *columns = stored
        content = self._hash(columns)
        if _seal(content, mark) != checksum:
            raise DamagedRow(f"{self.name_of(columns[0])} is damaged: its checksum does not match")
        is_own = is_signed(self._signed_bytes(content), mark)
        row = Row(zip(self.columns, columns, strict=True), is_own=is_own)
        if self.check is not None and not row.is_own:
            try:
                self.check(row)
            except (*_INVALID, EvaluatorError) as error:
                raise DamagedRow(
                    f"{self.name_of(columns[0])} comes from somebody else and is not valid: {error}"
                ) from error
        return row


def _seal(content: str, mark: object) -> str:
    """The checksum of a row with this content and this signature."""
    return sha256(f"{content}\0{mark}".encode("utf-8", "surrogatepass")).hexdigest()


def _replacing(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _fetch(db: sqlite3.Connection, sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    try:
        return db.execute(sql, values).fetchall()
    except sqlite3.OperationalError as error:
        if "decode" not in str(error):
            raise
    # A damaged text is not UTF-8. Its row is found by its checksum.
    db.text_factory = _replacing
    try:
        return db.execute(sql, values).fetchall()
    finally:
        db.text_factory = str
