"""Segments: the records of many tasks in one append-only file, and how they are read.

`tasks/segments/SEGMENT-17.md` is a sequence of frames. A frame is an opening line and a line with
the next records of one task, as JSON (`entries`):

    <!-- running 17 612 6c1f09aa d2037e5b -->
    ["90d5c1f3a87be2460d1f6b9a3c45e870",["header",0,null,[17,…]],["begin",1,null,["turn[1]",…]]]

The first line has the status of the task after the frame, the task's id, the number of bytes, their
CRC-32, and the CRC-32 of the line so far, seeded with that of the frame before. The text before the
records signs them and, through the signature before, the earlier frames of the task. `task_file`
makes the task file of all of them, byte for byte as a run of its own writes it. Frames of earlier
versions have the bytes of that file themselves.

The first frame (`segment`) names the process that writes the file. It holds the file's lock as long
as it may append. `released` is a frame without bytes: that process does not continue the task. The
last frame (`index`) lists all tasks with their frames; where it is missing, as after a kill, the
frames are read instead. A file that ends inside a frame is torn: the frame does not count. Any
other difference is damage, and only the frames before it are read.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import re
from collections.abc import Mapping
from dataclasses import field, replace
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast, get_args
from zlib import crc32

from evaluator import disk
from evaluator.errors import CorruptRecord, EvaluatorError, RecordError
from evaluator.files.atomic import try_lock, unlock, write_atomic
from evaluator.files.open_below import open_regular
from evaluator.files.trust import signing_key
from evaluator.lazy_dataclass import dataclass
from evaluator.patterns import BytesPattern, Pattern
from evaluator.record import grammar
from evaluator.record.encoding import STATUS_HINTS, Chain, encode, record_signature
from evaluator.record.entries import read_entry
from evaluator.record.steps import FinalStatus, Header
from evaluator.store.owners import Owner, is_gone, parse_owner

FOLDER = "segments"
PackedStatus = Literal["running", "released", "completed", "failed", "aborted"]
ENDED: tuple[FinalStatus, ...] = get_args(FinalStatus)
FRAME_HEAD = BytesPattern(
    rb"<!-- (segment|index|running|released|completed|failed|aborted) "
    rb"([0-9]{1,18}) ([0-9]{1,12}) ([0-9a-f]{8}) ([0-9a-f]{8}) -->\n"
)
_NAME = Pattern(r"SEGMENT-([0-9]{1,18})\.md")
_TRAILER = BytesPattern(
    rb"<!-- index at ([0-9]{18}), last task ([0-9]{18}), unfinished ([0-9]{18}) -->\n"
)
_TRAILER_TEXT = b"<!-- index at %018d, last task %018d, unfinished %018d -->\n"
_TRAILER_BYTES = len(_TRAILER_TEXT % (0, 0, 0))
_CHECKSUM_BYTES = len("00000000 -->\n")
_MAX_HEAD_BYTES = 128
_MAX_FRAME_BYTES = 1_000_000_000
# Indexes in memory: one has up to 10,000 tasks.
_CACHED = 8
_STATUSES = frozenset(get_args(PackedStatus))
_RECORDS = BytesPattern(rb'\["([0-9a-f]{32}|)",(.*)\]\n', "s")
# What parsing, reading and encoding raise for records that nobody wrote with this package.
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    EvaluatorError,
)


def frame_head(kind: str, number: int, data: bytes, chain: int) -> tuple[bytes, int]:
    """The opening line of a frame with `data`, and the checksum that the next one is chained to."""
    line = b"<!-- %b %d %d %08x " % (kind.encode(), number, len(data), crc32(data))
    chain = crc32(line, chain)
    return b"%b%08x -->\n" % (line, chain), chain


def make_frame(body: bytes, previous: bytes, key: bytes | None) -> tuple[bytes, bytes]:
    """The content of a frame with the records `body`, and its signature; `previous` is that of the
    task's frame before.
    """
    signature = b""
    if key is not None:
        signature = record_signature(key, previous, line=b"frame", body=body)
    return b'["%b",%b]\n' % (signature, body), signature


@dataclass(slots=True)
class PackedTask:
    """A task in a segment. `places`: offset and length of each frame's bytes, one after the
    other.
    """

    id: int
    status: PackedStatus = "running"
    labels: Mapping[str, Any] | None = None
    places: list[int] = field(default_factory=list[int])


@dataclass(slots=True)
class SegmentIndex:
    """What is known of a segment. `offset` and `chain` are those of the end of the whole frames.

    `is_complete`: the index frame was read, and nothing follows. `damage` is why the frames after
    `offset` cannot be read.
    """

    path: Path
    offset: int = 0
    chain: int = 0
    owner: Owner | None = None
    tasks: dict[int, PackedTask] = field(default_factory=dict[int, PackedTask])
    is_complete: bool = False
    damage: CorruptRecord | None = None

    def read_on(self) -> None:
        """Reads the frames that were added since. Raises: RecordError, if the file cannot be
        read.
        """
        if self.is_complete:
            return
        with _opened(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            if size == self.offset or self.damage is not None:
                return
            if self.offset == 0 and self._read_index(file, size):
                return
            file.seek(self.offset)
            try:
                while self.offset < size and not self.is_complete:
                    if not self._read_frame(file, size):
                        return
            except CorruptRecord as error:
                self.damage = error

    def read_owner(self) -> None:
        """Reads the first frame only. Raises: RecordError, if the file cannot be read."""
        with _opened(self.path) as file, contextlib.suppress(CorruptRecord):
            self._read_frame(file, os.fstat(file.fileno()).st_size)

    def _read_index(self, file: BinaryIO, size: int) -> bool:
        """Takes the index frame at the end of the file, and the owner from the first frame. False,
        if there is no such frame.
        """
        trailer = _trailer_of(file, size)
        if trailer is None:
            return False
        at = int(trailer[1])
        file.seek(at)
        head = FRAME_HEAD.fullmatch(file.readline(_MAX_HEAD_BYTES))
        if head is None or head[1] != b"index" or file.tell() + int(head[3]) != size:
            return False
        body = file.read(int(head[3]))
        if crc32(body) != int(head[4], 16):
            return False
        file.seek(0)
        try:
            tasks = _read_rows(body[:-_TRAILER_BYTES], end=at)
            self._read_frame(file, at)
        except (ValueError, TypeError, LookupError, RecursionError, CorruptRecord):
            # The frames themselves tell what is wrong.
            self.offset = self.chain = 0
            return False
        self.tasks = tasks
        self.offset = size
        self.is_complete = True
        return True

    def _read_frame(self, file: BinaryIO, size: int) -> bool:
        """Reads the frame at `offset`. False, if the file ends inside it. Raises: CorruptRecord."""
        line = file.readline(_MAX_HEAD_BYTES)
        head = FRAME_HEAD.fullmatch(line)
        if head is None:
            return self._is_torn(file, size, "a frame was expected")
        kind = head[1].decode()
        number = int(head[2])
        length = int(head[3])
        chain = crc32(line[:-_CHECKSUM_BYTES], self.chain)
        if chain != int(head[5], 16) or length > _MAX_FRAME_BYTES:
            return self._is_torn(file, size, "a frame's opening line has been changed")
        start = self.offset + len(line)
        if start + length > size:
            return False
        data = file.read(length)
        if crc32(data) != int(head[4], 16):
            return self._is_torn(file, size, "a frame's content has been changed")
        self._take(kind, number, start=start, data=data)
        self.offset = start + length
        self.chain = chain
        return True

    def _take(self, kind: str, number: int, start: int, data: bytes) -> None:
        if kind == "segment":
            self.owner = parse_owner(_first_line(data))
        elif kind == "index":
            self.is_complete = True
        else:
            task = self.tasks.get(number)
            if task is None:
                task = PackedTask(number, labels=_labels_in(data))
                self.tasks[number] = task
            task.status = cast("PackedStatus", kind)
            if data:
                task.places += (start, len(data))

    def _is_torn(self, file: BinaryIO, size: int, message: str) -> bool:
        """False, if a loss of power or a kill cut the file here. Raises: CorruptRecord, for
        anything else.
        """
        file.seek(self.offset)
        rest = file.read()
        written = rest.rstrip(b"\0")
        line, newline, body = written.partition(b"\n")
        if not newline and len(line) < _MAX_HEAD_BYTES and (not line or line.startswith(b"<")):
            # Nothing, or a part of an opening line; blocks that were never written are zero.
            return False
        head = FRAME_HEAD.fullmatch(line + newline)
        if (
            head is not None
            and crc32((line + newline)[:-_CHECKSUM_BYTES], self.chain) == int(head[5], 16)
            and int(head[3]) > len(body)
        ):
            return False
        file.seek(0)
        line_number = file.read(self.offset).count(b"\n") + 1
        raise CorruptRecord(str(self.path), line_number, offset=self.offset, message=message)


def _first_line(data: bytes) -> str:
    """The owner in the first frame, which is a comment in its last line."""
    found = re.search(rb"<!-- owner (.*) -->", data)
    if found is None:
        return ""
    return found[1].decode("utf-8", "replace")


def _opened(path: Path) -> BinaryIO:
    try:
        return cast("BinaryIO", open(open_regular(path), "rb"))
    except OSError as error:
        raise RecordError(f"{path}: cannot read the segment: {error.strerror}") from error


def _trailer_of(file: BinaryIO, size: int) -> re.Match[bytes] | None:
    return _TRAILER.fullmatch(
        os.pread(file.fileno(), _TRAILER_BYTES, max(0, size - _TRAILER_BYTES))
    )


def index_body(tasks: Mapping[int, PackedTask], at: int, last: int) -> bytes:
    """The content of the index frame that begins at byte `at`; `last` is the highest id."""
    rows = [[task.id, task.status, task.labels, task.places] for task in tasks.values()]
    text = json.dumps({"tasks": rows}, separators=(",", ":"), check_circular=False)
    unfinished = sum(task.status not in ENDED for task in tasks.values())
    return text.encode() + b"\n" + _TRAILER_TEXT % (at, last, unfinished)


def _read_rows(body: bytes, end: int) -> dict[int, PackedTask]:
    """The tasks in an index. Raises: ValueError and others, for one that names bytes outside the
    frames, which end at `end`, and for anything else that is not an index.
    """
    tasks: dict[int, PackedTask] = {}
    for number, status, labels, places in json.loads(body)["tasks"]:
        if type(number) is not int or status not in _STATUSES:
            raise ValueError("a row of the index has no task")
        for offset, length in zip(places[::2], places[1::2], strict=True):
            is_whole = type(offset) is int and type(length) is int
            if not is_whole or not 0 <= offset <= offset + length <= end:
                raise ValueError("a row of the index names other bytes than frames")
        if not isinstance(labels, dict):
            labels = None
        tasks[number] = PackedTask(number, status, labels, places)
    return tasks


def labels_of(header: Header | None) -> Mapping[str, Any] | None:
    """The labels of a task's header."""
    labels: object = None
    if header is not None:
        labels = header.extra.get("labels")
    if labels is not None and isinstance(labels, Mapping):
        return cast("Mapping[str, Any]", labels)
    return None


def is_live(index: SegmentIndex) -> bool:
    """Whether a process may still append to the segment."""
    if index.is_complete:
        return False
    try:
        descriptor = open_regular(index.path)
    except OSError:
        return False
    try:
        if try_lock(descriptor, shared=True):
            unlock(descriptor)
            return False
    except OSError:
        return False  # a file system without locks
    finally:
        disk.close(descriptor)
    return not is_gone(index.owner)


class Segments:
    """The segments of a folder of task files, for reading."""

    def __init__(self, root: Path) -> None:
        self.folder = root / FOLDER
        self._cache: dict[int, SegmentIndex] = {}

    def numbers(self) -> list[int]:
        """The numbers of the segments, highest first. Raises: RecordError."""
        try:
            names = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise RecordError(f"{self.folder}: cannot be listed: {error.strerror}") from error
        if self.folder.is_symlink():
            raise RecordError(f"{self.folder}: is a link; links are not followed")
        matches = (_NAME.fullmatch(name) for name in names)
        numbers = (int(match[1]) for match in matches if match is not None)
        return sorted(numbers, reverse=True)

    def path(self, number: int) -> Path:
        return self.folder / f"SEGMENT-{number}.md"

    def index(self, number: int) -> SegmentIndex:
        """The index of a segment, as far as it is written now. Raises: RecordError."""
        index = self._cache.pop(number, None) or SegmentIndex(self.path(number))
        index.read_on()
        self._cache[number] = index
        while len(self._cache) > _CACHED:
            del self._cache[next(iter(self._cache))]
        return index

    def cut(self, number: int) -> None:
        """Ends a damaged segment before the damage. A copy stays as `SEGMENT-N.md.damaged-1`.

        Raises: RecordError, if it cannot be written.
        """
        index = self._cache.pop(number)
        path = index.path
        copies = (path.with_name(f"{path.name}.damaged-{turn}") for turn in count(1))
        copy = next(each for each in copies if not each.exists())
        try:
            disk.link(path, copy)
        except OSError as error:
            raise RecordError(f"{copy}: cannot be written: {error.strerror}") from error
        with _opened(path) as file:
            whole = file.read(index.offset)
        write_atomic(path, whole)

    def owner(self, number: int) -> Owner | None:
        """The process that wrote a segment. Raises: RecordError."""
        cached = self._cache.get(number) or SegmentIndex(self.path(number))
        if cached.owner is None:
            cached.read_owner()
        return cached.owner

    def find(self, task_id: int) -> tuple[SegmentIndex, PackedTask] | None:
        """The segment that has a task. Raises: RecordError, if one cannot be read."""
        for number in self.numbers():
            # A segment has the number of its first task, and ids only increase.
            if number <= task_id:
                index = self.index(number)
                task = index.tasks.get(task_id)
                if task is not None:
                    return index, task
        return None

    def is_finished(self, number: int) -> bool:
        """Whether all tasks of a segment have ended, by its last line. Raises: RecordError."""
        with _opened(self.path(number)) as file:
            trailer = _trailer_of(file, os.fstat(file.fileno()).st_size)
        return trailer is not None and int(trailer[3]) == 0

    def highest(self) -> int:
        """The highest id of a task in a segment; 0 without segments. Raises: RecordError."""
        highest = 0
        for number in self.numbers():
            with _opened(self.path(number)) as file:
                trailer = _trailer_of(file, os.fstat(file.fileno()).st_size)
            if trailer is not None:
                last = int(trailer[2])
            else:
                last = max(self.index(number).tasks, default=0)
            highest = max(highest, last, number)
        return highest


def task_file(index: SegmentIndex, task: PackedTask, *, steps: bool = True) -> bytes:
    """The task file of a packed task, signed as far as the frames are. Without `steps` it may lack
    signatures, steps and result.

    Raises: RecordError, if the segment cannot be read; CorruptRecord, if its records cannot.
    """
    with _opened(index.path) as file:
        fd = file.fileno()
        places = list(zip(task.places[::2], task.places[1::2], strict=True))
        frames = [os.pread(fd, length, offset) for offset, length in places]
    if frames and _RECORDS.fullmatch(frames[0]) is not None:
        try:
            data = _as_markdown(frames, steps)
        except _UNREADABLE as error:
            message = f"the records of TASK-{task.id} cannot be read: {error}"
            raise CorruptRecord(str(index.path), 1, offset=places[0][0], message=message) from error
    else:
        data = b"".join(frames)
    if task.status in ENDED:
        # Replaces the same number of bytes, as `Journal.settle` does.
        at = data.find(b"\n") + 2
        hint = STATUS_HINTS[task.status]
        data = data[:at] + hint + data[at + len(hint) :]
    return data


def _as_markdown(frames: list[bytes], steps: bool) -> bytes:
    """The records of a task as a task file has them. The first frame that this user did not sign
    ends the signed records.
    """
    chain = Chain()
    if steps:
        chain = Chain(key=signing_key(create=False))
    previous = b""
    pieces: list[bytes] = []
    for frame in frames:
        match = _RECORDS.fullmatch(frame)
        if match is None:
            raise ValueError("a frame without records")
        signature, body = match.groups()
        if chain.key is not None and not hmac.compare_digest(
            make_frame(body, previous, chain.key)[1], signature
        ):
            chain = chain._replace(key=None)
        previous = signature
        for entry in map(read_entry, json.loads(b"[%b]" % body)):
            if not steps:
                if entry.kind not in ("header", "summary"):
                    continue
                if entry.kind == "summary":
                    entry = entry._replace(parts=(replace(entry.parts[0], result=None),))
            record = encode(entry, chain)
            pieces.append(record.data)
            chain = record.chain
    return b"".join(pieces)


def _labels_in(data: bytes) -> Mapping[str, Any] | None:
    """The labels in the first frame of a task; None where they cannot be read."""
    match = _RECORDS.fullmatch(data)
    with contextlib.suppress(*_UNREADABLE):
        if match is None:
            return labels_of(grammar.header_of(data))
        return labels_of(read_entry(json.loads(b"[%b]" % match[2])[0]).parts[0])
    return None
