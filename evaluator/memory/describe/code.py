"""Descriptions of program sources, and what every description is limited to.

Sources of programs: the definitions that a parser finds, or the look of a line shows.

This is enough to find a file by the names in it: a definition that is spread over lines in an
unusual way is missed, and one in a comment or a string is taken. Each pattern is anchored at the
beginning of a line and bounded in what it may skip, so the time is linear in the text.

Python sources: the definitions that the parser finds, or those found by the look of a line if it
cannot parse.

The description of a file: one line, headings and names, never a body.

Everything is bounded here, so that no file takes more room than another: longer lines are cut,
further ones left out.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from itertools import islice

from evaluator.lazy_dataclass import frozen
from evaluator.patterns import Pattern

LOOKED_AT_CHARS = 400_000
"""Describers read at most this many characters from the beginning of a text."""
MAX_ITEMS = 300
_SUMMARY_CHARS = 200
_HEADING_CHARS = 120
_NAME_CHARS = 80
_TOTAL_CHARS = 6_000

_BLANK = re.compile(r"[\s\x00-\x1f\x7f]+")


@frozen
class Description:
    """A file in a few words.

    `summary` is one line in its author's words, `headings` are titles and first lines of
    docstrings, `names` are what it defines (classes, functions, columns, keys).
    """

    language: str = ""
    summary: str = ""
    headings: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def make(
    language: str, *, summary: str = "", headings: Iterable[str] = (), names: Iterable[str] = ()
) -> Description:
    """Returns a description within the bounds: white space collapsed, no repetitions, in the order
    given.
    """
    line = _cut(summary, _SUMMARY_CHARS)
    return Description(
        language,
        line,
        headings=_bounded(headings, _HEADING_CHARS),
        names=_bounded(names, _NAME_CHARS),
    )


def _bounded(items: Iterable[str], longest: int) -> tuple[str, ...]:
    kept: dict[str, None] = {}
    room = _TOTAL_CHARS
    for item in islice(items, 10 * MAX_ITEMS):
        cut = _cut(item, longest)
        if not cut or cut in kept:
            continue
        room -= len(cut)
        if room < 0 or len(kept) == MAX_ITEMS:
            break
        kept[cut] = None
    return tuple(kept)


def _cut(text: str, longest: int) -> str:
    # A lone surrogate (JSON can spell one) cannot be stored as UTF-8.
    text = text[: 4 * longest].encode("utf-8", "replace").decode("utf-8")
    return _BLANK.sub(" ", text).strip()[:longest]


_KEYWORDS = """
    if for while switch catch return else function do new await yield case typeof sizeof delete
    throw using lock defined elif foreach synchronized super this assert
"""
_NOT_NAMES = frozenset(_KEYWORDS.split())

_PATTERNS: dict[str, tuple[str, ...]] = {
    "python": (
        r"[ \t]*(?:async[ \t]+)?(?:def|class)[ \t]+(\w+)",
        r"([A-Z][A-Z0-9_]+)[ \t]*(?::[^=\n]{0,100})?=(?!=)",
    ),
    "javascript": (
        r"[ \t]*(?:(?:export|default|declare|abstract|async|const)[ \t]+){0,4}"
        r"(?:function|class|interface|enum|namespace|module|type)[ \t]*\*?[ \t]*([A-Za-z_$][\w$]*)",
        r"(?:export[ \t]+)?(?:const|let|var)[ \t]+([A-Za-z_$][\w$]*)",
        r"[ \t]*(?:const|let|var)[ \t]+([A-Za-z_$][\w$]*)[ \t]*=[ \t]*(?:async[ \t]*)?"
        r"(?:function\b|\([^()\n]{0,200}\)[ \t]*=>|[\w$]{1,60}[ \t]*=>|class\b)",
        r"[ \t]*(?:[\w$]{1,60}\.){1,4}([A-Za-z_$][\w$]*)[ \t]*=[ \t]*(?:async[ \t]+)?"
        r"(?:function\b|class\b|\([^()\n]{0,200}\)[ \t]*=>)",
        r"[ \t]+([A-Za-z_$][\w$]*)[ \t]*:[ \t]*(?:async[ \t]+)?function\b",
        r"[ \t]+(?:(?:public|private|protected|static|async|readonly|override|abstract|get"
        r"|set)[ \t]+){0,4}[*#]?"
        r"([A-Za-z_$][\w$]*)[ \t]*(?:<[^<>\n]{0,80}>)?\([^()\n]{0,200}\)[ \t]*(?::[^={;\n]{0,100}"
        r")?\{",
    ),
    "go": (
        r"func[ \t]+(?:\([^()\n]{0,100}\)[ \t]*)?(\w+)",
        r"(?:type|const|var|package)[ \t]+(\w+)",
    ),
    "rust": (
        r"[ \t]*(?:pub(?:\([^()\n]{0,40}\))?[ \t]+)?"
        r"(?:(?:default|async|unsafe|const|extern(?:[ \t]+\"[^\"\n]{0,20}\")?)[ \t]+){0,4}"
        r"(?:fn|struct|enum|trait|union|mod|type|static|const"
        r"|macro_rules!)[ \t]+(?:mut[ \t]+)?(\w+)",
    ),
    "java": (
        r"[ \t]*(?:[a-z]+[ \t]+){0,5}(?:class|interface|enum|record|@interface)[ \t]+(\w+)",
        r"[ \t]+(?:(?:public|private|protected|static|final|abstract|synchronized|native"
        r"|default)[ \t]+){0,5}"
        r"(?:<[^<>\n]{0,80}>[ \t]*)?(?:[\w<>\[\],.?]{1,80}[ \t]+){1,3}(\w+)[ \t]*\([^;\n]{0,300}$",
        r"[ \t]+(?:public|private|protected)[ \t]+(\w+)[ \t]*\(",
        r"package[ \t]+([\w.]+)",
    ),
    "csharp": (
        r"[ \t]*(?:[a-z]+[ \t]+){0,5}(?:class|interface|enum|record|struct"
        r"|namespace)[ \t]+([\w.]+)",
        r"[ \t]+(?:(?:public|private|protected|internal|static|virtual|override|abstract|sealed"
        r"|async|extern|readonly)"
        r"[ \t]+){1,5}(?:[\w<>\[\],.?]{1,80}[ \t]+){0,3}(\w+)[ \t]*(?:<[^<>\n]{0,80}>)?(?:\("
        r"|\{[ \t]*get\b)",
    ),
    "c": (
        r"#[ \t]*define[ \t]+(\w+)",
        r"[ \t]*(?:typedef[ \t]+)?(?:template[^\n]{0,80}>[ \t]*)?"
        r"(?:class|struct|union|enum|namespace)(?:[ \t]+class)?[ \t]+(?:[A-Z][A-Z0-9_]+[ \t]+)?"
        r"(\w+)[^;()=\n]{0,200}$",
        r"typedef[^\n]{0,200}[ \t*}](\w++)[ \t]*;[ \t]*$",
        r"typedef[^;()\n]{0,100}\([ \t]*\*?[ \t]*(\w+)[ \t]*\)",
        r"\}[ \t]*(\w+)[ \t]*;",
        r"(?!typedef\b|return\b|else\b)(?:[A-Za-z_][\w \t*&:<>,~]{0,200}?)??\b([A-Za-z_]\w*+)[ \t"
        r"]*\(",
        r"[ \t]+(?:[\w:<>,*&]{1,80}[ \t]+){1,4}[*&]{0,2}(\w+)[ \t]*\([^;(){}\n]{0,200}\)[^;\n]{0,"
        r"40}[{;]",
    ),
    "ruby": (
        r"[ \t]*(?:class|module)[ \t]+([A-Z][\w:]*)",
        r"[ \t]*def[ \t]+(?:self\.)?(\w+)",
        r"[ \t]*([A-Z][A-Z0-9_]+)[ \t]*=(?!=)",
    ),
    "php": (
        r"[ \t]*(?:(?:abstract|final|readonly)[ \t]+){0,3}(?:class|interface|trait"
        r"|enum)[ \t]+(\w+)",
        r"namespace[ \t]+([\w\\]+)",
        r"[ \t]*(?:(?:public|private|protected|static|abstract"
        r"|final)[ \t]+){0,4}function[ \t]+&?[ \t]*(\w+)",
        r"[ \t]*(?:(?:public|private|protected"
        r"|final)[ \t]+){0,3}const[ \t]+(?:\w+[ \t]+)?([A-Z]\w*)[ \t]*=",
    ),
    "shell": (r"[ \t]*(?:function[ \t]+)?([\w:.-]+)[ \t]*\(\)", r"[ \t]*function[ \t]+([\w:.-]+)"),
}
_PATTERNS["typescript"] = _PATTERNS["javascript"]
_PATTERNS["c++"] = _PATTERNS["c"]
_COMPILED = {
    language: Pattern("^(?:" + "|".join(patterns) + ")", "m")
    for language, patterns in _PATTERNS.items()
}
EXTENSIONS = {
    "javascript": ".js .jsx .mjs .cjs",
    "typescript": ".ts .tsx .mts .cts",
    "go": ".go",
    "rust": ".rs",
    "java": ".java",
    "csharp": ".cs",
    "c": ".c .h",
    "c++": ".cc .cpp .cxx .hh .hpp .hxx .inl",
    "ruby": ".rb .rake",
    "php": ".php",
    "shell": ".sh .bash .zsh .ksh",
}
"""The extensions of each language that is described by patterns."""

# The comment at the top of a file, if it says what the file is rather than whose it is.
_MARKS = Pattern(r"^[ \t]*(?://[/!]?|/\*[*!]?|\*/?|#!?|--|;+)[ \t]?|\*/[ \t]*$")
_COMMENT = Pattern(r"[ \t]*(?://|/\*|\*|#(?![ \t]*(?:define|include|if|ifdef|ifndef|pragma)\b)|--)")
_NO_SUMMARY = Pattern(
    r"\bspdx\b|all rights reserved|\(c\)|^[!/]|eslint|@ts-|coding[:=]|^vim?:|^@|generated",
    "i",
)
_LEADING_LINES = 40


def describe_code(language: str, text: str) -> Description:
    """Returns the names that the patterns of `language` find, and the first line of the opening
    comment.
    """
    text = text[:LOOKED_AT_CHARS]
    found = (match.group(match.lastindex or 0) for match in _COMPILED[language].finditer(text))
    # The names in minified sources mean nothing.
    minified = len(text) > 5_000 and text.count("\n") < len(text) / 1_000
    if minified:
        names = ()
    else:
        names = (name for name in found if name not in _NOT_NAMES)
    return make(language, summary=_opening(text) if language != "python" else "", names=names)


def _opening(text: str) -> str:
    """Returns the first telling line of the comment that opens the file."""
    for number, line in enumerate(text[:8_000].split("\n")[:_LEADING_LINES]):
        if number == 0 and line.startswith(("#!", "<?")):
            continue
        if line.strip() and not _COMMENT.match(line):
            return ""
        shown = _MARKS.sub("", line).strip(" \t*-=#/")
        if re.search("licen|copyright", shown, re.IGNORECASE):
            return ""
        if not _NO_SUMMARY.search(shown) and sum(c.isalpha() for c in shown) >= 8 and " " in shown:
            return shown
    return ""


# The parser takes up to 1 kB for each character, and for some texts time by the square of their
# length.
_PARSED_CHARS = 150_000
_DEFINITION = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def describe_python(text: str) -> Description:
    """Returns the first line of the module docstring, the names of classes, functions, methods and
    constants, and the first lines of their docstrings. Functions inside functions are left out.
    """
    if len(text) > _PARSED_CHARS:
        return describe_code("python", text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are about the file
            module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return describe_code("python", text)
    names: list[str] = []
    headings: list[str] = []
    for node, in_class in _definitions(module):
        if isinstance(node, _DEFINITION):
            names.append(node.name)
            if not in_class or isinstance(node, ast.ClassDef):
                headings.append(_first_line(node))
        else:
            names.extend(_constants(node))
    return make("python", summary=_first_line(module), headings=headings, names=names)


def _definitions(module: ast.Module) -> Iterator[tuple[ast.stmt, bool]]:
    """Yields the statements of the module and its classes, also below `if` and `try`, with whether
    a class has them.
    """
    waiting: list[tuple[ast.stmt, bool]] = [(node, False) for node in reversed(module.body)]
    while waiting:
        node, in_class = waiting.pop()
        yield node, in_class
        inner: list[ast.stmt] = []
        if isinstance(node, (ast.ClassDef, ast.With)):
            inner = node.body
        elif isinstance(node, ast.If):
            inner = [*node.body, *node.orelse]
        elif isinstance(node, ast.Try):
            inner = [
                *node.body,
                *(line for handler in node.handlers for line in handler.body),
                *node.orelse,
            ]
        below = in_class or isinstance(node, ast.ClassDef)
        waiting.extend((line, below) for line in reversed(inner))


def _constants(node: ast.stmt) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    for target in targets:
        if isinstance(target, ast.Name) and target.id.isupper() and len(target.id) > 1:
            yield target.id


def _first_line(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]
