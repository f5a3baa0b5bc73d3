"""A text that can be rendered with values of the declared types is not refused for them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from hypothesis import given, settings
from hypothesis import strategies as st

from evaluator.errors import ExpressionError
from evaluator.language.sandbox import render_sync
from evaluator.language.scopes import Scope
from evaluator.nodes import Span, Text
from tests.library.library_files import load, put, task

VALUES: dict[str, tuple[str, list[Any]]] = {
    "s": ("string", ["", "abc", "12"]),
    "i": ("integer", [0, -3, 7]),
    "n": ("number", [0, 1.5]),
    "b": ("boolean", [True, False]),
    "words": ("string[]", [[], ["b", "a"]]),
    "rows": ("object[]", [[], [{"a": 1, "k": "x"}]]),
    "o": ("object", [{}, {"a": 1, "k": ["x"]}]),
    "x": ("any", [None, "abc", 3, True, [1], {"a": "x"}]),
}
INPUTS = "".join(f'<input name="{name}" type="{kind}"/>' for name, (kind, _) in VALUES.items())
NAMES = st.sampled_from([*VALUES, "o.a", "rows[0].a", "words[0]", "x.a", "s[0]"])
ATOMS = NAMES | st.sampled_from(["1", "2.5", '"a"', "[1]", '{"a": 1}', "none", "true"])
PATTERNS = """
%s + %s
%s * %s
%s - %s
%s / %s
%s ~ %s
%s < %s
%s >= %s
%s == %s
%s in %s
-%s
not %s
%s[%s]
%s[1:]
%s[0]
%s.a
%s is even
%s is divisibleby(%s)
%s is string
%s is defined
%s.upper()
%s.split(%s)
%s.count(%s)
%s.get(%s)
%s.items()
""".strip().splitlines()
_FILTERS = """
abs default("-") dictsort first float int items join(%s) length list lower map("upper") max
map(attribute="a") reverse round select select("odd") sort string sum(start=%s) trim unique
"""
FILTERS = _FILTERS.split()
GUARDS = """
NAME.upper() if NAME is string else 0
NAME + 1 if NAME is number else 0
NAME is not iterable or NAME | length
NAME is mapping and NAME.items()
NAME[i] | default("-")
NAME[s].a is defined
""".strip().splitlines()
"""What a text may do with a name of any type."""


@st.composite
def expressions(draw: st.DrawFn, depth: int = 2) -> str:
    """Expressions whose every part is evaluated, except after a question for the type."""
    if depth == 0:
        return draw(ATOMS)
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(GUARDS)).replace("NAME", draw(st.sampled_from([*VALUES])))
    pattern = draw(st.sampled_from([*PATTERNS, *(f"%s | {name}" for name in FILTERS)]))
    parts = [f"({draw(expressions(depth - 1))})" for _ in range(pattern.count("%s"))]
    if draw(st.booleans()):
        parts[0] = draw(NAMES)
    return pattern % tuple(parts)


def is_rendered(source: str, values: dict[str, Any]) -> bool:
    try:
        render_sync(Text(source, Span()), Scope(values))
    except ExpressionError:
        return False
    return True


@settings(max_examples=40)
@given(st.lists(expressions(), min_size=8, max_size=8), st.data())
def test_an_expression_that_can_be_rendered_has_no_error(sources: list[str], data: st.DataObject):
    files = {
        f"t{number}": task(
            f"t{number}", escape(f"{{{{ {source} }}}}"), f"<inputs>{INPUTS}</inputs>"
        )
        for number, source in enumerate(sources)
    }
    with tempfile.TemporaryDirectory() as folder:
        refused = {Path(error.span.file).stem for error in load(put(Path(folder), **files)).errors}
    values = {name: data.draw(st.sampled_from(given)) for name, (_, given) in VALUES.items()}
    for number, source in enumerate(sources):
        if f"t{number}" in refused:
            assert not is_rendered(f"{{{{ {source} }}}}", values), source
