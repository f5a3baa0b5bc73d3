"""An index of a batch's results: about 130 bytes for each, so that a large batch can be filtered,
sorted and paged.

It reads each line once, and after that only the lines that were added. Lines are read with their
checksums. Texts are read in a second pass, into a file, so that a large batch is shown before it
can be searched.
"""

from __future__ import annotations

import json
import math
import os
import struct
import threading
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from evaluator import clock
from evaluator.batch.folder import RESULTS, BatchFolder
from evaluator.batch.interning import Interner
from evaluator.batch.records import SampleResult, Verdict
from evaluator.errors import RecordError
from evaluator.viewer.server.text_store import TextStore

VERDICTS = tuple(Verdict)
SORTS = ("written", "row", "verdict", "score", "duration", "tokens", "cost")
_COLUMNS = ("row", "score", "duration", "tokens", "cost", "input_tokens", "output_tokens")
_NUMBER = {verdict.value: number for number, verdict in enumerate(VERDICTS)}
_SEARCHED = (
    "sample_id",
    "model",
    "inputs",
    "target",
    "metadata",
    "content",
    "parsed",
    "failure",
    "scores",
    "warnings",
)
_UNKNOWN = math.nan
_KEPT_SELECTIONS = 8
_RATE_S = 60.0
LINES = 1_000
"""Lines that are read at once, while requests wait."""
LITTLE_BYTES = 1_000_000
_ROW = struct.Struct("QqbHlddddddd")

Group = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ResultQuery:
    """Conditions on results, and their order. `group` is a template and a variant; None is no
    condition.
    """

    verdict: str = ""
    group: Group | None = None
    text: str = ""
    sort: str = "written"
    is_descending: bool = False


class BatchIndex:
    """The results of one batch by number, from 0, in the order in which their samples were first
    written.

    Thread-safe. `problem` says why the rest of the file was not read; empty without a reason.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = BatchFolder.reader(folder)
        self._path = folder / RESULTS
        self._lock = threading.RLock()
        self._selections: OrderedDict[ResultQuery, array[int]] = OrderedDict()
        self._left_out: frozenset[str] = frozenset()
        self._cells: frozenset[Group] = frozenset()
        self._has_rows = threading.Event()
        self._has_texts = threading.Event()
        self._has_texts.set()
        self._inode = -1
        self._reset()

    def _reset(self) -> None:
        self.problem = ""
        self._end = 0
        self._text_end = 0
        self._seen_bytes = 0
        self._keys = Interner()
        self._texts = TextStore()
        self._key_values = array("Q")
        self._offsets = array("q")
        self._verdicts = array("b")
        self._groups = array("H")
        self._epochs = array("l")
        self._columns = {name: array("d") for name in _COLUMNS}
        self._all: tuple[array[Any], ...] = (
            self._key_values,
            self._offsets,
            self._verdicts,
            self._groups,
            self._epochs,
            *self._columns.values(),
        )
        self._group_numbers: dict[Group, int] = {}
        self._selections.clear()
        self._seen: deque[tuple[float, int]] = deque(maxlen=100)

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def end(self) -> int:
        """The number of bytes that were read."""
        return self._end

    @property
    def unread(self) -> float:
        """The share of the file that is still to be read, 0 to 1."""
        if self._has_rows.is_set():
            return 0.0
        return max(0.0, 1 - self._end / (self._seen_bytes or 1))

    @property
    def unsearched(self) -> float:
        """The share of the file whose texts a search does not find yet, 0 to 1."""
        if self._has_texts.is_set():
            return 0.0
        return max(0.0, 1 - self._text_end / (self._seen_bytes or 1))

    def update(
        self,
        cells: Iterable[Group],
        left_out: Iterable[str],
        *,
        wait_s: float = math.inf,
        with_texts: bool = False,
    ) -> None:
        """Reads what was added to the file. Only results of `cells` and without the keys in
        `left_out` are selected.

        Much text is read in the background; returns after `wait_s` at the latest, see `unread`.
        `with_texts` waits also for the texts, which are read afterwards, see `unsearched`.
        """
        with self._lock:
            self._cells = frozenset(cells)
            self._left_out = frozenset(left_out)
            self._selections.clear()
            if self._has_texts.is_set():
                self._start()
        begun = clock.monotonic()
        for event in (self._has_rows, self._has_texts)[: 2 if with_texts else 1]:
            event.wait(
                None if math.isinf(wait_s) else max(0.0, wait_s - (clock.monotonic() - begun))
            )

    def _start(self) -> None:
        """Begins to read, unless nothing has changed; a little is read at once."""
        try:
            found = os.stat(self._path)
        except OSError as error:
            self.problem = f"{self._path}: cannot be read: {error.strerror}"
            self._has_rows.set()
            return
        if found.st_ino != self._inode or found.st_size < self._seen_bytes:
            self._reset()
            self._inode = found.st_ino
        if found.st_size == self._seen_bytes:
            self._has_rows.set()
            return
        self.problem = ""
        self._seen_bytes = found.st_size
        self._has_rows.clear()
        self._has_texts.clear()
        if found.st_size - self._end <= LITTLE_BYTES:
            self._read()
        else:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while self._read_rows():
                pass
            self._has_rows.set()
            while self._read_texts():
                pass
        except (RecordError, OSError) as error:
            self.problem = str(error)
        finally:
            self._has_rows.set()
            self._has_texts.set()

    # Only one thread reads at a time. It parses without the lock, so that requests need not wait
    # for it.

    def _read_rows(self) -> bool:
        """Reads some lines. False: there are no more, or one of them is no result."""
        found: list[tuple[int, int, dict[str, Any]]] = []
        problem = ""
        try:
            found.extend(islice(self._folder.entries(self._end), LINES))
        except RecordError as error:
            problem = str(error)
        with self._lock:
            new: list[tuple[Any, ...]] = []
            try:
                for offset, end, entry in found:
                    self._add(offset, entry, new=new)
                    self._end = end
            except (
                KeyError,
                TypeError,
                ValueError,
                AttributeError,
                OverflowError,
                struct.error,
            ) as error:
                problem = f"{self._path}: the line at byte {self._end} is not a result: {error!r}"
            self._append(new)
            self._selections.clear()
            self.problem = problem
            has_more = len(found) == LINES and not problem
            if not has_more:
                self._seen.append((clock.monotonic(), len(self)))
            return has_more

    def _read_texts(self) -> bool:
        """Stores the texts of some of the results that were read. False: there are no more."""
        texts: list[tuple[int, str]] = []
        text_end = self._text_end
        # What follows the rows may be damaged, or written meanwhile.
        lines = self._folder.entries(text_end)
        while text_end < self._end and len(texts) < LINES:
            _, text_end, entry = next(lines)
            texts.append((cast("int", self._keys.find(entry["key"])), _text_of(entry)))
        with self._lock:
            self._texts.add(texts)
            self._text_end = text_end
            self._selections.clear()
            return text_end < self._end

    def rate(self) -> float | None:
        """Results per second that were added lately, while somebody looked; None if that is
        unknown.
        """
        with self._lock:
            now = clock.monotonic()
            recent = [(at, count) for at, count in self._seen if now - at <= _RATE_S]
            if len(recent) < 2:
                return None
            return (len(self) - recent[0][1]) / (now - recent[0][0])

    def _add(self, offset: int, entry: Mapping[str, Any], new: list[tuple[Any, ...]]) -> None:
        """Puts a result into the columns, or into `new` if it is the first of its key.

        Raises: KeyError, TypeError, ValueError, AttributeError, OverflowError or struct.error, if
        it is not a result.
        """
        usage = entry["usage"]
        values = [
            value for score in entry["scores"].values() if (value := score["value"]) is not None
        ]
        inputs = usage.get("input_tokens", 0)
        outputs = usage.get("output_tokens", 0)
        group = (entry["template"], entry["variant"])
        key = entry["key"]
        cost = usage.get("cost_usd", 0.0)
        row_values = (
            int(key, 16),
            offset,
            _NUMBER[entry["verdict"]],
            self._group_numbers.setdefault(group, len(self._group_numbers)),
            entry["epoch"],
            entry["place"],
            sum(values) / len(values) if values else _UNKNOWN,
            entry["duration_s"],
            _UNKNOWN if inputs is None or outputs is None else inputs + outputs,
            _UNKNOWN if cost is None else cost,
            _UNKNOWN if inputs is None else inputs,
            _UNKNOWN if outputs is None else outputs,
        )
        _ROW.pack(*row_values)  # checks types and ranges
        row = self._keys.number(key)
        if row == len(self) + len(new):
            new.append(row_values)
            return
        self._append(new)
        for column, value in zip(self._all, row_values, strict=True):
            column[row] = value

    def _append(self, new: list[tuple[Any, ...]]) -> None:
        for column, values in zip(self._all, zip(*new, strict=True), strict=False):
            column.extend(values)
        new.clear()

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
            if math.isnan(total):
                return None
            return total

    def measures(self) -> list[tuple[Group, Verdict, tuple[float, float, float]]]:
        """Of each selected result: its duration in seconds, its input tokens and its output tokens
        (NaN: unknown).
        """
        with self._lock:
            groups = list(self._group_numbers)
            columns = [
                self._columns[name] for name in ("duration", "input_tokens", "output_tokens")
            ]
            return [
                (
                    groups[self._groups[row]],
                    VERDICTS[self._verdicts[row]],
                    (columns[0][row], columns[1][row], columns[2][row]),
                )
                for row in self._rows()
            ]

    def _rows(self) -> Iterable[int]:
        every = range(len(self._offsets))
        allowed = {number for group, number in self._group_numbers.items() if group in self._cells}
        if len(allowed) == len(self._group_numbers) and not self._left_out:
            return every
        out = {row for key in self._left_out if (row := self._keys.find(key)) is not None}
        return [row for row in every if self._groups[row] in allowed and row not in out]

    def select(self, wanted: ResultQuery) -> array[int]:
        """The numbers of the results that `wanted` describes, in its order."""
        with self._lock:
            found = self._selections.get(wanted)
            if found is None:
                found = self._selections[wanted] = array(
                    "l", self._sorted(self._filtered(wanted), wanted)
                )
                while len(self._selections) > _KEPT_SELECTIONS:
                    self._selections.popitem(last=False)
            self._selections.move_to_end(wanted)
            return found

    def _filtered(self, wanted: ResultQuery) -> list[int]:
        rows = list(self._rows())
        if wanted.verdict:
            number = _NUMBER.get(wanted.verdict)
            rows = [row for row in rows if self._verdicts[row] == number]
        if wanted.group is not None:
            group = self._group_numbers.get(wanted.group)
            rows = [row for row in rows if self._groups[row] == group]
        if wanted.text:
            return self._with_text(rows, wanted.text.casefold())
        return rows

    def _with_text(self, rows: list[int], text: str) -> list[int]:
        found = self._texts.search(text)
        return [row for row in rows if row < len(found) and found[row]]

    def _sorted(self, rows: list[int], wanted: ResultQuery) -> list[int]:
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
            if found is not None and self.key(found) == key:
                return found
            return None

    def result(self, row: int) -> SampleResult:
        """Raises: RecordError, if the line was changed since it was read."""
        return self._folder.read_at(self._offsets[row])


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
            waiting += [
                *cast("Mapping[Any, Any]", value),
                *cast("Mapping[Any, Any]", value).values(),
            ]
        elif isinstance(value, list):
            waiting += cast("list[Any]", value)
        elif value is not None:
            found.append(json.dumps(value))
    return found
