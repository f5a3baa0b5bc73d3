"""`evaluator trust`: allows what the files of a project name, shows what is allowed, and takes it
back.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evaluator.cli.common import json_option, print_json
from evaluator.cli.echo import echo
from evaluator.errors import UsageError

if TYPE_CHECKING:
    from evaluator.files.trust import ProjectFile


@click.command(
    epilog="Examples:\n\n\b\n  evaluator trust\n  evaluator trust ~/shared/project --remove"
)
@click.argument(
    "folder",
    metavar="[DIR]",
    required=False,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
)
@click.option(
    "--list",
    "show",
    is_flag=True,
    help="Show what is allowed, in DIR or everywhere; change nothing.",
)
@click.option("--remove", is_flag=True, help="Take back what was allowed in DIR.")
@json_option
def trust(folder: Path | None, show: bool, remove: bool, as_json: bool) -> None:
    """Allow what the files of the project in DIR (default: here) name, and show it.

    These are the hosts, key variables, commands and folders of its profiles in handlers/, the code
    that a batch's definition (*.toml) and the schemas of templates/ name, and what a batch's folder
    from somebody else records. Each permission is for the present content of one file; code
    includes what it imports of the project.
    """
    from evaluator.files.trust import allow, forget

    if show and remove:
        raise UsageError("--list and --remove exclude each other; give one of them")
    if show:
        files = _allowed(folder)
    elif remove:
        files = forget(folder or Path.cwd())
    else:
        files = find_files(folder or Path.cwd())
        if files:
            allow(files)
    if as_json:
        print_json([asdict(file) for file in files])
        return
    for file in files:
        echo(file.describe())
    if show:
        what = "allowed"
    elif remove:
        what = "no longer allowed"
    else:
        what = "now allowed"
    echo(f"{len(files)} file{'' if len(files) == 1 else 's'} {what}", err=True)


def find_files(project: Path) -> list[ProjectFile]:
    """The files of a project that name something which needs a permission."""
    from evaluator.batch.permissions import claims_in
    from evaluator.cli.permission import code_of_schemas
    from evaluator.handler.profiles import files_of_profiles
    from evaluator.library import TemplateLibrary

    templates = project / "templates"
    code: list[ProjectFile] = []
    if templates.is_dir():
        code = code_of_schemas(TemplateLibrary.load(templates, shipped=False), project)
    return list(dict.fromkeys([*files_of_profiles(project), *claims_in(project), *code]))


def _allowed(folder: Path | None) -> list[ProjectFile]:
    from evaluator.files.trust import allowed_files

    wanted = None if folder is None else str(folder.resolve())
    return [file for file in allowed_files() if wanted in (None, file.project)]
