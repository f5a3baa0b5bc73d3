"""Counts lines of code by package: lines with a token, without comments and docstrings.

    python bench/lines.py [FOLDER]

The default folder is `evaluator/`.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """The number of lines with at least one token that is neither a comment nor part of a
    docstring.
    """
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        documented = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        if documented and ast.get_docstring(node, clean=False) is not None:
            docstrings.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "evaluator"
    counts: Counter[str] = Counter()
    for path in root.rglob("*.py"):
        counts[path.relative_to(root).parts[0]] += code_lines(path.read_text(encoding="utf-8"))
    for name, count in sorted(counts.items()):
        print(f"{count:7,} {name}")
    print(f"{sum(counts.values()):7,} in all")


if __name__ == "__main__":
    main()
