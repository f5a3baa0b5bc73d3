"""Ids: of rows that have none, and that no two rows share one."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any


def content_id(row: Mapping[str, Any]) -> str:
    """16 hexadecimal digits of a row's content; the order of its fields does not matter.

    Stays the same in every version of this package: results are found again by it.
    """
    text = json.dumps(row, sort_keys=True, separators=(",", ":"))
    return blake2b(text.encode(), digest_size=8).hexdigest()


class SeenIds:
    """The ids of one pass over a source, about 100 bytes each.

    Ids are held as 64-bit hashes, keyed anew in each process: of a million ids, one in 40 million runs would take two
    for the same.
    """

    __slots__ = ("_copies", "_digests", "_order", "_wheres")

    def __init__(self) -> None:
        self._digests: set[int] = set()
        self._order, self._wheres = array("q"), array("Q")
        self._copies: dict[int, int] = {}

    def add(self, id: str, where: int) -> int | None:
        """Takes an id down, with a number that says where it is; the number of the earlier one, if it was there."""
        digest = hash(id)
        if digest in self._digests:
            return self._wheres[self._order.index(digest)]
        self._digests.add(digest)
        self._order.append(digest)
        self._wheres.append(where)
        return None

    def numbered(self, id: str) -> str:
        """`id` as it is for the first row that has it, then `id-2`, `id-3`, …"""
        digest = hash(id)
        if digest not in self._digests:
            return id
        self._copies[digest] = self._copies.get(digest, 1) + 1
        return f"{id}-{self._copies[digest]}"
