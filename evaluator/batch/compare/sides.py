"""One side of a comparison: its results reduced to what pairs need, about 60 bytes and the id for
each sample.

Samples are identified by numbers, which both sides share, for the value that makes pairs. Of
several results for one sample and epoch the last one counts.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable, Collection
from typing import Any

from evaluator.batch.fields import MOST_FIELDS, reader_of
from evaluator.batch.reading import Declared
from evaluator.batch.records import SampleResult, Verdict
from evaluator.batch.summary.parts import PanelColumns, has_ratings
from evaluator.batch.summary.rows import fault_of
from evaluator.errors import UsageError
from evaluator.store.columns import Interner

_NONE = -1
_UNKNOWN = math.nan


def key_of(by: str) -> Callable[[SampleResult], str]:
    """A function that returns the value by which a sample is paired: `id`, `inputs` or
    `metadata.NAME`.

    Raises: UsageError, if `by` is none of these; the function, if a sample has no such field.
    """
    if by == "id":
        return lambda result: result.sample_id
    if by == "inputs":
        return lambda result: _text(result.inputs)
    kind, dot, name = by.partition(".")
    if kind != "metadata" or not dot or not name:
        raise UsageError(f"pairs are made by id, inputs or metadata.NAME, not by {by!r}")

    def read(result: SampleResult) -> str:
        if name not in result.metadata:
            raise UsageError(
                f"sample {result.sample_id!r} has no {name!r} in its metadata to pair it by"
            )
        return _text(result.metadata[name])

    return read


class SideSamples:
    """The samples of one side by their numbers in `keys`.

    `groups`, `seen` scorers and metadata `fields` are in order of appearance. `declared` is what
    the batch declares about its results, None without a batch. `results` counts the epochs of all
    samples.
    """

    def __init__(
        self,
        name: str,
        keys: Interner,
        key: Callable[[SampleResult], str],
        scorer: str | None,
        cluster: str | None,
        declared: Declared | None,
    ) -> None:
        self.name = name
        self.declared = declared
        self.results = 0
        self.groups: dict[tuple[str, str], None] = {}
        self.seen: dict[str, None] = {}
        self.fields: dict[str, None] = {}
        self._is_answered = False
        self._keys = keys
        self._key = key
        self._scorer = scorer
        if cluster is None:
            self._cluster = None
        else:
            self._cluster = reader_of(cluster, "cluster")
        self._places = array("i")
        self._ids = _Texts()
        self._labels = _Texts()
        self._rows = array("q")
        self._inputs = array("q")
        self._targets = array("q")
        self._clusters = array("i")
        self._cluster_names = Interner()
        self._epochs: dict[int, _Epoch] = {}
        self._panels: dict[str, PanelColumns] = {}

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, result: SampleResult) -> None:
        """Adds a result.

        Raises: UsageError, if its template or variant differs from the earlier ones, another sample
        has the same value to pair by, or it has no such value.
        """
        self.groups[result.template, result.variant] = None
        if len(self.groups) > 1:
            found = ", ".join(f"{template} × {variant}" for template, variant in self.groups)
            raise UsageError(
                f"side {self.name} has results of {found}; compare one template and variant at "
                "a time"
            )
        self.seen.update(dict.fromkeys(result.scores))
        self._is_answered = self._is_answered or result.failure is None
        if self._cluster is not None and len(self.fields) < MOST_FIELDS:
            self.fields.update(dict.fromkeys(result.metadata))
        place = self._place(result)
        self._inputs[place] = hash(_text(result.inputs))
        self._targets[place] = hash(_text(result.target))
        if self._cluster is not None:
            group = self._cluster(result)
            if group is None:
                self._clusters[place] = _NONE
            else:
                self._clusters[place] = self._cluster_names.number(_text(group))
        if result.epoch not in self._epochs:
            self._epochs[result.epoch] = _Epoch()
        for name, score in result.scores.items():
            if has_ratings(score.metadata) and self._scorer in (None, name):
                self._panels.setdefault(name, PanelColumns()).put(self.results, score.metadata)
        self.results += self._epochs[result.epoch].put(place, *self._judged(result))

    @property
    def scorers(self) -> Collection[str] | None:
        """The scorers' names; None where they are unknown, as every task failed."""
        if self.declared is not None and self.declared.scorers is not None:
            return self.declared.scorers.keys() | self.seen.keys()
        if self.seen or self._is_answered:
            return self.seen.keys()
        return None

    def noise(self) -> float | None:
        """The variance of one result's value that is due to the judges, for the compared value;
        None where no judge is asked several times. Of several judges that decide whether a result
        passed, the sum.
        """
        found: list[float] = []
        for panel in self._panels.values():
            stability = panel.stability(range(self.results))
            noise = None
            if stability is not None and self._scorer is not None:
                noise = stability.value_noise
            elif stability is not None and stability.verdict_flips is not None:
                noise = stability.verdict_flips / 2
            if noise is not None:
                found.append(noise)
        return math.fsum(found) if found else None

    def close(self) -> None:
        """Ends adding. Raises: UsageError, if the side has no such scorer."""
        for epoch in self._epochs.values():
            epoch.grow(len(self))
        scorers = self.scorers
        if self._scorer is not None and scorers is not None and self._scorer not in scorers:
            known = ", ".join(scorers) or "none"
            raise UsageError(f"side {self.name} has no score by {self._scorer!r}; there is {known}")

    def __contains__(self, number: int) -> bool:
        return number < len(self._places) and self._places[number] != _NONE

    def id(self, number: int) -> str:
        return self.encoded_id(number).decode("utf-8", "surrogatepass")

    def encoded_id(self, number: int) -> bytes:
        """The id as UTF-8, which sorts as text does."""
        return self._ids[self._places[number]]

    def label(self, number: int) -> str:
        """The sample for a person, where that is more than its id; else an empty text."""
        return self._labels[self._places[number]].decode("utf-8", "surrogatepass")

    def row(self, number: int) -> int:
        """The place of its row in the dataset, from 0."""
        return self._rows[self._places[number]]

    def inputs(self, number: int) -> int:
        """A hash of its inputs."""
        return self._inputs[self._places[number]]

    def target(self, number: int) -> int:
        """A hash of its target."""
        return self._targets[self._places[number]]

    def cluster(self, number: int) -> int | None:
        """The number of its cluster, from 0; None without a cluster."""
        found = self._clusters[self._places[number]]
        if found == _NONE:
            return None
        return found

    def value(self, number: int) -> float | None:
        """The mean of its epochs' values; None without a value."""
        place = self._places[number]
        values = [epoch.value[place] for epoch in self._epochs.values()]
        known = [value for value in values if not math.isnan(value)]
        if known:
            return math.fsum(known) / len(known)
        return None

    def bounds(self, number: int) -> tuple[float, float]:
        """The `value` with 0, and with 1, for each epoch without a value."""
        place = self._places[number]
        values = [
            epoch.value[place] for epoch in self._epochs.values() if epoch.error[place] != _NONE
        ]
        known = [value for value in values if not math.isnan(value)]
        least = math.fsum(known)
        return least / len(values), (least + len(values) - len(known)) / len(values)

    def is_open(self, number: int) -> bool:
        """Whether one of its epochs has no value."""
        place = self._places[number]
        return any(
            epoch.error[place] != _NONE and math.isnan(epoch.value[place])
            for epoch in self._epochs.values()
        )

    def passed(self, number: int) -> bool | None:
        """Whether most of its judged epochs passed; None for a tie, or without a judged epoch."""
        place = self._places[number]
        judged = [
            passed for epoch in self._epochs.values() if (passed := epoch.passed[place]) != _NONE
        ]
        balance = 2 * sum(judged) - len(judged)
        if balance == 0:
            return None
        return balance > 0

    def is_error(self, number: int) -> bool:
        """Whether one of its epochs is an error."""
        place = self._places[number]
        return any(epoch.error[place] == 1 for epoch in self._epochs.values())

    def _place(self, result: SampleResult) -> int:
        """The index of the sample in the columns, which grow for a new one."""
        number = self._keys.number(self._key(result))
        sample_id = result.sample_id.encode("utf-8", "surrogatepass")
        if number in self:
            place = self._places[number]
            if self._ids[place] != sample_id:
                raise UsageError(
                    f"side {self.name}: samples {self.id(number)!r} and {result.sample_id!r} have "
                    "the same value to "
                    "pair by"
                )
            return place
        _lengthen(self._places, number + 1, value=_NONE)
        place = self._places[number] = len(self._ids)
        self._ids.append(sample_id)
        label = result.label
        self._labels.append(
            b"" if label == result.sample_id else label.encode("utf-8", "surrogatepass")
        )
        self._rows.append(result.place)
        for column in (self._inputs, self._targets):
            column.append(0)
        if self._cluster is not None:
            self._clusters.append(_NONE)
        return place

    def _judged(self, result: SampleResult) -> tuple[float | None, bool | None, bool]:
        """Its value, whether it passed, and whether it is an error."""
        if self._scorer is None:
            passed = {Verdict.PASSED: True, Verdict.FAILED: False}.get(result.verdict)
            return (
                None if passed is None else float(passed),
                passed,
                result.verdict is Verdict.ERROR,
            )
        score = result.scores.get(self._scorer)
        if score is None:
            return None, None, result.failure is not None
        if fault_of(score) is not None:
            return None, None, True
        return score.value, score.passed, False


class _Epoch:
    """The results of one epoch, by the index of their samples. `error` is NONE for a sample without
    a result.
    """

    __slots__ = ("error", "passed", "value")

    def __init__(self) -> None:
        self.value = array("d")
        self.passed = array("b")
        self.error = array("b")

    def grow(self, length: int) -> None:
        _lengthen(self.value, length, value=_UNKNOWN)
        _lengthen(self.passed, length, value=_NONE)
        _lengthen(self.error, length, value=_NONE)

    def put(self, place: int, value: float | None, passed: bool | None, error: bool) -> bool:
        """Returns: whether it is the first result of the sample."""
        self.grow(place + 1)
        is_first = self.error[place] == _NONE
        self.value[place] = _UNKNOWN if value is None else value
        self.passed[place] = _NONE if passed is None else passed
        self.error[place] = error
        return is_first


class _Texts:
    """A list of encoded texts in one buffer, with 8 bytes of overhead each."""

    __slots__ = ("_bytes", "_starts")

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._starts = array("q", [0])

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
