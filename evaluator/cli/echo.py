"""The one place where commands print. Text from outside cannot control the terminal."""

from __future__ import annotations

import click

from evaluator.errors.messages import visible


def echo(
    text: str = "",
    *,
    err: bool = False,
    nl: bool = True,
    colour: str | None = None,
    dim: bool = False,
) -> None:
    """Prints a message on standard output, or with `err` on standard error, its control characters
    made visible.

    `colour` and `dim` apply to the whole message.
    """
    shown = visible(text)
    click.echo(
        click.style(shown, fg=colour, dim=True if dim else None) if colour or dim else shown,
        err=err,
        nl=nl,
    )


def echo_raw(text: str, *, nl: bool = True, colour: bool | None = None) -> None:
    """Prints text whose parts are already made visible, such as a rendered record with its colours,
    or output that goes into a pipe unchanged. `colour`: as `color` of `click.echo`.
    """
    click.echo(text, nl=nl, color=colour)
