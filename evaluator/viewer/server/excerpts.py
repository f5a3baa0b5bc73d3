"""The lines of a template around the place of an error.

The place comes from a task file, which may be somebody else's: only XML files of the project and
shipped ones are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluator.errors import ConfigurationError
from evaluator.files.shipped import shipped
from evaluator.viewer.server.rendering import items, mapping

MAX_BYTES = 5_000_000
MAX_FINDINGS = 50
_AROUND = 2


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    text: str
    is_place: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """A message about a place. `lines` are empty where the file is not shown."""

    message: str
    hint: str
    place: str
    lines: tuple[Line, ...]


def findings(result: Mapping[str, Any], root: Path) -> list[Finding]:
    """The place of an error and its violations, as `TaskError.to_dict` writes them."""
    found = [
        _finding(mapping(each), root) for each in items(result.get("violations"))[:MAX_FINDINGS]
    ]
    location = mapping(result.get("location"))
    if location and all(each.place != _place(location) for each in found):
        found.insert(0, _finding(location, root))
    return found


def excerpt(path: Path, line: int) -> tuple[Line, ...]:
    """The line and those around it; none if the file cannot be read or has no such line."""
    texts = read_lines(path)
    if not 1 <= line <= len(texts):
        return ()
    first = max(1, line - _AROUND)
    shown = enumerate(texts[first - 1 : line + _AROUND], first)
    return tuple(Line(number, text, is_place=number == line) for number, text in shown)


def read_lines(path: Path) -> list[str]:
    """The lines of a file; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(MAX_BYTES).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return []


def _finding(data: Mapping[str, Any], root: Path) -> Finding:
    message, hint, file, line = (data.get(name) for name in ("message", "hint", "file", "line"))
    lines: tuple[Line, ...] = ()
    if isinstance(file, str) and type(line) is int and _is_readable(file, root):
        lines = excerpt(Path(file), line)
    return Finding(str(message or ""), str(hint or ""), place=_place(data), lines=lines)


def _place(data: Mapping[str, Any]) -> str:
    return ":".join(
        str(data[name]) for name in ("file", "line", "column") if data.get(name) is not None
    )


def _is_readable(file: str, root: Path) -> bool:
    try:
        path = (root / file).resolve()
        folders = [root, shipped("templates")]
        return (
            path.suffix == ".xml"
            and path.is_file()
            and any(path.is_relative_to(folder) for folder in folders)
        )
    except (OSError, ValueError, ConfigurationError):
        return False
