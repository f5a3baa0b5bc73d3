"""Tools that a model may call, and the limits within which calls run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluator.lazy_names import lazy_names

# At once: a module of this package is called `tool` too, and would hide a name loaded later.
from evaluator.tools.decorator import FunctionTool, tool

if TYPE_CHECKING:
    from evaluator.processes.scripts import ScriptResult as ScriptResult
    from evaluator.processes.scripts import run_script as run_script
    from evaluator.tools.ask import Asker as Asker
    from evaluator.tools.ask import CallbackAsker as CallbackAsker
    from evaluator.tools.ask import FileAsker as FileAsker
    from evaluator.tools.ask import TerminalAsker as TerminalAsker
    from evaluator.tools.builtin import builtin_tools as builtin_tools
    from evaluator.tools.file_access import FileAccess as FileAccess
    from evaluator.tools.file_access import FileText as FileText
    from evaluator.tools.file_access import FolderEntry as FolderEntry
    from evaluator.tools.policy import Policy as Policy
    from evaluator.tools.policy import PolicyRule as PolicyRule
    from evaluator.tools.registry import ToolRegistry as ToolRegistry
    from evaluator.tools.tool import Tool as Tool
    from evaluator.tools.tool import ToolAnswer as ToolAnswer
    from evaluator.tools.tool import ToolContext as ToolContext
    from evaluator.tools.tool import ToolOutcome as ToolOutcome
    from evaluator.tools.tool import ToolPreview as ToolPreview
else:
    _HOMES = {
        "evaluator.processes.scripts": ("ScriptResult", "run_script"),
        "evaluator.tools.ask": ("Asker", "CallbackAsker", "FileAsker", "TerminalAsker"),
        "evaluator.tools.builtin": ("builtin_tools",),
        "evaluator.tools.file_access": ("FileAccess", "FileText", "FolderEntry"),
        "evaluator.tools.policy": ("Policy", "PolicyRule"),
        "evaluator.tools.registry": ("ToolRegistry",),
        "evaluator.tools.tool": ("Tool", "ToolAnswer", "ToolContext", "ToolOutcome", "ToolPreview"),
    }
    __getattr__ = lazy_names("evaluator.tools", _HOMES)

__all__ = [
    "Asker",
    "CallbackAsker",
    "FileAccess",
    "FileAsker",
    "FileText",
    "FolderEntry",
    "FunctionTool",
    "Policy",
    "PolicyRule",
    "ScriptResult",
    "TerminalAsker",
    "Tool",
    "ToolAnswer",
    "ToolContext",
    "ToolOutcome",
    "ToolPreview",
    "ToolRegistry",
    "builtin_tools",
    "run_script",
    "tool",
]


def __dir__() -> list[str]:
    return __all__
