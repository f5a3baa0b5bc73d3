"""Rows from wherever they are → samples, one after the other."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sized,
)
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias, cast

from evaluator.batch.records import Sample
from evaluator.batch.rows.delimited import read_delimited
from evaluator.batch.rows.jsonl import read_array, read_jsonl
from evaluator.batch.rows.mapping import Mapper, RowMapping, expression
from evaluator.batch.rows.problems import RowError
from evaluator.batch.rows.selection import Reservoir, Selection
from evaluator.batch.rows.tables import (
    count_parquet,
    is_pandas,
    is_polars,
    read_pandas,
    read_parquet,
    read_polars,
)
from evaluator.batch.rows.text import check_file, fingerprint
from evaluator.batch.rows.values import Rows, json_row
from evaluator.errors import ExpressionError, UsageError

AsyncRows: TypeAlias = AsyncGenerator[tuple[int | None, dict[str, Any]], None]

_FORMATS: dict[str, tuple[str, Callable[[Path], Rows]]] = {
    ".jsonl": ("jsonl", read_jsonl),
    ".ndjson": ("jsonl", read_jsonl),
    ".json": ("json", read_array),
    ".csv": ("csv", partial(read_delimited, delimiter=",")),
    ".tsv": ("tsv", partial(read_delimited, delimiter="\t")),
    ".parquet": ("parquet", read_parquet),
}
_HELD_S = 0.005
_AS_IT_IS, _ALL = RowMapping(), Selection()


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where rows come from: how to begin to read them, and how often that can be done."""

    kind: str
    name: str
    read: Callable[[], Rows | AsyncRows]
    count: Callable[[], int | None]
    path: Path | None = None
    is_repeatable: bool = True
    is_live: bool = False


class RowSource:
    """The samples of a source: `async for sample in rows`, from the first one each time.

    Rows are read as they are asked for and not kept, but for those of a `sample`. Reading gives way to the event loop
    every few milliseconds. An iterator can be gone through once.

    An asynchronous generator that the rows come from is closed with the last of them that is asked for.

    Iterating raises: RowError, at the first row that cannot be used, after the samples before it; and if no row is
    selected at all. UsageError, for an iterator that was gone through before.
    """

    def __init__(
        self,
        origin: _Origin,
        mapping: RowMapping,
        selection: Selection,
        declared: Collection[str] | None,
        required: Collection[str],
    ) -> None:
        self._origin, self._selection, self._is_used = origin, selection, False
        self._pass = partial(_Pass, origin.name, mapping, declared=declared, required=required)
        # What can be wrong with the mapping and the first row is found here, before anything runs.
        probe = self._pass(replace(selection, sample=None, limit=1))
        if origin.is_repeatable and isinstance(rows := origin.read(), Generator):
            with closing(rows):
                any(probe.take(line, row) or probe.is_done for line, row in rows)
            probe.finish()

    @cached_property
    def description(self) -> Mapping[str, Any]:
        """What the rows come from, as JSON: `kind`; of a file also `path`, `bytes` and `sha256`, of the file as it
        lies on the disk; `rows`, before any selection, where that is cheap to know.

        At its first use it reads the whole file, about 1 s a gigabyte; `total` uses it.

        Raises: RowError, if the file cannot be read.
        """
        said: dict[str, Any] = {"kind": self._origin.kind}
        rows = self._origin.count()
        if self._origin.path is not None:
            is_plain = self._origin.kind == "jsonl" and self._origin.path.suffix.lower() != ".gz"
            size, digest, lines = fingerprint(self._origin.path, count_lines=is_plain)
            rows = lines if rows is None else rows
            said |= {"path": str(self._origin.path), "bytes": size, "sha256": digest}
        return said if rows is None else {**said, "rows": rows}

    @property
    def is_repeatable(self) -> bool:
        """Whether the rows can be gone through again: not those of an iterator."""
        return self._origin.is_repeatable

    @property
    def is_live(self) -> bool:
        """Whether the rows are given as somebody else likes, an asynchronous iterator's: any of them may be long in
        coming, and the last may never come."""
        return self._origin.is_live

    @property
    def total(self) -> int | None:
        """How many samples there will be; None where only reading them all tells: of iterators, CSV, JSON arrays,
        compressed files, and with `where`. Raises as `description`."""
        return self._selection.expected(self.description.get("rows"))

    def __aiter__(self) -> AsyncGenerator[Sample, None]:
        return self._samples()

    async def _samples(self) -> AsyncGenerator[Sample, None]:
        if self._is_used and not self._origin.is_repeatable:
            raise UsageError("the rows come from an iterator, which was gone through; give a list or a file instead")
        self._is_used = True
        this = self._pass(self._selection)
        rows = self._origin.read()
        async with aclosing(rows if isinstance(rows, AsyncGenerator) else _giving_way(rows)) as pairs:
            async for line, row in pairs:
                if (sample := this.take(line, row)) is not None:
                    yield sample
                if this.is_done:
                    break
        for sample in this.finish():
            yield sample

    def read_ahead(self) -> Iterator[Sample | None]:
        """The samples, or all of which some are drawn, without being gone through. A last None: there may be others,
        which cannot be looked at now: those of an iterator, those that have to be waited for, and what comes after a
        row that cannot be used, which is told when the batch gets there."""
        selection = self._selection
        rows = self._origin.read() if self.is_repeatable else None
        if not isinstance(rows, Generator):
            yield None
            return
        this = self._pass(selection if selection.sample is None else replace(selection, sample=None, limit=None))
        with closing(rows):
            try:
                for line, row in rows:
                    if (sample := this.take(line, row)) is not None:
                        yield sample
                    if this.is_done:
                        return
            except UsageError:
                yield None


class _Pass:
    """One pass over rows: which are selected, and what sample each becomes."""

    def __init__(
        self,
        source: str,
        mapping: RowMapping,
        selection: Selection,
        *,
        declared: Collection[str] | None,
        required: Collection[str],
    ) -> None:
        self.is_done = False
        self._source, self._selection = source, selection
        self._start, self._stop, self._limit = selection.start or 0, selection.stop, selection.limit
        self._where = None if selection.where is None else expression(selection.where, "where")
        self._sampled: Reservoir[tuple[int, int | None, dict[str, Any]]] | None = (
            None if selection.sample is None else Reservoir(selection.sample, selection.seed)
        )
        self._mapper = Mapper(mapping, source, declared, required)
        self._place = self._kept = 0

    def take(self, line: int | None, row: dict[str, Any]) -> Sample | None:
        """The next row's sample, if it is one now. Raises: RowError."""
        place = self._place
        self._place += 1
        self.is_done = self._place == self._stop
        if place < self._start or (self._where is not None and not self._is_wanted(row, place, line)):
            return None
        self._kept += 1
        if self._sampled is not None:
            self._sampled.offer((place, line, row))
            return None
        self.is_done = self.is_done or self._kept == self._limit
        return self._mapper.sample(row, place, line)

    def finish(self) -> Iterator[Sample]:
        """What a `sample` drew, once all rows were taken. Raises: RowError, if no row was selected."""
        if not self._place:
            raise RowError("there are no rows", source=self._source)
        if not self._kept:
            why = f"there are only {self._place:,}, and start is {self._start:,}"
            if self._place > self._start:
                why = f"`where` holds for none of {self._place - self._start:,}"
            raise RowError(f"no row is selected: {why}", source=self._source)
        return self._drawn()

    def _drawn(self) -> Iterator[Sample]:
        if self._sampled is None:
            return
        for number, (place, line, row) in enumerate(self._sampled.drawn()):
            if number == self._limit:
                return
            yield self._mapper.sample(row, place, line)

    def _is_wanted(self, row: dict[str, Any], place: int, line: int | None) -> bool:
        assert self._where is not None
        try:
            value = self._where(row)
        except ExpressionError as error:
            message = f"{error.span}: {error.message}"
            raise RowError(message, source=self._source, line=line, place=place) from error
        if value.__class__ is not bool:
            message = f"where gives {value!r:.60}, expected true or false"
            raise RowError(message, source=self._source, line=line, place=place)
        return value


def open_rows(
    source: Any,
    mapping: RowMapping = _AS_IT_IS,
    selection: Selection = _ALL,
    *,
    declared: Collection[str] | None = None,
    required: Collection[str] = (),
) -> RowSource:
    """The samples of `source`.

    `source`: the path of a file, its format told by its name: .jsonl or .ndjson, .json (one array), .csv, .tsv, each
    also with .gz behind it, .parquet; a list, an iterable, an iterator or an asynchronous one of mappings, such as a
    `Dataset` of Hugging Face; a DataFrame of pandas or Polars.

    `declared`: the names of the inputs that the template takes; None: not known. `required`: those that each row must
    have, so that one that lacks it is found by reading it.

    Raises: RowError, for a source that cannot be read and a mapping that does not fit its first selected row (of an
    iterator, both come when it is gone through); UsageError, for an object that gives no rows, an unknown format, an
    expression that is none, an input that the template does not take; MissingExtra, for Parquet without pyarrow.
    """
    return RowSource(_origin(source), mapping, selection, declared, required)


def _origin(source: Any) -> _Origin:
    if isinstance(source, str | os.PathLike):
        return _file(Path(source))
    kind = f"{type(source).__module__.partition('.')[0]}.{type(source).__name__}".removeprefix("builtins.")
    if isinstance(source, Mapping):
        message = f"a mapping ({kind}) is one row or several sets of rows; give a list, or one of: {', '.join(source)}"
        raise UsageError(message[:200])
    if is_polars(source):
        return _Origin(kind, kind, partial(read_polars, source), partial(len, source))
    if is_pandas(source):
        return _Origin(kind, kind, partial(read_pandas, source), partial(len, source))
    if isinstance(source, AsyncIterable):
        is_repeatable = not isinstance(source, AsyncIterator)
        return _Origin(kind, kind, partial(_read_async, source, kind), _unknown, None, is_repeatable, True)
    if isinstance(source, Iterable) and not isinstance(source, bytes | bytearray):
        is_repeatable = not isinstance(source, Iterator)
        count = partial(len, source) if isinstance(source, Sized) else _unknown
        return _Origin(kind, kind, partial(_read_objects, source, kind), count, None, is_repeatable)
    hint = "; collect() it first" if hasattr(source, "collect") else ""
    raise UsageError(f"rows come from a file, a list, an iterator or a frame, not from {kind}{hint}")


def _file(path: Path) -> _Origin:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_compressed = suffixes[-1:] == [".gz"]
    suffix = suffixes[-2 if is_compressed else -1] if len(suffixes) > is_compressed else ""
    if suffix not in _FORMATS or (is_compressed and suffix == ".parquet"):
        known = ", ".join(_FORMATS)
        message = f"{path}: the name does not tell the format; it ends in one of {known}, the text formats also in .gz"
        if not path.is_dir():
            raise UsageError(message)
    check_file(path)
    kind, read = _FORMATS[suffix]
    count = partial(count_parquet, path) if kind == "parquet" else _unknown
    return _Origin(kind, str(path), partial(read, path), count, path)


async def _giving_way(rows: Rows) -> AsyncRows:
    """The rows, other tasks of the event loop getting their turn every few milliseconds."""
    with closing(rows):
        since = time.perf_counter()
        for row in rows:
            yield row
            if time.perf_counter() - since > _HELD_S:
                await asyncio.sleep(0)
                since = time.perf_counter()


def _unknown() -> None:
    return None


def _read_objects(source: Iterable[Any], kind: str) -> Rows:
    for place, row in enumerate(source):
        yield None, _checked(row, kind, place)


async def _read_async(source: AsyncIterable[Any], kind: str) -> AsyncRows:
    rows, place = aiter(source), 0
    async with AsyncExitStack() as stack:
        if isinstance(rows, AsyncGenerator):
            # What it holds is let go of when no more is read, not when the collector finds it.
            await stack.enter_async_context(aclosing(cast("AsyncGenerator[Any]", rows)))
        async for row in rows:
            yield None, _checked(row, kind, place)
            place += 1


def _checked(row: Any, kind: str, place: int) -> dict[str, Any]:
    try:
        return json_row(row)
    except UsageError as error:
        raise RowError(str(error), source=kind, place=place) from error
