"""What the output gate gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

ErrorKind = Literal["no_json", "type_mismatch", "schema_violation", "bad_schema", "xml"]


@dataclass(frozen=True, slots=True)
class OutputError:
    """Why a text has no value. `path` is a JSON path such as `$.items[2].price`; None where no place is
    meant.

    `expected` and `actual` are types in a template author's words, or the rule that was broken and the value.
    """

    kind: ErrorKind
    message: str
    path: str | None = None
    expected: str | None = None
    actual: str | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A value read out of a text; `text` is the original, whatever happened.

    `value` is None where there is an error, so a value that does not match is never used by accident. A JSON
    `null` is None too: `error` and `warnings` tell them apart. `warnings` has one entry for each kind of
    change.
    """

    value: Any
    warnings: tuple[str, ...] = ()
    error: OutputError | None = None
    text: str = ""


def json_path(parts: tuple[str | int, ...] | list[str | int]) -> str:
    """`$.items[2].price` for `("items", 2, "price")`; keys that are no identifiers in brackets and quotes."""
    path = "$"
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}"
        else:
            path += f"[{part!r}]"
    return path
