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
from evaluator.interpreter.xml_requests import is_bare, is_xml, read_xml_request
from evaluator.library import TemplateLibrary
from evaluator.library.matching import (
    FOREIGN_ADVICE,
    LOW_SCORE,
    Match,
    better_composites,
    describe_composites,
    nothing_fits,
)
from evaluator.library.request_terms import seems_foreign
from evaluator.nodes import Atomic, Function, Task

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
@click.option("--explain", metavar="NAME", help="Show all that counted for one template.")
@library_option
@json_option
def match(
    request: str, limit: int, explain: str | None, folders: tuple[Path, ...], as_json: bool
) -> None:
    """Show the templates that fit REQUEST best.

    REQUEST is words or an atomic task as XML. It is read from standard input for -, and from a file
    for @FILE or the path of an XML file. Each template has a score in [0, 1], the terms that
    counted with their parts of the score, and the words of the request that it does not hold; the
    table shows the first six. Only atomic templates take part. A task as XML is evaluated as it is
    written, unless it has nothing but a description.

    Exit code 1 if no template fits.
    """
    wanted = _read(request)
    library = load_library(folders)
    if explain is not None:
        _explain_one(library, wanted, name=explain, as_json=as_json)
        return
    matches = library.match(wanted, limit=limit)
    composites = library.match_composites(wanted) if isinstance(wanted, str) else []
    fits = not nothing_fits(next(iter(matches), None), composites)
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
    if better := better_composites(next(iter(matches), None), composites):
        echo(visible(_sentence(describe_composites(better))), err=as_json)
    if isinstance(wanted, str):
        if not fits and seems_foreign(wanted):
            echo(_sentence(FOREIGN_ADVICE), err=as_json)
    elif not is_bare(wanted):
        echo(
            "`evaluator run` evaluates this task as it is written and none of these templates, "
            "because it has more than a description.",
            err=as_json,
        )
    if not fits:
        raise click.exceptions.Exit(1)


def _sentence(message: str) -> str:
    return f"{message[0].upper()}{message[1:]}."


def _explain_one(library: TemplateLibrary, wanted: str | Task, name: str, as_json: bool) -> None:
    """Shows all that counted for the template `name`."""
    every = max(1, len(library))
    node = library.get(name).node
    if isinstance(node, Function):
        raise UsageError(f"{name!r} is a function, which no request is matched to")
    if isinstance(node, Atomic):
        matches = library.match(wanted, limit=every)
    else:
        matches = library.match_composites(wanted, limit=every)
    found = next((each for each in matches if each.template.name == name), None)
    if found is None:
        raise UsageError(
            f"{name!r} shares no word with the request; add words of such requests to its "
            "<criteria>"
        )
    rows = [[r.term, r.field, f"{r.weight:.4f}"] for r in found.why]
    rows += [[term, "not held", ""] for term in found.missed]
    print_json_or_table(as_json, _to_json(found), head=["term", "field", "weight"], rows=rows)
    echo(f"Score of {visible(name)}: {found.score:.2f}.", err=as_json)


def _read(request: str) -> str | Task:
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
