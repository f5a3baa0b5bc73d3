"""Each option of a batch is declared once: the Python call, the command line, the TOML file and the docs have it."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from evaluator import UsageError, run_batch
from evaluator.batch import BatchDefinition, BatchLimits, BatchOptions, Selection
from evaluator.batch.definition import definition_from
from evaluator.batch.engines import ENGINES
from evaluator.cli.batch import batch as command
from evaluator.cli.batch import session_options
from evaluator.cli.evaluator_options import read_flags
from evaluator.fields import Flag, fields_of, stored_fields
from evaluator.fields.listing import entries_of

DOCS = Path(__file__).parents[2] / "docs" / "howto"
OPTIONS = {each.name: each for each in fields(BatchOptions)}
# On the command line these are --resume FOLDER, --progress and Ctrl-C.
WITHOUT_FLAG = {"name", "select", "limits", "resume", "display", "stop"}


def test_the_python_call_has_every_option_with_its_default() -> None:
    parameters = dict(inspect.signature(run_batch).parameters)
    for name in ("templates", "rows", "evaluator"):
        del parameters[name]
    assert parameters.keys() == OPTIONS.keys()
    assert {each.kind for each in parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    assert (
        BatchOptions(**{name: each.default for name, each in parameters.items()}) == BatchOptions()
    )


def test_every_option_is_described() -> None:
    described = f"{inspect.getdoc(run_batch)} {inspect.getdoc(BatchOptions)}"
    names = set(re.findall(r"`(\w+)`", described))
    assert OPTIONS.keys() - names == set()


def test_the_command_line_has_every_option() -> None:
    entries = entries_of(BatchDefinition)
    flags = [entry.flag.name for entry in entries if entry.flag is not None]
    assert flags == [
        name for parameter in command.params for name in parameter.opts if name in flags
    ]
    assert len(set(flags)) == len(flags)
    with_flag = {name for entry in entries if entry.flag is not None for name in entry.path}
    assert OPTIONS.keys() - with_flag == WITHOUT_FLAG - {"select", "limits", "stop"}
    engine = fields_of(BatchOptions)["engine"].mark(Flag)
    assert engine is not None and engine.name == "--engine"
    assert fields_of(BatchOptions)["engine"].kind.words.choices == ENGINES


@pytest.mark.parametrize(
    ("flags", "option", "value"),
    [
        (("--limited", "failed"), "limited", "failed"),
        (("--epochs", "3"), "epochs", 3),
        (("--seed", "0", "--sample", "2"), "select", Selection(sample=2)),
        (("--stop-after", "0"), "limits", BatchLimits(stop_after=0)),
        (("--map", "question=q"), "inputs", {"question": "q"}),
        (("--unfinished", "ask"), "unfinished", "ask"),
        ((), "unfinished", "stop"),
        (("--retry-errors",), "retry_errors", True),
        (("--provider-batch-deadline", "6h"), "provider_batch_deadline", 21_600.0),
    ],
)
def test_a_flag_of_the_command_line_has_an_effect(
    flags: tuple[str, ...], option: str, value: Any
) -> None:
    words = ["--resume", "x", "--template", "t", "--rows", "r", *flags]
    context = command.make_context("batch", words, help_option_names=["-h", "--help"])
    table = read_flags(BatchDefinition, context.params)
    session = session_options(context.params)
    options = replace(definition_from(table).options, **session)
    assert getattr(options, option) == value


def test_a_definition_has_every_option_that_a_file_can_hold_and_stores_it() -> None:
    given = {
        "templates": ["a", "b"],
        "rows": "rows.jsonl",
        "name": "n",
        "inputs": {"a": "b"},
        "id": "i",
        "target": "t",
        "answers": "output",
        "shuffle_choices": 7,
        "empty": "error",
        "fewshot": {"rows": "dev.jsonl", "k": 5, "match": "subject"},
        "scorers": ["exact", {"type": "f1"}],
        "epochs": 2,
        "reducers": ["mean"],
        "models": ["m"],
        "handlers": ["h"],
        "select": {"limit": 3},
        "metadata": ["x"],
        "cluster": "x",
        "group_by": "x",
        "thresholds": ["errors <= 0"],
        "count_as_failed": ["tool_failure", "TASK_FAILURE"],
        "limited": "error",
        "decide": {"detect": 0.05, "baseline": "b", "like": "c", "stop_early": True},
        "limits": {"max_cost": 1.5},
        "provider_batch": True,
        "provider_batch_rest": "interactive",
        "provider_batch_deadline": 21600.0,
        "keep_provider_files": True,
        "output": "o",
        "task_files": "each",
        "cache": "c",
        "metrics": ["macro:by=x", {"type": "weighted", "weight": "x"}],
        "engine": "processes",
        "workers": 3,
        "library": ["l"],
        "roots": ["r"],
        "model_roles": {"grader": "g"},
    }
    assert given.keys() == stored_fields(BatchDefinition).keys()
    definition = definition_from(given)
    assert definition.to_dict() == given
    assert definition_from(json.loads(json.dumps(definition.to_dict()))) == definition
    assert definition_from(given, Path("/p")).to_dict() == given | {
        "rows": "/p/rows.jsonl",
        "fewshot": {"rows": "/p/dev.jsonl", "k": 5, "match": "subject"},
        "decide": {"detect": 0.05, "baseline": "/p/b", "like": "/p/c", "stop_early": True},
        "output": "/p/o",
        "cache": "/p/c",
        "library": ["/p/l"],
        "roots": ["/p/r"],
    }


def test_no_error_that_counts_as_failed_is_stored_too() -> None:
    options = BatchOptions(count_as_failed=["none"])
    assert options.count_as_failed == () and BatchOptions().count_as_failed == (
        "output_format_failure",
    )
    assert BatchOptions.from_table(options.to_dict()) == options


def test_the_example_in_the_module_is_a_definition() -> None:
    import evaluator.batch.definition as module

    example = (module.__doc__ or "").partition("\n\n")[2]
    assert definition_from(tomllib.loads(example)).options.limits.max_cost == 2.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": "three"}, "epochs is 'three', expected an integer, at least 1"),
        ({"epochs": True}, "epochs is True, expected an integer"),
        ({"models": ["a", "a"]}, "models names 'a' twice"),
        ({"models": 3}, "models is 3, expected a list of strings"),
        ({"inputs": "a"}, "inputs is 'a', expected a table"),
        ({"inputs": {"a": 3}}, "inputs.a is 3, expected a string"),
        ({"scorers": "exact"}, "scorers is 'exact', expected a list"),
        ({"cluster": " "}, "cluster is ' ', expected a string"),
        ({"select": {"limits": 1}}, "select.limits is unknown; did you mean"),
        ({"limits": {"max_costs": 1}}, "limits.max_costs is unknown; did you mean"),
        ({"limits": {"max_cost": 0}}, "limits.max_cost is 0, expected a number above 0"),
        ({"limits": {"max_cost": float("nan")}}, "limits.max_cost is nan, expected a number"),
        ({"count_as_failed": ["output_failure"]}, "output_format_failure"),
        ({"on_changed": "ask"}, "on_changed is 'ask', expected one of leave, run, keep"),
        ({"unfinished": "no"}, "unfinished is 'no', expected one of"),
        ({"engine": "slurm"}, "engine is 'slurm', expected one of local, processes, ray"),
        ({"workers": 0}, "workers is 0, expected an integer, at least 1"),
    ],
)
def test_an_invalid_value_is_refused_wherever_it_comes_from(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        BatchOptions(**given)


def test_values_are_stored_in_one_form() -> None:
    options = BatchOptions(
        models="m", select={"limit": 2}, limits={"max_tokens": 5}, metadata=["a"], scorers=[len]
    )  # pyright: ignore
    assert options.models == ("m",) and options.metadata == ("a",) and options.scorers == (len,)
    assert options.select == Selection(limit=2) and options.limits == BatchLimits(max_tokens=5)
    assert BatchOptions(select=None, limits=None) == BatchOptions()  # pyright: ignore[reportArgumentType]
