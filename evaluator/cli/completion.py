"""`evaluator completion`: the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from evaluator.cli.echo import echo_raw

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
    made = get_completion_class(shell)
    assert made is not None
    instance = made(click.get_current_context().find_root().command, {}, "evaluator", VARIABLE)
    echo_raw(instance.source_template % instance.source_vars())
