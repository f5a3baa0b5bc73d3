"""Reads strings as models write them: where they end, and what their escapes mean.

Each character is read a bounded number of times: every decision looks ahead over at most the white space and the word
next to it.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

Position = Literal["key", "object", "array"]

WS = r"[ \t\r\n\f\v\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff]"
OPENING = "\"'“”„‟‘’‚‛＂`"
REASONING_WORDS = r"(?:think|thinking|thought|thoughts|reasoning|reflection|scratchpad|analysis|chain_of_thought|cot)"
CLOSING_TAG = rf"</{REASONING_WORDS}\s{{0,8}}>"

QUOTE = "[\"'“”„‟‘’‚‛＂`]"
_COMMENT = r"//|/\*|\#"
_KEY_AHEAD = rf"{QUOTE}[^\"'“”‘’`\\\n]{{1,64}}{QUOTE}{WS}{{0,64}}+:"
_AFTER = {
    "key": rf"{WS}*+(?:[:,}}=：]|\Z)",
    "object": (
        rf"{WS}*+(?:[}}\]]|,{WS}*+(?:{QUOTE}|[}}\]{{]|\w{{1,10}}+\Z|[A-Za-z_$][\w$-]{{0,63}}{WS}{{0,64}}+:|{_COMMENT}|\Z)"
        rf"|{_KEY_AHEAD}|{_COMMENT}|```|\Z)|[ \t]*+\r?\n[ \t]*+\r?\n"
    ),
    "array": (
        rf"{WS}*+(?:[\]}}]|,{WS}*+(?:{QUOTE}|[\[{{\d\]}}.-]|\w{{1,10}}+\Z|true|false|null|None|True|False|{_COMMENT}|\Z)"
        rf"|{QUOTE}|{_COMMENT}|```|\Z)|[ \t]*+\r?\n[ \t]*+\r?\n"
    ),
}
_CLOSERS = {'"': '"“”＂', "'": "'’", "`": "`", "＂": '＂"'}
_DOUBLE, _SINGLE = '“”„‟"', "‘’‚‛'"
# The next line begins with a key: the closing quote of the string is missing.
_NEXT_KEY = r"\n[ \t]{0,64}\"[^\"\\\n]{1,64}\"[ \t]{0,8}:"

_ESCAPE = re.compile(r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|([\s\S]?))")
_SIMPLE = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_CONTROL = re.compile(r"[\x00-\x1f]")
_ESCAPE_AT = re.compile(r"\\[\s\S]")
_PARTIAL = re.compile(r"\\u[0-9a-fA-F]{0,3}\Z|\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


def _closers(quote: str) -> str:
    if quote in _CLOSERS:
        return _CLOSERS[quote]
    return _DOUBLE if quote in "“”„‟" else _SINGLE


def _without_partial(raw: str) -> str:
    """A cut string without the escape, or the half of a pair of escapes, that was cut in two."""
    last = before = -7
    for match in _ESCAPE_AT.finditer(raw):
        last, before = match.start(), last
    if last >= 0 and _PARTIAL.match(raw, last):
        raw = raw[:last]
        if before == last - 6 and _PARTIAL.match(raw, before):
            raw = raw[:before]
    return raw


# Compiled at first use, because all sixty take longer than the rest of the import.
@cache
def _sound(quote: str, position: Position) -> re.Pattern[str]:
    ends = _closers(quote)
    return re.compile(rf"((?:[^{ends}\\]++|\\[\s\S])*+)[{ends}](?={_AFTER[position]})")


@cache
def _exact(position: Position) -> re.Pattern[str]:
    """A string in plain quotes, as in JSON: a typographic quote in it is text."""
    return re.compile(rf'((?:[^"\\]++|\\[\s\S])*+)"(?={_AFTER[position]})')


@cache
def _loose(quote: str, position: Position) -> re.Pattern[str]:
    ends, after = _closers(quote), _AFTER[position]
    newline = rf"|\n(?!{_NEXT_KEY[2:]})" if position == "object" else r"|\n" if position == "array" else ""
    return re.compile(rf"(?:[^{ends}\\<\n]++|\\[\s\S]|[{ends}](?!{after}){newline}|<(?!{CLOSING_TAG[1:]}))*+", re.I)


class ReadString:
    """One string: its value, its end, the repairs, and whether the text ended before it."""

    __slots__ = ("cut", "end", "repairs", "stopped", "value")

    def __init__(self, text: str, start: int, position: Position) -> None:
        quote = text[start]
        self.repairs: list[str] = []
        self.cut = self.stopped = False
        match = _exact(position).match(text, start + 1) if quote == '"' else None
        match = match or _sound(quote, position).match(text, start + 1)
        if match is not None:
            raw, self.end = match[1], match.end()
        else:
            raw = self._loose(text, start, quote, position)
        if quote != '"':
            self.repairs.append("typographic" if quote in "“”„‟‘’‚‛＂" else "single")
        self.value = self._decode(raw, quote)

    def _loose(self, text: str, start: int, quote: str, position: Position) -> str:
        found = _loose(quote, position).match(text, start + 1)
        stop = found.end() if found is not None else start + 1
        raw = text[start + 1 : stop]
        # Between two plain quotes, a typographic or an escaped one is text.
        ends = '"' if quote == '"' and text.startswith('"', stop) else _closers(quote)
        plain = _ESCAPE_AT.sub("", raw)
        if any(closer in plain for closer in ends):
            self.repairs.append("inner_quotes")
        if stop >= len(text) or (text[stop] == "\\" and stop + 1 == len(text)):
            self.cut, self.end = True, len(text)
            return _without_partial(raw)
        if text[stop] == "<" or (text[stop] == "\n" and position == "key"):
            self.stopped, self.end = True, stop
        elif text[stop] == "\n":
            self.repairs.append("missing_quote")
            raw = raw.rstrip()
            if raw.endswith(","):
                raw = raw[:-1]
            self.end = start + 1 + len(raw)
        else:
            self.end = stop + 1
        return raw

    def _decode(self, raw: str, quote: str) -> str:
        if _CONTROL.search(raw):
            self.repairs.append("control")
        if "\\" not in raw:
            return raw
        own = quote if quote in "'`" else ""
        bad = False

        def decode(match: re.Match[str]) -> str:
            nonlocal bad
            plain = match[4]
            if plain is None:
                if match[3] is not None:
                    return chr(int(match[3], 16))
                high, low = int(match[1], 16), int(match[2], 16)
                return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
            known = _SIMPLE.get(plain)
            if known is not None:
                return known
            if plain and plain == own:
                return plain
            bad = True
            return match[0]

        value = _ESCAPE.sub(decode, raw)
        if bad:
            self.repairs.append("escape")
        return value
