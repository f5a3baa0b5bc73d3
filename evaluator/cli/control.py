"""`evaluator batch status|pause|continue|set|retry|skip|stop|cancel`: a batch that runs in another
process.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evaluator.cli.common import FOLDER, json_option, print_json
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import trust_option
from evaluator.errors.messages import amount, visible

if TYPE_CHECKING:
    from evaluator.batch.control import Action, BatchStatus, Command

EXIT_REFUSED = 1
_SHOWN = 10


_folder_argument = click.argument("folder", type=FOLDER)


@click.command(epilog="Example:  evaluator batch status batches/capitals-20260102-150405 --json")
@_folder_argument
@json_option
def status(folder: Path, as_json: bool) -> None:
    """Show what the batch in FOLDER does now, or how it ended, and the commands sent to it."""
    from evaluator.batch.control import batch_status

    found = batch_status(folder)
    if as_json:
        print_json(found.to_dict())
        return
    for line in _lines_of(found):
        echo(visible(line))


def _lines_of(status: BatchStatus) -> list[str]:
    from evaluator.batch.display import at_least
    from evaluator.batch.progress import SilentProcess

    results = "? results"
    if status.total is not None:
        results = amount(status.total, "result")
    if status.reason:
        reason = f" ({status.reason})"
    else:
        reason = ""
    lines = [f"{status.name}: {status.state}{reason}, {status.done:,} of {results}"]
    if status.verdicts:
        lines.append(", ".join(f"{count:,} {name}" for name, count in status.verdicts.items()))
    progress = status.progress
    if limits := progress.get("limits"):
        lines.append("limits: " + ", ".join(f"{name}={value:g}" for name, value in limits.items()))
    if usage := progress.get("usage"):
        cost = usage.get("cost_usd")
        if cost is None or progress.get("interrupted_calls"):
            shown = at_least(progress.get("known_usage", {}).get("cost_usd"), "${:,.4f}")
        else:
            shown = f"${cost:,.4f}"
        lines.append(f"{shown}, {progress['in_flight']} in flight, {progress['rate']:,.1f}/s")
    with suppress(TypeError, ValueError):  # the progress of another version
        lines += [str(SilentProcess(**process)) for process in progress.get("silent", ())]
    hidden = len(status.commands) - _SHOWN
    if hidden > 0:
        lines.append(f"{amount(hidden, 'earlier command')}; see --json")
    lines += [each["text"] for each in status.provider_batches]
    lines += [_line_of(command) for command in status.commands[-_SHOWN:]]
    if status.ignored:
        lines.append(
            f"{amount(status.ignored, 'line')} of control.jsonl without effect: damaged, or not "
            "signed by this user for this batch"
        )
    return lines


def _line_of(command: Command) -> str:
    line = f"command {command.id}, {command}: {command.state}"
    if command.message:
        return f"{line}: {command.message}"
    return line


def _send(folder: Path, as_json: bool, action: Action, *arguments: str) -> None:
    """Sends a command and prints its state. Raises: Exit, if it is refused."""
    from evaluator.batch.control import control_batch

    command = control_batch(folder, action, arguments)
    if as_json:
        print_json(command.to_dict())
    else:
        echo(visible(_line_of(command)))
        if command.state == "sent":
            echo("no session has answered; the next one that reads it carries it out", err=True)
    if command.state == "refused":
        raise click.exceptions.Exit(EXIT_REFUSED)


@click.command(epilog="Example:  evaluator batch pause batches/capitals-20260102-150405")
@_folder_argument
@json_option
def pause(folder: Path, as_json: bool) -> None:
    """Let the batch in FOLDER begin no further call until it is continued.

    Calls in flight are finished. The time of --max-time goes on. A session that is killed while it
    is paused is paused when it is resumed.
    """
    _send(folder, as_json, "pause")


@click.command("continue", epilog="Example:  evaluator batch continue batches/capitals")
@_folder_argument
@json_option
def continue_(folder: Path, as_json: bool) -> None:
    """End the pause of the batch in FOLDER."""
    _send(folder, as_json, "continue")


@click.command(epilog="Example:  evaluator batch set concurrency=8 max_cost=20 batches/capitals")
@click.argument("limits", metavar="LIMIT=VALUE...", nargs=-1, required=True)
@_folder_argument
@json_option
def set(limits: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Set limits of the batch in FOLDER, also for the sessions that resume it.

    Limits are concurrency, requests_per_minute, tokens_per_minute, max_cost, max_tokens, max_time
    and stop_after; the value none removes one. Calls in flight are not affected.
    """
    _send(folder, as_json, "set", *limits)


@click.command(epilog="Example:  evaluator batch retry provider_failure batches/capitals")
@click.argument("errors", metavar="[ERROR]...", nargs=-1)
@_folder_argument
@json_option
def retry(errors: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Run the samples of the batch in FOLDER again that ended with an error, after the others.

    ERROR is the type or reason of an error, such as provider_failure; without one, all are run
    again. Samples that were skipped ended with execution_halted.
    """
    _send(folder, as_json, "retry", *errors)


@click.command(epilog="Example:  evaluator batch skip row-17 batches/capitals")
@click.argument("samples", metavar="SAMPLE...", nargs=-1, required=True)
@_folder_argument
@json_option
def skip(samples: tuple[str, ...], folder: Path, as_json: bool) -> None:
    """Leave samples of the batch in FOLDER out that have not begun.

    SAMPLE is the id of a row. Its result is an error, execution_halted, that counts as one, and
    that `evaluator batch retry execution_halted` runs again. A sample in flight is finished.
    """
    _send(folder, as_json, "skip", *samples)


@click.command(epilog="Example:  evaluator batch stop batches/capitals-20260102-150405")
@_folder_argument
@json_option
def stop(folder: Path, as_json: bool) -> None:
    """End the session of the batch in FOLDER after the samples in flight, as one Ctrl-C does."""
    _send(folder, as_json, "stop")


@click.command(epilog="Example:  evaluator batch cancel batches/capitals-20260102-150405")
@_folder_argument
@trust_option
@click.pass_context
def cancel(context: click.Context, folder: Path, trust: bool) -> None:
    """Cancel the provider batches of the batch in FOLDER, and collect what they have answered.

    Without a running session it resumes the batch for that, and waits until the provider has
    cancelled them. Answers that are there were paid for, and are used. No further call is made.
    """
    from evaluator.batch.control import control_batch
    from evaluator.cli.batch import batch

    command = control_batch(folder, "cancel")
    if command.state == "sent":
        context.invoke(batch, resume=folder, trust=trust)
    echo(visible(_line_of(command)))
    if command.state == "refused":
        raise click.exceptions.Exit(EXIT_REFUSED)
