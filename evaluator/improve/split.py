"""Divides rows into three parts: train rows are shown to the proposer, selection rows choose among
candidates, and sealed rows decide, once.

The part of a row depends on its cluster alone, not on a seed, on its place or on the other rows. So
a row that was sealed in one search is sealed in the next, also after rows were added, and rows of
one cluster never stand on two sides.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Literal

from evaluator.batch.fields import reader_of
from evaluator.batch.identity import digest
from evaluator.batch.records import Sample
from evaluator.batch.statistics import pairs_needed, smallest_difference
from evaluator.errors import UsageError
from evaluator.fields import JsonForm
from evaluator.lazy_dataclass import dataclass

Part = Literal["train", "selection", "sealed"]
SEALED_SHARE = 0.5
SELECTION_SHARE = 0.3
MAX_SELECTION = 300
"""More rows do not choose better, and each candidate pays for them."""
MAX_TRAIN = 100
LEAST = 10
"""Rows that the sealed part and the selection part need, in different clusters."""
CHANGED_SHARE = 0.2
"""The share of answers that an edit changes, before anything is measured."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the search. `digest` is the hash of its inputs and target."""

    sample: Sample
    cluster: Hashable
    digest: str

    @property
    def id(self) -> str:
        return self.sample.id


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of each part, in an order that depends on their content only. `unused` is the number
    of sealed rows that the search does not need.
    """

    train: tuple[Row, ...]
    selection: tuple[Row, ...]
    sealed: tuple[Row, ...]
    unused: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The sizes and digests of the parts."""
        return {
            part: {"rows": len(rows), "clusters": len(clusters_of(rows)), "sha": digest_of(rows)}
            for part, rows in self.parts().items()
        } | {"unused": self.unused}

    def parts(self) -> Mapping[str, Sequence[Row]]:
        return {"train": self.train, "selection": self.selection, "sealed": self.sealed}


@dataclass(frozen=True, slots=True)
class Reach(JsonForm):
    """What the sealed rows can show. `smallest` is the gain that is found with 80 % power, `needed`
    the sealed rows that the gain `wanted` takes. `changed` is the share of answers that differ
    between the two templates, assumed or measured.
    """

    rows: int
    smallest: float
    wanted: float
    needed: int
    changed: float

    def __str__(self) -> str:
        return (
            f"with {self.rows:,} sealed rows, 80 % power begins at a gain of "
            f"{100 * self.smallest:.1f} points; for {100 * self.wanted:g} points it takes "
            f"{self.needed:,} sealed rows (if {100 * self.changed:.0f} % of the answers change)"
        )


def reach_of(rows: int, wanted: float, changed: float = CHANGED_SHARE) -> Reach:
    """What `rows` independent sealed rows can show."""
    spread = changed**0.5
    return Reach(
        rows,
        smallest=smallest_difference(spread, rows),
        wanted=wanted,
        needed=pairs_needed(spread, wanted),
        changed=changed,
    )


def rows_of(samples: Iterable[Sample], cluster: str | None) -> list[Row]:
    """The rows of samples, clustered by a metadata field or an expression. Without one, rows with
    equal inputs are a cluster.
    """
    if cluster is None:
        read = None
    else:
        read = reader_of(cluster, "cluster")
    rows: list[Row] = []
    for sample in samples:
        inputs = digest(dict(sample.inputs))
        group = inputs if read is None else read(sample)
        rows.append(
            Row(
                sample,
                inputs if group is None else str(group),
                digest=digest([dict(sample.inputs), sample.target]),
            )
        )
    return rows


def split_rows(rows: Sequence[Row], gain: float) -> Split:
    """The parts of `rows`; as many sealed rows as a gain of that size takes.

    Raises: UsageError, if there are too few rows or clusters.
    """
    ordered = sorted(rows, key=lambda row: (_place(row.cluster), row.digest, row.id))
    parts: dict[Part, list[Row]] = {"train": [], "selection": [], "sealed": []}
    for row in ordered:
        parts[part_of(row.cluster)].append(row)
    for part in ("sealed", "selection"):
        clusters = len(clusters_of(parts[part]))
        if clusters < LEAST:
            raise UsageError(
                f"{len(rows):,} rows give {clusters} {part} rows in different clusters, and "
                f"{LEAST} are needed; give more rows"
            )
    if not parts["train"]:
        raise UsageError("no row is a train row, which the proposer sees; give more rows")
    wanted = pairs_needed(CHANGED_SHARE**0.5, gain)
    sealed = parts["sealed"]
    return Split(
        tuple(parts["train"][:MAX_TRAIN]),
        tuple(parts["selection"][:MAX_SELECTION]),
        tuple(sealed[:wanted]),
        unused=max(0, len(sealed) - wanted),
    )


def part_of(cluster: Hashable) -> Part:
    """The part of all rows of a cluster."""
    place = _place(cluster)
    if place < SEALED_SHARE:
        return "sealed"
    if place < SEALED_SHARE + SELECTION_SHARE:
        return "selection"
    return "train"


def clusters_of(rows: Iterable[Row]) -> set[Hashable]:
    return {row.cluster for row in rows}


def digest_of(rows: Iterable[Row]) -> str:
    """The hash of the content of rows, whatever their order."""
    return digest(sorted(row.digest for row in rows))


def _place(cluster: Hashable) -> float:
    """A number from 0 to 1 that belongs to a cluster."""
    text = f"evaluator improve\0{cluster}"
    value = blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(value) / 2**64
