"""Reads standard JSON in C, and decodes escapes: also those that are valid and that nobody meant.

The lenient reader uses it for the parts of a text that are valid.

Models forget to double the backslashes of LaTeX and of Windows paths. Most such escapes are invalid
(`\\alpha`) and keep their backslash. The others are valid and have another meaning: `\\frac` is a
form feed and `rac`. They keep their backslash too where it is certain:

- `\\b` and `\\f` before a letter: no answer has a backspace or a form feed there;
- `\\t`, `\\n` and `\\r` that begin a LaTeX command which, without its first letter, is not a word
  (`\\theta`, `\\nabla`);
- those that begin another LaTeX command (`\\to`, `\\ne`), in a string with an escape that is
  invalid or of the kinds above;
- all in a path (`C:\\temp\\notes.txt`).
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, cast

from evaluator.patterns import Match, Pattern

MAX_DEPTH = 200
"""The deepest nesting that is read: a deeper value could not be written or copied without
overflow.
"""

_MAX_FAILURES = 100
_BLANKS = " \t\r\n"


class NotPlain(ValueError):
    """JSON that needs a warning: a key occurs twice, NaN, a number outside the range of a float, or
    an escape that nobody meant.
    """


class Unreadable(Exception):
    """A block is not JSON. `resume` is the position from which to look for the next; `reason` is
    for a message.
    """

    def __init__(self, reason: str, at: int, resume: int, committed: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at
        self.resume = resume
        self.committed = committed


def _constant(name: str) -> NoReturn:
    raise NotPlain(name)


def _float(digits: str) -> float:
    number = float(digits)
    if number - number != 0.0:
        raise NotPlain(digits)
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise NotPlain("a key twice")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
_scan = cast(Any, _decoder.scan_once)  # type: ignore[attr-defined]


def read_strict(text: str) -> Any:
    """The value of a text that is one standard JSON value.

    Raises: ValueError, if it is anything else; RecursionError, if it is nested too deeply for the C
    reader.
    """
    try:
        value, end = _scan(text, len(text) - len(text.lstrip(_BLANKS)))
    except StopIteration as error:
        raise ValueError("no value") from error
    if end != len(text) and text[end:].strip(_BLANKS):
        raise ValueError("text after the value")
    # A shorter text has too few brackets.
    is_long = len(text) > MAX_DEPTH
    if is_long and text.count("[") + text.count("{") > MAX_DEPTH and too_deep(value):
        raise RecursionError
    return value


def read_as_meant(text: str) -> Any:
    """As `read_strict`. Raises NotPlain also for an escape that nobody meant."""
    value = read_strict(text)
    if has_unmeant(text, 0, len(text)):
        raise NotPlain("an escape")
    return value


def too_deep(value: Any, allowed: int = MAX_DEPTH) -> bool:
    """Whether a value contains containers nested more than `allowed` deep."""
    level: list[Any] = [value]
    for _ in range(allowed):
        following: list[Any] = []
        for item in level:
            if item.__class__ is dict:
                following.extend(item.values())
            elif item.__class__ is list:
                following.extend(item)
        if not following:
            return False
        level = following
    return any(item.__class__ is dict or item.__class__ is list for item in level)


_SIMPLE = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPE = Pattern(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u([0-9a-fA-F]{4})"
    r"|([\s\S]?))"
)
# LaTeX commands that are not a word without their first letter, and the others.
_COMMAND = (
    "tanh|tbinom|tfrac|therefore|theta|thickapprox|thicksim|tilde|times|triangle|triangleq"
    r"|triangleleft|triangleright|text(?=\{)|textbf|textit|textrm|textsf|textstyle|texttt|textup"
    "|twoheadrightarrow"
    "|nabla|natural|nearrow|nexists|ngeq|ngtr|nleq|nless|nmid|nolimits|nonumber|notin|nparallel"
    "|nprec|nsim|nsubseteq|nsucc|nwarrow|newcommand|newline"
    "|rangle|rbrace|rbrack|rceil|rfloor|rho|right|rightarrow|rightharpoonup|rightleftharpoons|rVert"
    "|rvert|rtimes"
)
_OTHER_COMMAND = "tan|tau|text|to|top|ne|neg|neq|not|nu|rm"
_LETTERS_END = "(?![A-Za-z])"
# What a valid text contains if an escape in it may be one that nobody meant.
_SUSPECT = Pattern(
    rf"\\(?:[bf][A-Za-z]|(?:{_COMMAND}){_LETTERS_END}|(?:(?<=[A-Za-z]:\\)|(?<=[.%]\\))[ntr])"
)
_CERTAIN = Pattern(rf"\\(?:[bf](?=[A-Za-z])|(?:{_COMMAND}){_LETTERS_END})")
_PROBABLE = Pattern(rf"\\(?:[bf]|(?:{_OTHER_COMMAND}){_LETTERS_END})")
_INVALID = Pattern(r"\\(?![\"\\/bfnrt]|u[0-9a-fA-F]{4})")
_INVALID_WORD = Pattern(r"\\(?![bfnrt]|u[0-9a-fA-F]{4})[A-Za-z(]")
_ROW_END = Pattern(r"\\\\(?=\s|\\n|\Z)")
_ESCAPE_AT = Pattern(r"\\[\s\S]?")
# A string with escapes. Its end may be missing, so that no part of a text is looked at twice.
_STRING = Pattern(r'"[^"\\]*+(?:\\.[^"\\]*+)++"?', "s")
_PATH = Pattern(
    r"(?<![\w.])(?:([A-Za-z]):|\.{1,2}|%\w{1,40}%)(?:\\(?!u[0-9a-fA-F]{4})[\w.$~()+@#&-]{2,200}+)"
    r"{1,50}+(?![:\\])"
)
# Folders whose names are not words without their first letter.
_FOLDER = Pattern(r"[^\\]*+\\(?:te?mp|tests?|tools?|repos?|results?)(?:\\|\Z)", "i")
_EXTENSION = Pattern(r"\.\w{1,5}\Z")


def decode(raw: str, own: str = "") -> tuple[str, dict[str, None]]:
    """The text that the content of a string stands for, and the kinds of repair.

    `own` is a quote that may be escaped too.
    """
    if "\\" not in raw:
        return raw, {}
    literal = _double_unmeant(raw)
    repairs: dict[str, None] = {}
    if literal != raw:
        repairs["literal_escape"] = None

    def character(match: Match) -> str:
        plain = match[4]
        if plain is None:
            if match[3] is not None:
                return chr(int(match[3], 16))
            high = int(match[1], 16)
            low = int(match[2], 16)
            return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
        known = _SIMPLE.get(plain)
        if known is not None:
            return known
        if plain and plain == own:
            return plain
        repairs["escape"] = None
        return match[0]

    return _ESCAPE.sub(character, literal), repairs


def double_unmeant(text: str) -> str:
    """Valid JSON in which the backslashes of escapes that nobody meant are doubled.

    The same text if there are none.
    """
    if "\\" not in text or _SUSPECT.search(text) is None:
        return text
    return _STRING.sub(lambda match: _double_unmeant(match[0]), text)


def has_unmeant(text: str, start: int, end: int) -> bool:
    """Whether valid JSON from `start` to `end` has an escape that nobody meant."""
    if text.find("\\", start, end) < 0 or _SUSPECT.search(text, start, end) is None:
        return False
    part = text[start:end]
    return double_unmeant(part) != part


def _double_unmeant(raw: str) -> str:
    """The content of a string with the backslashes of escapes that nobody meant doubled."""
    if _SUSPECT.search(raw) is None and _INVALID_WORD.search(raw) is None:
        return raw
    unmeant: set[int] = set()
    probable: set[int] = set()
    row_ends: set[int] = set()
    is_latex = has_environment = False
    for escape in _ESCAPE_AT.finditer(raw):
        at = escape.start()
        if _CERTAIN.match(raw, at):
            unmeant.add(at)
            has_environment |= raw.startswith("begin{", at + 1)
        elif _PROBABLE.match(raw, at):
            probable.add(at)
        elif _ROW_END.match(raw, at):
            row_ends |= {at, at + 1}
        elif _INVALID_WORD.match(raw, at):
            is_latex = True
    for path in _PATH.finditer(raw):
        if _is_path(path):
            places = range(path.start(), path.end())
            unmeant.update(at for at in places if raw[at] == "\\" and not _INVALID.match(raw, at))
    if is_latex or unmeant:
        unmeant |= probable
    if has_environment:
        unmeant |= row_ends
    if not unmeant:
        return raw
    return "".join(char * 2 if at in unmeant else char for at, char in enumerate(raw))


def _is_path(path: Match) -> bool:
    """Whether what looks like a path is not a text before a line break or a tab (`A:\\nYes`)."""
    written = path[0]
    escapes = {part[:1] for part in written.split("\\")[1:]}
    if not escapes <= set("bfnrt") or _FOLDER.match(written):
        return True
    is_drive = path[1] is not None and path[1] in "CDcd"
    if is_drive and len(escapes) > 1:
        return True
    return (is_drive or escapes != {"n"}) and _EXTENSION.search(written) is not None


# Values in one style of quotes, and with the literals and tuples of Python: as `repr` writes them.
# Only an escaped quote, or one of the other kind, is inside a string, so there is only one reading.
_END = r"(?=[ \t\r\n]*+[,:\]})])"
_UNIFORM = Pattern(
    rf"""(?:[ \t\r\n\[\]{{}}(),:]++|'(?:[^'\\\n]++|\\['\\nrt])*+'{_END}"""
    rf"""|"(?:[^"\\\n]++|\\.)*+"{_END}|“[^“”"\\\n]*+”{_END}"""
    r"|-?\d[\d.eE+-]*+|True|False|None|true|false|null)++"
)
_STRINGS = r"""("(?:[^"\\]++|\\.)*+")|'((?:[^'\\]++|\\.)*+)'|“([^”]*+)”|True|False|None"""
_FOREIGN = Pattern(_STRINGS)
# With tuples, the brackets and commas too; without the comma after the only item of a tuple.
_FOREIGN_WITH_TUPLES = Pattern(rf"{_STRINGS}|(,?[ \t\r\n]*+\)|\([ \t\r\n]*+\)|[(\[\]{{}},])")
_FOREIGN_SIGNS = ("'", "“", "T", "F", "N", "(")
_FIRST_SIZE = 500
_LITERALS = {"True": "true", "False": "false", "None": "null"}
_READ_PER_STEP = 16
_STEPS_PER_BLOCK = 8
_STEPS_PER_FAILURE = 2
_MIN_STEPS = 60_000


class _JsonPart:
    """A part of a text that `_UNIFORM` matches, as JSON.

    It is as `repr` writes it up to the place `odd`: from there on a parenthesis is not one of a
    tuple.
    """

    def __init__(self, part: str) -> None:
        self._first: dict[str, int] = {}
        self._grown = 0
        self._growths: list[tuple[int, int]] = []
        self._open: list[str] = []
        self._commas: list[int] = []
        self.odd = len(part)
        self.text = (_FOREIGN_WITH_TUPLES if "(" in part else _FOREIGN).sub(self._replace, part)

    def _replace(self, match: Match) -> str:
        if match[1] is not None:
            return match[1]
        if match[2] is not None:
            self._first.setdefault("single", match.start())
            string = match[2].replace("\\'", "'").replace('"', '\\"')
            self._resize(match, len(string) + 2)
            return f'"{string}"'
        if match[3] is not None:
            self._first.setdefault("typographic", match.start())
            return f'"{match[3]}"'
        if match.lastindex is not None:
            return self._bracket(match)
        self._first.setdefault("literal", match.start())
        return _LITERALS[match[0]]

    def _resize(self, match: Match, length: int) -> None:
        if length != len(match[0]):
            self._grown += length - len(match[0])
            self._growths.append((match.end() + self._grown, self._grown))

    def _bracket(self, match: Match) -> str:
        written = match[0]
        if written == ",":
            if self._commas:
                self._commas[-1] += 1
            return ","
        if written in "([{":
            self._open.append(written)
            self._commas.append(0)
            return "[" if written == "(" else written
        if written[0] == "(":
            self._first.setdefault("tuple", match.start())
            self._resize(match, 2)
            return "[]"
        opening = self._open.pop() if self._open else ""
        if self._commas:
            commas = self._commas.pop()
        else:
            commas = 0
        if written in "]}":
            if opening == "(":
                self.odd = min(self.odd, match.start())
            return written
        is_single = written[0] == ","
        if opening != "(" or is_single != (commas == 0):
            self.odd = min(self.odd, match.start())
        self._first.setdefault("tuple", match.start())
        self._resize(match, 1)
        return "]"

    def place(self, at: int) -> int:
        """The place in the part that became the place `at` of its JSON."""
        return at - next((grown for place, grown in reversed(self._growths) if place <= at), 0)

    def repairs(self, end: int) -> dict[str, None]:
        """The kinds of repair in the part up to `end`."""
        return dict.fromkeys(kind for kind, at in self._first.items() if at < end)


def _place_of(error: json.JSONDecodeError | StopIteration) -> int:
    """Where the C reader expected something else."""
    if isinstance(error, StopIteration):
        return error.value
    return error.pos


def work_for(text: str) -> int:
    """The steps that reading a text may take: it bounds the work, whatever the text is.

    A step is a decision for which a bounded part of the text is looked at, some 4 µs. So long takes
    the lenient reader for 16 characters of plain tokens.
    """
    return max(_MIN_STEPS, len(text) // _READ_PER_STEP)


class StrictScanner:
    """Reads values inside a longer text, with a bound on all failures together, so that time stays
    linear.

    `steps` is the work that may still be done on this text. A failed attempt costs the characters
    that it read and, in the standard library, all those before it.
    """

    __slots__ = ("_failed", "_failures", "_spare", "steps", "text")

    def __init__(self, text: str, steps: int) -> None:
        self.text = text
        self.steps = steps
        self._failures = 0
        self._failed = (-1, 0)
        self._spare = 2 * len(text) + 1000

    def charge(self, start: int, end: int, *, is_read: bool) -> None:
        """Counts the work of reading a block leniently, or of finding at `end` that it is none."""
        steps = (end - start) // _READ_PER_STEP
        if is_read:
            self.steps -= steps + _STEPS_PER_BLOCK
        else:
            self.steps -= 2 * steps + _STEPS_PER_FAILURE

    def read(self, start: int, depth: int) -> tuple[Any, int] | None:
        """The value that begins at `start` and its end; None if there is none, no attempt is left,
        or an escape in it has another meaning.
        """
        if self._failures >= _MAX_FAILURES or self._spare < 0:
            return None
        try:
            value, end = _scan(self.text, start)
        except (json.JSONDecodeError, StopIteration) as error:
            at = _place_of(error)
            self._failures += 1
            self._spare -= max(at - start, 0)
            self._failed = (start, at)
            return None
        except (ValueError, RecursionError):
            # How far it read is unknown, so only a few such failures are allowed.
            self._failures += 10
            return None
        if has_unmeant(self.text, start, end):
            self._failures += 1
            self._spare -= end - start
            return None
        if self._is_too_deep(value, start, end=end, depth=depth):
            self._failures += 10
            return None
        return value, end

    def read_uniform(self, start: int, depth: int) -> tuple[Any, int, dict[str, None]] | None:
        """As `read`, after it failed, a value in one other style of quotes or with Python's
        literals, and the kinds of repair.
        """
        text = self.text
        failed_start, failed_at = self._failed
        if failed_start != start or not text.startswith(_FOREIGN_SIGNS, failed_at):
            return None
        matched = start
        size = _FIRST_SIZE
        while self._spare >= 0:
            # The block may be short in a long text, so longer and longer parts are tried.
            part = _UNIFORM.match(text, start, start + size)
            if part is None or part.end() == matched:
                return None
            matched = part.end()
            json_part = _JsonPart(part[0])
            try:
                value, end = _scan(json_part.text, 0)
            except (json.JSONDecodeError, StopIteration) as error:
                self._spare -= len(part[0])
                if _place_of(error) < len(json_part.text.rstrip()):
                    return None
            except (ValueError, RecursionError):
                self._spare -= len(part[0])
                return None
            else:
                end = json_part.place(end)
                if json_part.odd < end:
                    return None
                end += start
                if has_unmeant(text, start, end) or self._is_too_deep(
                    value, start, end=end, depth=depth
                ):
                    return None
                return value, end, json_part.repairs(end - start)
            size *= 8
        return None

    def _is_too_deep(self, value: Any, start: int, end: int, depth: int) -> bool:
        allowed = MAX_DEPTH - depth
        if end - start <= allowed:
            return False
        count = self.text.count("[", start, end) + self.text.count("{", start, end)
        return count > allowed and too_deep(value, allowed)
