"""Row ids: computed from the content of rows without one, and checked to be unique."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from evaluator.batch.interning import Interner


def content_id(row: Mapping[str, Any]) -> str:
    """16 hexadecimal digits for a row's content; the order of its fields does not matter.

    It is the same in every version of this package, as results are found by it.
    """
    return content_digest(row, 8)


def content_digest(value: Any, size: int = 16) -> str:
    """The hash of a JSON value, two hexadecimal digits for each byte of `size`."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=size).hexdigest()


class SeenIds:
    """The ids of one pass over a source, about 40 bytes each: only hashes are stored (see
    `interning`).
    """

    __slots__ = ("_copies", "_numbers", "_wheres")

    def __init__(self) -> None:
        self._numbers = Interner()
        self._wheres = array("Q")
        self._copies: dict[int, int] = {}

    def add(self, id: str, where: int) -> int | None:
        """Stores an id with a number for its position; returns the number of an earlier equal id,
        if any.
        """
        number = self._numbers.number(id)
        if number < len(self._wheres):
            return self._wheres[number]
        self._wheres.append(where)
        return None

    def numbered(self, id: str) -> str:
        """`id` unchanged for the first row that has it, then `id-2`, `id-3`, …"""
        number = self._numbers.find(id)
        if number is None:
            return id
        self._copies[number] = self._copies.get(number, 1) + 1
        return f"{id}-{self._copies[number]}"
