"""Decodes parts of a text: escapes, long words that are broken into lines, and dumps of bytes.

`Redactor` searches them for secrets. Each is found by a few characters that it cannot do without,
so that a text without any costs little; only the part of the text around them is decoded.
"""

from __future__ import annotations

import string
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from evaluator.lazy_dataclass import frozen
from evaluator.patterns import Match, Pattern

# A line break, also one that is escaped in a JSON text (several times).
_BREAK = r"(?:\r?\n|(?:\\{1,4}r)?\\{1,4}n)"
_LETTERS = "[A-Za-z0-9+/_=-]"
_LETTER_CHARS = string.ascii_letters + string.digits + "+/_=-"
_LINE_CHARS = 16
_MAX_RUN_CHARS = 1_000
_ESCAPE = Pattern(
    r"""
    \\{1,4} (?: u(?P<unicode>[0-9a-fA-F]{4}) | x(?P<byte>[0-9a-fA-F]{2}) | (?P<slash>/) )
    | &(?: \#(?P<decimal>[0-9]{1,7}) | \#[xX](?P<hex>[0-9a-fA-F]{1,6}) | (?P<name>[a-z]{2,4}) );
    """,
    "x",
)


def _after_letters(end: str) -> str:
    """An expression for the place after letters and `end`."""
    return rf"(?<={_LETTERS}{end})(?<={_LETTERS}.{{7}}{end})(?<={_LETTERS}{{{_LINE_CHARS}}}{end})"


_AFTER_LETTERS = "(?:" + _after_letters(r"\n") + "|" + _after_letters(r"\r\n") + ")"
_AFTER_ESCAPED = (
    "(?=[nr])(?:" + _after_letters(r"\\") + "|" + _after_letters(r"\\\\") + r")(?:n|r\\{1,2}n)"
)
# Each of these begins with a fixed character, which makes the search fast. Only escapes of ASCII
# characters count: others are in the usual forms of a secret. A line break counts after many
# letters: as it is, escaped as in JSON, and escaped twice. Most lines fail at the first letter.
_OF_BACKSLASH = "u00[2-7]|x[2-7]|/"
_HAS_ESCAPE = (
    Pattern(rf"\\(?:{_OF_BACKSLASH})"),
    Pattern("&(?:amp|lt|gt|quot|apos|#)"),
)
_HAS_WRAPPED_LINE = (
    Pattern(rf"\n(?<=[A-Za-z0-9+/_=\r-]\n){_AFTER_LETTERS}"),
    Pattern(rf"\\{_AFTER_ESCAPED}"),
)
HINTS = (
    ("\\", Pattern(rf"\\(?:{_OF_BACKSLASH}|{_AFTER_ESCAPED})")),
    ("&", _HAS_ESCAPE[1]),
    ("\n", _HAS_WRAPPED_LINE[0]),
)
"""One of these finds something in each text that `without_escapes` or `joined_lines` decodes. Each
has the character that a match begins with: a text without it needs no search.
"""
_WRAPPED = Pattern(rf"{_LETTERS}+(?:{_BREAK}[ \t>]*{_LETTERS}+)+")
_INDENTED_BREAK = Pattern(rf"{_BREAK}[ \t>]*")
_LINE_BREAK = Pattern(_BREAK)

_PREFIX = r"(?:0[xX]|\\{1,4}x)"
_PAIR = Pattern(rf"{_PREFIX}?([0-9a-fA-F]{{2}})")
_SEPARATED = Pattern(rf"(?:{_PREFIX}?[0-9a-fA-F]{{2}}(?:[\s:,;-]|\\{{1,4}}[rn]){{0,8}}){{4,}}")
# `xxd` (00000000: 6e6f 742d  not-), `hexdump -C` (00000000  6e 6f  |no|), `od -t x1` (0000000 6e).
_DUMP_LINE = Pattern(
    r"""
    [ \t]*
    (?: (?! [0-9a-fA-F]{4}[ ][0-9a-fA-F]{4}\b )  # words without an address
        [0-9a-fA-F]{4,16} (?: :[ \t]* | [ \t]+ ) )?
    (?P<bytes> [0-9a-fA-F]{2} (?: [ ]?[0-9a-fA-F]{2} | [ ]{2}(?=[^|]*\|)[0-9a-fA-F]{2} )* )
    (?= [ \t]{2} | [ \t]* (?: [|"'\\] | \Z ) )
    """,
    "x",
)
# `od -c` (0000000   n   o   t  \n 303): four columns for each byte.
_CHARACTER = Pattern(r"[ ]{3}([ -~]) | [ ]{2}\\[0abfnrtv] | [ ][0-7]{3}", "x")
_CHARACTER_LINE = Pattern(
    rf"""
    [ \t]* (?: (?<![ ]) [0-9a-fA-F]{{4,16}} )?
    (?P<bytes> (?: {_CHARACTER.pattern} ){{2,}} )
    """,
    "x",
)


CHARACTER_DUMP = Pattern("   [!-~]   [!-~]   [!-~]")
"""Finds something in each dump of characters (`od -c`) that holds a secret."""
_QUOTE = Pattern("[\"']")


@frozen
class Decoded:
    """A decoded part of a text. `find_pieces` returns the places in `text` from which on a piece of
    the source was taken, with its beginning and end there, in their order.

    A piece is copied, or it is the source of one character. `to_line_end`: what stands behind the
    bytes of a line shows them again.
    """

    text: str
    find_pieces: Callable[[], Sequence[tuple[int, int, int]]]
    to_line_end: bool = False

    def span_in_source(self, source: str, start: int, end: int) -> tuple[int, int]:
        """Where the characters from `start` to `end` come from."""
        pieces = self.find_pieces()
        place, begin, stop = _piece(pieces, start)
        is_copied = stop - begin == self._length(pieces, place)
        if is_copied:
            first = begin + start - place
        else:
            first = begin
        place, begin, stop = _piece(pieces, end - 1)
        is_copied = stop - begin == self._length(pieces, place)
        if is_copied:
            last = begin + end - place
        else:
            last = stop
        if self.to_line_end:
            line_end = _LINE_BREAK.search(source, last)
            if line_end is None:
                last = len(source)
            else:
                last = line_end.start()
        return first, last

    def _length(self, pieces: Sequence[tuple[int, int, int]], place: int) -> int:
        """The length in `text` of the piece that begins at `place`."""
        after = bisect_right(pieces, place, key=lambda piece: piece[0])
        if after < len(pieces):
            following = pieces[after][0]
        else:
            following = len(self.text)
        return following - place


def _piece(pieces: Sequence[tuple[int, int, int]], place: int) -> tuple[int, int, int]:
    return pieces[bisect_right(pieces, place, key=lambda piece: piece[0]) - 1]


def without_escapes(text: str) -> Iterator[Decoded]:
    r"""The text with `\u0041`, `\x41`, `\/` and the entities of XML and HTML replaced."""
    if any(pattern.search(text) for pattern in _HAS_ESCAPE):
        find_pieces = partial(_pieces, text, 0, len(text), token=_ESCAPE, character=_character)
        yield Decoded(_ESCAPE.sub(_character, text), find_pieces)


def _character(match: Match) -> str:
    groups = match.groupdict()
    if groups["slash"]:
        return "/"
    for name, base in (("unicode", 16), ("byte", 16), ("decimal", 10), ("hex", 16)):
        if groups[name]:
            number = int(groups[name], base)
            if number <= 0x10FFFF:
                return chr(number)
            return match[0]
    import html

    return html.unescape(match[0])


def joined_lines(text: str) -> Iterator[Decoded]:
    """Each run of lines without spaces, such as base64 in lines of 76 characters, as one line."""
    for pattern in _HAS_WRAPPED_LINE:
        at = 0
        for match in pattern.finditer(text):
            if match.start() < at:
                continue  # in the run before
            begin = max(at, match.start() - _MAX_RUN_CHARS)
            above = text[begin : match.start()].rstrip("\\\r").rstrip(_LETTER_CHARS)
            run = _WRAPPED.match(text, begin + len(above))
            if run is not None:
                at = run.end()
                find_pieces = partial(
                    _pieces, text, *run.span(), token=_INDENTED_BREAK, character=_nothing
                )
                yield Decoded(_INDENTED_BREAK.sub("", run[0]), find_pieces)


def _nothing(match: Match) -> str:
    return ""


def dumped_bytes(text: str, start: int, end: int) -> Iterator[Decoded]:
    """The bytes that a dump from about `start` to `end` shows: hexadecimal digits line by line,
    also in words that begin with their last byte (`od -x`), and separated by blanks, colons or
    commas; characters four columns apart (`od -c`).
    """
    breaks = list(_LINE_BREAK.finditer(text, 0, start))
    begin = 0
    if breaks:
        begin = breaks[-1].end()
    dump: list[tuple[str, int, int]] = []
    characters: list[tuple[str, int, int]] = []
    while begin <= end:
        line_break = _LINE_BREAK.search(text, begin)
        if line_break is None:
            stop = len(text)
        else:
            stop = line_break.start()
        line = _dump_line(text, begin, stop, form=_DUMP_LINE)
        if line is not None:
            dump += _bytes(text, *line.span("bytes"))
        line = _dump_line(text, begin, stop, form=_CHARACTER_LINE)
        if line is not None:
            characters += _characters(text, *line.span("bytes"))
        if line_break is None:
            break
        begin = line_break.end()
    yield _of_bytes(dump, to_line_end=True)
    yield _of_bytes(list(_swapped(dump)), to_line_end=True)
    yield _of_bytes(characters, to_line_end=False)
    for run in _SEPARATED.finditer(text, start, end):
        yield _of_bytes(_bytes(text, run.start(), run.end()), to_line_end=False)


def _dump_line(text: str, start: int, end: int, form: Pattern) -> Match | None:
    """The line of a dump from `start` to `end`; the first one may begin in a string."""
    line = form.match(text, start, end)
    for quote in () if line is not None else _QUOTE.finditer(text, start, end):
        line = form.match(text, quote.end(), end)
        if line is not None:
            break
    return line


def _bytes(text: str, start: int, end: int) -> list[tuple[str, int, int]]:
    return [
        (chr(int(pair[1], 16)), pair.start(), pair.end())
        for pair in _PAIR.finditer(text, start, end)
    ]


def _swapped(found: Sequence[tuple[str, int, int]]) -> Iterator[tuple[str, int, int]]:
    """The bytes of words of two bytes that are shown with the second byte first. Both have the
    place of the word.
    """
    at = 0
    while at < len(found):
        first, start, end = found[at]
        if at + 1 < len(found) and found[at + 1][1] == end:
            second, _, end = found[at + 1]
            yield second, start, end
            at += 1
        yield first, start, end
        at += 1


def _characters(text: str, start: int, end: int) -> list[tuple[str, int, int]]:
    return [
        (shown[1] or "\0", shown.start(), shown.end())
        for shown in _CHARACTER.finditer(text, start, end)
    ]


def _of_bytes(found: Sequence[tuple[str, int, int]], *, to_line_end: bool) -> Decoded:
    text = "".join(character for character, _, _ in found)
    pieces = [(place, start, end) for place, (_, start, end) in enumerate(found)]
    return Decoded(text, lambda: pieces, to_line_end=to_line_end)


def _pieces(
    text: str,
    start: int,
    end: int,
    token: Pattern,
    character: Callable[[Match], str],
) -> list[tuple[int, int, int]]:
    """The pieces of the text from `start` to `end` where each token is replaced by its character,
    or by nothing.
    """
    pieces: list[tuple[int, int, int]] = []
    place = 0
    at = start
    for match in token.finditer(text, start, end):
        for piece, begin, stop in (
            (text[at : match.start()], at, match.start()),
            (character(match), *match.span()),
        ):
            if piece:
                pieces.append((place, begin, stop))
                place += len(piece)
        at = match.end()
    pieces.append((place, at, end))
    return pieces
