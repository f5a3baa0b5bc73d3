"""evaluator: LLM tasks written as XML templates, evaluated in isolation, limited and recorded.

>>> from evaluator import Evaluator, run_batch_sync
>>> evaluator = Evaluator(handler="offline")  # a simulated model; without it a real one
>>> question = {"question": "What is the capital of Australia?"}
>>> evaluator.evaluate_sync("answer_question", question).unwrap().content
'Canberra'
>>> rows = [{"question": "What is the symbol of iron?", "target": "Fe"}]
>>> batch = run_batch_sync("answer_question", rows, evaluator=evaluator, scorers=["includes"])
>>> batch.summary.counts.passed
1

Names are loaded when they are first used, so that importing the package costs next to nothing.
"""

from __future__ import annotations

from evaluator.lazy_names import lazy_names

# That of `typing`, whose import takes 30 ms, in which Ctrl-C would print a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from evaluator.batch.run import BatchResult as BatchResult
    from evaluator.batch.run import run_batch as run_batch
    from evaluator.batch.run import run_batch_sync as run_batch_sync
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
    from evaluator.errors.results import Outcome as Outcome
    from evaluator.errors.results import Resource as Resource
    from evaluator.errors.results import Status as Status
    from evaluator.errors.results import TaskError as TaskError
    from evaluator.errors.results import TaskFailed as TaskFailed
    from evaluator.errors.results import TaskResult as TaskResult
    from evaluator.errors.results import Usage as Usage
    from evaluator.handler.config import HandlerConfig as HandlerConfig
    from evaluator.handler.config import ToolGrant as ToolGrant
    from evaluator.handler.profiles import load_profiles as load_profiles
    from evaluator.interpreter.chat import Chat as Chat
    from evaluator.interpreter.chat import ChatReply as ChatReply
    from evaluator.interpreter.compile import CompiledTask as CompiledTask
    from evaluator.interpreter.evaluator import Evaluator as Evaluator
    from evaluator.interpreter.preview import Preview as Preview
    from evaluator.interpreter.recovery import Replay as Replay
    from evaluator.library import Match as Match
    from evaluator.library import Template as Template
    from evaluator.library import TemplateLibrary as TemplateLibrary
    from evaluator.memory import GlobalIndex as GlobalIndex
    from evaluator.memory import InMemoryIndex as InMemoryIndex
    from evaluator.memory import Memory as Memory
    from evaluator.models.attachments import Attachment as Attachment
    from evaluator.models.backend import Backend as Backend
    from evaluator.models.backend import CacheMark as CacheMark
    from evaluator.models.backend import Hints as Hints
    from evaluator.models.backend import Message as Message
    from evaluator.models.backend import ModelRequest as ModelRequest
    from evaluator.models.backend import ModelResponse as ModelResponse
    from evaluator.models.backend import ToolCall as ToolCall
    from evaluator.models.backend import ToolSpec as ToolSpec
    from evaluator.models.cache import ResponseCache as ResponseCache
    from evaluator.models.litellm_backend import LiteLLMBackend as LiteLLMBackend
    from evaluator.models.logprobs import TokenLogprob as TokenLogprob
    from evaluator.models.openai_compatible import (
        OpenAICompatibleBackend as OpenAICompatibleBackend,
    )
    from evaluator.models.replay import ReplayBackend as ReplayBackend
    from evaluator.models.simulated import SimulatedBackend as SimulatedBackend
    from evaluator.nodes import Span as Span
    from evaluator.output import ParsedOutput as ParsedOutput
    from evaluator.output import parse_output as parse_output
    from evaluator.processes.sandboxes import Sandbox as Sandbox
    from evaluator.record.recorded_steps import ChangedStep as ChangedStep
    from evaluator.record.steps import Recording as Recording
    from evaluator.record.store import TaskStore as TaskStore
    from evaluator.record.task_folder import TaskSummary as TaskSummary
    from evaluator.tools import Tool as Tool
    from evaluator.tools import tool as tool
    from evaluator.tools.mcp.servers import McpServer as McpServer

__version__ = "0.1.0"

_HOMES = {
    "evaluator.errors": (
        "ConfigurationError",
        "CorruptRecord",
        "Diagnostic",
        "EvaluatorError",
        "MissingExtra",
        "ProviderError",
        "RecordError",
        "StepChanged",
        "StepUnfinished",
        "TaskBusy",
        "TemplateError",
        "ToolError",
        "UsageError",
    ),
    "evaluator.batch.run": ("BatchResult", "run_batch", "run_batch_sync"),
    "evaluator.interpreter.evaluator": ("Evaluator",),
    "evaluator.models.attachments": ("Attachment",),
    "evaluator.models.backend": (
        "Backend",
        "CacheMark",
        "Hints",
        "Message",
        "ModelRequest",
        "ModelResponse",
        "ToolCall",
        "ToolSpec",
    ),
    "evaluator.models.cache": ("ResponseCache",),
    "evaluator.handler.config": ("HandlerConfig", "ToolGrant"),
    "evaluator.handler.profiles": ("load_profiles",),
    "evaluator.models.logprobs": ("TokenLogprob",),
    "evaluator.models.litellm_backend": ("LiteLLMBackend",),
    "evaluator.models.openai_compatible": ("OpenAICompatibleBackend",),
    "evaluator.models.replay": ("ReplayBackend",),
    "evaluator.models.simulated": ("SimulatedBackend",),
    "evaluator.processes.sandboxes": ("Sandbox",),
    "evaluator.tools": ("Tool", "tool"),
    "evaluator.tools.mcp.servers": ("McpServer",),
    "evaluator.interpreter.chat": ("Chat", "ChatReply"),
    "evaluator.interpreter.compile": ("CompiledTask",),
    "evaluator.interpreter.preview": ("Preview",),
    "evaluator.interpreter.recovery": ("Replay",),
    "evaluator.library": ("Match", "Template", "TemplateLibrary"),
    "evaluator.memory": ("GlobalIndex", "InMemoryIndex", "Memory"),
    "evaluator.nodes": ("Span",),
    "evaluator.output": ("ParsedOutput", "parse_output"),
    "evaluator.record.steps": ("Recording",),
    "evaluator.record.recorded_steps": ("ChangedStep",),
    "evaluator.record.store": ("TaskStore",),
    "evaluator.record.task_folder": ("TaskSummary",),
    "evaluator.errors.results": (
        "Outcome",
        "Resource",
        "Status",
        "TaskError",
        "TaskFailed",
        "TaskResult",
        "Usage",
    ),
}

__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    ["__version__", *(name for names in _HOMES.values() for name in names)]
)

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
