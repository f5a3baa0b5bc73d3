"""What ships is what the documentation promises: valid, with examples that keep to their output formats."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluator import Template, TemplateLibrary, nodes, parse_output
from evaluator.nodes.declare import OPERATORS
from evaluator.nodes.walk import children
from tests.tables import each_case

ROOT = Path(__file__).parents[2]
LIBRARY = TemplateLibrary.load(ROOT / "templates", shipped=False)


def tasks(node: nodes.TopLevel | nodes.Node, path: str) -> Iterator[tuple[str, nodes.Task]]:
    if isinstance(node, nodes.Task):
        yield path, node
    for number, child in enumerate(children(node)):
        yield from tasks(child, f"{path}/{getattr(child, 'name', None) or number}")


ALL = [
    found
    for template in LIBRARY.templates.values()
    for found in tasks(template.node, template.name)
]
EXAMPLES = [(task, example) for _, task in ALL for example in task.examples]
SCRIPTS = [
    pytest.param(task, example, id=f"{path}-{number}")
    for path, task in ALL
    if isinstance(task, nodes.Script)
    for number, example in enumerate(task.examples)
]


def test_every_file_loads_without_an_error_or_a_warning() -> None:
    assert [str(diagnostic) for diagnostic in LIBRARY.diagnostics] == []
    files = [path for path in (ROOT / "templates").rglob("*.xml") if "_partials" not in path.parts]
    assert len(LIBRARY) == len(files) >= 18


def test_every_operator_and_a_function_are_shown() -> None:
    shown = {type(template.node) for template in LIBRARY.templates.values()}
    assert shown == {*OPERATORS.values(), nodes.Function}, (
        "show it in templates/, as the type of a whole template"
    )


@pytest.mark.parametrize("template", LIBRARY.templates.values(), ids=lambda template: template.name)
def test_every_template_has_an_example_and_describes_its_inputs(template: Template) -> None:
    node = template.node.body if isinstance(template.node, nodes.Function) else template.node
    assert isinstance(node, nodes.Task)
    assert node.examples, "add an <example>"
    assert node.output is not None, "add an <output_format>"
    assert all(declared.description.strip() for declared in node.inputs), (
        "describe each <input> in its text"
    )


@each_case(("task", "example"), EXAMPLES)
def test_every_example_output_keeps_to_the_output_format(
    task: nodes.Task, example: nodes.Example
) -> None:
    assert task.output is not None
    parsed = parse_output(example.output, task.output.type, task.output.schema)
    assert parsed.error is None
    assert list(parsed.warnings) == []


@each_case(("task", "example"), EXAMPLES)
def test_every_example_input_is_declared(task: nodes.Task, example: nodes.Example) -> None:
    declared = {each.name for each in task.inputs}
    if declared:  # the body of a function has parameters instead
        assert set(example.inputs) <= declared


@each_case(("path", "task"), [(p, t) for p, t in ALL if isinstance(t, nodes.Atomic)])
def test_every_required_input_has_a_value_in_each_example_of_a_matched_template(
    path: str, task: nodes.Task
) -> None:
    required = {each.name for each in task.inputs if each.required and each.source is None}
    for example in task.examples:
        assert required <= set(example.inputs), path


@pytest.mark.parametrize(("task", "example"), SCRIPTS)
def test_a_script_prints_what_its_example_says(task: nodes.Script, example: nodes.Example) -> None:
    given = example.inputs.get("stdin")
    if given is None:
        types = {each.name: each.type for each in task.inputs}
        values = {
            k: v if types[k] == "string" else json.loads(v) for k, v in example.inputs.items()
        }
        given = json.dumps(values)
    argv = [sys.executable, *(part.value for part in task.command[1:])]
    done = subprocess.run(
        argv, input=given, capture_output=True, text=True, timeout=200, check=True
    )
    assert json.loads(done.stdout) == json.loads(example.output)


def test_the_loop_runs_a_program_with_and_without_fences() -> None:
    loop = LIBRARY.get("write_run_fix").node
    assert isinstance(loop, nodes.DirectorEvaluatorLoop)
    assert loop.script_execution is not None
    argv = [sys.executable, *(part.value for part in loop.script_execution.command[1:])]
    for program in ("print(6 * 7)\n", "Here it is:\n```python\nprint(6 * 7)\n```\nIt prints 42.\n"):
        done = subprocess.run(
            argv, input=program, capture_output=True, text=True, timeout=200, check=True
        )
        assert done.stdout == "42\n"


def test_the_director_examples_print_what_the_evaluator_examples_were_shown() -> None:
    loop = LIBRARY.get("write_run_fix").node
    assert isinstance(loop, nodes.DirectorEvaluatorLoop)
    assert isinstance(loop.director, nodes.Task)
    assert isinstance(loop.evaluator, nodes.Task)
    for written, judged in zip(loop.director.examples, loop.evaluator.examples, strict=True):
        argv = [sys.executable, "-I", "-c", written.output]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=True)
        assert done.stdout.strip() == judged.inputs["printed"]


def test_the_decompose_example_is_a_valid_task() -> None:
    example = LIBRARY.get("decompose").node.examples[0]  # type: ignore[union-attr]
    library = TemplateLibrary()
    library.add(example.output.replace("<task type", '<task name="answer" type', 1))
    assert [str(diagnostic) for diagnostic in library.diagnostics] == []
    assert isinstance(library.get("answer").node, nodes.Sequential)
