"""The files of `evaluator init`, `new` and `examples`, copied from what ships, never over an
existing file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from evaluator import disk
from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean
from evaluator.files.shipped import schemas_dir, shipped

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
        for name in ("task.xsd", "handler.xsd")
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
