"""Tools that a model may call, and the limits within which calls run."""

from evaluator.processes.scripts import ScriptResult, run_script
from evaluator.tools.ask import Asker, CallbackAsker, FileAsker, TerminalAsker
from evaluator.tools.builtin import builtin_tools
from evaluator.tools.decorator import FunctionTool, tool
from evaluator.tools.file_access import FileAccess, FileText, FolderEntry
from evaluator.tools.policy import Policy, PolicyRule
from evaluator.tools.registry import ToolRegistry
from evaluator.tools.tool import Tool, ToolAnswer, ToolContext, ToolOutcome, ToolPreview

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
