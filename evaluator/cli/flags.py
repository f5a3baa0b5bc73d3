"""Options of commands, made from declared fields (`evaluator.fields`), and help in sections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from evaluator.errors import UsageError
from evaluator.fields import Before, FieldError, Flag, Place
from evaluator.fields.listing import Entry, entries_of, put

OTHER = "Other options"
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class SectionOption(click.Option):
    """An option below the heading `section` of its command's help."""

    def __init__(self, *declarations: Any, section: str = OTHER, **settings: Any) -> None:
        super().__init__(*declarations, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help has its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                section = getattr(parameter, "section", OTHER)
                sections.setdefault(section, []).append(record)
        others = sections.pop(OTHER, [])
        for title, records in [*sections.items(), (OTHER, others)]:
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def flag_options(
    cls: type, flags: Iterable[str] | None = None, *, with_defaults: bool = False
) -> Decorator:
    """Gives a command the flags of a class of declared fields, or those of them in `flags`. A flag
    that is not given is None, or with `with_defaults` its default.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        entries = {entry.flag.name: entry for entry in entries_of(cls) if entry.flag is not None}
        names = list(entries)
        if flags is not None:
            names = list(flags)
        for name in reversed(names):
            command = _option(entries[name], with_default=with_defaults)(command)
        return command

    return decorate


def _option(entry: Entry, *, with_default: bool) -> Decorator:
    flag = entry.flag
    assert flag is not None
    place = entry.field.mark(Place)
    settings: dict[str, Any] = {}
    if with_default:
        settings["default"] = entry.field.default
    words = entry.field.kind.words
    if words.of is bool:
        settings["is_flag"] = True
    elif words.choices:
        settings["type"] = click.Choice(words.choices)
    elif place is not None:
        settings["type"] = click.Path(
            exists=place.must_exist,
            file_okay=place.file,
            dir_okay=place.folder,
            path_type=Path if words.of is Path else None,
        )
    elif words.of in (int, float) and entry.field.mark(Before) is None:
        settings["type"] = words.of
    return click.option(
        *flag.name.split("/"),
        entry.parameter,
        cls=SectionOption,
        section=entry.section or OTHER,
        multiple=words.several,
        metavar=flag.metavar,
        help=entry.help + " May be repeated." * words.several,
        **settings,
    )


def read_flags(cls: type, given: Mapping[str, Any], *, is_stored: bool = True) -> dict[str, Any]:
    """The flags that were given, as a table of those fields of `cls` that are stored, or not.

    Raises: UsageError, for an invalid value.
    """
    table: dict[str, Any] = {}
    for entry in entries_of(cls):
        value = given.get(entry.parameter)
        if value is None or value is False or value == ():
            continue
        if entry.flag is None or entry.field.is_stored != is_stored:
            continue
        kind = entry.field.kind
        if kind.words.is_table:
            value = _read_pairs(entry.flag, value)
        try:
            put(table, entry.path, kind.accept(value))
        except FieldError as error:
            raise UsageError(str(error.inside(entry.flag.name))) from None
    return table


def refuse_flags(given: Mapping[str, Any], why: str) -> None:
    """Raises: UsageError, if an option of the current command among `given` was given."""
    for option in click.get_current_context().command.params:
        if given.get(option.name or "") not in (None, False, ()):
            raise UsageError(f"{option.opts[0]} {why}")


def _read_pairs(flag: Flag, texts: Iterable[str]) -> dict[str, str]:
    """The values of `NAME=VALUE` texts. Raises: UsageError."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            if flag.example:
                example = f", as in {flag.example}"
            else:
                example = ""
            raise UsageError(f"{flag.name} {text!r}: expected {flag.metavar}{example}")
        if name in values:
            raise UsageError(f"{flag.name} {name} is given twice")
        values[name] = value
    return values
