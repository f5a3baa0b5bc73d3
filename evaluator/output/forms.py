"""Reads answers that are not written as JSON: scalars and words in prose, lists, labelled lines,
tables, XML, constructor calls.

Objects and arrays are read only where a schema asks for one, after JSON was looked for, and only if
exactly one form gives a value that fits the schema.
"""

from __future__ import annotations

import csv
import html
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from evaluator.output.extract import Extract
from evaluator.output.fast_check import is_dict, is_list
from evaluator.output.lines import Lines, NoReading, Shaper
from evaluator.output.reader import read_block
from evaluator.output.result import MESSAGES, NotChecked, OutputError, ParsedOutput
from evaluator.output.scalars import (
    find_answer,
    find_boolean,
    find_labelled_number,
    find_marked_number,
    find_number,
    has_multiplier,
    is_null,
    read_as,
    read_quantity,
)
from evaluator.output.schema import CheckedValue, Schema, conform
from evaluator.output.strict import StrictScanner
from evaluator.output.tokens import REASONING_WORDS
from evaluator.output.words import (
    find_first_line,
    find_first_word,
    find_labelled,
    find_only_word,
    find_word,
    is_taken_back,
)
from evaluator.patterns import Match, Pattern

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


_FENCE_LINE = Pattern(r"^[ \t]*+(`{3,}|~{3,})[ \t]*+([\w+#.-]{0,20})[ \t\r]*+$", "m")


class _Fence(NamedTuple):
    """A code fence: its language in lower case, its content, where it starts, and whether it has an
    end.
    """

    language: str
    content: str
    start: int
    is_closed: bool


def _fences(text: str) -> list[_Fence]:
    """The code fences of a text, whose marks are alone on their lines."""
    found: list[_Fence] = []
    opening: Match | None = None
    for line in _FENCE_LINE.finditer(text):
        if opening is None:
            opening = line
        elif not line[2] and line[1].startswith(opening[1]):
            content = text[opening.end() + 1 : line.start()]
            found.append(_Fence(opening[2].lower(), content, opening.start(), is_closed=True))
            opening = None
    if opening is not None:
        content = text[opening.end() + 1 :]
        found.append(_Fence(opening[2].lower(), content, opening.start(), is_closed=False))
    return found


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
        for fence in _fences(answer)[-_MAX_REGIONS:]
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
        region = textwrap.dedent(region)
    region = region.strip()
    if _ALL_QUOTED.fullmatch(region):
        region = _QUOTED_LINES.sub("", region)
    if not region or region.count("\n") > _MAX_LINES or region[0] == "{":
        return
    called = _read_calls(region)
    if called is not None:
        is_single = not is_array and is_list(called) and len(called) == 1
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
    reader = read_block(StrictScanner(text, _MAX_STEPS))
    if reader is None or reader.cut or reader.end < len(text):
        return None
    return reader.value


def _read_elements(region: str) -> Iterator[Any]:
    """The elements of a text as dicts: as they are, and what is inside the only element around
    them.
    """
    from evaluator.xml.lenient import read_elements

    written = read_elements(region).value
    for _ in range(3):
        if not is_dict(written):
            return
        yield written
        if len(written) != 1:
            return
        written = next(iter(written.values()))


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
    rows: list[list[str]] = []
    for line in (lines[rules[0] - 1], *lines[rules[0] + 1 : end]):
        cells = _CELL.split(line.removeprefix("|").removesuffix("|"))
        rows.append([cell.replace("\\|", "|").strip() for cell in cells])
    return rows


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


# Scalars

_SCALARS = frozenset({"number", "integer", "boolean"})
# Of a longer text only the end is looked at for a labelled answer, and no other number is read.
_MAX_PROSE = 100_000


def read_scalar(
    inner: str, schema: Schema, types: frozenset[str], *, is_prose: bool
) -> CheckedValue | None:
    """A scalar of the schema's type, from a text that is not JSON; None if there is none."""
    wanted = types & _SCALARS
    if wanted and "null" in types and "string" not in types and is_null(inner):
        return conform(None, schema, "the text was read as null")
    if wanted:
        value, how = _find_scalar(inner, wanted, is_prose=is_prose)
        if how:
            return conform(value, schema, how)
    if "string" in types and not (types - {"string", "null"} - wanted):
        return _read_text(inner, schema)
    return None


def _find_scalar(inner: str, wanted: frozenset[str], is_prose: bool) -> tuple[Any, str]:
    numeric = bool(wanted & {"number", "integer"})
    kinds = wanted | {"number"} if numeric else wanted
    kind = " or ".join(sorted(wanted))
    value = read_as(inner, kinds)
    if value is not None:
        return value, f"the text was read as a {kind}"
    answer = find_answer(inner[-_MAX_PROSE:])
    if answer is not None:
        written, where = answer
        value = read_as(written, kinds)
        if value is None and "boolean" in wanted:
            value = find_boolean(written)
        if value is None and numeric:
            value = find_labelled_number(written)
        if value is not None:
            return value, f"the {kind} was read from the text at {where}"
    if not is_prose or len(inner) > _MAX_PROSE:
        return None, ""
    if "boolean" in wanted and (value := find_boolean(inner)) is not None:
        return value, "the boolean was read from the first word of the text"
    if not numeric:
        return None, ""
    if has_multiplier(inner) and (value := read_quantity(inner)) is not None:
        return value, MESSAGES["multiplier"]
    if (value := find_number(inner)) is not None:
        return value, f"the {kind} was read from the only number in the text"
    if (value := find_marked_number(inner)) is not None:
        return value, f"the {kind} was read from the only number in bold in the text"
    return None, ""


def _read_text(inner: str, schema: Schema) -> CheckedValue:
    """A string from a text that is not JSON: the whole text, or the enumerated word that it gives
    as its answer.
    """
    if schema.guide is not None:
        values = schema.guide.words(schema.guide.root)
    else:
        values = []
    whole = CheckedValue(inner, (), error=schema.check(inner))
    if whole.error is None:
        return conform(inner, schema, "the text is not JSON and was taken unchanged as the string")
    answer = find_answer(inner[-_MAX_PROSE:])
    if answer is not None and (
        not answer[0] or is_taken_back(answer[0], inner.rpartition(answer[0])[2], values=values)
    ):
        answer = None
    for written, where in (
        (inner, "its words"),
        answer or ("", ""),
        (find_labelled(inner, values), "a label"),
    ):
        if values:
            value = find_word(written, values)
        else:
            value = written.strip(" \t\r\n\"'`*_.")
        if value:
            found = conform(value, schema, f"the string was read from the text at {where}")
            if found.error is None:
                return found
    if answer is not None:
        value = find_first_word(answer[0], values)
    else:
        value = None
    if value is not None:
        return conform(
            value, schema, "the string was read from the beginning of the labelled answer"
        )
    value = find_first_line(inner, values)
    if value is not None:
        return conform(value, schema, "the string was read from the first line of the text")
    value = find_only_word(inner, values)
    if value is not None:
        return conform(
            value, schema, "the string was read from the only one of the allowed words in the text"
        )
    return CheckedValue(None, (), error=whole.error)


# XML

_ELEMENT = Pattern(r"<[^\W\d]")
_DOCUMENT = Pattern(r"\s*(?:<[?!][^>]*>\s*)*<[^\W\d][^>]*>[\s\S]*>\s*")
_MAX_DOCUMENTS = 8
_THINKING = Pattern(r"<(/?)think(?:ing)?\s{0,8}>", "i")
_REASONING_NAME = Pattern(REASONING_WORDS, "i")


def _without_thinking(text: str) -> tuple[str, str]:
    """A text without its `<think>` and `<thinking>` parts, closed or not, and the kind of repair
    ("": none).

    Only these two are removed: in XML other names of reasoning may be elements of the answer.
    """
    kept: list[str] = []
    position = 0
    kind = ""
    for match in _THINKING.finditer(text):
        if match.start() < position:
            continue
        if match[1]:
            kept.clear()
            kind = "reasoning_close"
            position = match.end()
            continue
        kept.append(text[position : match.start()])
        closing = text.find("</think", match.end())
        end = 0
        if closing >= 0:
            end = text.find(">", closing) + 1
        if not end:
            kind = "reasoning_open"
            position = len(text)
            break
        kind = "reasoning"
        position = end
    return "".join((*kept, text[position:])), kind


def read_xml(text: str, schema: Schema | None) -> ParsedOutput:
    answer, repair = _without_thinking(text)
    warnings = [MESSAGES[repair]] if repair else []
    if "&lt;" in answer and _ELEMENT.search(answer) is None:
        answer = html.unescape(answer)
        warnings.append(MESSAGES["entities"])
    fenced = _fences(answer)
    if fenced and _ELEMENT.search(answer, 0, fenced[0].start) is not None:
        fenced = []  # the answer begins before them
    documents = [
        fence.content
        for fence in fenced
        if _DOCUMENT.fullmatch(fence.content) is not None and fence.is_closed
    ][-_MAX_DOCUMENTS:]
    if not documents:
        return _read_document(answer, schema, warnings=warnings, text=text)
    if len(documents) == 1:
        return _read_document(
            documents[0], schema, warnings=[*warnings, MESSAGES["fence"]], text=text
        )
    parsed = [_read_document(document, schema, warnings=[], text=text) for document in documents]
    fitting = [one for one in parsed if one.error is None] or parsed
    many = f"{len(fitting)} blocks of XML fit equally well: the last one was taken"
    few = f"of {len(parsed)} blocks of XML the one that fits best was taken"
    chosen = many if len(fitting) > 1 else few
    return replace(
        fitting[-1], warnings=(*warnings, MESSAGES["fence"], chosen, *fitting[-1].warnings)
    )


def _read_document(
    answer: str, schema: Schema | None, warnings: list[str], text: str
) -> ParsedOutput:
    from evaluator.xml.lenient import read_elements

    read = read_elements(answer)
    warnings += read.warnings
    if read.error is not None:
        if schema is not None:
            return ParsedOutput(
                None,
                tuple(warnings),
                error=OutputError(
                    "xml", read.error, path="$", expected=schema.label, actual="text"
                ),
                text=text,
            )
        return ParsedOutput(
            text,
            (*warnings, f"{read.error}: the text was kept as one string"),
            error=None,
            text=text,
        )
    value = read.value
    if is_dict(value) and len(value) > 1:
        kept = {name: item for name, item in value.items() if not _REASONING_NAME.fullmatch(name)}
        if kept and len(kept) < len(value):
            value = kept
            warnings.append(MESSAGES["reasoning"])
    return conform(value, schema).output(warnings, text)
