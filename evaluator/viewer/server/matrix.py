"""The matrix of a batch: its samples as rows, its templates × variants as columns, selected, sorted
and grouped by the server, so that a page shows some rows of very many.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl

from evaluator.lazy_dataclass import frozen
from evaluator.viewer.json_form import Query
from evaluator.viewer.server.batch_index import COLUMNS, UNKNOWN, VERDICTS, BatchIndex, Group

CHIPS = (
    "all",
    "failed",
    "error",
    "passed",
    "unscored",
    "mixed",
    "flipped",
    "warned",
    "labelled",
)
_PASSED, _FAILED = (1 << VERDICTS.index(each) for each in ("passed", "failed"))
_LABELLED = 1 << 5
_FLIPPED = 1 << 6
_WARNED = 1 << 7
_VERDICT_BITS = (1 << len(VERDICTS)) - 1
MAX_CHOICES = 60
MAX_POINTS = 1_500
BINS = 24
_KEPT = 8


@frozen
class MatrixQuery:
    """Conditions on the rows, and their order.

    `chip` is one of CHIPS. `cell` is the number of the only column; None: all. `base` is the number
    of the column that others are compared with. `where` are fields of samples with their values.
    `between` are columns of results with a least and a greatest value; one result of a row fulfils
    all of them. `sort` is a field, a column, `row` or `verdict`. `group` is a field.
    """

    chip: str = "all"
    cell: int | None = None
    base: int = 0
    text: str = ""
    where: tuple[tuple[str, str], ...] = ()
    between: tuple[tuple[str, float, float], ...] = ()
    sort: str = "row"
    is_descending: bool = False
    group: str = ""


def read_query(query: Query, cells: int) -> MatrixQuery:
    """The conditions in an address. Those that are not valid are no conditions."""

    def number(name: str) -> int | None:
        text = query.get(name, "")
        if text in map(str, range(cells)):
            return int(text)
        return None

    chip = query.get("chip", "")
    between: list[tuple[str, float, float]] = []
    for name, value in parse_qsl(query.get("between", "")):
        low, _, high = value.partition(":")
        try:
            between.append((name, float(low or "-inf"), float(high or "inf")))
        except ValueError:
            continue
    return MatrixQuery(
        chip=chip if chip in CHIPS else "all",
        cell=number("cell"),
        base=number("base") or 0,
        text=query.get("text", "").strip().casefold(),
        where=tuple(parse_qsl(query.get("where", ""), keep_blank_values=True)),
        between=tuple(between),
        sort=query.get("sort", "") or "row",
        is_descending=query.get("order", "") == "down",
        group=query.get("group", ""),
    )


@frozen
class Selection:
    """The numbers of the samples that fit, in order, and how many rows each chip has among those
    that fulfil the other conditions. `groups` has for the number of a group's value its rows, and
    how many of its judged results passed. `shares` has for each column how many of the judged
    results of these samples passed; empty where every sample fits.
    """

    samples: Sequence[int]
    chips: Mapping[str, int]
    groups: Mapping[int, tuple[int, int, int]] = field(
        default_factory=dict[int, tuple[int, int, int]]
    )
    shares: Sequence[tuple[int, int]] = ()


class Matrix:
    """The rows of one index. `select` keeps what it found as long as the index stays the same."""

    def __init__(self, index: BatchIndex) -> None:
        self.index = index
        self._version = -1
        self._kept: OrderedDict[object, Any] = OrderedDict()

    def select(self, wanted: MatrixQuery, cells: Sequence[Group]) -> Selection:
        with self.index.lock:
            return self._keep(wanted, lambda: self._select(wanted, cells))

    def _keep(self, key: object, compute: Callable[[], Any]) -> Any:
        if self._version != self.index.version:
            self._kept.clear()
            self._version = self.index.version
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = compute()
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return found

    def _results(self, wanted: MatrixQuery, cells: Sequence[Group]) -> Sequence[int]:
        rows = self.index.rows()
        if wanted.cell is None:
            return rows
        group = self.index.group_number(cells[wanted.cell])
        groups = self.index.groups
        return [row for row in rows if groups[row] == group]

    def count(self, cells: Sequence[Group]) -> int:
        """The number of samples that have a result."""
        with self.index.lock:
            masks = self._kept_masks(MatrixQuery(), cells)
            return len(masks) - masks.count(0)

    def _kept_masks(self, wanted: MatrixQuery, cells: Sequence[Group]) -> bytearray:
        """By sample, a bit for each verdict of its results, for a flip against the column `base`,
        for a result with warnings and for one with a label; 0 for a sample without results.
        """
        key = ("masks", wanted.cell, wanted.base)
        return self._keep(key, lambda: self._masks(wanted, cells))

    def _masks(self, wanted: MatrixQuery, cells: Sequence[Group]) -> bytearray:
        index = self.index
        samples = index.samples
        verdicts = index.verdicts
        masks = bytearray(len(index.places))
        rows = self._results(wanted, cells)
        warnings = index.column("warnings") or ()
        for row in rows:
            masks[samples[row]] |= 1 << verdicts[row]
        for row in rows:
            if warnings[row]:
                masks[samples[row]] |= _WARNED
        labelled = set(index.labelled())
        if labelled and wanted.cell is not None:
            labelled.intersection_update(rows)
        for row in labelled:
            if masks[samples[row]]:
                masks[samples[row]] |= _LABELLED
        if len(cells) > 1 and wanted.cell is None:
            self._mark_flips(masks, rows, base=index.group_number(cells[wanted.base]))
        return masks

    def _mark_flips(self, masks: bytearray, rows: Sequence[int], base: int | None) -> None:
        """A sample is flipped where some result of the base passed and one of another column
        failed, or the reverse.
        """
        index = self.index
        samples = index.samples
        verdicts = index.verdicts
        groups = index.groups
        of_base = bytearray(len(masks))
        of_others = bytearray(len(masks))
        for row in rows:
            if groups[row] == base:
                side = of_base
            else:
                side = of_others
            side[samples[row]] |= 1 << verdicts[row]
        for sample, (one, other) in enumerate(zip(of_base, of_others, strict=True)):
            if (one & _PASSED and other & _FAILED) or (one & _FAILED and other & _PASSED):
                masks[sample] |= _FLIPPED

    def _select(self, wanted: MatrixQuery, cells: Sequence[Group]) -> Selection:
        masks = self._kept_masks(wanted, cells)
        samples = self._fitting(wanted, cells, masks=masks)
        counted = Counter(map(masks.__getitem__, samples))
        chips = {
            chip: sum(count for mask, count in counted.items() if mask and _has(mask, chip))
            for chip in CHIPS
        }
        if wanted.chip != "all" or chips["all"] < len(samples):
            fits = bytes(bool(mask) and _has(mask, wanted.chip) for mask in range(256))
            samples = [sample for sample in samples if fits[masks[sample]]]
        samples = self._sorted(samples, wanted, cells, masks)
        groups: dict[int, tuple[int, int, int]] = {}
        values = self.index.fields.get(wanted.group)
        if values is not None:
            samples = sorted(samples, key=values.code)
            groups = self._group_counts(samples, values.code, wanted, cells)
        shares: Sequence[tuple[int, int]] = ()
        if len(samples) < len(masks):
            shares = self._shares(samples, cells)
        return Selection(samples, chips, groups=groups, shares=shares)

    def _shares(self, samples: Sequence[int], cells: Sequence[Group]) -> list[tuple[int, int]]:
        index = self.index
        of = index.samples
        chosen = bytearray(len(index.places))
        for sample in samples:
            chosen[sample] = 1
        counted: Counter[tuple[int | None, int]] = Counter(
            (index.groups[row], index.verdicts[row]) for row in index.rows() if chosen[of[row]]
        )
        found: list[tuple[int, int]] = []
        for group in map(index.group_number, cells):
            passed, failed = (counted[group, VERDICTS.index(each)] for each in ("passed", "failed"))
            found.append((passed, passed + failed))
        return found

    def _fitting(
        self, wanted: MatrixQuery, cells: Sequence[Group], masks: bytearray
    ) -> Sequence[int]:
        """The samples that fulfil every condition but the chip, in the order of their numbers."""
        index = self.index
        samples: Sequence[int] = range(len(masks))
        for name, value in wanted.where:
            known = index.fields.get(name)
            if known is not None:
                code = known.numbers.get(value, -1 if value == "" else -2)
                samples = [sample for sample in samples if known.code(sample) == code]
        if wanted.text or wanted.between:
            rows = self._results(wanted, cells)
            if wanted.text:
                hits = index.with_text(wanted.text)
                rows = [row for row in rows if row < len(hits) and hits[row]]
            for name, low, high in wanted.between:
                column = index.column(name)
                if column is not None:
                    rows = [row for row in rows if row < len(column) and low <= column[row] <= high]
            of = index.samples
            chosen = {of[row] for row in rows}
            samples = [sample for sample in samples if sample in chosen]
        return samples

    def _sorted(
        self, samples: Sequence[int], wanted: MatrixQuery, cells: Sequence[Group], masks: bytearray
    ) -> Sequence[int]:
        """Unknown values are last in both directions."""
        index = self.index
        if wanted.sort == "row":
            places = index.places
            if wanted.is_descending or any(one > other for one, other in pairwise(places)):
                return sorted(samples, key=places.__getitem__, reverse=wanted.is_descending)
            return samples
        if wanted.sort == "written":
            return samples[::-1] if wanted.is_descending else samples
        known = index.fields.get(wanted.sort)
        if wanted.sort == "verdict":
            # The worst first: error, failed, unscored, passed.
            rank = [_rank(mask) for mask in range(256)]
            keys: Any = bytes(rank[mask] for mask in masks)
            missing: list[int] = []
        elif known is not None:
            ranks = {code: rank for rank, (_, code) in enumerate(sorted(known.numbers.items()))}
            keys = array("d", (ranks.get(known.code(each), UNKNOWN) for each in range(len(masks))))
            missing = [sample for sample in samples if math.isnan(keys[sample])]
        else:
            column = index.column(wanted.sort)
            if column is None:
                return samples
            keys = self._means(column, self._results(wanted, cells), len(masks))
            missing = [sample for sample in samples if math.isnan(keys[sample])]
        if missing:
            left_out = set(missing)
            samples = [sample for sample in samples if sample not in left_out]
        ordered = sorted(samples, key=keys.__getitem__, reverse=wanted.is_descending)
        return ordered + missing

    def _means(self, column: Sequence[float], rows: Sequence[int], count: int) -> Sequence[float]:
        """By sample, the mean of its known values."""
        of = self.index.samples
        sums = array("d", bytes(8 * count))
        counts = array("l", bytes(array("l").itemsize * count))
        length = len(column)
        for row in rows:
            if row < length and not math.isnan(column[row]):
                sums[of[row]] += column[row]
                counts[of[row]] += 1
        return array(
            "d",
            (
                total / known if known else UNKNOWN
                for total, known in zip(sums, counts, strict=True)
            ),
        )

    def _group_counts(
        self,
        samples: Sequence[int],
        code: Callable[[int], int],
        wanted: MatrixQuery,
        cells: Sequence[Group],
    ) -> dict[int, tuple[int, int, int]]:
        index = self.index
        rows = Counter(code(sample) for sample in samples)
        passed: Counter[int] = Counter()
        judged: Counter[int] = Counter()
        chosen = set(samples)
        for row in self._results(wanted, cells):
            sample = index.samples[row]
            verdict = VERDICTS[index.verdicts[row]]
            if sample in chosen and verdict in ("passed", "failed"):
                judged[code(sample)] += 1
                passed[code(sample)] += verdict == "passed"
        return {value: (count, passed[value], judged[value]) for value, count in rows.items()}

    # -- what a page shows -------------------------------------------------------------------------

    def choices(self) -> list[dict[str, Any]]:
        """The fields that have few values, with the number of samples of each value."""
        with self.index.lock:
            return self._keep("choices", self._choices)

    def _choices(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name, known in self.index.fields.items():
            if len(known.numbers) > MAX_CHOICES:
                continue
            counts = Counter(known.codes)
            values = sorted(known.numbers.items())
            found.append({"key": name, "values": [[text, counts[code]] for text, code in values]})
        return found

    def plot(
        self, x: str, y: str, wanted: MatrixQuery, cells: Sequence[Group]
    ) -> dict[str, Any] | None:
        """The results of the selected rows as points of two columns, at most MAX_POINTS of them,
        or with an empty `y` as a histogram of one; None for an unknown column.
        """
        with self.index.lock:
            index = self.index
            across = index.column(x)
            up = index.column(y) if y else across
            if across is None or up is None:
                return None
            chosen = set(self.select(wanted, cells).samples)
            samples = index.samples
            least = min(len(across), len(up))
            rows = [
                row
                for row in self._results(wanted, cells)
                if row < least
                and samples[row] in chosen
                and not math.isnan(across[row])
                and not math.isnan(up[row])
            ]
            plot: dict[str, Any] = {"x": x, "y": y, "n": len(rows)}
            if not y:
                return plot | _histogram([across[row] for row in rows])
            step = max(1, -(-len(rows) // MAX_POINTS))
            points = [
                [across[row], up[row], VERDICTS[index.verdicts[row]].value] for row in rows[::step]
            ]
            return plot | {"points": points}

    @property
    def columns(self) -> list[str]:
        """Columns of results, by which rows are sorted and plotted."""
        shown = [name for name in COLUMNS if not name.endswith("put_tokens")]
        return [*(f"score.{name}" for name in self.index.scorers), *shown]


def _histogram(values: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {"edges": [], "counts": []}
    low = min(values)
    high = max(values)
    width = (high - low) / BINS or 1.0
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, int((value - low) / width))] += 1
    return {"edges": [low + width * number for number in range(BINS + 1)], "counts": counts}


def _has(mask: int, chip: str) -> bool:
    match chip:
        case "all":
            return True
        case "mixed":
            verdicts = mask & _VERDICT_BITS
            return bool(verdicts & (verdicts - 1))
        case "flipped":
            return bool(mask & _FLIPPED)
        case "warned":
            return bool(mask & _WARNED)
        case "labelled":
            return bool(mask & _LABELLED)
        case _:
            return bool(mask & 1 << [each.value for each in VERDICTS].index(chip))


def _rank(mask: int) -> int:
    for rank, verdict in enumerate(("error", "failed", "unscored", "passed")):
        if _has(mask, verdict):
            return rank
    return len(VERDICTS)
