"""Commands for people who write templates: `lsp`, `watch`, `test`, `diff`, `docs`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evaluator import clock, disk
from evaluator.cli import common
from evaluator.cli.echo import echo
from evaluator.cli.evaluator_options import library_option, trust_option
from evaluator.cli.trust import project_profiles, shown_profiles
from evaluator.errors import EvaluatorError, MissingExtra, UsageError
from evaluator.errors.messages import amount

if TYPE_CHECKING:
    from evaluator.handler.profiles import Profiles
    from evaluator.library import TemplateLibrary

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
@click.argument("paths", nargs=-1, type=common.PATH)
@click.option(
    "--model",
    metavar="MODEL",
    help="Run the examples with this model, which costs money, and not with the simulated one.",
)
@trust_option
def watch(paths: tuple[Path, ...], model: str | None, trust: bool) -> None:
    """Check the templates in PATHS (default: templates/ here) after each save, until Ctrl-C.

    For each template that changed or calls one that did: what `lint` finds, whether it can be
    rendered, and whether its tests pass (see evaluator test). Templates that run programs or tools
    are not run.
    """
    from evaluator.authoring.template_tests import TemplateTests, Watch, report
    from evaluator.interpreter.evaluator import Evaluator

    paths = common.or_templates(paths, "watch", "watch")
    profiles = _profiles(model, trust)
    watched = Watch(paths, profiles)
    evaluator = None
    if model is not None:
        evaluator = Evaluator(watched.library, model=model, tasks_dir=None, profiles=profiles)
        click.get_current_context().with_resource(evaluator)
    echo(f"watching {amount(len(watched), 'file')}; Ctrl-C ends it", err=True)
    while True:
        look = watched.look()
        if look is None:
            clock.pause(_LOOK_S)
            continue
        for diagnostic in look.findings:
            echo(watched.library.format_diagnostic(diagnostic))
        for name in look.names:
            tests = TemplateTests(watched.library, profiles, evaluator)
            try:
                lines = list(report(list(tests.run(name))))
            except EvaluatorError as error:
                lines = [f"{name}: {error}"]
            for line in lines:
                echo(line)
        errors = sum(1 for diagnostic in look.findings if diagnostic.severity == "error")
        echo(
            f"{clock.now():%H:%M:%S} {amount(len(look.names), 'template')} checked, "
            f"{amount(errors, 'error')}",
            err=True,
        )


def _profiles(model: str | None, trust: bool) -> Profiles:
    """The profiles for tests: with a model something is sent, so that they need a permission."""
    if model is None:
        return shown_profiles()
    return project_profiles(trust)


def _names_below(paths: Iterable[Path], library: TemplateLibrary) -> list[str]:
    """The templates whose files are at these paths or below them."""
    roots = [path.resolve() for path in paths]
    return [
        name
        for name, template in library.templates.items()
        if any(Path(template.file or "").resolve().is_relative_to(root) for root in roots)
    ]


@click.command(
    epilog="Examples:\n\n\b\n  evaluator test templates/\n"
    "  evaluator test --template summarise --model openai/gpt-4o-mini --cache tests.cache\n\n"
    "Exit codes: 0 every case passed; 1 a case failed; 2 wrong usage; 3 configuration."
)
@click.argument("paths", nargs=-1, type=common.PATH)
@click.option("--template", "names", multiple=True, metavar="NAME", help="Test only this one.")
@click.option("--update", is_flag=True, help="Write the golden prompts of the templates.")
@click.option(
    "--model",
    metavar="MODEL",
    help="Answer with this model, which costs money, and not with the simulated one.",
)
@click.option(
    "--cache",
    type=common.FILE,
    default=Path("tests.cache"),
    show_default=True,
    metavar="FILE",
    help="Answers of --model: only calls that have changed are made again.",
)
@trust_option
@common.json_option
def test(
    paths: tuple[Path, ...],
    names: tuple[str, ...],
    update: bool,
    model: str | None,
    cache: Path,
    trust: bool,
    as_json: bool,
) -> None:
    """Test the templates in PATHS (default: templates/ here) by what is written beside them.

    A template's <examples> state inputs and output; NAME.tests.toml has further cases with texts
    that prompts contain, and scorers of the answer; NAME.prompts.txt, written by --update, holds
    the prompts as they have to be. Without --model no call is made.
    """
    from evaluator.authoring.template_tests import SUFFIX, TemplateTests, report
    from evaluator.interpreter.evaluator import Evaluator

    paths = common.or_templates(paths, "test", "test")
    library = common.load_library(paths)
    profiles = _profiles(model, trust)
    evaluator = None
    if model is not None:
        evaluator = Evaluator(
            library, model=model, tasks_dir=None, profiles=profiles, cache=cache, trust=trust
        )
        click.get_current_context().with_resource(evaluator)
    tests = TemplateTests(library, profiles, evaluator)
    roots = [path.resolve() for path in paths]
    chosen = names or _names_below(roots, library)
    for root in () if library.errors else roots:
        for path in sorted(root.rglob(f"*{SUFFIX}")):
            if path.name.removesuffix(SUFFIX) not in library.templates:
                raise UsageError(f"{path}: there is no template of this name to test")
    found = [list(tests.run(name, update=update)) for name in chosen]
    results = [result for each in found for result in each]
    if as_json:
        common.print_json({"cases": [asdict(result) for result in results]})
    else:
        for each in found:
            for line in report(each):
                echo(line)
        calls = sum(result.calls for result in results)
        cached = sum(result.cached for result in results)
        if model is not None:
            echo(f"{amount(calls, 'call')} made, {cached:,} answered from {cache}", err=True)
    broken = 0 if names else len(library.errors)
    if broken:
        echo(f"{amount(broken, 'error')}: templates that have one are not tested", err=True)
    if broken or any(result.problems for result in results):
        raise click.exceptions.Exit(1)


@click.command(
    epilog="Examples:\n\n\b\n  evaluator diff HEAD templates\n"
    "  evaluator diff main HEAD --markdown --model openai/gpt-4o-mini"
)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B", required=False, default="templates")
@click.option("--template", "name", metavar="NAME", help="Compare this template only.")
@common.input_option
@_price_option
@click.option("--markdown", is_flag=True, help="Print Markdown, for a comment of a review.")
@common.json_option
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
    from evaluator.authoring.changes import as_markdown, as_text, changes_between, open_version

    common.refuse_two_formats(markdown, as_json)
    if inputs and name is None:
        raise UsageError("--input is for one template; name it with --template NAME")
    with open_version(before) as old, open_version(after) as new:
        values = None
        if name is not None and inputs:
            side = new if name in new.library else old
            values = common.read_inputs(inputs, side.library.get(name).node)
        elif name is not None and name not in old.names | new.names:
            raise UsageError(f"there is no template {name!r} in {before} or {after}")
        found = list(changes_between(old, new, name=name, inputs=values, model=model))
    if as_json:
        common.print_json({"changes": [change.to_dict() for change in found]})
    else:
        echo(as_markdown(found) if markdown else as_text(found))


@click.command(epilog="Example:  evaluator docs site/templates --model openai/gpt-4o-mini")
@click.argument(
    "folder",
    metavar="[DIR]",
    default="template-docs",
    type=common.FOLDER,
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

    library = common.load_library(folders)
    profiles = shown_profiles()
    own = sorted(_names_below(folders or [Path("templates")], library))
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
    echo(f"{folder / 'index.html'}: {amount(len(portraits), 'template')}")
