"""Pairs of a broken text and its expected value, extracted from the tests of other parsers by rule.

Python tests (`parse_sets_python.py`) are interpreted as far as their values are literals:
assignments, loops over literal lists, `parametrize`, helper functions, and asserts that compare a
call of the parser, or an item of its value, with a literal. TypeScript tests are calls
`expect(jsonrepair(TEXT)).toBe(TEXT)`. Rust tests are calls of `test_deserializer!`, whose types and
BAML classes become a JSON Schema.

Left out and counted, by call: calls that expect an error; calls with an option that changes what is
read; BAML types with `@alias`, `@check`, `@assert`, `@@dynamic` or a described enum value, because
a JSON Schema cannot say them; calls whose text or expected value is not a literal, or is not JSON.
Tests of a parser's internal functions are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from parse_pairs import Extract
from parse_sets_baml import baml, constants
from parse_sets_python import PythonTests
from parse_tokens import arguments, concatenated, tokens_of

SUITES = {
    "json_repair": "tests/test_*.py",
    "jsonrepair": "src/index.test.ts",
    "partial-json-parser": "tests/test_examples.py",
    "instructor": "tests/test_[ju]*.py",
    "pydantic-ai": "tests/test_utils.py",
    "baml": "engine/baml-lib/jsonish/src/tests/*.rs",
}
"""Of each repository, the files with tests of its parser."""


def extracts(data: Path) -> Iterator[tuple[str, Extract]]:
    """The pairs of each suite whose repository is in the folder."""
    for name, pattern in SUITES.items():
        files = {path: path.read_text("utf-8") for path in sorted((data / name).glob(pattern))}
        if files:
            yield name, extract_of(files)


def extract_of(files: dict[Path, str]) -> Extract:
    extract = Extract()
    shared = {
        key: value
        for path, source in files.items()
        if path.suffix == ".rs"
        for key, value in constants(source).items()
    }
    for path, source in files.items():
        if path.suffix == ".py":
            PythonTests(source, extract)
        elif path.suffix == ".ts":
            typescript(source, extract)
        else:
            baml(source, extract, shared)
    return extract


def typescript(source: str, extract: Extract) -> None:
    """Calls `expect(jsonrepair(TEXT)).toBe(TEXT)`, and `assertRepair(TEXT)`, which expects the text
    unchanged.
    """
    tokens, known = list(tokens_of(source, "\"'`")), dict[str, str]()
    for index, token in enumerate(tokens):
        if token in ("function", "test"):
            known = {}
        elif token == "const" and tokens[index + 2] == "=":
            size = next(
                n for n, after in enumerate(tokens[index + 3 :]) if after[0] != '"' and after != "+"
            )
            value = concatenated(tokens[index + 3 : index + 3 + size], known)
            known.pop(tokens[index + 1], None)
            known |= {} if value is None else {tokens[index + 1]: value}
        elif (
            token in ("jsonrepair", "assertRepair")
            and tokens[index + 1] == "("
            and tokens[index - 1] != "function"
        ):
            inner, end = arguments(tokens, index + 1)
            text = concatenated(inner[0], known) if len(inner) == 1 else None
            expected = text
            if token == "jsonrepair":
                expected = _expected(tokens, index, end, known)
            if tokens[index - 1] == ":":
                extract.calls["expects an error"] += 1
            elif inner != [["text"]] or "text" in known:
                extract.add_text(text, expected)


def _expected(tokens: list[str], index: int, end: int, known: dict[str, str]) -> str | None:
    if tokens[index - 2 : index] != ["expect", "("]:
        return None
    end += tokens[end:].index(")")
    outer, _ = arguments(tokens, end + 3)
    return (
        concatenated(outer[0], known) if outer and tokens[end + 2] in ("toBe", "toEqual") else None
    )
