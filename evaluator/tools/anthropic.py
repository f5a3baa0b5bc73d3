"""The tools that Anthropic's models are trained on and that run here: the text editor and `bash`.

An Anthropic model receives only the type of each (`NATIVE`), because it knows the arguments; other
models receive a schema. The editor reads and changes files below the task's roots through
`file_access` and `writing`. `bash` is a `shell.Shell`, limited and killed like a script.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from evaluator.errors import ToolError
from evaluator.errors.messages import amount
from evaluator.files.open_below import FILE
from evaluator.models.backend import ToolSpec
from evaluator.processes.concurrency import in_thread
from evaluator.processes.shell import Ending, Shell, ShellResult
from evaluator.tools import file_access, writing
from evaluator.tools.file_access import FileAccess
from evaluator.tools.policy import PolicyRule
from evaluator.tools.tool import Tool, ToolContext, object_schema, text_schema

BASH = "bash"
TEXT_EDITOR = "str_replace_based_edit_tool"
NATIVE: Mapping[str, Mapping[str, Any]] = {
    TEXT_EDITOR: {"type": "text_editor_20250728", "name": TEXT_EDITOR},
    BASH: {"type": "bash_20250124", "name": BASH},
}
_LINES = 2_000
_PLACES = 5


def text_editor_tool() -> Tool:
    """The tool `str_replace_based_edit_tool`: view, create, str_replace, insert. All but `view` ask
    by default.

    `create` never replaces a file; `str_replace` changes a text that occurs once; `insert` puts
    whole lines after line `insert_line`, 0 for the top. Encoding and line ends of a file stay.
    """
    return Tool(
        ToolSpec(TEXT_EDITOR, _DESCRIPTION, parameters=_PARAMETERS, native=NATIVE[TEXT_EDITOR]),
        _run,
        policy="ask",
        rules=(PolicyRule("allow", "command", matches="view"),),
        preview=_preview,
    )


_DESCRIPTION = (
    "View, create and edit text files. view shows a file with line numbers, or a folder with two "
    "levels of what is below it; create makes a new file; str_replace replaces a text that occurs "
    "exactly once; insert puts lines after a line."
)
_PARAMETERS = object_schema(
    {
        "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
        "path": text_schema("the file, or for view a folder, relative to the task's folder"),
        "view_range": {
            "type": "array",
            "items": {"type": "integer"},
            "minItems": 2,
            "maxItems": 2,
            "description": "for view: the first and the last line, counted from 1; -1 for the end "
            "of the file",
        },
        "file_text": text_schema("for create: the content of the file"),
        "old_str": text_schema("for str_replace: the exact text, which occurs only there"),
        "new_str": text_schema("for str_replace: the text to put there; without it, none"),
        "insert_line": {
            "type": "integer",
            "minimum": 0,
            "description": "for insert: the line to insert after; 0: top",
        },
        "insert_text": text_schema("for insert: the lines to put there"),
    },
    ["command", "path"],
)


async def _run(arguments: dict[str, Any], context: ToolContext) -> str:
    if arguments["command"] == "view":
        return await in_thread(
            lambda: _view(context.roots, arguments["path"], view_range=arguments.get("view_range"))
        )
    return (await in_thread(lambda: _change(context.roots, arguments, dry_run=False)))[1]


async def _preview(arguments: dict[str, Any], context: ToolContext) -> str:
    if arguments["command"] == "view":
        return f"{json.dumps(arguments['path'], ensure_ascii=False)}: shows it to the model"
    change, _ = await in_thread(lambda: _change(context.roots, arguments, dry_run=True))
    return change.preview("a new file" if arguments["command"] == "create" else "edits the file")


def _change(
    access: FileAccess, arguments: Mapping[str, Any], *, dry_run: bool
) -> tuple[writing.FileChange, str]:
    """Makes the change that the arguments ask for; returns it and the message for the model."""
    path = arguments["path"]
    command = arguments["command"]
    if command == "create":
        content = _needed(arguments, "file_text")
        change = writing.write_file(access, path, content, create_only=True, dry_run=dry_run)
        return change, f"created {path} ({len(content.encode()):,} bytes)"
    if command == "str_replace":
        old = _needed(arguments, "old_str")
        new = arguments.get("new_str", "")
        text = access.read_text(path).text
        after = _replaced(text, old, new=new, path=path)
        message = f"edited {path} in 1 place"
    else:
        line = _needed(arguments, "insert_line")
        # Models that know an older description of this tool call the text `new_str`.
        added = arguments.get("insert_text", arguments.get("new_str"))
        if not added:
            raise ToolError("insert needs insert_text: the lines to put there")
        text = access.read_text(path).text
        after = _inserted(text, line, added=added, path=path)
        message = f"inserted into {path} after line {line}"
    if not text:
        return writing.write_file(access, path, after, dry_run=dry_run), message
    # The whole old text, so that a file that was changed in the meantime is an error.
    return writing.edit_file(access, path, text, after, dry_run=dry_run), message


def _needed(arguments: Mapping[str, Any], name: str) -> Any:
    if name not in arguments:
        raise ToolError(f"{arguments['command']} needs {name}")
    return arguments[name]


def _replaced(text: str, old: str, new: str, path: str) -> str:
    after, found = file_access.replace_text(text, old, new, len(text) + 1, path)
    if found == 1:
        return after
    starts = [number for number, _ in zip(_lines_of(text, old), range(_PLACES), strict=False)]
    where = ", ".join(map(str, starts)) + (", …" if found > len(starts) else "")
    raise ToolError(
        f"old_str occurs {found} times in {path!r} (lines {where}); give more of the lines "
        "around it"
    )


def _lines_of(text: str, old: str) -> Iterator[int]:
    """The line numbers, counted from 1, at which each `old` begins."""
    if old in text:
        wanted = old
    else:
        wanted = old.replace("\n", "\r\n")
    at = 0
    line = 1
    while (found := text.find(wanted, at)) >= 0:
        line += text.count("\n", at, found)
        yield line
        line += wanted.count("\n")
        at = found + len(wanted)


def _inserted(text: str, after: int, added: str, path: str) -> str:
    lines = file_access.lines_of(text)
    if after > len(lines):
        raise ToolError(f"{path!r} has {amount(len(lines), 'line')}; insert_line is {after}")
    before = "".join(lines[:after])
    behind = "".join(lines[after:])
    if before and not before.endswith("\n"):
        before += "\n"
    if behind and not added.endswith("\n"):
        added += "\n"
    return before + added + behind


def _view(access: FileAccess, path: str, view_range: list[int] | None) -> str:
    if _is_folder(access, path):
        if view_range is not None:
            raise ToolError(f"{path!r} is a folder; view_range is for files")
        path = path.rstrip("/") or "/"
        return _cut(
            [f"{path}/", *_tree(access, path)], lambda last, total: f"[{total - last} more]"
        )
    first, last = view_range or (1, -1)
    if first < 1 or (last != -1 and last < first):
        raise ToolError(
            f"view_range is {[first, last]}; its lines count from 1, and the last may be -1 for "
            "the end"
        )
    lines = file_access.lines_of(access.read_text(path).text)
    if first > max(len(lines), 1):
        raise ToolError(f"{path!r} has {amount(len(lines), 'line')}; view_range begins at {first}")
    if not lines:
        return f"[{path} is empty]"
    wanted = [line.rstrip("\r\n") for line in lines[first - 1 : None if last == -1 else last]]
    numbered = [f"{number:6}\t{line}" for number, line in enumerate(wanted, first)]
    return _cut(
        numbered,
        lambda shown, _: (
            f"[lines {first} to {first + shown - 1} of {len(lines)}; "
            f"continue with view_range=[{first + shown}, {last}]]"
        ),
    )


def _cut(lines: list[str], note: Callable[[int, int], str]) -> str:
    if len(lines) <= _LINES:
        return "\n".join(lines)
    return "\n".join([*lines[:_LINES], note(_LINES, len(lines))])


def _is_folder(access: FileAccess, path: str) -> bool:
    descriptor = access.roots.open(path, FILE)
    try:
        return stat.S_ISDIR(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def _tree(access: FileAccess, path: str, levels: int = 2) -> Iterator[str]:
    """The entries of a folder, without names that begin with a dot; links are listed and not
    followed.
    """
    for entry in access.list(path):
        if entry.name.startswith("."):
            continue
        below = f"{path}/{entry.name}"
        if entry.kind != "folder":
            yield below if entry.kind == "file" else f"{below} ({entry.kind})"
            continue
        yield f"{below}/"
        if levels > 1:
            try:
                yield from _tree(access, below, levels=levels - 1)
            except ToolError as error:  # too many entries, or not readable; the rest is shown
                yield f"{below}: {error}"


def bash_tool(shell: Shell) -> Tool:
    """The tool `bash` for one shell, which the tool ends when it is closed. Asks by default."""

    async def run(arguments: dict[str, Any], context: ToolContext) -> Any:
        command = arguments.get("command")
        restart = arguments.get("restart", False)
        if restart:
            if command:
                raise ToolError("give either a command or restart, not both; nothing was run")
            await shell.end()
            return (
                "the shell was ended with everything that it started; the next command starts "
                "a new one"
            )
        if command is None:
            raise ToolError("command is missing; give a command, or restart=true for a new shell")
        return _shown_result(
            await shell.run(command, remaining_s=context.remaining_s), shell.timeout_s
        )

    spec = ToolSpec(BASH, _BASH_DESCRIPTION, parameters=_BASH_PARAMETERS, native=NATIVE[BASH])
    return Tool(spec, run, policy="ask", close=shell.end)


_BASH_DESCRIPTION = (
    "Run a command in a persistent bash shell: its folder, variables and background processes are "
    "kept for the next command. A command has an empty standard input and no terminal."
)
_BASH_PARAMETERS = object_schema(
    {
        "command": text_schema("what the shell runs, one line or several"),
        "restart": {
            "type": "boolean",
            "default": False,
            "description": "end the shell; give no command with it",
        },
    }
)
_ENDINGS: dict[Ending, str] = {
    "exit": "the shell has ended",
    "timeout": "the command was stopped at its time limit",
    "output": "the command was killed for endless output",
    "processes": "the command was killed for too many processes",
    "memory": "the command was killed for too much memory",
}


def _shown_result(result: ShellResult, timeout_s: float) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
    }
    notes: list[str] = []
    if result.new:
        notes.append(
            "a new shell, in the initial folder and without the variables of an earlier one"
        )
    if result.ended is not None:
        limit = ""
        if result.ended == "timeout":
            limit = f" (a command has {timeout_s:g} s)"
        notes.append(f"{_ENDINGS[result.ended]}{limit}; the next command starts a new shell")
    if result.signal is not None:
        shown["signal"] = result.signal
    if notes:
        shown["notes"] = notes
    return shown
