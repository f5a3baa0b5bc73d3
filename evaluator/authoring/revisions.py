"""Versions of a project: folders on disk, and revisions of a git repository, read without running
anything that the repository names.

Only plumbing commands of git are used (`rev-parse`, `rev-list`, `ls-tree`, `cat-file`), which run
no filter, hook, pager or signature check, and fetch nothing.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from evaluator import disk
from evaluator.errors import UsageError
from evaluator.errors.messages import visible
from evaluator.files.locations import shipped
from evaluator.handler.profiles import Profiles, load_profiles
from evaluator.lazy_dataclass import dataclass
from evaluator.library import TemplateLibrary
from evaluator.processes import starting

MAX_FILES = 20_000
MAX_BYTES = 200_000_000
_GIT = ("git", "--no-pager", "--no-replace-objects", "-c", "core.fsmonitor=false")
_SUFFIXES = (".xml", ".json")


@dataclass(frozen=True, slots=True)
class Version:
    """A project's templates and profiles at one time. `names` are its own templates."""

    title: str
    library: TemplateLibrary
    profiles: Profiles
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Commit:
    """A revision: its hash, the time of its commit in seconds since 1970, and its first line."""

    sha: str
    time: int
    subject: str


@contextmanager
def open_version(named: str) -> Generator[Version]:
    """The version that a path or a git revision names: a folder with `templates/`, a folder or file
    of templates, `REVISION`, or `REVISION:PATH` with a path in the repository.

    Raises: UsageError, where there is none.
    """
    path = Path(named)
    if path.exists():
        yield _version(named, path)
        return
    revision, colon, below = named.partition(":")
    prefix = below if colon else _here()
    with disk.temporary_folder("evaluator-revision-") as folder:
        _extract(revision, prefix, folder)
        place = folder / prefix if prefix else folder
        if not place.exists():
            raise UsageError(f"{named}: the revision has no template there")
        yield _version(named, place)


def _version(title: str, path: Path) -> Version:
    if (path / "templates").is_dir():
        templates = path / "templates"
    else:
        templates = path
    around = path if templates != path else path.parent
    folders = [folder for folder in [around / "handlers"] if folder.is_dir()]
    library = TemplateLibrary.load(templates)
    place = templates.resolve()
    own = {
        name
        for name, template in library.templates.items()
        if template.file and Path(template.file).resolve().is_relative_to(place)
    }
    broken = library.broken - TemplateLibrary.load(shipped("templates")).broken
    return Version(title, library, load_profiles(*folders, trust=True), frozenset(own) | broken)


def history(path: Path, most: int) -> Iterator[Commit]:
    """The commits that changed a file, newest first. Raises: UsageError."""
    listed = _git(
        "rev-list",
        f"--max-count={most}",
        "--no-commit-header",
        "--format=%H%x00%ct%x00%s",
        "HEAD",
        "--",
        str(path),
        folder=path.parent,
    )
    for line in listed.decode("utf-8", "replace").splitlines():
        sha, committed, subject, *_ = [*line.split("\0"), "", ""]
        if committed.isdigit():
            yield Commit(sha, int(committed), visible(subject, one_line=True))


def prefix_of(folder: Path) -> str:
    """The path of a folder in its repository. Raises: UsageError, where it is in none."""
    shown = _git("rev-parse", "--show-prefix", folder=folder)
    return shown.decode("utf-8", "surrogateescape").strip("\n").rstrip("/")


def _here() -> str:
    return prefix_of(Path.cwd())


def _git(*arguments: str, folder: Path | None = None, given: bytes = b"") -> bytes:
    environment = {
        **os.environ,
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    try:
        done = starting.run(
            [*_GIT, *arguments],
            cwd=folder,
            env=environment,
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
        )
    except OSError as error:
        raise UsageError(f"git cannot be started: {error.strerror}") from error
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise UsageError(f"git: {visible(reason, one_line=True)}")
    return done.stdout


def _extract(revision: str, prefix: str, folder: Path) -> None:
    """Writes the XML and JSON files of a revision below `prefix` into `folder`."""
    if not revision or revision.startswith("-"):
        raise UsageError(f"{revision!r} is neither a path nor a revision of git")
    try:
        commit = _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    except UsageError as error:
        raise UsageError(f"{revision!r} is neither a path nor a revision: {error}") from error
    listed = _git(
        "ls-tree",
        "-r",
        "-z",
        "--full-tree",
        commit.decode("ascii").strip(),
        "--",
        *([prefix] if prefix else []),
    )
    blobs: list[tuple[str, str]] = []
    for entry in listed.decode("utf-8", "surrogateescape").split("\0"):
        described, _, name = entry.partition("\t")
        mode, _, rest = described.partition(" ")
        # Links and submodules are left out.
        if mode.startswith("100") and name.endswith(_SUFFIXES):
            blobs.append((rest.rpartition(" ")[2], name))
    if len(blobs) > MAX_FILES:
        raise UsageError(f"{revision}: more than {MAX_FILES:,} files; name a folder: REVISION:PATH")
    data = _git("cat-file", "--batch", given="".join(f"{sha}\n" for sha, _ in blobs).encode())
    if len(data) > MAX_BYTES:
        raise UsageError(f"{revision}: more than {MAX_BYTES:,} bytes; name a folder: REVISION:PATH")
    position = 0
    for _, name in blobs:
        end = data.index(b"\n", position)
        size = int(data[position:end].rpartition(b" ")[2])
        target = folder / name
        disk.make_folders(target.parent)
        with disk.create(target) as file:
            file.write(data[end + 1 : end + 1 + size])
        position = end + 1 + size + 1
