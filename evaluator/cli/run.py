"""`evaluator run`: one evaluation, its text streamed to the terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from evaluator.cli import common
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import EvaluatorOptions, evaluator_options
from evaluator.errors import EvaluatorError, MachineError, TaskNotBegun, UsageError
from evaluator.errors.messages import visible
from evaluator.errors.results import CONDITION_MET, Outcome, TaskError, TaskResult
from evaluator.interpreter.requests import node_in

_MAX_LISTED = 1_000
"""Newest tasks that are searched for the interrupted one: its subtasks and those of other processes
are newer.
"""


@click.command(
    epilog="Examples:\n\n\b\n  evaluator run --template summarise --input document=@notes.md\n"
    '  evaluator run "translate this into French" --input text="Good morning" --input '
    "language=French"
)
@click.argument("request", required=False)
@click.option(
    "--template", metavar="NAME", help="Evaluate this template instead of matching a request."
)
@common.input_option
@evaluator_options(
    "--library",
    "--handler",
    "--model",
    "--model-role",
    "--tasks",
    "--root",
    "--memory",
    "--ask-in",
    "--sync",
    "--reparse",
    "--rerank",
    "--sandbox",
    "--trace",
    "--trust",
)
@click.option(
    "--strict", is_flag=True, help="Exit code 1 also if a task ends before its condition holds."
)
@common.json_option
def run(
    request: str | None,
    template: str | None,
    inputs: tuple[str, ...],
    options: EvaluatorOptions,
    strict: bool,
    as_json: bool,
) -> None:
    """Evaluate a template, a REQUEST in words that is matched to one, or a task as XML.

    The REQUEST is read from standard input for -, and from a file for @FILE.

    The result goes to standard output, everything else to standard error. Exit code 1 if the task
    fails.
    """
    if (request is None) == (template is None):
        raise UsageError("give either a REQUEST in words or --template NAME")
    if request is not None and (request == "-" or request.startswith("@")):
        request = common.read_text(request.removeprefix("@"))
    if request is not None and not request.strip():
        raise UsageError("the REQUEST is empty: describe the task, or name a --template")
    name = template or request or ""
    evaluator = options.make_evaluator(template=name)
    library = evaluator.library
    if template is not None or name in library:
        node = library.get(name).node
    else:
        node = node_in(name)
    streaming = common.stdout_is_terminal() and not as_json
    values = common.read_inputs(inputs, node)
    try:
        outcome = evaluator.evaluate_sync(
            name,
            values,
            on_text=write_piece if streaming else None,
            on_event=None if as_json else announce,
        )
    except KeyboardInterrupt:
        number = _interrupted_task(options.tasks_dir)
        if number is not None and not as_json:
            print_resume_command(number, options)
        raise
    if streaming:
        echo()
    if as_json:
        common.print_json(outcome.to_dict())
    else:
        print_outcome(outcome, options.tasks_dir, shown=streaming)
        if (
            outcome.task_id is not None
            and isinstance(outcome, TaskError)
            and isinstance(outcome.cause, MachineError)
        ):
            print_resume_command(outcome.task_id, options)
    if isinstance(outcome, TaskError):
        raise click.exceptions.Exit(common.exit_code_of(outcome))
    if strict and outcome.notes.get("termination_reason", CONDITION_MET) != CONDITION_MET:
        raise click.exceptions.Exit(1)


def _interrupted_task(tasks_dir: Path) -> int | None:
    """The task that this process just interrupted; None if none had begun."""
    from evaluator.record.store import TaskStore
    from evaluator.store.owners import current_owner

    try:
        for task in TaskStore(tasks_dir).list(limit=_MAX_LISTED):
            header = task.header
            if header is not None and header.parent is None and header.owner == current_owner():
                return task.id
    except EvaluatorError:
        pass
    return None


def print_resume_command(number: int, options: EvaluatorOptions) -> None:
    """Prints the command that resumes the task `number`, which was run with `options`, on standard
    error; nothing if its file has no header, as when the disk is full: then nothing had begun.
    """
    from evaluator.record.store import TaskStore

    try:
        if TaskStore(options.tasks_dir).read(number).header is None:
            return
    except TaskNotBegun:
        return
    except EvaluatorError:
        pass  # the disk fails: the file is there and can be read later
    import shlex

    words = ["evaluator tasks resume", str(number)]
    if options.tasks_dir != Path("tasks"):
        words.append(f"--tasks {shlex.quote(str(options.tasks_dir))}")
    words += [f"--library {shlex.quote(str(folder))}" for folder in options.folders]
    words += [f"--root {shlex.quote(str(root))}" for root in options.roots]
    echo(f"resume with: {' '.join(words)}", err=True)


def write_piece(piece: str) -> None:
    """Writes a piece of a streamed answer to the terminal."""
    sys.stdout.write(visible(piece))
    sys.stdout.flush()


def announce(path: str, what: str) -> None:
    """Shows at the terminal that a step starts."""
    if path and common.stderr_is_terminal():
        echo(f"· {path} {what}", err=True, dim=True)


def output_of(outcome: TaskResult) -> str:
    """The text for standard output: the parsed value as JSON if a format was declared, else the
    content.
    """
    value = outcome.parsed_data
    if value is None or (isinstance(value, str) and outcome.notes.get("output") != "json"):
        return outcome.content
    return json.dumps(value, ensure_ascii=False)


def print_outcome(outcome: Outcome, tasks_dir: Path, *, shown: bool) -> None:
    """Prints an outcome, its warnings and the place of its task file; `shown`: the text was
    streamed already.
    """
    warnings = outcome.notes.get("warnings", ())
    for warning in warnings:
        echo(f"warning: {warning}", err=True)
    matched = outcome.notes.get("matched")
    if matched is not None:
        echo(f"matched: {matched['template']} ({matched['score']:.2f})", err=True)
    from evaluator.handler.backends import is_simulated_model

    models = outcome.notes.get("models", ())
    is_known = any(str(warning).startswith("the answer is simulated") for warning in warnings)
    if not is_known and any(map(is_simulated_model, models)):
        which = "the answer is" if len(models) == 1 else "answers are"
        echo(f"note: {which} simulated", err=True)
    if isinstance(outcome, TaskResult):
        if not shown or outcome.notes.get("steps") or outcome.notes.get("processed_inputs"):
            common.echo_text(output_of(outcome))
    else:
        if outcome.violations:
            # The findings repeat the message, with positions.
            echo(f"error: {outcome.type}({outcome.reason})", err=True)
            for violation in outcome.violations:
                echo(str(violation), err=True)
        else:
            echo(f"error: {outcome}", err=True)
        if outcome.details.get("reparse"):
            echo(f"reparse: {outcome.details['reparse']!s}", err=True)
        if outcome.content and not shown:
            # The content of an error in XML is that XML, which nobody answered.
            is_xml = outcome.reason == "xml_validation_failure"
            label = "the XML" if is_xml else "partial answer"
            echo(f"{label}:\n{outcome.content}", err=True)
    if outcome.task_id is not None:
        # A file that could not be closed stays in active/; one that could not be begun is removed.
        name = f"TASK-{outcome.task_id}.md"
        for path in (tasks_dir / "done" / name, tasks_dir / "active" / name):
            if path.exists():
                echo(f"task file: {path}", err=True)
                break
