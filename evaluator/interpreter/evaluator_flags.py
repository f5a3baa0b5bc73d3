"""What the command line and definitions of batches say about an Evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from evaluator.fields import After, Flag, Name
from evaluator.patterns import Pattern
from evaluator.processes.sandboxes import HELP

LIBRARY = Flag(
    "--library",
    "A folder (or file) of templates, searched before the shipped ones. Default: templates/ here.",
    metavar="FOLDER",
)
ROOT = Flag(
    "--root",
    "A folder that tasks may read; the first is where scripts run. Default: here.",
    metavar="FOLDER",
)
MODEL_ROLE = Flag(
    "--model-role",
    "The model for tasks that name this role, e.g. grader=openai/gpt-4o.",
    metavar="ROLE=MODEL",
    example="grader=openai/gpt-4o",
)
SANDBOX = Flag("--sandbox", HELP, metavar="KIND")
# The template schema does not allow these in a name.
_NOT_IN_A_ROLE = Pattern(r"""[\s<>{}"']""")


def _check_roles(roles: Mapping[str, str]) -> Mapping[str, str]:
    for role in roles:
        if not role or _NOT_IN_A_ROLE.search(role):
            raise ValueError(
                f"{role!r}: a role is one word, without spaces, quotes, braces, < and >"
            )
    return roles


Roles = Annotated[Mapping[str, Name], After(_check_roles)]
"""The models of roles by name."""
