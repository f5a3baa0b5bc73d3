"""Which of two answers to the same row people prefer: the questions, and the share of preferences.

A labeller sees the answers of two templates or variants to one row, in an order that is random for
each row and labeller, without their names. Rows are drawn at random. Equal answers are not shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b

from evaluator.batch.calibration import Cell
from evaluator.batch.identity import digest
from evaluator.batch.label_forms import Answer, as_text
from evaluator.batch.label_session import (
    DEFAULT_PRECISION,
    LEAST_LABELS,
    OVERLAP,
    Find,
    LabelSession,
    Question,
    rank_of,
    reach_of,
)
from evaluator.batch.labels import (
    CurrentLabels,
    Label,
    LabelVerdict,
    majority_of,
    put_label,
    read_labels,
)
from evaluator.batch.reading import Batch
from evaluator.batch.records import SampleResult
from evaluator.batch.statistics import Estimate, score_interval
from evaluator.batch.summary.tables import Table, percent, percent_interval
from evaluator.errors import UsageError
from evaluator.errors.messages import amount
from evaluator.fields import JsonForm
from evaluator.lazy_dataclass import frozen

Keys = tuple[str, str]
_VALUES = {LabelVerdict.BETTER: 0.0, LabelVerdict.TIE: 0.5, LabelVerdict.WORSE: 1.0}
_CHOICES = (("1", "the first is better"), ("2", "the second is better"), ("=", "equally good"))


@frozen
class Preferences(JsonForm):
    """People's choices between the answers of two templates × variants.

    `labels` of the `of` pairs with different answers have a label that decides; of these,
    `a_better`, `ties` and `b_better`, by the majority of their labellers. `preferred` is the share
    of pairs in which b is better, with ties as one half.
    """

    a: Cell
    b: Cell
    a_better: int
    ties: int
    b_better: int
    labels: int
    of: int
    preferred: Estimate

    @property
    def name(self) -> str:
        return " and ".join(" × ".join(filter(None, cell)) for cell in (self.a, self.b))


class PairSubject:
    """The pairs of answers of two templates × variants.

    Raises: UsageError, if they have no different answers to the same row.
    """

    scorer = ""
    answers = 2

    def __init__(
        self,
        batch: Batch,
        cells: tuple[Cell, Cell],
        labeller: str,
        labels: CurrentLabels,
        precision: float,
    ) -> None:
        self._cells = cells
        self._labeller = labeller
        self._precision = precision
        self._samples = {(one.key, other.key): one.sample_id for one, other in _pairs(batch, cells)}
        if not self._samples:
            raise UsageError(
                f"{batch.folder}: the two have no different answers to the same row to compare"
            )
        self._order = sorted(self._samples, key=lambda keys: rank_of("-".join(keys)))
        self._labels: dict[Keys, dict[str, Label]] = {}
        for keys, given in labels.pairs.items():
            if keys in self._samples:
                self._labels[keys] = dict(given)

    def next(self, skipped: Collection[str]) -> str | None:
        given = self._labels.values()
        sees_others = sum(self._labeller in each and len(each) > 1 for each in given) < OVERLAP
        has_others = sees_others and any(self._labeller not in each for each in given)
        if self.needed() == 0 and not has_others:
            return None
        for keys in self._order:
            labels = self._labels.get(keys, {})
            id = "-".join(keys)
            if self._labeller in labels or id in skipped:
                continue
            if not labels or sees_others:
                return id
        return None

    def question(self, keys: Sequence[str], results: Sequence[SampleResult]) -> Question:
        first, second = results
        sections = [(name, as_text(value)) for name, value in first.inputs.items()]
        if first.target is not None:
            sections.append(("target", as_text(first.target)))
        answers = [first.content, second.content]
        if self._is_swapped(keys):
            answers.reverse()
        sections += zip(("first answer", "second answer"), answers, strict=True)
        choices = (*_CHOICES, ("?", "cannot decide"))
        return Question(
            tuple(keys),
            first.identity,
            pair_digest(first, second),
            sections=tuple(sections),
            choices=choices,
        )

    def answer(self, question: Question, word: str) -> Answer:
        swapped = self._is_swapped(question.keys)
        match word:
            case "1" | "2":
                is_first = (word == "1") != swapped
                return Answer(LabelVerdict.BETTER if is_first else LabelVerdict.WORSE)
            case "=":
                return Answer(LabelVerdict.TIE)
            case "?":
                return Answer(LabelVerdict.UNDECIDED)
            case _:
                raise ValueError(f"{word!r:.40} is none of the keys")

    def add(self, label: Label) -> None:
        keys = (label.key, label.other)
        if keys in self._samples:
            put_label(self._labels, keys, label)

    def needed(self) -> int | None:
        found = self.preferences()
        reach = reach_of(found.preferred)
        if reach is None:
            return None
        total = max(LEAST_LABELS, round(found.labels * (reach / self._precision) ** 2))
        if reach <= self._precision:
            return max(0, min(found.of, LEAST_LABELS) - found.labels)
        return max(0, min(found.of, total) - found.labels)

    def lines(self) -> list[str]:
        found = self.preferences()
        reach = reach_of(found.preferred)
        known = ""
        if reach is not None:
            known = f"; the preference is known to ± {reach:.1f} points"
        return [f"{found.name}: {found.labels:,} of {amount(found.of, 'pair')} labelled{known}"]

    def preferences(self) -> Preferences:
        return _preferences(self._cells, self._samples, self._labels)

    def _is_swapped(self, keys: Sequence[str]) -> bool:
        text = "\0".join((self._labeller, *keys))
        return blake2b(text.encode(), digest_size=1, person=b"order").digest()[0] % 2 == 1


def label_pairs(
    batch: Batch,
    cells: tuple[Cell, ...],
    labeller: str,
    precision: float = DEFAULT_PRECISION,
    find: Find | None = None,
) -> LabelSession:
    """A session that asks which of two answers is better. Raises: as `PairSubject`; UsageError, for
    two equal `cells`; RecordError, for damaged results or labels.
    """
    first, second = cells
    if first == second:
        raise UsageError("both sides are the same template and variant; choose two")
    # One order, so that labels given from either side are the same.
    if batch.cells.index(first) > batch.cells.index(second):
        first, second = second, first
    labels = read_labels(batch.folder)
    subject = PairSubject(
        batch, (first, second), labeller, CurrentLabels(labels), precision=precision
    )
    return LabelSession(batch, labeller, labels=labels, subject=subject, find=find)


def preferences(batch: Batch) -> list[Preferences]:
    """The preferences of people, of each two templates × variants with labels. Labels of answers
    that have changed do not count. Raises: RecordError, for damaged results or labels.
    """
    labels = CurrentLabels(read_labels(batch.folder))
    if not labels.pairs:
        return []
    wanted = {key for keys in labels.pairs for key in keys}
    cells = {
        result.key: (result.template, result.variant)
        for result in batch.results()
        if result.key in wanted
    }
    sides = {
        (cells[one], cells[other]) for one, other in labels.pairs if one in cells and other in cells
    }
    found: list[Preferences] = []
    for both in sorted(sides):
        samples: dict[Keys, str] = {}
        current: dict[Keys, dict[str, Label]] = {}
        for one, other in _pairs(batch, both):
            keys = (one.key, other.key)
            samples[keys] = one.sample_id
            given = labels.pairs.get(keys, {})
            if given:
                shown = pair_digest(one, other)
                current[keys] = {
                    name: label for name, label in given.items() if label.shown == shown
                }
        found.append(_preferences(both, samples, current))
    return found


def preference_table(found: Iterable[Preferences]) -> Table:
    """What people prefer, a row for each two templates × variants."""
    rows = [
        [
            one.name,
            f"{one.a_better:,}",
            f"{one.ties:,}",
            f"{one.b_better:,}",
            percent(one.preferred.mean),
            percent_interval(one.preferred),
            f"{one.labels:,} of {one.of:,}",
        ]
        for one in found
    ]
    head = ["a and b", "a better", "tie", "b better", "b preferred", "interval", "labels"]
    lines = ["rows with equal answers were not asked about; a tie counts as one half"]
    return Table("Preferences of people", head, rows=rows, lines=lines)


def pair_digest(one: SampleResult, other: SampleResult) -> str:
    """The digest of the text that a labeller of a pair sees, whatever the order of the answers."""
    return digest([one.inputs, one.target, one.content, other.content])


def _pairs(batch: Batch, cells: tuple[Cell, Cell]) -> Iterator[tuple[SampleResult, SampleResult]]:
    """The results of the two cells with the same sample and epoch whose answers differ."""
    waiting: dict[tuple[str, int], SampleResult] = {}
    for result in batch.results():
        cell = (result.template, result.variant)
        if cell not in cells or result.failure is not None:
            continue
        place = (result.sample_id, result.epoch)
        partner = waiting.pop(place, None)
        if partner is None:
            waiting[place] = result
        elif partner.content != result.content:
            yield (partner, result) if cell == cells[1] else (result, partner)


def _preferences(
    cells: tuple[Cell, Cell],
    samples: Mapping[Keys, str],
    labels: Mapping[Keys, Mapping[str, Label]],
) -> Preferences:
    values: list[float] = []
    clusters: list[str] = []
    for keys, given in labels.items():
        votes = [_VALUES[label.verdict] for label in given.values() if label.verdict in _VALUES]
        preferred = majority_of(votes)
        if preferred is not None and keys in samples:
            values.append(preferred)
            clusters.append(samples[keys])
    counts = Counter(values)
    return Preferences(
        *cells,
        a_better=counts[0.0],
        ties=counts[0.5],
        b_better=counts[1.0],
        labels=len(values),
        of=len(samples),
        preferred=score_interval(values, clusters),
    )
