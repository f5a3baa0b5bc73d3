"""The group of commands, each loaded when it is asked for, and what every command shares."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from evaluator.errors import ConfigurationError, EvaluatorError, RecordError, UsageError

EXIT_FAILED, EXIT_USAGE, EXIT_CONFIGURATION, EXIT_INTERRUPTED = 1, 2, 3, 130

# name → (module, one line of help): the help page of the group imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Evaluate a template, or a request in words."),
    "match": ("match", "Show which templates fit a request, with scores and reasons."),
    "render": ("render", "Show exactly what the model would see; makes no call."),
    "lint": ("lint", "Check templates: errors and warnings with line and column."),
    "parse": ("parse", "Read a value out of text that a model wrote."),
    "templates": ("listing", "List the templates."),
    "handlers": ("listing", "List the handler profiles."),
    "tasks": ("tasks", "List and show task files."),
    "doctor": ("doctor", "Show what is configured and what is missing."),
    "demo": ("demo", "Run the shipped templates offline against the simulated model."),
}


class LazyGroup(click.Group):
    """Finds commands in COMMANDS, so that `--help` and each command import only what they need."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"evaluator.cli.{COMMANDS[cmd_name][0]}")
        return getattr(module, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"there is no command {name!r}.{hint} See: evaluator --help")
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Example:  evaluator run --template summarise --input text=@notes.md',
)
@click.version_option(package_name="evaluator", prog_name="evaluator")
def cli() -> None:
    """Evaluate LLM tasks written as XML templates: isolated, limited, recorded.

    Exit codes: 0 all well; 1 the task failed or what was checked has errors; 2 wrong usage;
    3 configuration; 130 interrupted.
    """


def main(argv: list[str] | None = None) -> Any:
    """Runs a command; every error of ours ends in one clear line and an exit code, never in a traceback."""
    try:
        code = cli.main(argv, prog_name="evaluator", standalone_mode=False)
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.Abort:
        _say("interrupted")
        code = EXIT_INTERRUPTED
    except KeyboardInterrupt:
        _say("interrupted")
        code = EXIT_INTERRUPTED
    except click.ClickException as error:
        error.show()
        code = EXIT_USAGE
    except UsageError as error:
        _say(f"error: {error}")
        code = EXIT_USAGE
    except (ConfigurationError, RecordError) as error:
        _say(f"error: {error}")
        code = EXIT_CONFIGURATION
    except EvaluatorError as error:
        _say(f"error: {error}")
        code = EXIT_FAILED
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does; nothing is left to say.
        sys.stderr.close()
        code = EXIT_FAILED
    sys.exit(code if isinstance(code, int) else 0)


def _say(line: str) -> None:
    click.echo(line, err=True)
