"""The tools that a model may call: one shape for all, checked before anything runs, errors as answers.

A model's arguments are text from outside. They are parsed strictly, validated against the tool's JSON
Schema and held against the tool's policy, in that order; only then the tool runs. Whatever goes wrong comes
back as a `ToolOutcome` that tells the model what to do better.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import re
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, cast

from evaluator.errors import ConfigurationError, LimitReached, ToolError, UsageError
from evaluator.handler.attachments import MAX_BYTES_TOGETHER, Attachment, media_type_of, size_problem
from evaluator.handler.backend import ToolSpec
from evaluator.handler.tools.ask import Asker, visible
from evaluator.handler.tools.files import FileAccess
from evaluator.handler.tools.policy import POLICIES, Policy, Rule, decide
from evaluator.handler.tools.script import MEMORY_BYTES
from evaluator.output.patterns import Watch, bounded, first_errors, undrafted

ToolKind = Literal["direct", "subtask"]
OutcomeCode = Literal["unknown_tool", "bad_arguments", "denied", "failed", "timeout"]

MAX_RESULT_BYTES = 1_000_000
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
UNREADABLE = "unreadable_call"
"""What a call in plain text is called whose block cannot be read; its arguments are the text of the block."""
CALL_FORM = 'write JSON like {"name": "the tool", "arguments": {"an argument": "its value"}} between the tags'
_MAX_VIOLATIONS = 5
_MAX_ERROR_CHARS = 2_000
_MAX_SHOWN_CHARS = 20_000


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a call may reach: the task's files, who answers questions, the step of the record, time left, and the
    memory that a script may hold."""

    roots: FileAccess
    asker: Asker | None = None
    step_path: str = ""
    remaining_s: float = float("inf")
    script_memory_bytes: int = MEMORY_BYTES


ToolFunction = Callable[[dict[str, Any], ToolContext], Awaitable[Any]]
ToolPreview = Callable[[dict[str, Any], ToolContext], Awaitable[str]]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Tool:
    """A tool. `run` returns text, a JSON value or a `ToolAnswer`, and raises ToolError with words for the model.

    `retryable`: repeating a call does no harm. `effect`: a call changes something outside. `function` is the
    Python function that a decorated tool was made from. `rules` come before `policy`, see `Rule`. `preview` says what
    a call would do, for whoever is asked to allow it; it raises ToolError where the call could not succeed. `close`
    ends what the tool keeps between calls, when the task ends.
    """

    spec: ToolSpec
    run: ToolFunction
    kind: ToolKind = "direct"
    policy: Policy = "allow"
    retryable: bool = False
    effect: bool = True
    function: Callable[..., Any] | None = None
    rules: tuple[Rule, ...] = ()
    preview: ToolPreview | None = None
    close: Callable[[], Awaitable[None]] | None = None

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a tool returns that shows something: text or a JSON value, and the images that belong to it."""

    content: Any
    images: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """How a call ended. `content` is what the model is told, also of a failure; `error` is None where `ok`.

    `cause` is the exception behind a failure, for the record. `truncated`: the content was cut to its bound.
    `images` are shown to the model beside the content.
    """

    ok: bool
    content: str
    error: str | None = None
    code: OutcomeCode | None = None
    cause: BaseException | None = None
    truncated: bool = False
    images: tuple[Attachment, ...] = ()


class ToolRegistry:
    """An immutable set of tools by name; `with_tools` gives a larger one."""

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

    def register(self, tool: Tool) -> ToolRegistry:
        """A registry with this tool too. Raises ConfigurationError where the name is taken."""
        return ToolRegistry([*self, tool])

    def with_tools(self, *tools: Tool) -> ToolRegistry:
        """A registry with these tools too; one of a name that is taken replaces the former."""
        merged = {**self._tools, **{tool.name: tool for tool in tools}}
        return ToolRegistry(merged.values())

    def with_policies(self, policies: Mapping[str, Policy]) -> ToolRegistry:
        """A registry with other policies for these tools. Raises ConfigurationError for an unknown name."""
        for name in policies:
            self._require(name)
        return ToolRegistry(replace(tool, policy=policies.get(tool.name, tool.policy)) for tool in self)

    def only(self, names: Iterable[str]) -> ToolRegistry:
        """A registry of the tools named, in that order. Raises ConfigurationError for an unknown name."""
        return ToolRegistry(self._require(name) for name in dict.fromkeys(names))

    async def aclose(self) -> None:
        """Ends what tools keep between calls."""
        for tool in self:
            if tool.close is not None:
                await tool.close()

    def specs(self, names: Iterable[str] | None = None) -> tuple[ToolSpec, ...]:
        """What a model is told of these tools, or of all. Raises ConfigurationError for an unknown name."""
        return tuple(tool.spec for tool in (self if names is None else self.only(names)))

    def _require(self, name: str) -> Tool:
        tool = self._tools.get(name)
        if tool is None:
            raise ConfigurationError(self._unknown(name))
        return tool

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name[:100], self._tools, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        known = ", ".join(self._tools) or "none"
        return f"there is no tool named {name[:100]!r}{hint} (tools: {known})"

    async def call(
        self,
        name: str,
        arguments_json: str,
        context: ToolContext,
        *,
        max_result_bytes: int = MAX_RESULT_BYTES,
    ) -> ToolOutcome:
        """Parses, validates, asks where the policy says so, runs, and bounds the result.

        Ends within `context.remaining_s`. Raises asyncio.CancelledError, where the call itself is cancelled, and
        LimitReached only; everything else, also an exception of the tool's own code, is an outcome.
        """
        tool = self._tools.get(name)
        if tool is None and name == UNREADABLE:
            return _failure("bad_arguments", f"the block is no call: {_why_unreadable(arguments_json)}; {CALL_FORM}")
        if tool is None:
            return _failure("unknown_tool", self._unknown(name))
        try:
            arguments = parse_arguments(arguments_json)
            validate_arguments(tool, arguments)
        except ToolError as error:
            return _failure("bad_arguments", f"arguments of {name}: {error}", error.__cause__)
        if context.remaining_s <= 0:
            return _failure("timeout", f"{name} was not run: the task's time is used up")
        timer = asyncio.timeout(_timeout(context.remaining_s))
        try:
            async with timer:
                refusal = await _consent(tool, arguments, context)
                if refusal is not None:
                    return refusal
                value = await tool.run(arguments, context)
                answer = value if isinstance(value, ToolAnswer) else ToolAnswer(value)
                text, images = _as_text(answer.content), _checked_images(answer.images)
        except LimitReached:
            raise
        except TimeoutError as error:
            if timer.expired():
                return _failure("timeout", f"{name} was stopped: the task's time is used up", error)
            return _failure("failed", f"{name} failed: {_describe(error)}", error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return _failure("failed", f"{name} failed: something that it waited for was cancelled", error)
        except ToolError as error:
            return _failure("failed", str(error) or f"{name} failed", error)
        except (Exception, SystemExit) as error:
            return _failure("failed", f"{name} failed: {_describe(error)}", error)
        bounded = _bounded(text, max_result_bytes)
        return ToolOutcome(True, bounded, truncated=bounded is not text, images=images)


def _why_unreadable(text: str) -> str:
    if not text.strip():
        return "it is empty"
    try:
        parse_arguments(text)
    except ToolError as error:
        return str(error)
    return "it names no tool"


def parse_arguments(text: str) -> dict[str, Any]:
    """A model's arguments, strictly: one JSON object, no name twice, no NaN. Empty text is an empty object.

    Raises: ToolError, with line, column and what was found there.
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
        raise ValueError(f"the name {twice!r} stands there twice")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def validate_arguments(tool: Tool, arguments: Mapping[str, Any]) -> None:
    """Raises ToolError with up to five violations of the tool's schema, each with its JSON path."""
    validator, watch = _validator(tool), Watch()
    try:
        found = first_errors(validator, arguments, watch, _MAX_VIOLATIONS)
        violations = [f"{violation.json_path}: {_shorten(violation.message, 300)}" for violation in found]
    except Exception as error:  # an unresolvable reference, a pattern that no engine takes
        raise ToolError(f"the tool's own schema cannot be used: {_describe(error)}") from error
    if violations:
        raise ToolError("; ".join(violations))
    if watch.late:
        raise ToolError("a pattern of the tool's schema took too long on these arguments: give shorter texts")


_validators: weakref.WeakKeyDictionary[Tool, Any] = weakref.WeakKeyDictionary()


def _validator(tool: Tool) -> Any:
    validator = _validators.get(tool)
    if validator is None:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
        from referencing import Registry

        try:
            Draft202012Validator.check_schema(tool.spec.parameters)
        except SchemaError as error:
            raise ToolError(f"the tool's own schema is not valid: {_shorten(error.message, 300)}") from error
        # An empty registry: a reference to a remote schema is an error and never a request.
        validator = bounded(Draft202012Validator)(undrafted(tool.spec.parameters), registry=Registry())
        _validators[tool] = validator
    return validator


def _check_tool(tool: Tool) -> None:
    if not _NAME.fullmatch(tool.name):
        raise ConfigurationError(f"{tool.name!r} is no tool name: letters, digits, '_' and '-', 1 to 64 of them")
    if tool.spec.parameters.get("type") != "object":
        raise ConfigurationError(f"tool {tool.name!r}: its parameters have to be a JSON Schema of type object")
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


async def _consent(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> ToolOutcome | None:
    """None where the call may go ahead. An argument that was left out is judged by its default."""
    defaults = {
        name: schema["default"]
        for name, schema in _declared(tool).items()
        if isinstance(schema, dict) and "default" in schema
    }
    policy = decide(tool.rules, tool.policy, {**defaults, **arguments}, context.roots.places)
    if policy == "allow":
        return None
    if policy == "deny":
        these = " with these arguments" if tool.rules else ""
        return _failure("denied", f"{tool.name} is not allowed here{these} (policy deny)")
    if context.asker is None:
        return _failure("denied", f"{tool.name} needs consent (policy ask) and there is nobody to ask")
    question = await _question(tool, arguments, context)
    if len(question) > _MAX_SHOWN_CHARS:
        # Consent to what was not shown is none.
        return _failure("denied", f"{tool.name} needs consent, and what it would do is too long to be shown")
    try:
        answer = await context.asker.ask(question)
    except ToolError as error:
        return _failure("denied", f"{tool.name} needs consent: {error}", error)
    if answer.strip().lower() not in ("y", "yes"):
        return _failure("denied", f"{tool.name} was refused by the user")
    if tool.preview is not None and await _question(tool, arguments, context) != question:
        return _failure("denied", f"what {tool.name} would do changed while consent was asked for; call it again")
    return None


async def _question(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> str:
    if tool.preview is None:
        return f"Allow {tool.name} with {visible(json.dumps(arguments, ensure_ascii=False))}? [y/N]"
    return f"Allow {tool.name}?\n{visible(await tool.preview(arguments, context))}\n[y/N]"


def _timeout(remaining_s: float) -> float | None:
    return None if remaining_s == float("inf") else remaining_s


def _as_text(value: Any) -> str:
    if isinstance(value, str) and not isinstance(value, Enum):
        return value
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)


def _checked_images(images: Iterable[Attachment]) -> tuple[Attachment, ...]:
    """Raises: ToolError, for what is no image by its first bytes, or too large, alone or together."""
    checked = tuple(images)
    for image in checked:
        if not image.is_image or media_type_of(image.data) != image.media_type:
            raise ToolError(f"{image.source} is not the {image.media_type} image that it should be")
        problem = size_problem(image.data, image.media_type)
        if problem is not None:
            raise ToolError(f"{image.source} cannot be shown: {problem}")
    if sum(image.size for image in checked) > MAX_BYTES_TOGETHER:
        raise ToolError(f"the images of one answer may hold {MAX_BYTES_TOGETHER:,} bytes together")
    return checked


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    raise UsageError(f"it returned a {type(value).__name__}, which is neither text nor a JSON value")


def _bounded(text: str, max_bytes: int) -> str:
    if len(text) * 4 <= max_bytes:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= max_bytes:
        return text
    kept = data[:max_bytes]
    while kept and data[len(kept)] & 0xC0 == 0x80:  # never within a character
        kept = kept[:-1]
    shown = kept.decode("utf-8", "surrogatepass")
    return f"{shown}\n[cut: the first {len(kept):,} of {len(data):,} bytes]"


def _failure(code: OutcomeCode, message: str, cause: BaseException | None = None) -> ToolOutcome:
    short = _shorten(message, _MAX_ERROR_CHARS)
    return ToolOutcome(False, f"Error: {short}", short, code, cause)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} characters more)"
