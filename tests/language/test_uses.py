"""What a text does with a value of a type that does not allow it is found before a run."""

from __future__ import annotations

from itertools import product

from jinja2 import Environment, nodes

from evaluator.errors import ExpressionError
from evaluator.language import functions, parsing
from evaluator.language.analysis import analyse, read_all
from evaluator.language.arguments import argument_error
from evaluator.language.filters import FILTERS
from evaluator.language.sandbox import evaluate_expression_sync
from evaluator.language.scopes import Scope
from evaluator.nodes import Expression, Span, Text
from tests.tables import each_case

VALUES = {
    "string": "hello",
    "integer": 3,
    "number": 1.5,
    "boolean": True,
    "array": ["a", "b"],
    "object": {"a": 1},
}
ARGUMENTS = {"batch": "(2)", "slice": "(2)", "replace": '("a", "b")', "groupby": '("a")'} | {
    "map": '("upper")',
    "selectattr": '("a")',
    "rejectattr": '("a")',
}
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "in", "~")
OTHERS = ("1", "2.5", '"a"', "[1]", "true", '{"a": 1}', "x")
METHODS = (
    "upper()",
    "split()",
    'count("a")',
    'index("a")',
    'get("a")',
    "items()",
    "keys()",
    "values()",
    'replace("a", "b")',
    "strip()",
    "join([])",
)
TESTS = ("even", "odd", "divisibleby(2)", "lower", "string", "in [1]", "number", "none", "lt(3)")
EXPRESSIONS = [
    *(f"x | {name}{ARGUMENTS.get(name, '')}" for name in FILTERS),
    *(f"x {operator} {other}" for operator in OPERATORS for other in OTHERS),
    *(f"{other} {operator} x" for operator in OPERATORS for other in OTHERS),
    *(f"x.{method}" for method in METHODS),
    *(f"x is {test}" for test in TESTS),
    *("-x", "+x", "not x", "x[0:1]", "1 < x < 4", "x < 3 < 4", "x[1 - 1]"),
]


def problems(expression: str, kind: str) -> list[str]:
    """What the operations of an expression say about `x`, a value of this type."""
    found = analyse(Expression(Text(expression, Span())))
    return [
        each.use.problem
        for each in found.references
        if each.use is not None and kind not in each.use.kinds
    ]


def evaluates(expression: str, value: object) -> bool:
    try:
        evaluate_expression_sync(Expression(Text(expression, Span())), Scope({"x": value}))
    except ExpressionError:
        return False
    return True


def test_what_can_be_evaluated_has_no_finding():
    for expression in EXPRESSIONS:
        for kind, value in VALUES.items():
            if problems(expression, kind):
                assert not evaluates(expression, value), (expression, kind)


GUARDED = """
x.upper() if x is string else x
x if x is not mapping else x.a
x is number and x + 1 > 0
x is not iterable or x | length
x is string and x != "" or x is boolean or x + 1
(x | sum if x is sequence and x is not string else 0) if x is iterable else -x
x[y] | default("")
x[y].a is defined
x[1:] | d("")
x[y] is undefined
"""


def test_what_a_text_asks_for_first_has_no_finding():
    for expression in GUARDED.strip().splitlines():
        for kind in VALUES:
            assert problems(expression, kind) == [], (expression, kind)


ASKED = [
    ("x.upper() if x is defined", "integer", "has no method `upper`"),
    ("x + 1 if x is not none else 0", "string", "`+` with a number does not take it"),
    ("x + 1 if y is number else 0", "string", "`+` with a number does not take it"),
    ("(x[y] | length) and x is string", "integer", "has no items"),
]


@each_case(("expression", "kind", "problem"), ASKED)
def test_what_a_text_does_not_ask_for_is_found(expression, kind, problem):
    assert problems(expression, kind) == [problem]


FOUND = [
    ("x | round", "string", "the filter `round` does not take it"),
    ("x | length", "integer", "the filter `length` does not take it"),
    ("x | items", "array", "the filter `items` does not take it"),
    ("x.upper()", "number", "has no method `upper`"),
    ("x.keys()", "string", "has no method `keys`"),
    ("x is even", "string", "the test `even` does not take it"),
    ("2 * 3 - x", "string", "`-` does not take it"),
    ("x + 1", "string", "`+` with a number does not take it"),
    ('"a" + x', "integer", "`+` with a text does not take it"),
    ("x > 1", "string", "`>` with a number does not take it"),
    ("1 <= x", "array", "`<=` with a number does not take it"),
    ("-x", "array", "`-` does not take it"),
    ("1 in x", "integer", "`in` cannot look into it"),
    ("x[1:2]", "integer", "has no items"),
]


@each_case(("expression", "kind", "problem"), FOUND)
def test_an_operation_on_a_value_of_another_type_is_found(expression, kind, problem):
    assert problems(expression, kind) == [problem]
    assert not evaluates(expression, VALUES[kind])


WRONG = [
    ("{{ x | join(1, 2, 3) }}", 8, "wrong-arity", "3 arguments are given"),
    ("{{ x | replace('a') }}", 8, "wrong-arity", "takes (old, new, count=None)"),
    ("{{ x | upper(lang='de') }}", 8, "wrong-arity", "takes no argument"),
    ("{{ x | default(1, 2, 3) }}", 8, "wrong-arity", "filter 'default'"),
    ("{{ x is divisibleby }}", 6, "wrong-arity", "takes (by), and no argument is given"),
    ("{{ x is defined(1) }}", 6, "wrong-arity", "takes no argument"),
    ("{{ x | map('uper') }}", 13, "unknown-filter", "did you mean `upper`?"),
    ("{{ x | select('od') }}", 16, "unknown-test", "did you mean `odd`?"),
    ("{{ x | rejectattr('a', 'od') }}", 25, "unknown-test", "did you mean `odd`?"),
    ("{{ x.uper() }}", 6, "unknown-method", "did you mean `upper` or"),
    ("{{ x.center(9) }}", 6, "unknown-method", "there is a filter: | center"),
    (
        "{{ x.strip(chars='a') }}",
        6,
        "wrong-arity",
        "takes (chars), not by name, and 1 argument is given",
    ),
    ("{{ x.upper(1) }}", 6, "wrong-arity", "method 'upper' takes no argument, and 1 argument"),
    ("{{ x.find() }}", 6, "wrong-arity", "takes (text, start, end), and no argument is given"),
    ("{{ x.removeprefix('a', 'b') }}", 6, "wrong-arity", "takes (text), and 2 arguments"),
    ("{{ x.split(1) }}", 6, "wrong-type", "argument 1 of method 'split' is integer, expected"),
    ("{{ x.strip(none) }}", 6, "wrong-type", "is null, expected a text"),
    ("{{ 'aa'.count(1) }}", 9, "wrong-type", "argument 1 of method 'count' is integer"),
    ("{% if false %}{{ x.lower(1) }}{% endif %}", 20, "wrong-arity", "method 'lower'"),
    ("{{ x.replace('a') }}", 6, "wrong-arity", "takes (old, new, count)"),
]


@each_case(("text", "column", "code", "message"), WRONG)
def test_arguments_that_never_fit_are_found(text, column, code, message):
    (error,) = read_all(Text(text, Span())).errors
    assert (error.code, error.diagnostic().span.column) == (code, column)
    assert message in str(error)


RIGHT = """
{{ x | join }} {{ x | join(", ", attribute="a") }} {{ x | default }} {{ x | map(attribute="a") }}
{{ x | map("replace", "a", "b") }} {{ x | select }} {{ x | selectattr("a", "gt", 1) }}
{{ x.count(1) }} {{ x.startswith(y, none) }} {{ x.replace("a", "b", 1.5) }} {{ x.split(none, 1) }}
{{ x.split() }} {{ x.replace("a", "b", 1) }} {{ x.join(*y) }} {{ x | replace(*y) }}
{% for i in x %}{{ loop.cycle("a", "b") }}{% endfor %} {{ x is divisibleby 3 }}
"""


def test_arguments_that_fit_have_no_finding():
    assert read_all(Text(RIGHT, Span())).errors == ()


LITERALS = ("'a'", "2", "1.5", "true", "none", "['a']", "y")
RECEIVERS = ("", "aab a", ["a", 1], {"a": 1})


def test_no_call_of_a_method_that_can_be_evaluated_is_refused(monkeypatch):
    """Every method with up to two arguments of each kind; `y` is a variable of any kind."""
    names = sorted({name for table in functions.METHODS.values() for name in table})
    calls = [
        f"x.{name}({', '.join(arguments)})"
        for name in names
        for count in range(3)
        for arguments in product(LITERALS, repeat=count)
    ]
    environment = Environment()
    trees = [next(environment.parse(f"{{{{ {call} }}}}").find_all(nodes.Call)) for call in calls]
    refused = [
        call for call, tree in zip(calls, trees, strict=True) if argument_error(tree) is not None
    ]
    assert 0.5 < len(refused) / len(calls) < 1
    monkeypatch.setattr(parsing, "argument_error", lambda node: None)
    scopes = [{"x": x, "y": y} for x in RECEIVERS for y in ("a", 1, None, ["a"])]
    assert [call for call in refused if any(evaluates_in(call, each) for each in scopes)] == []


def evaluates_in(expression: str, values: dict[str, object]) -> bool:
    try:
        evaluate_expression_sync(Expression(Text(expression, Span())), Scope(values))
    except ExpressionError:
        return False
    return True
