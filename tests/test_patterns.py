"""Patterns match the same on every version of Python, and are compiled at their first use."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from re import _parser  # pyright: ignore  # the parser of `re`: it says what a pattern consists of
from typing import Any

import pytest

from evaluator.patterns import Pattern, compile_with_regex
from evaluator.xml.lenient import read_elements

ROOT = Path(__file__).parent.parent
NEW = {"POSSESSIVE_REPEAT", "ATOMIC_GROUP"}
COMPILED = sys.version_info >= (3, 11, 5)
TEXTS = [
    "<y k=\"&lt;v\" j='1'>a <!-- b --> c</y>",
    '{"a": "b\\"c", "d": [1, 2.5e3, -0x1F, None], // remark\n "e": «f»; g: \'it\'s\',}',
    '[“a”, ‘b’, `c`, "d" "e" + "f"]\n```json\n{"a":\n1}\n```',
    "Answer: **1,299.50 km** is *not* 3/4, but \\boxed{42} and 12 million (a) B or C.",
    "- one\n- [ ] two\n3. three: four\n\n## Status\n| a | b |\n|---|---|\n| 1 | \\| |\n> quoted",
    "İstanbul ſtraße K ٣４² नमस्ते e\u0301 km² a‿b \x1c\x85\u2028 \ud800 \x00",
    "2024-05-06T07:08:09.10Z [x] done — 5 min, x = y == z => w -> v: u",
    '{"a"' + " " * 40 + "[" * 40 + "'" * 9 + '"' * 9 + "\\" * 9 + "<" * 9,
]


def _modules() -> Iterator[tuple[Any, ast.Module]]:
    for path in sorted((ROOT / "evaluator").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(name)
        except ImportError:  # of an extra
            continue
        source = path.read_text("utf-8")
        if not re.search(r"\bre\.\w+\(", source):
            source = ""  # it gives nothing to `re`
        yield module, ast.parse(source)


def _has_new(parsed: Any) -> bool:
    """Whether a parsed pattern repeats a group possessively, or has an atomic group."""
    if isinstance(parsed, list | tuple | _parser.SubPattern):
        return any(str(part) in NEW or _has_new(part) for part in parsed)
    return False


def _new_in(source: str) -> bool:
    try:
        return _has_new(_parser.parse(source))
    except re.error:
        return False


def test_re_is_given_no_possessive_quantifier_and_no_atomic_group() -> None:
    found: list[str] = []
    calls = 0
    for module, tree in _modules():
        if module.__name__ == "evaluator.patterns":
            continue
        for value in vars(module).values():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                calls += 1
                found += [f"{module.__name__}: {value.pattern}"] * _new_in(value.pattern)
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and node.args and _is_of_re(node.func)):
                continue
            if (source := _value_of(node.args[0], module)) is not None:
                found += [f"{module.__name__}: {source}"] * _new_in(source)
    assert not found
    assert calls > 100


def _is_of_re(function: ast.expr) -> bool:
    value = getattr(function, "value", None)
    return isinstance(value, ast.Name) and value.id == "re"


def _value_of(node: ast.expr, module: Any) -> str | None:
    """The text that an expression at the top level of a module is; inside a function unknown parts
    are left out.
    """
    try:
        value = eval(compile(ast.Expression(node), "", "eval"), dict(vars(module)))
    except Exception:
        value = "".join(
            part.value
            for part in ast.walk(node)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        )
    return value if isinstance(value, str) else None


def test_the_check_of_patterns_finds_what_it_looks_for() -> None:
    assert all(map(_new_in, (r"a*+", r"(?:ab)++b", r"(?>a|b)", r"(x(?:a?+))", r"(?=\s{1,2}+)")))
    assert not any(map(_new_in, (r"a*", r"[*+]+", r"\++", r"a{2}", r"x*?(?:a+)?")))


@pytest.mark.skipif(not COMPILED, reason="`re` matches wrongly before Python 3.11.5")
def test_both_engines_match_the_same_in_every_pattern() -> None:
    tables = sorted((ROOT / "tests/output").glob("answers_*.py"))
    texts = TEXTS + [text for path in tables for text, _ in runpy.run_path(str(path))["PLAIN"][:12]]
    patterns = {
        value
        for module, _ in _modules()
        for value in vars(module).values()
        if isinstance(value, Pattern)
    }
    assert len(patterns) > 150
    for pattern in patterns:
        other = compile_with_regex(pattern, is_anchored=False)
        anchored = compile_with_regex(pattern, is_anchored=True)
        for text in texts:
            matches = list(pattern.finditer(text))
            spans = [(match.span(), match.groups()) for match in matches]
            others = [(match.span(), match.groups()) for match in other.finditer(text)]
            assert spans == others, (pattern, text)
            for start in {0, *(match.start() for match in matches)}:
                match = pattern.match(text, start)
                at_start = anchored.match(text, start)
                assert (match is None) == (at_start is None), (pattern, text, start)
                if match is not None and at_start is not None:
                    assert match.span() == at_start.span(), (pattern, text, start)
                    assert match.groups() == at_start.groups(), (pattern, text, start)


def test_a_match_at_a_place_does_not_read_the_rest_of_the_text() -> None:
    pattern = Pattern(r"[ \t]*+\n[ \t]*+(a)")
    match = compile_with_regex(pattern, is_anchored=True).match
    plain = compile_with_regex(pattern, is_anchored=False).match

    def work(match: Any, length: int) -> float:
        text = "x" * length
        start = time.process_time()
        for _ in range(200):
            assert match(text) is None
        return time.process_time() - start

    assert match("\n a")[1] == "a"
    assert work(match, 1_000_000) < work(plain, 1_000_000) / 10


def test_a_pattern_is_compiled_at_its_first_use_and_keeps_its_flags() -> None:
    pattern = Pattern(r"(?:ab|a)++(c)", "i")
    with pytest.raises(AttributeError):
        object.__getattribute__(pattern, "match")
    match = pattern.match("xABac", 1)
    assert match is not None
    assert match.span(1) == (4, 5)
    assert pattern.match == object.__getattribute__(pattern, "match")
    assert not hasattr(pattern, "scanner")


def test_importing_the_output_package_compiles_no_pattern() -> None:
    code = """
import re, sys
compiled = []
compile_now = re.compile
def record(pattern, flags=0):
    if sys._getframe(1).f_globals["__name__"].startswith(("evaluator.output", "evaluator.patterns")):
        compiled.append(pattern)
    return compile_now(pattern, flags)
re.compile = record
import evaluator.output
assert not compiled, compiled
evaluator.output.parse_output("[1,]")
assert compiled or sys.version_info < (3, 11, 5)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_an_escaped_bracket_in_an_attribute_is_read_on_every_python() -> None:
    assert read_elements('<y k="&lt;v">a</y>').value == {"y": {"@k": "<v", "#text": "a"}}
