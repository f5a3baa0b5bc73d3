"""Parses texts and expressions into Jinja's syntax tree, which is checked and never run.

Jinja's own lexer reads texts and its parser builds the tree. The parser is fed tokens whose line
number is the token's offset plus one, so every node knows its exact place. Expressions have a lexer
of their own, which also accepts the operators of other languages (`===`, `&&`, `||`, `!`, `null`,
`{{ x }}`).

The statements `for`, `if`, `set`, `with`, `macro`, `filter` and `raw` are accepted. Statements that
load other templates (`include`, `import`, `extends`, `block`, `call`) are refused. A call of a
free name that is not in `syntax.GLOBALS` is a call of a function template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, cast

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.lexer import Token, TokenStream, float_re, integer_re, operators
from jinja2.parser import Parser

from evaluator.language.arguments import argument_error
from evaluator.language.locating import LocatedError
from evaluator.patterns import Pattern

MAX_BRACKETS = 40
MAX_DEPTH = 150
MAX_TOKENS = 200_000

_FORBIDDEN: dict[type[nodes.Node], tuple[str, str]] = {
    nodes.Include: ("{% include %}", "use the <include> element, or a function template"),
    nodes.Import: ("{% import %}", "use a function template"),
    nodes.FromImport: ("{% from … import %}", "use a function template"),
    nodes.Extends: ("{% extends %}", "use the ref attribute, or a function template"),
    nodes.Block: ("{% block %}", "templates are not inherited here; use a function template"),
    nodes.CallBlock: ("{% call %}", "pass the text to the macro as an argument"),
    nodes.ScopedEvalContextModifier: (
        "{% autoescape %}",
        "use the filter 'escape' where it is needed",
    ),
}


class TooMuchMarkup(LocatedError):
    """A text has more than MAX_TOKENS tokens; `offset` is where the next one begins."""

    def __init__(self, offset: int) -> None:
        super().__init__(
            "the text holds too much markup", "too-deep", offset=offset, forbidden=True
        )


def parse_text(value: str, found: list[LocatedError] | None = None) -> nodes.Template:
    """Returns the checked tree of a text.

    With `found`, its forbidden statements, and its filters, tests and methods that are wrong, are
    added to it.
    Raises: LocatedError.
    """
    # Jinja rewrites every kind of line end; a blank keeps offsets, and data is cut from the
    # original.
    source = value.replace("\r", " ")
    tree = cast(nodes.Template, _parse(_text_pieces(source), expression=False, found=found))
    if source != value:
        for data in tree.find_all(nodes.TemplateData):
            start = offset_of(data)
            data.data = value[start : start + len(data.data)]
    return tree


def parse_expression(value: str, found: list[LocatedError] | None = None) -> nodes.Expr:
    """Returns the checked tree of an expression; `found` as in `parse_text`. Raises:
    LocatedError.
    """
    if not value.strip():
        raise LocatedError("an expression is missing", "syntax", offset=0)
    tree = cast(nodes.Expr, _parse(_expression_pieces(value), expression=True, found=found))
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str) and "{{" in constant.value:
            message = (
                "a placeholder inside quotes is not replaced; write the name without braces "
                "and quotes"
            )
            raise LocatedError(message, "syntax", offset=offset_of(constant))
    return tree


def offset_of(node: nodes.Node) -> int:
    """Returns where a node begins: at its name, its operator's left side, or its opening
    bracket.
    """
    return node.lineno - 1


def is_undefined_name(node: nodes.Node) -> bool:
    """Returns whether a node is the name `undefined`."""
    return isinstance(node, nodes.Name) and node.name == "undefined"


def free_path(node: nodes.Node) -> tuple[nodes.Node, tuple[str | int, ...]]:
    """Returns the innermost node of a chain of dots and constant indexes, and the path from it."""
    path: list[str | int] = []
    while True:
        if isinstance(node, nodes.Getattr):
            path.append(node.attr)
        elif (
            isinstance(node, nodes.Getitem)
            and isinstance(node.arg, nodes.Const)
            and type(node.arg.value) in (str, int)
        ):
            path.append(node.arg.value)
        else:
            return node, tuple(reversed(path))
        node = node.node


# Lexing: pieces are (kind of Jinja's token, text, offset)

_Piece = tuple[str, str, int]
_ENVIRONMENT = Environment(keep_trailing_newline=True, autoescape=False)
_IGNORED = frozenset(
    {"whitespace", "comment", "comment_begin", "comment_end", "raw_begin", "raw_end"}
)
_PIECE = re.compile(
    rf"""(?P<whitespace>\s+)|(?P<float>{float_re.pattern})|(?P<integer>{integer_re.pattern})
    |(?P<name>[^\W\d]\w*)
    |(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<operator>===|!==|==|!=|<=|>=|&&|\|\||\{{\{{|\}}\}}|//|\*\*|[-+/*%~\[\](){{}}<>=.:|,;!])""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_SPELLINGS = {
    "===": ("operator", "=="),
    "!==": ("operator", "!="),
    "&&": ("name", "and"),
    "||": ("name", "or"),
}
_ESCAPE = Pattern(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|\n|.)", "s")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f", "\n": ""}


def _text_pieces(source: str) -> Iterator[_Piece]:
    place = 0
    try:
        for _, kind, value in _ENVIRONMENT.lexer.tokeniter(source, None):
            # Only white space that a `-` strips can lie between two tokens.
            if value:
                place = source.index(value, place)
            yield kind, value, place
            place += len(value)
    except TemplateSyntaxError as error:
        raise _syntax_error(error.message or "", place) from error


def _expression_pieces(source: str) -> Iterator[_Piece]:
    opened: list[str] = []
    before = ""
    place = 0
    while place < len(source):
        match = _PIECE.match(source, place)
        if match is None or match.lastgroup is None:
            raise _syntax_error(f"unexpected character {source[place]!r}", place)
        kind = match.lastgroup
        value = match[0]
        if value == "}}" and opened[-1:] != ["{{"]:
            value = "}"  # two dictionaries end together; this is not the end of a placeholder
        if value in ("(", "[", "{", "{{"):
            opened.append(value)
        elif value in (")", "]", "}", "}}") and opened:
            opened.pop()
        if value == "null" and before != ".":
            yield kind, "none", place
        elif value in ("{{", "}}"):
            yield kind, "(" if value == "{{" else ")", place
        else:
            yield *_SPELLINGS.get(value, (kind, value)), place
        if kind != "whitespace":
            before = value
        place += len(value)


def _tokens(pieces: Iterable[_Piece]) -> Iterator[Token]:
    depth = 0
    for count, (kind, value, offset) in enumerate(pieces):
        if count >= MAX_TOKENS:
            raise TooMuchMarkup(offset)
        if kind in _IGNORED:
            continue
        if kind == "operator":
            kind = operators.get(value, "not")
            depth += (value in "([{") - (value in ")]}")
            if depth > MAX_BRACKETS:
                raise LocatedError(
                    f"brackets are nested more than {MAX_BRACKETS} deep",
                    "too-deep",
                    offset=offset,
                    forbidden=True,
                )
        yield Token(offset + 1, kind, _token_value(kind, value, offset=offset))


def _token_value(kind: str, value: str, offset: int) -> Any:
    if kind == "string":
        if "\\" in value:
            return _ESCAPE.sub(_unescaped, value[1:-1])
        return value[1:-1]
    if kind in ("integer", "float"):
        if len(value) > 100:
            raise LocatedError("the number has too many digits", "syntax", offset=offset)
        if kind == "integer":
            return int(value.replace("_", ""), 0)
        return float(value.replace("_", ""))
    if kind == "name" and not value.isidentifier():
        raise LocatedError(f"{value!r} is not a name", "syntax", offset=offset)
    return value


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "uUx" and len(code) > 1:
        number = int(code[1:], 16)
        if number <= 0x10FFFF:
            return chr(number)
        return match[0]
    if code in "\\'\"":
        return code
    return _ESCAPED.get(code, match[0])


# Parsing


class _Parser(Parser):
    def __init__(self, environment: Environment, source: str) -> None:
        super().__init__(environment, source)
        # The name and the offset of each statement that is being read, the outermost first.
        self.unclosed: list[tuple[str, int]] = []

    def parse_statement(self) -> nodes.Node | list[nodes.Node]:
        begin = self.stream.current
        self.unclosed.append((begin.value, begin.lineno - 1))
        statement = super().parse_statement()
        self.unclosed.pop()
        return statement

    def parse_unary(self, with_filter: bool = True) -> nodes.Expr:
        """`!` binds as in C: tighter than any comparison, looser than `.`, `[]` and `()`."""
        if self.stream.current.type != "not":
            return super().parse_unary(with_filter)
        token = next(self.stream)
        node = nodes.Not(self.parse_unary(False), lineno=token.lineno)
        if with_filter:
            return self.parse_filter_expr(node)
        return node


def _parse(
    pieces: Iterable[_Piece], *, expression: bool, found: list[LocatedError] | None
) -> nodes.Node:
    parser = _Parser(_ENVIRONMENT, "")
    try:
        parser.stream = TokenStream(_tokens(pieces), None, None)
        tree: nodes.Node
        if expression:
            tree = parser.parse_expression()
        else:
            tree = parser.parse()
        if expression and not parser.stream.eos:
            current = parser.stream.current
            raise _syntax_error(
                f"unexpected {current.value!r} after the expression", current.lineno - 1
            )
    except TemplateSyntaxError as error:
        is_unclosed = (error.message or "").startswith("Unexpected end of template")
        if is_unclosed and parser.unclosed:
            name, offset = parser.unclosed[-1]
            message = f"{{% {name} … %}} is not closed; {{% end{name} %}} is missing"
            raise LocatedError(message, "syntax", offset=offset) from error
        raise _syntax_error(error.message or "", error.lineno - 1) from error
    except RecursionError as error:
        raise LocatedError(
            "the text is nested too deeply", "too-deep", offset=0, forbidden=True
        ) from error
    errors = _errors_of(tree)
    if found is not None:
        found += errors
    elif errors:
        raise errors[0]
    return tree


_HINTS = (
    ("'&'", "write 'and'"),
    ("'!'", "write 'not'"),
    ("'?'", "write 'a if test else b'"),
    ("token '='", "compare with '=='"),
    ("'='", "compare with '=='"),
    ("'$'", "a name has no '$'"),
    ("got ':'", "literal braces are written {{ '{{' }} or inside {% raw %}"),
    ("unknown tag", "literal text is written inside {% raw %}"),
)


def _syntax_error(message: str, offset: int) -> LocatedError:
    """Returns Jinja's message without its line number, with a hint if the mistake is a known
    one.
    """
    message = re.sub(r" at \d+$", "", message.removesuffix(".")).replace(
        "unexpected char ", "unexpected character "
    )
    hint = next((f"; {hint}" for sign, hint in _HINTS if sign in message), "")
    return LocatedError(message + hint, "syntax", offset=offset)


_OPERATORS = frozenset({"and", "or", "not", "in", "is", "if", "else"})


def _errors_of(tree: nodes.Node) -> list[LocatedError]:
    """The forbidden statements, and the filters, tests and methods that are wrong, in their order.
    Raises: LocatedError, for too much depth.
    """
    pending: list[tuple[nodes.Node, int]] = [(tree, 0)]
    found: list[LocatedError] = []
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise LocatedError(
                f"nested more than {MAX_DEPTH} deep",
                "too-deep",
                offset=offset_of(node),
                forbidden=True,
            )
        error = _node_error(node)
        if error is not None:
            if error.offset is None:
                error.offset = offset_of(node)
            found.append(error)
        pending.extend((child, depth + 1) for child in node.iter_child_nodes())
    return sorted(found, key=lambda error: error.offset or 0)


def _node_error(node: nodes.Node) -> LocatedError | None:
    if type(node) in _FORBIDDEN:
        what, hint = _FORBIDDEN[type(node)]
        return LocatedError(f"{what} is not allowed; {hint}", "forbidden-statement", forbidden=True)
    if isinstance(node, nodes.For) and node.recursive:
        message = "a recursive loop is not allowed; use a macro that calls itself"
        return LocatedError(message, "forbidden-statement", forbidden=True)
    # Jinja reads an operator in the place of a name as a name.
    if isinstance(node, nodes.Name) and node.name in _OPERATORS:
        return LocatedError(f"a value is missing before or after {node.name!r}", "syntax")
    return argument_error(node)
