"""The language inside texts and expressions: Jinja2's grammar, read and analysed, never run.

Jinja's own lexer and parser read the source. They are fed tokens whose line number is the token's offset, so
every node of the parsed tree knows its exact place: `node.lineno - 1` is an offset into the author's text.
What `binding` runs is this tree, and what the checks of the library report on is the `Analysis` of it.

Of Jinja the statements `for`, `if`, `set`, `with`, `macro`, `filter` and `raw` are accepted; whatever
reaches for other templates (`include`, `import`, `extends`, `block`, `call`) is refused. The functions that
exist are `range`, `dict` and `namespace`; any other call of a free name is a call of a function template.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn, cast

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.lexer import Token, TokenStream, operators
from jinja2.parser import Parser

from evaluator.errors import ExpressionError, SandboxError
from evaluator.library._translate import MAX_BRACKETS, TooDeep, translated
from evaluator.nodes import Expression, Text

GLOBALS = frozenset({"range", "dict", "namespace"})
CONSTANTS = frozenset({"null", "undefined"})
"""Names that mean `none`; comparing with `undefined` asks whether the other side is defined."""

_FILTER_NAMES = """
abs batch capitalize center count d default dictsort e escape first float format groupby indent int items
join last length list lower map max min reject rejectattr replace reverse round select selectattr slice sort
string sum title tojson trim truncate unique upper urlencode wordcount wordwrap
"""
FILTERS = frozenset(_FILTER_NAMES.split())
_TEST_NAMES = """
boolean defined divisibleby eq == equalto even false float ge >= gt > greaterthan in integer iterable le <=
lower lt < lessthan mapping ne != none null number odd sameas sequence string true undefined upper
"""
TESTS = frozenset(_TEST_NAMES.split())

MAX_DEPTH = 150
MAX_TOKENS = 200_000
CACHE_SIZE = 4096

_FORBIDDEN: dict[type[nodes.Node], tuple[str, str]] = {
    nodes.Include: ("{% include %}", "use the <include> element, or a function template"),
    nodes.Import: ("{% import %}", "use a function template"),
    nodes.FromImport: ("{% from … import %}", "use a function template"),
    nodes.Extends: ("{% extends %}", "use the ref attribute, or a function template"),
    nodes.Block: ("{% block %}", "templates are not inherited here; use a function template"),
    nodes.CallBlock: ("{% call %}", "pass the text to the macro as an argument"),
    nodes.ScopedEvalContextModifier: ("{% autoescape %}", "use the filter 'escape' where it is needed"),
}


@dataclass(frozen=True, slots=True)
class Reference:
    """A free name that is read, with the constant part of its path. `offset` is where the name begins.

    `optional`: the text itself provides for the name being undefined (`is defined`, `default`).
    """

    name: str
    path: tuple[str | int, ...]
    offset: int
    optional: bool


@dataclass(frozen=True, slots=True)
class CallReference:
    """A call of a function template. `star`: further arguments come from `*x` or `**x`."""

    name: str
    positional: int
    keywords: tuple[str, ...]
    star: bool
    offset: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """Free names and calls, in the order of their offsets.

    `constant`: a text that is its own rendering, or an expression that depends on nothing.
    """

    references: tuple[Reference, ...]
    calls: tuple[CallReference, ...]
    constant: bool


class Fault(Exception):
    """Why a text cannot be read or run, at an offset (None: not yet known). `forbidden`: a SandboxError."""

    def __init__(
        self, message: str, offset: int | None = None, code: str = "expression", forbidden: bool = False
    ) -> None:
        super().__init__(message)
        self.message, self.offset, self.code, self.forbidden = message, offset, code, forbidden

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.offset, self.code, self.forbidden))

    def located(self, text: Text) -> ExpressionError:
        """The error for callers, at the place in the author's file."""
        kind = SandboxError if self.forbidden else ExpressionError
        offset = min(self.offset or 0, len(text.value))
        return kind(self.message, text.locate(offset), self.code)


def has_markup(value: str) -> bool:
    """Whether a text holds anything but literal text."""
    return "{{" in value or "{%" in value or "{#" in value


def analyse(text: Text) -> Analysis:
    """The names and calls in a text.

    Raises: ExpressionError at the exact place, with code `syntax`, `forbidden-statement`, `unknown-filter`,
    `unknown-test` or `too-deep`.
    """
    if not has_markup(text.value):
        return _CONSTANT
    try:
        return _analysis(text.value)
    except Fault as fault:
        raise fault.located(text) from fault.__cause__


def analyse_expression(expression: Expression) -> Analysis:
    """The names and calls in an expression; raises as `analyse` does."""
    try:
        return _expression_analysis(expression.source.value)
    except Fault as fault:
        raise fault.located(expression.source) from fault.__cause__


def offset_of(node: nodes.Node) -> int:
    """Where a node of a parsed tree begins: its name, its operator's left side, or its opening bracket."""
    return node.lineno - 1


def nearest(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the nearest spelling, or an empty string."""
    close = difflib.get_close_matches(name, list(known)[:1000], n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def parse_text(value: str) -> nodes.Template:
    """The checked tree of a text. Raises: Fault."""
    # Jinja rewrites every kind of line end; a blank keeps offsets, and data is cut from the original.
    source = value.replace("\r", " ")
    tree = _parse(_tokens(source, None, None), False)
    assert isinstance(tree, nodes.Template)
    if source != value:
        for data in tree.find_all(nodes.TemplateData):
            start = offset_of(data)
            data.data = value[start : start + len(data.data)]
    return tree


def parse_expression(value: str) -> nodes.Expr:
    """The checked tree of an expression, its offsets those of the author's spelling. Raises: Fault."""
    if not value.strip():
        raise Fault("an expression is missing", 0, "syntax")
    source, offsets = _translated(value)
    tree = _parse(_tokens(source.replace("\r", " "), "variable", offsets), True)
    assert isinstance(tree, nodes.Expr)
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str) and "{{" in constant.value:
            message = "a placeholder inside quotes is not replaced; write the name without braces and quotes"
            raise Fault(message, offset_of(constant), "syntax")
    return tree


def translate(source: str) -> str:
    """An expression as authors from other languages write it, in Jinja's spelling.

    `===`, `!==`, `&&`, `||` and `!x` become `==`, `!=`, `and`, `or` and `(not x)`; `null` becomes `none`;
    `{{ x }}` inside an expression becomes `( x )`. String literals, attribute names and everything else stay
    as they are.
    """
    return _translated(source)[0]


def _translated(source: str) -> tuple[str, list[int]]:
    try:
        return translated(source)
    except TooDeep as error:
        message = f"brackets are nested more than {MAX_BRACKETS} deep"
        raise Fault(message, error.offset, "too-deep", True) from error


_CONSTANT = Analysis((), (), True)


@lru_cache(CACHE_SIZE)
def _analysis(value: str) -> Analysis:
    return _Walker().analysis(parse_text(value), False)


@lru_cache(CACHE_SIZE)
def _expression_analysis(value: str) -> Analysis:
    return _Walker().analysis(parse_expression(value), True)


# Reading


_ENVIRONMENT = Environment(keep_trailing_newline=True, autoescape=False)
_IGNORED = frozenset({"whitespace", "comment", "comment_begin", "comment_end", "raw_begin", "raw_end"})
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|\n|.)", re.S)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "f": "\f", "\n": ""}


def _tokens(source: str, state: str | None, offsets: list[int] | None) -> Iterator[Token]:
    """The tokens of a source, each with its offset plus one as its line number."""
    place = 0
    depth = count = 0
    raw = _ENVIRONMENT.lexer.tokeniter(source, None, None, state)
    while True:
        try:
            _, kind, value = next(raw)
        except StopIteration:
            return
        except TemplateSyntaxError as error:
            raise Fault(_explained(error.message or "", source), _mapped(place, offsets), "syntax") from error
        # Only white space that a `-` strips can lie between two tokens.
        place = source.index(value, place) if value else place
        at = _mapped(place, offsets)
        place += len(value)
        count += 1
        if count > MAX_TOKENS:
            raise Fault("the text holds too much markup", at, "too-deep", True)
        if kind in _IGNORED:
            continue
        if kind == "operator":
            kind = operators[value]
            depth += (value in "([{") - (value in ")]}")
            if depth > MAX_BRACKETS:
                raise Fault(f"brackets are nested more than {MAX_BRACKETS} deep", at, "too-deep", True)
        yield Token(at + 1, kind, _token_value(kind, value, at))


def _token_value(kind: str, value: str, at: int) -> Any:
    if kind == "string":
        return _ESCAPE.sub(_unescape, value[1:-1]) if "\\" in value else value[1:-1]
    if kind in ("integer", "float"):
        if len(value) > 100:
            raise Fault("the number has too many digits", at, "syntax")
        return int(value.replace("_", ""), 0) if kind == "integer" else float(value.replace("_", ""))
    if kind == "name" and not value.isidentifier():
        raise Fault(f"{value!r} is not a name", at, "syntax")
    return value


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "uUx" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number <= 0x10FFFF else match[0]
    if code in "\\'\"":
        return code
    return _ESCAPED.get(code, match[0])


def _mapped(place: int, offsets: list[int] | None) -> int:
    return place if offsets is None else offsets[min(place, len(offsets) - 1)]


def _parse(tokens: Iterable[Token], expression: bool) -> nodes.Node:
    parser = Parser(_ENVIRONMENT, "")
    try:
        parser.stream = TokenStream(tokens, None, None)
        if not expression:
            tree: nodes.Node = parser.parse()
        else:
            tree = parser.parse_expression()
            if not parser.stream.eos:
                current = parser.stream.current
                message = _explained(f"unexpected {current.value!r} after the expression", "")
                raise Fault(message, current.lineno - 1, "syntax")
    except TemplateSyntaxError as error:
        message = _explained(error.message or "", "")
        raise Fault(message, error.lineno - 1, "syntax") from error
    except RecursionError as error:
        raise Fault("the text is nested too deeply", 0, "too-deep", True) from error
    _check_tree(tree)
    return tree


def _explained(message: str, source: str) -> str:
    """Jinja's message without what does not apply here, and with a hint where the mistake is a known one."""
    message = re.sub(r" at \d+$", "", message.removesuffix(".")).replace("unexpected char ", "unexpected character ")
    for sign, hint in _HINTS:
        if sign in message:
            return f"{message}; {hint}"
    return message


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


_OPERATORS = frozenset({"and", "or", "not", "in", "is", "if", "else"})


def _check_tree(tree: nodes.Node) -> None:
    """Depth, statements, filters and tests, in document order. Raises: Fault."""
    pending: list[tuple[nodes.Node, int]] = [(tree, 0)]
    found: list[Fault] = []
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise Fault(f"nested more than {MAX_DEPTH} deep", offset_of(node), "too-deep", True)
        kind = type(node)
        if kind in _FORBIDDEN:
            what, hint = _FORBIDDEN[kind]
            found.append(Fault(f"{what} is not allowed; {hint}", offset_of(node), "forbidden-statement", True))
        elif kind is nodes.Name:
            # Jinja takes an operator in a name's place for a name.
            if cast(nodes.Name, node).name in _OPERATORS:
                name = cast(nodes.Name, node).name
                found.append(Fault(f"a value is missing before or after {name!r}", offset_of(node), "syntax"))
        elif isinstance(node, nodes.Filter):
            if node.name not in FILTERS:
                found.append(unknown_filter(node.name, offset_of(node)))
        elif isinstance(node, nodes.Test):
            if node.name not in TESTS:
                found.append(unknown_test(node.name, offset_of(node)))
        elif isinstance(node, nodes.For) and node.recursive:
            message = "a recursive loop is not allowed; use a macro that calls itself"
            found.append(Fault(message, offset_of(node), "forbidden-statement", True))
        pending.extend((child, depth + 1) for child in node.iter_child_nodes())
    if found:
        raise min(found, key=lambda fault: fault.offset or 0)


def unknown_filter(name: str, offset: int | None) -> Fault:
    return Fault(f"there is no filter {name!r}{nearest(name, FILTERS)}", offset, "unknown-filter")


def unknown_test(name: str, offset: int | None) -> Fault:
    return Fault(f"there is no test {name!r}{nearest(name, TESTS)}", offset, "unknown-test")


# Analysing

_Guards = frozenset[tuple[str, tuple[str | int, ...]]]
_NONE: _Guards = frozenset()


def free_path(node: nodes.Node) -> tuple[nodes.Node, tuple[str | int, ...]]:
    """The innermost node of a chain of dots and constant indexes, and the path from it."""
    path: list[str | int] = []
    while True:
        if isinstance(node, nodes.Getattr):
            path.append(node.attr)
        elif (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and type(node.arg.value) in (str, int)
        ):
            path.append(node.arg.value)
        else:
            return node, tuple(reversed(path))
        node = node.node


class _Walker:
    """Free names by Jinja's scoping: loops, macros and `with` have a scope of their own, `if` has none."""

    def __init__(self) -> None:
        self.references: list[Reference] = []
        self.calls: list[CallReference] = []

    def analysis(self, tree: nodes.Node, expression: bool) -> Analysis:
        self.walk(tree, set(), _NONE)
        constant = expression and not self.references and not self.calls
        self.references.sort(key=lambda reference: reference.offset)
        self.calls.sort(key=lambda call: call.offset)
        return Analysis(tuple(self.references), tuple(self.calls), constant)

    def walk(self, node: nodes.Node, bound: set[str], guards: _Guards, optional: bool = False) -> None:
        method = getattr(self, f"walk_{type(node).__name__.lower()}", None)
        if method is None:
            self.walk_all(node.iter_child_nodes(), bound, guards)
        elif isinstance(node, nodes.Name | nodes.Getattr | nodes.Getitem):
            self.path(node, bound, guards, optional)
        else:
            method(node, bound, guards)

    def walk_all(self, children: Iterable[nodes.Node], bound: set[str], guards: _Guards) -> None:
        for child in children:
            self.walk(child, bound, guards)

    def path(self, node: nodes.Node, bound: set[str], guards: _Guards, optional: bool) -> None:
        base, path = free_path(node)
        if not isinstance(base, nodes.Name):
            if base is node:
                assert isinstance(base, nodes.Getitem)
                self.walk(base.node, bound, guards, optional)
                self.walk(base.arg, bound, guards)
            else:
                self.walk(base, bound, guards, optional)
            return
        if base.name in bound or base.name in CONSTANTS or base.ctx != "load":
            return
        guarded = optional or any(name == base.name and path[: len(at)] == at for name, at in guards)
        self.references.append(Reference(base.name, path, offset_of(base), guarded))

    walk_name = walk_getattr = walk_getitem = path

    def walk_call(self, node: nodes.Call, bound: set[str], guards: _Guards) -> None:
        target = node.node
        if isinstance(target, nodes.Name):
            if target.name not in bound and target.name not in GLOBALS:
                keywords = tuple(keyword.key for keyword in node.kwargs)
                star = node.dyn_args is not None or node.dyn_kwargs is not None
                call = CallReference(target.name, len(node.args), keywords, star, offset_of(target))
                self.calls.append(call)
        elif isinstance(target, nodes.Getattr):
            self.walk(target.node, bound, guards)
        else:
            self.walk(target, bound, guards)
        self.walk_all((child for child in node.iter_child_nodes() if child is not target), bound, guards)

    def walk_filter(self, node: nodes.Filter, bound: set[str], guards: _Guards) -> None:
        # In a block's filter the innermost node is None.
        if isinstance(node.node, nodes.Node):
            self.walk(node.node, bound, guards, node.name in ("d", "default"))
        self.walk_all((child for child in node.iter_child_nodes() if child is not node.node), bound, guards)

    def walk_test(self, node: nodes.Test, bound: set[str], guards: _Guards) -> None:
        self.walk(node.node, bound, guards, node.name in ("defined", "undefined"))
        self.walk_all((child for child in node.iter_child_nodes() if child is not node.node), bound, guards)

    def walk_compare(self, node: nodes.Compare, bound: set[str], guards: _Guards) -> None:
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        optional = any(is_undefined_name(side) for side in sides)
        for side in sides:
            self.walk(side, bound, guards, optional)

    def walk_and(self, node: nodes.And, bound: set[str], guards: _Guards) -> None:
        self.walk(node.left, bound, guards)
        self.walk(node.right, bound, guards | _facts(node.left)[0])

    def walk_or(self, node: nodes.Or, bound: set[str], guards: _Guards) -> None:
        self.walk(node.left, bound, guards)
        self.walk(node.right, bound, guards | _facts(node.left)[1])

    def walk_condexpr(self, node: nodes.CondExpr, bound: set[str], guards: _Guards) -> None:
        when_true, when_false = _facts(node.test)
        self.walk(node.test, bound, guards)
        self.walk(node.expr1, bound, guards | when_true)
        if node.expr2 is not None:
            self.walk(node.expr2, bound, guards | when_false)

    def walk_if(self, node: nodes.If, bound: set[str], guards: _Guards) -> None:
        for branch in (node, *node.elif_):
            when_true, when_false = _facts(branch.test)
            self.walk(branch.test, bound, guards)
            self.walk_all(branch.body, bound, guards | when_true)
            guards = guards | when_false
        self.walk_all(node.else_, bound, guards)

    def walk_for(self, node: nodes.For, bound: set[str], guards: _Guards) -> None:
        self.walk(node.iter, bound, guards)
        inner = bound | _names(node.target)
        if node.test is not None:
            self.walk(node.test, inner, guards)
        # `else` runs outside the loop.
        self.walk_all(node.else_, set(bound), guards)
        self.walk_all(node.body, inner | {"loop"}, guards)

    def walk_assign(self, node: nodes.Assign, bound: set[str], guards: _Guards) -> None:
        self.walk(node.node, bound, guards)
        self.target(node.target, bound)

    def walk_assignblock(self, node: nodes.AssignBlock, bound: set[str], guards: _Guards) -> None:
        self.walk_all(node.body, set(bound), guards)
        if node.filter is not None:
            self.walk(node.filter, bound, guards)
        self.target(node.target, bound)

    def target(self, target: nodes.Node, bound: set[str]) -> None:
        if isinstance(target, nodes.NSRef) and target.name not in bound:
            message = f"{target.name!r} is not a namespace; make one with {{% set {target.name} = namespace() %}}"
            raise Fault(message, offset_of(target), "undefined-variable")
        bound |= _names(target)

    def walk_macro(self, node: nodes.Macro, bound: set[str], guards: _Guards) -> None:
        bound.add(node.name)
        inner = set(bound)
        self.walk_all(node.defaults, inner, guards)
        inner |= {argument.name for argument in node.args}
        self.walk_all(node.body, inner, guards)

    def walk_with(self, node: nodes.With, bound: set[str], guards: _Guards) -> None:
        self.walk_all(node.values, bound, guards)
        inner = set(bound)
        for target in node.targets:
            inner |= _names(target)
        self.walk_all(node.body, inner, guards)

    def walk_filterblock(self, node: nodes.FilterBlock, bound: set[str], guards: _Guards) -> None:
        self.walk(node.filter, bound, guards)
        self.walk_all(node.body, set(bound), guards)


def is_undefined_name(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Name) and node.name == "undefined"


def _names(target: nodes.Node) -> set[str]:
    if isinstance(target, nodes.Name):
        return {target.name}
    return {name.name for name in target.find_all(nodes.Name)}


def _facts(test: nodes.Node) -> tuple[_Guards, _Guards]:
    """What is known to be defined where a test holds, and where it does not."""
    if isinstance(test, nodes.Not):
        when_true, when_false = _facts(test.node)
        return when_false, when_true
    if isinstance(test, nodes.And | nodes.Or):
        left, right = _facts(test.left), _facts(test.right)
        if isinstance(test, nodes.And):
            return left[0] | right[0], left[1] & right[1]
        return left[0] & right[0], left[1] | right[1]
    if isinstance(test, nodes.Test) and test.name in ("defined", "undefined"):
        base, path = free_path(test.node)
        known: _Guards = frozenset({(base.name, path)}) if isinstance(base, nodes.Name) else _NONE
        return (known, _NONE) if test.name == "defined" else (_NONE, known)
    return _NONE, _NONE


def raise_unknown_name(name: str, offset: int, names: Iterable[str]) -> NoReturn:
    """The error of a name that nothing defines, with the nearest spelling and the names that there are."""
    known = sorted(names)
    listed = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
    exist = f"defined here: {listed}" if known else "nothing is defined here"
    raise Fault(f"{name!r} is not defined{nearest(name, known)} ({exist})", offset, "undefined-variable")
