"""The page about conformance: each requirement names tests that exist, each deviation has a reason."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "explanation" / "conformance.md"
_NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")


def rows(columns: int) -> list[list[str]]:
    """The rows of the page's tables of so many columns, without their heads."""
    found: list[list[str]] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        # `\|` is a character of a cell.
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == columns and cells[0] != "requirement" and not set(cells[0]) <= {"-"}:
            found.append(cells)
    return found


REQUIREMENTS = rows(2)


@cache
def functions_of(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@pytest.mark.parametrize(("requirement", "tests"), REQUIREMENTS, ids=[row[0][:80] for row in REQUIREMENTS])
def test_each_requirement_names_tests_that_exist(requirement: str, tests: str) -> None:
    named = _NAMED.findall(tests)
    assert named, f"{requirement} has no test"
    # Nothing else is in the cell: a name that is spelled in another way would not be checked.
    assert _NAMED.sub("", tests).strip(" ,") == ""
    for file, name in named:
        assert (TESTS / file).is_file(), f"there is no file tests/{file}"
        assert name in functions_of(TESTS / file), f"tests/{file} has no {name}"


def test_each_deviation_has_a_reason() -> None:
    deviations = rows(3)
    assert deviations
    assert [row for row in deviations if not all(row)] == []


def test_no_requirement_is_there_twice_and_every_table_is_read() -> None:
    requirements = [row[0] for row in REQUIREMENTS] + [row[0] for row in rows(3)]
    assert len(set(requirements)) == len(requirements)
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    heads = [line for line in lines if line.startswith(("| requirement |", "|---"))]
    assert len(lines) - len(heads) == len(requirements)
