"""The page about conformance: each requirement names tests that exist, each deviation has a reason."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.tables import each_case

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
    functions = (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@each_case(("requirement", "tests"), REQUIREMENTS)
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


SECURITY = PAGE.with_name("security.md")
_TEST_FILE = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")
_TEST_NAME = re.compile(r"(?<![\w/])(test_\w+)(?!\w|\.py)")


def test_the_tests_that_the_page_about_security_names_exist() -> None:
    text = SECURITY.read_text(encoding="utf-8")
    named = _TEST_FILE.findall(text)
    assert len(named) > 30
    for file, name in named:
        assert (TESTS.parent / file).is_file(), f"there is no file {file}"
        assert not name or name in functions_of(TESTS.parent / file), f"{file} has no {name}"
    missing = set(_TEST_NAME.findall(text))
    for file in TESTS.rglob("test_*.py"):
        # To parse every file takes seconds.
        content = file.read_text(encoding="utf-8")
        if any(f"def {name}(" in content for name in missing):
            missing -= functions_of(file)
    assert sorted(missing) == []


def test_each_rule_of_the_page_about_security_has_a_test() -> None:
    lines = SECURITY.read_text(encoding="utf-8").splitlines()
    in_table, rules = False, 0
    for line in lines:
        if line.startswith("|") and "tests |" in line:
            in_table = True
        elif in_table and line.startswith("|") and not line.startswith("|---"):
            rules += 1
            cell = re.split(r"(?<!\\)\|", line)[-2]
            assert "test_" in cell or "tests/" in cell or cell.strip() == "the same", line
        elif not line.startswith("|"):
            in_table = False
    assert rules > 40
