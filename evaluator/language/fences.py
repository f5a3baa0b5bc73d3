"""Fences: tags around text from outside, which that text cannot close.

A prompt marks text of files, tools, rows and models with tags such as `<document>`. Such a text
could contain the tag itself, close it, and go on in the name of the template. So a `<` that begins
one of the tags around a text is written as `<\\` inside it: `<\\/document>`. Everything else is
unchanged, other tags included: code and HTML stay as they are. Equal texts give equal prompts.

Every place that puts text from outside between tags uses this module: `block` where the program
writes the tags, `FencedScope` where a template does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, cast

from evaluator.errors.messages import visible
from evaluator.language.scopes import MISSING, Scope
from evaluator.language.syntax import CACHE_SIZE, has_markup
from evaluator.patterns import Pattern

_CLOSING = Pattern(r"</\s*+([A-Za-z_][\w.:-]*)\s*+>")


def fence(text: str, names: Iterable[str]) -> str:
    """`text` with the tags called `names` escaped, so that it cannot close or open one of them.

    A tag that the end of the text cuts off is escaped too: the next text could complete it.
    """
    if "<" not in text:
        return text
    return _pattern(tuple(names)).sub(r"<\\", text)


def fence_value(value: Any, names: Iterable[str]) -> Any:
    """`value` with each text in it escaped as by `fence`, the keys of mappings included."""
    return _escaped(value, _pattern(tuple(names)))


def block(tag: str, text: str, /, *more: str, **attributes: str) -> str:
    """`text` between the tags `<tag …>` and `</tag>`, on lines of its own.

    The text cannot close this tag, nor the tags in `more`, which are around it too.
    """
    from html import escape

    shown = "".join(
        f' {key}="{escape(visible(value, one_line=True))}"' for key, value in attributes.items()
    )
    return f"<{tag}{shown}>\n{fence(text, (tag, *more))}\n</{tag}>"


@lru_cache(CACHE_SIZE)
def tags_around(source: str) -> tuple[str, ...]:
    """The names of the tags that the text of a template has around an expression, sorted."""
    if "</" not in source:
        return ()
    found: set[str] = set()
    for closing in _CLOSING.finditer(source):
        opening = source.rfind(f"<{closing[1]}", 0, closing.start())
        if opening >= 0 and has_markup(source[opening : closing.start()]):
            found.add(closing[1])
    return tuple(sorted(found))


class FencedScope(Scope):
    """The names of `inner`; the texts in their values cannot close or open the tags called
    `names`.
    """

    __slots__ = ("_inner", "_known", "_pattern")

    def __init__(self, inner: Scope, names: tuple[str, ...]) -> None:
        super().__init__()
        self._inner = inner
        self._pattern = _pattern(names)
        self._known: dict[str, Any] = {}

    def get(self, name: str, default: Any = MISSING) -> Any:
        if name not in self._known:
            value = self._inner.get(name)
            if value is MISSING:
                return default
            self._known[name] = _escaped(value, self._pattern)
        return self._known[name]

    def names(self) -> list[str]:
        return self._inner.names()


@lru_cache(CACHE_SIZE)
def _pattern(names: tuple[str, ...]) -> Pattern:
    either = "|".join(map(re.escape, sorted(names)))
    starts = {name[:length] for name in names for length in range(len(name))}
    cut = "|".join(map(re.escape, sorted(starts, key=len, reverse=True)))
    return Pattern(rf"<(?=\s*+/?\s*+(?:(?:{either})(?![\w.:-])|(?:{cut})\Z))", "i")


def _escaped(value: Any, tag: Pattern) -> Any:
    if isinstance(value, str):
        if "<" in value:
            return tag.sub(r"<\\", value)
        return value
    if isinstance(value, Mapping):
        return {
            _escaped(key, tag): _escaped(inner, tag)
            for key, inner in cast("Mapping[Any, Any]", value).items()
        }
    if isinstance(value, list | tuple):
        return [_escaped(inner, tag) for inner in cast("list[Any]", value)]
    return value
