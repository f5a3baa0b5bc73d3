"""A labeller's session: the questions, one after the other, and the labels that answer them.

Several sessions may label a batch at the same time, also in other processes: before each question a
session reads the labels that were added. A label is on the disk before the next question is asked.

Samples are drawn at random within each verdict of the scorer, so that labels of them correct its
number without a bias, whatever the scorer's mistakes are. The order within a verdict follows from a
hash of the result, and is the same for every labeller; the groups of a batch take turns in
proportion to their sizes. Verdicts take turns at random, with a chance in proportion to the root of
their sizes: a rare verdict gets more labels than its share, as the error of the judge is uncertain
there. A labeller cannot tell from the order what the judge said.

Of the samples that others have labelled, a labeller sees the first 30, which show how well people
agree, and then only samples without a label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Protocol

from evaluator.batch.calibration import Cell, JudgedResults
from evaluator.batch.folder import BatchFolder
from evaluator.batch.label_forms import Answer, LabelSheet
from evaluator.batch.labels import (
    CurrentLabels,
    Label,
    LabelVerdict,
    append_labels,
    read_labels,
    shown_digest,
)
from evaluator.batch.reading import Batch, judged_results
from evaluator.batch.records import SampleResult
from evaluator.batch.statistics import Estimate, cautious_reach
from evaluator.errors import UsageError
from evaluator.errors.messages import amount, did_you_mean, listed
from evaluator.lazy_dataclass import frozen
from evaluator.record.journal import now
from evaluator.record.redact import Redactor

OVERLAP = 30
LEAST_LABELS = 10
"""With fewer labels of a template and variant, a width is not trusted."""
_LEAST_OF_VERDICT = 2
_RANKS = 2.0**64


@frozen
class LabelProgress:
    """How well the share of a template and variant is known: `reach` is half the width of its
    interval, in points; None without an interval.

    `needed` more labels make it about as small as wanted; None where that is unknown, or where even
    a label of each result does not.
    """

    cell: Cell
    labels: int
    of: int
    reach: float | None
    needed: int | None
    best: float | None

    def line(self, precision: float) -> str:
        name = " × ".join(part for part in self.cell if part)
        counts = f"{name}: {self.labels:,} of {amount(self.of, 'result')} labelled"
        if self.reach is None:
            return f"{counts}; an interval needs at least two labels of each verdict"
        found = f"{counts}; the share is known to ± {self.reach:.1f} points"
        if self.needed == 0:
            return found
        if self.needed is None:
            return (
                f"{found}; ± {precision:g} needs more results: labels of all {self.of:,} "
                f"give ± {self.best or 0:.1f}"
            )
        return f"{found}; about {amount(self.needed, 'more label')} for ± {precision:g}"


class _Stratum:
    """The results of a template and variant with one verdict, in the order in which they are
    shown.
    """

    def __init__(self, judged: JudgedResults, verdict: int) -> None:
        self.judged = judged
        groups: dict[str, list[tuple[float, int]]] = {}
        for place, passed in enumerate(judged.passed):
            if passed == verdict:
                group = groups.setdefault(judged.groups[place], [])
                group.append((rank_of(judged.keys[place]), place))
        ranked: list[tuple[float, int]] = []
        for members in groups.values():
            members.sort()
            ranked += [
                ((number + rank) / len(members), place)
                for number, (rank, place) in enumerate(members)
            ]
        self.places = [place for _, place in sorted(ranked)]

    @property
    def decided(self) -> int:
        """The number of results with a label that decides."""
        return sum(
            any(label.passed is not None for label in self.judged.labels[place].values())
            for place in self.places
            if place in self.judged.labels
        )

    def next(self, labeller: str, *, sees_others: bool, skipped: Collection[str]) -> int | None:
        """The place of the next result for a labeller."""
        for place in self.places:
            labels = self.judged.labels.get(place, {})
            if labeller in labels or self.judged.keys[place] in skipped:
                continue
            if not labels or sees_others:
                return place
        return None


class LabelQueue:
    """The samples that a labeller is asked about, one after the other.

    `precision` is the wanted half of an interval's width, in points of a percentage.
    """

    def __init__(
        self, cells: Mapping[Cell, JudgedResults], labeller: str, precision: float
    ) -> None:
        self._cells = cells
        self._labeller = labeller
        self._precision = precision
        self._strata = {
            cell: [_Stratum(judged, verdict) for verdict in (1, 0)]
            for cell, judged in cells.items()
        }

    def next(self, skipped: Collection[str] = ()) -> str | None:
        """The key of the next result; None where the wanted precision is reached, or nothing is
        left. `skipped` results are not shown.
        """
        labelled = [labels for judged in self._cells.values() for labels in judged.labels.values()]
        overlap = sum(self._labeller in labels and len(labels) > 1 for labels in labelled)
        sees_others = overlap < OVERLAP
        found: list[tuple[_Stratum, int]] = []
        for cell, strata in self._strata.items():
            own = self._cells[cell].labels.values()
            has_others = sees_others and any(self._labeller not in labels for labels in own)
            if not has_others and self._progress_of(cell).needed == 0:
                continue
            for stratum in strata:
                place = stratum.next(self._labeller, sees_others=sees_others, skipped=skipped)
                if place is not None:
                    found.append((stratum, place))
        if not found:
            return None
        scarce = [each for each in found if each[0].decided < _LEAST_OF_VERDICT]
        choices = scarce or found
        weights = [math.sqrt(len(stratum.places)) for stratum, _ in choices]
        count = sum(map(len, labelled))
        draw = Random(f"{self._labeller}\0{count}\0{len(skipped)}")
        stratum, place = draw.choices(choices, weights=weights)[0]
        return stratum.judged.keys[place]

    def add(self, label: Label) -> None:
        """Counts a label that was given just now."""
        for judged in self._cells.values():
            judged.add_label(label)

    def progress(self) -> Iterator[LabelProgress]:
        """How well each share is known."""
        for cell in self._cells:
            yield self._progress_of(cell)

    def _progress_of(self, cell: Cell) -> LabelProgress:
        judged = self._cells[cell]
        share = judged.share()
        reach = reach_of(share.corrected)
        if reach is None:
            return LabelProgress(cell, share.labels, share.of, reach=None, needed=None, best=None)
        best = reach_of(share.judge) or 0.0
        labelled = judged.partly_labelled(range(len(judged)))
        cautious = cautious_reach(labelled, share.corrected) or 0.0
        needed = _needed(
            share.labels, share.of, reach=100 * cautious, best=best, precision=self._precision
        )
        return LabelProgress(cell, share.labels, share.of, reach=reach, needed=needed, best=best)


def _needed(labels: int, of: int, *, reach: float, best: float, precision: float) -> int | None:
    """How many more labels make the interval as small as `precision`.

    Its width has a part that falls with the number of labels, and one that labels of every result
    leave, which is about the width of the judge's own interval (`best`).
    """
    if reach <= precision:
        return max(0, min(of, LEAST_LABELS) - labels)
    if best >= precision or labels >= of:
        return None
    falling = max(0.0, reach * reach - best * best) * labels
    total = math.ceil(falling / (precision * precision - best * best))
    return max(1, min(of, total) - labels)


def reach_of(estimate: Estimate) -> float | None:
    """Half the width of an interval, in points; None without one."""
    if estimate.low is None or estimate.high is None:
        return None
    return 50 * (estimate.high - estimate.low)


def rank_of(key: str) -> float:
    """A number in [0, 1) that follows from the key, and from nothing that is known of the
    result.
    """
    digits = blake2b(key.encode(), digest_size=8, person=b"label").digest()
    return int.from_bytes(digits, "big") / _RANKS


DEFAULT_PRECISION = 3.0
Find = Callable[[str], SampleResult | None]
"""The result with a key, as it is now; None if the batch has none."""


@frozen
class Question:
    """What a labeller is asked about one result, or about the answers of two.

    `keys` are those of the results, `identity` that of the first one. `shown` is the digest of the
    text in `sections`, which are
    titles and texts in their order. `choices` are the keys that answer, with their meanings;
    `has_value`: a number from 0 to 1 answers too.
    """

    keys: tuple[str, ...]
    identity: str
    shown: str
    sections: tuple[tuple[str, str], ...]
    choices: tuple[tuple[str, str], ...]
    has_value: bool = False

    @property
    def id(self) -> str:
        return "-".join(self.keys)

    @property
    def help(self) -> str:
        """What may be typed, in one line."""
        keys = [f"{key} {meaning}" for key, meaning in self.choices]
        if self.has_value:
            keys.insert(2, "a number from 0 to 1")
        return f"{', '.join(keys)}; s skip, u undo, q quit; a note may follow after a space"


class Subject(Protocol):
    """What is asked about: `answers` results at once. `scorer` is empty for a comparison."""

    scorer: str
    answers: int

    def next(self, skipped: Collection[str]) -> str | None:
        """The id of the next question; None where nothing is left, or the precision is reached."""
        ...

    def question(self, keys: Sequence[str], results: Sequence[SampleResult]) -> Question: ...

    def answer(self, question: Question, word: str) -> Answer:
        """The answer for a key, a verdict or a value. Raises: ValueError, with the reason."""
        ...

    def add(self, label: Label) -> None:
        """Counts a label that was given just now."""
        ...

    def needed(self) -> int | None:
        """About how many more labels are needed; None where that is unknown."""
        ...

    def lines(self) -> list[str]:
        """How well the numbers are known. They name what is hidden from a labeller."""
        ...


class AnswerSubject:
    """Single results, as to the question of one scorer.

    Raises: UsageError, if the scorer has judged no result.
    """

    answers = 1

    def __init__(
        self,
        batch: Batch,
        scorer: str,
        labeller: str,
        labels: CurrentLabels,
        precision: float,
    ) -> None:
        judged: dict[tuple[str, str], JudgedResults] = {
            cell: found[scorer]
            for cell, found in judged_results(batch, {scorer: scorer}, labels).items()
            if len(found[scorer])
        }
        if not judged:
            raise UsageError(f"{batch.folder}: the scorer {scorer!r} has judged no result yet")
        self.scorer = scorer
        self._precision = precision
        self._queue = LabelQueue(judged, labeller, precision=precision)
        self._sheet = LabelSheet.of(batch.manifest.get("scorers", {}).get(scorer) or {})

    def next(self, skipped: Collection[str]) -> str | None:
        return self._queue.next(skipped)

    def question(self, keys: Sequence[str], results: Sequence[SampleResult]) -> Question:
        (result,) = results
        sheet = self._sheet
        return Question(
            tuple(keys),
            result.identity,
            shown_digest(result),
            sections=tuple(sheet.sections(result)),
            choices=sheet.choices,
            has_value=not sheet.grades,
        )

    def answer(self, question: Question, word: str) -> Answer:
        return self._sheet.read(word)

    def add(self, label: Label) -> None:
        self._queue.add(label)

    def needed(self) -> int | None:
        counts = [progress.needed for progress in self._queue.progress()]
        if None in counts:
            return None
        return sum(count or 0 for count in counts)

    def lines(self) -> list[str]:
        return [progress.line(self._precision) for progress in self._queue.progress()]


class LabelSession:
    """The questions of one labeller about a batch.

    `subject` was made from `labels`. Results that are written later are not asked about.
    """

    def __init__(
        self,
        batch: Batch,
        labeller: str,
        *,
        labels: Sequence[Label],
        subject: Subject,
        find: Find | None,
    ) -> None:
        """`find` None: the results are those of now."""
        self.subject = subject
        self.given: dict[str, Label] = {}
        """The labels of this labeller that count, by the id of the question, the latest last."""
        self._batch = batch
        self._labeller = labeller
        # After the subject read the results: a batch that is running adds results.
        self._find = find or _finder(batch)
        self._skipped: list[str] = []
        self._read = len(labels)
        for label in labels:
            self._note(label)

    def next(self) -> Question | None:
        """The next question; None where nothing is left, or the wanted width is reached."""
        self._refresh()
        found = self.subject.next(self._skipped)
        if found is None:
            return None
        return self.question(found)

    def question(self, id: str) -> Question:
        """A question by its id. Raises: UsageError, if the batch has no such result."""
        found = self._asked(id)
        if found is None:
            raise UsageError(f"{self._batch.folder}: there is no such result to label now")
        return found

    def answer(self, question: Question, word: str, *, note: str = "", seconds: float = 0) -> None:
        """Stores an answer. Raises: ValueError, for a word that does not answer; UsageError, as
        `Label`; RecordError, if it cannot be written.
        """
        self._write(question, self.subject.answer(question, word), note=note, seconds=seconds)

    def skip(self, question: Question) -> None:
        """Leaves a question out in this session."""
        self._skipped.append(question.id)

    def undo(self) -> Question | None:
        """Withdraws the labeller's last label, also of an earlier session. Returns: its question;
        None without one.
        """
        self._refresh()
        for id in reversed(self.given):
            question = self._asked(id)
            if question is not None:
                self._write(question, Answer(LabelVerdict.REMOVED))
                return question
        return None

    def _write(
        self, question: Question, answer: Answer, *, note: str = "", seconds: float = 0
    ) -> None:
        key, *others = question.keys
        label = Label(
            key,
            question.identity,
            question.shown,
            scorer=self.subject.scorer,
            labeller=self._labeller,
            verdict=answer.verdict,
            value=answer.value,
            grade=answer.grade,
            note=note,
            at=now(),
            seconds=seconds,
            other="".join(others),
        )
        append_labels(self._batch.folder, [label], Redactor.from_environment())
        self._refresh()

    def _refresh(self) -> None:
        """Counts the labels that were written since, by this labeller and by others."""
        labels = read_labels(self._batch.folder)
        for label in labels[self._read :]:
            self._note(label)
            if label.scorer == self.subject.scorer:
                question = self._asked(_id_of(label))
                is_current = question is not None and label.shown == question.shown
                if is_current or label.verdict is LabelVerdict.REMOVED:
                    self.subject.add(label)
        self._read = len(labels)

    def _note(self, label: Label) -> None:
        if label.labeller != self._labeller or label.scorer != self.subject.scorer:
            return
        id = _id_of(label)
        self.given.pop(id, None)
        if label.verdict is not LabelVerdict.REMOVED:
            self.given[id] = label

    def _asked(self, id: str) -> Question | None:
        keys = id.split("-")
        results = [result for key in keys if (result := self._find(key)) is not None]
        if len(results) != self.subject.answers or len(keys) != len(results):
            return None
        return self.subject.question(keys, results)


def _id_of(label: Label) -> str:
    return "-".join(key for key in (label.key, label.other) if key)


def _finder(batch: Batch) -> Find:
    folder = BatchFolder.reader(batch.folder)
    index = folder.index()

    def find(key: str) -> SampleResult | None:
        entry = index.get(key)
        return None if entry is None else folder.read_at(entry.offset)

    return find


def label_answers(
    batch: Batch,
    scorer: str,
    labeller: str,
    precision: float = DEFAULT_PRECISION,
    find: Find | None = None,
) -> LabelSession:
    """A session that asks about single results. Raises: UsageError, as `AnswerSubject`;
    RecordError, for damaged results or labels.
    """
    labels = read_labels(batch.folder)
    subject = AnswerSubject(batch, scorer, labeller, CurrentLabels(labels), precision=precision)
    return LabelSession(batch, labeller, labels=labels, subject=subject, find=find)


def scorer_to_label(batch: Batch, scorer: str | None) -> str:
    """The scorer that is checked. Raises: UsageError, if the batch has no such scorer, or several
    to choose from.
    """
    known = list(batch.manifest.get("scorers") or {})
    if scorer is not None:
        if scorer not in known:
            hint = did_you_mean(scorer, known) or f"its scorers are {listed(known)}"
            raise UsageError(f"{batch.folder} has no scorer {scorer!r}; {hint}")
        return scorer
    if not known:
        raise UsageError(f"{batch.folder} has no scorer, so there is no verdict to check")
    judges = [name for name in known if name in (batch.manifest.get("judges") or {})]
    candidates = judges or known
    if len(candidates) > 1:
        raise UsageError(
            f"{batch.folder} has several scorers; name one with --scorer: {listed(candidates)}"
        )
    return candidates[0]
