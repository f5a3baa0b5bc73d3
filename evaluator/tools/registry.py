"""Tools that a model may call: their common form, the checks before a call, and failures as outcomes.

A model's arguments are untrusted text. They are parsed strictly, validated against the tool's JSON Schema and checked
against the tool's policy, in that order; only then the tool runs. Every failure becomes a `ToolOutcome` whose text
tells the model what to correct.
"""

from __future__ import annotations

import asyncio
import errno
import json
import re
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from enum import Enum
from math import isinf
from pathlib import PurePath
from typing import Any, Literal, cast

from evaluator.errors import ConfigurationError, LimitReached, MachineError, ToolError, UsageError
from evaluator.errors.machine import machine_error, machine_trouble
from evaluator.errors.messages import did_you_mean, type_of, visible
from evaluator.models.attachments import MAX_BYTES_TOGETHER, Attachment, media_type_of, size_problem
from evaluator.models.backend import ToolSpec
from evaluator.models.text_tools import UNREADABLE
from evaluator.output.validator import MAX_STEPS, BoundedValidator, Watch
from evaluator.processes.sandboxes import NO_SANDBOX, Sandbox
from evaluator.processes.supervisor import MEMORY_BYTES
from evaluator.tools.ask import Asker
from evaluator.tools.file_access import FileAccess
from evaluator.tools.policy import POLICIES, Policy, PolicyRule, decide, strictest

ToolKind = Literal["direct", "subtask"]
OutcomeCode = Literal["unknown_tool", "bad_arguments", "denied", "failed", "timeout", "not_run"]

MAX_RESULT_BYTES = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
CALL_FORM = 'write JSON like {"name": "the tool", "arguments": {"an argument": "its value"}} between the tags'
_MAX_VIOLATIONS = 5
_MAX_ERROR_CHARS = 2_000
_MAX_SHOWN_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The resources of a call: the task's files, the asker, its step in the record, the remaining time, the memory
    that a script may use, and its sandbox. `has_consent`: a person was asked about this call, and allowed it.
    `call_id` is the model's id of the call."""

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
    """A tool. `run` returns text, a JSON value or a `ToolAnswer`, and raises ToolError with a text for the model.

    `retryable`: repeating a call does no harm; a call that fails is made again, and so is one that was interrupted.
    `effect`: a call changes something outside; an interrupted call without effect is made again too. `function` is the
    function that a decorated tool was made from. `rules` are tried before `policy`, see `PolicyRule`. `preview`
    describes what a call would do, for the person who is asked to allow it; it raises ToolError if the call could not
    succeed. `close` releases what the tool keeps between calls; it is called when the task ends. `bounds` are the rules
    and policies of the tasks above: a call needs the consent of each. A decorated tool may be called as its function.
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

    @property
    def name(self) -> str:
        return self.spec.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls `function`, as if it were not decorated: without policy, schema and record.

        Raises: UsageError, for a tool that was not made from a function.
        """
        if self.function is None:
            raise UsageError(f"the tool {self.name!r} was not made from a function; a model calls it, or its `run`")
        return self.function(*args, **kwargs)

    def policy_for(self, arguments: Mapping[str, Any], files: FileAccess) -> Policy:
        """The policy for a call with these arguments. The default of a missing argument counts as its value."""
        defaults = {
            name: schema["default"]
            for name, schema in _declared(self).items()
            if isinstance(schema, dict) and "default" in schema
        }
        given = {**defaults, **arguments}
        own: tuple[tuple[PolicyRule, ...], Policy] = (self.rules, self.policy)
        return strictest(decide(rules, policy, given, files.roots) for rules, policy in (own, *self.bounds))


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of a tool that returns images: text or a JSON value, and the images."""

    content: Any
    images: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of a call. `content` is the text for the model, also of a failure; `error` is None if `ok`.

    `cause` is the exception behind a failure, for the record. `truncated`: the content was cut at its limit. `images`
    are shown to the model with the content. `retryable`: the call failed, and may be made again.
    """

    ok: bool
    content: str
    error: str | None = None
    code: OutcomeCode | None = None
    cause: BaseException | None = None
    truncated: bool = False
    images: tuple[Attachment, ...] = ()
    retryable: bool = False


class ToolRegistry:
    """An immutable set of tools by name; `with_tools` returns a larger one."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            _check_tool(tool)
            if tool.name in self._tools:
                raise ConfigurationError(f"two tools are named {tool.name!r}")
            self._tools[tool.name] = tool

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def names(self) -> tuple[str, ...]:
        return tuple(self._tools)

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def with_tools(self, *tools: Tool) -> ToolRegistry:
        """A registry with these tools too; a tool replaces one of the same name."""
        merged = {**self._tools, **{tool.name: tool for tool in tools}}
        return ToolRegistry(merged.values())

    def with_policies(self, policies: Mapping[str, Policy]) -> ToolRegistry:
        """A registry with other policies for these tools. Raises: ConfigurationError, for an unknown name."""
        for name in policies:
            if name not in self:
                raise ConfigurationError(self._unknown(name))
        return ToolRegistry(replace(tool, policy=policies.get(tool.name, tool.policy)) for tool in self)

    async def aclose(self) -> None:
        """Releases what tools keep between calls."""
        for tool in self:
            if tool.close is not None:
                await tool.close()

    def specs(self) -> tuple[ToolSpec, ...]:
        """The descriptions of the tools for a model."""
        return tuple(tool.spec for tool in self)

    def _unknown(self, name: str) -> str:
        hint = did_you_mean(name[:100], self._tools, "")
        known = ", ".join(self._tools) or "none"
        return f"there is no tool named {name[:100]!r}{hint and f'; {hint}'} (tools: {known})"

    async def call(
        self,
        name: str,
        arguments_json: str,
        context: ToolContext,
        *,
        max_result_bytes: int = MAX_RESULT_BYTES,
        is_retry: bool = False,
    ) -> ToolOutcome:
        """Parses and validates the arguments, asks for consent if the policy requires it, and runs the tool.

        With `is_retry` the call was made before with the same arguments: the consent that was given then is valid.
        Ends within `context.remaining_s`; a result above `max_result_bytes` is cut. Raises only LimitReached,
        MachineError, and asyncio.CancelledError if the call itself is cancelled; every other exception, also one of the
        tool's own code, becomes an outcome.
        """
        tool = self._tools.get(name)
        if tool is None and name == UNREADABLE:
            return _failure("bad_arguments", f"the block is not a call: {_why_unreadable(arguments_json)}; {CALL_FORM}")
        if tool is None:
            return _failure("unknown_tool", self._unknown(name))
        try:
            arguments = parse_arguments(arguments_json)
            validate_arguments(tool, arguments)
        except ToolError as error:
            return _failure("bad_arguments", f"arguments of {name}: {error}", error.__cause__)
        if context.remaining_s <= 0:
            return _failure("not_run", f"{name} was not run: the task has no time left")
        timer = asyncio.timeout(None if isinf(context.remaining_s) else context.remaining_s)
        try:
            async with timer:
                consent = False if is_retry else await ask_consent(tool, arguments, context)
                if isinstance(consent, ToolOutcome):
                    return consent
                value = await tool.run(arguments, replace(context, has_consent=consent))
                answer = value if isinstance(value, ToolAnswer) else ToolAnswer(value)
                text, images = _as_text(answer.content), _checked_images(answer.images)
        except LimitReached:
            raise
        except TimeoutError as error:
            if timer.expired():
                return _failure("timeout", f"{name} was stopped: the task has no time left", error)
            return _failed(tool, f"{name} failed: {_describe(error)}", error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return _failed(tool, f"{name} failed: an operation that it waited for was cancelled", error)
        except ToolError as error:
            _raise_machine_error(error)
            return _failed(tool, str(error) or f"{name} failed", error)
        except (Exception, SystemExit) as error:
            _raise_machine_error(error)
            return _failed(tool, f"{name} failed: {_describe(error)}", error)
        content = _cut(text, max_result_bytes)
        return ToolOutcome(True, content, truncated=content is not text, images=images)


def _raise_machine_error(error: BaseException) -> None:
    """Raises: MachineError, if this machine's own trouble made the tool fail: that is no answer to the model."""
    trouble = machine_trouble(error)
    # Roots may be mounted read-only on purpose: then this is an answer to the model.
    if trouble is not None and trouble.errno == errno.EROFS and not isinstance(error, MachineError):
        return
    if (found := machine_error(error)) is not None:
        raise found from error


def _why_unreadable(text: str) -> str:
    if not text.strip():
        return "it is empty"
    try:
        parse_arguments(text)
    except ToolError as error:
        return str(error)
    return "it names no tool"


def parse_arguments(text: str) -> dict[str, Any]:
    """A model's arguments, parsed strictly: one JSON object, no duplicate names, no NaN. Empty text is an empty object.

    Raises: ToolError, with line, column and the text found there.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        found = text[error.pos : error.pos + 20]
        where = f"at line {error.lineno}, column {error.colno}"
        what = f"found {found!r}" if found else "the text ends there"
        raise ToolError(f"not valid JSON: {error.msg} {where} ({what}); send one JSON object") from error
    except RecursionError as error:
        raise ToolError("nested too deeply; send a flat JSON object") from error
    except ValueError as error:
        raise ToolError(f"not valid JSON: {error}") from error
    if not isinstance(value, dict):
        kind = _JSON_KINDS.get(type(value), "value")
        raise ToolError(f"expected one JSON object with named arguments, found {kind}")
    return cast(dict[str, Any], value)


_JSON_KINDS: dict[type, str] = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the name {twice!r} occurs twice")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def validate_arguments(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Raises ToolError if arguments violate the tool's schema; it names up to five violations with their JSON paths."""
    validator, watch = _validator(tool), Watch()
    try:
        found = validator.errors(arguments, _MAX_VIOLATIONS, watch)
        violations = [f"{violation.json_path}: {_shorten(violation.message, 300)}" for violation in found]
    except Exception as error:  # an unresolvable reference, a pattern that no engine accepts
        raise ToolError(f"the tool's own schema cannot be used: {_describe(error)}") from error
    if violations:
        raise ToolError("; ".join(violations))
    if watch.is_spent:
        raise ToolError(
            f"the arguments are not checked: that takes more than {MAX_STEPS:,} steps; give shorter arguments"
        )
    if watch.late:
        raise ToolError("a pattern of the tool's schema took too long on these arguments: give shorter texts")


_validators: weakref.WeakKeyDictionary[Tool, BoundedValidator] = weakref.WeakKeyDictionary()


def _validator(tool: Tool) -> BoundedValidator:
    validator = _validators.get(tool)
    if validator is None:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(tool.spec.parameters)
        except SchemaError as error:
            raise ToolError(f"the tool's own schema is not valid: {_shorten(error.message, 300)}") from error
        validator = BoundedValidator(tool.spec.parameters, Draft202012Validator)
        _validators[tool] = validator
    return validator


def check_action(arguments: Mapping[str, Any], required: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Raises ToolError for an argument that the action in `arguments["action"]` lacks or does not take."""
    action, known = arguments["action"], (*required, *optional)
    missing = [name for name in required if name not in arguments]
    if missing:
        raise ToolError(f"{action} needs {' and '.join(missing)}")
    unknown = [name for name in arguments if name not in ("action", *known)]
    if unknown:
        takes = ", ".join(known) or "no other argument"
        raise ToolError(f"{action} does not take {' and '.join(unknown)}; it takes {takes}; nothing was done")


def _check_tool(tool: Tool) -> None:
    if not _NAME.fullmatch(tool.name):
        raise ConfigurationError(f"{tool.name!r} is not a tool name: use 1 to 64 letters, digits, '_' and '-'")
    if tool.spec.parameters.get("type") != "object":
        raise ConfigurationError(f"tool {tool.name!r}: its parameters must be a JSON Schema of type object")
    if tool.policy not in POLICIES:
        raise ConfigurationError(f"tool {tool.name!r}: policy {tool.policy!r} is not allow, ask or deny")
    known = _declared(tool)
    for rule in tool.rules:
        if rule.argument not in known and tool.spec.parameters.get("additionalProperties") is False:
            raise ConfigurationError(
                f"tool {tool.name!r}: a rule names the argument {rule.argument!r}; "
                f"the tool's are: {', '.join(known) or 'none'}"
            )


def _declared(tool: Tool) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", tool.spec.parameters.get("properties", {}))


async def ask_consent(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> bool | ToolOutcome:
    """Whether a person was asked and allowed the call; a call that is not allowed gives its outcome instead."""
    policy = tool.policy_for(arguments, context.roots)
    if policy == "allow":
        return False
    if policy == "deny":
        these = " with these arguments" if tool.rules or any(rules for rules, _ in tool.bounds) else ""
        return _failure("denied", f"{tool.name} is not allowed here{these} (policy deny)")
    if context.asker is None:
        return _failure("denied", f"{tool.name} needs consent (policy ask) and there is nobody to ask")
    question = await _question(tool, arguments, context)
    if len(question) > _MAX_SHOWN_CHARS:
        # Consent counts only for what was shown.
        return _failure("denied", f"{tool.name} needs consent, and what it would do is too long to show")
    try:
        answer = await context.asker.ask(question)
    except ToolError as error:
        return _failure("denied", f"{tool.name} needs consent: {error}", error)
    if answer.strip().lower() not in ("y", "yes"):
        return _failure("denied", f"{tool.name} was refused by the user")
    if tool.preview is not None and await _question(tool, arguments, context) != question:
        return _failure("denied", f"what {tool.name} would do changed while the user was asked; call it again")
    return True


async def _question(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> str:
    if tool.preview is None:
        return f"Allow {tool.name} with {visible(json.dumps(arguments, ensure_ascii=False))}? [y/N]"
    return f"Allow {tool.name}?\n{visible(await tool.preview(arguments, context))}\n[y/N]"


def _as_text(value: Any) -> str:
    if isinstance(value, str) and not isinstance(value, Enum):
        return value
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)


def _checked_images(images: Iterable[Attachment]) -> tuple[Attachment, ...]:
    """Raises: ToolError, for data that is not an image by its first bytes, or too large, alone or in total."""
    checked = tuple(images)
    for image in checked:
        problem = image_problem(image)
        if problem is not None:
            raise ToolError(f"{image.source} {problem}")
    if sum(image.size for image in checked) > MAX_BYTES_TOGETHER:
        raise ToolError(f"the images of one result may have at most {MAX_BYTES_TOGETHER:,} bytes in total")
    return checked


def image_problem(image: Attachment) -> str | None:
    """Why an image cannot be shown to a model; None if it can."""
    if not image.is_image or media_type_of(image.data) != image.media_type:
        return f"is not a valid {image.media_type} image"
    problem = size_problem(image.data, image.media_type)
    return None if problem is None else f"cannot be shown: {problem}"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    raise UsageError(f"it returned {type_of(value)}, which is neither text nor a JSON value")


def _cut(text: str, max_bytes: int) -> str:
    if len(text) * 4 <= max_bytes:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= max_bytes:
        return text
    kept = data[:max_bytes]
    while kept and data[len(kept)] & 0xC0 == 0x80:  # not within a character
        kept = kept[:-1]
    shown = kept.decode("utf-8", "surrogatepass")
    return f"{shown}\n[cut: the first {len(kept):,} of {len(data):,} bytes]"


def _failure(code: OutcomeCode, message: str, cause: BaseException | None = None) -> ToolOutcome:
    short = _shorten(message, _MAX_ERROR_CHARS)
    return ToolOutcome(False, f"Error: {short}", short, code, cause)


def _failed(tool: Tool, message: str, cause: BaseException) -> ToolOutcome:
    """The outcome of a call that ran and failed."""
    is_final = isinstance(cause, ToolError) and not cause.retryable
    return replace(_failure("failed", message, cause), retryable=tool.retryable and not is_final)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} characters more)"
