"""Repairs of a whole text, made before its blocks are looked for: what stands around JSON, or was
done to all of it.
"""

from __future__ import annotations

import html
import json
from itertools import islice

from evaluator.output.extract import unfence
from evaluator.output.lookahead import LITERAL, QUOTE, QUOTED, VALUE, WORD, WS
from evaluator.patterns import Pattern

_QUOTED_LINE = Pattern(r"^[ \t]{0,3}>[ \t]?", "m")
_UNQUOTED_BLOCK = Pattern(r"^(?![ \t]{0,3}>)[^\n]*?(?:[{\[]|```)", "m")
_PLAIN_QUOTE = Pattern(r'(?<!\\)"')
_ESCAPED_BLOCK = Pattern(r'[{\[]\s*(?:\\[nrt]\s*)*\\"')
_DOUBLED = Pattern(rf"\{{\{{{WS}*+{QUOTE}")
_WIDE = str.maketrans("｛｝［］", "{}[]")
_MEMBERS = Pattern(rf"{WS}*+(?:{QUOTED}|({WORD})\"){WS}*+:{WS}*+{VALUE}")
_ITEMS = Pattern(rf"{WS}*+(?:{QUOTED}|-?\d[\d.]*+){WS}*+,{WS}*+{VALUE}")
# A block whose strings all end before a comma, a colon or a bracket, with escaped line breaks
# between them.
_BLANK = r"\\[nrt](?=[\s\"{}\[\],:\\\d-]|\Z)"
_BLANKS_OUTSIDE = Pattern(
    rf"[{{\[](?:[^\"'`“”‘’\\]++|\"(?:[^\"\\]|\\.)*+\"(?=(?:\s|\\[nrt])*+[,:}}\]])|{_BLANK})*+", "s"
)
_STRING_OR_BLANK = Pattern(rf"(\"(?:[^\"\\]|\\.)*+\")|{_BLANK}", "s")
_BLOCK = Pattern(r"[{\[]")
# Where an answer may begin: in a code fence, after reasoning, and after a label.
_BEGINNING = Pattern(
    rf"```[\w+-]{{0,20}}[ \t]*\n|</(\w+)>|(?<=[\w*]):(?:\*\*)?(?=[ \t\n])(?!{WS}*+```)"
)
_MAX_BEGINNINGS = 8
_TUPLE = Pattern(rf"\({WS}*+(?:[(\[{{]|(?:{QUOTED}|-?\d[\d.eE+-]*+|(?i:{LITERAL})){WS}*+,)")
_BRACKET = Pattern(rf"{QUOTED}|([(\[{{])|([)\]}}])|(,)")
_SCALAR = rf"{WS}*+(?:{QUOTED}|-?\d[\d.]*+){WS}*+"
_CLOSED_AS_TUPLE = Pattern(rf"(\[{_SCALAR}(?:,{_SCALAR})++)\)")


def rewrite(text: str) -> tuple[str, list[str]]:
    """The text with such repairs, and the kinds of those that were made."""
    kinds: list[str] = []
    if ">" in text and _QUOTED_LINE.search(text) and not _UNQUOTED_BLOCK.search(text):
        without = _QUOTED_LINE.sub("", text)
        if "{" in without or "[" in without:
            text = without
            kinds.append("quoted_lines")
    if "&quot;" in text and '"' not in text:
        text = html.unescape(text)
        kinds.append("entities")
    if '\\"' in text and (block := _ESCAPED_BLOCK.search(text)) is not None:
        start = block.start()
        end = max(text.rfind("}"), text.rfind("]"))
        end = end + 1 if end > start else len(text)
        if not _PLAIN_QUOTE.search(text, start, end):
            if text[start - 1 : start] == '"' == text[end : end + 1]:
                around = '"'
            else:
                around = ""
            text = (
                text[:start].removesuffix(around)
                + _unescape(text[start:end])
                + text[end:].removeprefix(around)
            )
            kinds.append("escaped")
    if "\\" in text and (block := _BLOCK.search(text)) is not None:
        start = block.start()
        end = max(text.rfind("}"), text.rfind("]")) + 1
        if _BLANKS_OUTSIDE.fullmatch(text, start, end):
            part = _STRING_OR_BLANK.sub(lambda match: match[1] or " ", text[start:end])
            if part != text[start:end]:
                text = text[:start] + part + text[end:]
                kinds.append("escaped_blanks")
    if (
        text.count("{{") > 1
        and _DOUBLED.search(text)
        and all(text.count(one) == 2 * text.count(2 * one) for one in "{}")
    ):
        text = text.replace("{{", "{").replace("}}", "}")
        kinds.append("escaped")
    if "｛" in text and "{" not in text:
        text = text.translate(_WIDE)
        kinds.append("wide")
    return _with_opening(text, kinds)


def _unescape(part: str) -> str:
    try:
        return json.loads(f'"{part}"', strict=False)
    except ValueError:
        return part.replace('\\"', '"').replace("\\n", "\n")


def _is_tuple(text: str) -> bool:
    """Whether the parenthesis that begins a text ends with it, and has a comma directly in it."""
    depth = 0
    has_comma = False
    for token in _BRACKET.finditer(text):
        if token[1]:
            depth += 1
        elif token[2]:
            depth -= 1
            if depth == 0:
                return has_comma and token[2] == ")" and token.end() == len(text)
        elif token[3] and depth == 1:
            has_comma = True
    return False


def _with_opening(text: str, kinds: list[str]) -> tuple[str, list[str]]:
    """A text that begins inside an object or an array, as where the beginning of the answer was
    given.
    """
    stripped = text.strip()
    members = _MEMBERS.match(stripped)
    if members is not None:
        return ("{" if members[1] is None else '{"') + stripped, [*kinds, "opening"]
    body = stripped.removesuffix("```").rstrip()
    if body.endswith("]") and body.count("]") > body.count("[") and _ITEMS.match(stripped):
        return "[" + stripped, [*kinds, "opening"]
    inner = unfence(stripped)[0].strip()
    if _TUPLE.match(inner) and _is_tuple(inner):
        items = inner[1:-1].rstrip().removesuffix(",")
        return text.replace(inner, f"[{items}]", 1), [*kinds, "tuple"]
    whole = _CLOSED_AS_TUPLE.fullmatch(stripped)
    if whole is not None:
        return f"{whole[1]}]", [*kinds, "mismatched"]
    for match in islice(_BEGINNING.finditer(text), _MAX_BEGINNINGS):
        start = match.end()
        end = text.find("```", start)
        if end >= 0:
            part = text[start:end]
        else:
            part = text[start:]
        # An element may contain reasoning with brackets. Where a block has begun before it, it is
        # markup in a string.
        if match[1]:
            element = text.rfind(f"<{match[1]}", 0, start)
            since = 0
        else:
            element = -1
            since = max(text.rfind(">", 0, start), 0)
        before = text[since : element if element >= 0 else start]
        if "{" not in before and "[" not in before:
            for opening, closing, begins in (("{", "}", _MEMBERS), ("[", "]", _ITEMS)):
                if (
                    part.count(closing) == part.count(opening) + 1
                    and begins.match(part) is not None
                ):
                    return text[:start] + opening + text[start:], [*kinds, "opening"]
    return text, kinds
