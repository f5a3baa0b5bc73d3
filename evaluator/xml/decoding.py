"""Decodes the bytes of an XML file: byte order marks, declared encodings, the place of an invalid
byte.

Line ends become `\\n`, as XML 1.0, section 2.11, requires of every processor; lines and columns
stay the same.
"""

from __future__ import annotations

import codecs
import re

from evaluator.errors import Diagnostic, TemplateError
from evaluator.nodes import Span

_DECLARED = re.compile(rb"""<\?xml\s[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._\-]{1,40})["']""")
# Codecs that are not character encodings (punycode, unicode_escape, …) are refused.
_ENCODING = re.compile(
    r"utf-8|utf-16(-[lb]e)?|utf-32(-[lb]e)?|ascii|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|"
    r"shift_jis\w*|euc_\w+|iso2022_\w+|gb\w+|big5\w*|hz|johab|tis-620|ptcp154|kz1048"
)


def decode(data: bytes, file: str | None) -> str:
    """The text of `data`, without a byte order mark, line ends as `\\n`.

    UTF-8 unless a byte order mark (UTF-8, UTF-16) or the XML declaration says otherwise.
    Raises: TemplateError, with the place of the first invalid byte.
    """
    encoding, skip = _encoding(data, file)
    body = data[skip:]
    try:
        text = body.decode(encoding)
    except UnicodeDecodeError as error:
        before = normalise_newlines(body[: error.start].decode(encoding, "ignore"))
        message = (
            f"byte 0x{body[error.start]:02x} at offset {skip + error.start} is not valid {encoding}"
        )
        hint = 'save the file as UTF-8, or name its encoding: <?xml version="1.0" encoding="…"?>'
        span = Span.at(before, len(before), file=file)
        raise TemplateError(
            [Diagnostic("error", "encoding", message=message, span=span, hint=hint)]
        ) from error
    return normalise_newlines(text)


def normalise_newlines(text: str) -> str:
    if "\r" in text:
        return text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def _encoding(data: bytes, file: str | None) -> tuple[str, int]:
    if data.startswith(codecs.BOM_UTF8):
        return "utf-8", 3
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16-le" if data[0] == 0xFF else "utf-16-be", 2
    if data[:4] in (b"<\0?\0", b"\0<\0?") or data[:2] in (b"<\0", b"\0<"):
        raise _unusable("this looks like UTF-16 without a byte order mark", file)
    declared = _DECLARED.match(data[:400])
    if declared is None:
        return "utf-8", 0
    name = declared[1].decode("ascii")
    try:
        known = codecs.lookup(name).name
    except LookupError as error:
        raise _unusable(f"the declared encoding {name!r} is unknown", file) from error
    if _ENCODING.fullmatch(known) is None or known.startswith(("utf-16", "utf-32")):
        # A file whose declaration reads as ASCII is not UTF-16 or UTF-32, whatever it says.
        raise _unusable(f"the declared encoding {name!r} is not supported in templates", file)
    return known, 0


def _unusable(message: str, file: str | None) -> TemplateError:
    return TemplateError(
        [
            Diagnostic(
                "error", "encoding", message=message, span=Span(file), hint="save the file as UTF-8"
            )
        ]
    )
