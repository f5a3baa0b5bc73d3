"""What a summary needs of results, as plain values: made where the results are made, which may be
in another process, and added to the columns of the batch's process, many results at once.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import index
from typing import Any, NamedTuple, TypeAlias, cast
from zlib import crc32

from evaluator.batch.fields import reader_of
from evaluator.batch.records import Sample, Score, Verdict

VERDICTS = tuple(Verdict)
_CODES = {verdict: code for code, verdict in enumerate(VERDICTS)}
ABSENT, VALUED, UNSCORED, FAULTY = range(4)
NONE = -1
MAX_LABEL_CHARS = 60
_MAX_EXAMPLE_CHARS = 500
_NOT_A_LABEL = ()
DOLLARS = ("cost_usd", "scoring_cost_usd", "cache_saved_usd")
TOKENS = (
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "scoring_input_tokens",
    "scoring_output_tokens",
)
_FIRST_TOKENS = len(DOLLARS)
NUMBER_TYPES = ("i", "i", "f", *"d" * len(DOLLARS), *"i" * len(TOKENS))
"""The typecodes of the columns for the `numbers` of a ResultBlock."""
_RUN_TYPE = "i"
_VERDICT_TYPE = "b"
SCORE_TYPES = ("b", "d", "b")
"""The typecodes of the columns for the state, the value and the verdict of a score."""
_PLACES = {name: place for place, name in enumerate((*DOLLARS, *TOKENS))}
_SCORING_PLACES = {
    "cost_usd": 1,
    "cache_saved_usd": 2,
    "input_tokens": _PLACES["scoring_input_tokens"],
    "output_tokens": _PLACES["scoring_output_tokens"],
}
"""Where the amounts of a result, and those of its scores, are added."""
_MAX_JUDGES = 30
_MOST = 2**31 - 1
_ERROR = Verdict.ERROR.value

Ballot: TypeAlias = tuple[tuple[str, bool | None], ...]
"""Each judge with its vote; None where it did not vote."""
Judged: TypeAlias = tuple[int, Sequence[float]]
"""A score with usage: a number, at least 1, that it has in each result which keeps the score; and
what it used, as `used_by` returns it.
"""
ScoreRow: TypeAlias = tuple[int, float, int, Any, Mapping[str, Any] | None, Judged | None]
"""The state, the value, 1 or 0 for passed or failed, the answer as `label_of` returns it, the
metadata of a score, and what `judged_of` returns.
"""
Fields: TypeAlias = tuple[Any, Any, tuple[str, ...]]
"""The values of the cluster and of the field to group by, and the names of the metadata fields
where one of them is missing.
"""
ResultRow: TypeAlias = tuple[Any, ...]
"""The values of a ResultBlock for one result, in their order, where `scores` are a mapping of names
to a ScoreRow; the `numbers` come last, each of them a value.
"""
_NO_SCORE: ScoreRow = (ABSENT, math.nan, NONE, None, None, None)


class ResultBlock(NamedTuple):
    """Results side by side: each field has a value for every result. Numbers are in arrays of the
    types that the columns have: they are sent and appended as they are.

    The key and the id of the sample; the cell and the epoch; what identifies its run (see
    `run_of`); the code of the verdict; the kind and the message of the error; the target as
    `label_of` returns it; the fields of the summary. `scores`: for each scorer the fields of its
    ScoreRows. `numbers`: cached and interrupted calls, seconds, and what `used_by` returns.
    """

    keys: Sequence[str]
    sample_ids: Sequence[str]
    cells: Sequence[tuple[str, str]]
    epochs: Sequence[int]
    runs: array[int]
    verdicts: array[int]
    errors: Sequence[tuple[str, str] | None]
    targets: Sequence[Any]
    fields: Sequence[Fields | None]
    scores: Mapping[str, Sequence[Sequence[Any]]]
    numbers: Sequence[array[Any]]

    @classmethod
    def of(cls, rows: Sequence[ResultRow]) -> ResultBlock:
        """The block of `rows`; there is at least one."""
        columns = list(zip(*rows, strict=True))
        by_result = columns[_SCORES]
        scores: dict[str, Sequence[Sequence[Any]]] = {}
        for name in dict.fromkeys(chain.from_iterable(by_result)):
            found = [each.get(name, _NO_SCORE) for each in by_result]
            parts = list(zip(*found, strict=True))
            scores[name] = [*map(array, SCORE_TYPES, parts), *parts[len(SCORE_TYPES) :]]
        block = cls._make([*columns[:_SCORES], scores, columns[_SCORES + 1 :]])
        return block._replace(
            runs=array(_RUN_TYPE, block.runs),
            verdicts=array(_VERDICT_TYPE, block.verdicts),
            numbers=list(map(array, NUMBER_TYPES, block.numbers)),
        )

    def rows(self) -> list[ResultRow]:
        """The rows that it was made of; a score that a row had not is one that is absent."""
        by_result: list[dict[str, ScoreRow]] = [{} for _ in self.keys]
        for name, columns in self.scores.items():
            for scores, score in zip(by_result, zip(*columns, strict=True), strict=True):
                scores[name] = score
        return list(zip(*self[:_SCORES], by_result, *self.numbers, strict=True))


_SCORES = ResultBlock._fields.index("scores")


class ResultRows:
    """Makes the rows of results. `cluster` and `group_by` are metadata fields, or expressions.

    Raises: UsageError, for an invalid expression.
    """

    def __init__(self, cluster: str | None, group_by: str | None) -> None:
        self._cluster = _reader(cluster, "cluster")
        self._group_by = _reader(group_by, "group_by")
        self._has_fields = cluster is not None or group_by is not None

    def row_of(self, result: Mapping[str, Any]) -> ResultRow:
        """The row of a result as JSON (see `SampleResult.to_dict`).

        Raises: KeyError, TypeError or ValueError, for something else than a result.
        """
        key = result["key"]
        sample_id = result["sample_id"]
        cell = result["template"], result["variant"]
        # The hashes of numbers, unlike those of texts, do not spread over the table of an Interner.
        if not (
            isinstance(key, str)
            and isinstance(sample_id, str)
            and isinstance(cell[0], str)
            and isinstance(cell[1], str)
        ):
            raise TypeError("the key, the sample_id, the template and the variant are text")
        fault = None
        scores: dict[str, ScoreRow] = {}
        for name, score in result["scores"].items():
            found = _fault_in(score.get("error"), score["value"])
            scores[name] = _score_row(score, is_faulty=found is not None)
            if found is not None and fault is None:
                fault = name, found
        return (
            key,
            sample_id,
            cell,
            index(result["epoch"]),
            run_of(result),
            _CODES[result["verdict"]],
            _error_of(result, fault),
            label_of(result["target"]),
            self._fields_of(result) if self._has_fields else None,
            scores,
            calls_of(result["cached_calls"]),
            calls_of(result["interrupted_calls"]),
            float(result["duration_s"]),
            *used_by(result),
        )

    def _fields_of(self, result: Mapping[str, Any]) -> Fields:
        sample = Sample(
            result["sample_id"],
            result["inputs"],
            target=result["target"],
            metadata=result["metadata"],
        )
        cluster = None if self._cluster is None else self._cluster(sample)
        part = None if self._group_by is None else self._group_by(sample)
        is_missing = (self._cluster is not None and cluster is None) or (
            self._group_by is not None and part is None
        )
        return cluster, part, tuple(sample.metadata) if is_missing else ()


def _reader(field: str | None, what: str) -> Callable[[Sample], Any] | None:
    return None if field is None else reader_of(field, what)


def _score_row(score: Mapping[str, Any], *, is_faulty: bool) -> ScoreRow:
    value = score["value"]
    state = UNSCORED
    passed = NONE
    if is_faulty:
        state = FAULTY
        value = None
    else:
        if score["passed"] is not None:
            passed = int(score["passed"])
            if passed not in (0, 1):
                raise OverflowError(f"passed is {passed}")
        if value is not None:
            state = VALUED
    answer = label_of(score.get("answer"))
    metadata = score.get("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError("the metadata of a score are an object")
    if value is None:
        value = math.nan
    return state, value, passed, answer, metadata, judged_of(score)


def judged_of(score: Mapping[str, Any]) -> Judged | None:
    """What identifies a score among those of its scorer, and what it used; None without usage, and
    where it is not known when it was made.
    """
    made_at = score.get("at")
    if "usage" not in score or not isinstance(made_at, str):
        return None
    made = f"{score.get('version')} {made_at}".encode("utf-8", "surrogatepass")
    return crc32(made) % _MOST + 1, used_by({"usage": {}, "scores": {"": score}})


def label_of(value: Any) -> Any:
    """A short label; None where there is none. All other values are alike: none of them is one."""
    if isinstance(value, str):
        label = value.strip()
        if len(label) <= MAX_LABEL_CHARS:
            return label
        return _NOT_A_LABEL
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _NOT_A_LABEL


def ballot_of(votes: Any) -> Ballot | None:
    """The votes in a score's metadata, as `majority` writes them; None without votes."""
    if (
        not isinstance(votes, Mapping)
        or not 2 <= len(cast("Mapping[Any, Any]", votes)) <= _MAX_JUDGES
    ):
        return None
    ballot = tuple(
        (str(judge)[:MAX_LABEL_CHARS], vote)
        for judge, vote in cast("Mapping[Any, Any]", votes).items()
    )
    if all(vote is None or isinstance(vote, bool) for _, vote in ballot):
        return ballot
    return None


def fault_of(score: Score) -> str | None:
    """What went wrong in the scorer; None where nothing did. A value that is not a finite number is
    a fault.
    """
    return _fault_in(score.error, score.value)


def _fault_in(error: str | None, value: float | None) -> str | None:
    if error is not None:
        return error
    if value is not None and not math.isfinite(value):
        return f"its value is {value}, which is not a finite number"
    return None


def _error_of(result: Mapping[str, Any], fault: tuple[str, str] | None) -> tuple[str, str] | None:
    """The kind of the error, and its message as the kind's example; None without an error. `fault`
    is a scorer that went wrong, and how.
    """
    failure = result["failure"]
    is_error = result["verdict"] == _ERROR
    if failure is not None:
        kind = failure["kind"]
        message = failure["message"]
        resource = failure.get("resource")
        if not is_error and resource is not None:
            kind = f"{resource} limit, not an error"
    elif fault is not None:
        kind = f"scorer {fault[0]}"
        message = fault[1]
    elif is_error:
        kind = "unknown"
        message = ""
    else:
        return None
    if not isinstance(kind, str):
        raise TypeError("the kind of an error is text")
    return kind, message[:_MAX_EXAMPLE_CHARS]


def run_of(result: Mapping[str, Any]) -> int:
    """Identifies the run of its sample, resumed or not, that a result comes from: the same number
    in each process.
    """
    task_id = result["task_id"]
    if task_id is None:
        return crc32(result["started"].encode()) & _MOST
    # The tuple spreads the numbers of tasks.
    return hash((task_id,)) & _MOST


def used_by(result: Mapping[str, Any]) -> Sequence[float]:
    """The costs, the savings and the tokens of a result, NONE where unknown, in the order of
    `Columns.used`.
    """
    used: list[float] = [0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0]
    for name, value in result["usage"].items():
        place = _PLACES.get(name)
        if place is None:
            continue
        if value is None:
            used[place] = NONE
        elif place >= _FIRST_TOKENS:
            used[place] = value if value.__class__ is int and 0 <= value <= _MOST else _count(value)
        else:
            used[place] = value + 0.0
    for score in result["scores"].values():
        if "usage" not in score:
            continue
        for name, value in score["usage"].items():
            place = _SCORING_PLACES.get(name)
            if place is None or used[place] == NONE:
                continue
            if value is None:
                used[place] = NONE
            elif place >= _FIRST_TOKENS:
                used[place] = _sum_of_tokens(used[place], value)
            else:
                used[place] += value
    return used


def _sum_of_tokens(before: float, tokens: int) -> float:
    more = _count(tokens)
    return NONE if more == NONE else min(before + more, _MOST)


def _count(tokens: int | None) -> int:
    if tokens is None or tokens < 0:
        return NONE
    return index(tokens) if tokens <= _MOST else _MOST


def calls_of(number: Any) -> int:
    """A number of calls that fits into a column."""
    if number.__class__ is int and 0 <= number <= _MOST:
        return number
    return min(max(index(number), 0), _MOST)
