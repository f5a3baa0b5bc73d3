"""Pages about templates, as Markdown and as HTML that loads nothing: purpose, inputs, output, calls
and price, what a run may reach, the graph of calls, examples with rendered prompts.

Text from templates is data: in HTML it is escaped, in Markdown it is in code of its own fence.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from evaluator.authoring.changes import code_cell, fence_of
from evaluator.authoring.portraits import Portrait
from evaluator.errors.messages import visible
from evaluator.library import TemplateLibrary
from evaluator.library.calls import calls_of

_UNSAFE = re.compile(r"[^\w.-]")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c1e21; background: #fff }
pre { background: #f4f5f7; padding: .8rem; overflow-x: auto; white-space: pre-wrap }
table { border-collapse: collapse } td, th { text-align: left; padding: .2rem .8rem .2rem 0;
  vertical-align: top } svg text { font: 13px system-ui, sans-serif }
@media (prefers-color-scheme: dark) { body { color: #e4e6eb; background: #18191a }
  pre { background: #242526 } a { color: #8ab4f8 } svg { color: #e4e6eb } }
"""


def page_names(names: Iterable[str]) -> dict[str, str]:
    """The name of each template's page, without its ending; no two are the same."""
    found: dict[str, str] = {}
    taken = {"index"}
    for name in sorted(names):
        plain = _UNSAFE.sub("_", name).lstrip(".") or "template"
        page = plain
        number = 2
        while page.lower() in taken:
            page = f"{plain}-{number}"
            number += 1
        taken.add(page.lower())
        found[name] = page
    return found


def graph_of(library: TemplateLibrary, name: str) -> list[tuple[str, str]]:
    """The calls that lead from a template: pairs of caller and called, each once."""
    edges: dict[tuple[str, str], None] = {}
    waiting = [name]
    seen: set[str] = set()
    while waiting:
        caller = waiting.pop(0)
        if caller in seen or caller not in library.templates:
            continue
        seen.add(caller)
        for called in calls_of(library.templates[caller].node):
            edges[caller, called] = None
            waiting.append(called)
    return list(edges)


def callers_of(library: TemplateLibrary, names: Iterable[str]) -> dict[str, list[str]]:
    """The templates that call each of `names`."""
    found: dict[str, list[str]] = {name: [] for name in names}
    for caller, template in library.templates.items():
        for called in calls_of(template.node):
            if called in found:
                found[called].append(caller)
    return found


# Markdown


def markdown_page(
    one: Portrait,
    edges: Sequence[tuple[str, str]],
    callers: Sequence[str],
    pages: Mapping[str, str],
) -> str:
    lines = [f"# {_plain(one.name)}", "", _plain(one.description), ""]
    lines += ["| | |", "|---|---|"]
    lines += [f"| {what} | {code_cell(value)} |" for what, value in _facts(one)]
    lines.append("")
    if one.inputs:
        lines += ["## Inputs", "", *(f"- {code_cell(each)}" for each in one.inputs), ""]
    lines += ["## Calls and price", "", f"{one.bound.of_model_calls()}; {one.price}.", ""]
    lines += _fenced(one.bound.explanation)
    if one.reaches:
        lines += [
            "## What a run may reach",
            "",
            *(f"- {code_cell(each)}" for each in one.reaches),
            "",
        ]
    if edges:
        lines += ["## Graph", ""]
        lines += [f"- {_link(a, pages, '.md')} calls {_link(b, pages, '.md')}" for a, b in edges]
        lines.append("")
    if callers:
        links = ", ".join(_link(each, pages, ".md") for each in callers)
        lines += [f"Called by {links}.", ""]
    for prompts in one.prompts:
        lines += [f"## Prompts: {prompts.title}", ""]
        for request in prompts.requests:
            lines += _fenced(request)
        if prompts.error is not None:
            lines += ["Error:", "", *_fenced(prompts.error)]
        if prompts.expected is not None:
            lines += ["Expected output:", "", *_fenced(prompts.expected)]
    return "\n".join(lines).rstrip() + "\n"


def _facts(one: Portrait) -> list[tuple[str, str]]:
    facts = [
        ("type", one.kind),
        ("version", one.version or ""),
        ("output", one.output),
        ("file", one.file or ""),
        ("sha256", one.sha256),
    ]
    return [(what, value) for what, value in facts if value]


def _fenced(text: str) -> list[str]:
    fence = fence_of(text)
    return [f"{fence}text", visible(text), fence, ""]


def _plain(text: str) -> str:
    """Text outside of code, in which nothing is markup."""
    return re.sub(r"([\\`*_{}\[\]<>#|!&~])", r"\\\1", visible(" ".join(text.split())))


def _link(name: str, pages: Mapping[str, str], ending: str) -> str:
    if name not in pages:
        return _plain(name)
    return f"[{_plain(name)}]({quote(pages[name])}{ending})"


def markdown_index(portraits: Sequence[Portrait], pages: Mapping[str, str]) -> str:
    lines = ["# Templates", "", "| template | type | calls | description |", "|---|---|---|---|"]
    for one in portraits:
        link = _link(one.name, pages, ".md")
        calls = one.bound.of_model_calls()
        lines.append(f"| {link} | {one.kind} | {calls} | {_plain(one.description)} |")
    return "\n".join(lines) + "\n"


# HTML


def html_page(
    one: Portrait,
    edges: Sequence[tuple[str, str]],
    callers: Sequence[str],
    pages: Mapping[str, str],
) -> str:
    parts = [f"<h1>{_text(one.name)}</h1>", f"<p>{_text(one.description)}</p>", "<table>"]
    parts += [
        f"<tr><th>{what}</th><td><code>{_text(value)}</code></td></tr>"
        for what, value in _facts(one)
    ]
    parts.append("</table>")
    if one.inputs:
        parts += ["<h2>Inputs</h2>", _list(map(_text, one.inputs))]
    parts += [
        "<h2>Calls and price</h2>",
        f"<p>{one.bound.of_model_calls()}; {_text(one.price)}.</p>",
    ]
    parts.append(f"<pre>{_text(one.bound.explanation)}</pre>")
    if one.reaches:
        parts += ["<h2>What a run may reach</h2>", _list(map(_text, one.reaches))]
    if edges:
        parts += ["<h2>Graph</h2>", graph_svg(one.name, edges, pages)]
    if callers:
        links = ", ".join(_anchor(each, pages) for each in callers)
        parts.append(f"<p>Called by {links}.</p>")
    for prompts in one.prompts:
        parts.append(f"<h2>Prompts: {_text(prompts.title)}</h2>")
        parts += [f"<pre>{_text(request)}</pre>" for request in prompts.requests]
        if prompts.error is not None:
            parts.append(f"<p>Error:</p><pre>{_text(prompts.error)}</pre>")
        if prompts.expected is not None:
            parts.append(f"<p>Expected output:</p><pre>{_text(prompts.expected)}</pre>")
    parts.append('<p><a href="index.html">All templates</a></p>')
    return _document(one.name, parts)


def html_index(portraits: Sequence[Portrait], pages: Mapping[str, str]) -> str:
    rows = [
        f"<tr><td>{_anchor(one.name, pages)}</td><td>{one.kind}</td>"
        f"<td>{one.bound.of_model_calls()}</td><td>{_text(one.description)}</td></tr>"
        for one in portraits
    ]
    head = "<tr><th>template</th><th>type</th><th>calls</th><th>description</th></tr>"
    return _document("Templates", ["<h1>Templates</h1>", "<table>", head, *rows, "</table>"])


def _document(title: str, parts: Iterable[str]) -> str:
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _text(text: str) -> str:
    return html.escape(visible(text))


def _list(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _anchor(name: str, pages: Mapping[str, str]) -> str:
    if name not in pages:
        return _text(name)
    return f'<a href="{quote(pages[name])}.html">{_text(name)}</a>'


_BOX_WIDTH = 170
_BOX_HEIGHT = 30
_MAX_BOXES = 60


def graph_svg(start: str, edges: Sequence[tuple[str, str]], pages: Mapping[str, str]) -> str:
    """The calls as a drawing: each template right of the first one that calls it."""
    columns = {start: 0}
    for caller, called in edges:
        if called not in columns and len(columns) < _MAX_BOXES:
            columns[called] = columns.get(caller, 0) + 1
    rows: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for name, column in columns.items():
        row = rows.get(column, 0)
        rows[column] = row + 1
        places[name] = (column * (_BOX_WIDTH + 60) + 2, row * (_BOX_HEIGHT + 16) + 2)
    width = (max(columns.values()) + 1) * (_BOX_WIDTH + 60)
    height = max(rows.values()) * (_BOX_HEIGHT + 16)
    parts = [f'<svg width="{width}" height="{height}" role="img" aria-label="graph of calls">']
    for caller, called in edges:
        if caller in places and called in places:
            x1, y1 = places[caller]
            x2, y2 = places[called]
            parts.append(
                f'<line x1="{x1 + _BOX_WIDTH}" y1="{y1 + _BOX_HEIGHT // 2}" x2="{x2}" '
                f'y2="{y2 + _BOX_HEIGHT // 2}" stroke="currentColor"/>'
            )
    for name, (x, y) in places.items():
        box = (
            f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="4" '
            f'fill="none" stroke="currentColor"/><text x="{x + 8}" y="{y + 20}" '
            f'fill="currentColor">{_text(name if len(name) < 24 else name[:23] + "…")}</text>'
        )
        if name in pages:
            box = f'<a href="{quote(pages[name])}.html">{box}</a>'
        parts.append(box)
    return "".join([*parts, "</svg>"])
