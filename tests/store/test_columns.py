"""Columns, records and keys read back what was written, from memory, from the disk, and without a disk."""

from __future__ import annotations

import errno
from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import RecordError, disk
from evaluator.store import columns
from evaluator.store.columns import Column, Interner, Records, Spool

BLOCK = 4
NUMBERS = st.integers(0, 2**31 - 1)


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are moved to the disk at the 820th."""
    monkeypatch.setattr(columns, "_MOST_SLOTS", 1_024)
    monkeypatch.setattr(columns, "_PART", 1_024)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "pwrite", fail)


@given(st.lists(st.text(max_size=3)))
def test_numbers_are_those_of_a_dict(keys) -> None:
    numbering, known = Interner(), {}
    for key in keys:
        assert numbering.find(key) == known.get(key)
        assert numbering.number(key) == known.setdefault(key, len(known))
    assert len(numbering) == len(known)


def check_numbers_of_many_keys() -> None:
    numbering = Interner()
    keys = [f"row-{number}" for number in range(5_000)]
    assert [numbering.number(key) for key in keys] == list(range(5_000))
    assert [numbering.find(key) for key in keys] == list(range(5_000))
    assert [numbering.number(key) for key in keys[::7]] == list(range(0, 5_000, 7))
    assert numbering.find("another") is None and len(numbering) == 5_000


def test_an_interner_grows_and_forgets_nothing() -> None:
    check_numbers_of_many_keys()


def test_an_interner_on_the_disk_forgets_nothing(small_tables: None) -> None:
    check_numbers_of_many_keys()


def test_an_interner_without_room_on_the_disk_forgets_nothing(
    small_tables: None, full_disk: None
) -> None:
    check_numbers_of_many_keys()


def test_a_key_whose_hash_is_zero_is_a_key_like_others() -> None:
    numbering = Interner()
    assert hash("") == 0
    assert [numbering.number(key) for key in ("", "a", "")] == [0, 1, 0] and len(numbering) == 2


def check_column(values: list[int], changes: list[tuple[int, int]], chosen: list[int]) -> None:
    spool = Spool()
    column, other = Column("i", spool, block=BLOCK), Column("q", spool, block=BLOCK)
    for value in values:
        column.append(value)
    other.extend(values)
    for place, value in changes if values else ():
        column[place % len(values)] = value
        values[place % len(values)] = value
    assert list(column) == values and len(column) == len(other) == len(values)
    assert [column[row] for row in reversed(range(len(values)))] == values[::-1]
    rows = sorted({row % len(values) for row in chosen}) if values else []
    assert list(column.at(rows)) == [values[row] for row in rows]
    assert [column.read(row, 1)[0] for row in rows] == [values[row] for row in rows]


@given(st.lists(NUMBERS, max_size=30), st.lists(st.tuples(NUMBERS, NUMBERS)), st.lists(NUMBERS))
def test_a_column_is_a_list_of_numbers(values, changes, chosen) -> None:
    check_column(values, changes, chosen)


def test_a_column_without_room_on_the_disk_is_in_memory(full_disk: None) -> None:
    check_column(list(range(30)), [(3, 99), (29, 98)], [1, 5, 6, 29])


def test_a_disk_that_fails_later_is_an_error_of_this_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    column = Column("i", Spool(), block=BLOCK)
    column.extend(range(2 * BLOCK))
    column[0] = 7
    assert column[0] == 7

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk, "pwrite", fail)
    with pytest.raises(RecordError, match="temporary file cannot be written"):
        column[0] = 8


def test_records_are_read_back_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BLOCK", 16)
    records = Records(Struct("<q3s"))
    expected = [(number, b"abc") for number in range(50)]
    for record in expected:
        records.append(*record)
    for number in (0, 17, 49):
        records[number] = expected[number] = (-1, b"xyz")
    assert list(records) == expected and len(records) == 50
    assert [records[number] for number in (49, 3, 4, 20, 0)] == [
        expected[number] for number in (49, 3, 4, 20, 0)
    ]
