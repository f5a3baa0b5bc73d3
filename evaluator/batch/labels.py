"""Labels: judgements of answers of a batch by people. They are in `labels.jsonl` in its folder.

A line is one label, with a checksum as lines of results have it. Lines are only ever appended, and
each is on the disk before the next sample is shown. Of several labels of one labeller for one
result and scorer the last counts; a label is withdrawn by one with the verdict `removed`. A label
may also compare the answers of two results: it has the key of both, and no scorer.

A label belongs to a result (`SampleResult.key`) and to the text that the labeller saw: the inputs,
the target and the answer. If the result has another text now, because the sample was evaluated
again, the label is stale and does not count. Labels do not depend on what a scorer said, so they
remain valid after a change of scorers.

Several processes may append at the same time. A killed one leaves at most an incomplete last line,
which readers skip and the next one that appends removes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar, cast

from evaluator import disk
from evaluator.batch.folder import DAMAGED, LABELS
from evaluator.batch.identity import ALTERED, REPAIR, digest, is_sealed, seal_line
from evaluator.batch.records import SampleResult
from evaluator.errors import BatchDamaged, RecordError, RecordNotWritten, UsageError, advice_on
from evaluator.files.atomic import atomic_file, locked, locked_file
from evaluator.files.open_below import open_regular
from evaluator.lazy_dataclass import frozen
from evaluator.record.steps import Scrub, json_encoder

MAX_NOTE_CHARS = 10_000
MAX_NAME_CHARS = 200
_MAX_LINE_BYTES = 1_000_000
_Key = TypeVar("_Key")
_compact = json_encoder((",", ":"), ascii_only=True, allow_nan=False)


class LabelVerdict(StrEnum):
    """`undecided`: the labeller cannot decide. `removed`: the label before this one is withdrawn.
    `better`, `tie` and `worse` compare an answer with that of another result.
    """

    PASSED = "passed"
    FAILED = "failed"
    BETTER = "better"
    TIE = "tie"
    WORSE = "worse"
    UNDECIDED = "undecided"
    REMOVED = "removed"


@frozen
class Label:
    """What `labeller` says of one result.

    `key` and `identity` are those of the result, `shown` is the digest of the text that was shown.
    `scorer` is the name of the scorer whose question was answered. `value` is in [0, 1], None where
    the labeller gave only a verdict; `grade` is the name of the grade with this value, empty
    without one. `at` is an ISO time, UTC; `seconds` is how long the labeller looked at the sample,
    0 where that is unknown. `other` is the key of the result with which this one was compared;
    empty for a label of one result.

    Raises: UsageError, for a value outside [0, 1], or a text that is empty or too long.
    """

    key: str
    identity: str
    shown: str
    scorer: str
    labeller: str
    verdict: LabelVerdict
    value: float | None = None
    grade: str = ""
    note: str = ""
    at: str = ""
    seconds: float = 0.0
    other: str = ""

    def __post_init__(self) -> None:
        if self.value is not None and not 0 <= self.value <= 1:
            raise UsageError(f"the value of a label is {self.value!r}, expected one in [0, 1]")
        if not self.labeller.strip() or len(self.labeller) > MAX_NAME_CHARS:
            raise UsageError(
                f"the name of a labeller has {len(self.labeller)} characters, expected 1 to "
                f"{MAX_NAME_CHARS}"
            )
        if len(self.note) > MAX_NOTE_CHARS:
            raise UsageError(
                f"a note has {len(self.note):,} characters; at most {MAX_NOTE_CHARS:,} are stored"
            )
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise UsageError(f"the seconds of a label are {self.seconds!r}, expected at least 0")

    @property
    def passed(self) -> bool | None:
        """Whether the answer passed; None where the labeller did not decide."""
        if self.verdict in (LabelVerdict.PASSED, LabelVerdict.FAILED):
            return self.verdict is LabelVerdict.PASSED
        return None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict.value, "seconds": round(self.seconds, 3)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The label that `to_dict` made `data` from. Raises: KeyError, TypeError or ValueError, for
        anything else; UsageError, as `Label`.
        """
        values: dict[str, Any] = {name: data[name] for name in _FIELDS} | {
            "other": data.get("other", "")
        }
        for name in _TEXTS:
            if not isinstance(values[name], str):
                raise TypeError(f"{name} is not a string")
        values["verdict"] = LabelVerdict(values["verdict"])
        return cls(**values)


_FIELDS = tuple(each.name for each in fields(Label) if each.name != "other")
_TEXTS = ("key", "identity", "shown", "scorer", "labeller", "grade", "note", "at", "other")


def shown_digest(result: SampleResult) -> str:
    """The digest of the text that a labeller of `result` sees."""
    return digest([result.inputs, result.target, result.content])


class CurrentLabels:
    """The labels that count, by result: of each labeller the last one for each scorer."""

    def __init__(self, labels: Iterable[Label] = ()) -> None:
        self._by_scorer: dict[str, dict[str, dict[str, Label]]] = {}
        self._pairs: dict[tuple[str, str], dict[str, Label]] = {}
        for label in labels:
            self.add(label)

    @property
    def scorers(self) -> list[str]:
        """The scorers with labels."""
        return [scorer for scorer, found in self._by_scorer.items() if found]

    def of(self, scorer: str) -> Mapping[str, Mapping[str, Label]]:
        """The labels for `scorer`: the key of a result → labeller → label."""
        return self._by_scorer.get(scorer, {})

    @property
    def pairs(self) -> Mapping[tuple[str, str], Mapping[str, Label]]:
        """The labels that compare two results: their keys → labeller → label."""
        return self._pairs

    def shown(self, result: SampleResult) -> dict[str, list[Label]]:
        """The labels of `result` by scorer, without those of another text."""
        digest = ""
        found: dict[str, list[Label]] = {}
        for scorer, results in self._by_scorer.items():
            for label in results.get(result.key, {}).values():
                digest = digest or shown_digest(result)
                if label.shown == digest:
                    found.setdefault(scorer, []).append(label)
        return found

    def add(self, label: Label) -> None:
        if label.other:
            put_label(self._pairs, (label.key, label.other), label)
        else:
            put_label(self._by_scorer.setdefault(label.scorer, {}), label.key, label)


def majority(labels: Iterable[Label]) -> float | None:
    """What most of `labels` say: 1 passed, 0 failed, 0.5 for a tie; None where none decides."""
    return majority_of([label.passed for label in labels if label.passed is not None])


def majority_of(votes: Sequence[float]) -> float | None:
    """1, 0, or 0.5 for a tie, by the mean of votes from 0 to 1; None without a vote."""
    if not votes:
        return None
    share = sum(votes) / len(votes)
    return (share > 0.5) + 0.5 * (share == 0.5)


def put_label(found: dict[_Key, dict[str, Label]], key: _Key, label: Label) -> None:
    """Puts a label in the place of the earlier one of its labeller; `removed` leaves none."""
    labels = found.setdefault(key, {})
    # A later label is the last one in the order of its labeller too.
    labels.pop(label.labeller, None)
    if label.verdict is not LabelVerdict.REMOVED:
        labels[label.labeller] = label
    if not labels:
        del found[key]


def read_labels(folder: Path) -> list[Label]:
    """Every label that was ever written, in order; none where the batch has no labels.

    Raises: RecordError, with file and line, if a line is not a label or was changed.
    """
    path = folder / LABELS
    found: list[Label] = []
    for number, line in _lines(path):
        if not is_sealed(line):
            raise _damaged(path, number, what=f"the line {ALTERED}")
        try:
            found.append(Label.from_dict(json.loads(line)))
        except (ValueError, KeyError, TypeError, UsageError) as error:
            raise _damaged(path, number, what=f"not a label: {error}") from error
    return found


def append_labels(folder: Path, labels: Sequence[Label], scrub: Scrub | None = None) -> None:
    """Writes a line for each of `labels`, without the secrets that `scrub` knows. They are on the
    disk when this returns.

    Raises: RecordError, if they cannot be written; the file then ends where it ended before.
    """
    path = folder / LABELS
    lines = b"".join(_line(label, scrub) for label in labels)
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        descriptor = open_regular(path, flags=flags)
        try:
            with locked(descriptor):
                if os.fstat(descriptor).st_ino != os.stat(path).st_ino:
                    raise BatchDamaged(f"{path}: was replaced just now; label the sample again")
                end = _remove_incomplete_line(path, descriptor)
                try:
                    disk.write_all(descriptor, lines)
                    disk.fsync(descriptor)
                except OSError:
                    disk.ftruncate(descriptor, end)
                    raise
        finally:
            disk.close(descriptor)
        if end == 0:
            disk.sync_folder(folder)
    except OSError as error:
        raise RecordNotWritten(
            f"{path}: a label cannot be written: {error.strerror}; {advice_on(error)}"
        ) from error


def repair_labels(folder: Path) -> int:
    """Moves damaged lines to `damaged.jsonl`. Returns: their number.

    Raises: RecordError, if that fails.
    """
    path = folder / LABELS
    if all(is_sealed(line) for _, line in _lines(path)):
        return 0
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        with locked_file(path):
            damaged = [line for _, line in _lines(path) if not is_sealed(line)]
            with disk.fdopen(open_regular(folder / DAMAGED, flags=flags), "ab") as aside:
                aside.writelines(damaged)
            with atomic_file(path, error=None) as file:
                file.writelines(line for _, line in _lines(path) if is_sealed(line))
    except OSError as error:
        raise RecordError(f"{path}: cannot be repaired: {error.strerror}") from error
    return len(damaged)


def copy_labels(source: Path, target: Path) -> None:
    """Appends the labels of the batch in `source` to those of `target`. Raises: RecordError, as
    `read_labels` and `append_labels`.
    """
    labels = read_labels(source)
    if labels:
        append_labels(target, labels)


def _line(label: Label, scrub: Scrub | None) -> bytes:
    data = label.to_dict()
    if scrub is not None:
        data = cast("dict[str, Any]", scrub.redact_value(data))
    return seal_line(_compact(data))


def _remove_incomplete_line(path: Path, descriptor: int) -> int:
    """Returns: where the file ends then."""
    size = os.fstat(descriptor).st_size
    start = max(0, size - _MAX_LINE_BYTES)
    tail = os.pread(descriptor, size - start, start)
    end = start + tail.rfind(b"\n") + 1
    if end == start and start > 0:
        raise _damaged(path, None, what=f"its last line has more than {_MAX_LINE_BYTES:,} bytes")
    if end < size:
        disk.ftruncate(descriptor, end)
    return end


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Each line with its number, without an incomplete last line."""
    try:
        with open(open_regular(path), "rb") as file:
            number = 0
            while line := file.readline(_MAX_LINE_BYTES):
                number += 1
                if line.endswith(b"\n"):
                    yield number, line
                elif len(line) == _MAX_LINE_BYTES:
                    raise _damaged(
                        path, number, what=f"the line has more than {_MAX_LINE_BYTES:,} bytes"
                    )
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from error


def _damaged(path: Path, number: int | None, what: str) -> BatchDamaged:
    if number is None:
        where = f"{path}"
    else:
        where = f"{path}:{number}"
    return BatchDamaged(f"{where}: {what}; to remove damaged lines, {REPAIR}")
