"""An index of a batch's results: about 90 bytes for each, so that a large batch can be filtered, sorted and paged.

It reads each line once, and after that only the lines that were added. Lines are read with their checksums. A text is
searched in the file itself, not in memory.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from evaluator.batch.folder import RESULTS, BatchFolder
from evaluator.batch.interning import Interner
from evaluator.batch.records import SampleResult, Verdict
from evaluator.errors import RecordError

VERDICTS = tuple(Verdict)
SORTS = ("written", "row", "verdict", "score", "duration", "tokens", "cost")
_NUMBER = {verdict.value: number for number, verdict in enumerate(VERDICTS)}
_PLAIN_RUN = re.compile(r"[a-z0-9 ]+")
_SEARCHED = ("sample_id", "model", "inputs", "target", "metadata", "content", "parsed", "failure", "scores", "warnings")
_UNKNOWN = math.nan
_KEPT_SELECTIONS = 8
_RATE_S = 60.0

Group = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions on results, and their order. `group` is a template and a variant; None is no condition."""

    verdict: str = ""
    group: Group | None = None
    text: str = ""
    sort: str = "written"
    is_descending: bool = False


class BatchIndex:
    """The results of one batch by number, from 0, in the order in which their samples were first written.

    Thread-safe. `problem` says why the rest of the file was not read; empty without a reason.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = BatchFolder.reader(folder)
        self._path = folder / RESULTS
        self._lock = threading.RLock()
        self._selections: OrderedDict[Selection, array[int]] = OrderedDict()
        self._left_out: frozenset[str] = frozenset()
        self._reset()

    def _reset(self) -> None:
        self.problem = ""
        self._end, self._inode = 0, -1
        self._keys = Interner()
        self._key_values, self._offsets = array("Q"), array("q")
        self._verdicts, self._groups, self._epochs = array("b"), array("H"), array("l")
        self._columns = {name: array("d") for name in SORTS if name not in ("written", "verdict")}
        self._group_numbers: dict[Group, int] = {}
        self._selections.clear()
        self._seen: deque[tuple[float, int]] = deque(maxlen=100)

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def end(self) -> int:
        """The number of bytes that were read."""
        return self._end

    def update(self, cells: Iterable[Group], left_out: Iterable[str]) -> None:
        """Reads what was added to the file. Only results of `cells` and without the keys in `left_out` are selected."""
        with self._lock:
            self._cells, self._left_out = frozenset(cells), frozenset(left_out)
            try:
                found = os.stat(self._path)
            except OSError as error:
                self.problem = f"{self._path}: cannot be read: {error.strerror}"
                return
            if found.st_ino != self._inode or found.st_size < self._end:
                self._reset()
                self._inode = found.st_ino
            if found.st_size == self._end:
                return
            self.problem = ""
            self._selections.clear()
            try:
                for offset, end, entry in self._folder.entries(self._end):
                    self._add(offset, entry)
                    self._end = end
            except (RecordError, OSError) as error:
                self.problem = str(error)
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                self.problem = f"{self._path}: the line at byte {self._end} is not a result: {error!r}"
            self._seen.append((time.monotonic(), len(self)))

    def rate(self) -> float | None:
        """Results per second that were added lately, while somebody looked; None if that is unknown."""
        with self._lock:
            now = time.monotonic()
            recent = [(at, count) for at, count in self._seen if now - at <= _RATE_S]
            if len(recent) < 2:
                return None
            return (len(self) - recent[0][1]) / (now - recent[0][0])

    def _add(self, offset: int, entry: Mapping[str, Any]) -> None:
        usage, scores = entry["usage"], entry["scores"].values()
        values = [score["value"] for score in scores if score["value"] is not None]
        tokens = [usage.get(name, 0) for name in ("input_tokens", "output_tokens")]
        group = (entry["template"], entry["variant"])
        group_number = self._group_numbers.setdefault(group, len(self._group_numbers))
        figures = {
            "row": entry["place"],
            "score": sum(values) / len(values) if values else _UNKNOWN,
            "duration": entry["duration_s"],
            "tokens": _UNKNOWN if None in tokens else sum(tokens),
            "cost": _number(usage.get("cost_usd", 0.0)),
        }
        key = entry["key"]
        whole = (int(key, 16), offset, _NUMBER[entry["verdict"]], group_number, entry["epoch"])
        columns = (self._key_values, self._offsets, self._verdicts, self._groups, self._epochs)
        row = self._keys.number(key)
        for column, value in (*zip(columns, whole, strict=True), *((self._columns[n], v) for n, v in figures.items())):
            if row == len(column):
                column.append(cast("Any", value))
            else:
                column[row] = cast("Any", value)

    def counts(self) -> Counter[Verdict]:
        """The number of selected results with each verdict."""
        with self._lock:
            verdicts = self._verdicts
            counted = Counter(verdicts[row] for row in self._rows())
            return Counter({VERDICTS[number]: count for number, count in counted.items()})

    def cost(self) -> float | None:
        """The cost of the selected results; None if one is unknown."""
        with self._lock:
            total = math.fsum(self._columns["cost"][row] for row in self._rows())
            return None if math.isnan(total) else total

    def _rows(self) -> Iterable[int]:
        every = range(len(self._offsets))
        allowed = {number for group, number in self._group_numbers.items() if group in self._cells}
        if len(allowed) == len(self._group_numbers) and not self._left_out:
            return every
        out = {row for key in self._left_out if (row := self._keys.find(key)) is not None}
        return [row for row in every if self._groups[row] in allowed and row not in out]

    def select(self, wanted: Selection) -> array[int]:
        """The numbers of the results that `wanted` describes, in its order."""
        with self._lock:
            found = self._selections.get(wanted)
            if found is None:
                found = self._selections[wanted] = array("l", self._sorted(self._filtered(wanted), wanted))
                while len(self._selections) > _KEPT_SELECTIONS:
                    self._selections.popitem(last=False)
            self._selections.move_to_end(wanted)
            return found

    def _filtered(self, wanted: Selection) -> list[int]:
        rows = list(self._rows())
        if wanted.verdict:
            number = _NUMBER.get(wanted.verdict)
            rows = [row for row in rows if self._verdicts[row] == number]
        if wanted.group is not None:
            group = self._group_numbers.get(wanted.group)
            rows = [row for row in rows if self._groups[row] == group]
        return self._with_text(rows, wanted.text.casefold()) if wanted.text else rows

    def _with_text(self, rows: list[int], text: str) -> list[int]:
        """Lines are compared as bytes first; only those with the longest plain part of the text are parsed."""
        part = max(_PLAIN_RUN.findall(text), key=len, default="").encode()
        found: list[int] = []
        with open(self._path, "rb") as file:
            for row in sorted(rows, key=self._offsets.__getitem__):
                file.seek(self._offsets[row])
                line = file.readline()
                if part in line.lower() and text in _text_of(json.loads(line)):
                    found.append(row)
        return sorted(found)

    def _sorted(self, rows: list[int], wanted: Selection) -> list[int]:
        if wanted.sort == "verdict":
            rows.sort(key=self._verdicts.__getitem__, reverse=wanted.is_descending)
        elif wanted.sort in self._columns:
            column = self._columns[wanted.sort]
            # Unknown values are last in both directions.
            known = [row for row in rows if not math.isnan(column[row])]
            unknown = [row for row in rows if math.isnan(column[row])]
            known.sort(key=column.__getitem__, reverse=wanted.is_descending)
            rows = known + unknown
        elif wanted.is_descending:
            rows.reverse()
        return rows

    def key(self, row: int) -> str:
        return f"{self._key_values[row]:016x}"

    def row(self, key: str) -> int | None:
        """The number of the result with that key; None if there is none."""
        with self._lock:
            found = self._keys.find(key)
            # The interner compares hashes.
            return found if found is not None and self.key(found) == key else None

    def result(self, row: int) -> SampleResult:
        """Raises: RecordError, if the line was changed since it was read."""
        return self._folder.read_at(self._offsets[row])


def _number(value: Any) -> float:
    return value if isinstance(value, (int, float)) else _UNKNOWN


def _text_of(entry: Mapping[str, Any]) -> str:
    return "\n".join(_texts(entry.get(name) for name in _SEARCHED)).casefold()


def _texts(values: Iterable[Any]) -> list[str]:
    """Every text and name in JSON values, at any depth."""
    found: list[str] = []
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, Mapping):
            waiting += [*cast("Mapping[Any, Any]", value), *cast("Mapping[Any, Any]", value).values()]
        elif isinstance(value, list):
            waiting += cast("list[Any]", value)
        elif value is not None:
            found.append(json.dumps(value))
    return found


class IndexCache:
    """The indexes of the batches that were looked at last."""

    def __init__(self, size: int = 4) -> None:
        self._size = size
        self._indexes: OrderedDict[Path, BatchIndex] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, folder: Path) -> BatchIndex:
        """Raises: RecordError, if there is no batch."""
        with self._lock:
            found = self._indexes.get(folder)
            if found is None:
                found = self._indexes[folder] = BatchIndex(folder)
                while len(self._indexes) > self._size:
                    self._indexes.popitem(last=False)
            self._indexes.move_to_end(folder)
            return found
