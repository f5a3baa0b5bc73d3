"""The tools that a model may call: the checks before a call, the call, and failures as outcomes.

A model's arguments are untrusted text. They are parsed strictly, validated against the tool's JSON
Schema and checked against the tool's policy, in that order; only then the tool runs. Every failure
becomes a `ToolOutcome` whose text tells the model what to correct.
"""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from math import isinf
from typing import Any

from evaluator.errors import (
    ConfigurationError,
    LimitReached,
    MachineError,
    ToolError,
    machine_error,
    machine_trouble,
)
from evaluator.errors.messages import did_you_mean, visible
from evaluator.models.backend import ToolSpec
from evaluator.tools.arguments import CALL_FORM, parse_arguments, validate_arguments, why_unreadable
from evaluator.tools.tool import (
    Tool,
    ToolAnswer,
    ToolContext,
    ToolOutcome,
    as_text,
    check_tool,
    checked_images,
    cut,
    describe_error,
    failed,
    failure,
)

MAX_RESULT_BYTES = 1_000_000
_MAX_SHOWN_CHARS = 20_000


class ToolRegistry:
    """An immutable set of tools by name; `with_tools` returns a larger one. A function that returns
    the tools is called when they are first needed.
    """

    def __init__(self, tools: Iterable[Tool] | Callable[[], Iterable[Tool]] = ()) -> None:
        self._source = tools
        if not callable(tools):
            _ = self._tools  # they are checked now

    @cached_property
    def _tools(self) -> dict[str, Tool]:
        source = self._source
        found: dict[str, Tool] = {}
        for tool in source() if callable(source) else source:
            check_tool(tool)
            if tool.name in found:
                raise ConfigurationError(f"two tools are named {tool.name!r}")
            found[tool.name] = tool
        return found

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

    async def aclose(self) -> None:
        """Releases what tools keep between calls."""
        for tool in self:
            if tool.close is not None:
                await tool.close()

    def specs(self) -> tuple[ToolSpec, ...]:
        """The descriptions of the tools for a model."""
        return tuple(tool.spec for tool in self)

    async def call(
        self,
        name: str,
        arguments_json: str,
        context: ToolContext,
        *,
        max_result_bytes: int = MAX_RESULT_BYTES,
        is_retry: bool = False,
    ) -> ToolOutcome:
        """Parses and validates the arguments, asks for consent if the policy requires it, and runs
        the tool.

        With `is_retry` the call was made before with the same arguments: the consent that was given
        then is valid. Ends within `context.remaining_s`; a result above `max_result_bytes` is cut.
        Raises only LimitReached, MachineError, and asyncio.CancelledError if the call itself is
        cancelled; every other exception, also one of the tool's own code, becomes an outcome.
        """
        tool = self._tools.get(name)
        if tool is None:
            from evaluator.models.text_tools import UNREADABLE

            if name == UNREADABLE:
                return failure(
                    "bad_arguments",
                    f"the block is not a call: {why_unreadable(arguments_json)}; {CALL_FORM}",
                )
            hint = did_you_mean(name[:100], self._tools, otherwise="")
            known = ", ".join(self._tools) or "none"
            message = f"there is no tool named {name[:100]!r}{hint and f'; {hint}'}"
            return failure("unknown_tool", f"{message} (tools: {known})")
        try:
            arguments = parse_arguments(arguments_json)
            validate_arguments(tool, arguments)
        except ToolError as error:
            return failure("bad_arguments", f"arguments of {name}: {error}", cause=error.__cause__)
        if context.remaining_s <= 0:
            return failure("not_run", f"{name} was not run: the task has no time left")
        timer = asyncio.timeout(None if isinf(context.remaining_s) else context.remaining_s)
        try:
            async with timer:
                consent = not is_retry and await ask_consent(tool, arguments, context=context)
                if isinstance(consent, ToolOutcome):
                    return consent
                value = await tool.run(arguments, replace(context, has_consent=consent))
                if isinstance(value, ToolAnswer):
                    answer = value
                else:
                    answer = ToolAnswer(value)
                text = as_text(answer.content)
                images = checked_images(answer.images)
        except LimitReached:
            raise
        except TimeoutError as error:
            if timer.expired():
                return failure(
                    "timeout", f"{name} was stopped: the task has no time left", cause=error
                )
            return failed(tool, f"{name} failed: {describe_error(error)}", cause=error)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return failed(
                tool, f"{name} failed: an operation that it waited for was cancelled", cause=error
            )
        except ToolError as error:
            _raise_machine_error(error)
            return failed(tool, str(error) or f"{name} failed", cause=error)
        except (Exception, SystemExit) as error:
            _raise_machine_error(error)
            return failed(tool, f"{name} failed: {describe_error(error)}", cause=error)
        content = cut(text, max_result_bytes)
        return ToolOutcome(True, content, truncated=content is not text, images=images)


def _raise_machine_error(error: BaseException) -> None:
    """Raises: MachineError, if this machine's own trouble made the tool fail: that is no answer to
    the model.
    """
    trouble = machine_trouble(error)
    # Roots may be mounted read-only on purpose: then this is an answer to the model.
    if trouble is not None and trouble.errno == errno.EROFS and not isinstance(error, MachineError):
        return
    if (found := machine_error(error)) is not None:
        raise found from error


async def ask_consent(
    tool: Tool, arguments: dict[str, Any], context: ToolContext
) -> bool | ToolOutcome:
    """Whether a person was asked and allowed the call; a call that is not allowed gives its outcome
    instead.
    """
    policy = tool.policy_for(arguments, context.roots)
    if policy == "allow":
        return False
    if policy == "deny":
        has_rules = tool.rules or any(rules for rules, _ in tool.bounds)
        these = ""
        if has_rules:
            these = " with these arguments"
        return failure("denied", f"{tool.name} is not allowed here{these} (policy deny)")
    if context.asker is None:
        return failure(
            "denied", f"{tool.name} needs consent (policy ask) and there is nobody to ask"
        )
    question = await _question(tool, arguments, context=context)
    if len(question) > _MAX_SHOWN_CHARS:
        # Consent counts only for what was shown.
        return failure(
            "denied", f"{tool.name} needs consent, and what it would do is too long to show"
        )
    try:
        answer = await context.asker.ask(question)
    except ToolError as error:
        return failure("denied", f"{tool.name} needs consent: {error}", cause=error)
    if answer.strip().lower() not in ("y", "yes"):
        return failure("denied", f"{tool.name} was refused by the user")
    if tool.preview is not None and await _question(tool, arguments, context=context) != question:
        return failure(
            "denied", f"what {tool.name} would do changed while the user was asked; call it again"
        )
    return True


async def _question(tool: Tool, arguments: dict[str, Any], context: ToolContext) -> str:
    if tool.preview is None:
        return f"Allow {tool.name} with {visible(json.dumps(arguments, ensure_ascii=False))}? [y/N]"
    return f"Allow {tool.name}?\n{visible(await tool.preview(arguments, context))}\n[y/N]"
