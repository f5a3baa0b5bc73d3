"""Reads strings as models write them: where they end, and what their escapes mean."""

from __future__ import annotations

from functools import cache

from evaluator.output.escapes import decode
from evaluator.output.lookahead import CLOSERS, COLON, OPENING, QUOTE, QUOTED, VALUE, WS, Lookahead
from evaluator.patterns import Pattern

REASONING_WORDS = (
    r"(?:think|thinking|thought|thoughts|reasoning|reflection|scratchpad|analysis"
    r"|chain_of_thought|cot)"
)
CLOSING_TAG = rf"</{REASONING_WORDS}\s{{0,8}}>"

_FAMILIES = ('"“”„‟＂', "'‘’‚‛", "`", "«»", "‹›", "「」", "『』", "〝〞")
_TYPOGRAPHIC = "“”„‟‘’‚‛＂«»‹›「」『』〝〞"
_TRIPLE = Pattern(r'"""|\'\'\'')
_NO_TRIPLE = Pattern(rf"[ ]?(?:[}}\]]\s*+(?:[,}}\]]|\Z)|,{WS}*+{QUOTED}{WS}*+[:,\]])")
# A key with a quote of another kind at its end, one without the closing quote, and one with quotes
# inside.
_MIXED_KEY = Pattern(rf"([^{OPENING}\\\n:]{{1,64}}){QUOTE}(?={WS}*+(?:{COLON}|=))")
_OPEN_KEY = Pattern(rf"([\w$][\w$ .-]{{0,63}}?)(?={WS}{{0,8}}+{COLON}{WS}*+{VALUE})")
_CLOSED_LATER = Pattern(r"[^\"}\]]{0,2000}+[\"}\]]")
_APOSTROPHE = Pattern(r"\w['’]\w")
# The end of a text whose last string has no closing quote.
_LAST_LINE = Pattern(r"\n[\s,]*+[\]}][\s\]},]*+(?:```\s*+)?\Z")
# A Windows path whose last backslash stands before the closing quote.
_PATH = Pattern(rf'(?:[A-Za-z]:\\|\\\\)[^"\n<>|*?]{{0,400}}?(?<!\\)(?:\\\\)*\\"(?={WS}*+[,\]}}])')
# The end of a text whose last quote is a sign of its own: inches, or the apostrophe of a genitive.
_MEASURE = Pattern(
    r"(?:(?:\A|[ (x×'′’])(?:\d{0,3}[½¼¾]|\d{1,3}(?:[.,]\d{1,2}|(?:[ -]\d)?/\d{1,2})?)(?:['′’]?\""
    r"|['’])|s['’])\Z"
)
_MAX_MEASURE = 16
_STEPS_PER_WALK = 5
_ELISION = Pattern(r"['‘’](?:t(?:is|was|il)|em|cause|n|\d0s)\b", "i")
_BEFORE_PAIR = " =([,:"
# Surplus quotes behind a string, and behind a key.
_SURPLUS = Pattern(rf"{WS}{{0,3}}({QUOTE}{{1,2}})")
_SURPLUS_IN_KEY = Pattern(rf"[ ]?{QUOTE}{{1,2}}(?={WS}*+{COLON})")
_AFTER_TEXT = Pattern(r"[^,}\]\n\"]{0,400}+")

_CONTROL = Pattern(r"[\x00-\x1f]")
_ESCAPE_AT = Pattern(r"\\[\s\S]")
_LONE_BACKSLASH = Pattern(r"(?<!\\)(?:\\\\)*+\\\Z")
_PARTIAL = Pattern(r"\\u[0-9a-fA-F]{0,3}\Z|\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


def _family(quote: str) -> str:
    """The quotes that may end a string which begins with `quote`."""
    return next(family for family in _FAMILIES if quote in family)


def _without_partial(raw: str) -> str:
    """A cut string without the escape, or the half of a pair of escapes, that was cut in two."""
    if _LONE_BACKSLASH.search(raw):
        raw = raw[:-1]
    last = before = -7
    for match in _ESCAPE_AT.finditer(raw):
        before = last
        last = match.start()
    if last >= 0 and _PARTIAL.match(raw, last):
        raw = raw[:last]
        if before == last - 6 and _PARTIAL.match(raw, before):
            raw = raw[:before]
    return raw


def _is_measure(text: str, begin: int, end: int) -> bool:
    """Whether the quote before `end` is a sign of the text that begins at `begin`, not of the
    reader.
    """
    return _MEASURE.search(text[max(begin, end - _MAX_MEASURE) : end]) is not None


@cache
def _up_to(quote: str, *, in_line: bool = False) -> Pattern:
    """Text up to `quote` or (`in_line`) the end of the line."""
    line = r"\n" if in_line else ""
    return Pattern(rf"(?:[^{quote}\\{line}]++|\\[\s\S])*+")


@cache
def _until(ends: str, *, in_line: bool = False) -> Pattern:
    """Text up to one of `ends`, a closing reasoning tag, or (`in_line`) the end of the line."""
    line = r"\n" if in_line else ""
    return Pattern(rf"(?:[^{ends}\\<{line}]++|\\[\s\S]|<(?!{CLOSING_TAG[1:]}))*+", "i")


class ReadString:
    """One string: its value, its end, the repairs, and whether the text ended before it.

    With `is_key` it is the key of an object. `stopped`: it has no end before a tag or, for a key,
    in its line.
    """

    __slots__ = ("_ahead", "_quote", "_start", "_text", "cut", "end", "repairs", "stopped", "value")

    def __init__(self, ahead: Lookahead, start: int, *, is_key: bool) -> None:
        text = self._text = ahead.text
        self._ahead = ahead
        self._start = start
        self._quote = text[start]
        self.repairs: list[str] = []
        self.cut = self.stopped = False
        self.end = start
        if _TRIPLE.match(text, start):
            raw = self._triple()
        else:
            raw = None
        if raw is None:
            if is_key:
                raw = self._key()
            else:
                raw = self._value()
            if self._quote != '"':
                self.repairs.append("typographic" if self._quote in _TYPOGRAPHIC else "single")
            raw = self._undoubled(raw, is_key=is_key)
        self.value = self._decode(raw)

    def _take(self, start: int, stop: int, end: int, *repairs: str) -> str:
        self.end = end
        self.repairs.extend(repairs)
        return self._text[start:stop]

    def _triple(self) -> str | None:
        text = self._text
        start = self._start
        if _NO_TRIPLE.match(text, start + 3):
            return None
        end = text.find(text[start : start + 3], start + 3)
        self._ahead.spend(start)
        if end < 0:
            return None
        while text[end + 3 : end + 4] == self._quote:
            end += 1
        return self._take(start + 3, end, end + 3, "doubled_quotes")

    def _undoubled(self, raw: str, *, is_key: bool) -> str:
        """`raw` without surplus quotes at its ends (`""text""`, `""text"`, `"text""`) or beside an
        escaped quote.

        A text with a pair of quotes keeps them, and so does one that ends with a measure (`5'10"`).
        """
        if "inner_quotes" not in self.repairs:
            return raw
        if self._quote in _TYPOGRAPHIC:
            family = _family(self._quote)
        else:
            family = self._quote
        plain = _ESCAPE_AT.sub("  ", raw)
        count = sum(plain.count(quote) for quote in family)
        inner = plain.strip(family)
        begin = len(plain) - len(plain.lstrip(family))
        end = begin + len(inner)
        if inner and count == len(plain) - len(inner):
            if (
                not is_key and end < len(plain) and not begin and _is_measure(raw, 0, end=end + 1)
            ) or (
                (begin > 1 and inner[0] == " ")
                or (len(plain) - end > 1 and inner[-1] in _BEFORE_PAIR)
            ):
                return raw
            if begin == 1 and end == len(plain) and _ELISION.match(raw):
                return raw
            raw = raw[begin:end]
        elif (
            count == 1
            and (at := plain.find(self._quote)) > 1
            and raw[at - 2] == "\\"
            and plain[at - 2 : at] == "  "
        ):
            raw = raw[:at] + raw[at + 1 :]
        else:
            return raw
        self.repairs = [repair for repair in self.repairs if repair != "inner_quotes"] + [
            "doubled_quotes"
        ]
        return raw

    # Keys

    def _key(self) -> str:
        text = self._text
        begin = self._start + 1
        ahead = self._ahead
        if self._quote in _TYPOGRAPHIC:
            closers = _family(self._quote)
        else:
            closers = self._quote
        exact = _up_to(closers, in_line=True).match(text, begin)
        if exact is not None:
            stop = exact.end()
        else:
            stop = begin
        is_closed = stop < len(text) and text[stop] in closers
        if is_closed and (ahead.after_key(stop + 1) or not text[stop + 1 : stop + 80].strip()):
            return self._take(begin, stop, end=stop + 1)
        if (
            is_closed
            and stop > begin
            and (surplus := _SURPLUS_IN_KEY.match(text, stop + 1)) is not None
        ):
            return self._take(begin, stop, surplus.end(), "doubled_quotes")
        if (match := _MIXED_KEY.match(text, begin)) is not None and _CLOSED_LATER.match(
            text, match.end()
        ):
            return self._take(begin, match.end(1), match.end(), *self._mixed(match[0][-1]))
        if (match := _OPEN_KEY.match(text, begin)) is not None and _CLOSED_LATER.match(
            text, match.end()
        ):
            return self._take(begin, match.end(1), match.end(1), "missing_quote")
        if is_closed and ahead.after_key(stop + 1, is_weak=True):
            return self._take(begin, stop, end=stop + 1)
        return self._key_with_quotes(begin)

    def _key_with_quotes(self, begin: int) -> str:
        text = self._text
        at = begin
        until = _until(_family(self._quote), in_line=True)
        while (match := until.match(text, at)) is not None:
            stop = match.end()
            if stop >= len(text):
                self.cut = True
                return self._take(begin, stop, end=stop)
            if text[stop] in "<\n":
                break
            if text[stop] != "\\" and self._ahead.after_key(stop + 1):
                return self._take(begin, stop, stop + 1, "inner_quotes")
            at = stop + 1
        self.stopped = True
        return self._take(begin, at, end=at)

    def _mixed(self, closer: str) -> tuple[str, ...]:
        if closer in _family(self._quote):
            return ()
        return ("mixed_quotes",)

    # Values

    def _value(self) -> str:
        text = self._text
        begin = self._start + 1
        quote = self._quote
        level = len(self._ahead.kinds)
        if quote == '"' and (path := _PATH.match(text, begin)) is not None:
            raw = self._take(begin, path.end() - 1, path.end(), "escape")
            if "\\\\" in raw:
                return raw
            return raw.replace("\\", "\\\\")
        family = _family(quote)
        if quote in _TYPOGRAPHIC:
            closers = family
        else:
            closers = quote
        exact = _up_to(closers).match(text, begin)
        if exact is not None:
            stop = exact.end()
        else:
            stop = begin
        if stop < len(text) and text[stop] in closers:
            if self._ahead.after_value(stop + 1, level):
                return self._take(begin, stop, end=stop + 1)
            if (end := self._after_surplus(begin, stop, level=level)) is not None:
                return self._take(begin, stop, end, "doubled_quotes")
        raw, rejected = self._walk(begin, level, ends=family)
        if raw is not None:
            return raw
        if self.stopped:
            return self._take(begin, self.end, end=self.end)
        others = "".join(other for other in OPENING if other not in family)
        raw, _ = self._walk(begin, level, ends=others)
        if raw is not None:
            self.repairs.append("mixed_quotes")
            return raw
        self.stopped = False
        if rejected is not None and text.find("}", rejected) + text.find("]", rejected) > -2:
            after = _AFTER_TEXT.match(text, rejected + 1)
            return self._take(
                begin, rejected, after.end() if after is not None else rejected + 1, "text_after"
            )
        last = _LAST_LINE.search(text, max(begin, len(text) - 400))
        if last is not None:
            return self._take(begin, last.start(), last.start(), "missing_quote").rstrip(" \t\r,")
        if (end := self._before_closers(begin)) is not None:
            raw = text[begin:end]
            if raw.endswith('\\"') and raw.count('\\"') % 2:
                # A path that ends with a backslash.
                return self._take(begin, end - 1, end=end)
            return self._take(begin, end, end, "missing_quote")
        self.cut = True
        self._mark_inner(text[begin:])
        return _without_partial(self._take(begin, len(text), end=len(text)))

    def _after_surplus(self, begin: int, stop: int, level: int) -> int | None:
        """Where surplus quotes end behind a string that is closed at `stop`; None if it is not
        closed there.
        """
        text = self._text
        surplus = _SURPLUS.match(text, stop + 1)
        if surplus is None or stop == begin or surplus[1].strip(_family(self._quote)):
            return None
        is_pair = len(surplus[1]) > 1 and text[stop - 1] in _BEFORE_PAIR
        if is_pair or _is_measure(text, begin, end=stop + 1):
            return None
        if self._ahead.after_value(surplus.end(), level):
            return surplus.end()
        return None

    def _before_closers(self, begin: int) -> int | None:
        """Where the brackets begin that end the text, if they close what is open and the string
        opens none.
        """
        rest = self._text[max(begin, len(self._text) - 64) :].rstrip().removesuffix("```").rstrip()
        closers = "".join(CLOSERS[kind] for kind in reversed(self._ahead.kinds))
        kept = rest.rstrip("]}) \t\r\n")
        tail = "".join(rest[len(kept) :].split())
        if not tail or not closers.endswith(tail):
            return None
        if kept:
            end = self._text.rindex(kept) + len(kept)
        else:
            end = begin
        raw = self._text[begin:end]
        if all(raw.count(opening) <= raw.count(closing) for opening, closing in ("{}", "[]", "()")):
            return end
        return None

    def _walk(self, begin: int, level: int, ends: str) -> tuple[str | None, int | None]:
        """The string up to the first of `ends` that may end it, and the first that may not."""
        text = self._text
        ahead = self._ahead
        at = begin
        until = _until(ends)
        rejected = None
        in_quotes = False
        ahead.spend(begin, _STEPS_PER_WALK)
        while (match := until.match(text, at)) is not None:
            stop = match.end()
            if stop >= len(text) or (text[stop] == "\\" and stop + 1 == len(text)):
                return None, rejected
            if text[stop] == "<":
                self.stopped = True
                self.end = stop
                return None, rejected
            if ahead.after_value(stop + 1, level, in_quotes=in_quotes) and not (
                in_quotes and ahead.in_brackets(begin, stop + 1)
            ):
                raw = self._take(begin, stop, end=stop + 1)
                self._mark_inner(raw)
                return raw, None
            if stop > begin and ahead.opens_next(begin, stop):
                return self._before_next(begin, stop), None
            if rejected is None:
                rejected = stop
            else:
                rejected = rejected
            in_quotes ^= not _APOSTROPHE.match(text, stop - 1)
            at = stop + 1
        return None, rejected

    def _before_next(self, begin: int, stop: int) -> str:
        """A string without a closing quote, up to the comma before the quote that opens what
        follows.
        """
        raw = self._text[begin:stop].rstrip()
        if raw.endswith(("{", "[")):
            raw = raw[:-1].rstrip()
        raw = raw.removesuffix(",").removesuffix("，").rstrip()
        if raw.endswith(("}", "]")) and raw.count("}") + raw.count("]") > raw.count(
            "{"
        ) + raw.count("["):
            raw = raw.rstrip("}] \t\r\n")
        self.end = begin + len(raw)
        inner = raw.find(self._quote)
        is_only = inner > 0 and raw.count(self._quote) == 1
        if (
            is_only
            and raw[inner - 1] != " "
            and not (self._quote == "'" and _APOSTROPHE.match(raw, inner - 1))
        ):
            # It was closed; other text follows.
            self.repairs.append("text_after")
            return raw[:inner]
        if raw and raw[-1] in OPENING and (raw.count(raw[-1]) - len(_APOSTROPHE.findall(raw))) % 2:
            self.repairs.append("mixed_quotes")
            return raw[:-1]
        self.repairs.append("missing_quote")
        self._mark_inner(raw)
        return raw

    def _mark_inner(self, raw: str) -> None:
        plain = _ESCAPE_AT.sub("", raw)
        is_plain = self._quote == '"' == self._text[self.end - 1 : self.end]
        ends = '"' if is_plain else _family(self._quote)
        if any(quote in plain for quote in ends):
            self.repairs.append("inner_quotes")

    # Escapes

    def _decode(self, raw: str) -> str:
        if _CONTROL.search(raw):
            self.repairs.append("control")
        value, repairs = decode(raw, self._quote if self._quote in "'`" else "")
        self.repairs += [repair for repair in repairs if repair not in self.repairs]
        return value
