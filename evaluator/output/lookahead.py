"""Decides from what follows in a text whether a string, a key or a container may end at a place.

Models leave quotes unescaped, forget them, and mix up brackets. What follows tells: after a value
come a comma and the next member or item, closing brackets, or the end. Each decision reads a
bounded part of the text; what it reads is counted, so that all decisions together stay linear.
"""

from __future__ import annotations

from evaluator.output.strict import StrictScanner, Unreadable
from evaluator.patterns import Pattern

WS = r"[ \t\r\n\f\v\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff]"
OPENING = "\"'“”„‟‘’‚‛＂`«»‹›「」『』〝〞"
QUOTE = f"[{OPENING}]"
COLON = "[:：﹕∶]"
CLOSERS = {"{": "}", "[": "]", "(": ")", "set": "}"}
"""The closing bracket of each kind of container."""

COMMENT = (
    r"//[^\n]{0,500}+|/\*[^*]{0,500}+(?:\*(?!/)[^*]{0,100}+){0,4}+(?:\*/|\Z)|\#[^\n]{0,500}+"
    r"|<!--[^-]{0,300}+(?:-(?!->)[^-]{0,100}+){0,4}+(?:-->|\Z)"
)
_GAP = rf"(?:{WS}++|{COMMENT}){{0,8}}+"
_SHORT_GAP = rf"(?:{WS}++|//[^\n]{{0,200}}+|/\*[^*]{{0,100}}+\*/|\#[^\n]{{0,200}}+){{0,3}}+"
QUOTED = (
    r'(?:"(?:[^"\\\n]|\\.){0,200}+"'
    r"|'(?:[^'\\\n]|\\.){0,200}+'"
    r"|[“”„‟＂](?:[^“”„‟＂\"\\\n]|\\.){0,200}+[“”„‟＂\"]"
    r"|[‘’‚‛][^‘’‚‛\\\n]{0,200}+[‘’‚‛]|`[^`\n]{0,200}+`|«[^»\n]{0,200}+»|‹[^›\n]{0,200}+›"
    r"|「[^」\n]{0,200}+」"
    r"|『[^』\n]{0,200}+』|〝[^〞\n]{0,200}+〞)"
)
"""A short quoted text on one line."""

WORD = r"-?[\w$][\w$.-]{0,63}+"
LITERAL = r"(?:true|false|null|none|nil|undefined|nan|inf(?:inity)?)\b"
VALUE = rf"(?:{QUOTE}|[\[{{(\d$€£+.-]|(?i:{LITERAL}))"
MARK = rf"(?:[-*•+]|\d{{1,4}}[.)])[ \t]++(?={QUOTE}|[\[{{])"
"""The mark of an item of a Markdown list."""


def open_text(commas: int) -> str:
    """A text of one line that has a closing quote and no opening one, with at most `commas` outside
    brackets.
    """
    comma = (
        rf",[ ](?=[^\W\d])(?!{WORD}(?:[ ]{WORD}){{0,5}}{QUOTE}?{WS}{{0,8}}+(?:{COLON}{WS}*"
        rf"+{VALUE}|=))"
    )
    texts: list[str] = []
    for quote, apostrophe in (
        ('"', ""),
        ("”“", ""),
        ("'", r"|(?<=\w)'(?=\w)"),
        ("`", ""),
        ("»«", ""),
    ):
        plain = rf"[^{quote}\\\n,\[\]{{}}]"
        inside = rf"[^{quote}\\\n\[\]{{}}]{{0,60}}+"
        group = rf"\[{inside}\]|\{{{inside}\}}"
        chunk = rf"{plain}{{0,400}}+(?:(?:\\.|{group}{apostrophe}){plain}{{0,200}}+){{0,12}}+"
        texts.append(rf"{chunk}(?:{comma}{chunk}){{0,{commas}}}+(?<![ \t,:=(])[{quote}]")
    return rf"(?![\s:,;=}}\])\[{{]|//|/\*|\#|\.\.\.|{QUOTE})(?:{'|'.join(texts)})"


WIDE_MARKS = "｝］，；、،؛﹐､"
PUNCTUATION = f"}}],;){WIDE_MARKS}"
BROKEN = rf"[ \t]*+\r?\n{WS}*+(?={QUOTED}{WS}*+(?:[,}}+]|{QUOTED}{WS}*+[,}}]))"
"""What stands between two parts of a string that was broken in two lines."""

_END = r"(?:[}\])｝］]|```|\.\.\.|…|\Z)"
_COMMA = ",，、،﹐､"
_SEMICOLON = ";；؛"

# The end of a text that lacks its closing quote: the next quote opens what follows.
_OPEN = rf"[^{OPENING}\n]{{1,200}},[ ]*+{QUOTE}"

_PREFIX = "[bBrRuU]?"
"""The prefix of a string in Python."""

_GAP_AT = Pattern(_GAP)
# What may follow a comma. Inside a pair of unescaped quotes a quote counts only if the text that it
# opens ends well.
_BARE_MEMBER = (
    rf":?{WORD}{QUOTE}?{WS}{{0,64}}+(?:{COLON}|=)"
    rf"|{WORD}(?:[ ]{WORD}){{1,5}}{QUOTE}?{WS}{{0,64}}+{COLON}{WS}*+{VALUE}"
    rf"|{_END}|\{{|\w{{1,64}}+\Z"
)
_BARE_ITEM = (
    rf"[\[{{(\d.$€£+-]|[A-Za-z]{{2,12}}://|(?i:{LITERAL})|{WORD}{WS}*+[{_COMMA}\]]"
    rf"|{MARK}|{_END}|\w{{1,64}}+\Z"
)
_NEXT_MEMBER = Pattern(rf"{_SHORT_GAP}(?:{_PREFIX}{QUOTE}|{_BARE_MEMBER})")
_NEXT_ITEM = Pattern(
    rf"{_SHORT_GAP}(?:{_PREFIX}{QUOTE}|{_BARE_ITEM}|{open_text(8)}{WS}*+[{_COMMA}\]])"
)
_NEXT_MEMBER_IN_QUOTES = Pattern(
    rf"{_SHORT_GAP}(?:(?!{_PREFIX}{QUOTED}{WS}*+(?!{COLON}|[=}}]|\Z|//|/\*)){_PREFIX}{QUOTE}"
    rf"|{QUOTE}{{2}}[^{OPENING}\n]{{1,64}}{QUOTE}{{2}}{WS}*+{COLON}|{QUOTE}{_OPEN}"
    rf"|{QUOTE}{WORD}{COLON}{WS}*+{VALUE}"
    rf"|{_BARE_MEMBER})"
)
_NEXT_ITEM_IN_QUOTES = Pattern(
    rf"{_SHORT_GAP}(?:(?!{_PREFIX}{QUOTED}{WS}*+(?!{QUOTE}|[+:;；{_COMMA}}}\]):\[{{]|\Z|//|/\*"
    rf"|\#)){_PREFIX}{QUOTE}"
    rf"|{QUOTE}{_OPEN}|{_BARE_ITEM})"
)
_QUOTED_MEMBER = rf"{QUOTED}{WS}*+(?:{COLON}|=)|\+{WS}*+{QUOTE}|\.{WS}++{QUOTED}{WS}*+:|```"
_MEMBER_AFTER_GAP = Pattern(rf"{_QUOTED_MEMBER}|{WORD}{WS}{{0,64}}+{COLON}{WS}*+{VALUE}")
_MEMBER_AFTER_GAP_IN_QUOTES = Pattern(_QUOTED_MEMBER)
_ITEM_AFTER_GAP = Pattern(
    rf"(?!{QUOTED}{WS}*+(?!{QUOTE}(?!{WS}*+[{_COMMA}}}\]])|[+{_COMMA}}}\])]|\Z|//|/\*"
    rf"|\#)){QUOTE}(?!{WS}*+[}}\],])|[\[{{]|\+{WS}*+{QUOTE}|```"
)
# After a semicolon only a complete key or item counts: in code a quote and a semicolon stand side
# by side often.
_STRICT_MEMBER = Pattern(rf"{WS}*+(?:{QUOTED}|{WORD}){WS}*+{COLON}")
_STRICT_ITEM = Pattern(
    rf"{WS}*+(?:{QUOTED}{WS}*+(?:[{_SEMICOLON}\]]|,{WS}*+{QUOTED}{WS}*+[,\]])|[\[{{])"
)
_MORE_COMMAS = Pattern(rf"(?:{WS}*+[{_COMMA}]){{0,8}}+")
_SCALAR_ITEM = Pattern(rf"{WS}*+(?:-?\d[\d.]*+|(?i:{LITERAL})){WS}*+[{_COMMA}{_SEMICOLON}\]]")
_CLOSING_NEXT = Pattern(rf"{WS}*+(?=[}}\])｝］])")
_BLANK_LINE = Pattern(r"[ \t]*+\r?\n[ \t]*+\r?\n")
# On the next line: the mark of an item, a bare key or a mark of omission, the second part of a
# string.
_NEXT_LINE_ITEM = Pattern(rf"[ \t]*+\r?\n{WS}*+{MARK}")
_NEXT_LINE = Pattern(rf"[ \t]*+\r?\n{WS}*+(?:{WORD}{WS}{{0,64}}+{COLON}|\.\.\.|…)")
_BROKEN = Pattern(BROKEN)
_LINE_END = Pattern(r"[\s)\];,.`]*+(?:\n|\Z|```)")
# A quote directly behind a block: the block was inside a string, unless the rest of the line only
# ends a call.
_NOT_AFTER_BLOCK = Pattern(
    rf"{QUOTE}(?!{QUOTE}{{0,2}}[ \t)\];,.]*+(?:\n|\Z))"
    rf"|{_SHORT_GAP}[{_COMMA}]{_SHORT_GAP}{QUOTED}{WS}*+{COLON}"
)
# The next quote ends a string: a block that ended before it was code inside that string.
_STILL_INSIDE = Pattern(
    rf"[^{{\[\"]{{0,1000}}+\"{WS}*+(?:[{_COMMA}]{WS}*+{QUOTED}{WS}*+{COLON}|[}}\]])"
)
_KEY_END = Pattern(rf"{_GAP}(?:{COLON}|=)")
# A value behind a key without a colon: what begins without a blank has to be whole.
_WHOLE = rf"(?:{QUOTED}|-?\d[\d.]*+(?:[eE][+-]?\d++)?+|(?i:{LITERAL})){WS}*+(?:[{_COMMA}}}]|\Z)"
STOP_COLON = rf"{WS}*+[{_SEMICOLON}](?={WS}*+(?!{QUOTED}{WS}*+[{COLON[1:-1]}=]){VALUE})"
"""A semicolon in place of a colon: a value follows, not a key."""

_WEAK_KEY_END = Pattern(
    rf"{_GAP}(?:[{_COMMA}}}\]]|\Z)|{WS}++{VALUE}|{STOP_COLON}"
    rf"|\{{|\[|{_WHOLE}|{QUOTE}(?:[^{OPENING}\\\n]|\\.){{200}}"
)
_OPENS_MEMBER = Pattern(
    rf"{QUOTE}[^{OPENING}\\\n:]{{1,64}}+{QUOTE}{WS}*+{COLON}{WS}*+(?:{VALUE}|\Z)"
)
_OPENS_ITEM = Pattern(rf"({QUOTED}){WS}*+(?:[{_COMMA}]|\](?!{QUOTE}{WS}*+[,}}\]])|\Z)")
# Further arguments or items inside a string, and the bracket after them.
_ARGUMENTS = Pattern(
    rf"(?:{WS}*+[,:=]{WS}*+(?:{QUOTED}|-?\w[\w.]{{0,63}}+)){{0,8}}+{WS}*+(?:\)"
    rf"|\](?={QUOTE}{WS}*+[,}}\]]))"
)
_BRACKET = Pattern(r"[\[\]{}()]|\"(?:[^\"\\\n]++|\\.){0,2000}+\"|'[^'\\\n]{0,200}+'(?=\s*[:,\]}])")
_FAR_BRACKETS = _NEAR_BRACKETS = 400


def ends_block(text: str, at: int) -> bool:
    """Whether the outermost container may end before `at`: neither the rest of a string nor more
    members follow.
    """
    return _NOT_AFTER_BLOCK.match(text, at) is None


class Lookahead:
    """What follows a place, seen from the containers that are open there: `kinds`, the innermost
    last.
    """

    __slots__ = ("kinds", "scanner", "text")

    def __init__(self, text: str, kinds: list[str], scanner: StrictScanner) -> None:
        self.text = text
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
        if _BLANK_LINE.match(text, at):
            return True
        start = at
        while level > 0:
            self.spend(at)
            gap = _GAP_AT.match(text, at)
            if gap is not None:
                self.spend(at, (gap.end() - at) >> 6)
                at = gap.end()
            if at >= len(text) or text.startswith("```", at):
                return True
            char = text[at]
            if char in "}])｝］":
                closed = self.closed_by(char, level)
                at += 1
                if not closed and not _LINE_END.match(text, at):
                    return False
                level -= closed or 1
                if char == ")" and not level:
                    return False
                continue
            is_object = self.kinds[level - 1] == "{"
            if (char in _COMMA or char in _SEMICOLON) and (
                closing := _CLOSING_NEXT.match(text, at + 1)
            ):
                at = closing.end()
                continue
            if char in _SEMICOLON:
                if not (is_object or in_quotes) and _SCALAR_ITEM.match(text, at + 1):
                    return True
                return (_STRICT_MEMBER if is_object else _STRICT_ITEM).match(
                    text, at + 1
                ) is not None
            if char in _COMMA:
                if (more := _MORE_COMMAS.match(text, at)) is not None:
                    at = more.end() - 1
                if in_quotes:
                    if is_object:
                        following = _NEXT_MEMBER_IN_QUOTES
                    else:
                        following = _NEXT_ITEM_IN_QUOTES
                else:
                    if is_object:
                        following = _NEXT_MEMBER
                    else:
                        following = _NEXT_ITEM
                return following.match(text, at + 1) is not None
            if not in_quotes and (
                (_NEXT_LINE if is_object else _NEXT_LINE_ITEM).match(text, start)
                or (not is_object and _SCALAR_ITEM.match(text, at))
                or (is_object and _BROKEN.match(text, start))
            ):
                return True
            if in_quotes:
                member = _MEMBER_AFTER_GAP_IN_QUOTES
            else:
                member = _MEMBER_AFTER_GAP
            return (member if is_object else _ITEM_AFTER_GAP).match(text, at) is not None
        return ends_block(text, at) and not (in_quotes and _STILL_INSIDE.match(text, at))

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
        return (_WEAK_KEY_END if is_weak else _KEY_END).match(self.text, at) is not None

    def opens_next(self, begin: int, at: int) -> bool:
        """Whether the quote at `at` opens the next key or item, so that the string from `begin` is
        not closed.
        """
        self.spend(at)
        text = self.text
        if self._after_brackets(begin, at):
            return _OPENS_MEMBER.match(text, at) is not None
        if text[at - 1] not in f" \n\t{_COMMA}":
            return False
        if self.kinds[-1] == "{":
            return _OPENS_MEMBER.match(text, at) is not None
        if text[max(0, at - 64) : at].rstrip(" \t")[-1:] not in (*_COMMA, "\n"):
            return False
        item = _OPENS_ITEM.match(text, at)
        return item is not None and not self.in_brackets(begin, item.end(1))

    def _after_brackets(self, begin: int, at: int) -> bool:
        """Whether brackets that close more than a string opens, and a comma, stand before the quote
        at `at`.
        """
        before = self.text[max(begin, at - _NEAR_BRACKETS) : at].rstrip(" \t\r\n")
        opened = before.endswith(("{", "["))
        if opened:
            before = before[:-1].rstrip()
        else:
            before = before
        if not before.endswith(",") or not before[:-1].rstrip().endswith(("}", "]")):
            return False
        self.spend(at, 4)
        return before.count("}") + before.count("]") > before.count("{") + before.count("[")

    def in_brackets(self, begin: int, at: int) -> bool:
        """Whether the quote before `at` ends an argument in brackets, `f("a", 1)`, that the string
        at `begin` opens.
        """
        self.spend(at)
        match = _ARGUMENTS.match(self.text, at)
        if match is None or "(" in self.kinds:
            return False
        before = self.text[max(begin, at - _NEAR_BRACKETS) : at]
        if match[0][-1] == ")":
            return before.count("(") > before.count(")")
        return before.count("[") > before.count("]")

    def unmatched(self, at: int) -> int:
        """The number of closing brackets ahead that have no opening one, as far as is looked."""
        depth = lowest = 0
        for count, match in enumerate(_BRACKET.finditer(self.text, at)):
            if count > _FAR_BRACKETS:
                break
            if match[0] in "[{(":
                depth += 1
            elif match[0] in "]})":
                depth -= 1
                lowest = min(lowest, depth)
            self.spend(at)
        return -lowest
