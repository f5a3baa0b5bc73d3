"""Why a text is not well-formed XML, in an author's words and at the exact place.

Runs only after the parser has said no: it scans the text itself and reports the first thing wrong.
"""

from __future__ import annotations

import re

from evaluator.xml.tokens import ATTRIBUTE, BROKEN, CDATA, CLOSE, EMPTY, OPEN, TEXT, Token, scan

_REFERENCE = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#\d{1,8}|#x[0-9A-Fa-f]{1,8})?+(;?)")
_NAMED = re.compile(r"&([A-Za-z][\w.\-]*);")
_ILLEGAL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# An attribute's opening quote after which comes no closing one, or a `<` before it.
_OPEN_QUOTE = re.compile(r"""[^<>"']*+(?:"[^"<]*+"[^<>"']*+|'[^'<]*+'[^<>"']*+)*+["']""")
_ESCAPE = "write &lt; for < and &amp; for &, or put the whole text in <![CDATA[ … ]]>"

Finding = tuple[int, str, str | None]
"""Offset, message, hint."""


def explain(text: str) -> Finding | None:
    """The first thing that is not well-formed; None where this scan finds nothing wrong."""
    bad = _ILLEGAL.search(text)
    limit = bad.start() if bad else len(text)
    found = _first(text)
    if bad and (found is None or found[0] > limit):
        return limit, f"the character U+{ord(bad[0]):04X} is not allowed in XML", "remove it"
    return found


def _first(text: str) -> Finding | None:
    open_tags: list[Token] = []
    roots = 0
    for token in scan(text):
        if token.kind == TEXT:
            found = _in_text(text, token, bool(open_tags), roots)
        elif token.kind in (OPEN, EMPTY):
            found = _attributes(text, token)
            if not open_tags:
                roots += 1
                if roots > 1 and found is None:
                    found = (
                        token.start,
                        f"a second root element <{token.name}>",
                        "put several into one <library>",
                    )
            if token.kind == OPEN:
                open_tags.append(token)
        elif token.kind == CLOSE:
            found = _close(text, token, open_tags)
        elif token.kind == BROKEN:
            found = _broken(text, token)
        elif token.kind == CDATA and not open_tags:
            found = token.start, "text outside the root element", None
        else:
            found = None
        if found is not None:
            return found
    if open_tags:
        tag = open_tags[-1]
        return _in_braces(text, tag.start, "<") or (
            tag.start, f"<{tag.name}> is never closed", f"add </{tag.name}>"
        )  # fmt: skip
    return None if roots else (0, "there is no element", "a template begins with <task …>")


def _in_text(text: str, token: Token, inside: bool, roots: int) -> Finding | None:
    if not inside:
        for offset in range(token.start, token.end):
            if not text[offset].isspace():
                where = "after" if roots else "before"
                return offset, f"text {where} the root element", None
        if token.start == 0 and text.startswith("<?xml ", token.end):
            return (
                token.end,
                "there is blank space before the XML declaration",
                "let <?xml stand first in the file",
            )
        return None
    found = _ampersand(text, token.start, token.end)
    if found is None and (offset := text.find("]]>", token.start, token.end)) >= 0:
        return offset, "`]]>` may not stand in text", "write ]]&gt;"
    return found


def _ampersand(text: str, start: int, end: int) -> Finding | None:
    position = start
    while (position := text.find("&", position, end)) >= 0:
        match = _REFERENCE.match(text, position, end)
        if match is None or match.end() == position + 1 or not match[2]:
            named = _NAMED.match(text, position, end)
            if named:
                hint = "only &amp; &lt; &gt; &quot; &apos; and numbers such as &#160; are known"
                return position, f"the entity &{named[1]}; is not defined", hint
            return _in_braces(text, position, "&") or (position, "a bare `&`", "write &amp;, or use CDATA")
        if match[1] is None and not _is_character(match[0]):
            return position, f"{match[0]} is not a character that XML allows", "remove it"
        position = match.end()
    return None


def _is_character(reference: str) -> bool:
    code = int(reference[3:-1], 16) if reference[2] == "x" else int(reference[2:-1])
    return code in (9, 10, 13) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0xFFFF < code < 0x110000


def _attributes(text: str, tag: Token) -> Finding | None:
    position = tag.start + 1 + len(tag.name)
    end = tag.end - (2 if tag.kind == EMPTY else 1)
    seen: set[str] = set()
    while True:
        while position < end and text[position].isspace():
            position += 1
        if position >= end:
            return None
        match = ATTRIBUTE.match(text, position, end)
        if match is None or not text[position - 1].isspace():
            found = _in_braces(text, tag.start, "<")
            message = f"<{tag.name}> has something that is not an attribute here"
            return found or (position, message, 'attributes look like name="value", with spaces between them')
        if match[1] in seen:
            return position, f"the attribute {match[1]!r} is given twice", "keep one of them"
        seen.add(match[1])
        group = 2 if match[2] is not None else 3
        if (found := _ampersand(text, match.start(group), match.end(group))) is not None:
            return found
        position = match.end()


def _close(text: str, token: Token, open_tags: list[Token]) -> Finding | None:
    if not open_tags:
        return token.start, f"</{token.name}> closes nothing", None
    tag = open_tags.pop()
    if tag.name == token.name:
        return None
    if any(other.name == token.name for other in open_tags):
        braces = _in_braces(text, tag.start, "<")
        if braces is not None:
            return braces
        line = text.count("\n", 0, token.start) + 1
        message = f"<{tag.name}> is not closed before </{token.name}> on line {line}"
        return tag.start, message, f"add </{tag.name}>"
    line = text.count("\n", 0, tag.start) + 1
    message = f"</{token.name}> does not match <{tag.name}> opened on line {line}"
    return token.start, message, f"write </{tag.name}>"


def _broken(text: str, token: Token) -> Finding | None:
    start = token.start
    braces = _in_braces(text, start, "<")
    if braces is not None:
        return braces
    if token.name == "less-than":
        return start, "a bare `<`", _ESCAPE
    if token.name != "tag":
        return start, f"this {token.name} is never closed", None
    quote = _OPEN_QUOTE.match(text, start + 1)
    if quote is None:
        return start, "this tag does not end with `>`", _ESCAPE
    offset = quote.end() - 1
    close = text.find(text[offset], offset + 1)
    less = text.find("<", offset, close)
    if close < 0 or "\n" in text[offset:less] or ">" in text[offset:less]:
        return offset, "this attribute value has no closing quote", f"add {text[offset]}"
    return less, "`<` inside an attribute value", "write &lt; for it"


def _in_braces(text: str, offset: int, character: str) -> Finding | None:
    """The finding for a `<` or `&` inside `{% … %}` or `{{ … }}`; None if it stands elsewhere."""
    before = text[max(0, offset - 2000) : offset]
    after = text[offset : offset + 2000]
    for opening, closing in (("{%", "%}"), ("{{", "}}")):
        start = before.rfind(opening)
        if start >= 0 and closing not in before[start:] and ">" not in before[start:] and closing in after:
            escape = "&lt;" if character == "<" else "&amp;"
            hint = f"write {escape} for it, or put the whole text in <![CDATA[ … ]]>"
            return offset, f"`{character}` inside {opening} … {closing} is not well-formed XML", hint
    return None
