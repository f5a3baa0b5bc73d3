"""One side of a comparison: its results, reduced as they come to what pairs need, some 60 bytes a sample and its id.

Samples are known by what pairs are made by, as numbers that both sides share. Of several results for one sample and
epoch the last one counts.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Collection
from typing import Any

from evaluator.batch.compact import Numbering
from evaluator.batch.fields import MOST_FIELDS, value_of
from evaluator.batch.reading import Declared
from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.summary.columns import fault_of
from evaluator.errors import UsageError

_NONE = -1
_UNKNOWN = math.nan


def key_of(by: str) -> Callable[[SampleResult], str]:
    """What a sample is paired by: `id`, `inputs` or `metadata.NAME`.

    Raises: UsageError, if `by` is nothing of the kind; what is returned does, if a sample has no such field.
    """
    if by == "id":
        return lambda result: result.sample_id
    if by == "inputs":
        return lambda result: _text(result.inputs)
    kind, dot, name = by.partition(".")
    if kind != "metadata" or not dot or not name:
        raise UsageError(f"pairs are made by id, inputs or metadata.NAME, and not by {by!r}")

    def read(result: SampleResult) -> str:
        if name not in result.metadata:
            raise UsageError(f"sample {result.sample_id!r} has no {name!r} in its metadata, by which pairs are made")
        return _text(result.metadata[name])

    return read


class SideSamples:
    """The samples of one side by their numbers in `keys`; `groups`, `seen` scorers and metadata's `fields` as they
    came. `declared` is what the batch says of them, None where there is none to ask; `results` counts samples' epochs.
    """

    def __init__(
        self,
        name: str,
        keys: Numbering,
        key: Callable[[SampleResult], str],
        scorer: str | None,
        cluster: str | None,
        declared: Declared | None,
    ) -> None:
        self.name, self.declared, self.results = name, declared, 0
        self.groups: dict[tuple[str, str], None] = {}
        self.seen: dict[str, None] = {}
        self.fields: dict[str, None] = {}
        self._is_answered = False
        self._keys, self._key, self._scorer, self._cluster = keys, key, scorer, cluster
        self._places = array("i")
        self._ids = _Texts()
        self._inputs, self._targets = array("q"), array("q")
        self._clusters, self._cluster_names = array("i"), Numbering()
        self._epochs: dict[int, _Epoch] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, result: SampleResult) -> None:
        """Takes a result in.

        Raises: UsageError, if it is of another template or variant than those before, its sample is equal to another
        one in what pairs are made by, or it has not what they are made by.
        """
        self.groups[result.template, result.variant] = None
        if len(self.groups) > 1:
            found = ", ".join(f"{template} × {variant}" for template, variant in self.groups)
            raise UsageError(f"side {self.name} has results of {found}; compare one template and variant at a time")
        self.seen.update(dict.fromkeys(result.scores))
        self._is_answered = self._is_answered or result.failure is None
        if self._cluster is not None and len(self.fields) < MOST_FIELDS:
            self.fields.update(dict.fromkeys(result.metadata))
        place = self._place(result)
        self._inputs[place], self._targets[place] = hash(_text(result.inputs)), hash(_text(result.target))
        if self._cluster is not None:
            group = value_of(result.metadata, self._cluster)
            self._clusters[place] = _NONE if group is None else self._cluster_names.number(_text(group))
        if result.epoch not in self._epochs:
            self._epochs[result.epoch] = _Epoch()
        self.results += self._epochs[result.epoch].put(place, *self._judged(result))

    @property
    def scorers(self) -> Collection[str] | None:
        """Their names. None: nobody says, and no result is one that a scorer would have judged."""
        if self.declared is not None and self.declared.scorers is not None:
            return self.declared.scorers.keys() | self.seen.keys()
        return self.seen.keys() if self.seen or self._is_answered else None

    def check(self) -> None:
        """Raises: UsageError, if no score is or will be by the scorer."""
        scorers = self.scorers
        if self._scorer is not None and scorers is not None and self._scorer not in scorers:
            known = ", ".join(scorers) or "none"
            raise UsageError(f"side {self.name} has no score by {self._scorer!r}; there is {known}")

    def __contains__(self, number: int) -> bool:
        return number < len(self._places) and self._places[number] != _NONE

    def id(self, number: int) -> str:
        return self.encoded_id(number).decode("utf-8", "surrogatepass")

    def encoded_id(self, number: int) -> bytes:
        """The id as UTF-8, whose order is that of texts."""
        return self._ids[self._places[number]]

    def inputs(self, number: int) -> int:
        """A hash of its inputs."""
        return self._inputs[self._places[number]]

    def target(self, number: int) -> int:
        """A hash of its target."""
        return self._targets[self._places[number]]

    def cluster(self, number: int) -> int | None:
        """The number of its cluster, from 0; None where it is in none."""
        found = self._clusters[self._places[number]]
        return None if found == _NONE else found

    def value(self, number: int) -> float | None:
        """The mean of its epochs that have a value; None where none has."""
        place = self._places[number]
        values = [value for epoch in self._epochs.values() if not math.isnan(value := epoch.value_of(place))]
        return math.fsum(values) / len(values) if values else None

    def bounds(self, number: int) -> tuple[float, float]:
        """What `value` would be, had each of its epochs without one the value 0, or 1."""
        place = self._places[number]
        values = [epoch.value_of(place) for epoch in self._epochs.values() if epoch.has(place)]
        known = [value for value in values if not math.isnan(value)]
        least = math.fsum(known)
        return least / len(values), (least + len(values) - len(known)) / len(values)

    def is_open(self, number: int) -> bool:
        """Whether one of its epochs has no value."""
        place = self._places[number]
        return any(epoch.has(place) and math.isnan(epoch.value_of(place)) for epoch in self._epochs.values())

    def passed(self, number: int) -> bool | None:
        """Of most epochs that were judged; None where it is a tie, or none was."""
        place = self._places[number]
        judged = [passed for epoch in self._epochs.values() if (passed := epoch.passed_of(place)) != _NONE]
        balance = 2 * sum(judged) - len(judged)
        return None if balance == 0 else balance > 0

    def is_error(self, number: int) -> bool:
        """Whether one of its epochs is an error."""
        place = self._places[number]
        return any(epoch.is_error(place) for epoch in self._epochs.values())

    def _place(self, result: SampleResult) -> int:
        """Where the sample is in the columns, which grow for a new one."""
        number = self._keys.number(self._key(result))
        sample_id = result.sample_id.encode("utf-8", "surrogatepass")
        if number in self:
            place = self._places[number]
            if self._ids[place] != sample_id:
                raise UsageError(
                    f"side {self.name}: samples {self.id(number)!r} and {result.sample_id!r} are equal in what pairs "
                    f"are made by"
                )
            return place
        _lengthen(self._places, number + 1, _NONE)
        place = self._places[number] = len(self._ids)
        self._ids.append(sample_id)
        for column in (self._inputs, self._targets):
            column.append(0)
        if self._cluster is not None:
            self._clusters.append(_NONE)
        return place

    def _judged(self, result: SampleResult) -> tuple[float | None, bool | None, bool]:
        """Its value, whether it passed, and whether it is an error."""
        if self._scorer is None:
            passed = {Verdict.PASSED: True, Verdict.FAILED: False}.get(result.verdict)
            return None if passed is None else float(passed), passed, result.verdict is Verdict.ERROR
        score = result.scores.get(self._scorer)
        if score is None:
            return None, None, result.failure is not None
        if fault_of(score) is not None:
            return None, None, True
        return score.value, score.passed, False


class _Epoch:
    """What the results of one epoch came to, by the places of their samples."""

    __slots__ = ("_error", "_passed", "_value")

    def __init__(self) -> None:
        self._value, self._passed, self._error = array("d"), array("b"), array("b")

    def put(self, place: int, value: float | None, passed: bool | None, error: bool) -> bool:
        """Returns: whether it is the first result of the sample."""
        _lengthen(self._value, place + 1, _UNKNOWN)
        _lengthen(self._passed, place + 1, _NONE)
        _lengthen(self._error, place + 1, _NONE)
        is_first = not self.has(place)
        self._value[place] = _UNKNOWN if value is None else value
        self._passed[place] = _NONE if passed is None else passed
        self._error[place] = error
        return is_first

    def has(self, place: int) -> bool:
        return place < len(self._error) and self._error[place] != _NONE

    def value_of(self, place: int) -> float:
        """NaN where there is none."""
        return self._value[place] if place < len(self._value) else _UNKNOWN

    def passed_of(self, place: int) -> int:
        return self._passed[place] if place < len(self._passed) else _NONE

    def is_error(self, place: int) -> bool:
        return place < len(self._error) and self._error[place] == 1


class _Texts:
    """Encoded texts one after another, 8 bytes each besides their own."""

    __slots__ = ("_bytes", "_starts")

    def __init__(self) -> None:
        self._bytes, self._starts = bytearray(), array("q", [0])

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, place: int) -> bytes:
        return bytes(self._bytes[self._starts[place] : self._starts[place + 1]])

    def append(self, text: bytes) -> None:
        self._bytes += text
        self._starts.append(len(self._bytes))


def _lengthen(column: array[Any], length: int, value: float) -> None:
    if length > len(column):
        column.extend([value] * (length - len(column)))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
