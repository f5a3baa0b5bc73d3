"""Rows show that they are damaged, and who wrote them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from evaluator import ConfigurationError
from evaluator.store.rows import DamagedRow, Table

TABLE = Table("thing", "things", ("id", "name", "size"), name_of=lambda id: f"the thing {id}")


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute(TABLE.statement)
        TABLE.put(connection, {"id": 1, "name": "größer", "size": 1.0})
        TABLE.put(connection, {"id": 2, "name": None, "size": True})
        yield connection


def test_what_is_read_is_what_was_written(db: sqlite3.Connection):
    rows = TABLE.select(db, "ORDER BY id")
    assert [(*row.values(), row.is_own) for row in rows] == [
        (1, "größer", 1.0, True),
        (2, None, 1, True),
    ]
    assert TABLE.get(db, 3) is None


@pytest.mark.parametrize(
    "change",
    [
        "name = 'großer'",
        "name = CAST(X'67FF' AS TEXT)",
        "name = NULL",
        "size = 1",
        "id = 5",
        "checksum = NULL",
        "signature = NULL",
        "signature = (SELECT signature FROM thing WHERE id = 2)",
    ],
)
def test_a_changed_row_is_damaged_and_named(db: sqlite3.Connection, change: str):
    db.execute(f"UPDATE thing SET {change} WHERE id = 1")
    with pytest.raises(DamagedRow, match=r"the thing [15] is damaged"):
        TABLE.select(db)
    assert TABLE.get(db, 2) is not None


def test_a_row_of_another_user_is_read_and_is_not_own(
    db: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "another"))
    row = TABLE.get(db, 1)
    assert row is not None and not row.is_own
    assert not TABLE.update(db, row, size=2).is_own
    changed = TABLE.get(db, 1)
    assert changed is not None and (changed["size"], changed.is_own) == (2, False)
    assert TABLE.put(db, changed).is_own


def test_a_signature_is_for_one_row_of_one_kind_of_database(db: sqlite3.Connection):
    row = TABLE.get(db, 1)
    assert row is not None and row.is_own
    other = Table("thing", "others", TABLE.columns, TABLE.name_of)
    moved = other.get(db, 1)
    assert moved is not None and not moved.is_own
    (content,) = db.execute("SELECT signature FROM thing WHERE id = 1").fetchone()
    TABLE.put(db, {**row, "id": 2}, is_own=False)
    seal = sha256(f"{TABLE._hash({**row, 'id': 2}.values())}\0{content}".encode()).hexdigest()  # pyright: ignore[reportPrivateUsage]
    db.execute("UPDATE thing SET signature = ?, checksum = ? WHERE id = 2", (content, seal))
    copied = TABLE.get(db, 2)
    assert copied is not None and not copied.is_own


def test_without_a_key_nothing_is_written(
    db: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    monkeypatch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path / "file" / "user"))
    with pytest.raises(ConfigurationError, match="set EVALUATOR_CONFIG_DIR"):
        TABLE.put(db, {"id": 1, "name": "x", "size": 0})
    row = TABLE.get(db, 1)
    assert row is not None and row["name"] == "größer"
