"""Cutting and joining `Text` without losing a single place, and splitting a command line into arguments."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evaluator.nodes import Mark, Span, Text

_BLOCK = {"{{": "}}", "{%": "%}", "{#": "#}"}
_PLAIN = re.compile(r"""[^\s'"\\{]+|\{(?![{%#])""")


def slice_text(text: Text, start: int, end: int) -> Text:
    """The part of `text` from `start` to `end`."""
    if start == 0 and end == len(text.value):
        return text
    span = text.locate(start)
    inner = [Mark(mark.offset - start, mark.span) for mark in text.marks if start < mark.offset < end]
    return Text(text.value[start:end], span, (Mark(0, span), *inner) if inner else ())


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
    return Text("".join(part.value for part in filled), filled[0].span, tuple(marks))


def expression_of(text: Text) -> Text:
    """`text` without outer blank space, and without the braces where it is one `{{ … }}` as a whole."""
    value = text.value
    start, end = len(value) - len(value.lstrip()), len(value.rstrip())
    if value.startswith("{{", start) and value.find("}}", start, end) == end - 2 >= start + 2:
        inner = value[start + 2 : end - 2]
        if "{{" not in inner:
            start += 2 + len(inner) - len(inner.lstrip())
            end -= 2 + len(inner) - len(inner.rstrip())
    return slice_text(text, start, max(start, end))


class SplitError(ValueError):
    """A command line that cannot be split; `offset` is the place of what is not closed."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


def split_command(text: Text) -> tuple[Text, ...]:
    """`text` as arguments, split at blank space as a POSIX shell splits words.

    Single quotes keep everything, double quotes all but `\\"` and `\\\\`, a backslash the next character.
    `{{ … }}`, `{% … %}` and `{# … #}` stay whole, wherever they stand. Nothing is expanded.
    Raises: SplitError, for a quote, a placeholder or a backslash that is not completed.
    """
    value, size = text.value, len(text.value)
    arguments: list[Text] = []
    current: list[Text] | None = None
    position = 0
    while position < size:
        character = value[position]
        if character.isspace():
            if current is not None:
                arguments.append(join_texts(current, text.locate(position)))
                current = None
            position += 1
            continue
        if current is None:
            current = []
        start, end, following = _word_part(value, position)
        current += _parts(text, start, end, character == '"')
        position = following
    if current is not None:
        arguments.append(join_texts(current, text.locate(size)))
    return tuple(arguments)


def _word_part(value: str, position: int) -> tuple[int, int, int]:
    """Start and end of what belongs to the word, and where to go on."""
    character = value[position]
    if value[position : position + 2] in _BLOCK:
        end = _block_end(value, position)
        return position, end, end
    if character == "'" or character == '"':
        end = _quote_end(value, position)
        return position + 1, end, end + 1
    if character == "\\":
        if position + 1 >= len(value):
            raise SplitError("nothing follows the backslash", position)
        return position + 1, position + 2, position + 2
    match = _PLAIN.match(value, position)
    end = match.end() if match else position + 1
    return position, end, end


def _block_end(value: str, position: int) -> int:
    opening = value[position : position + 2]
    end = value.find(_BLOCK[opening], position + 2)
    if end < 0:
        raise SplitError(f"`{opening}` is not closed", position)
    return end + 2


def _quote_end(value: str, start: int) -> int:
    quote = value[start]
    position = start + 1
    while position < len(value):
        if value[position : position + 2] in _BLOCK:
            position = _block_end(value, position)
        elif value[position] == quote:
            return position
        else:
            position += 2 if quote == '"' and value[position : position + 2] in ('\\"', "\\\\") else 1
    raise SplitError(f"the quote {quote} is not closed", start)


def _parts(text: Text, start: int, end: int, escapes: bool) -> list[Text]:
    """The slice as it is, or, between double quotes, without the backslashes that escape."""
    if not escapes or "\\" not in text.value[start:end]:
        return [slice_text(text, start, end)]
    parts: list[Text] = []
    begin = position = start
    while position < end:
        if text.value[position : position + 2] in _BLOCK:
            position = _block_end(text.value, position)
        elif text.value[position : position + 2] in ('\\"', "\\\\"):
            parts.append(slice_text(text, begin, position))
            begin = position + 1
            position += 2
        else:
            position += 1
    parts.append(slice_text(text, begin, end))
    return parts
