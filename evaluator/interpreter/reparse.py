"""Recovery from exhausted resources: a task that ran out is decomposed by the model, and that is evaluated.

Once for a task, never inside a decomposition, and within the limits of the tasks above. The decomposition is
text from a model: it is read leniently, validated like any template, and may hold neither scripts, nor
commands, nor tools that the task did not have. Where it cannot be used the first error stands, and says why.
"""

from __future__ import annotations

import json
from dataclasses import replace

from evaluator.binding.inputs import resolve_setting
from evaluator.errors import Diagnostic, TemplateError
from evaluator.interpreter.frame import Outcome, Run, join
from evaluator.interpreter.internal import internal_template
from evaluator.interpreter.operators.prepared import Prepared
from evaluator.library import check
from evaluator.nodes import Atomic, DirectorEvaluatorLoop, Node, Script, Task, children
from evaluator.results import TaskError, TaskResult
from evaluator.xml.build import build
from evaluator.xml.lenient import extract_document
from evaluator.xml.schema import validate
from evaluator.xml.source import read_source

RECOVERABLE = frozenset({"turns", "context", "output"})
MAX_PARTIAL_CHARACTERS = 20_000


def is_recoverable(run: Run, task: Task, prepared: Prepared, error: TaskError) -> bool:
    """Whether a decomposition may help: not for time and cost, which it would only use up further."""
    if not run.services.reparse or run.services.dry_run or prepared.frame.is_reparsed:
        return False
    if not isinstance(task, Atomic) or error.resource is None or error.resource.name not in RECOVERABLE:
        return False
    refused = (
        resolve_setting(setting, "bool", prepared.scope, name=name)
        for setting, name in ((task.disable_reparsing, "disable_reparsing"), (task.manual_xml, "manual_xml"))
    )
    return not any(refused)


async def recover(run: Run, task: Task, prepared: Prepared, error: TaskError) -> Outcome:
    """The outcome of the decomposed task, or `error` with the reason why there is none."""
    assert error.resource is not None
    frame = replace(prepared.frame, budget=prepared.frame.budget, is_reparsed=True)
    asked = {
        "task": f"{prepared.description}\n\nInputs: {json.dumps(dict(prepared.values), ensure_ascii=False)}",
        "resource": error.resource.name,
        "partial": error.content[:MAX_PARTIAL_CHARACTERS],
    }
    answer = await run.services.evaluate(
        replace(run, on_text=None), internal_template(run.services, "decompose"),
        frame.at("reparse", arguments=asked, context=()),
    )  # fmt: skip
    if isinstance(answer, TaskError):
        return _unrecovered(error, f"the decomposition failed: {answer.message}")
    try:
        node = read_task(run, task, answer.content)
    except TemplateError as problem:
        run.steps.note(
            join(prepared.frame.path, "reparse/parse"), "parse", "decomposition", None, "", error=str(problem)
        )
        return _unrecovered(error, f"the decomposition cannot be used: {problem}")
    outcome = await run.services.evaluate(run, node, frame.at("reparsed"))
    if isinstance(outcome, TaskError):
        return _unrecovered(error, f"the decomposed task failed: {outcome.message}")
    notes = {**outcome.notes, "reparsed_after": {"resource": error.resource.name, "message": error.message}}
    return TaskResult(outcome.status, outcome.content, outcome.parsed_content, notes, outcome.usage)


def read_task(run: Run, original: Task, text: str) -> Task:
    """The task in a model's answer.

    Raises: TemplateError, if there is none, it is not valid, or it holds what a decomposition may not.
    """
    document = extract_document(text, ["task"])
    if document is None:
        raise TemplateError([Diagnostic("error", "no-task", "the answer holds no <task>", original.span)])
    source = read_source(document, "<decomposition>")
    problems = [d for d in validate(source, "task") if d.severity == "error"]
    if not problems:
        built = build(source)
        problems = [d for d in built.diagnostics if d.severity == "error"]
        if not problems and len(built.templates) == 1 and isinstance(built.templates[0], Task):
            node = built.templates[0]
            problems = [*_forbidden(node, original), *_unsound(run, node)]
            if not problems:
                return node
    raise TemplateError(problems or [Diagnostic("error", "no-task", "the answer is not one <task>", original.span)])


def _unsound(run: Run, node: Task) -> list[Diagnostic]:
    name = "\x00decomposition"
    known = {key: template.node for key, template in run.services.library.templates.items()}
    found = check({**known, name: node})
    return [d for d in found if d.severity == "error" and d.span.file == "<decomposition>"]


def _forbidden(node: Node, original: Task) -> list[Diagnostic]:
    """A model's task runs nothing: no script, no command, no tool that the original did not have."""
    found: list[Diagnostic] = []
    if isinstance(node, Task):
        if isinstance(node, Script) or (isinstance(node, DirectorEvaluatorLoop) and node.script_execution):
            found.append(Diagnostic("error", "forbidden", "a decomposition may not run a script", node.span))
        if node.file_paths is not None and node.file_paths.source == "command":
            found.append(Diagnostic("error", "forbidden", "a decomposition may not run a command", node.span))
        found += [
            Diagnostic("error", "forbidden", f"a decomposition may not add the tool {tool!r}", node.span)
            for tool in node.tools
            if tool not in original.tools
        ]
    for child in children(node):
        found += _forbidden(child, original)
    return found


def _unrecovered(error: TaskError, why: str) -> TaskError:
    return replace(error, details={**error.details, "reparse": why})
