"""Optional embeddings: vectors of descriptions beside the lexical index, and how both scores become
one.

No embedder is shipped: the caller passes one. It receives the path and description of a file and
the words of a request, never the content of a file.

Fusion. A cosine says little by itself (with some embedders unrelated texts have 0.1, with others
0.7), so it is taken relative to the mean over all files for this request: `meaning = (cosine -
mean) / (1 - mean)`, at least 0. The score is `1 - (1 - lexical) * (1 - 0.5 * meaning)`: either can
make a path relevant, both together more so, and a path that neither finds stays at 0.
"""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections.abc import Sequence
from heapq import nlargest
from operator import mul
from typing import Protocol

from evaluator.errors import ContextError
from evaluator.store.database import transaction

_BATCH = 64
_SHARE = 0.5
# A meaning below this is noise around the mean.
_NOISE = 0.05


class Embedder(Protocol):
    """Turns texts into vectors, one per text, in order, all of one length, of finite numbers.

    `name` identifies the model: vectors of another name are computed again, never compared.
    """

    @property
    def name(self) -> str: ...

    async def embed(self, texts: list[str]) -> Sequence[Sequence[float]]: ...


async def embed(embedder: Embedder, texts: list[str]) -> list[array[float]]:
    """Returns the embedder's vectors, each scaled to length 1.

    Raises: ContextError, if the embedder raises or violates its protocol.
    """
    try:
        vectors = [array("f", vector) for vector in await embedder.embed(texts)]
    except Exception as error:
        raise ContextError(
            f"embedder {embedder.name} failed: {type(error).__name__}: {error}"
        ) from error
    if len(vectors) != len(texts):
        raise ContextError(
            f"embedder {embedder.name} gave {len(vectors)} vectors for {len(texts)} texts"
        )
    return [_normal(embedder.name, vector) for vector in vectors]


def _normal(name: str, vector: array[float]) -> array[float]:
    length = math.sqrt(sum(map(mul, vector, vector)))
    if not vector or not math.isfinite(length):
        raise ContextError(f"embedder {name} gave a vector that is empty or not finite")
    if length:
        return array("f", (number / length for number in vector))
    return vector


def without_vector(connection: sqlite3.Connection, name: str) -> list[tuple[int, str]]:
    """Returns a batch of files that have no vector of this embedder, with the text to embed."""
    rows = connection.execute(
        "SELECT file.id, path, summary, headings, names FROM file"
        " LEFT JOIN vector ON vector.file = file.id AND vector.embedder = ?"
        " WHERE vector.file IS NULL AND file.skipped IS NULL ORDER BY file.id LIMIT ?",
        (name, _BATCH),
    )
    return [
        (file, "\n".join(part for part in (path, *parts) if part)) for file, path, *parts in rows
    ]


def write_vectors(
    connection: sqlite3.Connection, name: str, rows: Sequence[tuple[int, array[float]]]
) -> None:
    """Writes the vectors of those files that still exist."""
    with transaction(connection):
        connection.executemany(
            "INSERT OR REPLACE INTO vector SELECT id, ?, ? FROM file WHERE id = ?",
            [(name, vector.tobytes(), file) for file, vector in rows],
        )


def meanings(
    connection: sqlite3.Connection, name: str, query: array[float], limit: int
) -> dict[int, float]:
    """Returns the files whose vectors are nearest to `query`, with their distance above the mean of
    all, in (0, 1].

    Reads every vector. Raises: ContextError, if they have another length.
    """
    cosines: dict[int, float] = {}
    for file, numbers in connection.execute(
        "SELECT file, numbers FROM vector WHERE embedder = ?", (name,)
    ):
        vector = array("f", numbers)
        if len(vector) != len(query):
            raise ContextError(
                f"embedder {name} gives vectors of length {len(query)}, the index holds "
                f"{len(vector)}; give another model another name"
            )
        cosines[file] = sum(map(mul, vector, query))
    mean = sum(cosines.values()) / max(1, len(cosines))
    if mean >= 1:
        return {}
    nearest = nlargest(limit, cosines.items(), key=lambda item: (item[1], -item[0]))
    found = {file: min(1.0, (cosine - mean) / (1 - mean)) for file, cosine in nearest}
    return {file: meaning for file, meaning in found.items() if meaning > _NOISE}


def fuse(lexical: float, meaning: float) -> float:
    """Returns both scores as one, in [0, 1], at least as high as `lexical`."""
    return 1 - (1 - lexical) * (1 - _SHARE * meaning)
