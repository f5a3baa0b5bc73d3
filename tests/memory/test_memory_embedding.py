"""An embedder adds meaning to words; without one nothing changes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import GlobalIndex
from evaluator.errors import ContextError
from evaluator.memory.embedding import fuse

Tree = Callable[..., Path]
# What a thing is about: a word's place decides the direction of its vector.
TOPICS = ("ship ferry boat vessel", "money bank coin invoice", "rain storm wind weather")


class Topics:
    """A tiny embedder: how many words of each topic a text has, and one component that all texts share."""

    def __init__(self, name: str = "topics") -> None:
        self.name = name
        self.texts: list[str] = []

    async def embed(self, texts: list[str]) -> list[list[float]]:
        self.texts += texts
        return [
            [1.0, *(3.0 * sum(word in text.lower() for word in topic.split()) for topic in TOPICS)]
            for text in texts
        ]


FILES = {
    "a.md": "# Ferry timetable",
    "b.md": "# Bank holidays",
    "c.md": "# Storm warnings",
    "d.md": "# Vessel registry",
    "e.md": "# Colours",
    "f.md": "# Sounds",
    "g.md": "# Numbers",
}


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


def paths(index: GlobalIndex, request: str) -> list[str]:
    return [found.path for found in run(index.get_relevant_context_for(request))]


def test_a_file_that_shares_no_word_is_found_by_meaning(database: Path, tree: Tree) -> None:
    root = tree(FILES)
    with GlobalIndex(database, embedder=Topics(), relative_to=root) as index:
        run(index.add_folder(root))
        assert run(index.stats()).vectors == 7
        assert set(paths(index, "boats")) == {"a.md", "d.md"}
        best = run(index.get_relevant_context_for("ferry boat"))
        assert [found.path for found in best] == ["a.md", "d.md"]
        assert [reason.field for reason in best[0].why if reason.term == "meaning"] == ["embedding"]
        assert best[1].reason == "shares meaning (embedding)"
        assert 0 < best[1].score < best[0].score <= 1
        assert paths(index, "") == []
    with GlobalIndex(database, relative_to=root) as index:
        assert paths(index, "boats") == []


def test_only_files_without_a_vector_are_embedded_and_no_content_is_sent(
    database: Path, tree: Tree
) -> None:
    root = tree(FILES | {"a.md": "# Ferry timetable\n\na secret body\n"})
    embedder = Topics()
    with GlobalIndex(database, embedder=embedder) as index:
        run(index.add_folder(root))
        assert sorted(embedder.texts)[0] == "a.md\nFerry timetable"
        assert not any("secret" in text for text in embedder.texts)
        embedder.texts.clear()
        (root / "b.md").write_text("# Coins")
        run(index.add_folder(root))
        assert embedder.texts == ["b.md\nCoins"]
        (root / "c.md").unlink()
        run(index.add_folder(root))
        assert run(index.stats()).vectors == 6


def test_vectors_of_another_embedder_are_computed_again(database: Path, tree: Tree) -> None:
    root = tree(FILES)
    with GlobalIndex(database, embedder=Topics("one")) as index:
        run(index.add_folder(root))
    other = Topics("two")
    with GlobalIndex(database, embedder=other) as index:
        assert paths(index, "boats") == []
        other.texts.clear()
        run(index.add_folder(root))
        assert len(other.texts) == 7 == run(index.stats()).vectors
        assert len(paths(index, "boats")) == 2


class Broken:
    name = "broken"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def embed(self, texts: list[str]) -> Any:
        return self.answer(texts)


def refuse(texts: list[str]) -> Any:
    raise OSError("no network")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (refuse, "embedder broken failed: OSError: no network"),
        (lambda texts: [[1.0]] * (len(texts) + 1), "vectors for"),
        (lambda texts: [[]] * len(texts), "empty or not finite"),
        (lambda texts: [[math.nan]] * len(texts), "empty or not finite"),
        (lambda texts: [["x"]] * len(texts), "TypeError"),
        (lambda texts: None, "TypeError"),
    ],
)
def test_an_embedder_that_fails_is_an_error_and_the_words_are_indexed(
    answer: Any, says: str, database: Path, tree: Tree
) -> None:
    root = tree(FILES)
    with GlobalIndex(database, embedder=Broken(answer)) as index:
        with pytest.raises(ContextError, match=says):
            run(index.add_folder(root))
        with pytest.raises(ContextError, match=says):
            run(index.get_relevant_context_for("ferry"))
    with GlobalIndex(database, relative_to=root) as index:
        assert paths(index, "ferry") == ["a.md"]


def test_vectors_of_another_length_are_an_error(database: Path, tree: Tree) -> None:
    root = tree(FILES)
    with GlobalIndex(database, embedder=Topics("broken")) as index:
        run(index.add_folder(root))
    other = Broken(lambda texts: [[1.0]] * len(texts))
    says = "length 1, the index holds 4; give another model another name"
    with GlobalIndex(database, embedder=other) as index, pytest.raises(ContextError, match=says):
        run(index.get_relevant_context_for("ferry"))


UNIT = st.floats(0, 1)


@given(UNIT, UNIT, UNIT)
def test_fused_scores_lie_in_0_to_1_and_rise_with_either(
    lexical: float, meaning: float, more: float
) -> None:
    score = fuse(lexical, meaning)
    assert lexical - 1e-9 <= score <= 1
    assert fuse(max(lexical, more), meaning) >= score - 1e-9
    assert fuse(lexical, max(meaning, more)) >= score - 1e-9
    assert fuse(0, 0) == 0
