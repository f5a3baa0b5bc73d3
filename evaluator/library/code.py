"""Python code that templates name: the classes that are their schemas."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evaluator.files.trust import ProjectFile
    from evaluator.library.loader import TemplateLibrary


def code_of_schemas(library: TemplateLibrary, folder: str | os.PathLike[str]) -> list[ProjectFile]:
    """The files of Python code below `folder` that importing the schemas of the templates runs, as
    far as import statements show it. Nothing is imported. `evaluator.files.trust.allow` allows
    them.
    """
    places = library.schema_places
    if not places:
        return []
    from evaluator.files.project_code import code_files

    files = [file for place in places for file in code_files(place, os.fspath(folder))]
    return list(dict.fromkeys(files))
