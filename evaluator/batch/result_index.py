"""The index of a batch's results: what decides whether a sample is run again, for each key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from operator import itemgetter
from struct import Struct
from typing import NamedTuple, TypeAlias

from evaluator.batch.records import Verdict
from evaluator.store.columns import Column, Interner, Records, Spool

VERDICTS = tuple(Verdict)
VERDICT_CODES = {verdict.value.encode(): code for code, verdict in enumerate(VERDICTS)}
_FORM = Struct("<16sq32s32sB?")
_Record: TypeAlias = tuple[bytes, int, bytes, bytes, int, bool]
_code_of = itemgetter(4)


class ResultEntry(NamedTuple):
    """The index entry of a result: the position of its line, and the values that decide whether it
    is run again.
    """

    offset: int
    identity: bytes
    scored_by: bytes
    verdict: Verdict
    retryable: bool


class ResultIndex:
    """The entry of each key's latest result, in the order of the keys' first results. It is on the
    disk: memory holds a byte for each entry. `keys` number the keys of the entries, in this order,
    and may number others after them.
    """

    def __init__(self, keys: Interner) -> None:
        self._keys = keys
        self._records = Records(_FORM)
        self._is_there = bytearray()
        self._left = 0
        self._next = 0

    def put(self, number: int, offset: int, words: Sequence[bytes]) -> None:
        """Sets the entry of the key with this number, from the words at the head of its line: the
        key, the identity, `scored_by`, the verdict, and whether it is retryable.
        """
        key, identity, scored_by, verdict, retryable = words
        code = VERDICT_CODES[verdict]
        record = (key, offset, identity, scored_by, code, retryable == b"true")
        if number == len(self._is_there):
            self._is_there.append(1)
            self._left += 1
            self._records.append(*record)
        else:
            self._records[number] = record

    def __len__(self) -> int:
        return self._left

    def __iter__(self) -> Iterator[str]:
        return (key for key, _ in self.items())

    def __contains__(self, key: str) -> bool:
        return self._find(key) is not None

    def __getitem__(self, key: str) -> ResultEntry:
        entry = self.get(key)
        if entry is None:
            raise KeyError(key)
        return entry

    def get(self, key: str) -> ResultEntry | None:
        found = self._find(key)
        return None if found is None else _entry_of(found[1])

    def pop(self, key: str, default: None = None) -> ResultEntry | None:
        """Removes the entry of `key`, and returns it."""
        found = self._find(key)
        if found is None:
            return default
        number, record = found
        self._is_there[number] = 0
        self._left -= 1
        self._next = number + 1
        return _entry_of(record)

    def items(self) -> Iterator[tuple[str, ResultEntry]]:
        for is_there, record in zip(self._is_there, self._records, strict=True):
            if is_there:
                yield record[0].decode(), _entry_of(record)

    def values(self) -> Iterator[ResultEntry]:
        return (entry for _, entry in self.items())

    def verdicts(self) -> Iterator[Verdict]:
        """The verdict of each entry."""
        return map(VERDICTS.__getitem__, map(_code_of, compress(self._records, self._is_there)))

    def by_identity(self) -> Callable[[str], ResultEntry | None]:
        """A function that finds an entry by the identity of its result."""
        identities = Interner()
        numbers = Column("i", Spool())
        for number, record in enumerate(self._records):
            place = identities.number(record[2])
            if place == len(numbers):
                numbers.append(number)
            else:
                numbers[place] = number

        def find(identity: str) -> ResultEntry | None:
            place = identities.find(identity.encode("utf-8", "surrogatepass"))
            return None if place is None else _entry_of(self._records[numbers[place]])

        return find

    def _find(self, key: str) -> tuple[int, _Record] | None:
        """The number and the record of an entry. Rows come mostly in the order of their results."""
        data = key.encode()
        number = self._next
        if number < len(self._is_there):
            record = self._records[number]
            if record[0] == data:
                return (number, record) if self._is_there[number] else None
        found = self._keys.find(key)
        if found is None or found >= len(self._is_there) or not self._is_there[found]:
            return None
        return found, self._records[found]


EarlierResults: TypeAlias = "ResultIndex | dict[str, ResultEntry]"


def _entry_of(record: _Record) -> ResultEntry:
    _, offset, identity, scored_by, verdict, is_retryable = record
    return ResultEntry(offset, identity, scored_by.rstrip(b"\0"), VERDICTS[verdict], is_retryable)
