"""JSON of results and hashes has the bytes of the standard library's encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evaluator.batch.identity import digest
from evaluator.batch.json_text import canonical_json, compact_json
from evaluator.record.redact import find_texts


class Word(StrEnum):
    ONE = "one"


class Text(str):
    __slots__ = ()


def values() -> st.SearchStrategy[Any]:
    leaves = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text()
        | st.text(st.characters(codec="utf-8"))
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner)
            | st.lists(inner).map(tuple)
            | st.dictionaries(st.text(), inner)
            | st.dictionaries(st.integers(), inner)
        ),
    )


def standard(value: Any, **options: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, **options).encode()


@given(values())
@example({"a": 1e-05, "b": [1e16, 1e-4, 9.9e-05, 1e15, -1e-7, -0.0, 5e-324]})
@example({"é\x7f": "\U0001f600中\x7f\u2028\x00", "é": 1, "z": 2})
@example("\ud800")
@example([2**64, -(2**63) - 1])
@example({"a": Word.ONE, "b": Text("b")})
def test_the_bytes_are_those_of_the_standard_encoder(value: Any) -> None:
    assert compact_json(value) == standard(value)
    assert canonical_json(value) == standard(value, sort_keys=True)


@given(values())
@example({"a": [{}, {"b": 0.5, "c": "d"}], "e": 1e-5})
@example({"a": "b", "c": [2**64, {"d": "e"}]})
def test_all_texts_and_keys_are_found_while_a_value_is_encoded(value: Any) -> None:
    texts: list[Any] = []
    expected: list[str] = []
    find_texts((value,), frozenset(), expected)
    assert compact_json(value, None, texts) == standard(value)
    assert {text for text in texts if isinstance(text, str)} == set(expected)


@pytest.mark.parametrize("encode", [compact_json, canonical_json])
def test_what_is_not_json_is_refused(encode: Callable[[Any], bytes]) -> None:
    for value in (float("nan"), [1, {"a": float("inf")}], {"a": (-float("inf"),)}):
        with pytest.raises(ValueError, match="not JSON compliant"):
            encode(value)
    around: list[Any] = []
    around.append(around)
    for value in (around, {1, 2}, object(), UUID(int=1), b"a"):
        with pytest.raises((TypeError, ValueError, RecursionError)):
            encode(value)


def test_a_hash_is_the_same_in_every_version() -> None:
    value = {"b": ["é", 1e-05, None, True], "a": {"z": 2**70, "y": "\x7f"}}
    assert digest(value) == "0d764418b30412d0e043f21d455d9f01"
