"""The built-in tools: files, search, scripts, the web, and questions to the user."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Annotated, Any

from evaluator.errors import ToolError
from evaluator.errors.messages import amount
from evaluator.processes.concurrency import in_thread
from evaluator.processes.scripts import run_script as run_bounded
from evaluator.tools import searching, writing
from evaluator.tools.decorator import tool
from evaluator.tools.registry import ToolRegistry
from evaluator.tools.tool import ToolContext
from evaluator.tools.web import fetch_url, preview_fetch

_LINES = 2_000


@tool(effect=False)
async def read_file(
    context: ToolContext,
    path: str,
    start_line: int = 1,
    max_lines: int = _LINES,
    encoding: str | None = None,
) -> str:
    """Read a text file, or a range of its lines.

    Args:
        path: the file, relative to the task's folder
        start_line: first line to read, counted from 1
        max_lines: maximum number of lines
        encoding: such as latin-1; without it UTF-8, or what the file's byte order mark says
    """
    found = await in_thread(
        lambda: context.roots.read_text(
            path, start_line=start_line, max_lines=max_lines, encoding=encoding
        )
    )
    if start_line > max(found.total_lines, 1):
        raise ToolError(
            f"{path!r} has {amount(found.total_lines, 'line')}; start_line is {start_line}"
        )
    if not found.truncated:
        return found.text
    last = start_line + max_lines - 1
    return (
        f"{found.text}[lines {start_line} to {last} of {found.total_lines}; continue with "
        f"start_line={last + 1}]"
    )


@tool(effect=False)
async def list_files(
    context: ToolContext, path: str = ".", pattern: str | None = None
) -> list[Any]:
    """List a folder, or find files by a pattern.

    Args:
        path: the folder to list, relative to the task's folder; not used with a pattern
        pattern: such as src/**/*.py; returns the paths of all files that match
    """
    if pattern is not None:
        return list(await context.roots.aglob(pattern))
    entries = await in_thread(lambda: context.roots.list(path))
    return [
        {"name": entry.name, "kind": entry.kind}
        | ({} if entry.size_bytes is None else {"size_bytes": entry.size_bytes})
        for entry in entries
    ]


@tool(effect=False)
async def search_files(
    context: ToolContext,
    pattern: str,
    path: str = ".",
    glob: str | None = None,
    max_matches: int = 200,
) -> str:
    """Search text files for a regular expression, line by line; returns file:line:text for each
    match.

    Args:
        pattern: a regular expression in Python's syntax; (?i) at its beginning ignores case
        path: the folder to search with everything below it, or one file, relative to the task's
        folder
        glob: only files of this name, such as *.py, or below path, such as src/**/*.py
        max_matches: maximum number of matches
    """
    found = await searching.search_files(
        context.roots,
        pattern,
        path,
        glob,
        max_matches=max_matches,
        timeout_s=min(searching.MAX_SEARCH_S, context.remaining_s),
    )
    return str(found)


@tool(policy="ask", retryable=True)
async def write_file(
    context: ToolContext, path: str, content: str, create_only: bool = False
) -> str:
    """Write a whole text file as UTF-8, new or replacing the old one; missing folders are created.

    Args:
        path: the file, relative to the task's folder
        content: the content of the file
        create_only: fail if the file exists
    """
    try:
        change = await in_thread(
            lambda: writing.write_file(context.roots, path, content, create_only=create_only)
        )
    except ToolError as error:
        # The same call may be made again after an interruption; a refusal of the path stays one.
        error.retryable = False
        raise
    size = len(content.encode())
    return f"{'created' if change.size_before is None else 'replaced'} {path} ({size:,} bytes)"


@tool(policy="ask")
async def edit_file(context: ToolContext, path: str, old: str, new: str, count: int = 1) -> str:
    """Replace exact text in a file. Encoding and line ends of the file stay as they are.

    Args:
        path: the file, relative to the task's folder
        old: the exact text to replace, with enough context to occur only there
        new: the text that replaces it
        count: how often old may occur at most; every occurrence is replaced
    """
    change = await in_thread(lambda: writing.edit_file(context.roots, path, old, new, count=count))
    return f"edited {path} in {change.count} {'place' if change.count == 1 else 'places'}"


@tool(policy="ask")
async def delete_file(context: ToolContext, path: str) -> str:
    """Delete one file, or one empty folder.

    Args:
        path: what to delete, relative to the task's folder
    """
    return f"deleted the {await in_thread(lambda: writing.delete_file(context.roots, path))} {path}"


async def _preview_write(arguments: dict[str, Any], context: ToolContext) -> str:
    path = arguments["path"]
    change = await in_thread(
        lambda: writing.write_file(
            context.roots,
            path,
            arguments["content"],
            create_only=arguments.get("create_only", False),
            dry_run=True,
        )
    )
    if change.size_before is None:
        does = "a new file"
    elif change.encoding_before is None:
        does = (
            f"replaces a file of {change.size_before:,} bytes that is not shown: binary or too "
            "large"
        )
    elif change.encoding_before != change.encoding:
        does = (
            f"replaces the file; it was {change.encoding_before.name} and will be "
            f"{change.encoding.name}"
        )
    elif change.before != change.after:
        does = "replaces the file"
    else:
        does = "replaces the file by the same text"
    return change.preview(does)


async def _preview_edit(arguments: dict[str, Any], context: ToolContext) -> str:
    path = arguments["path"]
    count = arguments.get("count", 1)
    change = await in_thread(
        lambda: writing.edit_file(
            context.roots, path, arguments["old"], arguments["new"], count=count, dry_run=True
        )
    )
    return change.preview("edits the file")


async def _preview_delete(arguments: dict[str, Any], context: ToolContext) -> str:
    kind = await in_thread(
        lambda: writing.delete_file(context.roots, arguments["path"], dry_run=True)
    )
    return f"{json.dumps(arguments['path'], ensure_ascii=False)}: deletes this {kind}"


@tool(policy="ask", controls="programs")
async def run_script(
    context: ToolContext,
    command: Annotated[list[str], "the program and its arguments, one string each; no shell"],
    stdin: Annotated[str | None, "text for its standard input"] = None,
    timeout_s: Annotated[float, "seconds after which it is killed"] = 60.0,
) -> dict[str, Any]:
    """Run a program in the task's folder and return its exit code and output."""
    folders = context.roots.roots.folders
    result = await run_bounded(
        command,
        stdin=stdin,
        timeout_s=min(timeout_s, context.remaining_s),
        cwd=folders[0] if folders else None,
        memory_bytes=context.script_memory_bytes,
        sandbox=context.sandbox,
    )
    shown: dict[str, Any] = {
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
    }
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
        raise ToolError(
            "there is nobody to ask in this run; continue without an answer and state your "
            "assumption"
        )
    return await context.asker.ask(question)


@cache
def builtin_tools() -> ToolRegistry:
    """All tools of this module. Those that change something ask first."""
    return ToolRegistry(
        [
            read_file,
            list_files,
            search_files,
            replace(write_file, preview=_preview_write),
            replace(edit_file, preview=_preview_edit),
            replace(delete_file, preview=_preview_delete),
            run_script,
            replace(fetch_url, preview=preview_fetch),
            ask_user,
        ]
    )
