"""The declared fields of a dataclass and of the records in it as one list, for the command line and
the docs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any

from evaluator.fields.records import Doc, Field, Flag, Section, fields_of
from evaluator.lazy_dataclass import frozen


@frozen
class Entry:
    """A field with a `Flag` or a `Doc`. `path` has the keys that lead to it in a table."""

    path: tuple[str, ...]
    field: Field
    section: str

    @property
    def flag(self) -> Flag | None:
        return self.field.mark(Flag)

    @property
    def parameter(self) -> str:
        """The name of the command's parameter."""
        return "_".join(self.path)

    @property
    def help(self) -> str:
        """What it means, with its default."""
        doc = self.flag or self.field.mark(Doc)
        assert doc is not None
        default = getattr(doc, "default", None)
        if default is None:
            default = self.field.default
        if isinstance(default, tuple):
            default = ", ".join(default)
        if default in (None, "", MISSING) or default is False or "Default: " in doc.help:
            return doc.help
        return f"{doc.help} Default: {default}."


def entries_of(cls: type) -> list[Entry]:
    """The fields with a flag or a doc, in order."""
    entries: list[Entry] = []
    _add(entries, cls, path=(), section="")
    return entries


def _add(entries: list[Entry], cls: type, path: tuple[str, ...], section: str) -> str:
    """Adds the entries of a class. Returns: the section of the last one."""
    for field in fields_of(cls).values():
        heading = field.mark(Section)
        if heading is not None:
            section = heading.title
        inner = path
        if not field.is_merged:
            inner = (*path, field.name)
        if field.record is not None:
            section = _add(entries, field.record, path=inner, section=section)
        elif field.mark(Flag) is not None or field.mark(Doc) is not None:
            entries.append(Entry(inner, field, section=section))
    return section


def put(table: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Puts a value into nested tables."""
    *outer, last = path
    for name in outer:
        table = table.setdefault(name, {})
    table[last] = value


def merge(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`table` with `changes`; tables in both are merged."""
    merged = dict(table)
    for name, value in changes.items():
        before = merged.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            merged[name] = merge(before, value)  # pyright: ignore[reportUnknownArgumentType]
        else:
            merged[name] = value
    return merged
