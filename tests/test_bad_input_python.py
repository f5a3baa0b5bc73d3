"""Python callers that pass what does not fit: an error of ours that says what was expected, never a crash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evaluator import (
    ConfigurationError,
    Evaluator,
    RecordError,
    SimulatedBackend,
    TaskError,
    TaskStore,
    TemplateLibrary,
    UsageError,
    parse_output,
    run_batch_sync,
)

ECHO = """<task name="echo" type="atomic"><description>d</description>
<inputs><input name="t"/></inputs><instructions>{{ t }}</instructions></task>"""


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "object is not plain data"),
        (b"x", "bytes is not plain data"),
        ({1, 2}, "set is not plain data"),
        (cyclic(), "contains itself"),
        (deep(), "nested more than"),
        ({1: 2}, "key 1"),
        (10**5000, "digits"),
        (float("nan"), "inputs.t is nan, which is not a JSON value"),
        ({"a": [1, float("-inf")]}, "inputs.t.a[1] is -inf, which is not a JSON value"),
    ],
    ids=[
        "an object",
        "bytes",
        "a set",
        "a cycle",
        "100,000 levels",
        "a key that is no text",
        "a huge number",
        "NaN",
        "infinity within a value",
    ],
)
def test_a_value_that_is_not_plain_data_is_an_error(
    value: Any, says: str, make_evaluator: Any
) -> None:
    error = make_evaluator(ECHO).evaluate_sync("echo", {"t": value})
    assert isinstance(error, TaskError)
    assert error.reason == "input_validation_failure"
    assert says in error.message
    assert len(error.message) < 1000


@pytest.mark.parametrize("folder", ["a" * 300], ids=["300 characters"])
def test_a_task_folder_that_no_system_can_have_is_an_error(
    folder: str, make_evaluator: Any, tmp_path: Path
) -> None:
    error = make_evaluator(ECHO, tasks_dir=tmp_path / folder).evaluate_sync("echo", {"t": "x"})
    assert isinstance(error, TaskError)
    assert error.reason == "execution_halted"
    assert "choose another folder" in error.message


WRONG_CALLS: list[tuple[Callable[[Evaluator], Any], type[Exception], str]] = [
    (lambda e: e.evaluate_sync(None), UsageError, "expected text or a node"),  # type: ignore[arg-type]
    (lambda e: e.evaluate_sync("echo", ["t"]), UsageError, "expected a mapping"),  # type: ignore[arg-type]
    (
        lambda e: e.evaluate_batch("echo", [], concurrency=0),
        UsageError,
        "concurrency is 0, expected an integer, at least 1",
    ),
    (lambda e: Evaluator(e.library, "nope"), ConfigurationError, "there are: "),
    (lambda e: Evaluator(e.library, "offline", roots="data"), UsageError, "list of folders"),
    (
        lambda e: Evaluator(e.library, "offline", roots=["nowhere"]),
        ConfigurationError,
        "'nowhere' is not a folder",
    ),
    (lambda e: e.library.match(""), UsageError, "empty"),
    (lambda e: e.library.match("x", limit=0), UsageError, "at least 1"),
    (lambda e: e.library.get("ecko"), UsageError, "echo"),
    (lambda e: TemplateLibrary.load("nowhere"), UsageError, "'nowhere'"),
    (lambda e: TemplateLibrary.load(None), UsageError, "templates is a NoneType, expected a path"),  # type: ignore[arg-type]
    (lambda e: TemplateLibrary.load("\ud800"), UsageError, "a character that no path can have"),
    (lambda e: e.library.add(None), UsageError, "xml_text is a NoneType"),  # type: ignore[arg-type]
    (lambda e: e.library.get(None), UsageError, "name is a NoneType"),  # type: ignore[arg-type]
    (lambda e: e.library.match(None), UsageError, "request is a NoneType"),  # type: ignore[arg-type]
    (lambda e: e.library.match("x", limit="a"), UsageError, "limit is 'a'"),  # type: ignore[arg-type]
    (lambda e: e.library.match("x", limit=True), UsageError, "limit is True"),
    (lambda e: Evaluator(e.library, max_depth=True), UsageError, "max_depth is True"),
    (lambda e: e.evaluate_batch("echo", [], concurrency=True), UsageError, "concurrency is True"),
    (lambda e: SimulatedBackend(script="yes"), ConfigurationError, "script is a string"),
    (lambda e: e.evaluate_batch("echo", None), UsageError, "rows is a NoneType"),  # type: ignore[arg-type]
    (lambda e: e.evaluate_batch("echo", [], concurrency="a"), UsageError, "concurrency is 'a'"),  # type: ignore[arg-type]
    (lambda e: Evaluator(e.library, "offline", roots=3), UsageError, "roots is an int"),  # type: ignore[arg-type]
    (lambda e: Evaluator(e.library, "offline", tools=3), UsageError, "tools is an int"),  # type: ignore[arg-type]
    (lambda e: Evaluator(e.library, 3), UsageError, "handler is an int"),  # type: ignore[arg-type]
    (lambda e: Evaluator(e.library, "offline", sandbox=3), UsageError, "sandbox is an int"),  # type: ignore[arg-type]
    (lambda e: Evaluator(e.library, "offline", trust="no"), UsageError, "trust is a str"),  # type: ignore[arg-type]
    (lambda e: Evaluator(e.library, "offline", profiles=3), UsageError, "profiles is an int"),  # type: ignore[arg-type]
    (lambda e: Evaluator(e.library, model_roles=3), UsageError, "model_roles is an int"),  # type: ignore[arg-type]
    (lambda e: Evaluator(e.library, "offline", memory=3), UsageError, "memory is an int"),  # type: ignore[arg-type]
    (lambda e: Evaluator(e.library, "offline", asker=print), UsageError, "asker is a builtin"),  # type: ignore[arg-type]
    (lambda e: Evaluator(e.library, "offline", cache=3), UsageError, "cache is an int"),  # type: ignore[arg-type]
    (lambda e: run_batch_sync("echo", [{"t": 1}], evaluator=3), UsageError, "evaluator is an int"),  # type: ignore[arg-type]
    (
        lambda e: run_batch_sync("echo", [{"t": 1}], evaluator=e, engine=3),
        UsageError,
        "engine is 3, expected one of local, processes, ray or an Engine",
    ),  # type: ignore[arg-type]
    (lambda e: run_batch_sync("echo", [{"t": 1}], evaluator=e, cache=3), UsageError, "cache is 3"),  # type: ignore[arg-type]
    (
        lambda e: run_batch_sync("echo", {}, evaluator=e),
        UsageError,
        "several sets of rows; give a list",
    ),
    (lambda e: e.library.get("x" * 10_000), UsageError, "xxxxx…'; 1 template is loaded"),
    (
        lambda e: Evaluator(e.library, "offline", tasks_dir="\ud800"),
        UsageError,
        "task files is '\\ud800'",
    ),
    (lambda e: TaskStore("a\x00b"), UsageError, "task files is 'a\\x00b', which has a null byte"),
    (
        lambda e: run_batch_sync("echo", [{"t": 1}], evaluator=e, output="a\x00b"),
        UsageError,
        "output is 'a\\x00b'",
    ),
    (
        lambda e: run_batch_sync("echo", [{"t": 1}], evaluator=e, output="\ud800"),
        UsageError,
        "no path can have",
    ),
    (
        lambda e: run_batch_sync("echo", [{"t": 1}], evaluator=e, output="a" * 300),
        RecordError,
        "choose another folder",
    ),
    (lambda e: parse_output(None), UsageError, "text is a NoneType"),  # type: ignore[arg-type]
    (lambda e: TemplateLibrary.load("a\x00b"), UsageError, "null byte"),
    (lambda e: TaskStore("nowhere").read("abc"), UsageError, "whole number"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "kind", "says"), WRONG_CALLS, ids=[w[2] for w in WRONG_CALLS])
def test_a_wrong_call_raises_an_error_of_ours(
    call: Callable[[Evaluator], Any], kind: type[Exception], says: str, make_evaluator: Any
) -> None:
    with pytest.raises(kind) as raised:
        call(make_evaluator(ECHO))
    assert says in str(raised.value)


class Raising:
    """A backend of a caller's own that fails in its own way."""

    name = "raising"

    def __init__(self, fault: Callable[[], Any]) -> None:
        self.fault = fault

    async def complete(self, request: Any, *, on_text: Any = None) -> Any:
        return self.fault()

    async def aclose(self) -> None:
        pass


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def endless() -> Any:
    return endless()


@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (raising(ZeroDivisionError("mine")), "ZeroDivisionError: mine"),
        (endless, "RecursionError"),
        (raising(MemoryError()), "MemoryError"),
        (raising(TimeoutError("late")), "TimeoutError: late"),
    ],
    ids=["an exception", "a recursion", "no memory", "a timeout of its own"],
)
def test_a_backend_that_breaks_its_contract_becomes_an_error_with_its_cause(
    fault: Callable[[], Any], name: str, make_evaluator: Any, tmp_path: Path
) -> None:
    error = make_evaluator(ECHO, backend=Raising(fault)).evaluate_sync("echo", {"t": "x"})
    assert isinstance(error, TaskError)
    assert error.reason == "unexpected_error"
    assert name in error.message
    assert error.cause is not None
    assert TaskStore(tmp_path / "tasks").read(1).status == "failed"


@pytest.mark.parametrize(("given", "name"), [(None, "NoneType"), ("text", "str")])
def test_a_backend_that_returns_no_response_has_failed_and_may_have_been_billed(
    given: Any, name: str, make_evaluator: Any
) -> None:
    error = make_evaluator(ECHO, backend=Raising(lambda: given)).evaluate_sync("echo", {"t": "x"})
    assert isinstance(error, TaskError)
    assert (error.reason, error.maybe_billed) == ("provider_failure", True)
    assert f"the backend returned {name}, expected a ModelResponse" in error.message


@pytest.mark.parametrize("which", ["on_text", "on_event"])
def test_a_callback_that_raises_fails_the_task_and_nothing_else(
    which: str, make_evaluator: Any
) -> None:
    evaluator = make_evaluator(ECHO)
    error = evaluator.evaluate_sync(
        "echo", {"t": "x"}, **{which: raising(ZeroDivisionError("mine"))}
    )
    assert isinstance(error, TaskError)
    assert "ZeroDivisionError: mine" in error.message
    assert evaluator.evaluate_sync("echo", {"t": "x"}).ok


def test_a_row_that_does_not_fit_is_an_error_in_its_place(make_evaluator: Any) -> None:
    rows: list[Any] = [{"t": "a"}, {"x": 1}, 3, None, {"t": object()}, {"t": "b"}]

    async def batch() -> list[Any]:
        return [outcome async for outcome in make_evaluator(ECHO).evaluate_batch("echo", rows)]

    outcomes = asyncio.run(batch())
    assert [o.ok for o in outcomes] == [True, False, False, False, False, True]
    assert all(o.reason == "input_validation_failure" for o in outcomes if not o.ok)
    assert "int, expected a mapping" in outcomes[2].message


def test_rows_that_break_off_are_raised_after_the_results_before_them(make_evaluator: Any) -> None:
    def rows() -> Any:
        yield {"t": "a"}
        yield {"t": "b"}
        raise ValueError("the file is cut off")

    seen: list[Any] = []

    async def batch() -> None:
        async for outcome in make_evaluator(ECHO).evaluate_batch("echo", rows()):
            seen.append(outcome)

    with pytest.raises(ValueError, match="cut off"):
        asyncio.run(batch())
    assert [o.ok for o in seen] == [True, True]


def test_an_unknown_output_type_is_an_error_and_keeps_the_text() -> None:
    parsed = parse_output("x", type="yaml")  # type: ignore[arg-type]
    assert parsed.error is not None
    assert "yaml" in parsed.error.message
    assert parsed.text == "x"


def test_a_tool_that_does_not_exist_is_an_error_before_a_call(
    make_evaluator: Any, scripted: Any
) -> None:
    xml = '<task name="t" type="atomic"><description>d</description><tools><tool name="teleport"/></tools></task>'
    model = scripted()
    error = make_evaluator(xml, backend=SimulatedBackend(script=model)).evaluate_sync("t")
    assert isinstance(error, TaskError)
    assert "teleport" in error.message
    (finding,) = error.violations
    assert "read_file" in finding.hint
    assert model.seen == []


def test_the_sync_form_inside_an_evaluation_is_refused_and_does_not_hang(
    make_evaluator: Any,
) -> None:
    evaluator = make_evaluator(ECHO)

    def nested(_: str) -> None:
        evaluator.evaluate_sync("echo", {"t": "y"})

    error = evaluator.evaluate_sync("echo", {"t": "x"}, on_text=nested)
    assert isinstance(error, TaskError)
    assert "use the async one" in error.message


def test_a_cancelled_evaluation_closes_its_task_file_as_aborted(
    make_evaluator: Any, tmp_path: Path
) -> None:
    async def cancelled() -> None:
        asked = asyncio.Event()

        class Hanging(SimulatedBackend):
            async def complete(self, request: Any, *, on_text: Any = None) -> Any:
                asked.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(
            make_evaluator(ECHO, backend=Hanging()).evaluate("echo", {"t": "x"})
        )
        await asked.wait()
        await asyncio.wait_for(task, 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    recording = TaskStore(tmp_path / "tasks").read(1)
    assert recording.status == "aborted"
    assert [s.status for s in recording.steps if s.start.kind == "model"] == ["aborted"]
