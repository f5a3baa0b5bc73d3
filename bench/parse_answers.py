"""Measures how many answers of models `parse_output` reads as a person does, and how many it reads
wrongly.

Usage: python bench/parse_answers.py TABLE.py… [--list]. The tables are `tests/output/answers_*.py`.
A wrong value is counted apart from a text in which no value was found, which a caller notices.
"""

from __future__ import annotations

import argparse
import runpy
from collections import Counter
from typing import Any

from evaluator.output import parse_output

_REFUSED = object()


def main() -> None:
    """Prints one line for each table, and each case that is not right with `--list`."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("tables", nargs="+")
    arguments.add_argument("--list", action="store_true", help="show each case that is not right")
    options = arguments.parse_args()
    for path in options.tables:
        counts: Counter[str] = Counter()
        for text, kind, schema, expected in _cases(runpy.run_path(path)):
            parsed = parse_output(text, kind, schema=schema)
            refused = parsed.error is not None or any(
                "no JSON was found" in warning for warning in parsed.warnings
            )
            verdict = _verdict(parsed.value, refused, expected)
            counts[verdict] += 1
            if options.list and verdict != "right":
                print(
                    f"{verdict}: {text!r}\n    read {parsed.value!r}, expected "
                    f"{_shown(expected)}\n    {parsed.error}"
                )
        print(
            f"{path}: {counts['right']} of {counts.total()} right, {counts['wrong']} wrong, "
            f"{counts['refused']} refused"
        )


def _cases(table: dict[str, Any]) -> list[tuple[str, Any, Any, Any]]:
    plain = [(text, "json", None, value) for text, value in table["PLAIN"]]
    typed = [(text, "json", schema, value) for text, schema, value in table["TYPED"]]
    xml = [(text, "xml", None, value) for text, value in table["XML"]]
    return [
        *plain,
        *typed,
        *xml,
        *((text, "json", schema, _REFUSED) for text, schema in table["REFUSED"]),
    ]


def _verdict(value: Any, refused: bool, expected: Any) -> str:
    if refused:
        return "right" if expected is _REFUSED else "refused"
    return "right" if expected is not _REFUSED and repr_of(value) == repr_of(expected) else "wrong"


def repr_of(value: Any) -> str:
    """A text that is equal for equal values only: 1 is not True, 1 equals 1.0, the order of keys
    does not count.
    """
    if isinstance(value, dict):
        return (
            "{" + ",".join(sorted(f"{key!r}:{repr_of(item)}" for key, item in value.items())) + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(repr_of, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        return repr(int(value))
    return repr(value)


def _shown(expected: Any) -> str:
    return "a refusal" if expected is _REFUSED else repr(expected)


if __name__ == "__main__":
    main()
