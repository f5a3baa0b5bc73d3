"""Attempts of a task to reach another provider than the task that started it, or to exceed its limits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from evaluator import (
    Evaluator,
    HandlerConfig,
    ModelRequest,
    ModelResponse,
    SimulatedBackend,
    TaskError,
    TaskResult,
    TaskStore,
    TemplateLibrary,
    ToolGrant,
    Usage,
)
from evaluator.background import BackgroundTools
from evaluator.testing import Answer, LoopbackServer
from tests.security.task_attempts import (
    BOSS,
    PATHS,
    World,
    hint,
)

# -- providers and limits ----------------------------------------------------------------------------------------------

FAR = '<task name="far" type="atomic"><description>d</description><handler ref="far"/></task>'


@pytest.mark.parametrize("path", ["hint", "nested input", "match"])
def test_a_prompt_goes_to_no_other_provider_than_that_of_the_task_above(
    world: World, path: str
) -> None:
    xml = FAR.replace(' name="far"', "")
    templates, call = PATHS[path](xml)
    asked = json.dumps(call["arguments"])
    with (
        LoopbackServer(
            Answer(None, "tool_calls", [("c", "subtask", asked)]), *[Answer("done")] * 3
        ) as near,
        LoopbackServer(*[Answer("far")] * 3) as far,
    ):
        library = TemplateLibrary()
        library.add(f"<library>{BOSS}{templates}</library>")
        own = HandlerConfig(
            name="default", backend="openai_compatible", base_url=near.base_url, model="m"
        )
        other = HandlerConfig(
            name="far", backend="openai_compatible", base_url=far.base_url, model="m"
        )
        with Evaluator(
            library, None, profiles={"default": own, "far": other}, tasks_dir=None
        ) as evaluator:
            evaluator.evaluate_sync("boss").unwrap()
            assert far.posts == 0 and near.posts >= 2
            # The control: a person who names the template sends the prompt there.
            evaluator.evaluate_sync("bad")
            assert far.posts == 1


@pytest.mark.parametrize(
    ("tool_name", "arguments"),
    [
        ("subtask", {"type": "atomic", "description": "do it", "inputs": {}}),
        ("start_subtask", {"type": "atomic", "description": "do it", "inputs": {}}),
        ("start_session", {"message": "do it"}),
    ],
)
def test_the_words_of_a_model_go_to_the_provider_of_its_task(
    world: World, tool_name: str, arguments: dict[str, Any]
) -> None:
    names = (tool_name, "wait_background", "list_background")
    xml = """<task name="boss" type="atomic"><description>lead</description><handler ref="near"/>
        <instructions>BOSS</instructions></task>"""
    asked = Answer(None, "tool_calls", [("c", tool_name, json.dumps(arguments))])
    with LoopbackServer(default=Answer("far")) as far, LoopbackServer(asked) as near:
        near.default = Answer("done")
        default = HandlerConfig(
            name="default", backend="openai_compatible", base_url=far.base_url, model="m"
        )
        own = HandlerConfig(
            name="near",
            backend="openai_compatible",
            base_url=near.base_url,
            model="m",
            tools=tuple(ToolGrant(name) for name in names),
        )
        library = TemplateLibrary()
        library.add(f"<library>{xml}</library>")
        with Evaluator(
            library,
            None,
            profiles={"default": default, "near": own},
            tasks_dir=world.folder / "tasks",
            roots=[world.folder],
            background=BackgroundTools(world.folder / "background"),
        ) as evaluator:
            evaluator.evaluate_sync("boss").unwrap()
            started = TaskStore(world.folder / "tasks").read(2)
    assert far.posts == 0
    choice = next(s.end.output for s in started.steps if s.start.kind == "resolve" and s.end)
    assert choice["why"] == "named by the profile 'near'"


@pytest.mark.parametrize(
    "arguments",
    [
        {"type": "atomic", "description": "count", "inputs": {}, "hints": {"template": "counter"}},
        {"type": "atomic", "description": "Count the sheep in the field", "inputs": {}},
    ],
    ids=["hint", "match"],
)
def test_a_chosen_template_without_a_profile_has_that_of_its_task(
    world: World, arguments: dict[str, Any]
) -> None:
    """With the default profile it would be refused, because it would call another provider."""
    xml = """<task name="boss" type="atomic"><description>lead</description><handler ref="near"/>
        <tools><tool name="subtask"/></tools><instructions>BOSS</instructions></task>
        <task name="counter" type="atomic"><description>Count the sheep in the field</description>
        <inputs><input name="sheep"><task name="inner" type="atomic"><description>Look</description>
        </task></input></inputs></task>"""
    asked = Answer(None, "tool_calls", [("c", "subtask", json.dumps(arguments))])
    with LoopbackServer(default=Answer("far")) as far, LoopbackServer(asked) as near:
        near.default = Answer("done")
        default, own = (
            HandlerConfig(
                name=name, backend="openai_compatible", base_url=server.base_url, model="m"
            )
            for name, server in (("default", far), ("near", near))
        )
        library = TemplateLibrary()
        library.add(f"<library>{xml}</library>")
        with Evaluator(
            library,
            None,
            profiles={"default": default, "near": own},
            tasks_dir=world.folder / "tasks",
        ) as evaluator:
            evaluator.evaluate_sync("boss").unwrap()
            subtask = TaskStore(world.folder / "tasks").read(2)
            assert (subtask.status, subtask.header.template) == ("completed", "counter")
            assert (near.posts, far.posts) == (4, 0)
            # The control: a person who names the template gets the default profile.
            evaluator.evaluate_sync("counter").unwrap()
            assert (near.posts, far.posts) == (4, 2)


def test_the_limits_of_the_task_above_hold_in_its_subtasks(world: World) -> None:
    wide = """<task name="wide" type="atomic"><description>d</description><handler max_output_tokens="5000"
        max_context_fraction="0.9"/><instructions>WIDE</instructions></task>"""
    limits: list[int | None] = []

    def model(request: ModelRequest) -> Any:
        if "WIDE" in request.messages[-1].content:
            limits.append(request.max_output_tokens)
        return world.model(request)

    boss = HandlerConfig(name="default", backend="simulated", max_output_tokens=100)
    library = TemplateLibrary()
    library.add(f"<library>{BOSS}{wide}</library>")
    evaluator = Evaluator(
        library,
        None,
        backend=SimulatedBackend(script=model),
        profiles={"default": boss},
        tasks_dir=None,
        roots=[world.folder],
    )
    world.boss_call = {"tool": "subtask", "arguments": hint("wide")}
    asyncio.run(evaluator.evaluate("boss")).unwrap()
    asyncio.run(evaluator.evaluate("wide")).unwrap()
    assert limits == [100, 5000]


@pytest.mark.parametrize(
    ("limits", "resource"), [({"max_turns": 3}, "turns"), ({"max_cost_usd": 0.05}, "cost")]
)
def test_the_budget_of_the_task_above_is_spent_by_its_subtasks(
    world: World, limits: dict[str, Any], resource: str
) -> None:
    def model(request: ModelRequest) -> Any:
        said = world.model(request)
        dear = Usage(1, 1, 0, 0, 0.02, 1)
        return (
            said
            if not isinstance(said, str) or resource != "cost"
            else ModelResponse(said, "stop", usage=dear)
        )

    boss = HandlerConfig(
        name="default", backend="simulated", prices=(1.0, 1.0), max_output_tokens=10, **limits
    )
    library = TemplateLibrary()
    library.add(f"<library>{BOSS}</library>")
    evaluator = Evaluator(
        library,
        None,
        backend=SimulatedBackend(script=model),
        profiles={"default": boss},
        tasks_dir=None,
        roots=[world.folder],
    )
    one = {"type": "atomic", "inputs": {}}
    world.boss_call = [
        {"tool": "subtask", "arguments": {**one, "description": f"part {n}"}} for n in range(6)
    ]
    error = asyncio.run(evaluator.evaluate("boss"))
    assert isinstance(error, TaskError) and error.resource is not None
    assert error.resource.name == resource
    # The control: one subtask fits.
    world.boss_call = world.boss_call[0]
    assert isinstance(asyncio.run(evaluator.evaluate("boss")), TaskResult)


def test_the_depth_of_a_run_bounds_every_subtask(world: World) -> None:
    again = f"""<task name="again" type="atomic"><description>d</description><tools><tool name="subtask"/></tools>
        <inputs><input name="n" type="integer" default="0"/></inputs>
        <instructions>USE subtask {json.dumps({**hint("again"), "max_depth": 99}).replace('"inputs": {}', '"inputs": {"n": 0}')}
        {{{{ n }}}}</instructions></task>"""
    counter = iter(range(1, 99))

    def model(request: ModelRequest) -> Any:
        said = world.model(request)
        if isinstance(said, dict) and "inputs" in said.get("arguments", {}):
            said["arguments"]["inputs"] = {"n": next(counter)}
        return said

    library = TemplateLibrary()
    library.add(f"<library>{again}</library>")
    for depth in (1, 3):
        evaluator = Evaluator(
            library,
            HandlerConfig(name="p", backend="simulated", max_turns=50),
            backend=SimulatedBackend(script=model),
            tasks_dir=world.folder / f"tasks{depth}",
            max_depth=depth,
            roots=[world.folder],
        )
        asyncio.run(evaluator.evaluate("again")).unwrap()
        files = list((world.folder / f"tasks{depth}").rglob("TASK-*.md"))
        assert len(files) == depth + 1
