"""Keeps the texts that a judge reads between the tags of its template.

A template marks untrusted texts with tags such as `<work>`. A text that contains the tag itself could close it and
address the judge in the template's name. So a `<` that begins a tag which the template has around an expression is
written as `<\\`: `<\\/work>`. Everything else is unchanged, other tags included: code and HTML are judged as written.
Equal texts give equal prompts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from evaluator.language.syntax import has_markup
from evaluator.library import TemplateLibrary
from evaluator.nodes import Expression, Node, TopLevel
from evaluator.nodes.walk import descendants, texts

_CLOSING = re.compile(r"</\s*+([A-Za-z_][\w.:-]*)\s*+>")


def within_fences(library: TemplateLibrary, template: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """`inputs` for `template` with its tags escaped in their texts. A missing template has no tags."""
    if template not in library:
        return dict(inputs)
    names = {name for each in (template, *library.called_by(template)) for name in _tags(library.get(each).node)}
    if not names:
        return dict(inputs)
    either = "|".join(map(re.escape, sorted(names)))
    tag = re.compile(rf"<(?=\s*+/?\s*+(?:{either})(?![\w.:-]))", re.IGNORECASE)
    return {name: _escaped(value, tag) for name, value in inputs.items()}


def _tags(node: TopLevel | Node) -> Iterator[str]:
    """The names of the tags that enclose an expression in the texts of `node`."""
    for one in descendants(node):
        for text in texts(one):
            if not isinstance(text, Expression):
                yield from _around(text.value)


def _around(text: str) -> Iterator[str]:
    for closing in _CLOSING.finditer(text):
        opening = text.rfind(f"<{closing[1]}", 0, closing.start())
        if opening >= 0 and has_markup(text[opening : closing.start()]):
            yield closing[1]


def _escaped(value: Any, tag: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return tag.sub(r"<\\", value)
    if isinstance(value, Mapping):
        return {_escaped(key, tag): _escaped(inner, tag) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_escaped(inner, tag) for inner in cast("list[Any]", value)]
    return value
