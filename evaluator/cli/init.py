"""`evaluator init`, `new`, `examples` and `demo`: the first steps.

Files are copied from what ships, never over an existing file. `demo` runs the shipped templates on
a small set of real inputs, offline, with the simulated model.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from evaluator import clock, disk
from evaluator.cli import common
from evaluator.cli.echo import echo
from evaluator.errors import RecordError, UsageError
from evaluator.errors.messages import did_you_mean, duration_text
from evaluator.errors.results import Outcome, TaskError
from evaluator.files.locations import schemas_dir, shipped
from evaluator.lazy_dataclass import frozen
from evaluator.library import TemplateLibrary
from evaluator.xml.format import format_source
from evaluator.xml.source import read_source

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
        for name in ("task.xsd", "handler.xsd", "catalog.xml")
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
    # The length of the name and the schema decide where tags are broken.
    return format_source(read_source(re.sub(r"\bNAME\b", name, text))).encode()


def write_files(folder: Path, files: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
    """Writes each file that does not exist yet. Returns: the paths that were written, and those
    that were there.

    Raises: RecordError, if one cannot be written; it does not exist then.
    """
    written: list[str] = []
    kept: list[str] = []
    for name, data in sorted(files.items()):
        path = folder / name
        disk.make_folders(path.parent)
        if common.write_new(path, data):
            written.append(name)
        else:
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


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@click.command(
    epilog="Examples:\n\n\b\n  evaluator init\n  evaluator init orders --example extract"
)
@click.argument("folder", metavar="[DIR]", default=".", type=common.FOLDER)
@click.option(
    "--example",
    type=click.Choice(PROJECTS),
    default="classify",
    show_default=True,
    help="What the project does at first.",
)
def init(folder: Path, example: str) -> None:
    """Begin a project in DIR (default: here) that lints, tests and runs at once, offline.

    It has a template, a handler profile, rows, a batch (evaluator.toml), a test, a CI job, and
    settings with which VS Code and JetBrains editors complete and check the XML. Existing files are
    never changed.
    """
    from evaluator.batch.definition import DEFAULT_FILE

    if (folder / DEFAULT_FILE).exists():
        raise UsageError(
            f"{folder / DEFAULT_FILE} exists, so there is a project already; name another folder"
        )
    _print_written(folder, *write_files(folder, project_files(example)))
    if folder == Path("."):
        enter = ""
    else:
        enter = f"cd {shlex.quote(str(folder))} && "
    echo(f"next: {enter}evaluator lint templates && evaluator batch", err=True)


@click.command(epilog="Example:  evaluator new translate_letter --type sequential")
@click.argument("name")
@click.option(
    "--type",
    "kind",
    type=click.Choice(template_types()),
    default="atomic",
    show_default=True,
    help="The operator, or a function that other templates call.",
)
@click.option(
    "--library",
    "folder",
    default="templates",
    show_default=True,
    metavar="FOLDER",
    type=common.FOLDER,
    help="Where the template is written.",
)
def new(name: str, kind: str, folder: Path) -> None:
    """Begin a template NAME in templates/NAME.xml that has no errors and runs; edit it from
    there.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a template name: use letters, digits and _, and begin with a "
            "letter or _"
        )
    _, kept = write_files(folder, {f"{name}.xml": new_template(name, kind, folder=folder)})
    path = folder / f"{name}.xml"
    if kept:
        raise UsageError(f"{path} exists; choose another name, or remove the file")
    echo(str(path))
    echo(f"next: evaluator lint {shlex.quote(str(path))}", err=True)


@click.group(epilog="Examples:\n\n\b\n  evaluator examples list\n  evaluator examples copy data")
def examples() -> None:
    """List and copy the examples that ship with the package."""


@examples.command("list")
@common.json_option
def list_examples(as_json: bool) -> None:
    """List the examples."""
    names = (*PROJECTS, *DATA, *SUITES)
    rows = [
        {
            "name": name,
            "title": title_of(name),
            "project": name in PROJECTS,
            "suite": name in SUITES,
        }
        for name in names
    ]
    common.print_json_or_table(
        as_json,
        rows,
        head=["name", "shows"],
        rows=[[str(row["name"]), str(row["title"])] for row in rows],
    )


@examples.command("copy")
@click.argument("name")
@click.argument("folder", metavar="[DIR]", required=False, type=common.FOLDER)
def copy(name: str, folder: Path | None) -> None:
    """Copy the example NAME to DIR (default: examples/NAME). Existing files are never changed."""
    from evaluator.batch.definition import DEFAULT_FILE

    target = folder or Path("examples", name)
    _print_written(target, *write_files(target, example_files(name)))
    if (target / DEFAULT_FILE).exists():
        echo(f"next: cd {shlex.quote(str(target))} && evaluator batch", err=True)


def _print_written(folder: Path, written: list[str], kept: list[str]) -> None:
    for name in written:
        echo(str(folder / name))
    for name in kept:
        echo(f"kept: {folder / name} exists and was not changed", err=True)


@frozen
class DemoCase:
    """One evaluation of the demo. `expect` is its outcome if all is well: ok, failed, or
    repaired. `remark` says what it shows besides its template's operator.
    """

    request: str
    inputs: Mapping[str, Any]
    remark: str = ""
    expect: str = "ok"
    profile: str | None = None
    target: str | None = None


@click.command(epilog="Example:  evaluator demo --tasks demo-tasks")
@click.option(
    "--tasks",
    "tasks_dir",
    default="demo-tasks",
    show_default=True,
    type=common.PATH,
    help="Where the task files are written.",
)
@common.json_option
def demo(tasks_dir: Path, as_json: bool) -> None:
    """Run the shipped templates of every operator offline, with one that fails and one whose output
    is repaired.

    Answers are simulated: they are the templates' own examples. Exit code 1 if an outcome is not
    the expected one.
    """
    from evaluator.handler.profiles import load_profiles
    from evaluator.interpreter.evaluator import Evaluator

    started = clock.monotonic()
    data = shipped("examples") / "data"
    library = TemplateLibrary.load(shipped("templates"))
    profiles = load_profiles(shipped("handlers"))
    offline = profiles["offline"]
    # The programs are the examples of shipped templates, so they need no sandbox.
    evaluator = Evaluator(
        library, offline, profiles=profiles, tasks_dir=tasks_dir, roots=[data], sandbox="none"
    )
    if not as_json:
        echo(
            "Answers are simulated: no key, no network. Matching is real, so are the task files.\n"
        )
        _show_matching(library)
    rows: list[dict[str, Any]] = []
    for case in _cases(data, library):
        begun = clock.monotonic()
        outcome = evaluator.evaluate_sync(
            case.request, case.inputs, handler=case.profile, target=case.target
        )
        if isinstance(outcome, TaskError) and isinstance(outcome.cause, RecordError):
            raise outcome.cause
        seconds = clock.monotonic() - begun
        rows.append(_row(case, outcome, seconds=seconds, tasks_dir=tasks_dir, library=library))
    evaluator.close()
    if as_json:
        common.print_json(rows)
    else:
        common.print_table(
            ["", "operator", "template", "outcome", "calls", "ms", "task file", "result"],
            [
                [
                    "✓" if r["as_expected"] else "✗",
                    r["operator"],
                    r["template"],
                    r["outcome"],
                    str(r["calls"]),
                    str(r["ms"]),
                    r["task_file"],
                    r["result"],
                ]
                for r in rows
            ],
        )
        as_expected = sum(r["as_expected"] for r in rows)
        echo(
            f"\n{as_expected} of {len(rows)} as expected, in "
            f"{duration_text(clock.monotonic() - started)}. "
            f"Read one: {rows[0]['task_file']}, or: evaluator tasks show {rows[0]['task_id']} "
            f"--tasks {tasks_dir}"
        )
        _show_batch(library, tasks_dir, data=data)
    if not all(r["as_expected"] for r in rows):
        raise click.exceptions.Exit(1)


def _show_batch(library: TemplateLibrary, tasks_dir: Path, data: Path) -> None:
    """All questions in `data` in one batch, answered by a model that is simulated to be wrong one
    time in five.
    """
    from evaluator.batch.run import new_folder, run_batch_sync
    from evaluator.handler.config import HandlerConfig
    from evaluator.interpreter.evaluator import Evaluator

    rows = [
        {**json.loads(line), "difficulty": size}
        for size in ("easy", "medium", "hard")
        for line in (data / f"{size}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    config = HandlerConfig(name="demo", backend="simulated", simulated={"wrong": 0.2})
    with Evaluator(library, config, profiles={}, tasks_dir=None) as evaluator:
        result = run_batch_sync(
            "answer_question",
            rows,
            evaluator=evaluator,
            inputs={"question": "question"},
            scorers=[right],
            group_by="difficulty",
            name="demo",
            output=tasks_dir / new_folder("demo"),
        )
    echo(
        f"\na batch of {len(rows)} questions, with a simulated model that is wrong one time in "
        "five:"
    )
    for size, part in result.summary.groups[0].by.items():
        counts = part.counts
        share = part.accuracy.estimate
        if share.mean is None:
            known = ""
        else:
            known = f", {share.mean:.0%} (95 %: {share.low:.0%} to {share.high:.0%})"
        echo(
            f"  {size}: {counts.passed} passed, {counts.failed} failed, {counts.error} error{known}"
        )
    echo(f"Look at it: evaluator report {result.folder}")


def right(output: str, target: Any) -> bool:
    """Whether an answer equals the target, which is a text, a number or JSON."""
    from evaluator.output import parse_output

    if isinstance(target, str):
        return output == target
    return parse_output(output, "json").value == target


def _show_matching(library: TemplateLibrary) -> None:
    for request in (
        "is this review positive or negative?",
        "make this text shorter",
        "reboot the mail server",
    ):
        best = library.match(request, limit=3)
        echo(f"match {request!r}: " + ", ".join(f"{m.template.name} {m.score:.2f}" for m in best))
    echo()


def _cases(data: Path, library: TemplateLibrary) -> Iterator[DemoCase]:
    documents = [
        path.read_text(encoding="utf-8") for path in sorted((data / "documents").glob("*.md"))
    ]
    questions = [
        json.loads(line) for line in (data / "easy.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    yield DemoCase("summarise", {"document": documents[0]})
    yield DemoCase("classify this support message", _example(library, "classify"))
    yield DemoCase("answer_from_files", _example(library, "answer_from_files"), remark="from files")
    for row in questions[:3]:
        yield DemoCase("answer_question", {"question": row["question"]}, target=row["target"])
    yield DemoCase("title_of", {"doc": documents[1]})
    yield DemoCase("report", _example(library, "report"))
    yield DemoCase("route_ticket", _example(library, "route_ticket"), remark="cond")
    yield DemoCase("map_reduce_documents", {"documents": documents, "focus": "water"})
    yield DemoCase("summarise_each", _example(library, "summarise_each"))
    yield DemoCase("count_text", {"stdin": documents[2]})
    yield DemoCase("write_run_fix", _example(library, "write_run_fix"))
    yield DemoCase("review_code", _example(library, "review_code"))
    broken = (
        "Here you go:\n```json\n{'sentiment': 'positive', 'score': 0.9, 'evidence': ['works "
        "well'],}\n```"
    )
    sentiment = _example(library, "sentiment")
    yield DemoCase("sentiment", sentiment, remark="repaired", expect="repaired", target=broken)
    unusable = "I would rather not say."
    yield DemoCase("sentiment", sentiment, remark="fails", expect="failed", target=unusable)


def _example(library: TemplateLibrary, name: str) -> dict[str, Any]:
    """The inputs of a template's first example, read as their declared types."""
    from evaluator.language.scopes import read_typed

    node: Any = library.get(name).node
    types = {declared.name: declared.type for declared in node.inputs}
    return {
        key: text if types[key] in ("any", "string") else read_typed(text, types[key])
        for key, text in node.examples[0].inputs.items()
    }


def _row(
    case: DemoCase,
    outcome: Outcome,
    *,
    seconds: float,
    tasks_dir: Path,
    library: TemplateLibrary,
) -> dict[str, Any]:
    warnings = [str(warning) for warning in outcome.notes.get("warnings", ())]
    if isinstance(outcome, TaskError):
        got = "failed"
        shown = f"{outcome.type}: {outcome.message}"
    else:
        repaired = case.expect == "repaired" and bool(warnings)
        if repaired:
            got = "repaired"
            shown = "; ".join(warnings)
        else:
            got = "ok"
            shown = outcome.content
    template = outcome.notes.get("template") or case.request
    operator = library.get(template).type
    return {
        "operator": ", ".join(filter(None, (operator, case.remark))),
        "template": template,
        "outcome": got,
        "expected": case.expect,
        "as_expected": got == case.expect,
        "calls": outcome.usage.turns,
        "ms": round(seconds * 1000),
        "task_id": outcome.task_id,
        "task_file": f"{tasks_dir}/done/TASK-{outcome.task_id}.md",
        "result": " ".join(shown.split())[:300],
    }
