"""The result of reading an output: the value, warnings and an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ErrorKind = Literal["no_json", "type_mismatch", "schema_violation", "bad_schema", "xml", "repaired"]


@dataclass(frozen=True, slots=True)
class OutputError:
    """The reason why a text has no value.

    `path` is a JSON path such as `$.items[2].price`; None if the error has no place. `expected` and
    `actual` are type names, or the rule that was broken and the value.
    """

    kind: ErrorKind
    message: str
    path: str | None = None
    expected: str | None = None
    actual: str | None = None

    def __str__(self) -> str:
        if self.path:
            return f"{self.path}: {self.message}"
        return self.message


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A value that was read from a text; `text` is the original text, also with an error.

    With an error `value` is None, so that a value that does not match is never used by accident. A
    JSON `null` is None too, without an error. `warnings` has one entry for each kind of change.
    """

    value: Any
    warnings: tuple[str, ...] = ()
    error: OutputError | None = None
    text: str = ""


def json_path(parts: tuple[str | int, ...] | list[str | int]) -> str:
    """`$.items[2].price` for `("items", 2, "price")`; keys that are not identifiers are quoted in
    brackets.
    """
    path = "$"
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}"
        else:
            path += f"[{part!r}]"
    return path
