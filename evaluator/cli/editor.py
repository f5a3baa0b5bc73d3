"""`evaluator lsp`: the language server for editors."""

from __future__ import annotations

import click

from evaluator.errors import MissingExtra


@click.command(epilog="Example:  evaluator lsp --model openai/gpt-4o-mini")
@click.option("--model", metavar="MODEL", help="Show prices of this model.")
def lsp(model: str | None) -> None:
    """Start the language server, which an editor talks to over standard input and output.

    It shows what `lint` finds while you type, completes, renames across files, and shows the most
    calls and the highest price of the task under the cursor. It runs nothing of a project unless
    you ask for it. Needs evaluator[lsp]. See docs/howto/write-templates-in-an-editor.md.
    """
    try:
        from evaluator.editor.server import make_server
    except ModuleNotFoundError as error:
        if error.name not in ("pygls", "lsprotocol"):
            raise
        raise MissingExtra("pygls", "lsp") from error
    make_server(model).start_io()
