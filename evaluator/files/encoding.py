"""Decodes text files: detects the encoding, refuses binary files, and encodes an edited text as it
was before.
"""

from __future__ import annotations

import codecs

from evaluator.errors import ToolError
from evaluator.lazy_dataclass import dataclass

# A byte order mark, the name of the encoding it announces, and the codec of the bytes after it.
_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32", "utf-32-le"),
    (b"\x00\x00\xfe\xff", "utf-32", "utf-32-be"),
    (b"\xef\xbb\xbf", "utf-8-sig", "utf-8"),
    (b"\xff\xfe", "utf-16", "utf-16-le"),
    (b"\xfe\xff", "utf-16", "utf-16-be"),
)
# Codecs of names and of source code, not of files; the first two take quadratic time.
_NO_FILE_ENCODINGS = ("punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined")


@dataclass(frozen=True, slots=True)
class FileEncoding:
    """The encoding of a text file: the byte order mark `mark`, then text in `codec`. `name` is for
    messages.
    """

    name: str
    codec: str
    mark: bytes = b""

    def encode(self, text: str, path: str) -> bytes:
        """The bytes of the file. Raises: ToolError, where the encoding does not have a character of
        `text`.
        """
        try:
            return self.mark + text.encode(self.codec)
        except UnicodeEncodeError as error:
            found = error.object[error.start]
            raise ToolError(
                f"{found!r} (U+{ord(found):04X}) cannot be written in {path!r}, a {self.name} file"
            ) from error


UTF_8 = FileEncoding("utf-8", "utf-8")


def decode(data: bytes, path: str, encoding: str | None = None) -> tuple[str, FileEncoding]:
    """The text of a file and its encoding; without `encoding` by the byte order mark, else UTF-8,
    else Latin-1.

    Raises: ToolError, for an encoding that is unknown or cannot decode these bytes, and for a
    binary file.
    """
    if encoding is not None:
        found = FileEncoding(encoding, _known(encoding))
        return _decode(data, path, encoding=found), found
    for mark, name, codec in _MARKS:
        if data.startswith(mark):
            found = FileEncoding(name, codec, mark=mark)
            return _decode(data[len(mark) :], path, encoding=found), found
    if b"\0" in data:
        raise ToolError(
            f"{path!r} is a binary file (it contains NUL bytes); name its encoding if it is text"
        )
    try:
        return data.decode("utf-8"), UTF_8
    except UnicodeDecodeError:
        return data.decode("latin-1"), FileEncoding("latin-1", "latin-1")


def _decode(data: bytes, path: str, encoding: FileEncoding) -> str:
    try:
        return data.decode(encoding.codec)
    except UnicodeError as error:
        raise ToolError(f"{path!r} cannot be read as {encoding.name}: {error}") from error


def _known(name: str) -> str:
    try:
        found = codecs.lookup(name).name
        "".encode(found)  # refuses codecs that do not encode text, such as base64
    except (LookupError, ValueError) as error:
        raise ToolError(
            f"{name[:100]!r} is not a known encoding; try utf-8, utf-16 or latin-1"
        ) from error
    if found in _NO_FILE_ENCODINGS:
        raise ToolError(f"{name[:100]!r} is not an encoding of files; try utf-8, utf-16 or latin-1")
    return found
