"""Opens a source of rows and yields its samples, one after the other."""

from __future__ import annotations

import os
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
    Sequence,
    Sized,
)
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import asdict, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from evaluator import clock
from evaluator.batch.records import Sample
from evaluator.batch.rows.checked_samples import SLICE, CheckedSamples
from evaluator.batch.rows.file_rows import (
    check_file,
    count_parquet,
    fingerprint,
    is_pandas,
    is_polars,
    read_array,
    read_csv,
    read_jsonl,
    read_pandas,
    read_parquet,
)
from evaluator.batch.rows.hf_rows import is_hub_name, stored_rows
from evaluator.batch.rows.mapping import ChooseShots, Getter, Mapper, RowMapping, expression
from evaluator.batch.rows.object_rows import (
    Reservoir,
    RowError,
    Rows,
    Selection,
    read_objects,
    shard_of,
)
from evaluator.errors import ExpressionError, UsageError
from evaluator.errors.messages import listed
from evaluator.lazy_dataclass import frozen

AsyncRows: TypeAlias = AsyncGenerator[tuple[int | None, dict[str, Any]], None]

_FORMATS: dict[str, tuple[str, Callable[[Path], Rows]]] = {
    ".jsonl": ("jsonl", read_jsonl),
    ".ndjson": ("jsonl", read_jsonl),
    ".json": ("json", read_array),
    ".csv": ("csv", partial(read_csv, delimiter=",")),
    ".tsv": ("tsv", partial(read_csv, delimiter="\t")),
    ".parquet": ("parquet", read_parquet),
}
_MAX_HOLD_S = 0.005
_SAME_NAMES = RowMapping()
_ALL = Selection()


@frozen
class Origin:
    """A source of rows: how to read and count them, and whether they can be read again. `more`
    describes it further; `notices` are what a user has to know about it.
    """

    kind: str
    name: str
    read: Callable[[], Rows | AsyncRows]
    count: Callable[[], int | None] | None = None
    path: Path | None = None
    is_repeatable: bool = True
    is_live: bool = False
    more: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    notices: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """The source as JSON: `kind`; for a data set of the Hub `name`, `config`, `split` and
        `revision`; for a file `path`, `bytes` and `sha256` of the file on disk; `rows`, where that
        is cheap to count. Raises: RowError, if the file cannot be read.
        """
        description: dict[str, Any] = {"kind": self.kind, **self.more}
        if self.count is None:
            rows = None
        else:
            rows = self.count()
        if self.path is not None:
            is_plain = self.kind in ("jsonl", "hf") and self.path.suffix.lower() != ".gz"
            size, digest, lines = fingerprint(self.path, count_lines=is_plain)
            rows = lines if rows is None else rows
            description |= {"path": str(self.path), "bytes": size, "sha256": digest}
        if rows is None:
            return description
        return {**description, "rows": rows}


class DataFrame(Protocol):
    """A data frame of pandas or Polars."""

    @property
    def columns(self) -> Any: ...

    def __len__(self) -> int: ...


RowsInput: TypeAlias = (
    str
    | os.PathLike[str]
    | Iterable[Mapping[str, Any]]
    | AsyncIterable[Mapping[str, Any]]
    | DataFrame
)
"""What `open_rows` reads: a file, rows, or a frame."""


class RowSource:
    """The samples of a source: `async for sample in rows`, each time from the first one.

    Rows are read on demand and not kept, except those of a `sample`, and between `check` and the
    first reading those of a source that is not large. Reading yields to the event loop every few
    milliseconds. An iterator can be read only once. An asynchronous generator is
    closed when reading stops.

    Iterating raises: RowError, at the first row that cannot be used, after the samples before it,
    and if no row is selected. UsageError, for an iterator that was read before.
    """

    def __init__(
        self,
        origin: Origin,
        mapping: RowMapping,
        selection: Selection,
        declared: Collection[str] | None,
        required: Collection[str],
        choose_shots: ChooseShots | None = None,
    ) -> None:
        self._origin = origin
        # Whether the rows come from an asynchronous iterator: each may take any time, and there may
        # be no last one.
        self.is_live = origin.is_live
        self._selection = selection
        self._is_used = False
        self._has_shots = choose_shots is not None
        self._checked: CheckedSamples | None = None
        mapper = partial(Mapper, mapping, origin.name, declared, required)
        self._pass = partial(_Pass, origin.name, partial(mapper, choose_shots))
        self._pass_without_shots = partial(_Pass, origin.name, mapper)
        # Errors in the mapping and the first row are found here, before anything runs.
        probe = self._pass(selection, draws=False, limit=1)
        if self._is_readable:
            for _ in self._taken(probe):
                pass
            probe.finish()

    @cached_property
    def description(self) -> Mapping[str, Any]:
        """The source as JSON, before any selection: see `Origin.describe`.

        The first use reads the whole file, about 1 s per gigabyte; `total` uses it.

        Raises: RowError, if the file cannot be read.
        """
        return self._origin.describe()

    def is_as_described(self) -> bool:
        """Whether the source is what it was at the first use of `description`; a file is read for
        it.
        """
        try:
            return self._origin.describe() == self.description
        except RowError:
            return False

    @property
    def name(self) -> str:
        """The file, the data set with its commit, or the type of the object that the rows come
        from.
        """
        return self._origin.name

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user has to know about the source, such as the revision that was not named."""
        return self._origin.notices

    @property
    def is_repeatable(self) -> bool:
        """Whether the rows can be read again: false for an iterator."""
        return self._origin.is_repeatable

    @property
    def total(self) -> int | None:
        """The number of samples; None if only reading them can tell: for iterators, CSV, JSON
        arrays, compressed files, and with `where`. Raises: as `description`.
        """
        return self._selection.expected(self.description.get("rows"))

    def __aiter__(self) -> AsyncGenerator[Sample, None]:
        return self._samples()

    async def _samples(self) -> AsyncGenerator[Sample, None]:
        async with aclosing(self.slices()) as slices:
            async for samples in slices:
                for sample in samples:
                    yield sample

    async def slices(self) -> AsyncGenerator[Sequence[Sample], None]:
        """The selected samples, as `async for` gives them, but some at a time; of a shard its own.
        All rows are read, so that a row has the same id in each shard. Rows that can be read only
        once come singly: none is read before it is wanted.
        """
        if self._is_used and not self._origin.is_repeatable:
            raise UsageError(
                "the rows come from an iterator that was already read; give a list or a file "
                "instead"
            )
        self._is_used = True
        checked = self._checked
        self._checked = None
        if checked is not None:
            slices = self._read_slices(checked)
        elif self._origin.is_live:
            slices = self._live_slices()
        else:
            slices = self._slices()
        part = shard_of(self._selection)
        place = 0
        async with aclosing(slices):
            async for samples in slices:
                mine = samples
                if part is not None:
                    mine = part.select(samples, place)
                    place += len(samples)
                if mine:
                    yield mine

    async def _read_slices(self, checked: CheckedSamples) -> AsyncGenerator[Sequence[Sample], None]:
        for samples in checked.slices():
            yield samples
            await clock.sleep(0)

    async def _live_slices(self) -> AsyncGenerator[Sequence[Sample], None]:
        this = self._pass(self._selection, limit=self._selection.limit)
        async with aclosing(cast("AsyncRows", self._origin.read())) as rows:
            async for line, row in rows:
                sample = this.take(line, row)
                if sample is not None:
                    yield [sample]
                if this.is_done:
                    break
        for sample in this.finish():
            yield [sample]

    async def _slices(self) -> AsyncGenerator[Sequence[Sample], None]:
        """The samples of rows that are at hand. Other tasks of the event loop run every few
        milliseconds.
        """
        most = SLICE if self._origin.is_repeatable else 1
        samples: list[Sample] = []
        since = clock.monotonic()
        with closing(self._steps()) as steps:
            try:
                for sample in steps:
                    if sample is not None:
                        samples.append(sample)
                    is_time = clock.monotonic() - since > _MAX_HOLD_S
                    if samples and (is_time or len(samples) >= most):
                        yield samples
                        samples = []
                    if is_time:
                        await clock.sleep(0)
                        since = clock.monotonic()
            except Exception:
                if samples:
                    yield samples
                raise
        yield samples

    def _steps(self) -> Generator[Sample | None]:
        """What each row gives, which may be no sample, then the samples drawn from all rows."""
        this = self._pass(self._selection, limit=self._selection.limit)
        with closing(cast("Rows", self._origin.read())) as rows:
            for line, row in rows:
                yield this.take(line, row)
                if this.is_done:
                    break
        yield from this.finish()

    def check(self, check: Callable[[Sample], object], *, with_shots: bool) -> None:
        """Reads all selected rows and calls `check` with each sample; does nothing if the rows can
        be read only once or have to be waited for.

        Raises: RowError, for the first row that cannot be used, or for which `check` raises a
        UsageError.
        """
        if not self._is_readable:
            return
        # Before the first row: of a file that is changed later, it must not describe other rows.
        _ = self.description
        if with_shots:
            make_pass = self._pass
        else:
            make_pass = self._pass_without_shots
        this = make_pass(self._selection, limit=self._selection.limit)
        checked = None
        if with_shots == self._has_shots:
            checked = CheckedSamples()
        for sample in self._all(this):
            if checked is not None and not checked.append(sample):
                checked = None
            try:
                check(sample)
            except UsageError as error:
                raise RowError(
                    str(error), source=self.name, line=this.line, place=sample.place, id=sample.id
                ) from error
        self._checked = checked

    def _all(self, this: _Pass) -> Iterator[Sample]:
        taken = partial(self._taken, this)
        return chain.from_iterable(read() for read in (taken, this.finish))

    def read_ahead(self) -> Iterator[Sample | None]:
        """The samples, or with `sample` those that it draws from, without using up the source. A
        final None means that there may be more that cannot be read now: those of an iterator, those
        that have to be waited for, and those after a row that cannot be used, which `check`
        reports.
        """
        selection = self._selection
        if not self._is_readable:
            yield None
            return
        draws = selection.sample is not None
        this = self._pass(selection, draws=False, limit=None if draws else selection.limit)
        try:
            yield from self._taken(this)
        except UsageError:
            yield None

    @property
    def _is_readable(self) -> bool:
        """Whether rows can be read now, without using up the source and without waiting for it."""
        return self.is_repeatable and not self.is_live

    def _taken(self, this: _Pass) -> Iterator[Sample]:
        """The samples that `this` takes from the rows, which are readable."""
        with closing(cast("Rows", self._origin.read())) as rows:
            for line, row in rows:
                if (sample := this.take(line, row)) is not None:
                    yield sample
                if this.is_done:
                    return


class _Pass:
    """One pass over rows: selects them and maps them to samples, `limit` at most. `draws`: the
    `sample` of the selection is drawn from them; else they are all taken. `line` is that of the
    last sample.
    """

    def __init__(
        self,
        source: str,
        mapper: Callable[[], Mapper],
        selection: Selection,
        *,
        limit: int | None,
        draws: bool = True,
    ) -> None:
        self.is_done = False
        self._source = source
        self._selection = selection
        self._start = selection.start or 0
        self._stop = selection.stop
        self._limit = limit
        if selection.where is None:
            self._where = None
        else:
            self._where = expression(selection.where, "where")
        self._sampled: Reservoir[tuple[int, int | None, dict[str, Any]]] | None = None
        if draws and selection.sample is not None:
            self._sampled = Reservoir(selection.sample, selection.seed)
        self._mapper = mapper()
        self._place = self._selected = 0
        self.line: int | None = None

    def take(self, line: int | None, row: dict[str, Any]) -> Sample | None:
        """The sample of the next row, if it is selected now. Raises: RowError."""
        place = self._place
        self._place += 1
        self.is_done = self._place == self._stop
        if place < self._start or (
            self._where is not None and not self._holds(self._where, row, place=place, line=line)
        ):
            return None
        self._selected += 1
        if self._sampled is not None:
            self._sampled.offer((place, line, row))
            return None
        self.is_done = self.is_done or self._selected == self._limit
        self.line = line
        return self._mapper.sample(row, place, line)

    def finish(self) -> Iterator[Sample]:
        """The samples drawn by `sample`, after all rows. Raises: RowError, if no row was
        selected.
        """
        if not self._place:
            raise RowError("there are no rows", source=self._source)
        if not self._selected:
            why = f"there are only {self._place:,} and start is {self._start:,}"
            if self._place > self._start:
                why = f"`where` is true for none of {self._place - self._start:,}"
            raise RowError(f"no row is selected: {why}", source=self._source)
        return self._drawn()

    def _drawn(self) -> Iterator[Sample]:
        if self._sampled is None:
            return
        for number, (place, line, row) in enumerate(self._sampled.drawn()):
            if number == self._limit:
                return
            self.line = line
            yield self._mapper.sample(row, place, line)

    def _holds(self, where: Getter, row: dict[str, Any], place: int, line: int | None) -> bool:
        try:
            value = where(row)
        except ExpressionError as error:
            message = f"{error.span}: {error.message}"
            raise RowError(message, source=self._source, line=line, place=place) from error
        if value.__class__ is not bool:
            message = f"where is {value!r:.60}, expected true or false"
            raise RowError(message, source=self._source, line=line, place=place)
        return value


def open_rows(
    source: Any,
    mapping: RowMapping = _SAME_NAMES,
    selection: Selection = _ALL,
    *,
    declared: Collection[str] | None = None,
    required: Collection[str] = (),
    choose_shots: ChooseShots | None = None,
) -> RowSource:
    """The samples of `source`.

    `source`: a file, whose name determines the format: .jsonl or .ndjson, .json (one array), .csv,
    .tsv, each also with .gz, or .parquet; a data set of the Hugging Face Hub, as
    `hf:NAME/CONFIGURATION:SPLIT@REVISION`; a list, an iterable, an iterator or an asynchronous one
    of mappings, such as a Hugging Face `Dataset`; a DataFrame of pandas or Polars.

    `declared`: the names of the template's inputs; None if unknown. `required`: those of them that
    each row must have.
    `choose_shots`: chooses the few-shot examples of each row.

    Raises: RowError, for a source that cannot be read and a mapping that does not fit its first
    selected row (for an iterator, when it is read); UsageError, for an object without rows, an
    unknown format, an invalid expression, an input that the template does not have; MissingExtra,
    for Parquet without pyarrow.
    """
    return RowSource(
        open_origin(source),
        mapping,
        selection=selection,
        declared=declared,
        required=required,
        choose_shots=choose_shots,
    )


def open_origin(source: Any) -> Origin:
    """The rows of `source`, see `open_rows`, as they are. Raises: RowError, UsageError or
    MissingExtra.
    """
    if isinstance(source, str) and is_hub_name(source):
        return _hub(source)
    if isinstance(source, str | os.PathLike):
        return _file(Path(source))
    kind = f"{type(source).__module__.partition('.')[0]}.{type(source).__name__}".removeprefix(
        "builtins."
    )
    if isinstance(source, Mapping):
        message = f"a mapping ({kind}) is a row or several sets of rows; give a list"
        raise UsageError(f"{message}, or one of: {listed(map(str, source))}" if source else message)
    # A frame is not a sequence.
    is_sequence = isinstance(source, Sequence)
    if not is_sequence and is_polars(source):
        return Origin(
            kind,
            kind,
            read=lambda: read_objects(source.iter_rows(named=True), kind),
            count=partial(len, source),
        )
    if not is_sequence and is_pandas(source):
        return Origin(
            kind, kind, read=partial(read_pandas, source, kind), count=partial(len, source)
        )
    if isinstance(source, AsyncIterable):
        read = partial(_read_async, source, kind)
        return Origin(
            kind, kind, read=read, is_repeatable=not isinstance(source, AsyncIterator), is_live=True
        )
    if isinstance(source, Iterable) and not isinstance(source, bytes | bytearray):
        if isinstance(source, Sized):
            count = partial(len, source)
        else:
            count = None
        read = partial(read_objects, source, kind)
        return Origin(
            kind, kind, read=read, count=count, is_repeatable=not isinstance(source, Iterator)
        )
    if hasattr(source, "collect"):
        hint = "; collect() it first"
    else:
        hint = ""
    raise UsageError(f"rows can be a file, a list, an iterator or a frame, not {kind}{hint}")


def _hub(text: str) -> Origin:
    rows, path = stored_rows(text)
    if str(rows) == text:
        notices = ()
    else:
        notices = (f"{text}: the commit is {rows.revision}; to keep it, write {rows}",)
    return Origin(
        "hf",
        str(rows),
        read=partial(read_jsonl, path),
        count=None,
        path=path,
        more=asdict(rows),
        notices=notices,
    )


def _file(path: Path) -> Origin:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    is_compressed = suffixes[-1:] == [".gz"]
    if len(suffixes) > is_compressed:
        suffix = suffixes[-2 if is_compressed else -1]
    else:
        suffix = ""
    if suffix not in _FORMATS or (is_compressed and suffix == ".parquet"):
        known = ", ".join(_FORMATS)
        if not path.is_dir():
            raise UsageError(
                f"{path}: unknown format; the name has to end in {known}, or a text format with .gz"
            )
    check_file(path)
    kind, read = _FORMATS[suffix]
    if kind == "parquet":
        count = partial(count_parquet, path)
    else:
        count = None
    return Origin(kind, str(path), read=partial(read, path), count=count, path=path)


async def _read_async(source: AsyncIterable[Any], kind: str) -> AsyncRows:
    rows = aiter(source)
    place = 0
    async with AsyncExitStack() as stack:
        if isinstance(rows, AsyncGenerator):
            # Its resources are freed when reading stops, not by the garbage collector.
            await stack.enter_async_context(aclosing(cast("AsyncGenerator[Any]", rows)))
        async for row in rows:
            for found in read_objects([row], kind, place):
                yield found
            place += 1
