"""Reads strings as models write them: where they end, and what they stand for.

Models leave quotes unescaped, forget them, and mix up brackets. What follows tells whether a
string, a key or a container may end at a place: after a value come a comma and the next member or
item, closing brackets, or the end. Each decision of `Lookahead` reads a bounded part of the text;
what it reads is counted, so that all decisions together stay linear.
"""

from __future__ import annotations

from functools import cache

from evaluator.output import tokens
from evaluator.output.strict import StrictScanner, Unreadable, decode
from evaluator.output.tokens import CLOSING_TAG, OPENING
from evaluator.patterns import Pattern

CLOSERS = {"{": "}", "[": "]", "(": ")", "set": "}"}
"""The closing bracket of each kind of container."""
_FAR_BRACKETS = 400
_NEAR_BRACKETS = 400
_FAMILIES = ('"“”„‟＂', "'‘’‚‛", "`", "«»", "‹›", "「」", "『』", "〝〞")
_TYPOGRAPHIC = "“”„‟‘’‚‛＂«»‹›「」『』〝〞"
_MAX_MEASURE = 16
_STEPS_PER_WALK = 5
_BEFORE_PAIR = " =([,:"


def ends_block(text: str, at: int) -> bool:
    """Whether the outermost container may end before `at`: neither the rest of a string nor more
    members follow.
    """
    return tokens.NOT_AFTER_BLOCK.match(text, at) is None


class Lookahead:
    """What follows a place, seen from the containers that are open there: `kinds`, the innermost
    last.
    """

    __slots__ = ("kinds", "scanner", "text")

    def __init__(self, kinds: list[str], scanner: StrictScanner) -> None:
        self.text = scanner.text
        self.kinds = kinds
        self.scanner = scanner

    def spend(self, at: int, steps: int = 1) -> None:
        """Counts work. Raises: Unreadable, when the text has used up what it may."""
        self.scanner.steps -= steps
        if self.scanner.steps < 0:
            raise Unreadable(
                "the text needs too many repairs", at, resume=len(self.text), committed=True
            )

    def after_value(self, at: int, level: int, *, in_quotes: bool = False) -> bool:
        """Whether a value may end at `at` while `level` containers are open.

        With `in_quotes` it is a string in which an unescaped quote was opened, which this one may
        close.
        """
        text = self.text
        if tokens.BLANK_LINE.match(text, at):
            return True
        start = at
        while level > 0:
            self.spend(at)
            gap = tokens.GAP.match(text, at)
            if gap is not None:
                self.spend(at, (gap.end() - at) >> 6)
                at = gap.end()
            if at >= len(text) or text.startswith("```", at):
                return True
            char = text[at]
            if char in "}])｝］":
                closed = self.closed_by(char, level)
                at += 1
                if not closed and not tokens.TEXT_END.match(text, at):
                    return False
                level -= closed or 1
                if char == ")" and not level:
                    return False
                continue
            is_object = self.kinds[level - 1] == "{"
            if (char in tokens.COMMAS or char in tokens.SEMICOLONS) and (
                closing := tokens.CLOSING_NEXT.match(text, at + 1)
            ):
                at = closing.end()
                continue
            if char in tokens.SEMICOLONS:
                if not (is_object or in_quotes) and tokens.SCALAR_ITEM.match(text, at + 1):
                    return True
                return (tokens.STRICT_MEMBER if is_object else tokens.STRICT_ITEM).match(
                    text, at + 1
                ) is not None
            if char in tokens.COMMAS:
                if (more := tokens.MORE_COMMAS.match(text, at)) is not None:
                    at = more.end() - 1
                if in_quotes:
                    if is_object:
                        following = tokens.NEXT_MEMBER_IN_QUOTES
                    else:
                        following = tokens.NEXT_ITEM_IN_QUOTES
                else:
                    if is_object:
                        following = tokens.NEXT_MEMBER
                    else:
                        following = tokens.NEXT_ITEM
                return following.match(text, at + 1) is not None
            if not in_quotes and (
                (tokens.NEXT_LINE if is_object else tokens.NEXT_LINE_ITEM).match(text, start)
                or (not is_object and tokens.SCALAR_ITEM.match(text, at))
                or (is_object and tokens.BROKEN_LINE.match(text, start))
            ):
                return True
            if in_quotes:
                member = tokens.MEMBER_AFTER_GAP_IN_QUOTES
            else:
                member = tokens.MEMBER_AFTER_GAP
            return (member if is_object else tokens.ITEM_AFTER_GAP).match(text, at) is not None
        return ends_block(text, at) and not (in_quotes and tokens.STILL_INSIDE.match(text, at))

    def closed_by(self, char: str, level: int) -> int:
        """The number of containers that a closing bracket ends: up to the innermost of its kind; 0
        if there is none.
        """
        char = {"｝": "}", "］": "]"}.get(char, char)
        for outer in range(level, 0, -1):
            if CLOSERS[self.kinds[outer - 1]] == char:
                return level - outer + 1
        return 0

    def after_key(self, at: int, *, is_weak: bool = False) -> bool:
        """Whether a key may end at `at`: before a colon or, if `is_weak`, where a colon or a value
        is missing.
        """
        self.spend(at)
        return (tokens.WEAK_KEY_END if is_weak else tokens.KEY_END).match(self.text, at) is not None

    def opens_next(self, begin: int, at: int) -> bool:
        """Whether the quote at `at` opens the next key or item, so that the string from `begin` is
        not closed.
        """
        self.spend(at)
        text = self.text
        if self._after_brackets(begin, at):
            return tokens.OPENS_MEMBER.match(text, at) is not None
        if text[at - 1] not in f" \n\t{tokens.COMMAS}":
            return False
        if self.kinds[-1] == "{":
            return tokens.OPENS_MEMBER.match(text, at) is not None
        if text[max(0, at - 64) : at].rstrip(" \t")[-1:] not in (*tokens.COMMAS, "\n"):
            return False
        item = tokens.OPENS_ITEM.match(text, at)
        return item is not None and not self.in_brackets(begin, item.end(1))

    def _after_brackets(self, begin: int, at: int) -> bool:
        """Whether brackets that close more than a string opens, and a comma, stand before the quote
        at `at`.
        """
        before = self.text[max(begin, at - _NEAR_BRACKETS) : at].rstrip(" \t\r\n")
        if before.endswith(("{", "[")):
            before = before[:-1].rstrip()
        if not before.endswith(",") or not before[:-1].rstrip().endswith(("}", "]")):
            return False
        self.spend(at, 4)
        return before.count("}") + before.count("]") > before.count("{") + before.count("[")

    def in_brackets(self, begin: int, at: int) -> bool:
        """Whether the quote before `at` ends an argument in brackets, `f("a", 1)`, that the string
        at `begin` opens.
        """
        self.spend(at)
        match = tokens.ARGUMENTS.match(self.text, at)
        if match is None or "(" in self.kinds:
            return False
        before = self.text[max(begin, at - _NEAR_BRACKETS) : at]
        if match[0][-1] == ")":
            return before.count("(") > before.count(")")
        return before.count("[") > before.count("]")

    def unmatched(self, at: int) -> int:
        """The number of closing brackets ahead that have no opening one, as far as is looked."""
        depth = lowest = 0
        for count, match in enumerate(tokens.ANY_BRACKET.finditer(self.text, at)):
            if count > _FAR_BRACKETS:
                break
            if match[0] in "[{(":
                depth += 1
            elif match[0] in "]})":
                depth -= 1
                lowest = min(lowest, depth)
            self.spend(at)
        return -lowest


def _family(quote: str) -> str:
    """The quotes that may end a string which begins with `quote`."""
    return next(family for family in _FAMILIES if quote in family)


def _without_partial(raw: str) -> str:
    """A cut string without the escape, or the half of a pair of escapes, that was cut in two."""
    if tokens.LONE_BACKSLASH.search(raw):
        raw = raw[:-1]
    last = before = -7
    for match in tokens.ESCAPE.finditer(raw):
        before = last
        last = match.start()
    if last >= 0 and tokens.PARTIAL_ESCAPE.match(raw, last):
        raw = raw[:last]
        if before == last - 6 and tokens.PARTIAL_ESCAPE.match(raw, before):
            raw = raw[:before]
    return raw


def _is_measure(text: str, begin: int, end: int) -> bool:
    """Whether the quote before `end` is a sign of the text that begins at `begin`, not of the
    reader.
    """
    return tokens.MEASURE.search(text[max(begin, end - _MAX_MEASURE) : end]) is not None


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
        if tokens.TRIPLE_QUOTES.match(text, start):
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
        if tokens.CONTROL.search(raw):
            self.repairs.append("control")
        self.value, repairs = decode(raw, self._quote if self._quote in "'`" else "")
        self.repairs += [repair for repair in repairs if repair not in self.repairs]

    def _take(self, start: int, stop: int, end: int, *repairs: str) -> str:
        self.end = end
        self.repairs.extend(repairs)
        return self._text[start:stop]

    def _triple(self) -> str | None:
        text = self._text
        start = self._start
        if tokens.NOT_TRIPLE.match(text, start + 3):
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
        plain = tokens.ESCAPE.sub("  ", raw)
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
            if begin == 1 and end == len(plain) and tokens.ELISION.match(raw):
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
            and (surplus := tokens.SURPLUS_IN_KEY.match(text, stop + 1)) is not None
        ):
            return self._take(begin, stop, surplus.end(), "doubled_quotes")
        if (match := tokens.MIXED_KEY.match(text, begin)) is not None and tokens.CLOSED_LATER.match(
            text, match.end()
        ):
            is_mixed = match[0][-1] not in _family(self._quote)
            repairs = ("mixed_quotes",) if is_mixed else ()
            return self._take(begin, match.end(1), match.end(), *repairs)
        if (match := tokens.OPEN_KEY.match(text, begin)) is not None and tokens.CLOSED_LATER.match(
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

    # Values

    def _value(self) -> str:
        text = self._text
        begin = self._start + 1
        quote = self._quote
        level = len(self._ahead.kinds)
        if quote == '"' and (path := tokens.PATH_IN_QUOTES.match(text, begin)) is not None:
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
            after = tokens.AFTER_TEXT.match(text, rejected + 1)
            return self._take(
                begin, rejected, after.end() if after is not None else rejected + 1, "text_after"
            )
        last = tokens.LAST_LINE.search(text, max(begin, len(text) - 400))
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
        surplus = tokens.SURPLUS_QUOTES.match(text, stop + 1)
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
            in_quotes ^= not tokens.APOSTROPHE.match(text, stop - 1)
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
            and not (self._quote == "'" and tokens.APOSTROPHE.match(raw, inner - 1))
        ):
            # It was closed; other text follows.
            self.repairs.append("text_after")
            return raw[:inner]
        if (
            raw
            and raw[-1] in OPENING
            and (raw.count(raw[-1]) - len(tokens.APOSTROPHE.findall(raw))) % 2
        ):
            self.repairs.append("mixed_quotes")
            return raw[:-1]
        self.repairs.append("missing_quote")
        self._mark_inner(raw)
        return raw

    def _mark_inner(self, raw: str) -> None:
        plain = tokens.ESCAPE.sub("", raw)
        is_plain = self._quote == '"' == self._text[self.end - 1 : self.end]
        ends = '"' if is_plain else _family(self._quote)
        if any(quote in plain for quote in ends):
            self.repairs.append("inner_quotes")
