"""How the code reads: figures of style for this package, and for others beside it.

    python bench/code_style.py [PACKAGE ...]

A PACKAGE is a folder, or the name of an installed package. The first column is always `evaluator`.
To compare with the projects whose style this one follows:

    pip install --target OTHERS jinja2 httpx inspect-ai
    python bench/code_style.py OTHERS/jinja2 OTHERS/httpx OTHERS/inspect_ai

A line of code has a token that is neither a comment nor part of a docstring.
"""

from __future__ import annotations

import ast
import importlib.util
import io
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

MAX_COLUMNS = 100

_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True)
class CodeStyle:
    """The counts of one package."""

    modules: int = 0
    code_lines: int = 0
    code_characters: int = 0
    long_lines: int = 0
    tokens: int = 0
    formatter_off: int = 0
    conditional_expressions: int = 0
    double_assignments: int = 0
    import_lines: int = 0
    private_functions: int = 0
    used_once: int = 0

    def add(self, source: str) -> None:
        """Counts one module."""
        tree = ast.parse(source)
        lines = source.splitlines()
        self.modules += 1
        self._add_lines(lines, _docstring_lines(tree), source)
        private: set[str] = set()
        uses: Counter[str] = Counter()
        for node in ast.walk(tree):
            self._add_node(node)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                if node.name.startswith("_") and not node.name.startswith("__"):
                    private.add(node.name)
            elif isinstance(node, ast.Name):
                uses[node.id] += 1
            elif isinstance(node, ast.Attribute):
                uses[node.attr] += 1
        self.private_functions += len(private)
        self.used_once += sum(uses[name] == 1 for name in private)

    def _add_lines(self, lines: list[str], docstrings: set[int], source: str) -> None:
        code: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and "fmt: " in token.string:
                self.formatter_off += 1
            if token.type in _LAYOUT or token.start[0] in docstrings:
                continue
            self.tokens += 1
            code.update(range(token.start[0], token.end[0] + 1))
        self.code_lines += len(code)
        self.code_characters += sum(len(lines[number - 1].strip()) for number in code)
        self.long_lines += sum(len(line) > MAX_COLUMNS for line in lines)

    def _add_node(self, node: ast.AST) -> None:
        if isinstance(node, ast.IfExp):
            self.conditional_expressions += 1
        elif isinstance(node, ast.Assign):
            targets = node.targets[0]
            if isinstance(targets, ast.Tuple) and isinstance(node.value, ast.Tuple):
                self.double_assignments += 1
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self.import_lines += (node.end_lineno or node.lineno) - node.lineno + 1

    def figures(self) -> dict[str, str]:
        """The rows of the table."""
        thousands = self.code_lines / 1000
        return {
            "modules": f"{self.modules:,}",
            "lines of code": f"{self.code_lines:,}",
            "tokens of code": f"{self.tokens:,}",
            "characters a line of code": f"{self.code_characters / self.code_lines:.1f}",
            f"lines over {MAX_COLUMNS} columns": f"{self.long_lines:,}",
            "places where the formatter is off": f"{self.formatter_off:,}",
            "conditional expressions per 1,000 lines": (
                f"{self.conditional_expressions / thousands:.1f}"
            ),
            "double assignments per 1,000 lines": f"{self.double_assignments / thousands:.1f}",
            "imports, share of lines": f"{self.import_lines / self.code_lines:.1%}",
            "private functions used once": (
                f"{self.used_once / max(1, self.private_functions):.0%}"
            ),
        }


def _docstring_lines(tree: ast.Module) -> set[int]:
    numbers: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            numbers.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return numbers


def _folder(package: str) -> Path:
    path = Path(package)
    if path.is_dir():
        return path
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        sys.exit(f"code_style.py: {package} is neither a folder nor an installed package")
    return Path(spec.origin).parent


def measure(folder: Path) -> CodeStyle:
    """The counts of all modules below `folder`."""
    style = CodeStyle()
    for path in sorted(folder.rglob("*.py")):
        style.add(path.read_text(encoding="utf-8"))
    return style


def main() -> None:
    folders = [Path(__file__).parent.parent / "evaluator", *map(_folder, sys.argv[1:])]
    columns = [measure(folder).figures() for folder in folders]
    width = max(map(len, columns[0]))
    print(" " * width, *(f"{folder.name:>12}" for folder in folders))
    for row in columns[0]:
        print(f"{row:{width}}", *(f"{column[row]:>12}" for column in columns))


if __name__ == "__main__":
    main()
