"""Tool calling for models that have none: a Backend around a Backend, with a protocol of plain
text.

The system message describes the tools. A call is a block in the answer between tags that hold the
mark of the session, `<tool_call_9f86d081>`; results are sent back as user messages. The outcome is
an ordinary response with tool calls, so no other part of the program is concerned. Text without a
call is the answer, unchanged.

The mark is random for each session, so that a call which the model only quotes, from a file or a
tool's answer, is
text: its author could not know the mark. Text inside reasoning tags is never a call. The mark is in
no record, no fingerprint and no cache key, where calls stand as calls: a resumed session has
another mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, cast

from evaluator import randomness
from evaluator.language.fences import block as fenced_block
from evaluator.lazy_dataclass import frozen
from evaluator.models.attachments import Attachment, with_unsent
from evaluator.models.backend import (
    Backend,
    Message,
    ModelRequest,
    ModelResponse,
    ToolCall,
    ToolSpec,
    prepare,
)
from evaluator.output.extract import Block, Extract, extract
from evaluator.output.result import MESSAGES
from evaluator.patterns import Pattern

UNREADABLE = "unreadable_call"
"""The name of a call whose block cannot be read; its arguments are the text of the block."""

MAX_CALLS = 50
"""The most blocks of one answer that are read; what follows stays text."""

_MOST_WAITING = 10_000
_BETWEEN = Pattern(r"\s*(?:```[\w+#.-]{0,20}[ \t]*\n?\s*)?")
_UNMARKED = Pattern(r"<tool_calls?(?:_\w*)?>", "i")
_NAME = Pattern(r"""["']?(?:name|tool)["']?\s*[:=]\s*["']([^"'\s]{1,200})["']""")
_NAMES = ("name", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "args", "parameters", "input")


@frozen
class _Tags:
    """The tags of one session's calls."""

    name: str
    open: re.Pattern[str]
    close: re.Pattern[str]
    close_alone: re.Pattern[str]
    start: re.Pattern[str]
    """Whatever may begin an opening tag at the end of a text, with the blanks before it."""

    @classmethod
    def of(cls, mark: str) -> _Tags:
        name = f"tool_call_{mark}"
        opening = f"<{name}>"
        starts = "|".join(re.escape(opening[:length]) for length in range(len(opening) - 1, 0, -1))
        close = rf"</{name}>"
        return cls(
            name,
            re.compile(opening, re.I),
            re.compile(rf"\s*(?:```\s*)?{close}", re.I),
            re.compile(close, re.I),
            re.compile(rf"\s*(?:{starts})?\Z", re.I),
        )


def new_mark() -> str:
    """A mark for the calls of one session, which nobody outside can guess."""
    return randomness.token_hex(4)


class TextToolsBackend:
    """`inner`, with tool calls as text. It has the name of `inner`; closing it closes `inner`.

    The session's mark is `call_mark` of the request; a request without one gets a mark of its own.

    With `on_text`, text is streamed up to the first place where a call may begin. The rest follows
    when the answer is whole, without the calls.
    """

    def __init__(self, inner: Backend) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        return self.inner.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.inner!r})"

    def prepare(self) -> Awaitable[None] | None:
        return prepare(self.inner)

    async def complete(
        self, request: ModelRequest, *, on_text: Callable[[str], None] | None = None
    ) -> ModelResponse:
        """One attempt of `inner`. Raises: as `inner`."""
        tags = _Tags.of(request.call_mark or new_mark())
        messages = _as_text(request.messages, tags)
        if not request.tools:
            return await self.inner.complete(replace(request, messages=messages), on_text=on_text)
        messages = _with_descriptions(messages, request.tools, tags=tags)
        # A provider that enforces a schema would prevent calls.
        asked = replace(request, messages=messages, tools=(), schema=None)
        if on_text is None:
            stream = None
        else:
            stream = _CallFilter(on_text, tags)
        response = await self.inner.complete(asked, on_text=None if stream is None else stream.add)
        turn = sum(message.role == "assistant" for message in request.messages) + 1
        if response.tool_calls:
            read = response
        else:
            read = _with_calls(response, tags, turn=turn)
        if stream is not None:
            stream.end(read.content)
        return read

    async def aclose(self) -> None:
        await self.inner.aclose()


class _CallFilter:
    """Streams text that cannot be part of a call. Trailing blanks wait as well: before a call they
    are removed.
    """

    def __init__(self, on_text: Callable[[str], None], tags: _Tags) -> None:
        self._on_text = on_text
        self._tags = tags
        self._waiting = ""
        self._holds = False
        self._passed = 0

    def add(self, piece: str) -> None:
        if self._holds:
            return
        self._waiting += piece
        start = self._tags.open.search(self._waiting)
        if start is not None or len(self._waiting) > _MOST_WAITING:
            self._holds = True
            sure = len(self._waiting[: start.start() if start else None].rstrip())
        else:
            may_start = self._tags.start.search(self._waiting)
            if may_start is None:
                sure = len(self._waiting)
            else:
                sure = may_start.start()
        self._pass(self._waiting[:sure])
        self._waiting = self._waiting[sure:]

    def end(self, content: str) -> None:
        """Streams what of the whole `content` has not been streamed yet."""
        self._pass(content[self._passed :])

    def _pass(self, text: str) -> None:
        if text:
            self._passed += len(text)
            self._on_text(text)


# -- requests --------------------------------------------------------------------------------------


def _with_descriptions(
    messages: Sequence[Message], tools: Sequence[ToolSpec], tags: _Tags
) -> tuple[Message, ...]:
    line_end = "\n"
    indented = "\n    "
    lines = [
        "You can call tools. To call one, write a block of exactly this form, with JSON inside, "
        "and stop after it:",
        f'<{tags.name}>\n{{"name": "the tool", "arguments": {{"an argument": "its '
        f'value"}}}}\n</{tags.name}>',
        "Several blocks are several calls. The results come in the next message. When you need no "
        "tool, answer without such a block. Other tags call nothing.",
        "The tools, each with the JSON Schema of its arguments:",
        # Indented, so that no line of a server's description looks like another tool.
        *(
            f"- {tool.name}: {tool.description.replace(line_end, indented)}\n"
            f"  {_dumps(tool.parameters)}"
            for tool in tools
        ),
    ]
    description = "\n\n".join(lines)
    if messages and messages[0].role == "system":
        return (
            replace(messages[0], content=f"{messages[0].content}\n\n{description}"),
            *messages[1:],
        )
    return (Message("system", description), *messages)


def _as_text(messages: Sequence[Message], tags: _Tags) -> tuple[Message, ...]:
    """Calls and results as text; the results of one turn make one user message, their images with
    it.
    """
    texts: list[Message] = []
    names: dict[str | None, str] = {}
    results: list[str] = []
    images: list[Attachment] = []

    def end_results() -> None:
        if results:
            texts.append(Message("user", "\n".join(results), attachments=tuple(images)))
            results.clear()
            images.clear()

    for message in messages:
        if message.role == "tool":
            name = names.get(message.tool_call_id, "tool")
            text = with_unsent(message.content, message.attachments)
            results.append(fenced_block("tool_result", text, name=name))
            images += [image for image in message.attachments if image.data]
            continue
        end_results()
        if message.tool_calls:
            names.update((call.id, call.name) for call in message.tool_calls)
            blocks = [_block(call, tags) for call in message.tool_calls]
            text = "\n".join([message.content, *blocks] if message.content else blocks)
            message = replace(message, content=text, tool_calls=())
        texts.append(message)
    end_results()
    return tuple(texts)


def _block(call: ToolCall, tags: _Tags) -> str:
    inside = call.arguments
    if call.name != UNREADABLE:
        inside = f'{{"name": {_dumps(call.name)}, "arguments": {call.arguments or "{}"}}}'
    return f"<{tags.name}>\n{inside}\n</{tags.name}>"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)


# -- answers ---------------------------------------------------------------------------------------


@frozen
class _FoundCall:
    """One call and the range of text that it occupies."""

    name: str
    arguments: str
    start: int
    end: int
    repairs: tuple[str, ...] = ()


def _with_calls(response: ModelResponse, tags: _Tags, turn: int) -> ModelResponse:
    """`response` with the calls in its text, and the text that remains around them."""
    found = list(_find(response.content, tags))
    if not found:
        if not _UNMARKED.search(response.content):
            return response
        warning = (
            "the answer holds a tool call without the mark of this session: it is text, and "
            "nothing was called"
        )
        return replace(response, warnings=(*response.warnings, warning))
    kept: list[str] = []
    position = 0
    for call in found:
        if call.start >= position:
            kept.append(response.content[position : call.start].rstrip())
            position = call.end
    kept.append(response.content[position:].rstrip())
    calls = tuple(
        ToolCall(f"text_{turn}_{n}", call.name, arguments=call.arguments)
        for n, call in enumerate(found, 1)
    )
    warnings = [
        f"a call of {call.name} was read with a repair: {MESSAGES.get(repair, repair)}"
        for call in found
        for repair in call.repairs
    ]
    return replace(
        response,
        content="".join(kept).rstrip(),
        tool_calls=calls,
        finish_reason="tool_calls"
        if response.finish_reason in ("stop", "unknown")
        else response.finish_reason,
        warnings=(*response.warnings, *dict.fromkeys(warnings)),
    )


def _find(text: str, tags: _Tags) -> Iterator[_FoundCall]:
    if tags.open.search(text) is None:
        return
    position = 0
    for start, tag_end, block in _places(text, extract(text), tags=tags):
        if start < position:
            continue
        between = _BETWEEN.match(text, tag_end)
        if block is None or block.cut or between is None or block.start != between.end():
            end, position = _end_of_unreadable(text, tag_end, tags=tags)
            yield _unreadable(text[tag_end:end], start, end=position)
            continue
        close = tags.close.match(text, block.end)
        position = close.end() if close else block.end
        yield from _calls(block, text, start=start, end=position)


def _places(text: str, read: Extract, tags: _Tags) -> list[tuple[int, int, Block | None]]:
    """The start and the end of each opening tag outside reasoning, and the block of JSON that
    follows it.
    """
    blocks = read.blocks
    return [
        (tag.start(), tag.end(), next((b for b in blocks if b.start >= tag.end()), None))
        for tag in islice(tags.open.finditer(text), MAX_CALLS)
        if not any(start <= tag.start() < end for start, end in read.removed)
        and not any(block.start < tag.start() < block.end for block in blocks)
    ]


def _end_of_unreadable(text: str, begin: int, tags: _Tags) -> tuple[int, int]:
    """Where the content of a block that cannot be read ends, and where the text continues after
    it.
    """
    close = tags.close_alone.search(text, begin)
    following = tags.open.search(text, begin)
    if close is not None and (following is None or close.start() < following.start()):
        return close.start(), close.end()
    if following is None:
        end = len(text)
    else:
        end = following.start()
    return end, end


def _unreadable(inside: str, start: int, end: int) -> _FoundCall:
    """A call whose JSON cannot be repaired, or is cut off: the registry rejects its arguments and
    says why.
    """
    name = _NAME.search(inside)
    return _FoundCall(name[1] if name else UNREADABLE, inside.strip(), start=start, end=end)


def _calls(block: Block, text: str, start: int, end: int) -> Iterator[_FoundCall]:
    items = block.value
    if not isinstance(items, list):
        items = [items]
    for item in cast("list[Any]", items) or [None]:
        name, arguments = _parts(item)
        if name is None:
            yield _unreadable(text[block.start : block.end], start, end=end)
        else:
            yield _FoundCall(
                name,
                "{}" if arguments is None else arguments,
                start=start,
                end=end,
                repairs=block.repairs,
            )


def _parts(item: Any) -> tuple[str | None, str | None]:
    """The name and the arguments, as JSON text, of a call in any of the shapes that models use;
    else None.
    """
    if not isinstance(item, Mapping):
        return None, None
    call = cast("Mapping[str, Any]", item)
    if isinstance(call.get("function"), Mapping):
        call = cast("Mapping[str, Any]", call["function"])
    name = next((call[key] for key in _NAMES if isinstance(call.get(key), str) and call[key]), None)
    given = next((call[key] for key in _ARGUMENTS if key in call), None)
    return name, given if given is None or isinstance(given, str) else _dumps(given)
