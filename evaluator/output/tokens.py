"""The patterns of the lenient reader: what a token looks like, and what may follow it.

First come parts that several patterns share, then what may follow a value, a key or a comma, then
the tokens themselves. `tests/output/test_tokens.py` has an example and a counter-example of each.
"""

from __future__ import annotations

from typing import Any

from evaluator.output.scalars import read_number
from evaluator.patterns import Pattern

WS = r"[ \t\r\n\f\v\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u3000\ufeff]"
OPENING = "\"'“”„‟‘’‚‛＂`«»‹›「」『』〝〞"
QUOTE = f"[{OPENING}]"
COLON = "[:：﹕∶]"
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
COMMAS = ",，、،﹐､"
SEMICOLONS = ";；؛"

# The end of a text that lacks its closing quote: the next quote opens what follows.
_OPEN = rf"[^{OPENING}\n]{{1,200}},[ ]*+{QUOTE}"

_PREFIX = "[bBrRuU]?"
"""The prefix of a string in Python."""

# What may follow a value.

GAP = Pattern(_GAP)
# Behind a comma. Inside a pair of unescaped quotes a quote counts only if the text that it
# opens ends well.
_BARE_MEMBER = (
    rf":?{WORD}{QUOTE}?{WS}{{0,64}}+(?:{COLON}|=)"
    rf"|{WORD}(?:[ ]{WORD}){{1,5}}{QUOTE}?{WS}{{0,64}}+{COLON}{WS}*+{VALUE}"
    rf"|{_END}|\{{|\w{{1,64}}+\Z"
)
_BARE_ITEM = (
    rf"[\[{{(\d.$€£+-]|[A-Za-z]{{2,12}}://|(?i:{LITERAL})|{WORD}{WS}*+[{COMMAS}\]]"
    rf"|{MARK}|{_END}|\w{{1,64}}+\Z"
)
NEXT_MEMBER = Pattern(rf"{_SHORT_GAP}(?:{_PREFIX}{QUOTE}|{_BARE_MEMBER})")
NEXT_ITEM = Pattern(
    rf"{_SHORT_GAP}(?:{_PREFIX}{QUOTE}|{_BARE_ITEM}|{open_text(8)}{WS}*+[{COMMAS}\]])"
)
NEXT_MEMBER_IN_QUOTES = Pattern(
    rf"{_SHORT_GAP}(?:(?!{_PREFIX}{QUOTED}{WS}*+(?!{COLON}|[=}}]|\Z|//|/\*)){_PREFIX}{QUOTE}"
    rf"|{QUOTE}{{2}}[^{OPENING}\n]{{1,64}}{QUOTE}{{2}}{WS}*+{COLON}|{QUOTE}{_OPEN}"
    rf"|{QUOTE}{WORD}{COLON}{WS}*+{VALUE}"
    rf"|{_BARE_MEMBER})"
)
NEXT_ITEM_IN_QUOTES = Pattern(
    rf"{_SHORT_GAP}(?:(?!{_PREFIX}{QUOTED}{WS}*+(?!{QUOTE}|[+:;；{COMMAS}}}\]):\[{{]|\Z|//|/\*"
    rf"|\#)){_PREFIX}{QUOTE}"
    rf"|{QUOTE}{_OPEN}|{_BARE_ITEM})"
)
_QUOTED_MEMBER = rf"{QUOTED}{WS}*+(?:{COLON}|=)|\+{WS}*+{QUOTE}|\.{WS}++{QUOTED}{WS}*+:|```"
MEMBER_AFTER_GAP = Pattern(rf"{_QUOTED_MEMBER}|{WORD}{WS}{{0,64}}+{COLON}{WS}*+{VALUE}")
MEMBER_AFTER_GAP_IN_QUOTES = Pattern(_QUOTED_MEMBER)
ITEM_AFTER_GAP = Pattern(
    rf"(?!{QUOTED}{WS}*+(?!{QUOTE}(?!{WS}*+[{COMMAS}}}\]])|[+{COMMAS}}}\])]|\Z|//|/\*"
    rf"|\#)){QUOTE}(?!{WS}*+[}}\],])|[\[{{]|\+{WS}*+{QUOTE}|```"
)
# After a semicolon only a complete key or item counts: in code a quote and a semicolon stand side
# by side often.
STRICT_MEMBER = Pattern(rf"{WS}*+(?:{QUOTED}|{WORD}){WS}*+{COLON}")
STRICT_ITEM = Pattern(
    rf"{WS}*+(?:{QUOTED}{WS}*+(?:[{SEMICOLONS}\]]|,{WS}*+{QUOTED}{WS}*+[,\]])|[\[{{])"
)
MORE_COMMAS = Pattern(rf"(?:{WS}*+[{COMMAS}]){{0,8}}+")
SCALAR_ITEM = Pattern(rf"{WS}*+(?:-?\d[\d.]*+|(?i:{LITERAL})){WS}*+[{COMMAS}{SEMICOLONS}\]]")
CLOSING_NEXT = Pattern(rf"{WS}*+(?=[}}\])｝］])")
BLANK_LINE = Pattern(r"[ \t]*+\r?\n[ \t]*+\r?\n")
# On the next line: the mark of an item, a bare key or a mark of omission, the second part of a
# string.
NEXT_LINE_ITEM = Pattern(rf"[ \t]*+\r?\n{WS}*+{MARK}")
NEXT_LINE = Pattern(rf"[ \t]*+\r?\n{WS}*+(?:{WORD}{WS}{{0,64}}+{COLON}|\.\.\.|…)")
BROKEN_LINE = Pattern(BROKEN)
# Only marks that may end an answer follow.
TEXT_END = Pattern(r"[\s)\];,.`]*+\Z")
# A quote directly behind a block: the block was inside a string, unless the rest of the line only
# ends a call.
NOT_AFTER_BLOCK = Pattern(
    rf"{QUOTE}(?!{QUOTE}{{0,2}}[ \t)\];,.]*+(?:\n|\Z))"
    rf"|{_SHORT_GAP}[{COMMAS}]{_SHORT_GAP}{QUOTED}{WS}*+{COLON}"
)
# The next quote ends a string: a block that ended before it was code inside that string.
STILL_INSIDE = Pattern(
    rf"[^{{\[\"]{{0,1000}}+\"{WS}*+(?:[{COMMAS}]{WS}*+{QUOTED}{WS}*+{COLON}|[}}\]])"
)
# What may follow a key.

KEY_END = Pattern(rf"{_GAP}(?:{COLON}|=)")
# A value after a key without a colon: what begins without a blank has to be whole.
_WHOLE = rf"(?:{QUOTED}|-?\d[\d.]*+(?:[eE][+-]?\d++)?+|(?i:{LITERAL})){WS}*+(?:[{COMMAS}}}]|\Z)"
STOP_COLON = rf"{WS}*+[{SEMICOLONS}](?={WS}*+(?!{QUOTED}{WS}*+[{COLON[1:-1]}=]){VALUE})"
"""A semicolon in place of a colon: a value follows, not a key."""

WEAK_KEY_END = Pattern(
    rf"{_GAP}(?:[{COMMAS}}}\]]|\Z)|{WS}++{VALUE}|{STOP_COLON}"
    rf"|\{{|\[|{_WHOLE}|{QUOTE}(?:[^{OPENING}\\\n]|\\.){{200}}"
)
# The next key or item behind a string that has no closing quote.
OPENS_MEMBER = Pattern(
    rf"{QUOTE}[^{OPENING}\\\n:]{{1,64}}+{QUOTE}{WS}*+{COLON}{WS}*+(?:{VALUE}|\Z)"
)
OPENS_ITEM = Pattern(rf"({QUOTED}){WS}*+(?:[{COMMAS}]|\](?!{QUOTE}{WS}*+[,}}\]])|\Z)")
# Further arguments or items inside a string, and the bracket after them.
ARGUMENTS = Pattern(
    rf"(?:{WS}*+[,:=]{WS}*+(?:{QUOTED}|-?\w[\w.]{{0,63}}+)){{0,8}}+{WS}*+(?:\)"
    rf"|\](?={QUOTE}{WS}*+[,}}\]]))"
)
ANY_BRACKET = Pattern(
    r"[\[\]{}()]|\"(?:[^\"\\\n]++|\\.){0,2000}+\"|'[^'\\\n]{0,200}+'(?=\s*[:,\]}])"
)

REASONING_WORDS = (
    r"(?:think|thinking|thought|thoughts|reasoning|reflection|scratchpad|analysis"
    r"|chain_of_thought|cot)"
)
CLOSING_TAG = rf"</{REASONING_WORDS}\s{{0,8}}>"

# Tokens as JSON writes them, and runs of them.

_PLAIN_WS = r"[ \t\r\n]*+"
KEY = Pattern(rf'{_PLAIN_WS}"([^"\\\x00-\x1f]*+)"{_PLAIN_WS}:')
_SCALAR = (
    r'"([^"\\\x00-\x1f]*+)"(?={ws},{ws}{after})'
    r"|(-?(?:0|[1-9]\d*+)(\.\d++)?([eE][+-]?\d++)?)(?=[ \t\r\n]++(?:[\"\]}},]|\Z)|[\]}}]"
    r"|,{grouped})"
    r"|(true|false|null)(?=[ \t\r\n]*+[,\]}}])"
)
_SHORT = r'"[^"\\\n]{0,200}+"'
ITEM = Pattern(
    _PLAIN_WS
    + "(?:"
    + _SCALAR.format(ws=_PLAIN_WS, after=rf"{_SHORT}{_PLAIN_WS}[,\]]", grouped="")
    + rf"){_PLAIN_WS}(,)?",
    "a",
)
MEMBER = Pattern(
    _PLAIN_WS
    + "(?:"
    + _SCALAR.format(ws=_PLAIN_WS, after=f"{_SHORT}{_PLAIN_WS}:", grouped=r"(?!\d{3})")
    + rf"){_PLAIN_WS}(,)?",
    "a",
)
RUN = Pattern(
    rf"(?:{_PLAIN_WS}-?(?:0|[1-9]\d{{0,17}}+)(?:\.\d{{1,20}}+)?{_PLAIN_WS},){{16,}}+", "a"
)
SPACE = Pattern(rf"{WS}*+")
ANY_COMMENT = Pattern(r"//[^\n]*+|/\*[\s\S]*?(?:\*/|\Z)|#[^\n]*+|<!--[\s\S]*?(?:-->|\Z)")

# Keys.

_SEPARATOR = rf"(?::=|=>|->|{COLON}|=(?!=))"
BARE_KEY = Pattern(rf":?({WORD})({QUOTE}?){WS}*+{_SEPARATOR}")
WORDS_KEY = Pattern(rf"({WORD}(?:[ ]{WORD}){{1,5}})({QUOTE}?){WS}*+{COLON}(?={WS}*+{VALUE})")
KEY_ALONE = Pattern(rf"({WORD})[ \t]++(?=[\"'\[{{]|-?\d|(?i:{LITERAL}))")
VALUE_NEXT = Pattern(rf"{WS}*+{VALUE}")
KEY_CUT = Pattern(r"[\w$.-]{1,64}+\Z")
ANY_COLON = Pattern(rf":=|=>|->|{COLON}(?:{WS}*+[:=])?|=|{STOP_COLON}")
KEY_IN_ARRAY = Pattern(rf"({QUOTED}){WS}*+{COLON}")
# A container with quotes that are not those of JSON, which only this reader can judge.
CONTAINER = Pattern(rf"(?:[\[{{]{WS}*+){{1,8}}+(?!\"){QUOTED}{WS}*+(?:{COLON}|[,=\]])")

# Values and what stands before, between or behind them.

ANY_MARK = Pattern(MARK)
COLOR = Pattern(rf"{WS}*+(#[0-9a-fA-F]{{3,8}})(?=[ \t]*+[,}}\]])")
SET = Pattern(
    rf"\{{{WS}*+(?:{QUOTED}|-?\d[\d.]*+){WS}*+(?:\}}|,{WS}*+(?:{QUOTED}|-?\d[\d.]*+){WS}*+[,}}])"
)
TUPLE = Pattern(rf"\({WS}*+(?:{QUOTE}|[\[{{()\d-]|(?i:{LITERAL}))")
ESCAPED_QUOTES = Pattern(r'\\"((?:[^"\\\n]|\\(?!")){0,2000}+)\\"(?=\s*+[,}\]])')
PREFIX = Pattern(r"[bBrRuUfF]{1,2}(?=[\"'](?!\s*[,\]}:]))")
JOIN = Pattern(rf"{WS}*+\+{WS}*+(?={QUOTE})")
JOIN_LINES = Pattern(rf"{JOIN.pattern}|{BROKEN}")
JOIN_NEXT = Pattern(rf"{JOIN.pattern}|{WS}*+(?={QUOTE})")
STOP = Pattern(rf"\.{WS}++(?={QUOTED}{WS}*+:)")

# Values without quotes.

_TOKEN = rf"([+-]?\d[\w.]{{0,400}}+|(?i:{LITERAL}))"
MEMBER_TOKEN = Pattern(
    rf"{_TOKEN}(?=[ \t]*+(?:{COMMENT}|[{WIDE_MARKS}])|(?:{WS}*+{QUOTED}|{WS}++{WORD}){WS}*+{COLON})"
)
ITEM_TOKEN = Pattern(
    rf"{_TOKEN}(?=[ \t]*+(?:{COMMENT}|[{WIDE_MARKS})]|;{WS}*+(?:[\[{{+-]|\d|(?i:{LITERAL})"
    rf"|{QUOTE}))"
    rf"|{WS}++(?:{QUOTE}|[\[{{(\d-]|(?i:{LITERAL}))|[\[{{]|{QUOTED}{WS}*+[,\]])"
)
# A text without its opening quote; in an array that has texts without quotes, a comma ends it.
OPEN_TEXT = Pattern(open_text(8))
OPEN_ITEM = Pattern(open_text(0))
_CHUNK = r"[^,;}\]\n\"{\[<`]{1,400}+"
# A comma in a text without quotes: no key follows.
_PROSE = (
    rf"(?:,[ ](?=\w)(?!{WORD}(?:[ ]{WORD}){{0,5}}\"?{WS}*+(?:{COLON}"
    rf"|=)){_CHUNK}(?=[ \t]*+[,}}\n])){{0,8}}+"
)
# A call or an amount of money, which may hold commas, or an address.
ATOM = Pattern(
    rf"((?:new[ ])?[A-Za-z_][\w.]{{0,63}}+\([^()\n]{{0,400}}+\)"
    rf"|[$€£¥₹][ ]?\d{{1,3}}(?:[.,]\d{{3}}){{1,8}}(?:[.,]\d+)?"
    r"|[A-Za-z][A-Za-z0-9+.-]{1,15}+://[^\s,\"'<>\[\]{}]{1,400}+)"
    rf"(?={WS}*+[,}}\]])"
)
BARE_MEMBER = Pattern(
    rf"(?:(?=[^\W\d]){_CHUNK}{_PROSE}|{_CHUNK})" r"(?:\"(?=[ \t]*+[,}\]]))?(?=[ \t]*+[,;}\]\n]|\Z)"
)
BARE_ITEM = Pattern(r"[^,}\]\n\"{\[:<`]{1,400}+(?:\"(?=[ \t]*+[,\]]))?(?=[ \t]*+[,}\]\n]|\Z)")
# Items of an array without quotes, each on a line of its own, that are not sentences.
LINES = Pattern(
    r"(?:[ \t]*+(?![-*•][ ]|\d{1,3}[.)][ ])[^\n\[\]{}\"`:;,<>]{1,200}+(?<![.!?]),?[ \t\r]*+\n)"
    r"{1,200}+[ \t]*+\]"
)
RADIX = Pattern(r"[+-]?0(?:[xX][0-9a-fA-F]{1,64}|[bB][01]{1,64}|[oO][0-7]{1,64})")
JSON_NUMBER = Pattern(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", "a")
WIDE = str.maketrans(WIDE_MARKS, "}],;,,;,,")
BLANKS = " \t\r\n\f\v\u00a0\u200b\u202f\u3000\ufeff"
REMARK = Pattern(r"[ \t]*+\([^()\n]{0,200}+\)(?=\s*+\Z)")
GROUPED = Pattern(r"-?\d{1,3}(?:,\d{3})++(?:\.\d+)?+(?=[ \t\r\n]*+(?:\}|,[ \t\r\n]*+[\"'}]))", "a")
# Prose in which a block was given up: it ends before another block, after a blank line or a colon.
ABANDONED = Pattern(
    r"[^\W\d][^\"{}\[\]\n]{8,400}+(?:\n[^\"{}\[\]\n]{1,400}+){0,4}+(?:(?<=[:：])\n"
    r"|\n[ \t\r]*\n)(?=[{\[]|```)"
)
BOUNDARY = Pattern(rf"```|{CLOSING_TAG}", "i")
BRACKET = Pattern(r"[\[\]{}]|\"(?:[^\"\\\n]++|\\.)*+\"?")
EXACT: dict[str, Any] = {"true": True, "false": False, "null": None}
WHOLE_WORDS = (*EXACT, "True", "False", "None")
LITERALS: dict[str, tuple[Any, str]] = {
    "true": (True, "literal"),
    "false": (False, "literal"),
    "null": (None, "literal"),
    "none": (None, "literal"),
    "nil": (None, "literal"),
    "undefined": (None, "literal"),
    "nan": (None, "nan"),
    "-nan": (None, "nan"),
    "infinity": (None, "nan"),
    "-infinity": (None, "nan"),
    "+infinity": (None, "nan"),
    "inf": (None, "nan"),
    "-inf": (None, "nan"),
}

# Strings: their ends, and what is inside them.

TRIPLE_QUOTES = Pattern(r'"""|\'\'\'')
NOT_TRIPLE = Pattern(rf"[ ]?(?:[}}\]]\s*+(?:[,}}\]]|\Z)|,{WS}*+{QUOTED}{WS}*+[:,\]])")
# A key with a quote of another kind at its end, one without the closing quote, and one with quotes
# inside.
MIXED_KEY = Pattern(rf"([^{OPENING}\\\n:]{{1,64}}){QUOTE}(?={WS}*+(?:{COLON}|=))")
OPEN_KEY = Pattern(rf"([\w$][\w$ .-]{{0,63}}?)(?={WS}{{0,8}}+{COLON}{WS}*+{VALUE})")
CLOSED_LATER = Pattern(r"[^\"}\]]{0,2000}+[\"}\]]")
APOSTROPHE = Pattern(r"\w['’]\w")
# The end of a text whose last string has no closing quote.
LAST_LINE = Pattern(r"\n[\s,]*+[\]}][\s\]},]*+(?:```\s*+)?\Z")
# A Windows path whose last backslash stands before the closing quote.
PATH_IN_QUOTES = Pattern(
    rf'(?:[A-Za-z]:\\|\\\\)[^"\n<>|*?]{{0,400}}?(?<!\\)(?:\\\\)*\\"(?={WS}*+[,\]}}])'
)
# The end of a text whose last quote is a sign of its own: inches, or the apostrophe of a genitive.
MEASURE = Pattern(
    r"(?:(?:\A|[ (x×'′’])(?:\d{0,3}[½¼¾]|\d{1,3}(?:[.,]\d{1,2}|(?:[ -]\d)?/\d{1,2})?)(?:['′’]?\""
    r"|['’])|s['’])\Z"
)
ELISION = Pattern(r"['‘’](?:t(?:is|was|il)|em|cause|n|\d0s)\b", "i")
# Surplus quotes behind a string, and behind a key.
SURPLUS_QUOTES = Pattern(rf"{WS}{{0,3}}({QUOTE}{{1,2}})")
SURPLUS_IN_KEY = Pattern(rf"[ ]?{QUOTE}{{1,2}}(?={WS}*+{COLON})")
AFTER_TEXT = Pattern(r"[^,}\]\n\"]{0,400}+")
CONTROL = Pattern(r"[\x00-\x1f]")
ESCAPE = Pattern(r"\\[\s\S]")
LONE_BACKSLASH = Pattern(r"(?<!\\)(?:\\\\)*+\\\Z")
PARTIAL_ESCAPE = Pattern(r"\\u[0-9a-fA-F]{0,3}\Z|\\u[dD][89abAB][0-9a-fA-F]{2}\Z")


def read_token(written: str) -> tuple[Any, str] | None:
    """The value of a literal or a number, and the kind of repair ("" for JSON); None if it is
    neither.
    """
    if written in EXACT:
        return EXACT[written], ""
    known = LITERALS.get(written.lower())
    if known is not None:
        return known
    if RADIX.fullmatch(written):
        return int(written, 0), "number"
    if not written or (
        written[0] in "$€£¥₹0" and not written.startswith(("0.", "0_")) and written != "0"
    ):
        return None
    number = read_number(written)
    if (
        number is None
        or "," in written
        or "^" in written
        or "**" in written
        or written.count(".") > 1
        or written.endswith(("$", "€", "£", "¥", "₹"))
    ):
        return None
    if JSON_NUMBER.fullmatch(written):
        return number, ""
    return number, "number"


def skip_balanced(text: str, start: int) -> int:
    """The end of the block that begins at `start`, by its brackets outside quotes; else the end of
    the text.
    """
    depth = 0
    for match in BRACKET.finditer(text, start):
        char = match[0]
        if char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
            if depth <= 0:
                return match.end()
    return len(text)
