"""Tokens of TypeScript and Rust, as far as the extraction of test cases needs them; see
`parse_sets.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = r"""//[^\n]*|/\*.*?\*/|\br(?P<marks>\#*)"(?P<raw>.*?)"(?P=marks)
|(?P<quote>[%s])(?P<body>(?:\\.|(?!(?P=quote)).)*)(?P=quote)|(?P<word>\w[\w.]*|[^\s\w])"""
_ESCAPE = re.compile(r"\\(?:u\{(\w+)\}|u(\w{4})|x(\w\w)|(.))", re.S)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0", "\n": ""}


def tokens_of(source: str, quotes: str) -> Iterator[str]:
    """Words and single marks, without comments. A literal is its text after a double quote.

    A template literal that is computed stays as it is written, so that nobody takes it for a text.
    """
    for match in re.finditer(_TOKEN % quotes, source, re.S | re.X):
        if match["raw"] is not None:
            yield '"' + match["raw"]
        elif match["quote"]:
            computed = match["quote"] == "`" and "${" in match["body"]
            yield match[0] if computed else '"' + _ESCAPE.sub(_unescaped, match["body"])
        elif match["word"]:
            yield match["word"]


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2] or match[3]
    return chr(int(code, 16)) if code else _ESCAPES.get(match[4], match[4])


def concatenated(tokens: list[str], known: dict[str, str]) -> str | None:
    """The value of `TEXT + NAME + …`; None for any other expression."""
    parts = [part[1:] if part[0] == '"' else known.get(part) for part in tokens[::2]]
    if len(tokens) % 2 == 0 or set(tokens[1::2]) - {"+"} or None in parts:
        return None
    return "".join(part or "" for part in parts)


def arguments(tokens: list[str], opening: int) -> tuple[list[list[str]], int]:
    """The arguments of a call whose bracket is at `opening`, and the index after its end."""
    found, depth = list[list[str]]([[]]), 0
    for index in range(opening, len(tokens)):
        token = tokens[index]
        depth += (token in ("(", "[", "{")) - (token in (")", "]", "}"))
        if depth == 0:
            return [part for part in found if part], index + 1
        if token == "," and depth == 1:
            found.append([])
        elif index > opening:
            found[-1].append(token)
    return [], len(tokens)
