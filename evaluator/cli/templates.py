"""Commands that look at templates and run nothing: `templates`, `handlers`, `lint`, `render`,
`match`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from evaluator.cli import common
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import EvaluatorOptions, flag_options, library_option
from evaluator.cli.trust import shown_profiles
from evaluator.errors import EvaluatorError, UsageError
from evaluator.errors.messages import amount, visible
from evaluator.errors.results import TaskError
from evaluator.handler.profiles import turns_by_profile
from evaluator.interpreter.choosing import shortlist
from evaluator.interpreter.requests import is_xml
from evaluator.interpreter.xml_requests import is_bare, read_xml_request
from evaluator.library import TemplateLibrary
from evaluator.library.bounds import CallCounter
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


@click.group(invoke_without_command=True, epilog="Example:  evaluator templates --json")
@library_option
@common.json_option
@click.pass_context
def templates(context: click.Context, folders: tuple[Path, ...], as_json: bool) -> None:
    """List the templates: name, type, inputs, description."""
    if context.invoked_subcommand is not None:
        return
    library = common.load_library(folders)
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
    common.print_json_or_table(
        as_json, rows, head=["template", "type", "inputs", "description"], rows=cells
    )


@templates.command(epilog="Example:  evaluator templates overlap")
@library_option
@common.json_option
def overlap(folders: tuple[Path, ...], as_json: bool) -> None:
    """Show which atomic templates requests will mistake for each other.

    Each template is matched by its own description and by each phrase of its criteria. Listed is
    where another one comes first or close behind: on which words, and what to add.
    """
    from evaluator.library.matching import find_overlaps

    found = find_overlaps(common.load_library(folders).templates.values())
    if as_json:
        common.print_json([{**asdict(each), "advice": each.advice} for each in found])
        return
    common.print_table(
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


@templates.command(epilog="Example:  evaluator templates show summarise --history")
@click.argument("name")
@click.option("--history", "has_history", is_flag=True, help="Show its versions in git.")
@click.option(
    "--limit",
    default=20,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Maximum number of commits.",
)
@library_option
@common.json_option
def show(
    name: str, has_history: bool, limit: int, folders: tuple[Path, ...], as_json: bool
) -> None:
    """Show the template NAME: what it takes, what it may reach, the most calls of a run.

    With --history: the commits that changed its file, newest first, with the version and the hash
    that the template had. The same hash is in every record of a run.
    """
    from evaluator.authoring.portraits import portrait

    library = common.load_library(folders)
    one = portrait(library, shown_profiles(), name)
    if has_history:
        versions = _history(library, name, one.file, limit)
    else:
        versions = []
    if as_json:
        facts = asdict(one) | {"bound": one.bound.of_model_calls()}
        common.print_json(
            {key: facts[key] for key in facts if key != "prompts"} | {"history": versions}
        )
        return
    for what, values in (
        (one.name, [one.kind, one.description]),
        ("inputs", one.inputs),
        ("output", [one.output]),
        ("calls", [one.bound.of_model_calls(), one.price]),
        ("reaches", one.reaches),
        ("file", [one.file or "", one.version or "", one.sha256]),
    ):
        echo(visible(f"{what}: {'; '.join(value for value in values if value)}"))
    if has_history:
        head = ["commit", "date", "version", "sha256", "subject"]
        common.print_table(head, [[row[key] for key in head] for row in versions])


def _history(
    library: TemplateLibrary, name: str, file: str | None, limit: int
) -> list[dict[str, str]]:
    """The versions of a template: commit, date, version, hash, subject."""
    from datetime import UTC, datetime

    from evaluator.authoring.changes import history, open_version, prefix_of

    if file is None:
        raise UsageError(f"{name} is in no file, so it has no history")
    path = Path(file).resolve()
    folder = next(each for each in library.folders if path.is_relative_to(each))
    prefix = prefix_of(folder)
    rows: list[dict[str, str]] = []
    for commit in history(path, limit):
        row = {
            "commit": commit.sha[:12],
            "date": f"{datetime.fromtimestamp(commit.time, UTC):%Y-%m-%d}",
            "version": "",
            "sha256": "",
            "subject": commit.subject,
        }
        try:
            with open_version(f"{commit.sha}:{prefix}") as version:
                template = version.library.get(name)
                row["version"] = str(getattr(template.node, "version", None) or "")
                row["sha256"] = template.sha256[:12]
        except EvaluatorError:
            row["version"] = "not usable"
        rows.append(row)
    return rows


@click.command(epilog="Example:  evaluator handlers")
@common.json_option
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
    common.print_json_or_table(
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


@click.command(epilog="Example:  evaluator render summarise --input document=@notes.md")
@click.argument("name")
@common.input_option
@flag_options(EvaluatorOptions, ["--library", "--handler"])
@click.option("--model", metavar="MODEL", help="Also bound the cost with this model's price.")
@common.json_option
def render(
    name: str,
    inputs: tuple[str, ...],
    folders: tuple[Path, ...],
    handler: str | None,
    model: str | None,
    as_json: bool,
) -> None:
    """Show exactly what the model would see for the template NAME, without a call and without
    running a script.

    Where a later task depends on an earlier answer, that answer is simulated, and the output says
    so.
    """
    from evaluator.interpreter.evaluator import Evaluator

    library = common.load_library(folders)
    node = library.get(name).node
    evaluator = Evaluator(
        library,
        handler,
        tasks_dir=None,
        profiles=shown_profiles(),
        notice=lambda line: echo(line, err=True),
    )
    click.get_current_context().with_resource(evaluator)
    values = common.read_inputs(inputs, node)
    outcome, seen = evaluator.render(name, values)
    services = evaluator.services
    use = turns_by_profile(services.profiles, services.default_profile)
    limit = CallCounter(library, use=use).bound(node, values)
    cost = common.cost_bound(limit, model)
    if as_json:
        common.print_json(
            {
                "requests": [preview.to_dict() for preview in seen],
                "max_calls": limit.max_calls,
                "max_cost_usd": cost,
                "error": outcome.to_dict() if isinstance(outcome, TaskError) else None,
            }
        )
    else:
        for number, preview in enumerate(seen, 1):
            if preview.exact:
                simulated = ""
            else:
                simulated = ", after simulated answers"
            echo(
                f"=== request {number}: {preview.task or 'task'} (about "
                f"{amount(preview.input_tokens, 'token')}{simulated})"
            )
            if preview.tools:
                echo(f"tools: {', '.join(preview.tools)}")
            for message in preview.messages:
                common.echo_text(f"--- {message.role}\n{message.content}")
        echo(f"a run makes {common.describe_bound(limit, model)}", err=True)
        if isinstance(outcome, TaskError):
            echo(f"error: {outcome}", err=True)
            for violation in outcome.violations:
                echo(library.format_diagnostic(violation), err=True)
    if isinstance(outcome, TaskError):
        raise click.exceptions.Exit(common.exit_code_of(outcome))


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
@common.json_option
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
    library = common.load_library(folders)
    if explain is not None:
        _explain_one(library, wanted, name=explain, as_json=as_json)
        return
    matches = library.match(wanted, limit=limit)
    if isinstance(wanted, str):
        composites = library.match_composites(wanted)
    else:
        composites = []
    fits = not nothing_fits(next(iter(matches), None), composites)
    rows = [[m.template.name, f"{m.score:.2f}", _explain(m)] for m in matches]
    common.print_json_or_table(
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
        if candidates := shortlist(library, wanted, library.match(wanted)):
            echo(
                "The words do not decide: `evaluator run --rerank` asks the model to choose one of "
                f"{amount(len(candidates), 'template')}, or none.",
                err=as_json,
            )
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
    common.print_json_or_table(
        as_json, _to_json(found), head=["term", "field", "weight"], rows=rows
    )
    echo(f"Score of {visible(name)}: {found.score:.2f}.", err=as_json)


def _read(request: str) -> str | Task:
    """The words of a request, or the node that is in it. Raises: UsageError, TemplateError."""
    if request == "-" or request.startswith("@"):
        request = common.read_text(request.removeprefix("@"))
    elif request.endswith(".xml") and Path(request).is_file():
        request = common.read_text(request)
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
