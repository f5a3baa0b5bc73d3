"""`parse_output`: reads the value of a model's text, with warnings or an error."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

from evaluator.errors import UsageError
from evaluator.errors.messages import type_of
from evaluator.lazy_dataclass import frozen
from evaluator.output.extract import Block, Extract, extract, rewrite, unfence
from evaluator.output.fast_check import is_dict, is_list
from evaluator.output.forms import read_forms, read_scalar, read_xml
from evaluator.output.reader import read_block
from evaluator.output.result import MESSAGES, NotChecked, OutputError, ParsedOutput
from evaluator.output.schema import CheckedValue, Schema, UnusableSchema, compile_schema, conform
from evaluator.output.strict import (
    NotPlain,
    StrictScanner,
    double_unmeant,
    read_as_meant,
    read_strict,
    work_for,
)
from evaluator.output.tokens import LITERALS, OPENING
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
_WORDS = frozenset({"True", "False", "None", "NaN", "Infinity", "-Infinity"})
_SCALARS = frozenset({"number", "integer", "boolean", "string"})
_CONTAINERS = frozenset({"object", "array"})
_JSON_TYPES = {dict: "object", list: "array"}
# At most so many blocks are checked, and so many places inside a value.
_MAX_CHECKED = 64
_MAX_PLACES = 32
_MAX_DEPTH = 5
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
    try:
        if type == "json":
            parsed = _parse_json(text, compile_schema(schema), is_strict=strict)
        elif type == "xml":
            parsed = read_xml(text, compile_schema(schema))
        elif type == "text":
            ignored = schema is not None and schema not in ("string", "any", "text", "", str)
            parsed = ParsedOutput(text, (), error=None, text=text)
            if ignored:
                parsed = replace(parsed, warnings=(MESSAGES["no_schema"],))
        else:
            message = f"the output type {type!r} is unknown: use text, json or xml"
            raise UnusableSchema(message)
    except UnusableSchema as error:
        parsed = ParsedOutput(None, (), error=OutputError("bad_schema", str(error)), text=text)
    if strict and parsed.warnings and parsed.error is None:
        message = f"strict parsing refuses repairs: {'; '.join(parsed.warnings)}"
        return replace(parsed, value=None, error=OutputError("repaired", message))
    return parsed


def _parse_json(text: str, schema: Schema | None, *, is_strict: bool) -> ParsedOutput:
    try:
        value = read_strict(text)
        warnings: tuple[str, ...] = ()
        if not is_strict and (literal := double_unmeant(text)) != text:
            value = read_strict(literal)
            warnings = (MESSAGES["literal_escape"],)
    except (ValueError, RecursionError):
        return _read_lenient(text, schema)
    if schema is None or (schema.build is None and schema.fits(value)):
        return ParsedOutput(value, warnings, error=None, text=text)
    return _conform_whole(value, schema).output(warnings, text)


def _conform_whole(value: Any, schema: Schema | None) -> CheckedValue:
    """The value by its schema; if it does not fit, the only value inside it that does."""
    conformed = conform(value, schema)
    if conformed.error is None:
        return conformed
    return _read_inner([value], schema) or conformed


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
    whole, repairs = _read_whole(inner)
    if whole is _MISSING:
        whole, repairs = _read_repaired(inner, schema)
    if whole is not _MISSING:
        warnings += [MESSAGES["fence"]] if fenced else []
        warnings += [MESSAGES[kind] for kind in repairs]
        return _conform_whole(whole, schema).output(warnings, text)
    if schema is not None:
        is_prose = not found.blocks and not found.too_deep
        if inner and schema.types is not None and not schema.types.isdisjoint(_SCALARS):
            scalar = read_scalar(inner, schema, schema.types, is_prose=is_prose)
            if scalar is not None:
                if fenced:
                    warnings.append(MESSAGES["fence"])
                return scalar.output(warnings, text)
        values = _read_values(inner, schema)
        if values is not None:
            return conform(values, schema, MESSAGES["lines"]).output(warnings, text)
    return _read_blocks(found, schema, warnings=warnings, text=text, body=body)


def _read_whole(inner: str) -> tuple[Any, Collection[str]]:
    """The value of an answer that is one scalar, and the repair that was needed."""
    if inner[:1] in ("{", "["):
        return _MISSING, ()
    if inner in _WORDS:
        value, repair = LITERALS[inner.lower()]
        return value, (repair,)
    try:
        return read_as_meant(inner), ()
    except NotPlain:
        if inner.lstrip("-")[:1].isdigit():
            return inner, ("huge_number",)
    except (ValueError, RecursionError):
        if inner.isdigit() and inner.isascii():
            return inner, ("unquoted_text" if inner[0] == "0" else "huge_number",)
    return _MISSING, ()


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
    text = f"[{inner}]"
    reader = read_block(StrictScanner(text, work_for(text)))
    if (
        reader is not None
        and reader.end == len(text)
        and len(reader.value) == 1
        and not reader.bare
        and reader.repairs.keys() <= allowed
    ):
        return reader.value[0], reader.repairs
    return _MISSING, ()


def _read_blocks(
    found: Extract, schema: Schema | None, warnings: list[str], text: str, body: str
) -> ParsedOutput:
    lines = _read_lines(found, schema, body=body)
    if lines is not None:
        kinds = dict.fromkeys(kind for block in found.blocks for kind in block.repairs)
        changes = (MESSAGES[kind] for kind in (*kinds, "lines"))
        return conform(lines, schema, *changes).output(warnings, text)
    choice = _choose(found.blocks, schema)
    if choice is None or choice.conformed.error is not None or choice.block.weak:
        other = read_forms(found, schema)
        if other is not None:
            return other.output(warnings, text)
    if choice is None:
        return _no_json(found, schema, warnings=warnings, text=text, body=body)
    block = choice.block
    if choice.conformed.error is not None:
        inner = _read_inner(
            [one.value for one in found.blocks if not one.cut or len(one.value) == 1], schema
        )
        if inner is not None:
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
    return choice.conformed.output(warnings, text)


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


@frozen
class _Choice:
    """The chosen block and how it fits; `rivals` is the number of others that fit equally well."""

    block: Block
    conformed: CheckedValue
    rivals: int


def _choose(blocks: list[Block], schema: Schema | None) -> _Choice | None:
    """The block that is the answer; None if there is no block.

    Blocks that could be part of the prose count only if no other fits. Of those that fit equally
    well the last one is taken. If none fits, the choice has the error of the last one of the right
    type.
    """
    if not blocks:
        return None
    strong = [block for block in blocks if not block.weak]
    weak = [block for block in blocks if block.weak]
    if schema is None:
        pool = strong or weak
        last = _only_fenced(pool) or pool[-1]
        return _Choice(
            last,
            CheckedValue(last.value, (), error=None),
            rivals=len(pool) - 1 if last is pool[-1] else 0,
        )
    wanted = schema.types
    for pool in (strong, weak):
        typed = _of_types(pool, wanted)
        chosen = _fitting(typed[-_MAX_CHECKED:], schema)
        if chosen is not None:
            return chosen
    last = (_of_types(strong or weak, wanted) or strong or weak)[-1]
    return _Choice(last, conform(last.value, schema), rivals=0)


def _of_types(blocks: list[Block], wanted: frozenset[str] | None) -> list[Block]:
    if wanted is None:
        return blocks
    return [block for block in blocks if _JSON_TYPES[block.value.__class__] in wanted]


def _fitting(pool: list[Block], schema: Schema) -> _Choice | None:
    fitting: list[tuple[Block, CheckedValue]] = []
    for block in reversed(pool):
        conformed = conform(block.value, schema)
        if isinstance(conformed.error, NotChecked):
            break  # the other blocks would take as long
        if conformed.error is not None and block.cut:
            conformed = _without_cut_item(block.value, schema) or conformed
        if conformed.error is None:
            fitting.append((block, conformed))
        elif block.others and (other := _other_reading(block, schema)) is not None:
            fitting.append(other)
    if not fitting:
        return None
    fenced = _only_fenced([block for block, _ in fitting])
    if fenced is not None:
        return _Choice(
            fenced, next(conformed for block, conformed in fitting if block is fenced), rivals=0
        )
    return _Choice(*fitting[0], len(fitting) - 1)


def _without_cut_item(value: Any, schema: Schema) -> CheckedValue | None:
    """The value of a block that is cut off, without the incomplete last item of one of its arrays;
    None if it does not fit either.
    """
    arrays: list[list[Any]] = []
    last = value
    while last and isinstance(last, dict | list):
        if is_list(last):
            arrays.append(last)
        parts = last.values() if is_dict(last) else last
        last = next(reversed(parts))
    for array in reversed(arrays):
        item = array.pop()
        conformed = conform(value, schema, MESSAGES["cut_item"])
        if conformed.error is None and array:
            return conformed
        array.append(item)
    return None


def _other_reading(block: Block, schema: Schema) -> tuple[Block, CheckedValue] | None:
    """The only reading of a block with one bracket elsewhere that fits the schema; None if there
    are more, or none.
    """
    found: list[tuple[Block, CheckedValue]] = []
    for other in block.others:
        try:
            value = read_as_meant(other.text)
        except (ValueError, RecursionError):
            continue
        conformed = conform(value, schema)
        if isinstance(conformed.error, NotChecked):
            return None
        if conformed.error is None and all(conformed.value != known.value for _, known in found):
            found.append(
                (
                    replace(block, value=value, end=other.end, repairs=(other.kind,), cut=False),
                    conformed,
                )
            )
    if len(found) == 1:
        return found[0]
    return None


def _only_fenced(blocks: list[Block]) -> Block | None:
    """The block in a code fence, if there is exactly one among several."""
    fenced = [block for block in blocks if block.fenced]
    if len(fenced) == 1:
        return fenced[0]
    return None


def _read_inner(values: list[Any], schema: Schema | None) -> CheckedValue | None:
    """The only object or array inside `values` that fits the schema wholly; None if there is none,
    or several.

    Declared properties are not searched: an object that has them is the value itself, with a
    mistake. Nor are arrays with several items: one item cannot stand for all.
    """
    if schema is None or schema.guide is None:
        return None
    wanted = (schema.types or frozenset[str]()) - {"null"}
    if not wanted or wanted - _CONTAINERS:
        return None
    declared = schema.guide.properties(schema.guide.root).keys()
    fitting: list[CheckedValue] = []
    waiting = [(child, 1, len(value)) for value in values for child in _children(value, declared)]
    for count, (value, depth, siblings) in enumerate(waiting):
        if count >= _MAX_PLACES:
            return None
        if _JSON_TYPES.get(value.__class__) in wanted or (
            isinstance(value, str) and value.lstrip()[:1] in ("{", "[")
        ):
            conformed = conform(value, schema, MESSAGES["inner"])
            if isinstance(conformed.error, NotChecked):
                return None
            if conformed.error is None and not value and siblings > 1:
                return None  # {"error": "not found", "items": []} may be no answer
            if conformed.error is None:
                fitting.append(conformed)
                continue
        if depth < _MAX_DEPTH:
            waiting += [(child, depth + 1, len(value)) for child in _children(value, declared)]
    if len(fitting) == 1:
        return fitting[0]
    return None


def _children(value: Any, declared: Any) -> Iterator[Any]:
    if is_dict(value):
        for key, child in value.items():
            if key not in declared and isinstance(child, dict | list | str):
                yield child
    elif is_list(value) and len(value) == 1:
        yield value[0]
