"""`evaluator compile`: compiles words to a task in XML, shows it, and runs it only on request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evaluator.cli import common
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import EvaluatorOptions, evaluator_options
from evaluator.cli.run import print_outcome
from evaluator.errors import Diagnostic, UsageError
from evaluator.errors.results import TaskError

if TYPE_CHECKING:
    from evaluator.interpreter.compile import CompiledTask


@click.command(
    epilog='Examples:\n\n\b\n  evaluator compile "shorten a letter, then put it into Italian" '
    "--out letter.xml\n"
    '  evaluator compile "suggest titles for an article" --run --input article=@draft.md',
)
@click.argument("words")
@click.option(
    "--out",
    type=common.FILE,
    help="Write the XML into this new file.",
)
@click.option("--allow-scripts", is_flag=True, help="The task may contain scripts and commands.")
@click.option(
    "--allow-tool",
    "tools",
    multiple=True,
    metavar="NAME",
    help="A tool that the task may name. May be repeated.",
)
@click.option(
    "--run", "run_it", is_flag=True, help="Run the task after it has been shown and confirmed."
)
@click.option("--yes", is_flag=True, help="With --run: do not ask.")
@common.input_option
@evaluator_options("--library", "--handler", "--model", "--tasks", "--root", "--trust")
@common.json_option
def compile(
    words: str,
    out: Path | None,
    allow_scripts: bool,
    tools: tuple[str, ...],
    run_it: bool,
    yes: bool,
    inputs: tuple[str, ...],
    options: EvaluatorOptions,
    as_json: bool,
) -> None:
    """Have a model write the task that WORDS describe as XML, and check it.

    The XML goes to standard output; repairs, and the number of model calls of a run, go to standard
    error. With --run the XML goes to standard error, and the result to standard output. The exit
    code is 1 if the answer cannot be used as a task, or the run fails.
    """
    from evaluator.interpreter.sync import run_sync

    _check_usage(out, run_it, yes=yes, inputs=inputs)
    evaluator = options.make_evaluator()
    model = options.model
    compiled = run_sync(evaluator.compile(words, allow_scripts=allow_scripts, allow_tools=tools))
    common.refuse_simulated(
        evaluator.library, "compile_task", model=compiled.model, what="write a task from words"
    )
    _show(compiled, model, to_error=run_it or as_json)
    if compiled.xml is not None and out is not None:
        if not common.write_new(out, compiled.xml.encode()):
            raise UsageError(_exists(out))
        echo(f"written: {out}", err=True)
    outcome = None
    if run_it and compiled.node is not None:
        values = common.read_inputs(inputs, compiled.node)
        if yes or click.confirm("run it?", default=False, err=True):
            outcome = evaluator.evaluate_sync(compiled.node, values)
        else:
            echo("not run", err=True)
    if as_json:
        common.print_json(
            {**_to_dict(compiled, model), "result": None if outcome is None else outcome.to_dict()}
        )
    elif compiled.xml is not None and not run_it:
        common.echo_text(compiled.xml.rstrip("\n"))
    if outcome is not None and not as_json:
        print_outcome(outcome, options.tasks_dir, shown=False)
    ended = outcome if compiled.ok else compiled.failure
    if not compiled.ok or isinstance(ended, TaskError):
        raise click.exceptions.Exit(1 if ended is None else common.exit_code_of(ended))


def _check_usage(out: Path | None, run_it: bool, yes: bool, inputs: tuple[str, ...]) -> None:
    """Refuses wrong options before a call costs money."""
    if (yes or inputs) and not run_it:
        raise UsageError("--yes and --input need --run")
    if run_it and not yes and not common.stdin_is_terminal():
        raise UsageError("--run asks before it runs the task, and there is no terminal; add --yes")
    if out is not None and out.exists():
        raise UsageError(_exists(out))


def _show(compiled: CompiledTask, model: str | None, *, to_error: bool) -> None:
    """Prints the findings and the bound; with `to_error` the XML too."""
    from evaluator.handler.backends import is_simulated_model

    for finding in (*compiled.warnings, *compiled.errors):
        where = f"answer, line {finding.span.line}"
        echo(f"{where}: {finding.severity}: {finding.message} [{finding.code}]", err=True)
        if finding.hint:
            echo(f"  hint: {finding.hint}", err=True)
    if is_simulated_model(compiled.model or ""):
        echo("note: the answer is simulated", err=True)
    if compiled.failure is not None:
        echo(f"error: {compiled.failure}", err=True)
    if compiled.xml is None and compiled.answer:
        echo(f"the model's answer:\n{compiled.answer}", err=True)
    if compiled.xml is not None and to_error:
        echo(compiled.xml.rstrip("\n"), err=True)
    if compiled.bound is not None:
        echo(f"a run makes {common.describe_bound(compiled.bound, model)}", err=True)


def _exists(out: Path) -> str:
    return f"--out {out}: this file exists already; name another one"


def _to_dict(compiled: CompiledTask, model: str | None) -> dict[str, Any]:
    limit = compiled.bound
    return {
        "xml": compiled.xml,
        "warnings": [_finding_to_dict(one) for one in compiled.warnings],
        "errors": [_finding_to_dict(one) for one in compiled.errors],
        "failure": None if compiled.failure is None else compiled.failure.to_dict(),
        "min_calls": None if limit is None else limit.min_calls,
        "max_calls": None if limit is None else limit.max_calls,
        "max_cost_usd": None if limit is None else common.cost_bound(limit, model),
        "usage": compiled.usage.to_dict(),
        "model": compiled.model,
        "task_id": compiled.task_id,
    }


def _finding_to_dict(finding: Diagnostic) -> dict[str, Any]:
    return {
        "code": finding.code,
        "message": finding.message,
        "line": finding.span.line,
        "hint": finding.hint,
    }
