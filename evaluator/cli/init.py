"""`evaluator init`, `new` and `examples`: files copied from what ships, never over an existing
file.

The files of `evaluator init`, `new` and `examples`, copied from what ships, never over an
existing file.

copies what ships.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from evaluator import disk
from evaluator.cli.common import json_option, print_json_or_table
from evaluator.cli.echo import echo
from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean
from evaluator.files.locations import schemas_dir, shipped

PROJECTS = ("classify", "extract", "pipeline", "code", "judge")
"""Examples that `evaluator init` starts a project from."""
DATA = ("data", "generated_code", "mechanic", "watched_folder")
"""Examples that are folders of their own."""
SUITES = (
    "arc",
    "bfcl",
    "drop",
    "gsm8k",
    "humaneval",
    "ifeval",
    "math",
    "mmlu",
    "mt_bench",
    "simpleqa",
    "squad2",
    "truthfulqa",
)
"""Public benchmarks: a template, a batch file, and rows in the shape of the data set."""
# Names that would have an effect on the folder of examples itself begin with a dot in a project
# only.
_HIDDEN = frozenset({"gitignore", "github", "vscode"})
_SCHEMA = re.compile(r'\s+xmlns:xsi="[^"]*"\s+xsi:noNamespaceSchemaLocation="[^"]*"')


def project_files(example: str) -> dict[str, bytes]:
    """The files of a new project, by path: those of the example, those of every project, and the
    schemas.
    """
    projects = shipped("examples") / "projects"
    files = _files_below(projects / "common") | _files_below(projects / example)
    return files | {
        f"schemas/{name}": (schemas_dir() / name).read_bytes()
        for name in ("task.xsd", "handler.xsd", "catalog.xml")
    }


def example_files(name: str) -> dict[str, bytes]:
    """The files of an example, by path. Raises: UsageError, if there is no example of that name."""
    if name in PROJECTS:
        return project_files(name)
    if name in DATA or name in SUITES:
        return _files_below(_folder_of(name))
    hint = did_you_mean(name, [*PROJECTS, *DATA, *SUITES])
    raise UsageError(
        f"there is no example {name!r}{f'; {hint}' if hint else ''}. See: evaluator examples list"
    )


def title_of(name: str) -> str:
    """What an example shows: the heading of its README."""
    with open(_folder_of(name) / "README.md", encoding="utf-8") as file:
        return file.readline().removeprefix("#").strip()


def _folder_of(name: str) -> Path:
    if name in PROJECTS:
        parent = "projects"
    elif name in SUITES:
        parent = "suites"
    else:
        parent = ""
    return shipped("examples") / parent / name


def template_types() -> list[str]:
    """The types that `new_template` can begin."""
    return sorted(path.stem for path in (shipped("examples") / "new").glob("*.xml"))


def new_template(name: str, type: str, folder: Path) -> bytes:
    """A template of that type to begin with. It names the schema for editors if `schemas/` is
    here.
    """
    text = (shipped("examples") / "new" / f"{type}.xml").read_text(encoding="utf-8")
    if Path("schemas", "task.xsd").is_file():
        text = text.replace("../schemas/task.xsd", os.path.relpath("schemas/task.xsd", folder))
    else:
        text = _SCHEMA.sub("", text)
    return re.sub(r"\bNAME\b", name, text).encode()


def write_files(folder: Path, files: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
    """Writes each file that does not exist yet. Returns: the paths that were written, and those
    that were there.

    Raises: OSError, if one cannot be written.
    """
    written: list[str] = []
    kept: list[str] = []
    for name, data in sorted(files.items()):
        path = folder / name
        disk.make_folders(path.parent)
        try:
            with disk.create(path) as file:
                file.write(data)
            written.append(name)
        except FileExistsError:
            kept.append(name)
    return written, kept


def _files_below(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and "__pycache__" not in parts:
            found["/".join([f".{parts[0]}" if parts[0] in _HIDDEN else parts[0], *parts[1:]])] = (
                path.read_bytes()
            )
    return found


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
