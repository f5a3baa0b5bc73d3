"""Samples between their check and their evaluation: in a temporary file, and as data."""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Sequence
from typing import Any, overload

from evaluator.batch.records import Sample
from evaluator.store.columns import Spool

SLICE = 256
"""Checked samples that are encoded at once; so many are in memory."""
MAX_CHECKED_BYTES = 1 << 28
"""The most bytes of samples that are kept between `RowSource.check` and the first reading."""


class PackedSamples(Sequence[Sample]):
    """Samples as data, see `Sample.to_values`: each is made when it is read."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[tuple[Any, ...]]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Sample]:
        return map(Sample.from_values, self.values)

    @overload
    def __getitem__(self, place: int) -> Sample: ...
    @overload
    def __getitem__(self, place: slice) -> PackedSamples: ...
    def __getitem__(self, place: int | slice) -> Sample | PackedSamples:
        if isinstance(place, slice):
            return PackedSamples(self.values[place])
        return Sample.from_values(self.values[place])


class CheckedSamples:
    """Samples in the order in which they were checked. Memory has only the last ones, a temporary
    file the others.
    """

    def __init__(self) -> None:
        self._spool = Spool()
        self._slices: list[tuple[int, int]] = []
        self._bytes = 0
        self._last: list[Sample] = []

    def append(self, sample: Sample) -> bool:
        """Adds a sample. Returns: whether all samples are kept; not those of a large source, those
        that the disk has no room for, and those that have other values than data.
        """
        last = self._last
        last.append(sample)
        if len(last) < SLICE:
            return True
        try:
            data = marshal.dumps([sample.to_values() for sample in last])
        except ValueError:
            return False
        self._bytes += len(data)
        place = None
        if self._bytes <= MAX_CHECKED_BYTES:
            place = self._spool.write(data)
        if place is None:
            return False
        self._slices.append((place, len(data)))
        self._last = []
        return True

    def slices(self) -> Iterator[Sequence[Sample]]:
        """The samples, a slice at a time. Raises: RecordError, if the disk fails."""
        for place, size in self._slices:
            yield PackedSamples(marshal.loads(self._spool.read(place, size)))
        yield self._last
