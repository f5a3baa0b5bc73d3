"""`evaluator init` begins a project, `evaluator new` a template, `evaluator examples` lists and
copies what ships.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click

from evaluator.cli.common import json_option, print_json_or_table
from evaluator.cli.echo import echo
from evaluator.cli.scaffold import (
    DATA,
    PROJECTS,
    SUITES,
    example_files,
    new_template,
    project_files,
    template_types,
    title_of,
    write_files,
)
from evaluator.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@click.command(
    epilog="Examples:\n\n\b\n  evaluator init\n  evaluator init orders --example extract"
)
@click.argument(
    "folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path, file_okay=False)
)
@click.option(
    "--example",
    type=click.Choice(PROJECTS),
    default="classify",
    show_default=True,
    help="What the project does at first.",
)
def init(folder: Path, example: str) -> None:
    """Begin a project in DIR (default: here) that lints, tests and runs at once, offline.

    It has a template, a handler profile, rows, a batch (evaluator.toml), a test, a CI job, and
    settings with which VS Code and JetBrains editors complete and check the XML. Existing files are
    never changed.
    """
    from evaluator.batch.definition import DEFAULT_FILE

    if (folder / DEFAULT_FILE).exists():
        raise UsageError(
            f"{folder / DEFAULT_FILE} exists, so there is a project already; name another folder"
        )
    _print_written(folder, *write_files(folder, project_files(example)))
    if folder == Path("."):
        enter = ""
    else:
        enter = f"cd {shlex.quote(str(folder))} && "
    echo(f"next: {enter}evaluator lint templates && evaluator batch", err=True)


@click.command(epilog="Example:  evaluator new translate_letter --type sequential")
@click.argument("name")
@click.option(
    "--type",
    "kind",
    type=click.Choice(template_types()),
    default="atomic",
    show_default=True,
    help="The operator, or a function that other templates call.",
)
@click.option(
    "--library",
    "folder",
    default="templates",
    show_default=True,
    metavar="FOLDER",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the template is written.",
)
def new(name: str, kind: str, folder: Path) -> None:
    """Begin a template NAME in templates/NAME.xml that has no errors and runs; edit it from
    there.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a template name: use letters, digits and _, and begin with a "
            "letter or _"
        )
    _, kept = write_files(folder, {f"{name}.xml": new_template(name, kind, folder=folder)})
    path = folder / f"{name}.xml"
    if kept:
        raise UsageError(f"{path} exists; choose another name, or remove the file")
    echo(str(path))
    echo(f"next: evaluator lint {shlex.quote(str(path))}", err=True)


@click.group(epilog="Examples:\n\n\b\n  evaluator examples list\n  evaluator examples copy data")
def examples() -> None:
    """List and copy the examples that ship with the package."""


@examples.command("list")
@json_option
def list_examples(as_json: bool) -> None:
    """List the examples."""
    names = (*PROJECTS, *DATA, *SUITES)
    rows = [
        {
            "name": name,
            "title": title_of(name),
            "project": name in PROJECTS,
            "suite": name in SUITES,
        }
        for name in names
    ]
    print_json_or_table(
        as_json,
        rows,
        head=["name", "shows"],
        rows=[[str(row["name"]), str(row["title"])] for row in rows],
    )


@examples.command("copy")
@click.argument("name")
@click.argument(
    "folder", metavar="[DIR]", required=False, type=click.Path(path_type=Path, file_okay=False)
)
def copy(name: str, folder: Path | None) -> None:
    """Copy the example NAME to DIR (default: examples/NAME). Existing files are never changed."""
    from evaluator.batch.definition import DEFAULT_FILE

    target = folder or Path("examples", name)
    _print_written(target, *write_files(target, example_files(name)))
    if (target / DEFAULT_FILE).exists():
        echo(f"next: cd {shlex.quote(str(target))} && evaluator batch", err=True)


def _print_written(folder: Path, written: list[str], kept: list[str]) -> None:
    for name in written:
        echo(str(folder / name))
    for name in kept:
        echo(f"kept: {folder / name} exists and was not changed", err=True)
