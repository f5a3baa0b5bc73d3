"""`evaluator batch merge`: merges the shards of a batch into one folder."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from evaluator.cli.common import json_option
from evaluator.cli.echo import echo
from evaluator.cli.results import print_summary


@click.command(epilog="Example:  evaluator batch merge shards/1 shards/2 shards/3 -o merged")
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, file_okay=False))
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, metavar="FOLDER",
              help="A new folder for the merged batch.")  # fmt: skip
@json_option
def merge(folders: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Merge batches that were run with --shard into one folder, print its summary and check its thresholds.

    FOLDERS are those of the shards; they stay as they are. If some are missing or incomplete, so is the merged batch;
    resume it to run the rest.
    """
    from evaluator.batch.merge import merge_shards

    merged = merge_shards(folders, output)
    reason = merged.manifest["sessions"][-1]["reason"]
    echo(f"results: {output}", err=True)
    if reason:
        echo(f"incomplete: {reason}", err=True)
        echo(f"run the rest with: evaluator batch --resume {shlex.quote(str(output))}", err=True)
    print_summary(merged, as_json=as_json)
