"""Commands for people who write templates: `lsp`, `watch`, `diff`, `docs`."""

from __future__ import annotations

from pathlib import Path

import click

from evaluator import clock, disk
from evaluator.cli.common import (
    input_option,
    json_option,
    load_library,
    print_json,
    read_inputs,
)
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import library_option, trust_option
from evaluator.cli.trust import project_profiles, shown_profiles
from evaluator.errors import MissingExtra, UsageError

_LOOK_S = 0.3
"""Seconds between two looks at the files that are watched."""

_price_option = click.option("--model", metavar="MODEL", help="Show prices of this model.")


@click.command(epilog="Example:  evaluator lsp --model openai/gpt-4o-mini")
@_price_option
def lsp(model: str | None) -> None:
    """Start the language server, which an editor talks to over standard input and output.

    It shows what `lint` finds while you type, completes, renames across files, and shows the most
    calls and the highest price of the task under the cursor. It runs nothing of a project unless
    you ask for it. Needs evaluator[lsp]. See docs/howto/write-templates-in-an-editor.md.
    """
    try:
        from evaluator.editor.server import make_server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol"):
            raise
        raise MissingExtra("pygls", "lsp") from error
    make_server(model).start_io()


@click.command(epilog="Example:  evaluator watch templates/")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--model",
    metavar="MODEL",
    help="Run the examples with this model, which costs money, and not with the simulated one.",
)
@trust_option
def watch(paths: tuple[Path, ...], model: str | None, trust: bool) -> None:
    """Check the templates in PATHS (default: templates/ here) after each save, until Ctrl-C.

    For each template that changed or calls one that did: what `lint` finds, whether it can be
    rendered, and whether its examples give the outputs that they state. Templates that run programs
    or tools are not run.
    """
    from evaluator.authoring.watching import Watch, try_template
    from evaluator.interpreter.evaluator import Evaluator

    if not paths and not Path("templates").is_dir():
        raise UsageError("there is no templates/ here; name what to watch: evaluator watch FOLDER")
    profiles = shown_profiles() if model is None else project_profiles(trust)
    watched = Watch(paths or (Path("templates"),), profiles)
    evaluator = None
    if model is not None:
        evaluator = Evaluator(watched.library, model=model, tasks_dir=None, profiles=profiles)
    echo(f"watching {len(watched)} files; Ctrl-C ends it", err=True)
    while True:
        look = watched.look()
        if look is None:
            clock.pause(_LOOK_S)
            continue
        for diagnostic in look.findings:
            echo(watched.library.format_diagnostic(diagnostic))
        for name in look.names:
            for line in try_template(watched.library, profiles, name, evaluator):
                echo(line)
        errors = sum(1 for diagnostic in look.findings if diagnostic.severity == "error")
        echo(
            f"{clock.now():%H:%M:%S} {len(look.names)} templates checked, {errors} errors", err=True
        )


@click.command(
    epilog="Examples:\n\n\b\n  evaluator diff HEAD templates\n"
    "  evaluator diff main HEAD --markdown --model openai/gpt-4o-mini"
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B", required=False, default="templates")
@click.option("--template", "name", metavar="NAME", help="Compare this template only.")
@input_option
@_price_option
@click.option("--markdown", is_flag=True, help="Print Markdown, for a comment of a review.")
@json_option
def diff(
    before: str,
    after: str,
    name: str | None,
    inputs: tuple[str, ...],
    model: str | None,
    markdown: bool,
    as_json: bool,
) -> None:
    """Show what changed between two versions of templates, without a call.

    A and B (default: templates/ here) are each a folder or file of templates, a folder with
    templates/ and handlers/, or a revision of git: REVISION, or REVISION:PATH. For each template
    that changed: its inputs, output, calls, price, tools, programs, files, models and profiles, and
    its prompts as they are rendered for the --input values, else for its examples.
    """
    from evaluator.authoring.changes import as_markdown, as_text, changes_between
    from evaluator.authoring.revisions import open_version

    if markdown and as_json:
        raise UsageError("--json and --markdown are two formats; give one of them")
    if inputs and name is None:
        raise UsageError("--input is for one template; name it with --template NAME")
    with open_version(before) as old, open_version(after) as new:
        values = None
        if name is not None and inputs:
            side = new if name in new.library else old
            values = read_inputs(inputs, side.library.get(name).node)
        elif name is not None and name not in old.names | new.names:
            raise UsageError(f"there is no template {name!r} in {before} or {after}")
        found = list(changes_between(old, new, name=name, inputs=values, model=model))
    if as_json:
        print_json({"changes": [change.to_dict() for change in found]})
    else:
        echo(as_markdown(found) if markdown else as_text(found))


@click.command(epilog="Example:  evaluator docs site/templates --model openai/gpt-4o-mini")
@click.argument(
    "folder",
    metavar="[DIR]",
    default="template-docs",
    type=click.Path(path_type=Path, file_okay=False),
)
@library_option
@_price_option
def docs(folder: Path, folders: tuple[Path, ...], model: str | None) -> None:
    """Write a page for each template into DIR (default: template-docs), as HTML and Markdown.

    A page has the purpose, inputs, output, calls and price of a template, what a run may reach, the
    graph of its calls, and its examples with the prompts as they are rendered. Nothing is run.
    Pages that are there already are replaced.
    """
    from evaluator.authoring import pages
    from evaluator.authoring.portraits import portrait
    from evaluator.files.atomic import write_atomic

    library = load_library(folders)
    profiles = shown_profiles()
    roots = [Path(each).resolve() for each in folders or ("templates",)]
    own = [
        name
        for name, template in sorted(library.templates.items())
        if any(Path(template.file or "").resolve().is_relative_to(root) for root in roots)
    ]
    if not own:
        raise UsageError("there is no template to describe; name a folder with --library FOLDER")
    portraits = [portrait(library, profiles, name, model=model) for name in own]
    names = pages.page_names(own)
    callers = pages.callers_of(library, own)
    disk.make_folders(folder)
    texts = {
        "index.html": pages.html_index(portraits, names),
        "index.md": pages.markdown_index(portraits, names),
    }
    for one in portraits:
        edges = pages.graph_of(library, one.name)
        called_by = callers[one.name]
        page = names[one.name]
        texts[f"{page}.html"] = pages.html_page(one, edges, called_by, names)
        texts[f"{page}.md"] = pages.markdown_page(one, edges, called_by, names)
    for name, text in texts.items():
        write_atomic(folder / name, text.encode("utf-8", "replace"))
    echo(f"{folder / 'index.html'}: {len(portraits)} templates")
