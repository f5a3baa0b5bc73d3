"""`evaluator view`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from evaluator import disk
from evaluator.cli.common import stdout_is_terminal
from evaluator.cli.echo import echo


@click.command(epilog="Example:  evaluator view")
@click.argument(
    "folder",
    default=".",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="[DIR]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="The port; 0 is any free one.",
)
@click.option("--no-browser", is_flag=True, help="Print the address only.")
def view(folder: Path, port: int, no_browser: bool) -> None:
    """Show the runs and batches in DIR (default: here) in the browser, also while they run.

    Serves pages on 127.0.0.1, to the holder of the address only, until Ctrl-C. Opens the browser if
    there is a terminal. Changes nothing in the folder, except what you ask for on a page: a
    simulated run, the retry of an entry, a kill.
    """
    from evaluator.viewer.server import serve

    def ready(address: str) -> None:
        echo(address)
        echo("Ctrl-C ends the server", err=True)
        if stdout_is_terminal() and not no_browser:
            _open(address)

    os.chdir(folder)
    try:
        asyncio.run(serve(Path(), port, ready=ready))
    except KeyboardInterrupt:
        echo("stopped", err=True)


def _open(address: str) -> None:
    """Opens the address in the browser by way of a private file: other users see a program's
    arguments.
    """
    import webbrowser

    file = Path(disk.make_temporary_folder("evaluator-view-")) / "open.html"
    with disk.create(file) as page:
        page.write(f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={address}">'.encode())
    webbrowser.open(file.as_uri())
