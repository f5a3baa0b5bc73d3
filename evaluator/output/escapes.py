"""Decodes the escapes of JSON strings, and finds those that are valid but that nobody meant.

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

from evaluator.patterns import Match, Pattern

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
