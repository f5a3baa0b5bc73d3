"""Where vectors are installed, a template that shares no word with a request is found by its meaning."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest

from evaluator import Span
from evaluator.library import vectors
from evaluator.library.matching import LexicalRanker
from evaluator.library.vectors import VectorRanker, find_vectors, load_vectors, make_ranker
from evaluator.nodes import Atomic, Example, Task, Text

np = pytest.importorskip("numpy")
tokenizers = pytest.importorskip("tokenizers")

# Words of one row mean the same. They are no words of English: no group of `library.alike` holds them.
MEANINGS = (
    ("wug", "blicket", "dax"),
    ("toma", "fep"),
    ("zorp", "mip"),
    ("tulver", "gazzer"),
)


class Template:
    def __init__(self, name: str, description: str, *examples: str) -> None:
        shown = tuple(Example({"x": example}, "", Span()) for example in examples)
        self.name = name
        self.node: Task = Atomic(name=name, description=Text(description, Span()), examples=shown)


LIBRARY = (
    Template("first", "Zorp a wug"),
    Template("second", "Toma tulver"),
    Template("other", "Bake bread"),
)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small `wordllama` on the path, with files of the same formats, that must not be imported."""
    folder = tmp_path / "wordllama"
    for name in ("weights", "tokenizers"):
        (folder / name).mkdir(parents=True)
    (folder / "__init__.py").write_text("raise AssertionError('imported')")
    vocabulary = {"[UNK]": 0}
    rows = [[0.0] * len(MEANINGS)]
    for place, same in enumerate(MEANINGS):
        for word in same:
            vocabulary[word] = len(rows)
            rows.append([float(place == column) for column in range(len(MEANINGS))])
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizers/l2_supercat_tokenizer_config.json"))
    data = np.array(rows, dtype=np.float16)
    header = {
        "embedding.weight": {"dtype": "F16", "shape": data.shape, "data_offsets": [0, data.nbytes]}
    }
    encoded = json.dumps(header).encode()
    (folder / "weights/l2_supercat_256.safetensors").write_bytes(
        struct.pack("<Q", len(encoded)) + encoded + data.tobytes()
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wordllama", raising=False)
    load_vectors.cache_clear()
    return folder


def best(request: str | Task, library: tuple[Template, ...] = LIBRARY) -> str | None:
    found = make_ranker(library).rank(request)
    return found[0].template.name if found else None


@pytest.mark.parametrize(
    ("request_", "expected"), [("mip my blicket", "first"), ("gazzer a fep", "second")]
)
def test_a_template_is_found_without_a_shared_word(
    installed: Path, request_: str, expected: str
) -> None:
    assert find_vectors() == installed
    assert LexicalRanker(LIBRARY).rank(request_) == []
    assert best(request_) == expected
    assert best(Atomic(description=Text(request_, Span()))) == expected
    assert "wordllama" not in sys.modules


def test_the_reasons_name_the_meaning_and_add_up_to_the_score(installed: Path) -> None:
    match = make_ranker(LIBRARY).rank("zorp a blicket")[0]
    assert {reason.field for reason in match.why} == {"description", "vectors"}
    assert sum(reason.weight for reason in match.why) == pytest.approx(match.score, abs=0.01)


def test_examples_count_by_their_centroid(installed: Path) -> None:
    shown = Template("shown", "x", "a fep", "a gazzer")
    assert best("toma tulver please", (shown, Template("other", "Bake bread"))) == "shown"


@pytest.mark.parametrize(
    "request_", ["mip my blicket", "gazzer a fep", "dax, then toma", "zorp", "no word known"]
)
def test_many_templates_are_found_in_two_stages_as_in_one(
    installed: Path, monkeypatch: pytest.MonkeyPatch, request_: str
) -> None:
    words = [word for same in MEANINGS for word in same]
    library = [
        Template(f"t{i}{j}", f"{a} {b}")
        for i, a in enumerate(words)
        for j, b in enumerate(words)
        if a is not b
    ]
    expected = make_ranker(library).rank(request_)
    monkeypatch.setattr(vectors, "_MANY", 10)
    monkeypatch.setattr(vectors, "_CHOSEN", 50)
    monkeypatch.setattr(vectors, "_FIRST_DIMENSIONS", len(MEANINGS) - 1)
    assert make_ranker(library).rank(request_) == expected


@pytest.mark.parametrize(
    "request_", ["", "the", "zorp", "mip the dax, then gazzer a toma", "zzz " * 3000, "é 東京"]
)
def test_it_keeps_the_contract_of_a_ranker(installed: Path, request_: str) -> None:
    ranker = make_ranker(LIBRARY)
    assert isinstance(ranker, VectorRanker)
    found = ranker.rank(request_, 2)
    scores = [match.score for match in found]
    assert len(found) <= 2
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)
    assert found == make_ranker(LIBRARY[::-1]).rank(request_, 2)
    assert ranker.rank(request_, 0) == make_ranker(()).rank(request_) == []


@pytest.mark.parametrize(
    "missing",
    ["weights/l2_supercat_256.safetensors", "tokenizers/l2_supercat_tokenizer_config.json"],
)
def test_without_the_files_matching_is_lexical(installed: Path, missing: str) -> None:
    (installed / missing).unlink()
    assert type(make_ranker(LIBRARY)) is LexicalRanker
    assert best("zorp a wug") == "first"
