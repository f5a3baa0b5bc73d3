"""Few-shot examples: rows of another source that a model sees, with their answers, before each row
of the batch.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from hashlib import blake2b
from typing import Annotated, Any

from evaluator.batch.records import Shot
from evaluator.batch.rows.mapping import (
    Getter,
    Mapper,
    MissingField,
    RowMapping,
    answer_text,
    content_digest,
    getter,
)
from evaluator.batch.rows.object_rows import RowError
from evaluator.batch.rows.row_source import RowsInput, open_origin
from evaluator.errors import UsageError
from evaluator.fields import Checked, Count, Expected, Flag, Name
from evaluator.lazy_dataclass import dataclass, frozen

FEWSHOT = "fewshot"
"""The input of a template that takes the examples as a list. A template without it gets them as
turns.
"""
CheckInputs = Callable[[Mapping[str, Any]], object]
"""Raises UsageError, for inputs that a template cannot take."""


@frozen
class FewShot(Checked, error=UsageError):
    """Which few-shot examples each row gets.

    `rows`: where they come from, as the rows of a batch; its fields are mapped to inputs and target
    as theirs are.
    `k`: how many. `seed`: the order in which they are taken; None: the order of the source. Every
    row gets the first `k` of this order, so that the beginning of its prompt is that of others.
    `match`: a field, or an expression in
    `{{ … }}`: only examples with the row's value of it. `answer`: the field or expression that is
    shown as the answer;
    None: the target.

    Examples with the inputs of the row itself are passed over, and so are repetitions of an
    example.

    Raises: UsageError, for an invalid value.
    """

    rows: Annotated[
        RowsInput,
        Expected("a file, rows or a frame"),
        Flag("--fewshot", "Show examples from these rows to the model, with --shots.", "FILE"),
    ]
    k: Annotated[Count, Flag("--shots", "How many examples each row gets.", "K")]
    seed: Annotated[
        int | None,
        Flag(
            "--fewshot-seed",
            "The order in which examples are taken. Default: that of the file.",
            metavar="SEED",
        ),
    ] = None
    match: Annotated[
        Name | None,
        Flag(
            "--fewshot-match",
            "Only examples with the same value of this field.",
            metavar="FIELD",
        ),
    ] = None
    answer: Annotated[
        Name | None,
        Flag(
            "--fewshot-answer",
            "The field that is shown as an example's answer. Default: the target.",
            metavar="FIELD",
        ),
    ] = None


@dataclass(frozen=True, slots=True, order=True)
class _Ranked:
    """An example with its place in the order in which examples are taken."""

    rank: tuple[bytes, int]
    part: str = field(compare=False)
    shot: Shot = field(compare=False)


class ShotPool:
    """The examples that rows can get: of each value of `match` the first `k + 1`, one more than any
    row needs.
    """

    def __init__(self, wanted: FewShot) -> None:
        self._wanted = wanted
        self._match: Getter | None = (
            None if wanted.match is None else getter(wanted.match, "fewshot.match")
        )
        self._groups: dict[str, list[_Ranked]] = {}
        self.source: Mapping[str, Any] = {}
        self.name = ""
        self.notices: tuple[str, ...] = ()

    def add(self, shot: Shot, matched: Any, place: int) -> None:
        part = content_digest(shot.inputs)
        seed = self._wanted.seed
        if seed is None:
            order = b""
        else:
            order = blake2b(f"{seed}\0{part}".encode(), digest_size=16).digest()
        group = self._groups.setdefault(content_digest(matched), [])
        if all(each.part != part for each in group):
            insort(group, _Ranked((order, place), part, shot=shot))
            del group[self._wanted.k + 1 :]

    def choose(self, row: Mapping[str, Any], inputs: Mapping[str, Any]) -> tuple[Shot, ...]:
        """The examples for a row with these inputs. Raises: MissingField, if there are not
        enough.
        """
        if self._match is None:
            matched = None
        else:
            matched = self._match(row)
        own = content_digest(inputs)
        k = self._wanted.k
        found = tuple(
            each.shot for each in self._groups.get(content_digest(matched), ()) if each.part != own
        )[:k]
        if len(found) < k:
            if self._match is None:
                of = ""
            else:
                of = f" with {self._wanted.match} {matched!r:.60}"
            raise MissingField(
                f"{self.name} has {len(found)} other examples{of} for this row, expected {k}"
            )
        return found

    def is_enough_for_any_row(self) -> bool:
        return self._match is None and all(
            len(group) > self._wanted.k for group in self._groups.values()
        )

    def describe(self) -> dict[str, Any]:
        """The examples as the manifest stores them; `checksum` is the hash of those that rows can
        get.
        """
        wanted = self._wanted
        shots = {
            value: [[each.part, each.shot.answer] for each in group]
            for value, group in sorted(self._groups.items())
        }
        return {
            "rows": dict(self.source),
            "k": wanted.k,
            "seed": wanted.seed,
            "match": wanted.match,
            "answer": wanted.answer,
            "checksum": content_digest(shots),
        }


def read_shots(
    wanted: FewShot,
    mapping: RowMapping,
    declared: Collection[str],
    required: Collection[str],
    check: CheckInputs,
) -> ShotPool:
    """The examples of `wanted.rows`. All of them are read now; memory holds those that rows can
    get.

    Raises: UsageError, for a source that cannot be read before the batch starts; RowError, for a
    row of it that has no answer, or lacks a field, or that `check` refuses.
    """
    pool = ShotPool(wanted)
    origin = open_origin(wanted.rows)
    pool.source = origin.describe()
    pool.name = origin.name
    pool.notices = origin.notices
    mapper = Mapper(mapping, origin.name, declared=declared, required=required)
    if wanted.match is None:
        matches = []
    else:
        matches = [getter(wanted.match, "fewshot.match")]
    if wanted.answer is None:
        answers = []
    else:
        answers = [getter(wanted.answer, "fewshot.answer")]
    if origin.is_repeatable:
        rows = origin.read()
    else:
        rows = None
    if not isinstance(rows, Generator):
        raise UsageError(
            f"fewshot.rows: an iterator ({origin.name}) can be read once only; give a list or "
            "a file"
        )
    with closing(rows):
        for place, (line, row) in enumerate(rows):
            example = mapper.example(row, place, line, [*matches, *answers])
            if answers:
                answer = example.more[-1]
            else:
                answer = example.target
            try:
                check(example.inputs)
                if answer is None:
                    raise UsageError(
                        "this example has no answer; name the field that has it as fewshot.answer"
                    )
            except UsageError as error:
                raise RowError(str(error), source=origin.name, line=line, place=place) from error
            pool.add(
                Shot(example.inputs, answer_text(answer)),
                example.more[0] if matches else None,
                place,
            )
    return pool


def shot_values(shots: Sequence[Shot]) -> list[dict[str, Any]]:
    """The examples as the template's input `fewshot` has them: their inputs by name, and
    `answer`.
    """
    return [{**shot.inputs, "answer": shot.answer} for shot in shots]
