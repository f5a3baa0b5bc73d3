"""Tables of cases that are one test: a test for each of a thousand short cases takes longer than what it tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def each_case(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[..., Any]:
    """As `pytest.mark.parametrize`, in one test and without fixtures. An exception names its case."""
    table = list(cases)
    assert table, "a table without cases tests nothing"

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            for case in table:
                arguments = (
                    {names: case} if isinstance(names, str) else dict(zip(names, case, strict=True))
                )
                try:
                    check(**arguments)
                except BaseException as problem:
                    problem.add_note(f"in the case {arguments!r}")
                    raise

        test.__name__ = check.__name__
        test.__doc__ = check.__doc__
        test.__module__ = check.__module__
        return test

    return decorate
