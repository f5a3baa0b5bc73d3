"""The exception tree in the docstring is the tree of the classes, and every exception can be pickled."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
import re

import pytest

import evaluator
from evaluator import EvaluatorError, Span, TaskError, TaskFailed, errors
from evaluator.batch.engines.pool import ClusterLost
from evaluator.batch.rows.object_rows import RowError

PROGRAMS = ("evaluator.__main__", "evaluator.processes.launcher", "evaluator.tools.searcher")


def all_classes():
    """Every subclass of EvaluatorError in the package with the class above it."""
    for module in pkgutil.walk_packages(evaluator.__path__, "evaluator."):
        if module.name not in PROGRAMS and "export.inspect" not in module.name:
            importlib.import_module(module.name)
    found = {EvaluatorError: None}
    waiting = [EvaluatorError]
    while waiting:
        above = waiting.pop()
        for below in above.__subclasses__():
            if below.__module__.startswith("evaluator."):
                found[below] = above
                waiting.append(below)
    return found


def documented():
    """Name and name above it, by the lines and their indentation in the docstring."""
    above, tree = [], {}
    for line in errors.__doc__.splitlines():
        found = re.match(r"    ((?:│   |    )*(?:[├└]── )?)(\w+)  ", line)
        if found:
            depth = len(found[1]) // 4
            del above[depth:]
            tree[found[2]] = above[-1] if above else None
            above.append(found[2])
    return tree


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    classes = {each.__name__: above and above.__name__ for each, above in all_classes().items()}
    assert documented() == classes


SPAN = Span("f.xml", 3, 4)
MADE = [
    errors.UsageError("what is wrong"),
    errors.MissingExtra("ray", "ray"),
    errors.TemplateError([errors.Diagnostic("error", "some-code", "what", SPAN, "do this")]),
    errors.ExpressionError("what", SPAN, "wrong-arity"),
    errors.SandboxError("what", SPAN),
    errors.CorruptRecord("TASK-1.md", 3, 17, "what"),
    errors.StepChanged("root/step", "what", "one", "two"),
    errors.RecordIncomplete("root/step"),
    errors.StepUnfinished("root/step", "tool", "was begun", can_tell=False),
    errors.ProviderError(
        "what", kind="server", status=500, retryable=True, retry_after_s=1.5, partial="so far"
    ),
    errors.ToolError("what", retryable=False),
    errors.LimitReached("cost", 2.0, 1.0, "too much", "so far"),
    errors.CallRejected("cost", 2.0, 1.0, "too much"),
    errors.CallParked(),
    RowError("what", source="rows.jsonl", line=2, id="a"),
    ClusterLost("no node is left"),
    TaskFailed(TaskError("TASK_FAILURE", "what")),
]


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_exception_is_the_same_after_pickling_and_copying(error, again):
    other = again(error)
    assert type(other) is type(error)
    assert (str(other), other.args, vars(other)) == (str(error), error.args, vars(error))


def test_every_exception_with_a_constructor_of_its_own_is_among_those_pickled():
    own = {each for each in all_classes() if "__init__" in vars(each)}
    assert own <= {type(error) for error in MADE}
