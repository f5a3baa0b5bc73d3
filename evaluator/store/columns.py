"""Numbers, records and keys that grow with the results of a batch, in files without a name.

Only what is being written or read is in memory: a block of each column. The rest is in a temporary
file that goes with the process. What it holds is derived from files that stay, so it is made again
whenever it is needed. Without room on the disk, memory takes it.

Measured beside a table of SQLite, for a row of 23 values: 7 to 11 µs to insert and 11 to 14 µs to
find by its key, where these take 1 to 6 µs (`bench/README.md`).
"""

from __future__ import annotations

import os
import tempfile
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from io import FileIO
from itertools import chain
from pathlib import Path
from struct import Struct
from typing import Any, TypeAlias, overload

from evaluator import disk
from evaluator.errors import RecordError, advice_on

BLOCK = 4_096
"""Values of a column, and records, that are written and read at once."""
_Bytes: TypeAlias = "bytes | bytearray | array[Any]"
# On a disk, where /tmp may be memory.
_FOLDER = Path("/var/tmp")


class Spool:
    """A temporary file without a name, which is created when it is first written to."""

    __slots__ = ("__weakref__", "_end", "_file")

    def __init__(self) -> None:
        self._file: FileIO | None = None
        self._end = 0

    def write(self, data: _Bytes) -> int | None:
        """The place of the written bytes; None if they cannot be written."""
        try:
            if self._file is None:
                folder = _FOLDER if _FOLDER.is_dir() else None
                self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            place = self._end
            self._end += self._put(place, data)
        except OSError:
            return None
        return place

    def replace(self, place: int, data: _Bytes) -> None:
        """Writes over bytes that were written. Raises: RecordError, if the disk fails."""
        try:
            self._put(place, data)
        except OSError as error:
            raise RecordError(
                f"a temporary file cannot be written: {error.strerror}; {advice_on(error)}"
            ) from error

    def read(self, place: int, size: int) -> bytes:
        """Bytes that were written. Raises: RecordError, if the disk fails."""
        assert self._file is not None
        try:
            return os.pread(self._file.fileno(), size, place)
        except OSError as error:
            raise RecordError(f"a temporary file cannot be read: {error.strerror}") from error

    def _put(self, place: int, data: _Bytes) -> int:
        assert self._file is not None
        size = disk.pwrite(self._file.fileno(), data, place)
        rest = memoryview(data).cast("B")[size:]
        while rest:
            size += disk.pwrite(self._file.fileno(), rest, place + size)
            rest = memoryview(data).cast("B")[size:]
        return size


class Column(Sequence[Any]):
    """Numbers of one type, a `typecode` of `array`. Columns may share a spool."""

    __slots__ = ("_block", "_block_number", "_places", "_size", "_spool", "_tail", "typecode")

    def __init__(self, typecode: str, spool: Spool, block: int = BLOCK) -> None:
        self.typecode = typecode
        self._size = block
        self._spool = spool
        self._tail: array[Any] = array(typecode)
        self._places: list[int | array[Any]] = []
        self._block = self._tail
        self._block_number = -1

    def __len__(self) -> int:
        return self._size * len(self._places) + len(self._tail)

    def append(self, value: float) -> None:
        self._tail.append(value)
        if len(self._tail) == self._size:
            self._write()

    def extend(self, values: Iterable[float]) -> None:
        # Of a sequence, an array is made faster than one is extended.
        self._tail.extend(array(self.typecode, values))
        if len(self._tail) >= self._size:
            self._write()

    def extend_bytes(self, values: bytes) -> None:
        """Adds the numbers that `values` has in memory."""
        self._tail.frombytes(values)
        if len(self._tail) >= self._size:
            self._write()

    def _write(self) -> None:
        tail = self._tail
        size = self._size
        while len(tail) >= size:
            block = tail[:size]
            del tail[:size]
            place = self._spool.write(block)
            self._places.append(block if place is None else place)

    def __iter__(self) -> Iterator[Any]:
        if not self._places:
            return iter(self._tail)
        return chain.from_iterable(self.blocks())

    def blocks(self) -> Iterator[array[Any]]:
        """All numbers, a block at a time."""
        return map(self.block, range(len(self._places) + 1))

    def block(self, number: int) -> array[Any]:
        """A block, to be read only."""
        if number == len(self._places):
            return self._tail
        place = self._places[number]
        if isinstance(place, array):
            return place
        if number != self._block_number:
            block = array(self.typecode)
            block.frombytes(self._spool.read(place, self._size * block.itemsize))
            self._block = block
            self._block_number = number
        return self._block

    def at(self, rows: Sequence[int]) -> Iterator[Any]:
        """The values of `rows`, which ascend."""
        places = self._places
        tail = self._tail
        if len(rows) != self._size * len(places) + len(tail):
            return chain.from_iterable(self._parts(rows))
        if not places:
            return iter(tail)
        return chain.from_iterable(self.blocks())

    def _parts(self, rows: Sequence[int]) -> Iterator[Iterator[Any]]:
        if not rows:
            return
        first = 0
        for number in range(rows[0] // self._size, rows[-1] // self._size + 1):
            start = number * self._size
            last = bisect_left(rows, start + self._size, first)
            if first < last:
                places = map((-start).__add__, rows[first:last])
                yield map(self.block(number).__getitem__, places)
            first = last

    def reordered(self, rows: Sequence[int]) -> Column:
        """The values of `rows`, in this order. Memory holds all values once."""
        values = array(self.typecode)
        for block in self.blocks():
            values.extend(block)
        column = Column(self.typecode, self._spool, self._size)
        for start in range(0, len(rows), self._size):
            column.extend(map(values.__getitem__, rows[start : start + self._size]))
        return column

    @overload
    def __getitem__(self, row: int) -> Any: ...
    @overload
    def __getitem__(self, row: slice) -> list[Any]: ...
    def __getitem__(self, row: int | slice) -> Any:
        if isinstance(row, slice):
            return list(self.at(range(len(self))[row]))
        number, place = divmod(row, self._size)
        return self.block(number)[place]

    def __setitem__(self, row: int, value: float) -> None:
        self.replace(row, array(self.typecode, (value,)))

    def cached(self, number: int) -> array[Any] | None:
        """A block, to be read only, if memory has it. It gets the first block and the one after the
        last too, as who reads in order reads whole blocks.
        """
        if number == self._block_number:
            return self._block
        if number in (0, self._block_number + 1) or self._place_on_disk(number) is None:
            return self.block(number)
        return None

    def read(self, row: int, count: int) -> array[Any]:
        """So many values from `row` on, which are in one block; the others stay on the disk."""
        number, place = divmod(row, self._size)
        start = self._place_on_disk(number)
        if start is None:
            return self.block(number)[place : place + count]
        values = array(self.typecode)
        size = values.itemsize
        values.frombytes(self._spool.read(start + place * size, count * size))
        return values

    def replace(self, row: int, values: array[Any]) -> None:
        """Replaces the values from `row` on, which are in one block."""
        number, place = divmod(row, self._size)
        start = self._place_on_disk(number)
        if start is None or number == self._block_number:
            self.block(number)[place : place + len(values)] = values
        if start is not None:
            self._spool.replace(start + place * values.itemsize, values)

    def _place_on_disk(self, number: int) -> int | None:
        """Where the spool has a block; None if memory has it."""
        if number == len(self._places):
            return None
        place = self._places[number]
        return place if isinstance(place, int) else None


class Records:
    """Tuples of one form. Iterating gives all."""

    __slots__ = ("_block", "_column", "_form", "_pack")

    def __init__(self, form: Struct) -> None:
        self._form = form
        self._pack = form.pack
        self._block = form.size * (BLOCK // 4)
        self._column = Column("B", Spool(), block=self._block)

    def __len__(self) -> int:
        return len(self._column) // self._form.size

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return chain.from_iterable(map(self._form.iter_unpack, self._column.blocks()))

    def append(self, *values: Any) -> None:
        self._column.extend_bytes(self._pack(*values))

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        form = self._form
        block, place = divmod(number * form.size, self._block)
        values = self._column.cached(block)
        if values is not None:
            return form.unpack_from(values, place)
        return form.unpack(self._column.read(number * form.size, form.size))

    def __setitem__(self, number: int, values: tuple[Any, ...]) -> None:
        self._column.replace(number * self._form.size, array("B", self._pack(*values)))


_EMPTY = 0
_FIRST_SLOTS = 1_024
_MOST_SLOTS = 2**17
"""When more are needed, the keys are moved to the disk, to a table of parts."""
_PART = 2**15
"""Slots of a part: each has a hash and its number."""
_PROBED = 4
"""Slots that are read at once."""
_UNSIGNED = 2**64 - 1


class Interner:
    """Numbers keys from 0, in the order in which they are first seen; equal keys have the same
    number. The keys themselves are not stored.

    They are compared by their 64-bit hashes, which each process keys differently: with a million
    keys, two would be taken for equal in one of 40 million runs.
    """

    __slots__ = ("_count", "_hashes", "_left", "_mask", "_numbers", "_shift", "_table")

    def __init__(self) -> None:
        self._count = 0
        self._set_slots(_FIRST_SLOTS)
        # A block of the column is a part, which the first bits of a hash choose.
        self._table: Column | None = None
        self._shift = 64

    def _set_slots(self, slots: int) -> None:
        self._mask = slots - 1
        # With more, most searches for a new key meet several others.
        self._left = 2 * slots // 3
        self._hashes = array("q", bytes(8 * slots))
        self._numbers = array("i", bytes(4 * slots))

    def __len__(self) -> int:
        return self._count

    def number(self, key: str | bytes) -> int:
        """The number of `key`; the length so far, if it is new."""
        return self.number_of_hash(hash(key))

    def number_of_hash(self, digest: int) -> int:
        """As `number`, for the key that has this hash."""
        digest = digest or 1
        hashes = self._hashes
        mask = self._mask
        slot = digest & mask
        while (found := hashes[slot]) != _EMPTY:
            if found == digest:
                return self._numbers[slot]
            slot = (slot + 1) & mask
        if self._shift < 64 and (stored := self._find_stored(digest)) is not None:
            return stored
        number = self._count
        self._numbers[slot] = number
        hashes[slot] = digest
        self._count = number + 1
        self._left -= 1
        if not self._left:
            self._grow()
        return number

    def find(self, key: str | bytes) -> int | None:
        """The number of `key`; None if it is unknown."""
        digest = hash(key) or 1
        slot = self._slot(digest)
        if self._hashes[slot] != _EMPTY:
            return self._numbers[slot]
        return self._find_stored(digest) if self._shift < 64 else None

    def _slot(self, digest: int) -> int:
        """The slot where `digest` is, or would be."""
        mask = self._mask
        hashes = self._hashes
        slot = digest & mask
        while (found := hashes[slot]) != _EMPTY and found != digest:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        entries = zip(self._hashes, self._numbers, strict=True)
        if self._mask + 1 >= _MOST_SLOTS:
            self._store(entries)
            self._set_slots(_MOST_SLOTS)
            return
        self._set_slots(min(4 * (self._mask + 1), _MOST_SLOTS))
        mask = self._mask
        hashes = self._hashes
        for digest, number in entries:
            if digest != _EMPTY:
                slot = digest & mask
                while hashes[slot] != _EMPTY:
                    slot = (slot + 1) & mask
                hashes[slot] = digest
                self._numbers[slot] = number
                self._left -= 1

    def _store(self, entries: Iterable[tuple[int, int]]) -> None:
        """Adds hashes and numbers to the table on the disk; at most half of it is used."""
        fresh: list[array[int]] = [array("q") for _ in range(1 << (64 - self._shift))]
        for entry in entries:
            fresh[(entry[0] & _UNSIGNED) >> self._shift].extend(entry)
        shift = self._shift
        while 2 * self._count > _PART << (64 - shift):
            shift -= 1
        table = Column("q", Spool(), block=2 * _PART)
        for number, added in enumerate(fresh):
            known = array("q") if self._table is None else self._table.block(number)
            if shift == self._shift:
                parts = [known[:]]
            else:
                parts = [array("q", bytes(16 * _PART)) for _ in range(1 << (self._shift - shift))]
                _insert(known, parts, shift=shift)
            _insert(added, parts, shift=shift)
            for part in parts:
                table.extend_bytes(part.tobytes())
        self._table = table
        self._shift = shift

    def _find_stored(self, digest: int) -> int | None:
        """The number of a hash in the table on the disk."""
        table = self._table
        assert table is not None
        start = 2 * _PART * ((digest & _UNSIGNED) >> self._shift)
        slot = digest % _PART
        while True:
            found = table.read(start + 2 * slot, 2 * min(_PROBED, _PART - slot))
            for place in range(0, len(found), 2):
                if found[place] == digest:
                    return found[place + 1]
                if found[place] == _EMPTY:
                    return None
            slot = (slot + len(found) // 2) % _PART


def _insert(entries: array[int], parts: Sequence[array[int]], *, shift: int) -> None:
    """Puts each hash, with its number, into its part."""
    for digest, number in zip(entries[::2], entries[1::2], strict=True):
        if digest != _EMPTY:
            part = parts[((digest & _UNSIGNED) >> shift) % len(parts)]
            slot = digest % _PART
            while part[2 * slot] != _EMPTY:
                slot = (slot + 1) % _PART
            part[2 * slot] = digest
            part[2 * slot + 1] = number
