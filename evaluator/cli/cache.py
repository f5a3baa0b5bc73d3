"""`evaluator cache`: shows and clears a response cache."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from evaluator import clock
from evaluator.cli.common import FILE, json_option, print_json, print_table
from evaluator.cli.echo import echo
from evaluator.errors import UsageError
from evaluator.errors.messages import amount, visible
from evaluator.record.render import cost_text
from evaluator.record.search import read_time

file_argument = click.argument("file", type=FILE)


@click.group(epilog="Example:  evaluator cache stats responses.sqlite")
def cache() -> None:
    """Show and clear a cache of model responses."""


@cache.command(epilog="Example:  evaluator cache stats responses.sqlite")
@file_argument
@json_option
def stats(file: Path, as_json: bool) -> None:
    """Show the responses, hits and savings of a cache, by model."""
    from evaluator.models.cache import ResponseCache

    found = ResponseCache(_existing(file)).stats()
    if found.oldest is None:
        oldest = None
    else:
        oldest = datetime.fromtimestamp(found.oldest, UTC).isoformat(timespec="seconds")
    if as_json:
        print_json(
            {
                "entries": found.entries,
                "bytes": found.bytes,
                "hits": found.hits,
                "misses": found.misses,
                "oldest": oldest,
                "models": {
                    model: {
                        "entries": each.entries,
                        "hits": each.hits,
                        "misses": each.misses,
                        "saved": each.saved.to_dict(),
                    }
                    for model, each in found.by_model.items()
                },
            }
        )
        return
    echo(
        f"{amount(found.entries, 'response')}, {amount(found.bytes, 'byte')}, "
        f"{amount(found.hits, 'hit')}, "
        f"{found.misses:,} misses"
    )
    if found.by_model:
        rows = [
            [
                visible(model),
                f"{each.entries:,}",
                f"{each.hits:,}",
                f"{each.misses:,}",
                cost_text(each.saved.to_dict()),
            ]
            for model, each in found.by_model.items()
        ]
        print_table(["model", "responses", "hits", "misses", "saved"], rows)
    if oldest is not None:
        echo(f"oldest: {oldest}")


@cache.command(epilog="Example:  evaluator cache clear responses.sqlite --older-than 30d")
@file_argument
@click.option("--older-than", metavar="AGE", help="Only responses older than this: 30d, 12h.")
@click.option("--model", metavar="MODEL", help="Only responses of this model.")
def clear(file: Path, older_than: str | None, model: str | None) -> None:
    """Remove responses: all, or those that match every condition."""
    from evaluator.models.cache import ResponseCache

    age_s = None
    if older_than is not None:
        age_s = (clock.now() - read_time(older_than)).total_seconds()
    removed = ResponseCache(_existing(file)).clear(older_than_s=age_s, model=model)
    echo(f"{amount(removed, 'response')} removed")


def _existing(file: Path) -> Path:
    if not file.is_file():
        raise UsageError(f"{file}: no such file; a batch creates it with --cache {file}")
    return file
