"""Explains why a text is not well-formed XML, in an author's words and at the exact place.

expat says which rule is broken and where it noticed. This looks at the text around that place and
says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.parsers import expat
from xml.parsers.expat import errors

from evaluator.patterns import Pattern

_NAME = Pattern(r"[^\s<>/=\"'&]+")
_UNDEFINED = Pattern(r"&(?!(?:amp|lt|gt|quot|apos);)[A-Za-z_:][\w.:-]*;")
_PART_OF_REFERENCE = Pattern(r"&[#\w.:-]{0,99}\Z")
_PART_OF_ATTRIBUTE = Pattern(r"(?<=\s)[^\s=<>\"'/]{1,99}\s{0,9}=?\s{0,9}\Z")
_PROLOG = Pattern(r"(?:\s+|<!--.*?-->|<\?.*?\?>)*+", "s")
_TAG = Pattern(r"""<[^<>"']*+(?:(?:"[^"]*+"|'[^']*+')[^<>"']*+)*+>""")
_ILLEGAL = Pattern("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
# An attribute's opening quote after which comes no closing one, or a `<` before it.
_OPEN_QUOTE = Pattern(r"""<[^<>"']*+(?:"[^"<]*+"[^<>"']*+|'[^'<]*+'[^<>"']*+)*+["']""")
_ESCAPE = "write &lt; for < and &amp; for &, or put the whole text in <![CDATA[ … ]]>"

Finding = tuple[int, str, str | None]
"""Offset, message, hint."""

OpenTag = tuple[str, int]
"""The name and the offset of an element that is not closed yet."""


def explain(text: str, code: int, offset: int, open_tags: Sequence[OpenTag]) -> Finding:
    """What expat's error `code` at `offset` means, with `open_tags` from the outermost to the
    innermost.
    """
    problem = expat.ErrorString(code)
    match problem:
        case errors.XML_ERROR_INVALID_TOKEN:
            return _invalid(text, offset, is_inside=bool(open_tags))
        case errors.XML_ERROR_UNCLOSED_TOKEN:
            return _unclosed(text, offset)
        case errors.XML_ERROR_TAG_MISMATCH:
            return _mismatch(text, offset, open_tags=open_tags)
        case errors.XML_ERROR_NO_ELEMENTS if open_tags:
            name, start = open_tags[-1]
            return _in_braces(text, start) or (start, f"<{name}> is never closed", f"add </{name}>")
        case errors.XML_ERROR_NO_ELEMENTS:
            return 0, "there is no element", "a template begins with <task …>"
        case errors.XML_ERROR_SYNTAX:
            return _text_outside(text, offset)
        case errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT:
            if text[offset] == "<":
                tag = _NAME.match(text, offset + 1)
            else:
                tag = None
            if tag is None or tag[0].startswith("!"):
                return offset, "text after the root element", None
            return offset, f"a second root element <{tag[0]}>", "put several into one <library>"
        case errors.XML_ERROR_MISPLACED_XML_PI:
            return (
                offset,
                "the XML declaration is not at the beginning of the file",
                "remove what is before it",
            )
        case errors.XML_ERROR_DUPLICATE_ATTRIBUTE:
            return (
                offset,
                f"the attribute {_name(text, offset)!r} is given twice",
                "keep one of them",
            )
        case errors.XML_ERROR_UNDEFINED_ENTITY if (
            entity := _UNDEFINED.search(text, offset)
        ) is not None:
            hint = "only &amp; &lt; &gt; &quot; &apos; and numbers such as &#160; are known"
            return entity.start(), f"the entity {entity[0]} is not defined", hint
        case errors.XML_ERROR_BAD_CHAR_REF:
            reference = text[offset : text.find(";", offset) + 1]
            return offset, f"{reference} is not a character that XML allows", "remove it"
        case errors.XML_ERROR_UNCLOSED_CDATA_SECTION:
            begin = max(text.rfind("]]>", 0, offset), open_tags[-1][1] if open_tags else 0)
            return text.find("<![CDATA[", begin), "this CDATA section is never closed", None
        case _:
            return offset, problem, None


def _mismatch(text: str, offset: int, open_tags: Sequence[OpenTag]) -> Finding:
    closing = _name(text, offset)
    name, start = open_tags[-1]
    if any(closing == other for other, _ in open_tags[:-1]):
        message = f"<{name}> is not closed before </{closing}> on line {_line(text, offset)}"
        return _in_braces(text, start) or (start, message, f"add </{name}>")
    message = f"</{closing}> does not match <{name}> opened on line {_line(text, start)}"
    return text.rfind("<", 0, offset), message, f"write </{name}>"


def _invalid(text: str, offset: int, is_inside: bool) -> Finding:
    """What is wrong at a character with which nothing can continue."""
    character = text[offset]
    if _ILLEGAL.match(character):
        return offset, f"the character U+{ord(character):04X} is not allowed in XML", "remove it"
    if text.startswith("--", offset - 2) and (
        text.rfind("<!--", 0, offset - 2) > text.rfind("-->", 0, offset - 2)
    ):
        return (
            offset - 2,
            "`--` inside a comment",
            "write a single - or a dash; a comment ends with -->",
        )
    start = text.rfind("<", 0, offset)
    if not is_inside and (start < 0 or _TAG.match(text, start, offset)):
        return _text_outside(text, offset)
    if not is_inside and character == "/":
        return offset - 1, f"</{_name(text, offset + 1)}> closes nothing", None
    if text.startswith("]]>", offset - 2):
        return offset - 2, "`]]>` cannot be in text", "write ]]&gt;"
    if (reference := _PART_OF_REFERENCE.search(text, max(0, offset - 100), offset)) is not None:
        return _bare_ampersand(text, reference.start())
    return _bad_tag(text, start, end=offset)


def _text_outside(text: str, offset: int) -> Finding:
    """The finding for text before the root element, or else at `offset` after it."""
    prolog = _PROLOG.match(text)
    begin = prolog.end() if prolog else 0
    if text.startswith("<![CDATA[", begin) or not text.startswith("<", begin):
        return begin, "text before the root element", None
    return offset, "text after the root element", None


def _unclosed(text: str, start: int) -> Finding:
    """What is wrong with something that begins at `start` and does not end."""
    if text[start] == "&":
        return _bare_ampersand(text, start)
    if text[start] != "<":
        return _text_outside(text, start)
    for opening, what in (("<!--", "comment"), ("<?", "processing instruction")):
        if text.startswith(opening, start):
            return start, f"this {what} is never closed", None
    return _bad_tag(text, start, end=len(text))


def _bare_ampersand(text: str, offset: int) -> Finding:
    return _in_braces(text, offset) or (offset, "a bare `&`", "write &amp;, or use CDATA")


def _bad_tag(text: str, start: int, end: int) -> Finding:
    """What is wrong with the tag from `start`, which expat could read up to `end`."""
    if (braces := _in_braces(text, start)) is not None:
        return braces
    following = text[start + 1 : start + 2]
    if not following.isalpha() and following not in ("_", "/"):
        return start, "a bare `<`", _ESCAPE
    tag = _name(text, start + 1 + (following == "/"))
    if tag and text[end : end + 1] not in ("<", ""):
        begun = _PART_OF_ATTRIBUTE.search(text, max(start, end - 100), end)
        message = f"<{tag}> has something that is not an attribute here"
        hint = 'attributes look like name="value", with spaces between them'
        return end if begun is None else begun.start(), message, hint
    quote = _OPEN_QUOTE.match(text, start, end)
    if quote is None:
        return start, "this tag does not end with `>`", _ESCAPE
    at = quote.end() - 1
    if text.find(text[at], quote.end()) < 0 or "\n" in text[at:end] or ">" in text[at:end]:
        return at, "this attribute value has no closing quote", f"add {text[at]}"
    return end, "`<` inside an attribute value", "write &lt; for it"


def _in_braces(text: str, offset: int) -> Finding | None:
    """The finding for a `<` or `&` inside `{% … %}` or `{{ … }}`; None if it is elsewhere."""
    character = text[offset]
    before = text[max(0, offset - 2000) : offset]
    after = text[offset : offset + 2000]
    for opening, closing in (("{%", "%}"), ("{{", "}}")):
        start = before.rfind(opening)
        if (
            start >= 0
            and closing not in before[start:]
            and ">" not in before[start:]
            and closing in after
        ):
            escape = "&lt;" if character == "<" else "&amp;"
            hint = f"write {escape} for it, or put the whole text in <![CDATA[ … ]]>"
            return (
                offset,
                f"`{character}` inside {opening} … {closing} is not well-formed XML",
                hint,
            )
    return None


def _name(text: str, offset: int) -> str:
    found = _NAME.match(text, offset)
    if found:
        return found[0]
    return ""


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1
