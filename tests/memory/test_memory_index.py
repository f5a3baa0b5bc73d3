"""Memory finds paths by name and description, and never reads them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import InMemoryIndex, Memory, UsageError
from evaluator.memory import ContextRequest, RelevantPath
from evaluator.memory.index import describe_path

ENTRIES = {
    "docs/rivers/danube.md": "The Danube: length, countries, capitals",
    "docs/lakes/baikal.md": "Lake Baikal: depth and seals",
    "src/parseHeaders.py": "Reads mail headers",
    "notes/2024.txt": "Meeting notes about budgets",
}


def ask(index: InMemoryIndex, request: ContextRequest | str, limit: int = 10) -> list[RelevantPath]:
    return asyncio.run(index.get_relevant_context_for(request, limit))


def paths(found: list[RelevantPath]) -> list[str]:
    return [relevant.path for relevant in found]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ("how deep is lake Baikal", "docs/lakes/baikal.md"),
        ("which capitals lie on the danube?", "docs/rivers/danube.md"),
        ("a parser of a header", "src/parseHeaders.py"),
        ("what did we say about the budget in the meeting", "notes/2024.txt"),
    ],
)
def test_a_request_finds_the_path_whose_words_it_shares(request_: str, expected: str) -> None:
    found = ask(InMemoryIndex(ENTRIES), request_)
    assert found[0].path == expected
    assert found[0].reason.startswith("shares ")


def test_a_score_is_the_sum_of_its_reasons_each_with_its_field() -> None:
    found = ask(InMemoryIndex(ENTRIES), "the depth of lake baikal")[0]
    assert found.reason.startswith(f"shares {found.why[0].term} ({found.why[0].field}), ")
    assert {(why.term, why.field) for why in found.why} == {
        ("depth", "description"),
        ("lake", "path"),
        ("baikal", "path"),
    }
    assert found.score == pytest.approx(sum(why.weight for why in found.why), abs=0.001)


def test_inputs_count_besides_the_description() -> None:
    index = InMemoryIndex(ENTRIES)
    assert ask(index, ContextRequest("Answer a question")) == []
    found = ask(index, ContextRequest("Answer a question", {"question": "where do seals live?"}))
    assert paths(found) == ["docs/lakes/baikal.md"]


def test_a_path_that_shares_no_word_is_not_returned() -> None:
    assert ask(InMemoryIndex(ENTRIES), "zebra crossing") == []
    assert ask(InMemoryIndex(), "anything") == []
    assert ask(InMemoryIndex(ENTRIES), "") == []


def test_a_closer_request_scores_higher() -> None:
    index = InMemoryIndex(ENTRIES)
    close = ask(index, "lake baikal depth")[0].score
    far = ask(index, "the opera singer who once swam in a lake")[0].score
    assert 0 < far < close <= 1


def test_limit_and_ties_by_path() -> None:
    index = InMemoryIndex({"b/x.md": "plum", "a/x.md": "plum", "c/x.md": "plum"})
    assert paths(ask(index, "plum")) == ["a/x.md", "b/x.md", "c/x.md"]
    assert paths(ask(index, "plum", 2)) == ["a/x.md", "b/x.md"]
    assert ask(index, "plum", 0) == []


def test_entries_can_be_added_changed_and_removed() -> None:
    index = InMemoryIndex()
    index.add("x.md", "apples")
    index.add("x.md", "pears")
    assert ask(index, "apples") == []
    assert paths(ask(index, "pears")) == ["x.md"]
    index.remove("x.md")
    index.remove("x.md")
    assert ask(index, "pears") == []
    assert len(index) == 0


def test_an_empty_path_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        InMemoryIndex({"": "nothing"})


def test_a_folder_is_indexed_by_names_without_opening_a_file(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "lake_baikal.md").write_text("a heading about volcanoes")
    (tmp_path / "notes" / "lake_baikal.md").chmod(0)
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "link.md").symlink_to("/etc/hostname")
    (tmp_path / "loop").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "lake.md").write_text("x")
    index = InMemoryIndex.from_folder(tmp_path)
    assert index.entries() == {"notes/lake_baikal.md": "notes lake baikal (md)"}
    assert ask(index, "volcanoes") == []
    assert paths(ask(index, "Baikal")) == ["notes/lake_baikal.md"]


def test_a_folder_is_indexed_up_to_a_number_of_files(tmp_path: Path) -> None:
    for name in ("c.md", "a.md", "b.md"):
        (tmp_path / name).write_text("")
    assert list(InMemoryIndex.from_folder(tmp_path, max_entries=2).entries()) == ["a.md", "b.md"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        InMemoryIndex.from_folder(tmp_path / "missing")


def test_a_path_is_described_by_its_words() -> None:
    assert describe_path("src/parseHTTPHeaders.py") == "src parse http headers (py)"
    assert describe_path("Makefile") == "makefile"


def test_the_index_is_a_memory() -> None:
    assert isinstance(InMemoryIndex(), Memory)


@given(
    st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=40), max_size=8),
    st.text(max_size=60),
)
def test_any_index_and_request_give_ordered_scores_between_0_and_1(
    entries: dict[str, str], request_: str
) -> None:
    found = ask(InMemoryIndex(entries), request_)
    scores = [relevant.score for relevant in found]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)
    assert set(paths(found)) <= set(entries)
