"""Finds the JSON blocks of a text, and its answer: the text without reasoning.

`rewrite` first repairs what stands around JSON, or was done to all of the text.

It makes one pass from left to right. Reading again inside what is not JSON is work that is counted,
so that time stays linear in the length of the text; when the work is done, only the end of the text
is still looked at.
"""

from __future__ import annotations

import json
from dataclasses import field
from itertools import islice
from typing import Any

from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.output.brackets import BracketRepairer, Corrected
from evaluator.output.reader import BlockReader, read_block
from evaluator.output.strict import StrictScanner, Unreadable, work_for
from evaluator.output.strings import Lookahead, ends_block
from evaluator.output.tokens import (
    COLON,
    LITERAL,
    QUOTE,
    QUOTED,
    REASONING_WORDS,
    VALUE,
    WORD,
    WS,
)
from evaluator.patterns import Pattern

# With fewer steps left, only so many characters at the end are still looked at, for so many steps.
_TAIL = 20_000
_TAIL_STEPS = 30_000
_LEAST_STEPS = 1_000
# Looking at a place where a block may begin.
_STEPS_PER_PLACE = 2
_FAR = 1 << 62
_OBJECT = (
    rf"\{{(?={WS}*+(?:[}}/#,]|<!--|[bBrRuU]?{QUOTE}|:?{WORD}{QUOTE}?{WS}*+(?:{COLON}|=)"
    rf"|{WORD}(?:[ ]{WORD}){{1,5}}{QUOTE}?{WS}*+{COLON}{WS}*+{VALUE}|{WORD}[ \t]++[\"']"
    rf"|\{{{WS}*+{QUOTE}"
    rf"|(?:\.\.\.|…){WS}*+,?{WS}*+{QUOTED}{WS}*+{COLON}))"
)
_ARRAY = (
    rf"\[(?![ xX]\][ \t]+\S)(?={WS}*+(?:[\[{{\]/#,$€£¥\w.+−–-]|{QUOTE}"
    rf"|\({WS}*+(?:{QUOTE}|[\d()\[{{-]|{LITERAL}{WS}*+[,)])))"
)
_TAG = rf"<(/?){REASONING_WORDS}(?:\s[^<>\n]{{0,80}})?>|[◁](/?)think[▷]|\[(/?)THINK\]"
_EVENT = Pattern(rf"{_OBJECT}|{_ARRAY}|```[ \t]*([\w+#.-]{{0,20}})|{_TAG}", "i")
_CLOSE = Pattern(rf"</{REASONING_WORDS}\s{{0,8}}>|◁/think▷|\[/THINK\]", "i")
_DATA_FENCES = frozenset(
    {
        "",
        "json",
        "json5",
        "jsonc",
        "jsonl",
        "javascript",
        "js",
        "text",
        "txt",
        "output",
        "plaintext",
    }
)
_FENCE_END = Pattern(r"\n[ \t]*```[ \t]*(?:\r?\n|\Z)")
_DOUBLED = Pattern(rf"\{{{WS}*+\{{")
_LIST_GOES_ON = Pattern(rf"{WS}*+(?:,{WS}*+[\[{{\"\d-]|(\]))")
# What has nothing to do with brackets.
_PLAIN_REPAIRS = frozenset(
    {
        "single",
        "typographic",
        "doubled_quotes",
        "prefix",
        "escape",
        "literal_escape",
        "control",
        "comment",
        "trailing_comma",
        "literal",
        "nan",
        "number",
        "huge_number",
        "unquoted_key",
        "blanks",
        "separator",
        "parentheses",
        "list_marks",
        "wide",
        "tuple",
    }
)
_BRACKET_REPAIRS = frozenset({"opening", "mismatched", "surplus", "unclosed", "cut", "cut_value"})
_CUT_KEY = Pattern(r'\{\s*"[^"\\]*(?:\\.[^"\\]*)*(?:"\s*)?\Z', "s")


# The sentence before a block, whose last such word tells whether the block is the answer.
_SENTENCE_ENDS = "\n.!?{}[]"
_MAX_SENTENCE = 250
_FENCE_OPENING = Pattern(r"```[\w+#.-]{0,20}")
_ROLE = Pattern(
    r"\b(?:(?P<answer>correct(?:ed|ion)?|right|fixed|final|actual)"
    r"|wrong|incorrect|invalid|bad|counterexample"
    r"|(?:for|as an) (?:example|instance|illustration)|e\.g|example of|for (?:reference"
    r"|comparison))\b",
    "i",
)
_HYPOTHETICAL = Pattern(r"\bwould (?:be|have been)\b", "i")
_DENIED_AFTER = Pattern(
    r"[\s\"'`*]{0,8}(?:is|was|would be|would have been)(?:n['’]t| not)? "
    r"(?:(?:an? )?(?:wrong|incorrect|invalid|bad)|not\b|(?:just |only |merely )?an example)"
    r"|[\s\"'`*]{0,8}isn['’]t\b",
    "i",
)


@frozen
class Block:
    """One JSON container in a text. With `weak` it may be part of the prose (`[1]`, an empty `[ ]`,
    code), or its sentence calls it an example, a wrong answer or a reference.

    `others` are the readings that one bracket at another place makes possible.
    """

    value: Any
    start: int
    end: int
    repairs: tuple[str, ...]
    cut: bool
    weak: bool
    bare: bool
    fenced: bool
    others: tuple[Corrected, ...] = ()


@dataclass(slots=True)
class Extract:
    """The parts of a text: its blocks, its answer without reasoning, and why nothing could be
    read.
    """

    blocks: list[Block] = field(default_factory=list[Block])
    answer: str = ""
    repairs: dict[str, None] = field(default_factory=dict[str, None])
    fenced: bool = False
    problem: tuple[str, int] | None = None
    skipped: bool = False
    too_deep: bool = False
    removed: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def first(self, start: int) -> int:
        """Where the part of the answer around `start` begins: after the reasoning before it."""
        return max((end for _, end in self.removed if end <= start), default=0)

    def last(self, end: int) -> int:
        """Where the part of the answer around `end` stops: at the reasoning after it."""
        return min((start for start, _ in self.removed if start >= end), default=_FAR)


class _Scan:
    """The state of one pass over a text."""

    __slots__ = ("_brackets", "_fence", "_kept", "_strict", "_text", "found")

    def __init__(self, text: str) -> None:
        self._text = text
        self._strict = StrictScanner(text, work_for(text))
        self._brackets = BracketRepairer(Lookahead([], self._strict))
        self._fence: str | None = None
        self._kept: list[str] = []
        self.found = Extract()

    def run(self) -> Extract:
        text = self._text
        found = self.found
        position = kept_from = 0
        while True:
            match = _EVENT.search(text, position)
            if match is None:
                break
            at = match.start()
            char = text[at]
            if char == "`":
                if self._fence is not None:
                    self._fence = None
                else:
                    self._fence = (match[1] or "").lower()
                found.fenced = True
                position = match.end()
            elif char in "{[" and match.end() == at + 1:
                position = self._block(at)
                if self._strict.steps < _LEAST_STEPS and position < len(text):
                    if found.skipped:
                        tail = len(text)
                    else:
                        tail = len(text) - _TAIL
                    found.skipped |= position < tail
                    position = max(position, tail)
                    self._strict.steps = _TAIL_STEPS
            else:
                if match[2] or match[3] or match[4]:
                    # A closing tag alone: all before it is reasoning.
                    found.repairs["reasoning_close"] = None
                    found.blocks.clear()
                    found.problem = None
                    found.fenced = False
                    self._kept.clear()
                    self._fence = None
                    kept_from = position = match.end()
                    found.removed = [(0, position)]
                    continue
                self._kept.append(text[kept_from:at])
                closing = _CLOSE.search(text, match.end())
                found.repairs["reasoning" if closing else "reasoning_open"] = None
                kept_from = position = closing.end() if closing else len(text)
                found.removed.append((at, position))
        self._kept.append(text[kept_from:])
        found.answer = "\n".join(part for part in self._kept if part)
        return found

    def _block(self, start: int) -> int:
        self._strict.steps -= _STEPS_PER_PLACE
        strict = self._strict.read(start, 0)
        is_whole = strict is not None and ends_block(self._text, strict[1])
        if strict is not None and is_whole:
            goes_on = _LIST_GOES_ON.match(self._text, strict[1])
        else:
            goes_on = None
        if is_whole or _DOUBLED.match(self._text, start):
            read = None
        else:
            read = self._try(start)
        is_plain = is_whole and goes_on is None
        if isinstance(read, tuple):
            is_plain = read[0].repairs.keys() <= _PLAIN_REPAIRS and not read[0].cut
        chosen, others = (None, ()) if is_plain else self._brackets.correct(start)
        if goes_on is not None and goes_on[1] and chosen is not None and chosen.kind != "opening":
            chosen = None  # Something closes after a whole block: that is not part of it.
        if chosen is not None and self._add_corrected(start, chosen, others=others):
            return chosen.end
        if strict is not None and is_whole:
            value, end = strict
            self._add(value, start, end=end)
            return end
        if isinstance(read, tuple):
            reader, end = read
            self._add(
                reader.value,
                start,
                end=end,
                repairs=tuple(reader.repairs),
                cut=reader.cut,
                unsure=(reader.cut and not reader.evidence) or reader.bare,
                bare=reader.bare and not reader.evidence,
                others=others,
            )
            return end
        if read is not None:
            return self._unreadable(read, start)
        return start + 1

    def _try(self, start: int) -> tuple[BlockReader, int] | Unreadable:
        """The block at `start` as the lenient reader reads it, and its end; or why it cannot."""
        try:
            reader, end = self._read(start)
        except Unreadable as error:
            self._strict.charge(start, max(error.at, error.resume), is_read=False)
            return error
        self._strict.charge(start, end, is_read=True)
        if reader.cut and not reader.evidence and not reader.value:
            return Unreadable("the block has no end", start, resume=end, committed=False)
        return reader, end

    def _read(self, start: int) -> tuple[BlockReader, int]:
        """Reads the block at `start` leniently; returns its reader and its end. Raises:
        Unreadable.
        """
        text = self._text
        reader = BlockReader(self._strict, start)
        reader.read()
        if self._fence is not None:
            fence = _FENCE_END.search(text, start, reader.end)
        else:
            fence = None
        if fence is not None and _FENCE_END.search(text, reader.end) is None:
            # A string without its closing quote took in the end of the fence.
            scanner = StrictScanner(text[start : fence.start()], self._strict.steps)
            inside = read_block(scanner)
            self._strict.steps = scanner.steps
            if inside is not None:
                return inside, start + inside.end
        return reader, reader.end

    def _add_corrected(self, start: int, chosen: Corrected, others: tuple[Corrected, ...]) -> bool:
        """Adds the block at `start` as it reads with one bracket changed; False if it needs another
        one too.
        """
        strict = StrictScanner(chosen.text, self._strict.steps)
        found = strict.read(0, 0)
        if found is not None:
            value = found[0]
            repairs = (chosen.kind,)
        else:
            reader = read_block(strict)
            self._strict.steps = strict.steps
            if (
                reader is None
                or reader.end < len(chosen.text)
                or reader.bare
                or not _BRACKET_REPAIRS.isdisjoint(reader.repairs)
            ):
                return False
            value = reader.value
            repairs = (*reader.repairs, chosen.kind)
        self._add(value, start, end=chosen.end, repairs=repairs, others=others)
        return True

    def _unreadable(self, error: Unreadable, start: int) -> int:
        if not error.committed and _CUT_KEY.match(self._text, start):
            # After `{"` it is a cut key, and a block inside it does not count.
            self.found.repairs["cut_block"] = None
            error = Unreadable(error.reason, error.at, resume=len(self._text), committed=True)
        if self.found.problem is None or error.committed:
            self.found.problem = (error.reason, error.at)
        self.found.too_deep |= error.reason.startswith("nested deeper")
        if error.committed:
            return max(error.resume, start + 1)
        return start + 1

    def _add(
        self,
        value: Any,
        start: int,
        end: int,
        repairs: tuple[str, ...] = (),
        cut: bool = False,
        unsure: bool = False,
        bare: bool = False,
        others: tuple[Corrected, ...] = (),
    ) -> None:
        foreign = self._fence is not None and self._fence not in _DATA_FENCES
        citation = (
            unsure
            or not value
            or (value.__class__ is list and all(item.__class__ is int for item in value[:20]))
        )
        alone = not citation or self._alone(start, end)
        if bare and not alone:
            return
        fenced = self._fence is not None and not foreign
        self.found.blocks.append(
            Block(
                value,
                start,
                end=end,
                repairs=repairs,
                cut=cut,
                weak=foreign or bare or not alone or self._is_example(start, end),
                bare=bare,
                fenced=fenced,
                others=others,
            )
        )

    def _is_example(self, start: int, end: int) -> bool:
        """Whether the sentence around the block calls it an example, wrong or a reference."""
        text = self._text
        if _DENIED_AFTER.match(text, end):
            return True
        before = text[max(0, start - _MAX_SENTENCE) : start].rstrip(" \t\r\n")
        fence = before.rfind("```")
        if fence >= 0 and _FENCE_OPENING.fullmatch(before, fence):
            before = before[:fence].rstrip(" \t\r\n")
        sentence = before[max(map(before.rfind, _SENTENCE_ENDS)) + 1 :]
        if not sentence:
            return False
        roles = list(_ROLE.finditer(sentence))
        if roles:
            return roles[-1]["answer"] is None
        return _HYPOTHETICAL.search(sentence) is not None

    def _alone(self, start: int, end: int) -> bool:
        """Whether the block is alone on its lines, or follows the colon of a label."""
        text = self._text
        before = start - 1
        after = end
        while before >= 0 and text[before] in " \t`":
            before -= 1
        while after < len(text) and text[after] in " \t`":
            after += 1
        opens = before < 0 or text[before] in "\n:=>"
        return opens and (after >= len(text) or text[after] in "\r\n.<")


def extract(text: str) -> Extract:
    """The blocks and the answer of a text, in time linear in its length."""
    return _Scan(text).run()


def unfence(text: str) -> tuple[str, bool]:
    """The content of a text that consists of one code fence, and whether the text does."""
    stripped = text.strip()
    if not stripped.startswith("```") or not stripped.endswith("```") or stripped.count("```") != 2:
        return text, False
    first, _, inside = stripped[3:-3].partition("\n")
    if "`" not in first and len(first) <= 40 and inside:
        return (inside, True)
    return (text, False)


# Repairs of a whole text: what stands around JSON, or was done to all of it.
_QUOTED_LINE = Pattern(r"^[ \t]{0,3}>[ \t]?", "m")
_UNQUOTED_BLOCK = Pattern(r"^(?![ \t]{0,3}>)[^\n]*?(?:[{\[]|```)", "m")
_PLAIN_QUOTE = Pattern(r'(?<!\\)"')
_ESCAPED_BLOCK = Pattern(r'[{\[]\s*(?:\\[nrt]\s*)*\\"')
_DOUBLED_BRACES = Pattern(rf"\{{\{{{WS}*+{QUOTE}")
_WIDE = str.maketrans("｛｝［］", "{}[]")
_MEMBERS = Pattern(rf"{WS}*+(?:{QUOTED}|({WORD})\"){WS}*+:{WS}*+{VALUE}")
_ITEMS = Pattern(rf"{WS}*+(?:{QUOTED}|-?\d[\d.]*+){WS}*+,{WS}*+{VALUE}")
# A block whose strings all end before a comma, a colon or a bracket, with escaped line breaks
# between them.
_BLANK = r"\\[nrt](?=[\s\"{}\[\],:\\\d-]|\Z)"
_BLANKS_OUTSIDE = Pattern(
    rf"[{{\[](?:[^\"'`“”‘’\\]++|\"(?:[^\"\\]|\\.)*+\"(?=(?:\s|\\[nrt])*+[,:}}\]])|{_BLANK})*+", "s"
)
_STRING_OR_BLANK = Pattern(rf"(\"(?:[^\"\\]|\\.)*+\")|{_BLANK}", "s")
_BLOCK = Pattern(r"[{\[]")
# Where an answer may begin: in a code fence, after reasoning, and after a label.
_BEGINNING = Pattern(
    rf"```[\w+-]{{0,20}}[ \t]*\n|</(\w+)>|(?<=[\w*]):(?:\*\*)?(?=[ \t\n])(?!{WS}*+```)"
)
_MAX_BEGINNINGS = 8
_TUPLE = Pattern(rf"\({WS}*+(?:[(\[{{]|(?:{QUOTED}|-?\d[\d.eE+-]*+|(?i:{LITERAL})){WS}*+,)")
_BRACKET = Pattern(rf"{QUOTED}|([(\[{{])|([)\]}}])|(,)")
_SCALAR = rf"{WS}*+(?:{QUOTED}|-?\d[\d.]*+){WS}*+"
_CLOSED_AS_TUPLE = Pattern(rf"(\[{_SCALAR}(?:,{_SCALAR})++)\)")


def rewrite(text: str) -> tuple[str, list[str]]:
    """The text with such repairs, and the kinds of those that were made."""
    kinds: list[str] = []
    if ">" in text and _QUOTED_LINE.search(text) and not _UNQUOTED_BLOCK.search(text):
        without = _QUOTED_LINE.sub("", text)
        if "{" in without or "[" in without:
            text = without
            kinds.append("quoted_lines")
    if "&quot;" in text and '"' not in text:
        import html

        text = html.unescape(text)
        kinds.append("entities")
    if '\\"' in text and (block := _ESCAPED_BLOCK.search(text)) is not None:
        start = block.start()
        end = max(text.rfind("}"), text.rfind("]"))
        end = end + 1 if end > start else len(text)
        if not _PLAIN_QUOTE.search(text, start, end):
            if text[start - 1 : start] == '"' == text[end : end + 1]:
                around = '"'
            else:
                around = ""
            text = (
                text[:start].removesuffix(around)
                + _unescape(text[start:end])
                + text[end:].removeprefix(around)
            )
            kinds.append("escaped")
    if "\\" in text and (block := _BLOCK.search(text)) is not None:
        start = block.start()
        end = max(text.rfind("}"), text.rfind("]")) + 1
        if _BLANKS_OUTSIDE.fullmatch(text, start, end):
            part = _STRING_OR_BLANK.sub(lambda match: match[1] or " ", text[start:end])
            if part != text[start:end]:
                text = text[:start] + part + text[end:]
                kinds.append("escaped_blanks")
    if (
        text.count("{{") > 1
        and _DOUBLED_BRACES.search(text)
        and all(text.count(one) == 2 * text.count(2 * one) for one in "{}")
    ):
        text = text.replace("{{", "{").replace("}}", "}")
        kinds.append("escaped")
    if "｛" in text and "{" not in text:
        text = text.translate(_WIDE)
        kinds.append("wide")
    return _with_opening(text, kinds)


def _unescape(part: str) -> str:
    try:
        return json.loads(f'"{part}"', strict=False)
    except ValueError:
        return part.replace('\\"', '"').replace("\\n", "\n")


def _is_tuple(text: str) -> bool:
    """Whether the parenthesis that begins a text ends with it, and has a comma directly in it."""
    depth = 0
    has_comma = False
    for token in _BRACKET.finditer(text):
        if token[1]:
            depth += 1
        elif token[2]:
            depth -= 1
            if depth == 0:
                return has_comma and token[2] == ")" and token.end() == len(text)
        elif token[3] and depth == 1:
            has_comma = True
    return False


def _with_opening(text: str, kinds: list[str]) -> tuple[str, list[str]]:
    """A text that begins inside an object or an array, as where the beginning of the answer was
    given.
    """
    stripped = text.strip()
    members = _MEMBERS.match(stripped)
    if members is not None:
        return ("{" if members[1] is None else '{"') + stripped, [*kinds, "opening"]
    body = stripped.removesuffix("```").rstrip()
    if body.endswith("]") and body.count("]") > body.count("[") and _ITEMS.match(stripped):
        return "[" + stripped, [*kinds, "opening"]
    inner = unfence(stripped)[0].strip()
    if _TUPLE.match(inner) and _is_tuple(inner):
        items = inner[1:-1].rstrip().removesuffix(",")
        return text.replace(inner, f"[{items}]", 1), [*kinds, "tuple"]
    whole = _CLOSED_AS_TUPLE.fullmatch(stripped)
    if whole is not None:
        return f"{whole[1]}]", [*kinds, "mismatched"]
    for match in islice(_BEGINNING.finditer(text), _MAX_BEGINNINGS):
        start = match.end()
        end = text.find("```", start)
        if end >= 0:
            part = text[start:end]
        else:
            part = text[start:]
        # An element may contain reasoning with brackets. Where a block has begun before it, it is
        # markup in a string.
        if match[1]:
            element = text.rfind(f"<{match[1]}", 0, start)
            since = 0
        else:
            element = -1
            since = max(text.rfind(">", 0, start), 0)
        before = text[since : element if element >= 0 else start]
        if "{" not in before and "[" not in before:
            for opening, closing, begins in (("{", "}", _MEMBERS), ("[", "]", _ITEMS)):
                if (
                    part.count(closing) == part.count(opening) + 1
                    and begins.match(part) is not None
                ):
                    return text[:start] + opening + text[start:], [*kinds, "opening"]
    return text, kinds
