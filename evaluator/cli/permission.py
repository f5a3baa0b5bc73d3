"""Asks the person at the terminal whether files of a project may name hosts, keys, code and the
like.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evaluator.cli.common import stderr_is_terminal, stdin_is_terminal
from evaluator.cli.echo import echo

if TYPE_CHECKING:
    from evaluator.files.trust import ProjectFile
    from evaluator.handler.profiles import Profiles
    from evaluator.library import TemplateLibrary

trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Allow what the files of this project name (hosts, keys, commands, code), as `evaluator "
    "trust` does.",
)


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

    permit([file for file in code_of_schemas(library, Path.cwd()) if not is_allowed(file)], trust)


def code_of_schemas(library: TemplateLibrary, project: Path) -> list[ProjectFile]:
    """The files of a project's code that the schemas of its templates name."""
    from evaluator.files.project_code import code_files
    from evaluator.library.shapes import is_model
    from evaluator.nodes import Task
    from evaluator.nodes.walk import descendants

    found: dict[ProjectFile, None] = {}
    for template in library.templates.values():
        for node in descendants(template.node):
            if isinstance(node, Task) and node.output is not None and node.output.schema:
                name = node.output.schema.strip()
                if is_model(name):
                    found.update(dict.fromkeys(code_files(name.rpartition(":")[0], project)))
    return list(found)


def shown_profiles() -> Profiles:
    """The handler profiles here, to be shown or checked: nothing is sent with them."""
    from evaluator.handler.profiles import load_profiles

    return load_profiles(trust=True)
