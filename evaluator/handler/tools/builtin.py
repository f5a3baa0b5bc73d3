"""The tools that come with the package: read a file, list files, run a script, ask the user."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from evaluator.errors import ToolError
from evaluator.handler.tools.decorator import tool
from evaluator.handler.tools.registry import ToolContext, ToolRegistry
from evaluator.handler.tools.script import run_script as run_bounded
from evaluator.handler.tools.threads import in_thread

_LINES = 2_000


@tool(retryable=True, effect=False)
async def read_file(context: ToolContext, path: str, start_line: int = 1, max_lines: int = _LINES) -> str:
    """Read a text file, or a range of its lines.

    Args:
        path: the file, relative to the task's folder
        start_line: first line to read, counted from 1
        max_lines: how many lines to read at most
    """
    found = await context.roots.aread_text(path, start_line=start_line, max_lines=max_lines)
    if start_line > max(found.total_lines, 1):
        raise ToolError(f"{path!r} has {found.total_lines} lines; start_line is {start_line}")
    if not found.truncated:
        return found.text
    last = start_line + max_lines - 1
    return f"{found.text}[lines {start_line} to {last} of {found.total_lines}; go on with start_line={last + 1}]"


@tool(retryable=True, effect=False)
async def list_files(context: ToolContext, path: str = ".", pattern: str | None = None) -> list[Any]:
    """List a folder, or find files by a pattern.

    Args:
        path: the folder to list, relative to the task's folder; not used with a pattern
        pattern: such as src/**/*.py; gives the paths of all files that match
    """
    if pattern is not None:
        return list(await context.roots.aglob(pattern))
    entries = await in_thread(lambda: context.roots.list(path))
    return [
        {"name": entry.name, "kind": entry.kind}
        | ({} if entry.size_bytes is None else {"size_bytes": entry.size_bytes})
        for entry in entries
    ]


@tool(policy="ask")
async def run_script(
    context: ToolContext,
    command: Annotated[list[str], "the program and its arguments, one string each; no shell"],
    stdin: Annotated[str | None, "text for its standard input"] = None,
    timeout_s: Annotated[float, "seconds after which it is killed"] = 60.0,
) -> dict[str, Any]:
    """Run a program in the task's folder and return its exit code and output."""
    roots = context.roots.roots
    result = await run_bounded(
        command,
        stdin=stdin,
        timeout_s=min(timeout_s, context.remaining_s),
        cwd=roots[0] if roots else None,
    )
    shown: dict[str, Any] = {"exit_code": result.exit_code, "stdout": result.stdout, "stderr": result.stderr}
    notes = {
        "signal": result.signal,
        "timed_out": result.timed_out or None,
        "killed_for": result.overrun,
        "stdout_truncated": result.stdout_truncated or None,
        "stderr_truncated": result.stderr_truncated or None,
    }
    return shown | {name: value for name, value in notes.items() if value is not None}


@tool(effect=False)
async def ask_user(context: ToolContext, question: str) -> str:
    """Ask the user a question and return the answer.

    Args:
        question: one question, complete in itself
    """
    if context.asker is None:
        raise ToolError("there is nobody to ask in this run; go on without an answer and say what you assumed")
    return await context.asker.ask(question)


@cache
def builtin_tools() -> ToolRegistry:
    """read_file, list_files, run_script (policy ask) and ask_user."""
    return ToolRegistry([read_file, list_files, run_script, ask_user])
