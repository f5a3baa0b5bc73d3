"""A broken text with its expected value, and the pairs of one suite; see `parse_sets.py`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

NO_VALUE = "<no value>"


@dataclass
class Pair:
    """`checks`: the expected value of each path, `()` for the whole. `partial`: ignore null and
    further members.
    """

    text: str
    schema: Any
    checks: dict[tuple[Any, ...], Any]
    partial: bool = False


@dataclass
class Extract:
    """The pairs of one suite, one for each text and schema, and the number of calls by what became
    of them.
    """

    pairs: dict[str, Pair] = field(default_factory=dict[str, Pair])
    calls: Counter[str] = field(default_factory=Counter[str])

    def add(
        self, text: str, schema: Any, path: tuple[Any, ...], expected: Any, partial: bool = False
    ) -> None:
        pair = self.pairs.setdefault(json.dumps([text, schema]), Pair(text, schema, {}, partial))
        pair.checks.setdefault(path, expected)

    def add_text(self, text: str | None, expected: str | None) -> None:
        """Adds a pair whose expected value is a JSON text, or counts why there is none."""
        if text is None or expected is None:
            self.calls["not extracted"] += 1
            return
        try:
            self.add(text, None, (), expected_of(expected))
            self.calls["extracted"] += 1
        except ValueError:
            self.calls["expected value is not JSON"] += 1


def expected_of(text: str) -> Any:
    """The value of an expected JSON text; an empty one says that there is no value. Raises
    ValueError.
    """
    return json.loads(text) if text.strip() else NO_VALUE
