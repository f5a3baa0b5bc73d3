"""`evaluator tasks list-active`, `read`, `create`, `update`, `close`: tasks that are kept by hand."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.cli.common import echo_text, json_option, print_json, print_table, read_text
from evaluator.cli.tasks.common import dir_option
from evaluator.errors import UsageError
from evaluator.record.named import NamedTask, NamedTasks
from evaluator.record.render import visible

_TEMPLATE = """\
# {title}

What is to be reached, and how one sees that it has been.

## [PLANNER] Preparation

- [ ] Say what belongs to it and what does not
- [ ] Write the steps of the section below

## [WORKER] Implementation

- [ ] First step

## [PLANNER] Acceptance

- [ ] Try what was made
"""


@click.command("list-active", epilog="Example:  evaluator tasks list-active --role planner")
@click.option("--role", metavar="ROLE", help="Show the next step that is this role's or everybody's.")
@dir_option
@json_option
def list_active(role: str | None, tasks_dir: Path, as_json: bool) -> None:
    """List the tasks kept by hand that are not closed, with the step to go on with."""
    found = NamedTasks(tasks_dir).list_active()
    if as_json:
        print_json([task.to_dict(role) for task in found])
        return
    rows = [[task.name, _progress(task), _next(task, role)] for task in found]
    print_table(["name", "steps", "next"], rows)


@click.command("read", epilog="Example:  evaluator tasks read 2026-03-02-move-the-archive")
@click.argument("name")
@click.option("--role", metavar="ROLE", help="Say where this role goes on.")
@dir_option
@json_option
def read(name: str, role: str | None, tasks_dir: Path, as_json: bool) -> None:
    """Print the task NAME, active or closed; on standard error its version and where to go on.

    NAME may lack its date where one active task alone has it.
    """
    task = NamedTasks(tasks_dir).read(name)
    if as_json:
        print_json({**task.to_dict(role), "content": task.content})
        return
    echo_text(task.content.removesuffix("\n"))
    _say_next(task, role)


@click.command("create", epilog="Example:  evaluator tasks create move-the-archive --content @plan.md")
@click.argument("name")
@click.option("--content", metavar="@FILE", help="A file with the text, - for standard input. Default: a few headings "
              "and steps to start from.")  # fmt: skip
@dir_option
@json_option
def create(name: str, content: str | None, tasks_dir: Path, as_json: bool) -> None:
    """Create the task NAME: YYYY-MM-DD-name, or the name alone, which gets today's date (UTC)."""
    text = _TEMPLATE.format(title=_title(name)) if content is None else _content(content)
    _report(NamedTasks(tasks_dir).create(name, text), None, as_json)


@click.command(
    "update", epilog="Example:  evaluator tasks update move-the-archive --content @plan.md --version 0a1b2c3d4e5f6071"
)
@click.argument("name")
@click.option("--content", metavar="@FILE", required=True, help="A file with the whole text, - for standard input.")
@click.option("--role", metavar="ROLE", help="Act in this role: the sections of others stay as they are.")
@click.option("--version", metavar="VERSION",
              help="Only if the task is still the one that `read` showed; needed with --role.")  # fmt: skip
@dir_option
@json_option
def update(name: str, content: str, role: str | None, version: str | None, tasks_dir: Path, as_json: bool) -> None:
    """Replace the text of the active task NAME."""
    if role is not None and version is None:
        raise UsageError(
            f"--role needs --version, which is what the change is based on; see: evaluator tasks read {name}"
        )
    _report(NamedTasks(tasks_dir).update(name, _content(content), role=role, if_unchanged=version), role, as_json)


@click.command("close", epilog="Example:  evaluator tasks close move-the-archive")
@click.argument("name")
@click.option("--role", metavar="ROLE", help="Act in this role: --force leaves no open steps of others behind.")
@click.option("--force", is_flag=True, help="Close it although steps are open.")
@dir_option
@json_option
def close(name: str, role: str | None, force: bool, tasks_dir: Path, as_json: bool) -> None:
    """Move the task NAME from active/ to done/. Refused while steps are open, and the first is named."""
    _report(NamedTasks(tasks_dir).close(name, role=role, force=force), role, as_json)


COMMANDS = (list_active, read, create, update, close)


def _content(option: str) -> str:
    """The text behind `@FILE`, `@-` or `-`."""
    path = option if option == "-" else option.removeprefix("@")
    if path == "" or (path == option and path != "-"):
        raise UsageError(f"--content {option[:200]!r}: expected @FILE, or - for standard input")
    try:
        return read_text(path)
    except UsageError as error:
        raise UsageError(f"--content {error}") from error


def _title(name: str) -> str:
    words = name.removesuffix(".md").lstrip("0123456789-").replace("-", " ")
    return words.capitalize() or name


def _report(task: NamedTask, role: str | None, as_json: bool) -> None:
    if as_json:
        print_json(task.to_dict(role))
        return
    click.echo(str(task.path))
    if task.state == "active":
        _say_next(task, role)


def _say_next(task: NamedTask, role: str | None) -> None:
    click.echo(f"version: {task.version}", err=True)
    click.echo(f"steps: {_progress(task)}", err=True)
    click.echo(f"next: {visible(_next(task, role), one_line=True)}", err=True)


def _progress(task: NamedTask) -> str:
    return "-" if task.error is not None else f"{task.done}/{task.total}"


def _next(task: NamedTask, role: str | None) -> str:
    if task.error is not None:
        return task.error
    step = task.next_step(role)
    if step is not None:
        return str(step)
    if task.total == 0:
        return "no steps"
    return "none, all steps are done" if task.done == task.total else f"none for {role}"
