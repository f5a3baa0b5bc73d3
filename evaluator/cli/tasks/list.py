"""`evaluator tasks list`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from evaluator.cli.common import json_option, print_json, print_table
from evaluator.cli.tasks.common import dir_option
from evaluator.record.store import TaskStore

STATUSES = ["running", "interrupted", "completed", "failed", "aborted"]


@click.command("list", epilog="Example:  evaluator tasks list --status failed")
@click.option("--status", type=click.Choice(STATUSES), help="Only these.")
@click.option("--limit", type=click.IntRange(1), help="At most this many, the newest first.")
@dir_option
@json_option
def list_tasks(status: Any, limit: int | None, tasks_dir: Path, as_json: bool) -> None:
    """List task files, the newest first."""
    found = list(TaskStore(tasks_dir).list(status=status, limit=limit))
    if not tasks_dir.exists():
        click.echo(f"{tasks_dir}: there is no such folder yet; the first run makes it", err=True)
    if as_json:
        print_json(
            [
                {
                    "id": t.id, "status": t.status, "path": str(t.path), "error": t.error,
                    "header": None if t.header is None else t.header.to_dict(),
                    "duration_s": None if t.summary is None else t.summary.duration_s,
                    "reason": None if t.summary is None else t.summary.reason,
                }
                for t in found
            ]
        )  # fmt: skip
        return
    rows = [
        [
            str(t.id), t.status, "" if t.header is None else t.header.created,
            "" if t.summary is None else f"{t.summary.duration_s:.3f} s",
            ("" if t.header is None else t.header.template or "") or "-",
            t.error or ("" if t.summary is None else t.summary.reason or "")
            or ("" if t.header is None else t.header.request),
        ]
        for t in found
    ]  # fmt: skip
    print_table(["id", "status", "created", "duration", "template", "request or reason"], rows)
