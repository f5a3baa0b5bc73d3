"""`evaluator demo`: runs the shipped templates on a small set of real inputs, offline, with the
simulated model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from evaluator import clock
from evaluator.cli.common import json_option, print_json, print_table
from evaluator.cli.echo import echo
from evaluator.errors import RecordError
from evaluator.errors.messages import duration_text
from evaluator.errors.results import Outcome, TaskError
from evaluator.files.locations import shipped
from evaluator.lazy_dataclass import dataclass
from evaluator.library import TemplateLibrary


@dataclass(frozen=True, slots=True)
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
    type=click.Path(path_type=Path),
    help="Where the task files are written.",
)
@json_option
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
        print_json(rows)
    else:
        print_table(
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
            got, shown = ("repaired", "; ".join(warnings))
        else:
            got, shown = ("ok", outcome.content)
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
