"""Joining `Text` without losing the places of its characters, and splitting a command line into
arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

from evaluator.nodes import Mark, Span, Text
from evaluator.patterns import Pattern

MAX_COMMAND_PARTS = 5000

_BLOCK = r"(?>\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\})"
_ONE = r"(?!\{[{%#])"  # not the start of a block that is not closed
_SINGLE = rf"'(?:{_BLOCK}|{_ONE}[^'])*+"
_DOUBLE = rf'"(?:{_BLOCK}|\\["\\]|{_ONE}[^"])*+'
_PART = Pattern(
    rf"""(?P<space>\s+)|(?P<block>{_BLOCK})|(?P<single>{_SINGLE}')|(?P<double>{_DOUBLE}")"""
    rf"""|\\(?P<escaped>.)|(?P<plain>(?:{_ONE}[^\s'"\\])+)""",
    "s",
)
_UNCLOSED = Pattern(rf"{_SINGLE}|{_DOUBLE}", "s")
_IN_DOUBLE = Pattern(rf"""{_BLOCK}|\\(?=["\\])(.)""", "s")


def join_texts(parts: Sequence[Text], span: Span) -> Text:
    """The parts one after the other; `span` is the place of an empty whole."""
    filled = [part for part in parts if part.value]
    if not filled:
        return Text("", span)
    if len(filled) == 1:
        return filled[0]
    marks: list[Mark] = []
    offset = 0
    for part in filled:
        marks.append(Mark(offset, part.span))
        marks += [Mark(offset + mark.offset, mark.span) for mark in part.marks if mark.offset]
        offset += len(part.value)
    return Text("".join(part.value for part in filled), filled[0].span, marks=tuple(marks))


def expression_of(text: Text) -> Text:
    """`text` without outer blank space, and without the braces where it is one `{{ … }}` as a
    whole.
    """
    value = text.value
    start = len(value) - len(value.lstrip())
    end = len(value.rstrip())
    if value.startswith("{{", start) and value.find("}}", start, end) == end - 2 >= start + 2:
        inner = value[start + 2 : end - 2]
        if "{{" not in inner:
            start += 2 + len(inner) - len(inner.lstrip())
            end -= 2 + len(inner) - len(inner.rstrip())
    return text.part(start, max(start, end))


class SplitError(ValueError):
    """A command line that cannot be split; `offset` is the place of what is not closed."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def split_command(text: Text) -> tuple[Text, ...]:
    """`text` as arguments, split at blank space as a POSIX shell splits words.

    Single quotes keep everything, double quotes all but `\\"` and `\\\\`, a backslash the next
    character. `{{ … }}`, `{% … %}` and `{# … #}` stay whole, wherever they stand. Nothing is
    expanded.
    Raises: SplitError, for a quote, a placeholder or a backslash that is not completed,
    and for a command that is too long.
    """
    arguments: list[Text] = []
    word: list[Text] | None = None
    position = parts = 0
    while position < len(text.value):
        parts += 1
        if parts > MAX_COMMAND_PARTS:
            raise SplitError(
                f"the command has more than {MAX_COMMAND_PARTS:,} words, spaces and quotes",
                position,
            )
        found = _PART.match(text.value, position)
        if found is None:
            raise _unclosed(text.value, position)
        start = position
        position = found.end()
        if found.lastgroup == "space":
            if word is not None:
                arguments.append(join_texts(word, text.locate(start)))
            word = None
        else:
            word = [] if word is None else word
            word += _without_quotes(text, start, end=position, kind=found.lastgroup or "")
    if word is not None:
        arguments.append(join_texts(word, text.locate(position)))
    return tuple(arguments)


_SHELL_OPERATOR = Pattern(r"(?:\|\|?|&&?|[^\s'\"\\]*+(?<=;))(?=\s|\Z)|\d?>|&>|<|\$\(|`")


def find_shell_operator(text: Text) -> tuple[str, int] | None:
    """The first word of a command that only a shell understands, and its offset: a pipe, a list, a
    redirection.

    Quoted and escaped words are arguments, and so is a word that has such a character inside.
    `text` can be split, see `split_command`.
    """
    is_start = True
    for part in _PART.finditer(text.value):
        if (
            is_start
            and part.lastgroup == "plain"
            and _SHELL_OPERATOR.match(text.value, part.start())
        ):
            return part[0], part.start()
        is_start = part.lastgroup == "space"
    return None


def _without_quotes(text: Text, start: int, end: int, kind: str) -> list[Text]:
    """A part of a word without its quotes and the backslashes that escape."""
    if kind == "escaped":
        return [text.part(start + 1, end)]
    if kind == "single":
        return [text.part(start + 1, end - 1)]
    if kind != "double":
        return [text.part(start, end)]
    parts: list[Text] = []
    begin = start + 1
    for escape in _IN_DOUBLE.finditer(text.value, begin, end - 1):
        if escape[1] is not None:
            parts.append(text.part(begin, escape.start()))
            begin = escape.start(1)
    return [*parts, text.part(begin, end - 1)]


def _unclosed(value: str, position: int) -> SplitError:
    if value[position] == "\\":
        return SplitError("nothing follows the backslash", position)
    quoted = _UNCLOSED.match(value, position)
    block = position if quoted is None else quoted.end()
    if block < len(value):
        return SplitError(f"`{value[block : block + 2]}` is not closed", block)
    return SplitError(f"the quote {value[position]} is not closed", position)
