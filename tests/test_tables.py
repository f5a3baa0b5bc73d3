"""A table of cases that is one test fails with the case, and a table without cases is an error."""

from __future__ import annotations

import pytest

from tests.tables import each_case


def test_a_case_that_fails_is_named() -> None:
    @each_case(("number", "double"), [(1, 2), (2, 5)])
    def check(number: int, double: int) -> None:
        assert 2 * number == double

    with pytest.raises(AssertionError) as failure:
        check()
    assert failure.value.__notes__ == ["in the case {'number': 2, 'double': 5}"]


def test_every_case_is_checked_and_there_is_one() -> None:
    seen: list[int] = []
    each_case("number", range(3))(lambda number: seen.append(number))()
    assert seen == [0, 1, 2]
    with pytest.raises(AssertionError, match="without cases"):
        each_case("number", [])
