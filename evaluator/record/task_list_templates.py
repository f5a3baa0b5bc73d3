"""Templates of task lists: Markdown files from which a new list begins.

They are in `task_lists/` below the folders of templates. `{{ title }}`, `{{ name }}`, `{{ date }}`
and `{{ role }}` are replaced; every other placeholder stays for the person or model that fills in
the list.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path

from evaluator import clock
from evaluator.errors import UsageError
from evaluator.errors.messages import did_you_mean
from evaluator.record.task_list_text import MAX_BYTES, parse_name

FOLDER = "task_lists"
DEFAULT = "feature"
ANY_ROLE = "the one who created it"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_PLACEHOLDER = re.compile(r"\{\{[ \t]*(title|name|date|role)[ \t]*\}\}")
# The line that names the owner, and the role at the start of a heading.
_OF_ROLE = re.compile(
    r"^[-*+ \t]*[*_]{0,2}owner[*_]{0,2}:[*_]{0,2}[ \t]*\{\{[ \t]*role[ \t]*\}\}[ \t]*\n"
    r"|(?<=\# )\[\{\{[ \t]*role[ \t]*\}\}\][ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def template_names(folders: Iterable[Path]) -> list[str]:
    """The names of the templates in `folders`, sorted."""
    found: set[str] = set()
    for folder in folders:
        with contextlib.suppress(OSError):
            found.update(
                path.stem for path in (folder / FOLDER).glob("*.md") if _NAME.fullmatch(path.stem)
            )
    return sorted(found)


def read_template(name: str, folders: Iterable[Path]) -> str:
    """The text of the template called `name`; an earlier folder comes first.

    Raises: UsageError, if there is none, or it cannot be read.
    """
    folders = list(folders)
    for folder in folders if _NAME.fullmatch(name) else ():
        path = folder / FOLDER / f"{name}.md"
        try:
            with open(os.open(path, _FILE), "rb") as file:
                return template_text(file.read(MAX_BYTES + 1), str(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"{path}: the template cannot be read: {error.strerror}") from error
    known = template_names(folders)
    hint = did_you_mean(name[:100], known, otherwise=f"the templates are: {', '.join(known)}")
    raise UsageError(f"there is no template of task lists called {name[:100]!r}; {hint}")


def template_text(data: bytes, path: str) -> str:
    """The text of a template's file. Raises: UsageError, if it is too large or not text."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES:,} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error


def fill_template(
    text: str, name: str, *, role: str | None = None, today: date | None = None
) -> str:
    """The text of a new list called `name`, which `role` creates.

    Without a role nobody owns the list, and the parts of the template's role are for any role.
    Raises: UsageError, for an invalid name.
    """
    full, bare = parse_name(name)
    if full is None:
        day = (today or clock.now().date()).isoformat()
    else:
        day = full[:10]
    words = bare.replace("-", " ")
    values = {
        "title": words[:1].upper() + words[1:],
        "name": full or f"{day}-{bare}",
        "date": day,
    }
    if role is None:
        text = _OF_ROLE.sub("", text)
        values["role"] = ANY_ROLE
    else:
        values["role"] = " ".join(role.split())
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)
