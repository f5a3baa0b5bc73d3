"""The options of a run and of an Evaluator are declared once; signatures and command lines follow them."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import MISSING, fields
from typing import Any

from evaluator import Evaluator, TaskError
from evaluator.cli.evaluator_options import EvaluatorOptions
from evaluator.cli.run import run as run_command
from evaluator.interpreter.failures import failure
from evaluator.interpreter.frame import Run, RunOptions

# Options of a run that `evaluator run` does not have, each with the reason.
NOT_ON_THE_COMMAND_LINE = {
    "target": "an answer for the simulated model, for batches and tests",
    "epoch": "repetitions belong to `evaluator batch`",
    "ask_model": "a person at the terminal wants missing inputs to be extracted",
    "labels": "written by batches to find their task files",
    "shots": "few-shot examples belong to `evaluator batch`",
    "on_text": "the command streams to the terminal itself",
    "on_event": "the command shows the steps itself",
    "on_message": "transcripts of background tasks are written by their own process",
    "on_begin": "the command prints the task file at the end",
}
# Arguments of an Evaluator that are not taken to another process.
OF_ONE_PROCESS = {"tasks_dir", "cache", "notice", "tracer"}


def keywords_of(function: Any) -> dict[str, inspect.Parameter]:
    return {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def test_the_keyword_arguments_of_evaluate_are_the_options_of_a_run() -> None:
    declared = {field.name: (field.type, field.default) for field in fields(RunOptions)}
    keywords = keywords_of(Evaluator.evaluate)
    assert {name: (each.annotation, each.default) for name, each in keywords.items()} == declared
    assert list(keywords) == list(declared)
    assert MISSING not in [default for _, default in declared.values()]


def test_each_option_of_evaluate_and_of_evaluate_batch_reaches_the_run(
    make_evaluator: Any, monkeypatch: Any
) -> None:
    given: dict[str, Any] = {
        "model": "m",
        "handler": "offline",
        "model_roles": {"grader": "g"},
        "target": "t",
        "epoch": 7,
        "ask_model": False,
        "labels": {"a": "b"},
        "shots": (({"x": 1}, "y"),),
        "on_text": print,
        "on_event": print,
        "on_message": print,
        "on_begin": print,
    }
    assert list(given) == [field.name for field in fields(RunOptions)]
    options: list[RunOptions] = []

    async def record_run(run: Run) -> TaskError:
        options.append(run.options)
        return failure("execution_halted", "not run")

    monkeypatch.setattr("evaluator.interpreter.evaluator.record_run", record_run)
    evaluator = make_evaluator('<task name="t" type="atomic"><description>t</description></task>')

    async def evaluate() -> None:
        await evaluator.evaluate("t", **given)
        async for _ in evaluator.evaluate_batch("t", [{}], **given):
            pass
        await evaluator.evaluate("t")

    asyncio.run(evaluate())
    assert options[:2] == [RunOptions(**given)] * 2
    # The control: nothing is carried over to the next run.
    assert options[2] == RunOptions(handler="offline", model_roles={})


def test_the_run_command_has_each_option_of_a_run_or_says_why_not() -> None:
    on_the_command_line = {parameter.name for parameter in run_command.params}
    declared = {field.name for field in fields(RunOptions)}
    assert declared & on_the_command_line == declared - NOT_ON_THE_COMMAND_LINE.keys()
    assert not NOT_ON_THE_COMMAND_LINE.keys() & on_the_command_line


def test_the_run_command_has_every_option_that_makes_an_evaluator() -> None:
    assert {field.name for field in fields(EvaluatorOptions)} <= {
        parameter.name for parameter in run_command.params
    }


def test_an_evaluator_keeps_its_arguments_except_those_of_one_process(make_evaluator: Any) -> None:
    parameters = set(inspect.signature(Evaluator).parameters)
    assert set(make_evaluator().init_args) == parameters - OF_ONE_PROCESS


def test_an_evaluator_made_of_the_same_arguments_answers_the_same(
    make_evaluator: Any, tmp_path: Any
) -> None:
    first = make_evaluator(
        '<task name="t" type="atomic"><description>t</description></task>', script=lambda _: "yes"
    )
    second = Evaluator(tasks_dir=tmp_path / "other", **first.init_args)
    assert second.init_args == first.init_args
    assert first.evaluate_sync("t").content == second.evaluate_sync("t").content == "yes"


def test_what_limits_or_previews_an_evaluator_leaves_it_as_it_was(
    make_evaluator: Any, tmp_path: Any
) -> None:
    from evaluator.limits.rate_limiter import RateLimiter

    evaluator = make_evaluator(
        '<task name="t" type="atomic"><description>t</description></task>', model="mine"
    )
    before = evaluator.init_args, evaluator.services
    limiter = RateLimiter()
    limited = evaluator.with_limiter(limiter, tmp_path / "limited")
    evaluator.render("t")
    assert (evaluator.init_args, evaluator.services) == before
    assert (evaluator.limiter, limited.limiter, limited.model) == (None, limiter, "mine")
    assert limited.services.store.root == tmp_path / "limited"
