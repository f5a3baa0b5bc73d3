"""The texts of a batch's results in one temporary file, so that a search reads it in large blocks.

Memory holds 16 bytes for each text. The file has no name, and goes with the process.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

BLOCK_BYTES = 4_000_000
# On a disk, where /tmp may be memory.
_FOLDER = Path("/var/tmp")


class TextStore:
    """Texts of rows, which are numbered from 0. A row's later text replaces the earlier one.

    Raises, from every method: OSError, if the file cannot be written or read.
    """

    def __init__(self) -> None:
        folder = _FOLDER if _FOLDER.is_dir() else None
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  # closed with this object
        weakref.finalize(self, self._file.close)
        # Text n is at `_starts[n]` and ends before the line end at `_starts[n + 1] - 1`.
        self._starts = array("q", [0])
        self._rows = array("i")
        self._latest = array("i")

    def add(self, texts: Iterable[tuple[int, str]]) -> None:
        """Adds the texts of rows; the row of a new text is at most the number of rows so far."""
        for row, text in texts:
            data = text.encode("utf-8", "surrogatepass")
            self._file.write(data + b"\n")
            number = len(self._rows)
            self._rows.append(row)
            self._starts.append(self._starts[-1] + len(data) + 1)
            if row == len(self._latest):
                self._latest.append(number)
            else:
                self._latest[row] = number
        self._file.flush()

    def search(self, text: str) -> bytearray:
        """1 for each row whose text contains `text`, else 0."""
        wanted = text.encode("utf-8", "surrogatepass")
        found = bytearray(len(self._latest))
        starts = self._starts
        first = 0
        count = len(self._rows)
        while first < count:
            last = min(max(bisect_right(starts, starts[first] + BLOCK_BYTES) - 1, first + 1), count)
            self._search_block(wanted, first, last=last, found=found)
            first = last
        return found

    def _search_block(self, wanted: bytes, first: int, last: int, found: bytearray) -> None:
        """Marks the rows of the texts from `first` to before `last`."""
        starts = self._starts
        base = self._starts[first]
        block = os.pread(self._file.fileno(), starts[last] - base, base)
        at = block.find(wanted)
        while at >= 0:
            number = bisect_right(starts, base + at, first, last) - 1
            end = starts[number + 1] - base
            if at + len(wanted) >= end:
                # It reaches into the next text.
                at = block.find(wanted, at + 1)
                continue
            row = self._rows[number]
            found[row] |= self._latest[row] == number
            at = block.find(wanted, end)
