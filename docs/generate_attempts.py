"""Writes the section "Attempts" of docs/explanation/security.md from the tests in tests/security:
python docs/generate_attempts.py

`section()` gives its text, so that a test can hold the page to it.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "explanation" / "security.md"
BEGIN = (
    "<!-- Written by docs/generate_attempts.py from tests/security; change the tests, not this. -->"
)
END = "<!-- The end of what docs/generate_attempts.py writes. -->"


def section() -> str:
    """The text between the two marks, without them."""
    parts = ["\n"]
    for path in sorted((ROOT / "tests" / "security").glob("test_*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        subject = path.stem.removeprefix("test_").removeprefix("attempts_").replace("_", " ")
        parts.append(f"\n### {subject.capitalize()}\n\n")
        introduction = " ".join((ast.get_docstring(module) or "").split())
        parts.append(textwrap.fill(f"{introduction} (`tests/security/{path.name}`)", 100))
        parts.append("\n\n| attempt | remark |\n|---|---|\n")
        parts += [f"| {attempt} | {remark} |\n" for attempt, remark in _attempts(module)]
    return "".join(parts) + "\n"


def page() -> str:
    """The whole page with a new section."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{section()}{END}{after}"


def _attempts(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            words = node.name.removeprefix("test_").replace("_", " ")
            remark = " ".join((ast.get_docstring(node) or "").split()).replace("|", "\\|")
            yield words, remark


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
