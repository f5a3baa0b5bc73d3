"""Hostile inputs cost bounded work: each is refused at a place, or its work grows in proportion to its size.

Work is counted in calls of functions, never in seconds. Each refused input has a control, which is smaller and accepted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from evaluator import TemplateLibrary
from evaluator.interpreter.plan import planned_steps
from evaluator.library.bounds import MAX_LINES, CallCounter

BACKSLASHES = "\\a"
# More than the 1,000 levels that Python's own recursion has.
CHAIN = 1_500
ATOMIC = '<task type="atomic"><description>d</description></task>'


def atomic(name: str, inside: str = "", attributes: str = "") -> str:
    return f'<task type="atomic" name="{name}" {attributes}><description>d</description>{inside}</task>'


def sequential(name: str, steps: str) -> str:
    return f'<task type="sequential" name="{name}"><description>d</description><steps>{steps}</steps></task>'


def inputs(count: int, nested: str = "") -> str:
    return (
        "<inputs>"
        + "".join(f'<input name="i{number}">{nested}</input>' for number in range(count))
        + "</inputs>"
    )


def library_of(*members: str) -> str:
    return f"<library>{''.join(members)}</library>"


def calls(count: int, target: Callable[[int], int | None], times: int = 1) -> str:
    """Templates t0, t1, …, of which each calls the target of its number `times` times."""
    members: list[str] = []
    for number in range(count):
        called = target(number)
        call = "" if called is None else f'<call template="t{called}"/>' * times
        members.append(sequential(f"t{number}", call or ATOMIC))
    return library_of(*members)


def loaded(tmp_path, xml: str) -> TemplateLibrary:
    (tmp_path / "hostile.xml").write_text(xml, encoding="utf-8")
    return TemplateLibrary.load(tmp_path, shipped=False)


def work(function: Callable[[], object]) -> int:
    """The number of functions that a call of `function` calls, in Python and in C."""
    count = 0

    def on_event(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


REFUSED = {
    # name: (xml by size, hostile size, size of the control, code of the finding)
    "attributes of one element": (
        lambda n: atomic("t", "", " ".join(f'a{i}="1"' for i in range(n - 1))),
        200_000,
        1,
        "too-many-attributes",
    ),
    "steps": (lambda n: sequential("t", ATOMIC * n), 15_000, 50, "too-many-elements"),
    "tasks of a library": (
        lambda n: library_of(*(atomic(f"t{i}") for i in range(n))),
        60_000,
        50,
        "too-many-elements",
    ),
    "empty tasks": (
        lambda n: library_of('<task type="atomic"/>' * n) if n > 1 else library_of(atomic("t")),
        99_000,
        1,
        "too-many-elements",
    ),
    "nested elements": (
        lambda n: (
            '<task type="sequential"><description>d</description><steps>' * n
            + ATOMIC
            + "</steps></task>" * n
        ),
        60,
        40,
        "too-deep",
    ),
    "words of a command": (
        lambda n: (
            f'<task type="script" name="t"><description>d</description><command>{"a " * n}</command></task>'
        ),
        1_000_000,
        100,
        "invalid-command",
    ),
    "escapes of a command": (
        lambda n: (
            f'<task type="script" name="t"><description>d</description><command>{BACKSLASHES * n}</command></task>'
        ),
        1_000_000,
        100,
        "invalid-command",
    ),
    "copies that refs make": (
        lambda n: library_of(
            *(
                sequential(f"t{i}", f'<task type="sequential" ref="t{i + 1}"/>' * 2)
                for i in range(n)
            ),
            sequential(f"t{n}", ATOMIC),
        ),
        40,
        5,
        "too-large",
    ),
    "nesting that refs make": (
        lambda n: library_of(
            *(sequential(f"t{i}", f'<task type="sequential" ref="t{i + 1}"/>') for i in range(n)),
            sequential(f"t{n}", ATOMIC),
        ),
        200,
        20,
        "too-deep",
    ),
    "a ring of refs": (
        lambda n: library_of(
            *(atomic(f"t{i}", "", f'ref="t{i + 1 if n < 50 else (i + 1) % n}"') for i in range(n)),
            atomic(f"t{n}"),
        ),
        1_500,
        20,
        "ref-cycle",
    ),
    "a ring of calls": (
        lambda n: calls(n, lambda i: i + 1 if i + 1 < n else (0 if n > 50 else None)),
        1_500,
        20,
        "endless-call",
    ),
    "undefined variables": (
        lambda n: atomic(
            "t",
            "<instructions>" + "".join(f"{{{{ i{i} }}}}" for i in range(1, n)) + "</instructions>",
        ),
        150,
        1,
        "too-many-errors",
    ),
    "variables of one text": (
        lambda n: atomic("t", f"<instructions>{'{{ i0 }}' * n}</instructions>{inputs(1)}"),
        45_000,
        100,
        "too-deep",
    ),
    "invalid tasks": (
        lambda n: library_of(
            atomic("ok"), *('<task type="atomic" q="1"/>' for _ in range(n if n > 1 else 0))
        ),
        500,
        1,
        "too-many-errors",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_input_beyond_a_bound_is_refused_at_a_place(tmp_path, name):
    xml, hostile, control, code = REFUSED[name]
    found = [d for d in loaded(tmp_path, xml(hostile)).errors if d.code == code]
    assert found and found[0].span.file is not None and found[0].span.line >= 1
    assert loaded(tmp_path, xml(control)).errors == ()


LINEAR: dict[str, Callable[[int], str]] = {
    "steps that read earlier steps": lambda n: sequential(
        "t",
        atomic("s0")
        + "".join(
            f'<task type="atomic" name="s{i}"><description>{{{{ steps.s{i - 1}.content }}}}</description></task>'
            for i in range(1, n)
        ),
    ),
    "steps that read the previous step": lambda n: sequential(
        "t",
        ATOMIC + '<task type="atomic"><description>{{ previous.content }}</description></task>' * n,
    ),
    "inputs of one task": lambda n: atomic("t", inputs(n)),
    "nested tasks of inputs": lambda n: atomic("t", inputs(n, ATOMIC)),
    "steps below many inputs": lambda n: (
        f'<task type="sequential" name="t"><description>d</description>{inputs(n)}<steps>'
        + '<task type="atomic"><description>{{ i0 }}</description></task>' * n
        + "</steps></task>"
    ),
    "a chain of calls": lambda n: calls(n, lambda i: i + 1 if i + 1 < n else None),
    "calls that double": lambda n: calls(n, lambda i: i + 1 if i + 1 < n else None, 2),
    "a ring of calls": lambda n: calls(n, lambda i: (i + 1) % n),
    "a ring of double calls": lambda n: calls(n, lambda i: (i + 1) % n, 2),
    "a chain of refs": lambda n: library_of(
        *(atomic(f"t{i}", "", f'ref="t{i + 1}"') for i in range(n)), atomic(f"t{n}")
    ),
    "a ring of refs": lambda n: library_of(
        *(atomic(f"t{i}", "", f'ref="t{(i + 1) % n}"') for i in range(n))
    ),
    "unknown templates": lambda n: library_of(
        *(sequential(f"t{i}", f'<call template="x{i}"/>') for i in range(n))
    ),
    "unknown steps": lambda n: sequential(
        "t",
        "".join(
            f'<task type="atomic" name="s{i}"><description>{{{{ steps.x{i} }}}}</description></task>'
            for i in range(n)
        ),
    ),
    "a text of references": lambda n: atomic(
        "t", "<instructions>" + "&amp;x" * 20 * n + "</instructions>"
    ),
    "a text of lines": lambda n: atomic("t", "<instructions>" + "x\n" * 20 * n + "</instructions>"),
    "cases of a cond": lambda n: sequential(
        "t",
        "<cond>"
        + "".join(f'<case test="{i} in steps">{ATOMIC}</case>' for i in range(n))
        + "</cond>",
    ),
    "examples": lambda n: atomic(
        "t", "<examples>" + "<example><output>x</output></example>" * n + "</examples>"
    ),
    "names given twice": lambda n: library_of(*(atomic("t") for _ in range(n))),
}


@pytest.mark.parametrize("name", LINEAR)
def test_the_work_of_a_load_grows_in_proportion_to_the_file(tmp_path, name):
    small, large = (
        work(lambda n=n: TemplateLibrary.load(_file(tmp_path, LINEAR[name](n)), shipped=False))
        for n in (60, 240)
    )
    assert large < 5.5 * small  # quadratic work would be 16 times as much


def _file(folder, xml: str):
    path = folder / "hostile.xml"
    path.write_text(xml, encoding="utf-8")
    return path


def test_the_measure_of_work_shows_quadratic_work():
    def quadratic(n: int) -> None:
        for i in range(n):
            for _ in range(n):
                abs(i)

    assert work(lambda: quadratic(80)) > 12 * work(lambda: quadratic(20))


def test_templates_that_call_each_other_twice_are_counted_once_each(tmp_path):
    library = loaded(tmp_path, calls(40, lambda i: i + 1 if i < 39 else None, 2))
    counter = CallCounter(library)
    found = counter.bound(library.get("t0").node)
    assert (found.min_calls, found.max_calls) == (2**39, 2**39)
    assert counter.counted < 40 * 5
    assert len(found.explanation.split("\n")) <= MAX_LINES
    assert "as above" in found.explanation
    assert planned_steps(library.get("t15").node, library, {}) == 2 * 2**24


def test_a_number_of_calls_beyond_all_bounds_is_not_computed(tmp_path):
    library = loaded(tmp_path, calls(200, lambda i: i + 1 if i < 199 else None, 20))
    found = CallCounter(library).bound(library.get("t0").node)
    assert (found.min_calls, found.max_calls) == (10**15, None)
    assert str(found) == "1,000,000,000,000,000 or more calls"


def test_a_chain_of_calls_does_not_recurse(tmp_path):
    library = loaded(tmp_path, calls(CHAIN, lambda i: i + 1 if i < CHAIN - 1 else None))
    assert library.errors == ()
    found = CallCounter(library).bound(library.get("t0").node)
    assert (found.min_calls, found.max_calls) == (1, 1)
    assert found.explanation.endswith("\n…")


def test_a_chain_of_refs_does_not_recurse(tmp_path):
    members = [atomic(f"t{i}", "", f'ref="t{i + 1}"') for i in range(CHAIN)]
    library = loaded(tmp_path, library_of(*members, atomic(f"t{CHAIN}", "<criteria>c</criteria>")))
    assert library.errors == ()
    assert library.get("t0").node.criteria.value == "c"
