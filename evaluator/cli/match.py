"""`evaluator match`."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator.cli.common import (
    json_option,
    library_option,
    load_library,
    print_json_or_table,
    read_text,
)
from evaluator.cli.echo import echo
from evaluator.errors import UsageError
from evaluator.errors.messages import visible
from evaluator.interpreter.xml_requests import is_xml, read_xml_request
from evaluator.library.matching import LOW_SCORE, Match, describe_composite, nothing_fits
from evaluator.nodes import Function, Node

_SHOWN = 6


@click.command(epilog='Example:  evaluator match "is this review positive?"')
@click.argument("request")
@click.option(
    "--limit",
    default=5,
    show_default=True,
    type=click.IntRange(1, 5),
    help="Maximum number of templates.",
)
@library_option
@json_option
def match(request: str, limit: int, folders: tuple[Path, ...], as_json: bool) -> None:
    """Show the templates that fit REQUEST best.

    REQUEST is words or an atomic task as XML. It is read from standard input for -, and from a file
    for @FILE or the path of an XML file. Each template has a score in [0, 1], the terms that
    counted with their parts of the score, and the words of the request that it does not hold. Only
    atomic templates take part.

    Exit code 1 if no template fits.
    """
    wanted = _read(request)
    library = load_library(folders)
    matches = library.match(wanted, limit=limit)
    if isinstance(wanted, str):
        composite = library.nearest_composite(wanted)
    else:
        composite = None
    fits = not nothing_fits(next(iter(matches), None), composite)
    rows = [[m.template.name, f"{m.score:.2f}", _explain(m)] for m in matches]
    print_json_or_table(
        as_json, [_to_json(each) for each in matches], head=["template", "score", "why"], rows=rows
    )
    if not fits:
        low = not matches or matches[0].score < LOW_SCORE
        if low:
            reason = f"every score is below {LOW_SCORE:.2f}"
        else:
            reason = "one that is not atomic fits far better"
        echo(f"No template fits: {reason}.", err=as_json)
    if composite is not None and (not fits or composite.score > matches[0].score):
        echo(visible(describe_composite(composite)) + ".", err=as_json)
    if not fits:
        raise click.exceptions.Exit(1)


def _read(request: str) -> str | Node:
    """The words of a request, or the node that is in it. Raises: UsageError, TemplateError."""
    if request == "-" or request.startswith("@"):
        request = read_text(request.removeprefix("@"))
    elif request.endswith(".xml") and Path(request).is_file():
        request = read_text(request)
    if not is_xml(request):
        return request
    node = read_xml_request(request).node
    if isinstance(node, Function):
        raise UsageError("a function cannot be matched: only atomic templates take part")
    return node


def _to_json(each: Match) -> dict[str, object]:
    return {
        "template": each.template.name,
        "score": round(each.score, 4),
        "why": [{"term": r.term, "field": r.field, "weight": round(r.weight, 4)} for r in each.why],
        "missed": list(each.missed),
    }


def _explain(each: Match) -> str:
    counted = ", ".join(
        f"{r.term} ({r.field} {r.weight:.2f})" for r in each.why[:_SHOWN] if r.weight >= 0.005
    )
    missed = ", ".join(each.missed[:_SHOWN])
    return "; ".join(filter(None, [counted, missed and f"not held: {missed}"]))
