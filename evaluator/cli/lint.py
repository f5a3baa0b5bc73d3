"""Commands that check and format the files of templates and run nothing: `lint`, `fmt`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from difflib import unified_diff
from functools import partial
from itertools import starmap
from math import prod
from pathlib import Path

import click

from evaluator.cli import common
from evaluator.cli.echo import echo
from evaluator.cli.trust import shown_profiles
from evaluator.errors import Diagnostic, TemplateError, UsageError
from evaluator.errors.messages import amount, visible
from evaluator.files.atomic import atomic_file
from evaluator.handler.config import HandlerConfig
from evaluator.handler.profiles import Profiles, turns_by_profile
from evaluator.interpreter.linting import fixed
from evaluator.interpreter.linting import lint as find_all
from evaluator.library import TemplateLibrary
from evaluator.library.bounds import CallCounter
from evaluator.library.files import Root, scan
from evaluator.nodes import Node, Task, Text, TopLevel
from evaluator.nodes.walk import operands, tasks, texts
from evaluator.xml.format import ROOTS, format_source
from evaluator.xml.source import Source, encoding_of, read_source

_LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


@click.command(epilog="Example:  evaluator lint templates/")
@click.argument("paths", nargs=-1, type=common.PATH)
@click.option("--strict", is_flag=True, help="Warnings fail too.")
@click.option("--model", metavar="MODEL", help="Also bound the cost with this model's price.")
@click.option("--fix", "fixes", is_flag=True, help="Correct misspelt names and old spellings.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "sarif", "github"]),
    default="text",
    show_default=True,
    help="sarif: for code scanning; github: annotations of GitHub Actions.",
)
@common.json_option
def lint(
    paths: tuple[Path, ...],
    strict: bool,
    model: str | None,
    fixes: bool,
    form: str,
    as_json: bool,
) -> None:
    """Check the templates in PATHS (default: templates/ here), offline and without a model call.

    Prints each error and warning with file, line and column, and for each template an upper bound
    on the model calls that it can make, with --model also on their cost. The bound assumes calls as
    long as the model's window allows, so the real cost is far lower; retries after a failed call
    are not counted. Lines with `expensive` name loops inside loops, and texts that take most of the
    model's window before an input is filled in. A comment <!-- lint: ignore CODE --> suppresses
    warnings on its line and the next one, and before the root element in the whole file. Exit code
    1 if there is an error (with --strict: a warning).
    """
    if as_json and form != "text":
        raise UsageError(f"--json and --format {form} are two formats; give one of them")
    paths = common.or_templates(paths, "check", "lint")
    profiles = shown_profiles()
    library = common.read_library(paths)
    diagnostics = find_all(library, profiles)
    if fixes and _fix(library, diagnostics, paths):
        library.reload()
        diagnostics = find_all(library, profiles)
    own = [t for t in library.templates.values() if any(_inside(t.file, p) for p in paths)]
    use = turns_by_profile(profiles, profiles.get("default") or HandlerConfig())
    counter = CallCounter(library, use=use)
    bounds = {t.name: counter.bound(t.node) for t in own}
    windows = partial(_window, profiles, model)
    expensive = {t.name: [*dict.fromkeys(expensive_parts(t.node, windows))] for t in own}
    errors = [d for d in diagnostics if d.severity == "error"]
    warnings = [d for d in diagnostics if d.severity == "warning"]
    if as_json:
        common.print_json(
            {
                "diagnostics": [diagnostic.to_dict() for diagnostic in diagnostics],
                "templates": {
                    name: {
                        "min_calls": b.min_calls,
                        "max_calls": b.max_calls,
                        "max_cost_usd": common.cost_bound(b, model),
                        "explanation": b.explanation,
                        "expensive": expensive[name],
                    }
                    for name, b in bounds.items()
                },
            }
        )
    elif form == "sarif":
        common.print_json(_sarif(diagnostics))
    elif form == "github":
        for diagnostic in diagnostics:
            echo(_annotation(diagnostic))
    else:
        for diagnostic in diagnostics:
            echo(library.format_diagnostic(diagnostic))
        for name, limit in sorted(bounds.items()):
            echo(f"{name}: {common.describe_bound(limit, model)}")
            for line in expensive[name]:
                echo(visible(f"  expensive: {line}"))
        counts = [(len(own), "template"), (len(errors), "error"), (len(warnings), "warning")]
        echo(", ".join(starmap(amount, counts)))
    if errors or (strict and warnings):
        raise click.exceptions.Exit(1)


_FULL = 0.8
"""A prompt that takes this share of the window leaves little room for inputs and an answer."""


def expensive_parts(node: TopLevel | Node, window: Callable[[Task], int | None]) -> Iterator[str]:
    """What makes a template expensive: loops in loops that ask a model, and long prompts.

    `window` returns how many tokens a request of a task may hold, None if that is unknown.
    """
    from evaluator.models.backend import estimate_tokens

    yield from _loops_in(node, ())
    for task in tasks(node):
        limit = window(task) if task.asks_model else None
        if limit is None:
            continue
        found = [text.value for text in texts(task) if isinstance(text, Text)]
        size = sum(map(estimate_tokens, found))
        if size >= _FULL * limit:
            yield (
                f"{_where(task)}: its text has about {size:,} of the {limit:,} tokens of the "
                "model's window; shorten it, or name a model with a larger window"
            )


def _loops_in(node: TopLevel | Node, loops: tuple[tuple[str, int | None], ...]) -> Iterator[str]:
    if isinstance(node, Task) and node.asks_model and len(loops) > 1:
        counts = [most for _, most in loops if most is not None]
        shown = " × ".join(
            f"{name} ({'as often as it has items' if most is None else f'{most:,} times'})"
            for name, most in loops
        )
        total = ""
        if len(counts) == len(loops):
            total = f": at most {prod(counts):,} times"
        yield f"loops that multiply: {shown}{total}"
    for operand in operands(node, {}):
        most = operand.repeats.most
        inner = loops
        if isinstance(node, Task) and (most is None or most > 1):
            inner = (*loops, (_where(node), most))
        yield from _loops_in(operand.node, inner)


def _where(task: Task) -> str:
    """A task as messages name it: its type and name, and its line."""
    name = f"{task.type} {task.name or ''}".rstrip()
    return f"{name}, line {task.span.line}"


def _window(profiles: Profiles, model: str | None, task: Task) -> int | None:
    """The window of the model that answers `task`, as far as it is known without a run."""
    from evaluator.models.prices import context_window

    config = profiles.get(task.profile or "default") or HandlerConfig()
    if config.context_window is not None:
        return config.context_window
    name = model or config.model
    if model is None and task.model is not None:
        name = task.model.value
    return None if name is None else context_window(name)


def _inside(file: str | None, path: Path) -> bool:
    return file is not None and Path(file).resolve().is_relative_to(path.resolve())


def _fix(
    library: TemplateLibrary, diagnostics: Sequence[Diagnostic], paths: Sequence[Path]
) -> bool:
    """Writes the safe fixes into the files below `paths`; returns whether there were any."""
    by_file: dict[str, list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        file = diagnostic.span.file
        if diagnostic.fix is not None and any(_inside(file, path) for path in paths):
            by_file.setdefault(file or "", []).append(diagnostic)
    is_changed = False
    for file, found in sorted(by_file.items()):
        path = Path(file)
        data = path.read_bytes()
        source = read_source(data, file)
        if source.text != library.source_text(file):
            continue  # it has changed since it was checked
        text, done = fixed(source.text, found)
        for diagnostic in done:
            written, meant = diagnostic.fix or ("", "")
            echo(
                f"{diagnostic.span}: fixed: {written.lstrip('<')} is now {meant.lstrip('<')}",
                err=True,
            )
        if done:
            _write(path, data, text=text)
            is_changed = True
    return is_changed


def _annotation(diagnostic: Diagnostic) -> str:
    """A workflow command of GitHub Actions."""
    span = diagnostic.span
    properties = {
        "file": span.file or "",
        "line": str(span.line),
        "col": str(span.column),
        "title": diagnostic.code,
    }
    written = ",".join(
        f"{key}={_escaped(value).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in properties.items()
    )
    return f"::{_LEVELS[diagnostic.severity]} {written}::{_escaped(_message(diagnostic))}"


def _message(diagnostic: Diagnostic) -> str:
    return "; ".join(filter(None, (diagnostic.message, diagnostic.hint)))


def _escaped(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _sarif(diagnostics: Sequence[Diagnostic]) -> dict[str, object]:
    """The findings in SARIF 2.1.0."""
    results = [
        {
            "ruleId": d.code,
            "level": d.severity,
            "message": {"text": _message(d)},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": Path(d.span.file or "").as_posix()},
                        "region": {"startLine": d.span.line, "startColumn": d.span.column},
                    }
                }
            ],
        }
        for d in diagnostics
    ]
    rules = [{"id": code} for code in sorted({d.code for d in diagnostics})]
    driver = {"name": "evaluator lint", "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }


@click.command(epilog="Example:  evaluator fmt --check templates/")
@click.argument("paths", nargs=-1, type=common.PATH)
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if a file would change.")
@click.option("--diff", is_flag=True, help="Write nothing; print the changes.")
def fmt(paths: tuple[Path, ...], check: bool, diff: bool) -> None:
    """Format the templates in PATHS (default: templates/ here) without changing what they mean.

    Only blank space between elements and inside tags changes: texts, comments and the spelling of
    placeholders stay. A file that is not well-formed is reported and left as it is; other XML files
    of a folder are left alone. Exit code 1 if a file is not well-formed (with --check: or not
    formatted).
    """
    changed = 0
    unchanged = 0
    failed = False
    for name in _files(common.or_templates(paths, "format", "fmt")):
        path = Path(name)
        data = path.read_bytes()
        try:
            source = read_source(data, name)
        except TemplateError as error:
            echo(str(error), err=True)
            failed = True
            continue
        if source.root.tag not in ROOTS:
            continue
        text = format_source(source)
        if text == source.text:
            unchanged += 1
            continue
        changed += 1
        if diff:
            _print_diff(source, text)
        if check:
            echo(f"{name} is not formatted", err=diff)
        elif not diff:
            _write(path, data, text=text)
            echo(f"{name} is formatted now")
    word = "would change" if check or diff else "changed"
    echo(f"{changed} {word}, {unchanged} unchanged", err=diff)
    if failed or (check and changed):
        raise click.exceptions.Exit(1)


def _files(paths: Sequence[Path]) -> list[str]:
    """The XML files below `paths`, each once."""
    names: dict[str, None] = {}
    for root in map(Root.of, paths):
        files, refused = scan(root)
        for diagnostic in refused:
            echo(str(diagnostic), err=True)
        names.update(dict.fromkeys(file.shown for file in files))
    return list(names)


def _print_diff(source: Source, text: str) -> None:
    lines = unified_diff(
        source.text.splitlines(keepends=True),
        text.splitlines(keepends=True),
        source.file or "",
        source.file or "",
    )
    for line in lines:
        common.echo_text(line.removesuffix("\n"))


def _write(path: Path, data: bytes, text: str) -> None:
    """Replaces the content `data` of a file by `text`, in its encoding, with its line ends and its
    mode, whatever the umask is.
    """
    encoding, skip = encoding_of(data, str(path))
    if "\r\n" in data[skip:].decode(encoding):
        text = text.replace("\n", "\r\n")
    target = path.resolve()
    with atomic_file(target) as file:
        os.fchmod(file.fileno(), target.stat().st_mode & 0o777)
        file.write(data[:skip] + text.encode(encoding))
