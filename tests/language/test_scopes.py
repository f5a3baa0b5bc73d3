"""Scopes find the innermost name, and only plain data is accepted."""

from __future__ import annotations

import enum
import math
from collections import namedtuple
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator import Span, UsageError
from evaluator.errors import ExpressionError
from evaluator.language.scopes import Scope, plain


class Colour(enum.StrEnum):
    RED = "red"


Point = namedtuple("Point", "x y")


def test_the_innermost_binding_is_found_and_the_outer_ones_stay() -> None:
    outer = Scope({"a": 1, "b": 2})
    inner = outer.child({"a": None})
    assert (inner.lookup("a"), inner.lookup("b"), outer.lookup("a")) == (None, 2, 1)
    assert inner.names() == ["a", "b"]
    assert (inner.names(), [inner.get(name) for name in inner.names()]) == (["a", "b"], [None, 2])
    assert "a" in inner
    assert "c" not in inner


def test_an_unknown_name_is_an_error_with_the_nearest_spelling_and_the_place() -> None:
    with pytest.raises(ExpressionError, match="did you mean `document`") as caught:
        Scope({"document": 1}).lookup("documnt", Span("f.xml", 3, 4))
    assert (caught.value.code, caught.value.span) == ("undefined-variable", Span("f.xml", 3, 4))


def test_subclasses_become_the_plain_type() -> None:
    value = plain({"c": Colour.RED, "p": Point(1, 2), "m": MappingProxyType({"k": True})})
    assert value == {"c": "red", "p": [1, 2], "m": {"k": True}}
    assert [type(item) for item in value.values()] == [str, list, dict]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": object()}]}, r"^value\.a\[1\]\.b: object"),
        ({1: 2}, "the key 1 is integer"),
        ([b"x"], r"value\[0\]: bytes"),
        ({1, 2}, "value: set"),
        (len, "builtin"),
    ],
)
def test_anything_else_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(UsageError, match=path):
        plain(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UsageError, match="contains itself"):
        plain(value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_json_is_refused_with_its_path(number: float) -> None:
    with pytest.raises(UsageError, match=r"doc\.pages\[1\] is -?(nan|inf), which is not a JSON"):
        plain({"pages": [1.5, number]}, "doc")


@given(JSON)
def test_plain_data_is_copied_and_equal(value: Any) -> None:
    copy = plain(value)
    assert copy == value
    assert not isinstance(value, list | dict) or copy is not value
