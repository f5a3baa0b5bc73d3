"""`evaluator memory`: the index of a folder, from which tasks take fresh context."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evaluator import disk
from evaluator.cli import common
from evaluator.cli.echo import echo
from evaluator.errors import UsageError
from evaluator.errors.messages import amount, duration_text, visible

if TYPE_CHECKING:
    from evaluator.memory import IndexReport

DEFAULT = Path(".evaluator") / "memory.sqlite"

_SHOWN_REASONS = 6

db_option = click.option(
    "--db",
    "database",
    type=common.FILE,
    metavar="FILE",
    help=f"The index. Default: {DEFAULT} in the folder that is indexed, or the nearest above "
    "this one.",
)


@click.group(epilog='Example:  evaluator memory query "where are retries decided?"')
def memory() -> None:
    """Index the files of a folder by subject, and find those that are relevant to a request.

    The index holds paths and descriptions (names of definitions, headings, columns), never
    contents.
    """


@memory.command(epilog="Example:  evaluator memory index src --no-git")
@click.argument("path", default=".", type=common.FOLDER)
@db_option
@click.option(
    "--git/--no-git",
    default=None,
    help="Only the files that git tracks. Default: where the folder is in a repository.",
)
@common.json_option
def index(path: Path, database: Path | None, git: bool | None, as_json: bool) -> None:
    """Bring the index up to date with the files in PATH (default: this folder)."""
    if not path.is_dir():
        raise UsageError(f"{path}: no such folder")
    if git is None:
        folder = path.resolve()
        git = any((above / ".git").exists() for above in (folder, *folder.parents))
    report = asyncio.run(_index(path, database or _default_database(path), git=git))
    if as_json:
        examples = [{"path": skipped, "reason": reason} for skipped, reason in report.examples]
        common.print_json(
            {**asdict(report), "examples": examples, "seconds": round(report.seconds, 3)}
        )
        return
    if report.kind == "git":
        source = "tracked by git"
    else:
        source = "found"
    echo(
        f"{amount(report.files, 'file')} {source} in {visible(report.root)}: "
        f"{report.added:,} added, {report.changed:,} changed, {report.removed:,} removed, in "
        f"{duration_text(report.seconds)}"
    )
    for reason, count in report.skipped.items():
        example = next((skipped for skipped, why in report.examples if why == reason), None)
        echo(f"  skipped {count:,}: {reason}" + (f" ({example})" if example else ""))


async def _index(path: Path, database: Path, git: bool) -> IndexReport:
    from evaluator.memory import GlobalIndex

    with GlobalIndex(database) as found, common.WorkProgress("indexing", "file") as progress:
        add = found.add_git if git else found.add_folder
        return await add(path, on_progress=progress.update)


@memory.command(epilog='Example:  evaluator memory query "csv header parser" --limit 3')
@click.argument("request", metavar="WORDS")
@db_option
@click.option(
    "--limit",
    default=10,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="At most this many.",
)
@common.json_option
def query(request: str, database: Path | None, limit: int, as_json: bool) -> None:
    """Show the paths that are relevant to WORDS, with a score in [0, 1] and the terms that
    counted.
    """
    from evaluator.memory import GlobalIndex

    with GlobalIndex(_existing(database), relative_to=Path.cwd(), is_snapshot=True) as found:
        relevant = asyncio.run(found.get_relevant_context_for(request, limit))
    if as_json:
        common.print_json(
            [
                {
                    "path": each.path,
                    "score": each.score,
                    "why": [reason._asdict() for reason in each.why],
                }
                for each in relevant
            ]
        )
        return
    if not relevant:
        echo("No file in the index shares a word with this request.")
        return
    rows = [
        [
            each.path,
            f"{each.score:.2f}",
            ", ".join(f"{r.term} ({r.field})" for r in each.why[:_SHOWN_REASONS]),
        ]
        for each in relevant
    ]
    common.print_table(["path", "score", "why"], rows)


@memory.command(epilog="Example:  evaluator memory stats --json")
@db_option
@common.json_option
def stats(database: Path | None, as_json: bool) -> None:
    """Show the contents of the index: roots, languages, and skipped files with the reason."""
    from evaluator.memory import GlobalIndex

    place = _existing(database)
    with GlobalIndex(place, is_snapshot=True) as found:
        counts = asyncio.run(found.stats())
    if as_json:
        common.print_json({"database": str(place), **asdict(counts)})
        return
    echo(
        f"{place!s}: {amount(counts.files, 'file')}, {amount(counts.terms, 'term')}, "
        f"{amount(counts.size_bytes, 'byte')}"
    )
    rows = [["root", root, f"{files:,}"] for root, files in counts.roots.items()]
    rows += [
        ["language", name or "(by name only)", f"{files:,}"]
        for name, files in counts.languages.items()
    ]
    rows += [["skipped", reason, f"{files:,}"] for reason, files in counts.skipped.items()]
    common.print_table(["what", "which", "files"], rows)


def _default_database(folder: Path) -> Path:
    """The default path of the index of `folder`, in a subfolder that git ignores."""
    home = folder / DEFAULT.parent
    disk.make_folders(home, 0o700)
    common.write_new(home / ".gitignore", b"*\n")
    return folder / DEFAULT


def _existing(database: Path | None) -> Path:
    if database is not None:
        if not database.is_file():
            raise UsageError(
                f"{database}: no such index; create it with: evaluator memory index --db {database}"
            )
        return database
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / DEFAULT).is_file():
            return folder / DEFAULT
    raise UsageError(f"no {DEFAULT} here or above; create it with: evaluator memory index")
