"""Numbers for very many strings, in about 30 bytes each: the strings themselves are not stored.

Strings are compared by their 64-bit hashes, which each process keys differently: with a million
strings, two would be taken for equal in one of 40 million runs.
"""

from __future__ import annotations

from array import array

_EMPTY = 0
_FIRST_SLOTS = 1024


class Interner:
    """Numbers keys from 0, in the order in which they are first seen; equal keys have the same
    number.
    """

    __slots__ = ("_count", "_hashes", "_mask", "_numbers")

    def __init__(self) -> None:
        self._count = 0
        self._mask = _FIRST_SLOTS - 1
        self._hashes = array("q", bytes(8 * _FIRST_SLOTS))
        self._numbers = array("i", bytes(4 * _FIRST_SLOTS))

    def __len__(self) -> int:
        return self._count

    def number(self, key: str | bytes) -> int:
        """The number of `key`; the length so far, if it is new."""
        digest = hash(key) or 1
        slot = self._slot(digest)
        if self._hashes[slot] != _EMPTY:
            return self._numbers[slot]
        self._numbers[slot] = self._count
        self._hashes[slot] = digest
        self._count += 1
        if 5 * self._count > 4 * self._mask:
            self._grow()
        return self._count - 1

    def find(self, key: str | bytes) -> int | None:
        """The number of `key`; None if it is unknown."""
        slot = self._slot(hash(key) or 1)
        if self._hashes[slot] == _EMPTY:
            return None
        return self._numbers[slot]

    def _slot(self, digest: int) -> int:
        """The slot where `digest` is, or would be."""
        mask = self._mask
        hashes = self._hashes
        slot = (digest ^ (digest >> 32)) & mask
        while (found := hashes[slot]) != _EMPTY and found != digest:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        hashes = self._hashes
        numbers = self._numbers
        size = 2 * (self._mask + 1)
        self._mask = size - 1
        self._hashes = array("q", bytes(8 * size))
        self._numbers = array("i", bytes(4 * size))
        for digest, number in zip(hashes, numbers, strict=True):
            if digest != _EMPTY:
                slot = self._slot(digest)
                self._hashes[slot] = digest
                self._numbers[slot] = number
