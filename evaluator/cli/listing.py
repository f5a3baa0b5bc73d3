"""`evaluator templates` and `evaluator handlers`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from evaluator.cli.common import (
    json_option,
    library_option,
    load_library,
    print_json,
    print_json_or_table,
    print_table,
)
from evaluator.cli.echo import echo
from evaluator.cli.permission import shown_profiles
from evaluator.errors.messages import visible
from evaluator.nodes import Function


@click.group(invoke_without_command=True, epilog="Example:  evaluator templates --json")
@library_option
@json_option
@click.pass_context
def templates(context: click.Context, folders: tuple[Path, ...], as_json: bool) -> None:
    """List the templates: name, type, inputs, description."""
    if context.invoked_subcommand is not None:
        return
    library = load_library(folders)
    rows: list[dict[str, str]] = []
    for name, template in sorted(library.templates.items()):
        node = template.node
        if isinstance(node, Function):
            kind = "function"
            inputs = [p.name for p in node.params]
            description = node.description
        else:
            kind = node.type
            inputs = [i.name for i in node.inputs]
            description = node.description.value
        rows.append(
            {
                "name": name,
                "type": kind,
                "inputs": ", ".join(inputs),
                "description": " ".join(description.split()),
                "file": template.file or "",
                "sha256": template.sha256,
            }
        )
    cells = [[row["name"], row["type"], row["inputs"], row["description"]] for row in rows]
    print_json_or_table(
        as_json, rows, head=["template", "type", "inputs", "description"], rows=cells
    )


@templates.command(epilog="Example:  evaluator templates overlap")
@library_option
@json_option
def overlap(folders: tuple[Path, ...], as_json: bool) -> None:
    """Show which atomic templates requests will mistake for each other.

    Each template is matched by its own description and by each phrase of its criteria. Listed is
    where another one comes first or close behind: on which words, and what to add.
    """
    from evaluator.library.overlap import find_overlaps

    found = find_overlaps(load_library(folders).templates.values())
    if as_json:
        print_json([{**asdict(each), "advice": each.advice} for each in found])
        return
    print_table(
        ["template", "mistaken for", "scores", "words"],
        [
            [o.template, o.other, f"{o.score:.2f} : {o.other_score:.2f}", ", ".join(o.shared)]
            for o in found
        ],
    )
    for each in found:
        echo(visible(f"{each.template}, asked for {each.asked!r}: {each.advice}."))
    if not found:
        echo("No templates overlap.")


@click.command(epilog="Example:  evaluator handlers")
@json_option
def handlers(as_json: bool) -> None:
    """List the handler profiles: name, backend, model, limits."""
    from evaluator.handler.profiles import load_profiles

    profiles = shown_profiles()
    untrusted = load_profiles().untrusted
    found = sorted(profiles.items())
    head = ["profile", "backend", "model", "turns", "timeout", "description"]
    rows = [
        [name, p.backend, p.model or "-", str(p.max_turns), f"{p.timeout_s:g} s", p.description]
        for name, p in found
    ]
    print_json_or_table(
        as_json,
        [{**p.to_dict(), "allowed": name not in untrusted} for name, p in found],
        head=head,
        rows=rows,
    )
    for name, path in sorted(profiles.replacing.items()):
        echo(f"{name} is that of {path}, not the shipped one", err=True)
    for name, file in sorted(untrusted.items()):
        echo(f"{name} is not used: {file.refusal()}", err=True)
    for problem in profiles.broken.values():
        echo(problem, err=True)
    if profiles.broken:
        raise click.exceptions.Exit(3)
