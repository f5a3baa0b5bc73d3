"""evaluator: LLM tasks written as XML templates, evaluated in isolation, limited and recorded.

>>> from evaluator import Evaluator                                            # doctest: +SKIP
>>> result = Evaluator().evaluate_sync("summarise", {"text": "..."}).unwrap()  # doctest: +SKIP

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluator.errors import ConfigurationError as ConfigurationError
    from evaluator.errors import CorruptRecord as CorruptRecord
    from evaluator.errors import Diagnostic as Diagnostic
    from evaluator.errors import EvaluatorError as EvaluatorError
    from evaluator.errors import MissingExtra as MissingExtra
    from evaluator.errors import ProviderError as ProviderError
    from evaluator.errors import RecordError as RecordError
    from evaluator.errors import StepChanged as StepChanged
    from evaluator.errors import StepUnfinished as StepUnfinished
    from evaluator.errors import TaskBusy as TaskBusy
    from evaluator.errors import TemplateError as TemplateError
    from evaluator.errors import ToolError as ToolError
    from evaluator.errors import UsageError as UsageError
    from evaluator.front import Evaluator as Evaluator
    from evaluator.handler.backend import Backend as Backend
    from evaluator.handler.backend import Message as Message
    from evaluator.handler.backend import ModelRequest as ModelRequest
    from evaluator.handler.backend import ModelResponse as ModelResponse
    from evaluator.handler.backend import ToolCall as ToolCall
    from evaluator.handler.config import HandlerConfig as HandlerConfig
    from evaluator.handler.config import load_profiles as load_profiles
    from evaluator.handler.litellm_backend import LiteLLMBackend as LiteLLMBackend
    from evaluator.handler.openai_compatible import OpenAICompatibleBackend as OpenAICompatibleBackend
    from evaluator.handler.replay import ReplayBackend as ReplayBackend
    from evaluator.handler.simulated import SimulatedBackend as SimulatedBackend
    from evaluator.handler.tools import Tool as Tool
    from evaluator.handler.tools import tool as tool
    from evaluator.interpreter.replay import Replay as Replay
    from evaluator.library import Match as Match
    from evaluator.library import Template as Template
    from evaluator.library import TemplateLibrary as TemplateLibrary
    from evaluator.memory import GlobalIndex as GlobalIndex
    from evaluator.memory import InMemoryIndex as InMemoryIndex
    from evaluator.memory import Memory as Memory
    from evaluator.nodes import Span as Span
    from evaluator.output import ParsedOutput as ParsedOutput
    from evaluator.output import parse_output as parse_output
    from evaluator.record.store import TaskStore as TaskStore
    from evaluator.results import Resource as Resource
    from evaluator.results import Status as Status
    from evaluator.results import TaskError as TaskError
    from evaluator.results import TaskFailed as TaskFailed
    from evaluator.results import TaskResult as TaskResult
    from evaluator.results import Usage as Usage

__version__ = "0.1.0"

_HOMES = {
    "evaluator.errors": (
        "ConfigurationError", "CorruptRecord", "Diagnostic", "EvaluatorError", "MissingExtra", "ProviderError",
        "RecordError", "StepChanged", "StepUnfinished", "TaskBusy", "TemplateError", "ToolError", "UsageError",
    ),
    "evaluator.front": ("Evaluator",),
    "evaluator.handler.backend": ("Backend", "Message", "ModelRequest", "ModelResponse", "ToolCall"),
    "evaluator.handler.config": ("HandlerConfig", "load_profiles"),
    "evaluator.handler.litellm_backend": ("LiteLLMBackend",),
    "evaluator.handler.openai_compatible": ("OpenAICompatibleBackend",),
    "evaluator.handler.replay": ("ReplayBackend",),
    "evaluator.handler.simulated": ("SimulatedBackend",),
    "evaluator.handler.tools": ("Tool", "tool"),
    "evaluator.interpreter.replay": ("Replay",),
    "evaluator.library": ("Match", "Template", "TemplateLibrary"),
    "evaluator.memory": ("GlobalIndex", "InMemoryIndex", "Memory"),
    "evaluator.nodes": ("Span",),
    "evaluator.output": ("ParsedOutput", "parse_output"),
    "evaluator.record.store": ("TaskStore",),
    "evaluator.results": ("Resource", "Status", "TaskError", "TaskFailed", "TaskResult", "Usage"),
}  # fmt: skip
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME, "__version__"])  # pyright: ignore[reportUnsupportedDunderAll]

if not TYPE_CHECKING:
    # A type checker sees the imports above, and a name that is none of them as an error.
    def __getattr__(name: str) -> Any:
        try:
            module = _HOME[name]
        except KeyError:
            raise AttributeError(f"module 'evaluator' has no attribute {name!r}") from None
        value = getattr(import_module(module), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
