"""What changed between two versions of templates: prompts as rendered, bounds, price, tools and
authority.

Versions of a project: folders on disk, and revisions of a git repository, read without running
anything that the repository names.

Only plumbing commands of git are used (`rev-parse`, `rev-list`, `ls-tree`, `cat-file`), which run
no filter, hook, pager or signature check, and fetch nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from difflib import unified_diff
from pathlib import Path
from typing import Any

from evaluator import disk
from evaluator.authoring.portraits import Portrait, Prompts, portrait
from evaluator.errors import EvaluatorError, UsageError
from evaluator.errors.messages import amount, visible
from evaluator.files.locations import shipped
from evaluator.handler.profiles import Profiles, load_profiles
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
from evaluator.processes import starting

MAX_FILES = 20_000
MAX_BYTES = 200_000_000
_GIT = ("git", "--no-pager", "--no-replace-objects", "-c", "core.fsmonitor=false")
_SUFFIXES = (".xml", ".json")


@frozen
class Version:
    """A project's templates and profiles at one time. `names` are its own templates."""

    title: str
    library: TemplateLibrary
    profiles: Profiles
    names: frozenset[str]


@frozen
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
    prefix = below if colon else prefix_of(Path.cwd())
    with disk.temporary_folder("evaluator-revision-") as folder:
        _extract(revision, prefix, folder)
        place = folder / prefix if prefix else folder
        if not place.exists():
            raise UsageError(f"{named}: the revision has no template there")
        yield _version(named, place)


def _version(title: str, path: Path) -> Version:
    is_project = (path / "templates").is_dir()
    if is_project:
        templates = path / "templates"
    else:
        templates = path
    if is_project:
        around = path
    else:
        around = path.parent
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
        # Git stores such a path, although it would not check it out.
        if name.startswith("/") or ".." in name.split("/"):
            raise UsageError(f"{revision}: its file {visible(name)!r} is outside of the repository")
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
        if data[position:end].endswith(b" missing"):
            raise UsageError(f"{revision}: the repository lacks {visible(name)!r}; fetch it first")
        size = int(data[position:end].rpartition(b" ")[2])
        target = folder / name
        disk.make_folders(target.parent)
        with disk.create(target) as file:
            file.write(data[end + 1 : end + 1 + size])
        position = end + 1 + size + 1


# What the simulated model makes up depends on the whole prompt, so it would differ in each of them.
_SIMULATED = re.compile(r"simulated \d+|\[simulated\] an answer to: [^\n]*")


@frozen
class FieldChange:
    """A fact that changed: what it was and what it is."""

    what: str
    before: str
    after: str


@frozen
class TemplateChange:
    """What changed of one template. `kind` is added, removed, changed or broken. `prompts` are
    unified diffs, by the title of their inputs.
    """

    name: str
    kind: str
    facts: tuple[FieldChange, ...] = ()
    gained: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    prompts: Mapping[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def changes_between(
    before: Version,
    after: Version,
    *,
    name: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    model: str | None = None,
) -> Iterator[TemplateChange]:
    """What changed of each template, or of the one called `name`, by name. `inputs` are for its
    prompts; without them those of its examples are used.
    """
    if name is None:
        names = sorted(before.names | after.names)
    else:
        names = [name]
    for each in names:
        old = _portrait(before, each, inputs, model)
        new = _portrait(after, each, inputs, model)
        if isinstance(new, str) or isinstance(old, str):
            if isinstance(new, str):
                reason = new
            else:
                reason = f"before: {old}"
            if new != old:
                yield TemplateChange(each, "broken", facts=(FieldChange("errors", "", reason),))
        elif old is None and new is not None:
            facts = [FieldChange(what, "", value) for what, value in _facts(new).items() if value]
            yield TemplateChange(each, "added", facts=tuple(facts), gained=new.reaches)
        elif new is None and old is not None:
            yield TemplateChange(each, "removed")
        elif old is not None and new is not None:
            found = _change(old, new)
            if found is not None:
                yield found


def _portrait(
    version: Version, name: str, inputs: Mapping[str, Any] | None, model: str | None
) -> Portrait | str | None:
    """A template's portrait, None where there is none, the first error of a broken one."""
    if name not in version.library and name not in version.library.broken:
        return None
    try:
        return portrait(version.library, version.profiles, name, inputs=inputs, model=model)
    except EvaluatorError as error:
        return str(error).partition("\n")[0]


def _facts(one: Portrait) -> dict[str, str]:
    return {
        "type": one.kind,
        "version": one.version or "",
        "description": one.description,
        "inputs": "; ".join(one.inputs),
        "output": one.output,
        "calls": one.bound.of_model_calls(),
        "price": one.price,
        "calls of templates": ", ".join(one.calls),
    }


def _change(old: Portrait, new: Portrait) -> TemplateChange | None:
    old_facts = _facts(old)
    new_facts = _facts(new)
    facts = [
        FieldChange(what, old_facts[what], value)
        for what, value in new_facts.items()
        if old_facts[what] != value
    ]
    prompts = _prompt_diffs(old, new)
    gained = tuple(line for line in new.reaches if line not in old.reaches)
    lost = tuple(line for line in old.reaches if line not in new.reaches)
    if not (facts or prompts or gained or lost):
        if old.sha256 == new.sha256:
            return None
        facts = [FieldChange("content", old.sha256[:12], new.sha256[:12])]
    return TemplateChange(
        new.name, "changed", facts=tuple(facts), gained=gained, lost=lost, prompts=prompts
    )


def _prompt_diffs(old: Portrait, new: Portrait) -> dict[str, str]:
    earlier = {each.title: each for each in old.prompts}
    later = {each.title: each for each in new.prompts}
    found: dict[str, str] = {}
    for title in {**earlier, **later}:
        texts = _lines(earlier.get(title)), _lines(later.get(title))
        diff = list(unified_diff(*texts, "before", "after", lineterm="", n=2))
        if diff:
            found[title] = "\n".join(diff)
    return found


def _lines(prompts: Prompts | None) -> list[str]:
    if prompts is None:
        return []
    text = _SIMULATED.sub("[simulated]", "\n".join(prompts.requests))
    if text:
        lines = text.split("\n")
    else:
        lines = []
    if prompts.error is not None:
        lines.append(f"error: {prompts.error}")
    return lines


def as_text(changes: list[TemplateChange]) -> str:
    """The changes for a terminal."""
    lines: list[str] = []
    for change in changes:
        lines.append(f"{change.name}: {change.kind}")
        for fact in change.facts:
            if fact.before:
                arrow = f"{fact.before} → {fact.after}"
            else:
                arrow = fact.after
            lines.append(f"  {fact.what}: {arrow}")
        lines += [f"  + {line}" for line in change.gained]
        lines += [f"  - {line}" for line in change.lost]
        for title, diff in (change.prompts or {}).items():
            lines.append(f"  prompts, {title}:")
            lines += [f"    {line}" for line in diff.split("\n")]
    lines.append(_count(changes))
    return "\n".join(lines)


def as_markdown(changes: list[TemplateChange]) -> str:
    """The changes for a review."""
    lines: list[str] = ["## Templates", ""]
    for change in changes:
        lines += [f"### {code_cell(change.name)}: {change.kind}", ""]
        rows = [(fact.what, fact.before, fact.after) for fact in change.facts]
        rows += [("reaches now", "", line) for line in change.gained]
        rows += [("reaches no longer", line, "") for line in change.lost]
        if rows:
            lines += ["| what | before | after |", "|---|---|---|"]
            lines += [
                f"| {what} | {code_cell(before)} | {code_cell(after)} |"
                for what, before, after in rows
            ]
            lines.append("")
        for title, diff in (change.prompts or {}).items():
            lines += [f"Prompts, {title}:", "", *diff_block(diff), ""]
    lines.append(f"{_count(changes)}.")
    return "\n".join(lines)


def diff_block(text: str) -> list[str]:
    """The lines of a diff as a block of code in Markdown, which nothing in `text` can end."""
    fence = fence_of(text)
    return [f"{fence}diff", text, fence]


def fence_of(text: str) -> str:
    """The marks around a block of code that nothing in `text` can end."""
    return "`" * max(3, _longest_run(text) + 1)


def _count(changes: list[TemplateChange]) -> str:
    return f"{amount(len(changes), 'template')} changed"


def code_cell(text: str) -> str:
    """Text in a cell of a table, which nothing in it can end."""
    plain = visible(" ".join(text.split())).replace("|", "\\|")
    if not plain:
        return ""
    ticks = "`" * (_longest_run(plain) + 1)
    return f"{ticks} {plain} {ticks}" if "`" in plain else f"`{plain}`"


def _longest_run(text: str) -> int:
    """The most backquotes in a row."""
    return max(map(len, re.findall("`+", text)), default=0)
