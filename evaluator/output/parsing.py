"""`parse_output`: reads the value of a model's text, with warnings or an error."""

from __future__ import annotations

import html
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, cast

from evaluator.errors import UsageError
from evaluator.errors.messages import type_of
from evaluator.output.choose import CheckedValue, choose, conform, read_inner
from evaluator.output.escapes import double_unmeant
from evaluator.output.extract import (
    Extract,
    extract,
    fences,
    is_reasoning,
    unfence,
    without_thinking,
)
from evaluator.output.forms import read_forms
from evaluator.output.lookahead import OPENING
from evaluator.output.reader import BlockReader
from evaluator.output.result import MESSAGES, OutputError, ParsedOutput
from evaluator.output.rewrites import rewrite
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
from evaluator.output.schema import Schema, UnusableSchema, compile_schema
from evaluator.output.strict import (
    NotPlain,
    StrictScanner,
    Unreadable,
    read_as_meant,
    read_strict,
    work_for,
)
from evaluator.output.words import (
    find_first_line,
    find_first_word,
    find_labelled,
    find_only_word,
    find_word,
    is_taken_back,
)
from evaluator.patterns import Pattern

_FENCE_OPEN = Pattern(r"```[ \t]*+[\w+#.-]{0,20}+[ \t]*+\n")
_BETWEEN = Pattern(r"(?:[\s,;]|^[ \t]*(?:[-*•]|\d{1,4}[.)])[ \t]|</?\w{1,40}>|```\w{0,10})*+", "m")
_COMMA = Pattern(r"\s*+,\s*+")
_TOKEN = Pattern(r"[+−.\w-]{1,40}+")
_TOKEN_REPAIRS = frozenset({"number", "literal"})
_TEXT_REPAIRS = frozenset(
    {
        "single",
        "typographic",
        "doubled_quotes",
        "prefix",
        "joined",
        "escape",
        "literal_escape",
        "control",
    }
)
_TAG = Pattern(r"<[^\W\d]")
_ELEMENT = Pattern(r"\s*(?:<[?!][^>]*>\s*)*<[^\W\d][^>]*>[\s\S]*>\s*")
_SCALARS = frozenset({"number", "integer", "boolean"})
_WORDS: dict[str, tuple[Any, str]] = {
    "True": (True, "literal"),
    "False": (False, "literal"),
    "None": (None, "literal"),
    "NaN": (None, "nan"),
    "Infinity": (None, "nan"),
    "-Infinity": (None, "nan"),
}
_MAX_DOCUMENTS = 8
# Of a longer text only the end is looked at for a labelled answer, and no other number is read.
_MAX_PROSE = 100_000
_MISSING = object()


def parse_output(
    text: str,
    type: Literal["text", "json", "xml"] = "json",
    schema: str | dict[str, Any] | type | None = None,
    *,
    strict: bool = False,
) -> ParsedOutput:
    """Reads the value of a model's text leniently. Never raises an error because of the text.

    >>> found = parse_output("Here you go: {'capital': 'Canberra',}")
    >>> found.value
    {'capital': 'Canberra'}
    >>> len(found.warnings) > 0  # each kind of repair is named
    True

    `text` keeps the text as it is. `json` reads one JSON value, whatever surrounds it, and checks
    it against `schema`. `xml` reads elements as `{root: text | {child: …}}`, or keeps the text
    where there are none.

    `schema` is `object`, `array` or `[]`, `string[]` (and so on), `string`, `number`, `integer`,
    `boolean`, `any`, a path that ends in `.json`, an inline JSON Schema (text or dict),
    `module:Model`, `file.py:Model`, or a Python class. For a class the value is an instance of it,
    with the defaults that the class has; for everything else it is plain JSON data.

    `strict` refuses every repair: a text that needs one is an error of kind `repaired`, and the
    warnings name them. Valid JSON is read as it is.

    Guarantees: valid JSON is read unchanged and without a warning, except escapes that nobody meant
    (`\\frac`); each kind of change has a warning; nothing else is invented. With an error `value`
    is None. Text without JSON is an error only where a schema was declared. Time is linear in the
    length of the text; nesting deeper than 200 is not read.

    Source: docs/explanation, "Output".
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"text is {type_of(text)}, expected a string")
    parsed = _parse(text, type, schema=schema, strict=strict)
    if strict and parsed.warnings and parsed.error is None:
        message = f"strict parsing refuses repairs: {'; '.join(parsed.warnings)}"
        return replace(parsed, value=None, error=OutputError("repaired", message))
    return parsed


def _parse(text: str, type: str, schema: Any, *, strict: bool) -> ParsedOutput:
    if type == "json" or type == "xml":
        try:
            compiled = compile_schema(schema)
        except UnusableSchema as error:
            return ParsedOutput(None, (), error=OutputError("bad_schema", str(error)), text=text)
        if type == "xml":
            return _read_xml(text, compiled)
        warnings: list[str] = []
        try:
            value = read_strict(text)
            if strict:
                literal = text
            else:
                literal = double_unmeant(text)
            if literal != text:
                value = read_strict(literal)
                warnings.append(MESSAGES["literal_escape"])
        except (ValueError, RecursionError):
            return _read_lenient(text, compiled)
        if compiled is None or (compiled.build is None and compiled.check(value) is None):
            return ParsedOutput(value, tuple(warnings), error=None, text=text)
        return _finish(_conform_or_inner(value, compiled), warnings, text=text)
    if type != "text":
        return ParsedOutput(
            None,
            (),
            error=OutputError(
                "bad_schema", f"the output type {type!r} is unknown: use text, json or xml"
            ),
            text=text,
        )
    ignored = schema is not None and schema not in ("string", "any", "text", "", str)
    return ParsedOutput(
        text,
        ("a schema has no effect where the type is text",) if ignored else (),
        error=None,
        text=text,
    )


def _conform_or_inner(value: Any, schema: Schema | None) -> CheckedValue:
    """The value by its schema; if it does not fit, the only value inside it that does."""
    conformed = conform(value, schema)
    if conformed.error is None:
        return conformed
    return read_inner([value], schema) or conformed


def _finish(conformed: CheckedValue, warnings: list[str], text: str) -> ParsedOutput:
    if conformed.error is not None:
        value = None
    else:
        value = conformed.value
    every = tuple(dict.fromkeys((*warnings, *conformed.warnings)))
    return ParsedOutput(value, every, error=conformed.error, text=text)


def _read_lenient(text: str, schema: Schema | None) -> ParsedOutput:
    body = text
    warnings: list[str] = []
    if body.startswith("\ufeff"):
        body = body[1:]
        warnings.append(MESSAGES["bom"])
    body, rewritten = rewrite(body)
    warnings += [MESSAGES[kind] for kind in rewritten]
    found = extract(body)
    warnings += [MESSAGES[kind] for kind in found.repairs]
    if found.skipped:
        warnings.append(MESSAGES["skipped"])
    inner, fenced = unfence(found.answer.strip())
    inner = inner.strip()
    whole, repair = _read_whole(inner)
    repairs: Collection[str]
    if repair:
        repairs = (repair,)
    else:
        repairs = ()
    if whole is _MISSING:
        whole, repairs = _read_repaired(inner, schema)
    if whole is not _MISSING:
        warnings += [MESSAGES["fence"]] if fenced else []
        warnings += [MESSAGES[kind] for kind in repairs]
        return _finish(_conform_or_inner(whole, schema), warnings, text=text)
    if schema is not None:
        scalar = _read_scalar(inner, found, schema=schema)
        if scalar is not None:
            if fenced:
                warnings.append(MESSAGES["fence"])
            return _finish(scalar, warnings, text=text)
        values = _read_values(inner, schema)
        if values is not None:
            return _finish(conform(values, schema, MESSAGES["lines"]), warnings, text=text)
    return _read_blocks(found, schema, warnings=warnings, text=text, body=body)


def _read_whole(inner: str) -> tuple[Any, str]:
    """The value of an answer that is one scalar, and the repair that was needed."""
    if inner[:1] in ("{", "["):
        return _MISSING, ""
    if inner in _WORDS:
        return _WORDS[inner]
    try:
        return read_as_meant(inner), ""
    except NotPlain:
        if inner.lstrip("-")[:1].isdigit():
            return (inner, "huge_number")
        return (_MISSING, "")
    except (ValueError, RecursionError):
        if inner.isdigit() and inner.isascii():
            return inner, "unquoted_text" if inner[0] == "0" else "huge_number"
        return _MISSING, ""


def _read_repaired(inner: str, schema: Schema | None) -> tuple[Any, Collection[str]]:
    """The value of an answer that is one scalar which needs repair, read as the only item of a
    list, and the repairs.

    A quote inside a text in quotes, or text after it, shows that the answer is prose. With a
    schema, numbers and literals are read by their type.
    """
    if inner[:1] in (OPENING if schema is None else "\"'") and inner[1:2] not in ("", "{", "["):
        if inner[0] == '"':
            allowed = _TEXT_REPAIRS | {"missing_quote"}
        else:
            allowed = _TEXT_REPAIRS
    elif schema is None and _TOKEN.fullmatch(inner):
        allowed = _TOKEN_REPAIRS
    else:
        return _MISSING, ()
    reader = BlockReader(text := f"[{inner}]", 0, strict=StrictScanner(text, work_for(text)))
    try:
        reader.read()
    except Unreadable:
        return _MISSING, ()
    is_whole = reader.end == len(text) and len(reader.value) == 1 and not reader.bare
    if is_whole and reader.repairs.keys() <= allowed:
        return (reader.value[0], reader.repairs)
    return (_MISSING, ())


def _read_scalar(inner: str, found: Extract, schema: Schema) -> CheckedValue | None:
    """A scalar of the schema's type, from a text that is not JSON; None if there is none."""
    types = schema.types
    if types is None or not inner:
        return None
    wanted = types & _SCALARS
    if wanted and "null" in types and "string" not in types and is_null(inner):
        return conform(None, schema, "the text was read as null")
    if wanted:
        value, how = _find_scalar(inner, wanted, prose=not found.blocks and not found.too_deep)
        if how:
            return conform(value, schema, how)
    if "string" in types and not (types - {"string", "null"} - wanted):
        return _read_text(inner, schema)
    return None


def _find_scalar(inner: str, wanted: frozenset[str], prose: bool) -> tuple[Any, str]:
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
    prose = prose and len(inner) <= _MAX_PROSE
    if prose and "boolean" in wanted and (value := find_boolean(inner)) is not None:
        return value, "the boolean was read from the first word of the text"
    if prose and numeric and has_multiplier(inner) and (value := read_quantity(inner)) is not None:
        return value, MESSAGES["multiplier"]
    if prose and numeric and (value := find_number(inner)) is not None:
        return value, f"the {kind} was read from the only number in the text"
    if prose and numeric and (value := find_marked_number(inner)) is not None:
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


def _read_blocks(
    found: Extract, schema: Schema | None, warnings: list[str], text: str, body: str
) -> ParsedOutput:
    lines = _read_lines(found, schema, body=body)
    if lines is not None:
        kinds = dict.fromkeys(kind for block in found.blocks for kind in block.repairs)
        return _finish(
            conform(lines, schema, *(MESSAGES[kind] for kind in (*kinds, "lines"))),
            warnings,
            text=text,
        )
    choice = choose(found.blocks, schema)
    if choice is None or choice.conformed.error is not None or choice.block.weak:
        other = read_forms(found, schema)
        if other is not None:
            return _finish(other, warnings, text=text)
    if choice is None:
        return _no_json(found, schema, warnings=warnings, text=text, body=body)
    block = choice.block
    if choice.conformed.error is not None:
        inner = read_inner(
            [one.value for one in found.blocks if not one.cut or len(one.value) == 1], schema
        )
        if inner is None:
            choice = choice
        else:
            choice = replace(choice, conformed=inner)
    if found.fenced:
        warnings.append(MESSAGES["fence"])
    around = _find_around(body, block.start, end=block.end, found=found)
    if around:
        warnings.append(MESSAGES[around])
    if len(found.blocks) > 1 and choice.rivals:
        warnings.append(f"{choice.rivals + 1} JSON blocks fit equally well: the last one was taken")
    elif len(found.blocks) > 1:
        warnings.append(f"of {len(found.blocks)} JSON blocks the one that fits best was taken")
    warnings += [MESSAGES[kind] for kind in block.repairs]
    return _finish(choice.conformed, warnings, text=text)


def _read_lines(found: Extract, schema: Schema | None, body: str) -> list[Any] | None:
    """The values of several blocks that follow one another, none of them an array.

    Without a schema only commas may stand between them and nothing around them; where the schema
    asks for an array, other separators too.
    """
    blocks = found.blocks
    types = schema.types if schema is not None else None
    is_asked = types == frozenset({"array"})
    if (
        not (is_asked or schema is None)
        or len(blocks) < 2
        or any(block.value.__class__ is list for block in blocks)
    ):
        return None
    between = (body[first.end : second.start] for first, second in pairwise(blocks))
    if any((_BETWEEN if is_asked else _COMMA).fullmatch(part) is None for part in between):
        return None
    if (
        not is_asked
        and _find_around(body, blocks[0].start, end=blocks[-1].end, found=found) == "prose"
    ):
        return None
    return [block.value for block in blocks]


def _read_values(inner: str, schema: Schema) -> list[Any] | None:
    """Several values, each valid JSON, separated by commas or on lines of their own, where an array
    is asked.
    """
    if schema.types != frozenset({"array"}):
        return None
    lines = [line.strip().removesuffix(",") for line in inner.splitlines() if line.strip()]
    for written in (inner, ",".join(lines)):
        try:
            values = read_as_meant(f"[{written}]")
        except (ValueError, RecursionError):
            continue
        if len(values) > 1:
            return values
        return None
    return None


def _find_around(body: str, start: int, end: int, found: Extract) -> str:
    """What the answer has besides the block, its fence and the reasoning that was left out: a kind
    of repair, or "".
    """
    before = _FENCE_OPEN.sub("", body[found.first(start) : start])
    after = body[end : found.last(end)]
    if before.strip("` \t\r\n") or after.strip("` \t\r\n"):
        return "prose"
    if "`" in before + after and not found.fenced:
        return "backticks"
    return ""


def _no_json(
    found: Extract, schema: Schema | None, warnings: list[str], text: str, body: str
) -> ParsedOutput:
    if found.problem is None:
        if not body.strip():
            reason = "the text is empty"
        else:
            reason = "no JSON was found in the text"
        if found.repairs and not found.answer.strip():
            reason = "no JSON was found outside the reasoning"
    else:
        message, at = found.problem
        line = body.count("\n", 0, at) + 1
        column = at - body.rfind("\n", 0, at)
        reason = f"no JSON was found in the text: line {line}, column {column}: {message}"
    if schema is None:
        return ParsedOutput(None, (*warnings, reason), error=None, text=text)
    expected = " or ".join(sorted(schema.types or ())) or schema.label
    return ParsedOutput(
        None,
        tuple(warnings),
        error=OutputError("no_json", reason, path="$", expected=expected, actual="text"),
        text=text,
    )


def _read_xml(text: str, schema: Schema | None) -> ParsedOutput:
    answer, repair = without_thinking(text)
    warnings = [MESSAGES[repair]] if repair else []
    if "&lt;" in answer and _TAG.search(answer) is None:
        answer = html.unescape(answer)
        warnings.append(MESSAGES["entities"])
    documents = _xml_fences(answer)[-_MAX_DOCUMENTS:]
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


def _xml_fences(answer: str) -> list[str]:
    """The contents of the code fences that are XML documents; none if an element stands before the
    first fence.
    """
    found = fences(answer)
    if not found or _TAG.search(answer, 0, found[0].start) is not None:
        return []
    return [
        fence.content
        for fence in found
        if _ELEMENT.fullmatch(fence.content) is not None and fence.is_closed
    ]


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
    if isinstance(value, dict) and len(value) > 1:
        roots = cast(dict[str, Any], value)
        kept = {name: item for name, item in roots.items() if not is_reasoning(name)}
        if kept and len(kept) < len(roots):
            value = kept
            warnings.append(MESSAGES["reasoning"])
    return _finish(conform(value, schema), warnings, text=text)
