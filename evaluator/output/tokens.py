"""Patterns of the tokens that the lenient reader takes: keys, scalars, texts without quotes,
separators.
"""

from __future__ import annotations

from typing import Any

from evaluator.output.lookahead import (
    BROKEN,
    COLON,
    COMMENT,
    LITERAL,
    MARK,
    QUOTE,
    QUOTED,
    STOP_COLON,
    VALUE,
    WIDE_MARKS,
    WORD,
    WS,
    open_text,
)
from evaluator.output.strings import CLOSING_TAG
from evaluator.patterns import Pattern

_WS = r"[ \t\r\n]*+"
KEY = Pattern(rf'{_WS}"([^"\\\x00-\x1f]*+)"{_WS}:')
_SCALAR = (
    r'"([^"\\\x00-\x1f]*+)"(?={ws},{ws}{after})'
    r"|(-?(?:0|[1-9]\d*+)(\.\d++)?([eE][+-]?\d++)?)(?=[ \t\r\n]++(?:[\"\]}},]|\Z)|[\]}}]"
    r"|,{grouped})"
    r"|(true|false|null)(?=[ \t\r\n]*+[,\]}}])"
)
_SHORT = r'"[^"\\\n]{0,200}+"'
ITEM = Pattern(
    _WS + "(?:" + _SCALAR.format(ws=_WS, after=rf"{_SHORT}{_WS}[,\]]", grouped="") + rf"){_WS}(,)?",
    "a",
)
MEMBER = Pattern(
    _WS
    + "(?:"
    + _SCALAR.format(ws=_WS, after=f"{_SHORT}{_WS}:", grouped=r"(?!\d{3})")
    + rf"){_WS}(,)?",
    "a",
)
RUN = Pattern(rf"(?:{_WS}-?(?:0|[1-9]\d{{0,17}}+)(?:\.\d{{1,20}}+)?{_WS},){{16,}}+", "a")
SPACE = Pattern(rf"{WS}*+")
ANY_COMMENT = Pattern(r"//[^\n]*+|/\*[\s\S]*?(?:\*/|\Z)|#[^\n]*+|<!--[\s\S]*?(?:-->|\Z)")
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
