"""Tool calling for models that have none: a Backend around a Backend that speaks a protocol of plain text.

Tools are described in the system message; a call is a `<tool_call>` block in the answer, or a JSON object that
names an offered tool and its arguments; results go back as user messages. What comes out is an ordinary
response with tool calls, so nothing else knows of it. Text that holds no call is the answer, as it is. What
stands inside reasoning tags is never a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

from evaluator.handler.attachments import Attachment, told
from evaluator.handler.backend import Backend, Message, ModelRequest, ModelResponse, ToolCall, ToolSpec
from evaluator.handler.tools.registry import UNREADABLE
from evaluator.output.extract import Block, Extract, extract
from evaluator.output.repairs import MESSAGES

MAX_CALLS = 50
"""Blocks in one answer that are looked at; what follows stays text."""

_MOST_WAITING = 10_000
_OPEN = re.compile(r"<tool_calls?>", re.I)
_CLOSE = re.compile(r"\s*(?:```\s*)?</tool_calls?>", re.I)
_CLOSE_ALONE = re.compile(r"</tool_calls?>", re.I)
_BETWEEN = re.compile(r"\s*(?:```[\w+#.-]{0,20}[ \t]*\n?\s*)?")
_FENCE_BEFORE = re.compile(r"```[ \t]*(?:json|tool_call)?[ \t]*\n\s*\Z", re.I)
_FENCE_AFTER = re.compile(r"\s*\n?```")
_NAME = re.compile(r"""["']?(?:name|tool)["']?\s*[:=]\s*["']([^"'\s]{1,200})["']""")
_NAMES = ("name", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "args", "parameters", "input")


class TextToolsBackend:
    """`inner`, with tools spoken of in text. Its name is `inner`'s; closing it closes `inner`.

    With `on_text`, text is passed on as it comes up to the first place that may begin a call; what stands after
    that follows when the answer is whole, without the calls.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        return self.inner.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    async def complete(self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None) -> ModelResponse:
        """As the backend inside: one attempt, and what that raises."""
        if not request.tools:
            return await self.inner.complete(replace(request, messages=_spoken(request.messages)), on_text=on_text)
        asked = replace(
            request,
            messages=_described(_spoken(request.messages), request.tools),
            tools=(),
            # An answer that is held to a schema cannot call anything.
            schema=None,
        )
        held = None if on_text is None else _Held(on_text)
        response = await self.inner.complete(asked, on_text=None if held is None else held.hear)
        turn = sum(message.role == "assistant" for message in request.messages) + 1
        read = response if response.tool_calls else _with_calls(response, request.tools, turn)
        if held is not None:
            held.end(read.content)
        return read

    async def aclose(self) -> None:
        await self.inner.aclose()


class _Held:
    """Streams what cannot be part of a call. Trailing blanks wait as well: before a call they are left out."""

    _START = re.compile(r"<tool_calls?>|[{\[]|```", re.I)
    _MAY_START = re.compile(r"\s*(?:<(?:t(?:o(?:o(?:l(?:_(?:c(?:a(?:l(?:ls?)?)?)?)?)?)?)?)?)?|`{1,2})?\Z", re.I)

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._waiting = ""
        self._holds = False
        self._passed = 0

    def hear(self, piece: str) -> None:
        if self._holds:
            return
        self._waiting += piece
        start = self._START.search(self._waiting)
        if start is not None or len(self._waiting) > _MOST_WAITING:
            self._holds = True
            sure = len(self._waiting[: start.start() if start else None].rstrip())
        else:
            may_start = self._MAY_START.search(self._waiting)
            sure = len(self._waiting) if may_start is None else may_start.start()
        self._pass(self._waiting[:sure])
        self._waiting = self._waiting[sure:]

    def end(self, content: str) -> None:
        """Passes on what of the whole `content` has not been passed yet."""
        self._pass(content[self._passed :])

    def _pass(self, text: str) -> None:
        if text:
            self._passed += len(text)
            self._on_text(text)


# -- what the model is sent ---------------------------------------------------------------------------------------


def _described(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[Message, ...]:
    lines = [
        "You can call tools. To call one, write a block of exactly this form, with JSON inside, and stop after it:",
        '<tool_call>\n{"name": "the tool", "arguments": {"an argument": "its value"}}\n</tool_call>',
        "Several blocks are several calls. The results come in the next message. When you need no tool, answer "
        "without such a block.",
        "The tools, each with the JSON Schema of its arguments:",
        *(f"- {tool.name}: {tool.description}\n  {_dumps(tool.parameters)}" for tool in tools),
    ]
    told = "\n\n".join(lines)
    if messages and messages[0].role == "system":
        return (replace(messages[0], content=f"{messages[0].content}\n\n{told}"), *messages[1:])
    return (Message("system", told), *messages)


def _spoken(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Calls and results as text; the results of one turn make one user message, their images with it."""
    spoken: list[Message] = []
    names: dict[str | None, str] = {}
    results: list[str] = []
    images: list[Attachment] = []
    for message in messages:
        if message.role == "tool":
            name = names.get(message.tool_call_id, "tool")
            text = told(message.content, message.attachments)
            results.append(f'<tool_result name="{name}">\n{text}\n</tool_result>')
            images += [image for image in message.attachments if image.data]
            continue
        if results:
            spoken.append(Message("user", "\n".join(results), attachments=tuple(images)))
            results, images = [], []
        if message.tool_calls:
            names.update((call.id, call.name) for call in message.tool_calls)
            blocks = [_block(call) for call in message.tool_calls]
            text = "\n".join([message.content, *blocks] if message.content else blocks)
            message = replace(message, content=text, tool_calls=())
        spoken.append(message)
    if results:
        spoken.append(Message("user", "\n".join(results), attachments=tuple(images)))
    return tuple(spoken)


def _block(call: ToolCall) -> str:
    if call.name == UNREADABLE:
        return f"<tool_call>\n{call.arguments}\n</tool_call>"
    return f'<tool_call>\n{{"name": {_dumps(call.name)}, "arguments": {call.arguments or "{}"}}}\n</tool_call>'


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)


# -- what the model said ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """One call and the stretch of text that it takes up."""

    name: str
    arguments: str
    start: int
    end: int
    repairs: tuple[str, ...] = ()


def _with_calls(response: ModelResponse, tools: Sequence[ToolSpec], turn: int) -> ModelResponse:
    """`response` with the calls that its text holds, and the text that is left around them."""
    found = list(_find(response.content, {tool.name for tool in tools}))
    if not found:
        return response
    kept: list[str] = []
    position = 0
    for call in found:
        if call.start >= position:
            kept.append(response.content[position : call.start].rstrip())
            position = call.end
    kept.append(response.content[position:].rstrip())
    calls = tuple(ToolCall(f"text_{turn}_{n}", call.name, call.arguments) for n, call in enumerate(found, 1))
    warnings = [
        f"a call of {call.name} was read with a repair: {MESSAGES.get(repair, repair)}"
        for call in found
        for repair in call.repairs
    ]
    return replace(
        response,
        content="".join(kept).rstrip(),
        tool_calls=calls,
        finish_reason="tool_calls" if response.finish_reason in ("stop", "unknown") else response.finish_reason,
        warnings=(*response.warnings, *dict.fromkeys(warnings)),
    )


def _find(text: str, offered: set[str]) -> Iterator[_Found]:
    if not text or not ("{" in text or _OPEN.search(text)):
        return
    read = extract(text)
    position = 0
    for start, tag_end, block in _places(text, read):
        if start < position:
            continue
        if tag_end is None:
            assert block is not None
            if not _is_plain_call(block, offered):
                continue
            fence = _FENCE_BEFORE.search(text, max(0, block.start - 40), block.start)
            after = _FENCE_AFTER.match(text, block.end) if fence else None
            start, position = (fence.start(), after.end()) if fence and after else (block.start, block.end)
            yield from _calls(block, text, start, position)
            continue
        at = _BETWEEN.match(text, tag_end)
        inside = block if block is not None and at is not None and block.start == at.end() else None
        if inside is not None and not inside.cut:
            close = _CLOSE.match(text, inside.end)
            position = close.end() if close else inside.end
            yield from _calls(inside, text, start, position)
            continue
        raw_end, position = _raw_end(text, tag_end)
        yield _unread(text[tag_end:raw_end], start, position)


def _places(text: str, read: Extract) -> Iterator[tuple[int, int | None, Block | None]]:
    """In the order of the text: opening tags with the block that follows, and blocks; none of them in reasoning."""
    blocks = read.blocks
    tags = [
        tag
        for tag in islice(_OPEN.finditer(text), MAX_CALLS)
        if not any(start <= tag.start() < end for start, end in read.removed)
        and not any(block.start < tag.start() < block.end for block in blocks)
    ]
    places: list[tuple[int, int | None, Block | None]] = [(block.start, None, block) for block in blocks]
    for tag in tags:
        places.append((tag.start(), tag.end(), next((b for b in blocks if b.start >= tag.end()), None)))
    places.sort(key=lambda place: place[0])
    yield from places


def _raw_end(text: str, begin: int) -> tuple[int, int]:
    """Where the inside of a block that cannot be read ends, and where the text goes on after it."""
    close = _CLOSE_ALONE.search(text, begin)
    following = _OPEN.search(text, begin)
    if close is not None and (following is None or close.start() < following.start()):
        return close.start(), close.end()
    end = len(text) if following is None else following.start()
    return end, end


def _unread(inside: str, start: int, end: int) -> _Found:
    """A call whose JSON is beyond repair, or cut off: the registry refuses its arguments and says why."""
    name = _NAME.search(inside)
    return _Found(name[1] if name else UNREADABLE, inside.strip(), start, end)


def _is_plain_call(block: Block, offered: set[str]) -> bool:
    """Whether JSON without a tag around it is meant as a call: it names an offered tool and its arguments."""
    if block.cut:
        return False
    items: list[Any] = cast("list[Any]", block.value) if isinstance(block.value, list) else [block.value]
    if not items:
        return False
    for item in items:
        known = _mapping(item)
        name, arguments = (None, None) if known is None else _parts(known)
        if name not in offered or arguments is None:
            return False
    return True


def _calls(block: Block, text: str, start: int, end: int) -> Iterator[_Found]:
    items: list[Any] = cast("list[Any]", block.value) if isinstance(block.value, list) else [block.value]
    for item in items or [None]:
        known = _mapping(item)
        name, arguments = (None, None) if known is None else _parts(known)
        if name is None:
            yield _unread(text[block.start : block.end], start, end)
        else:
            yield _Found(name, "{}" if arguments is None else arguments, start, end, block.repairs)


def _parts(call: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The name and the arguments, as JSON text, of an object in any of the shapes that models give a call."""
    inner = _mapping(call.get("function"))
    if inner is not None:
        call = inner
    name = next((call[key] for key in _NAMES if isinstance(call.get(key), str) and call[key]), None)
    given = next((call[key] for key in _ARGUMENTS if key in call), None)
    if given is None:
        return name, None
    return name, given if isinstance(given, str) else _dumps(given)


def _mapping(value: Any) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None
