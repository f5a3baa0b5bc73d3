"""An index of a batch's results: some 200 bytes for each, so that a large batch can be filtered,
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
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

from evaluator import clock
from evaluator.batch.folder import LABELS, RESULTS, BatchFolder
from evaluator.batch.labels import CurrentLabels, Label, read_labels
from evaluator.batch.records import SampleResult, Verdict
from evaluator.errors import RecordError
from evaluator.store.columns import Interner
from evaluator.viewer.server.text_store import TextStore

VERDICTS = tuple(Verdict)
COLUMNS = (
    "duration",
    "tokens",
    "cost",
    "turns",
    "warnings",
    "length",
    "input_tokens",
    "output_tokens",
)
MAX_SCORERS = 20
MAX_FIELDS = 30
MAX_VALUE_CHARS = 60
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
UNKNOWN = math.nan
_RATE_S = 60.0
LINES = 1_000
"""Lines that are read at once, while requests wait."""
LITTLE_BYTES = 1_000_000
FIRST_S = 3.0
"""How long a page waits for its first results."""
_NO_RESULT = (KeyError, TypeError, ValueError, AttributeError, OverflowError, struct.error)
_ROW = struct.Struct("QqbHllddddddddl")
_DOUBLE = struct.Struct("d")

Group = tuple[str, str]


class SampleField:
    """A field of the samples (an input, the target, a field of their metadata): for each sample the
    number of its value, or -1. Texts are cut to MAX_VALUE_CHARS.
    """

    __slots__ = ("codes", "numbers")

    def __init__(self) -> None:
        self.codes = array("l")
        self.numbers: dict[str, int] = {}

    def set(self, sample: int, value: Any) -> None:
        missing = sample + 1 - len(self.codes)
        if missing > 0:
            self.codes.extend([-1] * missing)
        self.codes[sample] = self.numbers.setdefault(field_text(value), len(self.numbers))

    def code(self, sample: int) -> int:
        if sample < len(self.codes):
            return self.codes[sample]
        return -1


def field_text(value: Any) -> str:
    """A value of a field as it is shown in a choice: a text, or else JSON."""
    if isinstance(value, str):
        return value[:MAX_VALUE_CHARS]
    return json.dumps(value, ensure_ascii=False)[:MAX_VALUE_CHARS]


class BatchIndex:
    """The results of one batch by number, from 0, in the order in which their samples were first
    written.

    Thread-safe. `problem` says why the rest of the file was not read; empty without a reason.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = BatchFolder.reader(folder)
        self._path = folder / RESULTS
        self.lock = threading.RLock()
        """Held by a reader of several columns, which may grow meanwhile."""
        self._left_out: frozenset[str] = frozenset()
        self._cells: frozenset[Group] = frozenset()
        self._has_some = threading.Event()
        self._has_rows = threading.Event()
        self._has_texts = threading.Event()
        self._has_texts.set()
        self._inode = -1
        self.version = 0
        self._labels_at: tuple[int, ...] = ()
        self._labels = CurrentLabels()
        self._reset()

    def _reset(self) -> None:
        """Forgets everything. `version` is higher after every change."""
        self.problem = ""
        self._has_some.clear()
        self.end = 0
        """The number of bytes that were read."""
        self.has_interrupted_calls = False
        """Whether calls may be billed that no cost has."""
        self._text_end = 0
        self._seen_bytes = 0
        self._keys = Interner()
        self._texts = TextStore()
        self._key_values = array("Q")
        self._offsets = array("q")
        self.verdicts = array("b")
        """By result, the place of its verdict in VERDICTS."""
        self.groups = array("H")
        """By result, the number of its template and variant; see `group_number`."""
        self._epochs = array("l")
        self.samples = array("l")
        """By result, the number of its sample; samples are numbered from 0."""
        self._columns = {name: array("d") for name in COLUMNS}
        self._all: tuple[array[Any], ...] = (
            self._key_values,
            self._offsets,
            self.verdicts,
            self.groups,
            self._epochs,
            self.samples,
            *self._columns.values(),
        )
        self._scores: dict[str, array[float]] = {}
        self._group_numbers: dict[Group, int] = {}
        self._sample_numbers = Interner()
        # The results of a sample are a list: its first one, and after each result the next one.
        self.places = array("l")
        """By sample, its place in the source of rows."""
        self._sample_hashes = array("q")
        self._first = array("l")
        self._last = array("l")
        self._next = array("l")
        self.fields: dict[str, SampleField] = {}
        """The fields of samples, as `input.NAME`, `target` and `meta.NAME`."""
        self.version += 1
        self._seen: deque[tuple[float, int]] = deque(maxlen=100)

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def unread(self) -> float:
        """The share of the file that is still to be read, 0 to 1."""
        if self._has_rows.is_set():
            return 0.0
        return max(0.0, 1 - self.end / (self._seen_bytes or 1))

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

        Much text is read in the background; returns after `wait_s`, see `unread`, or on a busy
        machine when the first results are there, after FIRST_S at the latest.
        `with_texts` waits also for the texts, which are read afterwards, see `unsearched`.
        """
        with self.lock:
            chosen = (frozenset(cells), frozenset(left_out))
            if chosen != (self._cells, self._left_out):
                self._cells, self._left_out = chosen
                self.version += 1
            self._read_labels()
            if self._has_texts.is_set():
                self._start()
        begun = clock.monotonic()
        for event in (self._has_rows, self._has_texts)[: 2 if with_texts else 1]:
            event.wait(
                None if math.isinf(wait_s) else max(0.0, wait_s - (clock.monotonic() - begun))
            )
        self._has_some.wait(FIRST_S)

    def _read_labels(self) -> None:
        """Reads the labels, if they have changed. Damaged ones are left out: the numbers of the
        batch say where the damage is.
        """
        try:
            found = os.stat(self._path.with_name(LABELS))
            at = (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            at = ()
        if at == self._labels_at:
            return
        self._labels_at = at
        self.version += 1
        try:
            self._labels = CurrentLabels(read_labels(self._path.parent))
        except RecordError:
            self._labels = CurrentLabels()

    def _start(self) -> None:
        """Begins to read, unless nothing has changed; a little is read at once."""
        try:
            found = os.stat(self._path)
        except OSError as error:
            self.problem = f"{self._path}: cannot be read: {error.strerror}"
            self._has_some.set()
            self._has_rows.set()
            return
        if found.st_ino != self._inode or found.st_size < self._seen_bytes:
            self._reset()
            self._inode = found.st_ino
        if found.st_size == self._seen_bytes:
            self._has_some.set()
            self._has_rows.set()
            return
        self.problem = ""
        self._seen_bytes = found.st_size
        self._has_rows.clear()
        self._has_texts.clear()
        if found.st_size - self.end <= LITTLE_BYTES:
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
            self._has_some.set()
            self._has_rows.set()
            self._has_texts.set()

    # Only one thread reads at a time. It parses without the lock, so that requests need not wait
    # for it.

    def _read_rows(self) -> bool:
        """Reads some lines. False: there are no more, or one of them is no result."""
        found: list[tuple[int, int, dict[str, Any]]] = []
        problem = ""
        try:
            found.extend(islice(self._folder.entries(self.end), LINES))
        except RecordError as error:
            problem = str(error)
        with self.lock:
            new: list[tuple[Any, ...]] = []
            try:
                for offset, end, entry in found:
                    self._add(offset, entry, new=new)
                    self.end = end
            except _NO_RESULT as error:
                problem = f"{self._path}: the line at byte {self.end} is not a result: {error!r}"
            self._append(new)
            self._has_some.set()
            self.version += bool(found)
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
        while text_end < self.end and len(texts) < LINES:
            _, text_end, entry = next(lines)
            text = "\n".join(_texts(entry.get(name) for name in _SEARCHED)).casefold()
            texts.append((cast("int", self._keys.find(entry["key"])), text))
        with self.lock:
            self._texts.add(texts)
            self._text_end = text_end
            self.version += 1
            return text_end < self.end

    def rate(self) -> float | None:
        """Results per second that were added lately, while somebody looked; None if that is
        unknown.
        """
        with self.lock:
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
        scores = entry["scores"]
        inputs = usage.get("input_tokens", 0)
        outputs = usage.get("output_tokens", 0)
        group = (entry["template"], entry["variant"])
        key = entry["key"]
        cost = usage.get("cost_usd", 0.0)
        place = entry["place"]
        values = {name: score["value"] for name, score in scores.items()}
        if not isinstance(entry["sample_id"], str):
            raise TypeError("the sample_id is text")
        sample = self._sample_numbers.find(entry["sample_id"])
        row_values = (
            int(key, 16),
            offset,
            _NUMBER[entry["verdict"]],
            self._group_numbers.get(group, len(self._group_numbers)),
            entry["epoch"],
            len(self._first) if sample is None else sample,
            entry["duration_s"],
            UNKNOWN if inputs is None or outputs is None else inputs + outputs,
            UNKNOWN if cost is None else cost,
            usage.get("turns", 0),
            len(entry["warnings"]),
            len(entry["content"]),
            UNKNOWN if inputs is None else inputs,
            UNKNOWN if outputs is None else outputs,
        )
        _ROW.pack(*row_values, place)  # checks types and ranges
        self.has_interrupted_calls |= entry["interrupted_calls"] > 0
        fields = _fields_of(entry)
        for value in values.values():
            if value is not None:
                _DOUBLE.pack(value)
        self._group_numbers.setdefault(group, len(self._group_numbers))
        row = self._keys.number(key)
        if row == len(self) + len(new):
            new.append(row_values)
            self._add_to_sample(row, entry["sample_id"], place=place, fields=fields)
        else:
            self._append(new)
            for column, value in zip(self._all, row_values, strict=True):
                column[row] = value
        for name, value in values.items():
            self._set_score(row, name, value=value)

    def _add_to_sample(
        self, row: int, sample_id: str, place: int, fields: Mapping[str, Any]
    ) -> None:
        sample = self._sample_numbers.number(sample_id)
        self._next.append(-1)
        if sample < len(self._first):
            self._next[self._last[sample]] = row
            self._last[sample] = row
            return
        self._first.append(row)
        self._last.append(row)
        self.places.append(place)
        self._sample_hashes.append(hash(sample_id))
        for name, value in fields.items():
            known = self.fields.get(name)
            if known is None and len(self.fields) < MAX_FIELDS:
                known = self.fields[name] = SampleField()
            if known is not None:
                known.set(sample, value)

    def _set_score(self, row: int, name: str, value: float | None) -> None:
        column = self._scores.get(name)
        if column is None:
            if len(self._scores) == MAX_SCORERS:
                return
            column = self._scores[name] = array("d")
        missing = row + 1 - len(column)
        if missing > 0:
            column.extend([UNKNOWN] * missing)
        column[row] = UNKNOWN if value is None else value

    def _append(self, new: list[tuple[Any, ...]]) -> None:
        for column, values in zip(self._all, zip(*new, strict=True), strict=False):
            column.extend(values)
        new.clear()

    def counts(self) -> Counter[Verdict]:
        """The number of selected results with each verdict."""
        with self.lock:
            counted = Counter(map(self.verdicts.__getitem__, self.rows()))
            return Counter({VERDICTS[number]: count for number, count in counted.items()})

    def cost(self) -> float | None:
        """The cost of the selected results; None if one is unknown."""
        with self.lock:
            total = math.fsum(map(self._columns["cost"].__getitem__, self.rows()))
        return None if math.isnan(total) else total

    def measures(self) -> list[tuple[Group, Verdict, tuple[float, float, float]]]:
        """Of each selected result: its duration in seconds, its input tokens and its output tokens
        (NaN: unknown).
        """
        with self.lock:
            groups = list(self._group_numbers)
            durations, inputs, outputs = (
                self._columns[name] for name in ("duration", "input_tokens", "output_tokens")
            )
            return [
                (
                    groups[self.groups[row]],
                    VERDICTS[self.verdicts[row]],
                    (durations[row], inputs[row], outputs[row]),
                )
                for row in self.rows()
            ]

    def rows(self) -> Sequence[int]:
        """The numbers of the selected results, in the order in which they were first written."""
        every = range(len(self._offsets))
        allowed = {number for group, number in self._group_numbers.items() if group in self._cells}
        if len(allowed) == len(self._group_numbers) and not self._left_out:
            return every
        out = {row for key in self._left_out if (row := self._keys.find(key)) is not None}
        return [row for row in every if self.groups[row] in allowed and row not in out]

    @property
    def scorers(self) -> list[str]:
        return list(self._scores)

    def group_number(self, group: Group) -> int | None:
        return self._group_numbers.get(group)

    def column(self, name: str) -> Sequence[float] | None:
        """Values by result, which may end early; None for an unknown name. NaN: unknown."""
        if name.startswith("score."):
            return self._scores.get(name.removeprefix("score."))
        return self._columns.get(name)

    def with_text(self, text: str) -> bytearray:
        """1 for each result whose texts contain `text` (case-folded), else 0; may end early."""
        return self._texts.search(text)

    def results_of(self, sample: int) -> list[int]:
        """The numbers of a sample's results, by epoch."""
        found: list[int] = []
        row = self._first[sample]
        while row >= 0:
            found.append(row)
            row = self._next[row]
        return sorted(found, key=self._epochs.__getitem__)

    def key(self, row: int) -> str:
        return f"{self._key_values[row]:016x}"

    def sample_key(self, row: int) -> tuple[int, int]:
        """Sample and epoch of a result, in a form that indexes of this process share."""
        return self._sample_hashes[self.samples[row]], self._epochs[row]

    def row(self, key: str) -> int | None:
        """The number of the result with that key; None if there is none."""
        with self.lock:
            found = self._keys.find(key)
            # The interner compares hashes.
            if found is not None and self.key(found) == key:
                return found
            return None

    @property
    def stamp(self) -> tuple[int, ...]:
        """What results and labels there are; changes with every one that is added."""
        return (self.end, *self._labels_at)

    def labelled(self) -> list[int]:
        """The numbers of the results that have a label."""
        labels = self._labels
        keys = {key for scorer in labels.scorers for key in labels.of(scorer)}
        keys.update(key for both in labels.pairs for key in both)
        return [row for key in keys if (row := self.row(key)) is not None]

    def labels_of(self, row: int) -> list[Label]:
        """The labels of a result, without comparisons with another one."""
        key = self.key(row)
        labels = self._labels
        return [
            label for scorer in labels.scorers for label in labels.of(scorer).get(key, {}).values()
        ]

    def result(self, row: int) -> SampleResult:
        """Raises: RecordError, if the line was changed since it was read."""
        return self._folder.read_at(self._offsets[row])


def _fields_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a sample by which rows are sorted, filtered and grouped."""
    found = {f"input.{name}": value for name, value in entry["inputs"].items()}
    if entry["target"] is not None:
        found["target"] = entry["target"]
    return found | {f"meta.{name}": value for name, value in entry["metadata"].items()}


def _texts(values: Iterable[Any]) -> list[str]:
    """Every text and name in JSON values, at any depth."""
    found: list[str] = []
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, Mapping):
            inner = cast("Mapping[Any, Any]", value)
            waiting += [*inner, *inner.values()]
        elif isinstance(value, list):
            waiting += cast("list[Any]", value)
        elif value is not None:
            found.append(json.dumps(value))
    return found
