"""Tools: what a model may call, and the bounds inside which the calls run."""

from evaluator.handler.tools.ask import Asker, CallbackAsker, FileAsker, TerminalAsker
from evaluator.handler.tools.builtin import builtin_tools
from evaluator.handler.tools.decorator import tool
from evaluator.handler.tools.files import Entry, FileAccess, FileText
from evaluator.handler.tools.policy import Policy, Rule
from evaluator.handler.tools.registry import Tool, ToolAnswer, ToolContext, ToolOutcome, ToolPreview, ToolRegistry
from evaluator.handler.tools.script import ScriptResult, run_script

__all__ = [
    "Asker",
    "CallbackAsker",
    "Entry",
    "FileAccess",
    "FileAsker",
    "FileText",
    "Policy",
    "Rule",
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
