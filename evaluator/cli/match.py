"""`evaluator match`."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.cli.common import json_option, library_option, load_library, print_json, print_table
from evaluator.cli.echo import echo
from evaluator.library.matching import LOW_SCORE


@click.command(epilog='Example:  evaluator match "is this review positive?"')
@click.argument("request")
@click.option("--limit", default=5, show_default=True, type=click.IntRange(1, 5), help="Maximum number of templates.")
@library_option
@json_option
def match(request: str, limit: int, folders: tuple[Path, ...], as_json: bool) -> None:
    """Show the templates that fit REQUEST best, with a score in [0, 1] and the terms that counted."""
    library = load_library(folders)
    matches = library.match(request, limit=limit)
    if as_json:
        print_json(
            [
                {
                    "template": m.template.name, "score": round(m.score, 4),
                    "why": [{"term": r.term, "field": r.field, "weight": round(r.weight, 4)} for r in m.why],
                }
                for m in matches
            ]
        )  # fmt: skip
        return
    rows = [[m.template.name, f"{m.score:.2f}", ", ".join(f"{r.term} ({r.field})" for r in m.why[:6])] for m in matches]
    print_table(["template", "score", "why"], rows)
    if not matches or matches[0].score < LOW_SCORE:
        echo(f"No template fits: every score is below {LOW_SCORE:.2f}.")
