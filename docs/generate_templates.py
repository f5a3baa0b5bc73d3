"""Writes what docs/reference/templates.md says about each operator from its declaration in
evaluator/nodes and the notes in schemas/task.xsd: python docs/generate_templates.py

These are the row of types, the section of each operator with its elements and the names that it
binds, the sentence on the elements of children, and the table of defaults in section "Context".
What stands around the tables of an operator is written by hand. `page()` gives the page, so that a
test can hold the committed one to it.
"""

from __future__ import annotations

import re
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from evaluator.interpreter.context import SUBTASK_DEFAULT
from evaluator.nodes import BOUND_NAMES, Task
from evaluator.nodes.declare import FIELDS, OPERATORS, Field
from evaluator.xml.vocabulary import editor_vocabulary

PAGE = Path(__file__).parent / "reference" / "templates.md"
BEGIN = (
    "<!-- Written by docs/generate_templates.py from the declaration; change it, or task.xsd, "
    "not this. -->"
)
END = "<!-- The end of what docs/generate_templates.py writes. -->"
_SETTINGS = ("inherit_context", "accumulate_data", "fresh_context")


def page() -> str:
    """The whole page with what the declarations say."""
    text = PAGE.read_text(encoding="utf-8")
    text = _replaced(text, r"^\| `type` \| `[^`]*` \(default\).*$", f"| `type` | {_types()} |")
    text = _replaced(text, r"^`[^\n]*?(?= contain one `<task>`)", _children())
    text = _replaced(
        text,
        r"(?<=^\| operator \| `inherit_context` \| `accumulate_data` \| `fresh_context` \|\n"
        r"\|---\|---\|---\|---\|\n)(?:\|.*\n)*",
        _defaults(),
    )
    for name, operator in OPERATORS.items():
        text = _with_section(text, name, operator)
    return text


def _replaced(text: str, pattern: str, new: str) -> str:
    replaced, count = re.subn(pattern, lambda _: new, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{PAGE.name} has {count} places like {pattern!r}, expected 1")
    return replaced


def _types() -> str:
    first, *others = OPERATORS
    names = [f"`{first}` (default)", *(f"`{name}`" for name in others)]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _children() -> str:
    roles = {
        field.element
        for operator in OPERATORS.values()
        for field in FIELDS[operator]
        if field.form == "role" and field.element is not None
    }
    names = [f"`{name}`" for name in sorted(roles)]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _defaults() -> str:
    policies = {name: operator.default_context for name, operator in OPERATORS.items()}
    policies["a subtask, whatever its type"] = SUBTASK_DEFAULT
    return "".join(
        f"| {name} | {' | '.join(_value(getattr(policy, each)) for each in _SETTINGS)} |\n"
        for name, policy in policies.items()
    )


def _with_section(text: str, name: str, operator: type[Task]) -> str:
    """`text` with the tables of an operator, and with a section for it if there was none."""
    heading = f"\n### {name}\n"
    tables = f"{BEGIN}\n\n{_elements(operator)}{_names(operator)}{END}"
    if heading not in text:
        docstring = " ".join((operator.__doc__ or "").split())
        place = text.rindex("\n\n", 0, text.index(" contain one `<task>`"))
        return f"{text[:place]}\n{heading}\n{docstring}\n\n{tables}{text[place:]}"
    before, _, rest = text.partition(heading)
    own, next_heading = re.split(r"^(?=##)", rest, maxsplit=1, flags=re.MULTILINE)
    own = _replaced(own, f"{re.escape(BEGIN)}[\\s\\S]*?{re.escape(END)}", tables)
    return f"{before}{heading}{own}{next_heading}"


def _own_fields(operator: type[Task]) -> list[Field]:
    common = {field.name for field in FIELDS[Task]}
    return [field for field in FIELDS[operator] if field.name not in common]


def _elements(operator: type[Task]) -> str:
    """The table of the elements and attributes that only this operator has."""
    rows = [f"| {_place(field)} | {_meaning(field)} |\n" for field in _own_fields(operator)]
    if not rows:
        return ""
    return "".join(["| element or attribute | meaning |\n|---|---|\n", *rows, "\n"])


def _place(field: Field) -> str:
    if field.attribute is None:
        return f"`{field.element}`"
    if field.element is None:
        return f"`@{field.attribute}`"
    return f"`{field.element}/@{field.attribute}`"


def _meaning(field: Field) -> str:
    """The note of the schema, with the range and the default of a setting."""
    vocabulary = editor_vocabulary()
    kind = vocabulary.kinds["task"]
    name = field.element or ""
    if field.attribute is not None and field.element is not None:
        kind = vocabulary.kinds[kind.children[field.element]]
    if field.attribute is not None:
        name = f"@{field.attribute}"
    parts = [kind.notes[name]]
    if field.role == "setting":
        parts.append(f"{field.wanted.capitalize()}.")
    if field.default is MISSING:
        parts.append("Required.")
    elif field.default not in (None, ()):
        parts.append(f"Default: {_value(field.default)}.")
    return " ".join(parts)


def _names(operator: type[Task]) -> str:
    """The table of the names that the operator binds for its children."""
    readers = [field for field in _own_fields(operator) if field.binds]
    rows: list[str] = []
    for name in dict.fromkeys(name for field in readers for name in field.binds or ()):
        seen_in = [f"`{field.element}`" for field in readers if name in (field.binds or ())]
        where = ", ".join(seen_in)
        if len(seen_in) == len(readers) > 2:
            where = "all of them"
        rows.append(f"| `{name}` | {BOUND_NAMES[name]} | {where} |\n")
    if not rows:
        return ""
    return "".join(["| bound name | value | seen in |\n|---|---|---|\n", *rows, "\n"])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
