"""Lines of text files, UTF-8 and maybe compressed with gzip, each with its number; what makes a file this file."""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from evaluator.batch.rows.problems import RowError

MAX_ROW_BYTES = 64 * 1024 * 1024
"""The longest row that is read: what is longer is no row, but a file of another format."""

_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 20


def check_file(path: Path) -> None:
    """Raises: RowError, if there is no file with something in it that can be read twice."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise RowError(f"cannot be read: {why}", source=str(path)) from error
    if stat.S_ISDIR(found.st_mode):
        raise RowError("is a folder; name a file in it", source=str(path))
    if not stat.S_ISREG(found.st_mode):
        raise RowError("is no file that can be read twice; save the rows to a file first", source=str(path))
    if found.st_size == 0:
        raise RowError("the file is empty", source=str(path))


def open_bytes(path: Path) -> BinaryIO:
    """The file, decompressed where its name ends in .gz. Raises: RowError."""
    try:
        if path.suffix.lower() == ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        return path.open("rb")
    except OSError as error:
        raise RowError(f"cannot be read: {error.strerror}", source=str(path)) from error


def read_bytes(file: BinaryIO, path: Path, line: int, size: int) -> bytes:
    """The next `size` bytes. Raises: RowError, after `line` lines."""
    try:
        return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, line, error) from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line with its number, counted from 1, its end of line included. A byte order mark is left out.

    Lines end with a line feed: the other characters that Python takes for ends may stand inside JSON's strings.

    Raises: RowError, for what is not UTF-8, a line of more than MAX_ROW_BYTES, and a file that cannot be read.
    """
    number = 0
    with open_bytes(path) as file:
        while True:
            try:
                line = file.readline(MAX_ROW_BYTES + 1)
            except (OSError, EOFError, zlib.error) as error:
                raise _unreadable(path, number, error) from error
            if not line:
                return
            number += 1
            if len(line) > MAX_ROW_BYTES:
                message = f"the line is longer than {MAX_ROW_BYTES >> 20} MiB; one row stands on one line"
                raise RowError(message, source=str(path), line=number)
            if number == 1:
                line = line.removeprefix(_BOM)
            try:
                yield number, line.decode()
            except UnicodeDecodeError as error:
                column = len(line[: error.start].decode()) + 1
                raise not_utf8(path, number, column, line) from error


def not_utf8(path: Path, line: int, column: int, data: bytes) -> RowError:
    guess = " (UTF-16?)" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
    return RowError(f"the text is not UTF-8{guess}; save it as UTF-8", source=str(path), line=line, column=column)


def nul_character(path: Path, line: int, column: int) -> RowError:
    message = "a NUL character: this is no text file, or not UTF-8 (UTF-16?); save it as UTF-8"
    return RowError(message, source=str(path), line=line, column=column)


def fingerprint(path: Path, *, count_lines: bool) -> tuple[int, str, int | None]:
    """Bytes, SHA-256 and, with `count_lines`, the lines that are not blank, in one pass.

    Raises: RowError, if the file cannot be read.
    """
    digest, lines, has_content = hashlib.sha256(), 0, False
    try:
        with path.open("rb") as file:
            if not count_lines:
                size = os.fstat(file.fileno()).st_size
                return size, hashlib.file_digest(file, "sha256").hexdigest(), None
            while piece := file.readline(_CHUNK):
                digest.update(piece)
                has_content = has_content or not piece.isspace()
                if piece.endswith(b"\n"):
                    lines, has_content = lines + has_content, False
            return file.tell(), digest.hexdigest(), lines + has_content
    except OSError as error:
        raise RowError(f"cannot be read: {error.strerror}", source=str(path)) from error


def _unreadable(path: Path, line: int, error: Exception) -> RowError:
    if isinstance(error, OSError) and error.strerror:
        return RowError(f"cannot be read: {error.strerror}", source=str(path), line=line + 1)
    return RowError(f"the compressed file is broken or cut off: {error}", source=str(path), line=line + 1)
