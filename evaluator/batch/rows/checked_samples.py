"""Samples between their check and their evaluation: packed, in a temporary file."""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Sequence
from typing import overload

from evaluator.batch.records import Sample
from evaluator.store.columns import Spool

SLICE = 256
"""Checked samples that are written at once; so many are in memory."""
MAX_CHECKED_BYTES = 1 << 28
"""The most bytes of samples that are kept between `RowSource.check` and the first reading."""


class PackedSamples(Sequence[Sample]):
    """Packed samples, see `Sample.pack`: each is unpacked when it is read."""

    __slots__ = ("packed",)

    def __init__(self, packed: Sequence[bytes]) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed)

    def __iter__(self) -> Iterator[Sample]:
        return map(Sample.unpack, self.packed)

    @overload
    def __getitem__(self, place: int) -> Sample: ...
    @overload
    def __getitem__(self, place: slice) -> PackedSamples: ...
    def __getitem__(self, place: int | slice) -> Sample | PackedSamples:
        if isinstance(place, slice):
            return PackedSamples(self.packed[place])
        return Sample.unpack(self.packed[place])


class CheckedSamples:
    """Samples in the order in which they were checked, packed. Memory has only the last ones, a
    temporary file the others.
    """

    def __init__(self) -> None:
        self._spool = Spool()
        self._slices: list[tuple[int, int]] = []
        self._bytes = 0
        self._last: list[bytes] = []

    def append(self, sample: Sample) -> bool:
        """Adds a sample. Returns: whether all samples are kept; not those of a large source, those
        that the disk has no room for, and those that have other values than data.
        """
        last = self._last
        try:
            last.append(sample.pack())
        except ValueError:
            return False
        if len(last) < SLICE:
            return True
        data = marshal.dumps(last)
        self._bytes += len(data)
        place = None
        if self._bytes <= MAX_CHECKED_BYTES:
            place = self._spool.write(data)
        if place is None:
            return False
        self._slices.append((place, len(data)))
        self._last = []
        return True

    def slices(self) -> Iterator[PackedSamples]:
        """The samples, a slice at a time. Raises: RecordError, if the disk fails."""
        for place, size in self._slices:
            yield PackedSamples(marshal.loads(self._spool.read(place, size)))
        yield PackedSamples(self._last)
