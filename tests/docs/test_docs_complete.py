"""The references name everything that there is: elements, filters, error types, codes, limits of the Evaluator."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import get_args

import lxml.etree as etree
import pytest

import evaluator.batch
from evaluator import Evaluator, TaskError, TaskResult, Usage
from evaluator.batch import (
    Batch,
    BatchLimits,
    BatchResult,
    BatchSummary,
    Ended,
    Failure,
    GateResult,
    SampleResult,
    Score,
    Selection,
    Snapshot,
)
from evaluator.batch.compare import Comparison, Side, compare
from evaluator.batch.statistics import Difference, Estimate, Variance
from evaluator.batch.summary import (
    Accuracy,
    Amount,
    Confusion,
    Counts,
    ErrorKind,
    GroupSummary,
    Judges,
    Part,
    Percentiles,
    Reduced,
    ScorerSummary,
    Spending,
)
from evaluator.binding import methods
from evaluator.cli.main import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from evaluator.errors import ProviderErrorKind
from evaluator.interpreter.context import DEFAULTS, SUBTASK_DEFAULT, ContextPolicy
from evaluator.library.syntax import FILTERS, TESTS
from evaluator.results import ErrorType, FailureReason, ResourceName

ROOT = Path(__file__).parents[2]
_XSD = "{http://www.w3.org/2001/XMLSchema}"


def words(page: str) -> set[str]:
    """Every word that stands in backticks on a page, those of fences included."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    quoted = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return {word for piece in quoted for word in re.findall(r"[\w-]+", piece)}


@pytest.mark.parametrize(("schema", "page"), [("task.xsd", "templates.md"), ("handler.xsd", "handlers.md")])
def test_every_element_attribute_and_choice_of_a_schema_is_in_its_reference(schema: str, page: str) -> None:
    tree = etree.parse(ROOT / "schemas" / schema)
    declared = {
        found.get("name") for tag in ("element", "attribute") for found in tree.iter(_XSD + tag) if found.get("name")
    }
    declared |= {word for found in tree.iter(_XSD + "enumeration") for word in re.findall(r"\w+", found.get("value"))}
    assert len(declared) > 20
    assert declared - words(page) == set()


def test_every_filter_test_and_method_is_in_the_reference() -> None:
    names = {*FILTERS, *TESTS, *methods.OF_STRING, *methods.OF_LIST, *methods.OF_MAPPING, *methods.OF_LOOP}
    # Other spellings of tests that are listed.
    names -= {"equalto", "lessthan", "greaterthan", "lt", "le", "gt", "ge", "ne", "eq"}
    assert {name for name in names if name.isidentifier()} - words("templates.md") == set()


def test_the_table_of_context_defaults_is_the_one_that_holds() -> None:
    text = (ROOT / "docs" / "templates.md").read_text(encoding="utf-8")

    def row(policy: ContextPolicy) -> str:
        return f"{policy.inherit_context} | {str(policy.accumulate_data).lower()} | {policy.fresh_context} |"

    for operator, policy in DEFAULTS.items():
        assert f"| {operator} | {row(policy)}" in text
    assert f"| a subtask, whatever its type | {row(SUBTASK_DEFAULT)}" in text
    assert {policy.accumulation_format for policy in DEFAULTS.values()} == {"notes_only"}


def test_every_error_type_reason_resource_and_kind_is_explained() -> None:
    names = {
        *get_args(ErrorType),
        *get_args(FailureReason),
        *get_args(ResourceName),
        *get_args(ProviderErrorKind),
    }
    assert names - words("errors.md") == set()


_RAISED = re.compile(
    r"""(?:Diagnostic\(\s*["'](?:error|warning)["'],|\b_?(?:error|warn|warning|report|refusal)\(|BadSchema\()"""
    r"""\s*["']([a-z]+(?:-[a-z]+)*)["'],"""
)
_FAULT = re.compile(r"""["']([a-z]+(?:-[a-z]+)+)["'](?:, True)?\s*\)""")


def codes() -> dict[str, str]:
    """The codes of findings in the source, each with a file that gives it."""
    found: dict[str, str] = {}
    for file in sorted((ROOT / "evaluator").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        given = _RAISED.findall(text)
        if re.search(r"\b(?:Fault|ExpressionError|SandboxError)\(", text):
            given += _FAULT.findall(text)
        found.update(dict.fromkeys(given, file.name))
    return found


def test_every_code_of_a_finding_is_explained() -> None:
    given = codes()
    assert {
        "undefined-variable",
        "unused-input",
        "not-well-formed",
        "too-long",
        "missing-input",
    } <= given.keys()
    explained = set(re.findall(r"`([a-z-]+)`", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")))
    assert {code: file for code, file in given.items() if code not in explained} == {}


def test_every_argument_and_field_of_the_python_interface_is_listed() -> None:
    listed = words("python.md")
    arguments = {*inspect.signature(Evaluator).parameters, *inspect.signature(Evaluator.evaluate).parameters}
    arguments -= {"self"}
    fields = {name for record in (TaskResult, TaskError, Usage) for name in record.__dataclass_fields__}
    assert (arguments | fields) - listed == set()


def test_every_argument_and_field_of_a_batch_is_listed() -> None:
    arguments = {*inspect.signature(Evaluator.batch).parameters, *inspect.signature(compare).parameters} - {"self"}
    records = (
        Accuracy, Amount, Batch, BatchLimits, BatchResult, BatchSummary, Comparison, Confusion, Counts, Difference,
        Ended, ErrorKind, Estimate, Failure, GateResult, GroupSummary, Judges, Part, Percentiles, Reduced,
        SampleResult, Score, ScorerSummary, Selection, Side, Snapshot, Spending, Variance,
    )  # fmt: skip
    fields = {name for record in records for name in record.__dataclass_fields__}
    read = {name for record in records for name, value in vars(record).items() if isinstance(value, property)}
    assert (arguments | fields | read) - words("batch-python.md") == set()


def test_every_public_name_of_batches_is_listed() -> None:
    assert set(evaluator.batch.__all__) - words("batch-python.md") == set()


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    for code in (0, EXIT_FAILED, EXIT_USAGE, EXIT_CONFIGURATION, EXIT_INTERRUPTED):
        assert f"\n| {code} |" in text
