"""Regular expressions that are compiled at their first use, by an engine that matches them right.

`re` gives wrong groups and spans for possessive repeats of a group and for atomic groups before
Python 3.11.5 (python/cpython#106052), which Debian 12 has. There the `regex` library compiles the
patterns. It takes two to nine times as long to read an answer that needs repair, so later versions
of Python use `re`. Both match the same, since classes of characters are written out for `regex`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

Match = re.Match[str]


if TYPE_CHECKING:

    class _Find(Protocol):
        def __call__(self, string: str, pos: int = 0, endpos: int = ..., /) -> Match | None: ...

    class _FindInBytes(Protocol):
        def __call__(
            self, string: bytes, pos: int = 0, endpos: int = ..., /
        ) -> re.Match[bytes] | None: ...

    class _FindAll(Protocol):
        def __call__(self, string: str, pos: int = 0, endpos: int = ..., /) -> Iterator[Match]: ...

    class _Split(Protocol):
        def __call__(self, string: str, maxsplit: int = 0) -> list[str | Any]: ...

    class _Replace(Protocol):
        def __call__(
            self, repl: str | Callable[[Match], str], string: str, count: int = 0
        ) -> str: ...


_METHODS = ("findall", "finditer", "fullmatch", "match", "search", "split", "sub")
_METHODS_OF_BYTES = ("findall", "finditer", "fullmatch", "match", "search")


class Pattern:
    """A regular expression with the methods of `re.Pattern`; the first use of one compiles it.

    `flags` are letters of inline flags: `i`, `m`, `s`, `x` and `a`. Use it for every pattern with a
    possessive quantifier or an atomic group.
    """

    __slots__ = (*_METHODS, "flags", "pattern")

    findall: Callable[[str], list[Any]]
    finditer: _FindAll
    fullmatch: _Find
    match: _Find
    search: _Find
    split: _Split
    sub: _Replace

    def __init__(self, pattern: str, flags: str = "") -> None:
        self.pattern = pattern
        self.flags = flags

    def __getattr__(self, name: str) -> Any:
        # A slot without a value: the pattern is not compiled.
        if name not in _METHODS:
            raise AttributeError(name)
        is_anchored = name in _ANCHORED
        compiled = compile_now(self, is_anchored)
        for method in _METHODS:
            if not _USES_REGEX or (method in _ANCHORED) == is_anchored:
                setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)

    def __repr__(self) -> str:
        return f"Pattern({self.pattern!r}, {self.flags!r})"


class BytesPattern:
    """A regular expression for bytes, which `re` compiles at its first use: one without possessive
    quantifiers and atomic groups. `flags` as for `Pattern`.
    """

    __slots__ = (*_METHODS_OF_BYTES, "flags", "pattern")

    finditer: Callable[[bytes], Iterator[re.Match[bytes]]]
    findall: Callable[[bytes], list[Any]]
    fullmatch: _FindInBytes
    match: _FindInBytes
    search: _FindInBytes

    def __init__(self, pattern: bytes, flags: str = "") -> None:
        self.pattern = pattern
        self.flags = flags

    def __getattr__(self, name: str) -> Any:
        # A slot without a value: the pattern is not compiled.
        if name not in _METHODS_OF_BYTES:
            raise AttributeError(name)
        flags = b"(?%s)" % self.flags.encode() if self.flags else b""
        compiled = re.compile(flags + self.pattern)
        for method in _METHODS_OF_BYTES:
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


_ANCHORED = ("fullmatch", "match")
_USES_REGEX = sys.version_info < (3, 11, 5)


def compile_now(pattern: Pattern, is_anchored: bool) -> Any:
    """The pattern compiled by the engine of this version of Python.

    `is_anchored` is True for `match` and `fullmatch`.
    """
    if _USES_REGEX:
        return compile_with_regex(pattern, is_anchored)
    return re.compile(_with_flags(pattern, pattern.pattern))


def compile_with_regex(pattern: Pattern, is_anchored: bool) -> Any:
    """The pattern compiled by `regex`.

    Before `regex` matches, it looks in the rest of the text for a string that every match contains.
    This makes a search fast, but each `match` at a position of a long text then reads all of the
    text. A pattern with an alternative that never matches has no such string.
    """
    import regex

    source = pattern.pattern
    if is_anchored:
        source = f"(?!)|{source}"
    return regex.compile(as_regex(_with_flags(pattern, source)), regex.V0)


def _with_flags(pattern: Pattern, source: str) -> str:
    if pattern.flags:
        return f"(?{pattern.flags}){source}"
    return source


# What these classes are in `re`. In `regex`, U+001C is not white space, ² is not a part of a word,
# and combining marks are.
_WORD = r"\p{L}\p{N}_"
_NOT_WORD = r"\p{M}\p{Z}\p{C}\p{S}\p{Pd}\p{Ps}\p{Pe}\p{Pi}\p{Pf}\p{Po}‿⁀⁔︳︴﹍﹎﹏＿"
_CLASSES = {r"\w": _WORD, r"\W": _NOT_WORD, r"\s": r"\s\x1c-\x1f"}
_OUTSIDE = {
    r"\b": f"(?:(?<=[{_WORD}])(?![{_WORD}])|(?<![{_WORD}])(?=[{_WORD}]))",
    "{": r"\{",
    **{name: f"[{members}]" for name, members in _CLASSES.items()},
}
# A class of characters, or what has another meaning outside one.
_FOREIGN = r"(?s)(\[\^?)(\]?(?:\\.|[^\]\\])*\])|\\.|\(\?#[^)]*\)|\{(?!\d+(?:,\d*)?\}|,\d*\})"


def as_regex(source: str) -> str:
    """A pattern in the syntax of `re` in that of `regex`, with the same meaning.

    What is a plain character in `re` (`a{e}`, `[[:alpha:]]`) stays one. Classes are written out,
    except in a pattern with the flag `a`.
    """
    is_ascii = re.match(r"\(\?[imsx]*a", source) is not None

    def translate(match: Match) -> str:
        if match[1] is None:
            if is_ascii and match[0] != "{":
                return match[0]
            return _OUTSIDE.get(match[0], match[0])
        return match[1] + re.sub(r"(?s)\\.|\[", translate_member, match[2])

    def translate_member(match: Match) -> str:
        if match[0] == "[":
            return r"\["
        if is_ascii:
            return match[0]
        return _CLASSES.get(match[0], match[0])

    return re.sub(_FOREIGN, translate, source)


# Patterns that come as data: with a bound on their size, and compiled by `regex`, which can be
# given a time limit; `re` cannot.
MAX_EXPANDED = 10_000
# Escaped characters and whole classes count as one; of a repeat, the numbers matter.
_PIECE = Pattern(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*),?(\d*)\}|[()]|.", "s")


class BadPattern(ValueError):
    """A pattern that is invalid or too large to be compiled; the message says why."""


def compile_pattern(pattern: str, ignore_case: bool = False) -> Any:
    """The pattern compiled by `regex`, in its syntax. Raises: BadPattern, if it is invalid or has
    over 10,000 parts.
    """
    import regex

    if expanded_size(pattern) > MAX_EXPANDED:
        raise BadPattern(f"has more than {MAX_EXPANDED} parts when its repeats are written out")
    try:
        return regex.compile(pattern, regex.V0 | (regex.IGNORECASE if ignore_case else 0))
    except (regex.error, RecursionError) as error:
        raise BadPattern(f"is invalid: {error}") from error


def expanded_size(pattern: str) -> int:
    """The number of parts of a pattern with each `{n,m}` written out; an upper bound for valid
    patterns.
    """
    sums = [0]
    last = [0]
    for piece in _PIECE.finditer(pattern):
        token = piece[0]
        if token == "(":
            sums.append(0)
            last.append(0)
        elif token == ")" and len(sums) > 1:
            size = sums.pop() + 1
            last.pop()
            sums[-1] += size
            last[-1] = size
        elif token[0] == "{" and (piece[1] or piece[2]):
            times = max(int(piece[1] or 0), int(piece[2] or 0))
            sums[-1] += last[-1] * max(0, times - 1)
            last[-1] *= max(1, times)
        elif token not in "*+?":
            sums[-1] += 1
            last[-1] = 1
    return sum(sums)


@lru_cache(maxsize=1024)
def compile_as_re(pattern: str) -> Any:
    """The pattern compiled by `regex` with the meaning that it has in `re`. Raises: BadPattern."""
    try:
        return compile_pattern(as_regex(pattern))
    except BadPattern as error:
        raise BadPattern(f"the pattern {pattern!r:.200} {error}") from error
