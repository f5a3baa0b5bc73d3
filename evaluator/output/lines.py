"""Gives lines as Markdown and YAML write them the shape of a schema: members, items, rows or texts.

Nothing is dropped or filled in: a line that belongs to none of them leaves no reading, except prose
before and after.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, cast

from evaluator.lazy_dataclass import frozen
from evaluator.output.coerce import Guide
from evaluator.output.fast_check import is_dict, is_list
from evaluator.output.strict import read_as_meant
from evaluator.output.words import find_word
from evaluator.patterns import Match, Pattern

_MAX_LABEL = 60
_MAX_PROSE = 400
_ITEM_MARK = Pattern(
    r"(?:([-*+•–—·▪◦‣●○])[ \t]+|\(?(\d{1,4})(?:[.)][ \t]+|[、．）][ \t]*)|\(?([a-z])\)[ \t]+"
    r"|([①-⑳])[ \t]*)"
    r"(?:\[ \][ \t]+)?(?=\S)"
)
_DASH = Pattern(r"([^\n|{}\[\]<>]{1,64}?)[ \t]+[-–—][ \t]+(?=\S)")
_CLOSING = Pattern(
    r"\b(?:let me know|hope (?:this|that)|feel free|anything else|would you like|note)\b", "i"
)
_HEADING = Pattern(r"#{1,6}[ \t]+(?=\S)")
_LABEL = Pattern(r"([^\n:：=|{}\[\]<>]{1,64}?)[ \t]*(?:[:：](?!//)|=(?!=))")
_RULE = Pattern(r"[-*_]{3,}")
_MARKS = "*_`\"' \t"
_SENTENCE_END = Pattern(r"[.!?:;,…]\Z")
_REFUSAL = Pattern(r"\b(?:sorry|cannot|can['’]t|unable|won['’]t|apologi[sz]e)\b", "i")
_ALMOST_ITEM = Pattern(r"[-*+•–—·][^\W\d]|\d{1,3}[.)][^\W\d]")
_CODE = Pattern(r"[=;(){}\[\]]|->")
_NO_LINE = tuple("{}[]<|#>`")
_MAX_WORDS = 4
_SENTENCE_WORDS = """
    i you we he she it they me us them my your our their this that these those there here is are was
    were am be been have has had do does did will would can could should may might must not no none
    nothing please let let's thank thanks sorry hello hi hey dear sure ok okay well hmm yes regards
    sincerely cheers note because but so if when although n/a ich du wir ihr es ist sind war hat
    haben wird nicht kein keine bitte danke hallo je tu nous vous il elle est sont pas merci bonjour
    yo tú él ella son está gracias hola
"""
# Words of sentences, greetings and refusals, which items of a list rarely have.
_NO_ITEM = frozenset(_SENTENCE_WORDS.split())
_NOTHING = ("none", "n/a", "null", "nothing")


class NoReading(Exception):
    """What is written does not have the form that was asked for."""


@frozen
class Line:
    """A line that is not blank: its indentation, its text, and whether a blank line is before
    it.
    """

    indent: int
    text: str
    after_blank: bool


@frozen
class Lines:
    """Lines whose meaning the schema decides. With `folded` they are one text without line
    breaks.
    """

    lines: tuple[Line, ...]
    folded: bool = False

    @staticmethod
    def of(text: str) -> Lines:
        found: list[Line] = []
        after_blank = False
        for line in text.expandtabs(4).splitlines():
            if _RULE.fullmatch(line.strip()):
                stripped = ""
            else:
                stripped = line.strip()
            if stripped:
                found.append(
                    Line(len(line) - len(line.lstrip()), stripped, after_blank=after_blank)
                )
            after_blank = not stripped
        return Lines(tuple(found))

    def text(self) -> str:
        if self.folded:
            return " ".join(line.text for line in self.lines)
        least = min((line.indent for line in self.lines), default=0)
        parts = [
            ("\n" if line.after_blank else "") + " " * (line.indent - least) + line.text
            for line in self.lines
        ]
        return "\n".join(parts).strip()


@frozen
class _Label:
    """A known label of a line: the property, what follows it, and whether it is a heading."""

    name: str
    rest: str
    is_heading: bool


def _label_of(text: str, names: Iterable[str]) -> tuple[bool, _Label | None]:
    """Whether a line has the form of a label, and the property that it names."""
    names = list(names)
    heading = _HEADING.match(text)
    item = _ITEM_MARK.match(text)
    mark = heading or item
    if mark:
        bare = text[mark.end() :]
    else:
        bare = text
    match = _LABEL.match(bare)
    if (
        match is None
        and (dash := _DASH.match(bare)) is not None
        and find_word(dash[1].strip(_MARKS), names) is not None
    ):
        match = dash
    if match is not None:
        label = match[1].strip(_MARKS)
        if match[1].lstrip()[:1] in ("*", "_"):
            opening = match[1].lstrip()[:2]
        else:
            opening = match[1].lstrip()[:1]
        rest = bare[match.end() :].strip()
        if opening and opening[0] in "*_`" and not match[1].rstrip().endswith(opening):
            rest = rest.removeprefix(opening).removeprefix(opening[0]).strip()  # **Label:** value
        if len(label) <= _MAX_LABEL:
            name = find_word(label, names)
        else:
            name = None
        return True, _Label(
            name, rest, is_heading=heading is not None
        ) if name is not None else None
    is_title = heading is not None or (bare[:2] in ("**", "__") and bare.endswith(bare[:2]))
    if is_title and len(bare) <= _MAX_LABEL:
        name = find_word(bare.strip(_MARKS + "#"), names)
    else:
        name = None
    return heading is not None, _Label(name, "", is_heading=True) if name is not None else None


def _offset(line: Line) -> int:
    """The column of a line's text behind the mark of an item."""
    item = _ITEM_MARK.match(line.text)
    return line.indent + (item.end() if item is not None else 0)


def _members(lines: Lines, names: Iterable[str]) -> list[tuple[str, Any]]:
    """The labelled members of lines, in order, each with a text, Lines, or None where nothing is
    written.
    """
    names = list(names)
    labels = [_label_of(line.text, names) for line in lines.lines]
    first = next((index for index, (_, label) in enumerate(labels) if label is not None), None)
    if first is None:
        raise NoReading
    head = lines.lines[first]
    column = _offset(lines.lines[first])
    has_headings = cast(_Label, labels[first][1]).is_heading
    starts: list[int] = []
    is_open = False
    for index, line in enumerate(lines.lines):
        is_label, label = labels[index]
        same = line.indent == head.indent or _offset(line) == column
        if label is not None and same and label.is_heading >= has_headings and index >= first:
            starts.append(index)
            is_open = not label.rest and _ITEM_MARK.match(head.text) is None
        elif (
            is_label
            and same
            and not (is_open and _ITEM_MARK.match(line.text))
            and not (has_headings and index > first)
        ):
            ends_with_value = line.text.rstrip(_MARKS)[-1:] not in (":", "：")
            next_to = index + 1 < len(lines.lines) and not lines.lines[index + 1].after_blank
            if (index < first and ends_with_value and next_to) or (
                index > first and not line.after_blank
            ):
                raise NoReading  # an unknown label among the others
    found: list[tuple[str, Any]] = []
    for start, end in zip(starts, [*starts[1:], len(lines.lines)], strict=True):
        label = cast(_Label, labels[start][1])
        body = lines.lines[start + 1 : end]
        found.append(
            (
                label.name,
                _body(
                    label, body, indent=lines.lines[start].indent, is_last=end == len(lines.lines)
                ),
            )
        )
    if len(found) > 1 and all(
        isinstance(value, str) and value.endswith(",") for _, value in found[:-1]
    ):
        return [
            (name, value.removesuffix(",") if isinstance(value, str) else value)
            for name, value in found
        ]
    return found


def _body(label: _Label, body: tuple[Line, ...], indent: int, is_last: bool) -> Any:
    if label.rest in ("|", "|-", ">", ">-"):
        if body:
            return Lines(body, folded=label.rest[0] == ">")
        return None
    if not label.rest:
        if body:
            return Lines(body)
        return None
    split = next((index for index, line in enumerate(body) if line.after_blank), len(body))
    if any(line.indent <= indent or _ITEM_MARK.match(line.text) for line in body[:split]):
        raise NoReading
    if split < len(body) and not (is_last and _is_prose(body[split:])):
        raise NoReading
    if (
        split < len(body)
        and _SENTENCE_END.search(label.rest)
        and not _CLOSING.search(body[split].text)
    ):
        raise NoReading  # it may be the second paragraph of the value
    return " ".join((label.rest, *(line.text for line in body[:split])))


def _is_prose(lines: tuple[Line, ...]) -> bool:
    """Whether lines are one short paragraph of text around a value."""
    return (
        not any(line.after_blank for line in lines[1:])
        and sum(len(line.text) for line in lines) <= _MAX_PROSE
        and not any(_ITEM_MARK.match(line.text) or line.text.startswith("|") for line in lines)
    )


def _items(lines: Lines, *, is_free: bool = False, is_whole: bool = False) -> list[Any]:
    """The items of a list in lines, each a text or Lines; without marks, each line of a list of
    short lines.

    With `is_free` an item may be any text, so lines without marks must not look like prose; with
    `is_whole` they are the whole answer, and two lines are too few to be a list.
    """
    marks = [_ITEM_MARK.match(line.text) for line in lines.lines]
    first = next((index for index, mark in enumerate(marks) if mark is not None), None)
    if first is None:
        return _plain_items(lines, is_free=is_free, is_whole=is_whole)
    if any(_REFUSAL.search(line.text) for line in lines.lines[:first]):
        raise NoReading
    base = lines.lines[first].indent
    kind = cast(Match, marks[first]).lastindex
    found: list[list[Line]] = []
    number = 0
    for index, line in enumerate(lines.lines[first:], first):
        mark = marks[index]
        if mark is not None and line.indent == base:
            written = mark[1] or mark[2] or mark[3] or mark[4]
            if kind == 2:
                following = int(written)
            else:
                following = ord(written)
            if mark.lastindex != kind or (found and following != number + (0 if kind == 1 else 1)):
                raise NoReading
            number = following
            found.append([Line(base + mark.end(), line.text[mark.end() :], after_blank=False)])
        elif line.indent > base:
            found[-1].append(line)
        elif line.after_blank and mark is None and _is_prose(lines.lines[index:]):
            break
        else:
            raise NoReading
    if len(found) == 1 and found[0][0].text.strip("*_. ").casefold() in _NOTHING:
        raise NoReading
    texts = [item[0].text for item in found if len(item) == 1]
    if len(texts) == len(found):
        return _without_commas(texts)
    return [Lines(tuple(item)) if len(item) > 1 else item[0].text for item in found]


def _without_commas(texts: list[str]) -> list[str]:
    """Items without the comma or semicolon after each but the last, and the mark after the last."""
    if len(texts) > 1 and any(
        all(text.endswith(mark) for text in texts[:-1]) for mark in (",", ";")
    ):
        return [text[:-1].rstrip() for text in texts[:-1]] + [texts[-1].rstrip(",;.")]
    return texts


def _plain_items(lines: Lines, *, is_free: bool, is_whole: bool) -> list[str]:
    texts = [line.text for line in lines.lines]
    is_titled = len(texts) > 2 and texts[0].endswith((":", "："))
    if is_titled:
        texts = texts[1:]
    if len(texts) < 2 or any(line.after_blank for line in lines.lines[-len(texts) + 1 :]):
        raise NoReading
    texts = _without_commas(texts)
    if any(_ALMOST_ITEM.match(text) and text[0] != text[-1] for text in texts):
        raise NoReading
    plain = [text for text in texts if len(text) < 2 or text[0] != text[-1] or text[0] not in "\"'"]
    for text in plain:
        if text.startswith(_NO_LINE) or _SENTENCE_END.search(text) or len(text) > _MAX_LABEL:
            raise NoReading
    if (
        is_free
        and plain
        and (_is_like_prose(plain) or (is_whole and not is_titled and len(texts) < 3))
    ):
        raise NoReading
    return texts


def _is_like_prose(texts: list[str]) -> bool:
    """Whether lines may be sentences, a letter or code: long, with words of sentences, or lower
    case after upper.
    """
    words = [text.casefold().replace("’", "'").split() for text in texts]
    return (
        any(len(line) > _MAX_WORDS or not _NO_ITEM.isdisjoint(line) for line in words)
        or len({text[0].isupper() for text in texts if text[0].isalpha()}) > 1
        or any(_CODE.search(text) for text in texts)
    )


def _rows(lines: Lines, names: Iterable[str]) -> list[Any]:
    """The rows in lines: groups of labels that begin with the same label, else the items of a
    list.
    """
    names = list(names)
    labels = [_label_of(line.text, names)[1] for line in lines.lines]
    first = next((index for index, label in enumerate(labels) if label is not None), None)
    if first is None:
        return _items(lines)
    head = lines.lines[first]
    name = cast(_Label, labels[first]).name
    starts = [
        index
        for index, (line, label) in enumerate(zip(lines.lines, labels, strict=True))
        if label is not None and label.name == name and line.indent == head.indent
    ]
    if len(starts) < 2:
        return _items(lines)
    ends = [*starts[1:], len(labels)]
    return [Lines(lines.lines[start:end]) for start, end in zip(starts, ends, strict=True)]


_MAX_DEPTH = 12
# Of free texts in one line only a list of short ones is not prose.
_MIN_FREE = 3
_MAX_FREE_WORDS = 2
_BETWEEN_LABELS = Pattern(r"[,;|][ \t]+")
_WRAPS = ("**", "__", "`", "*", "_")
_NULLS = ("null", "none", "~")
_NUMBER = Pattern(r"-?\d{1,18}(?:\.\d{1,18})?")
_OBJECT = frozenset({"object"})
_ARRAY = frozenset({"array"})


class Shaper:
    """Gives written values (texts, Lines, lists, and dicts with labels as keys) the shape of a
    schema.

    Texts stay texts: `conform` reads them as the scalars that the schema asks for.
    """

    def __init__(self, guide: Guide) -> None:
        self._guide = guide

    def shape(self, written: Any, node: Any, depth: int = 0) -> Any:
        """The value; None where nothing is written. Raises: NoReading."""
        types = self._guide.types(node)
        if types is None or depth > _MAX_DEPTH:
            raise NoReading
        if written is None or (
            isinstance(written, str) and written.strip() in ("", *_NULLS) and "null" in types
        ):
            return None
        kinds = types - {"null"}
        if kinds == _OBJECT:
            return self._object(written, node, depth=depth)
        if kinds == _ARRAY:
            return self._array(written, node, depth=depth)
        if kinds & (_OBJECT | _ARRAY):
            raise NoReading
        return _scalar(written, types)

    def _object(self, written: Any, node: Any, depth: int) -> Any:
        if isinstance(written, str):
            if written[:1] == "{":
                return written
            written = Lines.of(_BETWEEN_LABELS.sub("\n", written))
        elif isinstance(written, Lines) and len(written.lines) == 1:
            written = Lines.of(_BETWEEN_LABELS.sub("\n", written.lines[0].text))
        names = list(self._all_properties(node))
        if isinstance(written, Lines):
            pairs = _members(written, names)
        elif is_dict(written):
            pairs = [
                (find_word(label.lstrip("@"), names) or "", value)
                for label, value in written.items()
            ]
        else:
            raise NoReading
        labels = [name for name, _ in pairs]
        if not pairs or "" in labels or len(set(labels)) < len(labels):
            raise NoReading
        texts = {name: value for name, value in pairs if isinstance(value, str)}
        properties = self._guide.properties(node, texts)
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name not in properties:
                raise NoReading
            shaped = self.shape(value, properties[name], depth=depth + 1)
            if shaped is not None or "null" in (self._guide.types(properties[name]) or ()):
                found[name] = shaped
        return found

    def _all_properties(self, node: Any) -> dict[str, Any]:
        """The properties of an object node, with those of all its alternatives."""
        found = dict(self._guide.properties(node))
        for part in self._guide.parts(node, "object"):
            for keyword in ("anyOf", "oneOf"):
                for branch in cast(list[Any], part.get(keyword) or []):
                    found |= self._guide.properties(branch)
        return found

    def _array(self, written: Any, node: Any, depth: int) -> Any:
        child = self._guide.items(node)
        kinds = (self._guide.types(child) or frozenset[str]()) - {"null"}
        if not kinds:
            raise NoReading
        while is_dict(written) and len(written) == 1:
            written = next(iter(written.values()))
        if isinstance(written, str):
            if written[:1] == "[":
                return written
            written = _comma_items(written)
        elif isinstance(written, Lines) and kinds == _OBJECT:
            written = _rows(written, self._all_properties(child))
        elif (
            isinstance(written, Lines)
            and len(written.lines) == 1
            and not _ITEM_MARK.match(written.lines[0].text)
        ):
            written = _one_line(
                written.lines[0].text, is_free="string" in kinds and not self._guide.words(child)
            )
        elif isinstance(written, Lines):
            is_free = "string" in kinds and not self._guide.words(child)
            written = _items(written, is_free=is_free, is_whole=depth == 0)
            if kinds != _ARRAY and any(isinstance(item, Lines) for item in written):
                raise NoReading
        if not is_list(written):
            raise NoReading
        found = [self.shape(item, child, depth=depth + 1) for item in written]
        if not found or None in found:
            raise NoReading
        return found


def _one_line(text: str, *, is_free: bool) -> Any:
    """The items of one line: strings in quotes, or scalars that the schema checks. Free text may be
    prose.
    """
    if text[0] == '"':
        try:
            return read_as_meant(f"[{text}]")
        except (ValueError, RecursionError):
            raise NoReading from None
    parts = _comma_items(text)
    if is_free and (
        len(parts) < _MIN_FREE
        or _is_like_prose(parts)
        or any(len(part.split()) > _MAX_FREE_WORDS for part in parts)
    ):
        raise NoReading
    return parts


def _comma_items(text: str) -> list[str]:
    """The items of `sea, photo`: short, and without a word that joins the last two."""
    parts = [part.strip() for part in re.split(r"[,;][ \t]+|[،、，；]\s*", text)]
    if len(parts) < 2 or any(
        not part or len(part.split()) > 5 or _SENTENCE_END.search(part) for part in parts
    ):
        raise NoReading
    if re.search(r"\b(?:and|or|und|oder|et|ou|y|o)\b", parts[-1]):
        raise NoReading
    return parts


def _scalar(written: Any, types: frozenset[str]) -> Any:
    if isinstance(written, Lines):
        if "string" not in types and len(written.lines) > 1:
            raise NoReading
        written = written.text()
    if isinstance(written, dict | list):
        raise NoReading
    if not isinstance(written, str):
        return written
    text = written.strip()
    if text[:1] == '"':
        try:
            return read_as_meant(text)
        except (ValueError, RecursionError):
            raise NoReading from None
    if len(text) > 1 and text[0] == text[-1] == "'" and "'" not in text[1:-1]:
        return text[1:-1]
    if text[:1] in ("{", "["):
        raise NoReading
    for mark in _WRAPS:
        if (
            len(text) > 2 * len(mark)
            and text.startswith(mark)
            and text.endswith(mark)
            and text.count(mark) == 2
        ):
            text = text[len(mark) : -len(mark)].strip()
    if "string" in types:
        if types & {"number", "integer"} and _NUMBER.fullmatch(text):
            if not re.match(r"-?0\d", text):
                return read_as_meant(text)
            return text
        if "boolean" in types and text.lower() in ("true", "false"):
            return text.lower() == "true"
    return text
