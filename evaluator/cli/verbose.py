"""The option -v: what the loggers of evaluator say, on standard error. It stands before or after a
command.
"""

from __future__ import annotations

import logging
from typing import Any

import click

from evaluator.cli.echo import echo
from evaluator.errors.logs import LOGGER

_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class _StderrHandler(logging.Handler):
    """Prints on standard error as it is at that time: a live display or `--progress json` may have
    replaced it.
    """

    verbosity = 0

    def emit(self, record: logging.LogRecord) -> None:
        # Commands print the warnings of single tasks themselves.
        if self.verbosity or record.name == LOGGER.name:
            echo(f"{record.levelname.lower()}: {record.getMessage()}", err=True)


def verbose_option(*, hidden: bool = False) -> click.Option:
    """`-v` for a command; `hidden` for those below the group, whose help shows it."""
    return click.Option(
        ["-v", "--verbose"],
        count=True,
        expose_value=False,
        hidden=hidden,
        callback=_configure,
        is_eager=True,
        help="Log retries and repairs on standard error; -vv also logs each call. May follow the "
        "command.",
    )


def add_verbose_option(command: click.Command) -> None:
    """Adds the option to a command and those below it."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            add_verbose_option(below)
    elif not any("-v" in parameter.opts for parameter in command.params):
        command.params.append(verbose_option(hidden=True))


def _configure(context: click.Context, parameter: click.Parameter, count: int) -> Any:
    """Logs from now until the command ends. The higher count of the group and the command
    applies.
    """
    root = context.find_root()
    handler = root.meta.get(__name__)
    if handler is None:
        before = LOGGER.level
        handler = root.meta[__name__] = _StderrHandler()
        LOGGER.addHandler(handler)
        root.call_on_close(lambda: (LOGGER.removeHandler(handler), LOGGER.setLevel(before)))
    handler.verbosity = max(handler.verbosity, min(count, len(_LEVELS) - 1))
    LOGGER.setLevel(_LEVELS[handler.verbosity])
