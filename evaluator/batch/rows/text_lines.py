"""Reads lines of UTF-8 text files, optionally compressed with gzip, with their numbers;
fingerprints of files.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from evaluator.batch.rows.json_values import RowError
from evaluator.files.open_below import hole_problem

MAX_ROW_BYTES = 64 * 1024 * 1024
"""The longest row that is read: anything longer is a file of another format."""

_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 20


def check_file(path: Path) -> None:
    """Raises: RowError, unless `path` is a regular file that is not empty."""
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if stat.S_ISDIR(found.st_mode):
        raise RowError("is a folder; give a file in it", source=str(path))
    if not stat.S_ISREG(found.st_mode):
        raise RowError("is not a regular file; save the rows to one first", source=str(path))
    if (problem := hole_problem(found)) is not None:
        raise RowError(f"is not a file of rows: {problem}", source=str(path))
    if found.st_size == 0:
        raise RowError("the file is empty", source=str(path))


def open_bytes(path: Path) -> BinaryIO:
    """The file, decompressed where its name ends in .gz. Raises: RowError."""
    try:
        if path.suffix.lower() == ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        return path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from error


def read_bytes(read: Callable[[int], bytes], path: Path, line: int, size: int) -> bytes:
    """The next bytes by `read(size)`. Raises: RowError, after `line` lines."""
    try:
        return read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error, line=line + 1) from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Each line with its number from 1, including its line end. A byte order mark is removed.

    Lines end only with a line feed: other line ends of Python may occur inside JSON strings.

    Raises: RowError, for text that is not UTF-8, a line of more than MAX_ROW_BYTES, and a file that
    cannot be read.
    """
    number = 0
    with open_bytes(path) as file:
        while line := read_bytes(file.readline, path, line=number, size=MAX_ROW_BYTES + 1):
            number += 1
            if len(line) > MAX_ROW_BYTES:
                message = (
                    f"the line is longer than {MAX_ROW_BYTES >> 20} MiB; put each row on one line"
                )
                raise RowError(message, source=str(path), line=number)
            if number == 1:
                line = line.removeprefix(_BOM)
            try:
                yield number, line.decode()
            except UnicodeDecodeError as error:
                column = len(line[: error.start].decode()) + 1
                raise not_utf8(path, number, column=column, data=line) from error


def not_utf8(path: Path, line: int, column: int, data: bytes) -> RowError:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        guess = " (UTF-16?)"
    else:
        guess = ""
    return RowError(
        f"the text is not UTF-8{guess}; save it as UTF-8",
        source=str(path),
        line=line,
        column=column,
    )


def nul_character(path: Path, line: int, column: int) -> RowError:
    message = "a NUL character: the file is not text, or not UTF-8 (UTF-16?); save it as UTF-8"
    return RowError(message, source=str(path), line=line, column=column)


def fingerprint(path: Path, *, count_lines: bool) -> tuple[int, str, int | None]:
    """The size in bytes, the SHA-256 and, with `count_lines`, the number of nonblank lines, in one
    pass.

    Raises: RowError, if the file cannot be read.
    """
    digest = hashlib.sha256()
    lines = 0
    has_content = False
    try:
        with path.open("rb") as file:
            if not count_lines:
                size = os.fstat(file.fileno()).st_size
                return size, hashlib.file_digest(file, "sha256").hexdigest(), None
            while piece := file.readline(_CHUNK):
                digest.update(piece)
                has_content = has_content or not piece.isspace()
                if piece.endswith(b"\n"):
                    lines = lines + has_content
                    has_content = False
            return file.tell(), digest.hexdigest(), lines + has_content
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception, line: int | None = None) -> RowError:
    message = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    if line is not None and not getattr(error, "strerror", None):
        message = f"the compressed file is broken or incomplete: {error}"
    return RowError(message, source=str(path), line=line)
