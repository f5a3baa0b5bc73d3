"""Reads objects and arrays that are not written as JSON: lists, labelled lines, tables, XML,
constructor calls.

Only where a schema asks for an object or an array, after JSON was looked for. A value is read only
if exactly one form gives a value that fits the schema.

Gives what is written in another form than JSON the shape of a schema. Nothing is dropped or
filled in.
"""

from __future__ import annotations

import csv
import re
import textwrap
from collections.abc import Iterator
from typing import Any, cast

from evaluator.output.choose import CheckedValue, conform
from evaluator.output.coerce import Guide
from evaluator.output.extract import Extract, fences
from evaluator.output.lines import (
    ITEM_MARK,
    SENTENCE_END,
    Lines,
    NoReading,
    is_like_prose,
    items,
    members,
    rows,
)
from evaluator.output.reader import BlockReader
from evaluator.output.result import MESSAGES
from evaluator.output.schema import NotChecked, Schema
from evaluator.output.strict import StrictScanner, Unreadable, read_as_meant
from evaluator.output.words import find_word
from evaluator.patterns import Pattern

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
            pairs = members(written, names)
        elif isinstance(written, dict):
            known = cast(dict[str, Any], written)
            pairs = [
                (find_word(label.lstrip("@"), names) or "", value) for label, value in known.items()
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
        while isinstance(written, dict) and len(cast(dict[str, Any], written)) == 1:
            written = next(iter(cast(dict[str, Any], written).values()))
        if isinstance(written, str):
            if written[:1] == "[":
                return written
            written = _comma_items(written)
        elif isinstance(written, Lines) and kinds == _OBJECT:
            written = rows(written, self._all_properties(child))
        elif (
            isinstance(written, Lines)
            and len(written.lines) == 1
            and not ITEM_MARK.match(written.lines[0].text)
        ):
            written = _one_line(
                written.lines[0].text, is_free="string" in kinds and not self._guide.words(child)
            )
        elif isinstance(written, Lines):
            is_free = "string" in kinds and not self._guide.words(child)
            written = items(written, is_free=is_free, is_whole=depth == 0)
            if kinds != _ARRAY and any(isinstance(item, Lines) for item in written):
                raise NoReading
        if not isinstance(written, list):
            raise NoReading
        found = [self.shape(item, child, depth=depth + 1) for item in cast(list[Any], written)]
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
        or is_like_prose(parts)
        or any(len(part.split()) > _MAX_FREE_WORDS for part in parts)
    ):
        raise NoReading
    return parts


def _comma_items(text: str) -> list[str]:
    """The items of `sea, photo`: short, and without a word that joins the last two."""
    parts = [part.strip() for part in re.split(r"[,;][ \t]+|[،、，；]\s*", text)]
    if len(parts) < 2 or any(
        not part or len(part.split()) > 5 or SENTENCE_END.search(part) for part in parts
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


_CONTAINERS = frozenset({"object", "array"})
_MAX_LENGTH = 100_000
_MAX_LINES = 2_000
_MAX_REGIONS = 8
_MAX_STEPS = 5_000
_CALL = Pattern(
    r"\"(?:[^\"\\\n]|\\.)*+\"|'(?:[^'\\\n]|\\.)*+'"
    r"|[A-Za-z_][\w.]{0,80}+\((?=\s*(?:[A-Za-z_]\w{0,80}+\s*(?:=(?!=)|:\s)|\)))|[()]"
)
_IS_CALL = Pattern(
    r"(?:[A-Za-z_]\w{0,80}\s*=\s*)?(\[?\s*[A-Za-z_][\w.]{0,80}\(\s*[A-Za-z_]\w{0,80}\s*(?:=(?!=)"
    r"|:\s)[\s\S]*[)\]])"
)
_RULE = Pattern(
    r"\|?[ \t]*:?-{2,}:?[ \t]*(?:\|[ \t]*:?-{2,}:?[ \t]*)*\|?"
    r"|\|[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)+\|?"
)
_CELL = Pattern(r"(?<!\\)\|")
_SPECIAL_TOKEN = Pattern(r"<\|[\w ]{1,40}\|>")
_COMMENT = Pattern(r"(?:^|[ \t]+)#[ \t][^\n]*$", "m")
_WITH_COMMENTS = ("yaml", "yml", "toml", "ini")
_QUOTED_LINES = Pattern(r"^>[ \t]?", "m")
_ALL_QUOTED = Pattern(r">[^\n]*(?:\n>[^\n]*)*")
_PARAMETER = Pattern(
    r"<(parameter|param|argument|arg|field)(?:="
    r"|\s+name\s*=\s*)[\"']?([\w.-]{1,80})[\"']?\s*>([^<]*(?:<(?!/?(?:parameter|param|argument"
    r"|arg|field)\b)[^<]*)*)</\1\s*>"
    r"|<arg_key>([^<]{1,80})</arg_key>\s*<arg_value>([^<]*)</arg_value>"
)


def read_forms(found: Extract, schema: Schema | None) -> CheckedValue | None:
    """The value of a text in which no JSON fits the schema; None if it has no other form, or
    several readings.
    """
    guide = schema.guide if schema is not None else None
    if guide is not None:
        wanted = (guide.top or frozenset[str]()) - {"null"}
    else:
        wanted = frozenset[str]()
    if (
        schema is None
        or guide is None
        or len(wanted) != 1
        or not wanted <= _CONTAINERS
        or len(found.answer) > _MAX_LENGTH
    ):
        return None
    if "array" in wanted:
        kinds = (dict, list)
    else:
        kinds = (dict,)
    if any(
        block.value
        and block.value.__class__ in kinds
        and not (block.weak and block.value.__class__ is list)
        for block in found.blocks
    ):
        return None
    shaper = Shaper(guide)
    answer = _SPECIAL_TOKEN.sub("", found.answer)
    fenced = [
        _COMMENT.sub("", fence.content) if fence.language in _WITH_COMMENTS else fence.content
        for fence in fences(answer)[-_MAX_REGIONS:]
    ]
    for region in reversed(fenced or [answer]):
        fitting: list[CheckedValue] = []
        for kind, written in _forms(region, is_array="array" in wanted):
            try:
                shaped = shaper.shape(written, guide.root)
            except NoReading:
                continue
            conformed = conform(
                shaped, schema, *([MESSAGES["fence"]] if fenced else []), MESSAGES[kind]
            )
            if isinstance(conformed.error, NotChecked):
                return None
            if conformed.error is None:
                fitting.append(conformed)
        if fitting:
            if all(one.value == fitting[0].value for one in fitting):
                return fitting[0]
            return None
    return None


def _forms(region: str, *, is_array: bool) -> Iterator[tuple[str, Any]]:
    """What a text says in each form that it may have: texts, lists, dicts and Lines."""
    if "\n" in region.strip():
        region = textwrap.dedent(region).strip()
    else:
        region = region.strip()
    if _ALL_QUOTED.fullmatch(region):
        region = _QUOTED_LINES.sub("", region)
    else:
        region = region
    if not region or region.count("\n") > _MAX_LINES or region[0] == "{":
        return
    called = _read_calls(region)
    if called is not None:
        is_single = not is_array and isinstance(called, list) and len(cast(list[Any], called)) == 1
        yield "constructor", called[0] if is_single else called
        return
    parameters = list(_PARAMETER.finditer(region))
    if parameters:
        pairs = [
            (match[2] or match[4], (match[3] or match[5] or "").strip()) for match in parameters
        ]
        if len(dict(pairs)) == len(pairs):
            yield "elements", dict(pairs)
        return
    if "</" in region or "/>" in region:
        yield from (("elements", written) for written in _read_elements(region))
        return
    rows = _read_table(region) if "|" in region else None
    if rows is None:
        rows = _read_csv(region)
    if rows is not None:
        yield from (("table", written) for written in _objects(rows, is_array=is_array))
    yield "list" if is_array else "labels", Lines.of(region)


def _read_calls(region: str) -> Any:
    """The value of `Name(key=1)`, with the calls inside it; None if the text is not of this
    form.
    """
    match = _IS_CALL.fullmatch(region)
    if match is None:
        return None
    parts = list[str]()
    closers = list[str]()
    position = 0
    for token in _CALL.finditer(match[1]):
        if token[0][0] in "\"'":
            continue
        parts.append(match[1][position : token.start()])
        position = token.end()
        if token[0] == ")":
            parts.append(closers.pop() if closers else ")")
        else:
            closers.append(")" if token[0] == "(" else "}")
            parts.append("(" if token[0] == "(" else "{")
    text = "".join((*parts, match[1][position:]))
    reader = BlockReader(text, 0, strict=StrictScanner(text, _MAX_STEPS))
    try:
        reader.read()
    except Unreadable:
        return None
    if reader.cut or reader.end < len(text):
        return None
    return reader.value


def _read_elements(region: str) -> Iterator[Any]:
    """The elements of a text as dicts: as they are, and what is inside the only element around
    them.
    """
    from evaluator.xml.lenient import read_elements

    written = read_elements(region).value
    for _ in range(3):
        if not isinstance(written, dict):
            return
        yield written
        inside = cast(dict[str, Any], written)
        if len(inside) != 1:
            return
        written = next(iter(inside.values()))


def _read_table(region: str) -> list[list[str]] | None:
    """The rows of the only Markdown table of a text, the header first; None if there is none, or
    several.
    """
    lines = [line.strip() for line in region.splitlines()]
    rules = [
        index
        for index, line in enumerate(lines)
        if index and "-" in line and _RULE.fullmatch(line) and "|" in lines[index - 1]
    ]
    if len(rules) != 1:
        return None
    end = rules[0] + 1
    while end < len(lines) and "|" in lines[end]:
        end += 1
    return [_cells(line) for line in (lines[rules[0] - 1], *lines[rules[0] + 1 : end])]


def _cells(line: str) -> list[str]:
    return [
        cell.replace("\\|", "|").strip()
        for cell in _CELL.split(line.removeprefix("|").removesuffix("|"))
    ]


def _read_csv(region: str) -> list[list[str]] | None:
    """The rows of a text that consists of lines with the same number of cells."""
    header = region.split("\n", 1)[0]
    delimiter = next((mark for mark in "\t;," if mark in header), None)
    if delimiter is None or "\n" not in region:
        return None
    try:
        rows = list(
            csv.reader(region.splitlines(), delimiter=delimiter, skipinitialspace=True, strict=True)
        )
    except csv.Error:
        return None
    rows = [[cell.strip() for cell in row] for row in rows if row]
    if all(len(row) == len(rows[0]) for row in rows):
        return rows
    return None


def _objects(rows: list[list[str]], *, is_array: bool) -> Iterator[Any]:
    """The objects that rows below a header are; for one object the only row, or rows of a name and
    a value.
    """
    header, *body = rows
    if not body or any(len(row) != len(header) for row in body) or len(set(header)) < len(header):
        return
    objects = [{name: cell or None for name, cell in zip(header, row, strict=True)} for row in body]
    if is_array:
        yield objects
        return
    if len(objects) == 1:
        yield objects[0]
    if len(header) == 2 and len({row[0] for row in body}) == len(body):
        yield {name: value or None for name, value in body}
    if len(header) == 2 and len({row[0] for row in rows}) == len(rows):
        yield {name: value or None for name, value in rows}
