"""`evaluator tasks list-active`, `read`, `create`, `update`, `close`: task lists."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.cli import common
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import tasks_option
from evaluator.errors import UsageError
from evaluator.errors.messages import visible
from evaluator.files.locations import shipped
from evaluator.record.task_list_outline import DEFAULT, fill_template, read_template
from evaluator.record.task_lists import TaskList, TaskLists


@click.command("list-active", epilog="Example:  evaluator tasks list-active --role planner")
@click.option(
    "--role", metavar="ROLE", help="Show the next step that this role does, or that names no role."
)
@tasks_option
@common.json_option
def list_active(role: str | None, tasks_dir: Path, as_json: bool) -> None:
    """List the task lists that are not closed, each with its next step."""
    found = TaskLists(tasks_dir).list_active()
    rows = [[task.name, _progress(task), _next(task, role)] for task in found]
    common.print_json_or_table(
        as_json, [task.to_dict(role) for task in found], head=["name", "steps", "next"], rows=rows
    )


@click.command("read", epilog="Example:  evaluator tasks read 2026-03-02-move-the-archive")
@click.argument("name")
@click.option("--role", metavar="ROLE", help="Show the next step of this role.")
@tasks_option
@common.json_option
def read(name: str, role: str | None, tasks_dir: Path, as_json: bool) -> None:
    """Print the task list NAME, active or closed, and on standard error its version and next step.

    NAME may omit its date if only one active task list has that name.
    """
    task = TaskLists(tasks_dir).read(name)
    if as_json:
        common.print_json({**task.to_dict(role), "content": task.content})
        return
    common.echo_text(task.content.removesuffix("\n"))
    _print_next(task, role)


@click.command(
    "create",
    epilog="Example:  evaluator tasks create move-the-archive --from feature --role mechanic",
)
@click.argument("name")
@click.option("--content", metavar="@FILE", help="A file with the text, - for standard input.")
@click.option(
    "--from",
    "template",
    metavar="TEMPLATE",
    help="Begin from a template: a file, or the name of one in templates/task_lists. Without "
    "--content the "
    f"default is {DEFAULT}, which is shipped.",
)
@click.option(
    "--role", metavar="ROLE", help="The role that owns the task list and alone may change it."
)
@tasks_option
@common.json_option
def create(
    name: str,
    content: str | None,
    template: str | None,
    role: str | None,
    tasks_dir: Path,
    as_json: bool,
) -> None:
    """Create the task list NAME: YYYY-MM-DD-name, or the name alone, which gets today's date
    (UTC).
    """
    if content is not None and template is not None:
        raise UsageError("--content and --from exclude each other; give one of them")
    if content is None:
        text = _from_template(template or DEFAULT, name, role=role)
    else:
        text = _content(content)
    _print_result(TaskLists(tasks_dir).create(name, text, role=role), None, as_json=as_json)


@click.command(
    "update",
    epilog="Example:  evaluator tasks update move-the-archive --content @plan.md --version "
    "0a1b2c3d4e5f6071",
)
@click.argument("name")
@click.option(
    "--content",
    metavar="@FILE",
    required=True,
    help="A file with the whole text, - for standard input.",
)
@click.option(
    "--role",
    metavar="ROLE",
    help="Act in this role: refused where another role owns the task list.",
)
@click.option(
    "--version",
    metavar="VERSION",
    help="Only if the file still has the version that `read` showed; needed with --role.",
)
@tasks_option
@common.json_option
def update(
    name: str, content: str, role: str | None, version: str | None, tasks_dir: Path, as_json: bool
) -> None:
    """Replace the text of the active task list NAME."""
    if role is not None and version is None:
        raise UsageError(
            "--role needs --version, the version that the change is based on; see: evaluator "
            f"tasks read {name}"
        )
    _print_result(
        TaskLists(tasks_dir).update(name, _content(content), role=role, if_unchanged=version),
        role,
        as_json=as_json,
    )


@click.command("close", epilog="Example:  evaluator tasks close move-the-archive")
@click.argument("name")
@click.option(
    "--role",
    metavar="ROLE",
    help="Act in this role: refused where another role owns the task list.",
)
@click.option("--force", is_flag=True, help="Close it even if steps are open.")
@tasks_option
@common.json_option
def close(name: str, role: str | None, force: bool, tasks_dir: Path, as_json: bool) -> None:
    """Move the task list NAME from active/ to done/. Refused, with the open steps, while steps are
    open.
    """
    _print_result(TaskLists(tasks_dir).close(name, role=role, force=force), role, as_json=as_json)


COMMANDS = (list_active, read, create, update, close)


def _content(option: str) -> str:
    """The text in `@FILE`, or on standard input for `@-` and `-`."""
    if option == "-":
        path = option
    else:
        path = option.removeprefix("@")
    if path == "" or (path == option and path != "-"):
        raise UsageError(f"--content {option[:200]!r}: expected @FILE, or - for standard input")
    try:
        return common.read_text(path)
    except UsageError as error:
        raise UsageError(f"--content {error}") from error


def _from_template(option: str, name: str, role: str | None) -> str:
    """The text of a new list from a template: `option` is its file, or its name."""
    if "/" in option or option.endswith((".md", ".tpl")):
        try:
            text = common.read_text(option)
        except UsageError as error:
            raise UsageError(f"--from {error}") from error
    else:
        text = read_template(option, [Path("templates"), shipped("templates")])
    return fill_template(text, name, role=role)


def _print_result(task: TaskList, role: str | None, as_json: bool) -> None:
    if as_json:
        common.print_json(task.to_dict(role))
        return
    echo(str(task.path))
    if task.state == "active":
        _print_next(task, role)


def _print_next(task: TaskList, role: str | None) -> None:
    echo(f"version: {task.version}", err=True)
    if task.owner is not None:
        echo(f"owner: {task.owner}", err=True)
    echo(f"steps: {_progress(task)}", err=True)
    echo(f"next: {visible(_next(task, role), one_line=True)}", err=True)


def _progress(task: TaskList) -> str:
    if task.error is not None:
        return "-"
    return f"{task.done}/{task.total}"


def _next(task: TaskList, role: str | None) -> str:
    if task.error is not None:
        return task.error
    step = task.next_step(role)
    if step is not None:
        return str(step)
    if task.total == 0:
        return "no steps"
    if task.done == task.total:
        return "none, all steps are done"
    return f"none for {role}"
