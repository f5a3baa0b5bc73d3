"""The references name everything that there is: elements, filters, error types, codes, limits of the Evaluator."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import get_args

import lxml.etree as etree
import pytest

import evaluator.batch
from evaluator import BatchResult, Evaluator, TaskError, TaskResult, Usage, run_batch
from evaluator.batch import (
    Batch,
    BatchLimits,
    BatchSummary,
    Failure,
    SampleResult,
    Score,
    Selection,
    SessionEnd,
    Snapshot,
    ThresholdResult,
)
from evaluator.batch.compare import Comparison, Side, compare
from evaluator.batch.scorers.builtin_scorer import TargetScorer
from evaluator.batch.scorers.scorer_registry import SCORERS
from evaluator.batch.statistics import Estimate, PairedDifference, Variance
from evaluator.batch.summary import (
    Accuracy,
    Amount,
    ConfusionMatrix,
    ErrorKind,
    GroupSummary,
    JudgeAgreement,
    Part,
    Percentiles,
    ReducedScore,
    ScorerSummary,
    Spending,
    VerdictCounts,
)
from evaluator.cli.main import EXIT_CONFIGURATION, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE
from evaluator.errors import ProviderErrorKind
from evaluator.errors.results import ErrorType, FailureReason, ResourceName
from evaluator.interpreter.background import BACKGROUND_TOOLS
from evaluator.interpreter.context import SUBTASK_DEFAULT, ContextPolicy
from evaluator.interpreter.toolset import TASK_TOOLS
from evaluator.language import functions
from evaluator.language.filters import FILTER_NAMES
from evaluator.language.operators import TEST_NAMES
from evaluator.nodes import ContextSettings, Task
from evaluator.nodes.declare import FIELDS, OPERATORS
from evaluator.tools import builtin_tools
from evaluator.tools.anthropic import text_editor_tool

ROOT = Path(__file__).parents[2]
CODE = ("evaluator", "tests", "docs", "bench")
_XSD = "{http://www.w3.org/2001/XMLSchema}"


def section(page: str, heading: str = "") -> str:
    """The text of a page, or of one section with the sections below it."""
    text = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    if not heading:
        return text
    level = heading.partition(" ")[0]
    found = re.search(
        rf"^{heading}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", text, re.DOTALL | re.MULTILINE
    )
    assert found, f"docs/reference/{page} has no section {heading}"
    return found[1]


def words_in(text: str) -> set[str]:
    """Every word that stands in backticks in a text, those of fences included."""
    quoted = re.findall(r"`([^`\n]+)`", text) + re.findall(
        r"^```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    return {word for piece in quoted for word in re.findall(r"[\w-]+", piece)}


def words(page: str) -> set[str]:
    return words_in(section(page))


def first_cells(text: str) -> set[str]:
    """The words in backticks in the first cells of tables."""
    return words_in("\n".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)))


@pytest.mark.parametrize(
    ("schema", "page"), [("task.xsd", "templates.md"), ("handler.xsd", "handlers.md")]
)
def test_every_element_attribute_and_choice_of_a_schema_is_in_its_reference(
    schema: str, page: str
) -> None:
    tree = etree.parse(ROOT / "schemas" / schema)
    declared = {
        found.get("name")
        for tag in ("element", "attribute")
        for found in tree.iter(_XSD + tag)
        if found.get("name")
    }
    declared |= {
        word
        for found in tree.iter(_XSD + "enumeration")
        for word in re.findall(r"\w+", found.get("value"))
    }
    assert len(declared) > 20
    # Filters and tests have names of elements too.
    text = section(page).replace(
        section(page, "### Expressions") if page == "templates.md" else "", ""
    )
    missing = declared - words_in(text)
    assert not missing, f"describe them in docs/reference/{page}, outside the section Expressions"


@pytest.mark.parametrize(
    ("start", "names", "module"),
    [
        ("Filters: ", FILTER_NAMES, "filters"),
        # Other spellings of tests that are listed.
        ("Tests after `is`: ", TEST_NAMES - {"equalto", "lessthan", "greaterthan"}, "predicates"),
        ("Methods of text: ", {*functions.OF_STRING}, "methods"),
        ("of lists ", {*functions.OF_LIST}, "methods"),
        ("of objects ", {*functions.OF_MAPPING}, "methods"),
        ("of `loop` ", {*functions.OF_LOOP}, "methods"),
    ],
)
def test_every_filter_test_and_method_is_in_the_reference(
    start: str, names: set[str], module: str
) -> None:
    text = section("templates.md", "### Expressions")
    listed = words_in(
        text[text.index(start) :]
        .partition("\n\n")[0]
        .removeprefix("Tests after `is`")
        .partition(";")[0]
    )
    wanted = {name for name in names if name.isidentifier()}
    hint = f"in docs/reference/templates.md, section Expressions, after {start!r}"
    assert wanted - listed == set(), f"list them {hint}"
    assert listed - wanted - {"loop"} == set(), (
        f"evaluator/language/{module}.py does not have them; remove them {hint}"
    )


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_element_attribute_and_bound_name_of_an_operator_is_in_its_section(
    operator: str,
) -> None:
    common = {field.name for field in FIELDS[Task]}
    own = [field for field in FIELDS[OPERATORS[operator]] if field.name not in common]
    names = {
        name
        for field in own
        for name in (field.element, field.attribute, *(field.binds or {}))
        if name
    }
    text = section("templates.md", f"### {operator}")
    missing = names - words_in(text)
    assert not missing, "write it again: python docs/generate_templates.py"


def test_every_operator_is_among_the_types_of_a_task() -> None:
    (row,) = re.findall(r"^\| `type` \|.*", section("templates.md", "## Tasks"), re.MULTILINE)
    assert set(OPERATORS) <= words_in(row), "write it again: python docs/generate_templates.py"


def test_every_scorer_has_a_row_in_the_reference() -> None:
    missing = set(SCORERS) - first_cells(section("scorers.md", "## Available scorers"))
    assert not missing, (
        "add a row for each to the table in docs/reference/scorers.md, section Available scorers"
    )


def test_every_argument_of_a_scorer_is_in_its_row() -> None:
    rows = dict(
        re.findall(
            r"^\| `(\w+)` \|(.*)", section("scorers.md", "## Available scorers"), re.MULTILINE
        )
    )
    missing = {
        f"{name}: {argument}"
        for name, scorer in SCORERS.items()
        if "the same" not in rows[name]
        for argument, annotation in vars(scorer)["__annotations__"].items()
        if "ClassVar" not in str(annotation) and argument not in words_in(rows[name])
    }
    assert not missing, (
        "list it in docs/reference/scorers.md, section Available scorers, column `arguments`"
    )


def test_every_scorer_that_takes_several_targets_is_listed() -> None:
    text = section("scorers.md", "## Available scorers")
    listed = words_in(text[text.index("A target may be a list") :].partition("\n\n")[0])
    missing = {
        name for name, scorer in SCORERS.items() if issubclass(scorer, TargetScorer)
    } - listed
    assert not missing, (
        "list it in docs/reference/scorers.md, section Available scorers, after 'A target may be a list'"
    )


def test_every_tool_has_a_row_in_the_reference() -> None:
    tools = {*builtin_tools().names(), *TASK_TOOLS, *BACKGROUND_TOOLS}
    missing = tools - first_cells(section("handlers.md", "## Tools"))
    assert not missing, (
        "add a row for each to the table in docs/reference/handlers.md, section Tools"
    )


def test_the_table_of_tools_has_the_policy_of_each() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \|.*\| (\w+)[^|]*\|$", section("handlers.md", "## Tools"), re.MULTILINE
    )
    policies = {tool.name: tool.policy for tool in (*builtin_tools(), text_editor_tool())}
    wrong = {name: policy for name, policy in policies.items() if (name, policy) not in rows}
    assert not wrong, "correct the column `policy` in docs/reference/handlers.md, section Tools"


def test_the_table_of_context_defaults_is_the_one_that_holds() -> None:
    text = section("templates.md", "## Context")

    def row(policy: ContextPolicy | ContextSettings) -> str:
        return f"{policy.inherit_context} | {str(policy.accumulate_data).lower()} | {policy.fresh_context} |"

    defaults = {name: operator.default_context for name, operator in OPERATORS.items()}
    missing = [
        line
        for name, policy in defaults.items()
        if (line := f"| {name} | {row(policy)}") not in text
    ]
    assert not missing, "write it again: python docs/generate_templates.py"
    assert f"| a subtask, whatever its type | {row(SUBTASK_DEFAULT)}" in text
    assert {policy.accumulation_format for policy in defaults.values()} == {"notes_only"}


def test_every_error_type_reason_resource_and_kind_is_explained() -> None:
    names = {
        *get_args(ErrorType),
        *get_args(FailureReason),
        *get_args(ResourceName),
        *get_args(ProviderErrorKind),
    }
    assert names - words("errors.md") == set()


_RAISED = re.compile(
    r"""(?:(?:Diagnostic|Doubt)\(\s*["'](?:error|warning)["'],|\b_?(?:error|warn|warning|report|refusal)\(|BadSchema\()"""
    r"""\s*["']([a-z]+(?:-[a-z]+)*)["'],"""
)
_FAULT = re.compile(r"""["']([a-z]+(?:-[a-z]+)+)["'](?:,\s*forbidden=True)?,?\s*\)""")


def codes() -> dict[str, str]:
    """The codes of findings in the source, each with a file that gives it."""
    found: dict[str, str] = {}
    for file in sorted((ROOT / "evaluator").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        given = _RAISED.findall(text)
        if re.search(r"\b(?:LocatedError|ExpressionError|SandboxError)\(", text):
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
    explained = set(
        re.findall(
            r"`([a-z-]+)`", (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
        )
    )
    assert {code: file for code, file in given.items() if code not in explained} == {}


def test_every_argument_and_field_of_the_python_interface_is_listed() -> None:
    listed = words("../howto/use-from-python.md")
    arguments = {
        *inspect.signature(Evaluator).parameters,
        *inspect.signature(Evaluator.evaluate).parameters,
    }
    arguments -= {"self"}
    fields = {
        name for record in (TaskResult, TaskError, Usage) for name in record.__dataclass_fields__
    }
    assert (arguments | fields) - listed == set()


def test_every_argument_and_field_of_a_batch_is_listed() -> None:
    arguments = {*inspect.signature(run_batch).parameters, *inspect.signature(compare).parameters}
    records = (
        Accuracy,
        Amount,
        Batch,
        BatchLimits,
        BatchResult,
        BatchSummary,
        Comparison,
        ConfusionMatrix,
        VerdictCounts,
        PairedDifference,
        SessionEnd,
        ErrorKind,
        Estimate,
        Failure,
        ThresholdResult,
        GroupSummary,
        JudgeAgreement,
        Part,
        Percentiles,
        ReducedScore,
        SampleResult,
        Score,
        ScorerSummary,
        Selection,
        Side,
        Snapshot,
        Spending,
        Variance,
    )
    fields = {name for record in records for name in record.__dataclass_fields__}
    read = {
        name
        for record in records
        for name, value in vars(record).items()
        if isinstance(value, property)
    }
    listed = words("../howto/batches-in-python.md") | words("../howto/run-a-batch.md")
    assert (arguments | fields | read) - listed == set()


def test_every_public_name_of_batches_is_listed() -> None:
    assert set(evaluator.batch.__all__) - words("../howto/batches-in-python.md") == set()


def test_the_exit_codes_are_those_of_the_command_line() -> None:
    text = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    for code in (0, EXIT_FAILED, EXIT_USAGE, EXIT_CONFIGURATION, EXIT_INTERRUPTED):
        assert f"\n| {code} |" in text


@pytest.mark.parametrize("page", ["AGENTS.md", "docs/explanation/architecture.md"])
def test_every_path_that_a_page_for_developers_names_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = {
        path
        for quoted in re.findall(r"`([^`\n]+)`", text)
        for path in re.findall(r"[\w./-]+/[\w./-]*", quoted)
    }
    assert len(named) >= 5
    missing = {
        path for path in named if not (ROOT / path).exists() and not path.startswith(".venv/")
    }
    assert missing == set()
    modules = {path.name for part in CODE for path in (ROOT / part).rglob("*.py")}
    named = set(re.findall(r"`(\w+\.py)`", text))
    assert named - modules == set(), "no module has this name"


def test_every_package_is_in_the_architecture_in_the_order_of_imports() -> None:
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", text, flags=re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"\w+", row)]
    packages = {path.parent.name for path in (ROOT / "evaluator").glob("*/__init__.py")}
    packages |= {path.stem for path in (ROOT / "evaluator").glob("[a-z]*.py")} - {"lazy_names"}
    assert sorted(listed) == sorted(packages)
    contract = (ROOT / ".importlinter").read_text(encoding="utf-8")
    contract = contract.partition("[importlinter:contract:acyclic]")[0]
    # On one line of the contract, two layers have no order.
    layers = [re.findall(r"evaluator\.(\w+)", line) for line in contract.splitlines()]
    height = {name: -number for number, names in enumerate(layers) for name in names}
    assert set(height) == packages
    heights = [height[name] for name in listed]
    assert heights == sorted(heights)


def test_the_tested_versions_of_python_are_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    versions = [
        classifier.rpartition(" ")[2]
        for classifier in project["project"]["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.[0-9]+", classifier)
    ]
    *others, last = versions
    assert project["project"]["requires-python"] == f">={versions[0]}"
    assert project["tool"]["pyright"]["pythonVersion"] == versions[0]
    assert project["tool"]["ruff"]["target-version"] == f"py{versions[0].replace('.', '')}"
    assert f"Python {versions[0]} to {last}" in (ROOT / "docs" / "ten-minutes.md").read_text()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Python {versions[0]} to {last}" in readme
    assert f"Python {', '.join(others)} or {last} and make" in readme
    assert f"tested with {', '.join(others)} and {last}" in (ROOT / ".ci" / "run").read_text()
