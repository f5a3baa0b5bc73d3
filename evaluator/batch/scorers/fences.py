"""What a judge is shown stays between the tags that its template puts around it.

A template says with tags, such as `<work>`, where a text of somebody else's begins and ends. A text that holds the tag
itself could end its place there, and speak to the judge in the template's name. So a `<` that begins a tag which the
template has around an expression is shown as `<\\`: `<\\/work>`. All else is shown as it is, other tags too: code and
HTML are judged as they were written. One text gives one prompt, always.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from evaluator.library import TemplateLibrary
from evaluator.library.calls import texts_of
from evaluator.library.syntax import has_markup
from evaluator.nodes import Expression, Node, TopLevel, children

_CLOSING = re.compile(r"</\s*+([A-Za-z_][\w.:-]*)\s*+>")


def within_fences(library: TemplateLibrary, template: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """`inputs` for `template`, without its tags in any text of theirs. A template that is not there has none."""
    if template not in library:
        return dict(inputs)
    names = {name for each in (template, *library.called_by(template)) for name in _tags(library.get(each).node)}
    if not names:
        return dict(inputs)
    either = "|".join(map(re.escape, sorted(names)))
    tag = re.compile(rf"<(?=\s*+/?\s*+(?:{either})(?![\w.:-]))", re.IGNORECASE)
    return {name: _shown(value, tag) for name, value in inputs.items()}


def _tags(node: TopLevel | Node) -> Iterator[str]:
    """The names of the tags that stand around an expression in the texts of `node`."""
    for text in texts_of(node):
        if not isinstance(text, Expression):
            yield from _around(text.value)
    for child in children(node):
        yield from _tags(child)


def _around(text: str) -> Iterator[str]:
    for closing in _CLOSING.finditer(text):
        opening = text.rfind(f"<{closing[1]}", 0, closing.start())
        if opening >= 0 and has_markup(text[opening : closing.start()]):
            yield closing[1]


def _shown(value: Any, tag: re.Pattern[str]) -> Any:
    if isinstance(value, str):
        return tag.sub(r"<\\", value)
    if isinstance(value, Mapping):
        return {_shown(key, tag): _shown(inner, tag) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_shown(inner, tag) for inner in cast("list[Any]", value)]
    return value
