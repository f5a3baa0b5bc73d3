"""The operator script: a process; its stdout is the content, stderr and exit code are in the notes.

The inputs reach it on stdin: the input called `stdin` as text, otherwise all of them as one JSON
object. Values are substituted into single arguments after the command was split, so no value can
add an argument.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from evaluator import clock
from evaluator.errors import LimitReached, ToolError
from evaluator.errors.results import Outcome, TaskError
from evaluator.interpreter.binding import BoundTask
from evaluator.interpreter.calls import functions_in_text
from evaluator.interpreter.frame import Run, join
from evaluator.interpreter.operators.outcomes import completed
from evaluator.language.inputs import resolve_setting
from evaluator.language.sandbox import render
from evaluator.nodes import OutputFormat, Script
from evaluator.processes.scripts import run_script
from evaluator.record.steps import StepEnd, cut_off_reason

DEFAULT_TIMEOUT_S = 60.0
NOT_RUN: Mapping[str, Any] = {
    "stdout": "[not run]",
    "stderr": "",
    "exit_code": 0,
    "signal": None,
    "truncated": False,
    "overrun": None,
    "survivors": 0,
}


async def run_script_task(run: Run, task: Script, bound: BoundTask) -> Outcome:
    ended = await execute(run, task, bound=bound)
    notes = bound.notes(
        exit_code=ended["exit_code"], stderr=ended["stderr"], sandbox=bound.config.sandbox.kind
    )
    if ended["truncated"]:
        notes["warnings"].append("the script's output was longer than the limit and was cut")
    if ended["overrun"]:
        notes["warnings"].append(f"the script was stopped: too much {ended['overrun']}")
    if ended["survivors"]:
        notes["warnings"].append("processes that the script started could not be ended")
    if ended["exit_code"] != 0:
        if ended["signal"] is None:
            how = f"exit code {ended['exit_code']}"
        else:
            how = f"signal {ended['signal']}"
        return TaskError(
            "TASK_FAILURE",
            f"the script ended with {how}: {_tail(ended['stderr'])}",
            reason="tool_failure",
            location=task.span,
            content=ended["stdout"],
            notes=notes,
            usage=bound.budget.usage,
            details={
                "exit_code": ended["exit_code"],
                "signal": ended["signal"],
                "stderr": ended["stderr"],
            },
        )
    return completed(run, bound, outcome=(ended["stdout"], None), notes=notes)


async def execute(run: Run, task: Script, bound: BoundTask) -> Mapping[str, Any]:
    """Runs the process as one recorded step. A non-zero exit code is a result here, not an error.

    Raises: LimitReached (time), with the script's output so far; ToolError, if it cannot be
    started.
    """
    functions = functions_in_text(run, bound.frame, field="command")
    argv = [await render(text, bound.scope, functions=functions) for text in task.command]
    timeout: float = resolve_setting(task, "timeout_s", scope=bound.scope) or DEFAULT_TIMEOUT_S
    if run.services.dry_run:
        return _not_run(task.output)
    remaining = bound.budget.remaining_s()
    if remaining is not None:
        timeout = max(0.001, min(timeout, remaining))
    stdin = stdin_of(bound.values)
    path = join(bound.frame.path, "script")
    steps = run.steps
    args = {"argv": argv, "shell": task.shell, "stdin": stdin}
    fingerprint = steps.fingerprint(args)
    recorded = steps.recorded(path, "script", fingerprint, args)
    if recorded is not None:
        return _recorded(recorded, timeout)
    await steps.may_repeat(path)
    name = "script"
    command: str | list[str] = argv
    if argv:
        name = argv[0][:60]
    if task.shell:
        command = argv[0]
    number = await steps.begin(path, "script", name, args, fingerprint)
    run.event(bound.frame.path, "script")
    started = clock.monotonic()
    try:
        ended = await run_script(
            command,
            stdin=stdin,
            timeout_s=timeout,
            cwd=run.services.root,
            memory_bytes=bound.config.script_memory_bytes,
            sandbox=bound.config.sandbox,
        )
    except ToolError as error:
        # The process never started, so another attempt is safe.
        await steps.fail(number, None, clock.monotonic() - started, str(error))
        raise
    except BaseException as error:
        reason = cut_off_reason(error, is_late=bound.budget.is_late())
        steps.abort(number, "", clock.monotonic() - started, reason)
        raise
    output = {
        "stdout": ended.stdout,
        "stderr": ended.stderr,
        "exit_code": ended.exit_code,
        "signal": ended.signal,
        "truncated": ended.stdout_truncated or ended.stderr_truncated,
        "overrun": ended.overrun,
        "survivors": ended.survivors,
    }
    if ended.timed_out:
        message = f"the script was stopped after {timeout:g} s"
        await steps.fail(number, output, ended.duration_s, message)
        raise LimitReached(
            "time", round(ended.duration_s, 3), limit=timeout, message=message, partial=ended.stdout
        )
    await steps.succeed(number, output, ended.duration_s)
    return output


def _recorded(end: StepEnd, timeout: float) -> Mapping[str, Any]:
    """The recorded output. Raises: the same error as when it was recorded."""
    if end.status == "success":
        return end.output
    message = end.error or "the script failed"
    if end.output is None:
        raise ToolError(message)
    raise LimitReached(
        "time",
        round(end.duration_s, 3),
        limit=timeout,
        message=message,
        partial=end.output["stdout"],
    )


def _not_run(output: OutputFormat | None) -> Mapping[str, Any]:
    """The output of a script in a preview. If JSON is declared, it is a valid value, so that the
    preview continues.
    """
    if output is None or output.type != "json":
        return NOT_RUN
    from evaluator.models.synthesis import synthesise

    return {**NOT_RUN, "stdout": json.dumps(synthesise(output.schema, Random(0)))}


def stdin_of(values: Mapping[str, Any]) -> str | None:
    """The text that the process reads; None (an empty stdin) if the task has no inputs."""
    if not values:
        return None
    if "stdin" in values:
        value = values["stdin"]
        if isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(dict(values), ensure_ascii=False)


def _tail(text: str) -> str:
    lines = text.strip().splitlines()
    if lines:
        return lines[-1][:300]
    return "nothing on stderr"
