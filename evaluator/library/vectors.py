"""Matching by meaning: word vectors of `evaluator[vectors]`, used where it is installed.

The vectors are static: the vector of a text is the mean of its tokens'. They are in the wheel of
`wordllama`, whose two files are read here. The package itself is never imported, because it
configures logging and may reach the network.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, cast

from evaluator.files.project_code import import_library
from evaluator.library.matching import LexicalRanker, Ranker, TemplateLike
from evaluator.library.request_terms import Reading
from evaluator.library.search import NODE_VECTORS, TEXT_VECTORS, Meaning
from evaluator.library.template_terms import texts
from evaluator.library.words import words
from evaluator.nodes import Task

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]

_WEIGHTS = "weights/l2_supercat_256.safetensors"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_FIELDS = ("name", "description", "criteria")
# The shares of these fields together, of the name and of the inputs in the vector of a template;
# and how many examples have a share of one half.
_SHARES = (0.6, 0.2, 0.2)
_FEW_EXAMPLES = 4
# A piece of a request with fewer words is not compared on its own.
_MIN_WORDS = 3
_MAX_CHARS = 2000
_MAX_FIELD_CHARS = 400
# Templates that the words of a request need not have found.
_NEAREST = 20
# Among more templates, so many are chosen by the first dimensions, which hold most of the meaning
# in these vectors.
_MANY = 3000
_CHOSEN = 200
_FIRST_DIMENSIONS = 64
# The last digits of a cosine depend on the machine.
_DIGITS = 4


def make_ranker(templates: Iterable[TemplateLike]) -> Ranker:
    """The default ranker: with vectors where `evaluator[vectors]` is installed, else lexical."""
    folder = find_vectors()
    if folder is None:
        return LexicalRanker(templates)
    return VectorRanker(templates, load_vectors(folder))


def find_vectors() -> Path | None:
    """The folder of the installed `wordllama`, which is not imported; None without it or what it
    needs.
    """
    if find_spec("numpy") is None or find_spec("tokenizers") is None:
        return None
    spec = find_spec("wordllama")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if all((Path(place) / name).is_file() for name in (_WEIGHTS, _TOKENIZER)):
            return Path(place)
    return None


@lru_cache(maxsize=1)
def load_vectors(folder: Path) -> StaticVectors:
    """The vectors in a folder, read once."""
    return StaticVectors(folder)


class StaticVectors:
    """Vectors of texts. Reading them takes about 0.2 s and 45 MB."""

    def __init__(self, folder: Path) -> None:
        import numpy as np

        self._tokenizer = import_library("tokenizers").Tokenizer.from_file(str(folder / _TOKENIZER))
        data = (folder / _WEIGHTS).read_bytes()
        # The safetensors format: the length of a JSON header, the header, the tensors.
        start = 8 + int.from_bytes(data[:8], "little")
        entry = json.loads(data[8:start])["embedding.weight"]
        begin, end = entry["data_offsets"]
        self._rows = np.frombuffer(data[start + begin : start + end], dtype=np.float16).reshape(
            entry["shape"]
        )

    def embed(self, some: Sequence[str]) -> Matrix:
        """One row of length 1 for each text; zeros for a text without tokens."""
        import numpy as np

        found = np.zeros((len(some), self._rows.shape[1]), dtype=np.float32)
        for row, text in zip(found, some, strict=True):
            if ids := self._tokenizer.encode(text[:_MAX_CHARS]).ids:
                row[:] = self._rows[ids].astype(np.float32).mean(axis=0)
        return _unit(found)


class VectorRanker(LexicalRanker):
    """A `Ranker` that adds the cosine between the vectors of request and template to the lexical
    score.
    """

    _text = TEXT_VECTORS
    _node = NODE_VECTORS

    def __init__(self, templates: Iterable[TemplateLike], vectors: StaticVectors) -> None:
        super().__init__(templates)
        self._vectors = vectors
        self._rows: Matrix | None = None
        self._short: Matrix | None = None

    def _meanings(self, readings: list[Reading]) -> Sequence[Meaning | None]:
        import numpy as np

        if self._rows is None:
            rows = self._embed_templates()
            if len(rows) > _MANY:
                self._short = np.ascontiguousarray(rows[:, :_FIRST_DIMENSIONS])
            self._rows = rows
        return [self._meaning(self._rows, reading) for reading in readings]

    def _meaning(self, rows: Matrix, reading: Reading) -> Meaning:
        pieces = [piece for piece in reading.pieces if len(piece.split()) >= _MIN_WORDS]
        vectors = self._vectors.embed([reading.text, *(pieces if len(pieces) > 1 else ())])
        if self._short is None:
            every = _cosines(rows, vectors)
            nearest = _largest(every, _NEAREST)
        else:
            every = None
            chosen = _largest(_cosines(self._short, vectors[:, :_FIRST_DIMENSIONS]), _CHOSEN)
            nearest = chosen[_largest(_cosines(rows[chosen], vectors), _NEAREST)]

        def cosines(documents: Sequence[int]) -> list[float]:
            some = list(documents)
            return (_cosines(rows[some], vectors) if every is None else every[some]).tolist()

        return Meaning(cosines, nearest.tolist())

    def _embed_templates(self) -> Matrix:
        nodes = [cast(Task, template.node) for template in self._templates]
        by_field = [
            _by_field(node, template.name)
            for node, template in zip(nodes, self._templates, strict=True)
        ]
        together = [" ".join(fields[field] for field in _FIELDS) for fields in by_field]
        rows = _SHARES[0] * self._vectors.embed(together)
        for share, field in zip(_SHARES[1:], ("name", "inputs"), strict=True):
            rows += share * self._vectors.embed([fields[field] for fields in by_field])
        rows = _unit(rows)
        for row, node in zip(rows, nodes, strict=True):
            if shown := [" ".join(example.inputs.values()) for example in node.examples]:
                # The centroid of the examples says more than the best of them.
                share = len(shown) / (len(shown) + _FEW_EXAMPLES)
                row[:] = (1 - share) * row + share * self._vectors.embed(shown).mean(axis=0)
        return _unit(rows)


def _by_field(node: Task, name: str) -> dict[str, str]:
    found: dict[str, str] = dict.fromkeys((*_FIELDS, "inputs"), "")
    for field, text in texts(node, name):
        if field in found:
            found[field] = f"{found[field]} {text}"[:_MAX_FIELD_CHARS]
    return found | {"name": f"{' '.join(words(name))}."}


def _cosines(rows: Matrix, vectors: Matrix) -> Matrix:
    """The cosines of a request; if it has several pieces, the mean of those of the whole and of the
    best piece.
    """
    import numpy as np

    # Not `@`: its threads take more time than they save, and its last digits depend on their
    # number.
    found = np.einsum("ij,kj->ki", rows, vectors)
    return (found[0] if len(found) == 1 else (found[0] + found[1:].max(axis=0)) / 2).round(_DIGITS)


def _largest(row: Matrix, count: int) -> npt.NDArray[np.intp]:
    """The numbers of the largest values."""
    import numpy as np

    count = min(count, len(row))
    return np.argpartition(-row, count - 1)[:count]


def _unit(rows: Matrix) -> Matrix:
    import numpy as np

    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths, 1e-9)
