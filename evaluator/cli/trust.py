"""`evaluator trust`, and the question to the person at the terminal whether files of a project may
name hosts, keys and code.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evaluator.cli.common import json_option, print_json, stderr_is_terminal, stdin_is_terminal
from evaluator.cli.echo import echo
from evaluator.errors import UsageError
from evaluator.errors.messages import amount

if TYPE_CHECKING:
    from evaluator.files.trust import ProjectFile
    from evaluator.handler.profiles import Profiles
    from evaluator.library import TemplateLibrary


def permit(files: Collection[ProjectFile], trust: bool) -> bool:
    """Whether the user allows `files`: by `--trust`, or asked at the terminal. The answer yes is
    remembered.

    Raises: ConfigurationError, if it cannot be stored.
    """
    from evaluator.files.trust import allow

    if not files:
        return True
    if not trust:
        if not (stdin_is_terminal() and stderr_is_terminal()):
            return False
        for file in files:
            echo(file.describe(), err=True)
        if not click.confirm("Allow this, until the files change?", default=False, err=True):
            return False
    allow(files)
    return True


def project_profiles(trust: bool) -> Profiles:
    """The handler profiles here. Asks about those that the user has not allowed yet; without an
    answer, or with the answer no, they are left out, which is an error for a task that names one.
    """
    from evaluator.handler.profiles import load_profiles

    profiles = load_profiles()
    if profiles.untrusted and permit(list(profiles.untrusted.values()), trust):
        profiles = load_profiles()
    return profiles


def permit_schemas(library: TemplateLibrary, trust: bool) -> None:
    """Asks about the code of schemas (`module:Model`) that the user has not allowed yet; without an
    answer, or with the answer no, a task that needs it fails.
    """
    from evaluator.files.trust import is_allowed

    code = code_of_schemas(library, Path.cwd())
    permit([file for file in code if not is_allowed(file)], trust)


def code_of_schemas(library: TemplateLibrary, folder: Path) -> list[ProjectFile]:
    """The files of Python code below `folder` that importing the schemas of the templates runs, as
    far as import statements show it. Nothing is imported.
    """
    places = library.schema_places
    if not places:
        return []
    from evaluator.files.project_code import code_files

    files = [file for place in places for file in code_files(place, folder)]
    return list(dict.fromkeys(files))


def shown_profiles() -> Profiles:
    """The handler profiles here, to be shown or checked: nothing is sent with them."""
    from evaluator.handler.profiles import load_profiles

    return load_profiles(trust=True)


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
    from evaluator.handler.profiles import unreadable_profiles

    if show and remove:
        raise UsageError("--list and --remove exclude each other; give one of them")
    project = folder or Path.cwd()
    if show:
        files = _allowed(folder)
        what = "allowed"
    elif remove:
        files = forget(project)
        what = "no longer allowed"
    else:
        files = find_files(project)
        what = "now allowed"
        if files:
            allow(files)
        for problem in unreadable_profiles(project):
            echo(f"nothing is allowed for a profile that cannot be used:\n{problem}", err=True)
    if as_json:
        print_json([asdict(file) for file in files])
        return
    for file in files:
        echo(file.describe())
    echo(f"{amount(len(files), 'file')} {what}", err=True)


def find_files(project: Path) -> list[ProjectFile]:
    """The files of a project that name something which needs a permission."""
    from evaluator.batch.permissions import claims_in
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
