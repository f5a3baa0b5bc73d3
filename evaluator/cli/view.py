"""`evaluator view`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from evaluator import disk
from evaluator.cli.common import stdout_is_terminal
from evaluator.cli.echo import echo
from evaluator.files.atomic import lock, try_lock

_PREFIX = "evaluator-view-"
_PAGE = "open.html"


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
    label, a command to a batch, a simulated run, the retry of an entry, a kill.
    """
    from evaluator.viewer.server import serve

    with ExitStack() as until_stopped:

        def ready(address: str) -> None:
            echo(address)
            echo("Ctrl-C ends the server", err=True)
            if stdout_is_terminal() and not no_browser:
                until_stopped.enter_context(_opened(address))

        _remove_left_files()
        os.chdir(folder)
        try:
            asyncio.run(serve(Path(), port, ready=ready))
        except KeyboardInterrupt:
            echo("stopped", err=True)


@contextmanager
def _opened(address: str) -> Generator[None]:
    """Opens the address in the browser by way of a private file: other users see a program's
    arguments. The file is removed at the end of the block; while it is locked, its server runs.
    """
    import webbrowser

    private = Path(disk.make_temporary_folder(_PREFIX))
    page = private / _PAGE
    try:
        with disk.create(private / "new") as file:
            lock(file.fileno())
            file.write(
                f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={address}">'.encode()
            )
            file.flush()
            disk.rename(private / "new", page)
            webbrowser.open(page.as_uri())
            yield
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _remove_left_files() -> None:
    """Removes the files of servers that were killed: they hold a token."""
    for private in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = private.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
                continue
            page = private / _PAGE
            descriptor = os.open(page, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if try_lock(descriptor):
                    disk.unlink(page)
                    disk.rmdir(private)
            finally:
                os.close(descriptor)
