"""Keys keep their numbers, however many there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evaluator.batch.identity import Interner


@given(st.lists(st.text(max_size=3)))
def test_numbers_are_those_of_a_dict(keys) -> None:
    numbering, known = Interner(), {}
    for key in keys:
        assert numbering.find(key) == known.get(key)
        assert numbering.number(key) == known.setdefault(key, len(known))
    assert len(numbering) == len(known)


def test_it_grows_and_forgets_nothing() -> None:
    numbering = Interner()
    keys = [f"row-{number}" for number in range(20_000)]
    assert [numbering.number(key) for key in keys] == list(range(20_000))
    assert [numbering.find(key) for key in keys] == list(range(20_000))
    assert numbering.find("another") is None


def test_a_key_whose_hash_is_zero_is_a_key_like_others() -> None:
    numbering = Interner()
    assert hash("") == 0
    assert [numbering.number(key) for key in ("", "a", "")] == [0, 1, 0] and len(numbering) == 2
