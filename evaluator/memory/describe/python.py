"""Python sources: the definitions that the parser finds, or those found by the look of a line if it
cannot parse.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from evaluator.memory.describe.base import Description, make
from evaluator.memory.describe.code import describe_code

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
