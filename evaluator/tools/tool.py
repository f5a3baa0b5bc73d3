"""A tool that a model may call, the resources of a call, its result and its outcome."""

from __future__ import annotations

import codecs
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass, replace
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, cast, get_args

from evaluator.errors import ConfigurationError, ToolError, UsageError
from evaluator.errors.messages import type_of
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.models.attachments import MAX_BYTES_TOGETHER, Attachment, media_type_of, size_problem
from evaluator.models.backend import ToolSpec
from evaluator.patterns import Pattern
from evaluator.processes.sandboxes import MEMORY_BYTES, NO_SANDBOX, Sandbox
from evaluator.tools.ask import Asker
from evaluator.tools.file_access import FileAccess
from evaluator.tools.policy import POLICIES, Policy, PolicyRule, decide, strictest

MANAGE_TASK = "manage_task"
"""The tool that keeps task lists, which a profile grants with a role."""


def as_text(value: Any) -> str:
    """Text as it is, other values as JSON. Raises: UsageError, for what JSON cannot express."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return value
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)


def object_schema(
    properties: Mapping[str, Any], required: Sequence[str] | None = None
) -> dict[str, Any]:
    """The JSON Schema of an object with these properties and no others."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required is not None:
        schema["required"] = required
    return schema | {"additionalProperties": False}


def text_schema(description: str) -> dict[str, Any]:
    """The JSON Schema of a string."""
    return {"type": "string", "description": description}


def checked_images(images: Iterable[Attachment]) -> tuple[Attachment, ...]:
    """Raises: ToolError, for data that is not an image by its first bytes, or too large, alone or
    in total.
    """
    checked = tuple(images)
    for image in checked:
        problem = image_problem(image)
        if problem is not None:
            raise ToolError(f"{image.source} {problem}")
    if sum(image.size for image in checked) > MAX_BYTES_TOGETHER:
        raise ToolError(
            f"the images of one result may have at most {MAX_BYTES_TOGETHER:,} bytes in total"
        )
    return checked


def image_problem(image: Attachment) -> str | None:
    """Why an image cannot be shown to a model; None if it can."""
    if not image.is_image or media_type_of(image.data) != image.media_type:
        return f"is not a valid {image.media_type} image"
    problem = size_problem(image.data, image.media_type)
    if problem is None:
        return None
    return f"cannot be shown: {problem}"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    raise UsageError(f"it returned {type_of(value)}, which is neither text nor a JSON value")


def cut(text: str, max_bytes: int) -> str:
    """The text; of a longer one the beginning, with a last line that says so."""
    if len(text) * 4 <= max_bytes:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= max_bytes:
        return text
    # An incomplete last character is left out.
    shown, size = codecs.utf_8_decode(data[:max_bytes], "surrogatepass", False)
    return f"{shown}\n[cut: the first {size:,} of {len(data):,} bytes]"


ToolKind = Literal["direct", "subtask"]
Control = Literal["programs", "screen", "network"]
OutcomeCode = Literal["unknown_tool", "bad_arguments", "denied", "failed", "timeout", "not_run"]

_MAX_ERROR_CHARS = 2_000
_NAME = Pattern(r"[A-Za-z0-9_-]{1,64}")


@frozen
class ToolContext:
    """The resources of a call: the task's files, the asker, its step in the record, the remaining
    time, the memory that a script may use, and its sandbox. `has_consent`: a person was asked about
    this call, and allowed it. `call_id` is the model's id of the call.
    """

    roots: FileAccess
    asker: Asker | None = None
    step_path: str = ""
    remaining_s: float = float("inf")
    script_memory_bytes: int = MEMORY_BYTES
    sandbox: Sandbox = NO_SANDBOX
    has_consent: bool = False
    call_id: str = ""


ToolFunction = Callable[[dict[str, Any], ToolContext], Awaitable[Any]]
ToolPreview = Callable[[dict[str, Any], ToolContext], Awaitable[str]]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Tool:
    """A tool. `run` returns text, a JSON value or a `ToolAnswer`, and raises ToolError with a text
    for the model.

    `retryable`: repeating a call does no harm; a call that fails is made again, and so is one that
    was interrupted.
    `effect`: a call changes something outside; an interrupted call without effect is made again
    too. `function` is the function that a decorated tool was made from. `rules` are tried before
    `policy`, see `PolicyRule`. `preview` describes what a call would do, for the person who is
    asked to allow it; it raises ToolError if the call could not succeed. `close` releases what the
    tool keeps between calls; it is called when the task ends. `bounds` are the rules and policies
    of the tasks above: a call needs the consent of each. `controls`: a call runs programs, acts on
    the screen, or sends to the network; see `controls_of`. A decorated tool may be called as its
    function.
    """

    spec: ToolSpec
    run: ToolFunction
    kind: ToolKind = "direct"
    policy: Policy = "allow"
    retryable: bool = False
    effect: bool = True
    function: Callable[..., Any] | None = None
    rules: tuple[PolicyRule, ...] = ()
    preview: ToolPreview | None = None
    close: Callable[[], Awaitable[None]] | None = None
    bounds: tuple[tuple[tuple[PolicyRule, ...], Policy], ...] = ()
    controls: Control | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls `function`, as if it were not decorated: without policy, schema and record.

        Raises: UsageError, for a tool that was not made from a function.
        """
        if self.function is None:
            raise UsageError(
                f"the tool {self.name!r} was not made from a function; a model calls it, or its "
                "`run`"
            )
        return self.function(*args, **kwargs)

    def policy_for(self, arguments: Mapping[str, Any], files: FileAccess) -> Policy:
        """The policy for a call with these arguments. The default of a missing argument counts as
        its value.
        """
        defaults = {
            name: schema["default"]
            for name, schema in declared_arguments(self).items()
            if isinstance(schema, dict) and "default" in schema
        }
        given = {**defaults, **arguments}
        own: tuple[tuple[PolicyRule, ...], Policy] = (self.rules, self.policy)
        return strictest(
            decide(rules, policy, arguments=given, roots=files.roots)
            for rules, policy in (own, *self.bounds)
        )


@frozen
class ToolAnswer:
    """The result of a tool that returns images: text or a JSON value, and the images."""

    content: Any
    images: tuple[Attachment, ...] = ()


@frozen
class ToolOutcome:
    """The outcome of a call. `content` is the text for the model, also of a failure; `error` is
    None if `ok`.

    `cause` is the exception behind a failure, for the record. `truncated`: the content was cut at
    its limit. `images` are shown to the model with the content. `retryable`: the call failed, and
    may be made again.
    """

    ok: bool
    content: str
    error: str | None = None
    code: OutcomeCode | None = None
    cause: BaseException | None = None
    truncated: bool = False
    images: tuple[Attachment, ...] = ()
    retryable: bool = False


def declared_arguments(tool: Tool) -> Mapping[str, Any]:
    """The schemas of the tool's arguments by name."""
    return cast("Mapping[str, Any]", tool.spec.parameters.get("properties", {}))


def check_tool(tool: Tool) -> None:
    """Raises: ConfigurationError, for a tool whose name, parameters, policy or rules cannot be
    used.
    """
    if not _NAME.fullmatch(tool.name):
        raise ConfigurationError(
            f"{tool.name!r} is not a tool name: use 1 to 64 letters, digits, '_' and '-'"
        )
    problem = _problem(tool)
    if problem is not None:
        raise ConfigurationError(f"tool {tool.name!r}: {problem}")


def _problem(tool: Tool) -> str | None:
    parameters = tool.spec.parameters
    if parameters.get("type") != "object":
        return "its parameters must be a JSON Schema of type object"
    if tool.policy not in POLICIES:
        return f"policy {tool.policy!r} is not allow, ask or deny"
    if tool.controls not in (None, *get_args(Control)):
        return f"controls is {tool.controls!r}, expected 'programs', 'screen' or 'network'"
    known = declared_arguments(tool)
    for rule in tool.rules:
        if rule.argument not in known and parameters.get("additionalProperties") is False:
            return (
                f"a rule names the argument {rule.argument!r}; "
                f"the tool's are: {', '.join(known) or 'none'}"
            )
    return None


def failure(code: OutcomeCode, message: str, cause: BaseException | None = None) -> ToolOutcome:
    """The outcome of a call that was not made, or failed for the reason in `code`."""
    short = shorten(message, _MAX_ERROR_CHARS)
    return ToolOutcome(False, f"Error: {short}", error=short, code=code, cause=cause)


def failed(tool: Tool, message: str, cause: BaseException) -> ToolOutcome:
    """The outcome of a call that ran and failed."""
    is_final = isinstance(cause, ToolError) and not cause.retryable
    return replace(
        failure("failed", message, cause=cause), retryable=tool.retryable and not is_final
    )


def describe_error(error: BaseException) -> str:
    """The class and the message of an exception."""
    name = type(error).__name__
    if str(error):
        return f"{name}: {error}"
    return name


def shorten(text: str, limit: int) -> str:
    """The text; of a longer one the first `limit` characters, and how many were left out."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit} characters more)"
