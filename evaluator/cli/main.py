"""The group of commands, each imported when it is used, and the handling of errors and signals."""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from keyword import iskeyword
from typing import TYPE_CHECKING, Any

import click

from evaluator.cli.echo import (
    add_verbose_option,
    batch_stderr,
    echo,
    echo_raw,
    json_stderr,
    print_unhandled_as_lines,
    verbose_option,
)
from evaluator.errors import (
    ConfigurationError,
    ContextError,
    EvaluatorError,
    MachineError,
    RecordError,
    UsageError,
    advice_on,
    machine_trouble,
)
from evaluator.errors.messages import did_you_mean

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_CONFIGURATION = 3
EXIT_INTERRUPTED = 130

# Heading → name → (module, one line of help): the help page of the group imports no command.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Run": {
        "run": ("run", "Evaluate a template, or a request in words."),
        "chat": ("chat", "Talk with a model; one recorded session."),
        "compile": (
            "compile",
            "Turn a description into a task in XML, and show it before it is run.",
        ),
    },
    "Write templates": {
        "init": ("init", "Begin a project that lints, tests and runs at once, offline."),
        "new": ("init", "Begin a template."),
        "examples": ("init", "List and copy the examples that ship with the package."),
        "lint": ("lint", "Check templates: errors and warnings with line and column."),
        "fmt": ("lint", "Format templates without changing what they mean."),
        "lsp": ("authoring", "Start the language server for editors."),
        "watch": ("authoring", "Check templates after each save."),
        "test": ("authoring", "Test templates by their examples, cases and golden prompts."),
        "diff": ("authoring", "Show what changed between two versions of templates."),
        "docs": ("authoring", "Write a page for each template, as HTML and Markdown."),
        "render": ("templates", "Show exactly what the model would see; makes no call."),
        "match": ("templates", "Show which templates fit a request, with scores and reasons."),
        "parse": ("parse", "Read a value from text that a model generated."),
        "templates": ("templates", "List the templates."),
        "handlers": ("templates", "List the handler profiles."),
    },
    "Batches": {
        "plan": ("plan", "Show what a run or a batch would cost; makes no call."),
        "batch": ("batch", "Evaluate rows with templates and models, and score the answers."),
        "batch merge": ("results", "Merge the shards of a batch into one folder."),
        "batch status": ("control", "Show what a batch does now, and the commands sent to it."),
        "batch pause": ("control", "Let a running batch begin no further call."),
        "batch continue": ("control", "End the pause of a batch."),
        "batch set": ("control", "Set limits of a running batch."),
        "batch retry": ("control", "Run samples of a batch again that ended with an error."),
        "batch skip": ("control", "Leave samples of a batch out."),
        "batch stop": ("control", "End the session of a batch after the samples in flight."),
        "batch cancel": ("control", "Cancel the provider batches of a batch, and collect."),
        "score": ("score", "Score the answers of a batch with more scorers."),
        "summary": ("results", "Show a batch's numbers as they are now, and check thresholds."),
        "label": ("label", "Label answers by hand, so that a judge can be measured and corrected."),
        "calibrate": ("label", "Show how often a judge is right, by labels, and correct it."),
        "compare": ("results", "Compare two batches, or two variants of one, sample by sample."),
        "improve": ("improve", "Search for a better version of a template, and prove the gain."),
        "report": ("results", "Write one self-contained HTML page of batches."),
        "export": ("results", "Write a batch's results in another format."),
        "cache": ("cache", "Show or clear a file of responses."),
    },
    "Runs and task lists": {
        "tasks": ("tasks", "List, show, resume, replay and import runs; keep task lists."),
        "view": ("results", "Show runs and batches in the browser, also while they run."),
    },
    "Queue and background tasks": {
        "queue": ("queue", "Keep a persistent queue of tasks, and work on it."),
        "start": ("start", "Start a command, a template, a session or a watch in the background."),
        "ps": ("background", "List background tasks."),
        "logs": ("background", "Print the output of a background task."),
        "send": ("background", "Send a message to an interactive session in the background."),
        "wait": ("background", "Wait until background tasks have ended."),
        "kill": ("background", "Kill background tasks with everything that they started."),
    },
    "Set up": {
        "doctor": ("doctor", "Show what is configured and what is missing."),
        "trust": ("trust", "Allow what the files of a project name: hosts, keys, commands, code."),
        "memory": ("memory", "Index a folder and ask which files are relevant."),
        "completion": (
            "main",
            "Print the script that completes commands in bash, zsh or fish.",
        ),
        "demo": ("init", "Run the shipped templates offline against the simulated model."),
    },
}
COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


class LazyGroup(click.Group):
    """Finds commands in COMMANDS, so that `--help` and each command import only what they need.

    `owns_process`: what a command imports is left out of the search for garbage until the process
    ends.
    """

    owns_process = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"evaluator.cli.{COMMANDS[cmd_name][0]}")
        if self.owns_process:
            gc.freeze()
            gc.enable()
        word = cmd_name.rpartition(" ")[2]
        command: click.Command = getattr(module, f"{word}_" if iskeyword(word) else word)
        add_verbose_option(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        options = super(click.Group, self).shell_complete(ctx, incomplete)
        found = {
            name: line
            for name, (_, line) in COMMANDS.items()
            if " " not in name and name.startswith(incomplete)
        }
        return [*(CompletionItem(name, help=line) for name, line in found.items()), *options]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                rows = [(name.ljust(width), line) for name, (_, line) in commands.items()]
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if " ".join(args[:2]) in COMMANDS:
            # `batch` is a command and has commands.
            args = [" ".join(args[:2]), *args[2:]]
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            hint = did_you_mean(name, COMMANDS)
            raise click.UsageError(
                f"there is no command {name!r}{f'; {hint}' if hint else '.'} See: evaluator --help"
            )
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Example:  evaluator run --template summarise --input document=@notes.md",
)
@click.version_option(package_name="evaluator", prog_name="evaluator")
def cli() -> None:
    """Evaluate LLM tasks written as XML templates: isolated, limited, recorded.

    Exit codes: 0 success; 1 the task failed or a check found errors; 2 wrong usage;
    3 configuration (a profile, a key, a folder); 4 a batch misses a threshold; 5 a batch is
    incomplete or entries of a queue cannot run; 6 a batch waits for provider batches;
    130 interrupted (Ctrl-C or SIGTERM).
    """


cli.params.append(verbose_option())


def main(argv: list[str] | None = None) -> Any:
    """Runs a command. An error prints one line and sets the exit code; it never prints a traceback.

    With `--json` the error is also an object on standard output. A bug in this program is reported
    as a bug; with EVALUATOR_DEBUG set its traceback is shown.
    """
    if argv is None:  # the process is this command's own
        from evaluator.processes.own_environment import hide_own_environment

        hide_own_environment()
        cli.owns_process = True
        print_unhandled_as_lines()
    arguments = sys.argv[1:] if argv is None else argv
    # Characters that the output's encoding lacks, such as a lone surrogate, are escaped.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    with batch_stderr(arguments):
        code = _exit_code_of(argv, as_json="--json" in arguments)
    sys.exit(code)


def _exit_code_of(argv: list[str] | None, *, as_json: bool) -> int:
    code = 0
    message = None
    try:
        with _signals_as_interrupts():
            code = cli.main(argv, prog_name="evaluator", standalone_mode=False)
            # The language server closes its streams at its end.
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()
    except click.exceptions.Exit as error:
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
        message = "interrupted"
    except click.ClickException as error:
        code = EXIT_USAGE
        if json_stderr() is None:
            shown = io.StringIO()
            error.show(file=shown)
            echo(shown.getvalue(), err=True, nl=False)
        else:
            _report(error.format_message(), code)
        _report_json(as_json, code, message=error.format_message())
    except OSError as error:
        if error.errno == errno.EPIPE:
            # The reader closed the pipe, as `| head` does.
            code = EXIT_FAILED
        else:
            code = EXIT_CONFIGURATION
            message = f"error: {_describe_os_error(error)}"
        _drop_output()
    except Exception as error:
        code, message = _describe(error)
    if message is not None:
        _report(message, code)
        _report_json(as_json, code, message=message.removeprefix("error: "))
    if isinstance(code, int):
        return code
    return 0


def _describe_os_error(error: OSError) -> str:
    if error.errno == errno.ENOENT and not error.filename:
        try:
            os.getcwd()
        except FileNotFoundError:
            return (
                "the current folder was deleted; change to another folder and run the command again"
            )
    text = f"{error.filename or 'output'}: {error.strerror or error}"
    if machine_trouble(error) is not None:
        text += f"; {advice_on(error)}"
    return text


def _describe(error: Exception) -> tuple[int, str]:
    if isinstance(error, UsageError):
        return EXIT_USAGE, f"error: {error}"
    if isinstance(error, (ConfigurationError, RecordError, MachineError, ContextError)):
        return EXIT_CONFIGURATION, f"error: {error}"
    if isinstance(error, EvaluatorError):
        return EXIT_FAILED, f"error: {error}"
    if os.environ.get("EVALUATOR_DEBUG"):
        raise error
    if isinstance(error, MemoryError):
        return (
            EXIT_CONFIGURATION,
            "error: the process got no more memory; free memory, raise its limit (ulimit -v) or "
            "lower the concurrency, then run the command again",
        )
    what = f"{type(error).__name__}: {error}"
    return (
        EXIT_FAILED,
        f"error: this is a bug of evaluator: {what}\n  hint: set EVALUATOR_DEBUG=1 to see where",
    )


@contextmanager
def _signals_as_interrupts() -> Generator[None]:
    """SIGTERM and a closed terminal end a run as Ctrl-C does: scripts are stopped, the task file is
    closed.

    A closed terminal may send SIGHUP twice: after the first it is ignored.
    """

    def interrupt(number: int, _frame: object) -> None:
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    # Ignored signals stay ignored, as under nohup.
    taken = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) == signal.SIG_DFL
    ]
    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)


def _drop_output() -> None:
    """Discards buffered output that cannot be written; Python would report it at exit, with a
    traceback.
    """
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError:
        pass


def _report(line: str, code: int) -> None:
    stream = json_stderr()
    if stream is None:
        echo(line, err=True)
    else:
        stream.print_event("error", message=line.removeprefix("error: "), exit_code=code)


def _report_json(as_json: bool, code: int, message: str) -> None:
    if as_json:
        from evaluator.cli.common import print_json

        try:
            print_json({"error": {"message": message, "exit_code": code}})
        except OSError:
            _drop_output()


VARIABLE = "_EVALUATOR_COMPLETE"


@click.command(
    epilog="Examples:\n\n\b\n"
    "  evaluator completion bash >> ~/.bashrc\n"
    "  evaluator completion zsh >> ~/.zshrc\n"
    "  evaluator completion fish > ~/.config/fish/completions/evaluator.fish"
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options and their values in this shell."""
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    instance = made(click.get_current_context().find_root().command, {}, "evaluator", VARIABLE)
    echo_raw(instance.source_template % instance.source_vars())
