"""Asks the person at the terminal whether files of a project may name hosts, keys, code and the
like.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from evaluator.cli.common import stderr_is_terminal, stdin_is_terminal
from evaluator.cli.echo import echo

if TYPE_CHECKING:
    from evaluator.files.trust import ProjectFile
    from evaluator.handler.profiles import Profiles

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


def shown_profiles() -> Profiles:
    """The handler profiles here, to be shown or checked: nothing is sent with them."""
    from evaluator.handler.profiles import load_profiles

    return load_profiles(trust=True)
