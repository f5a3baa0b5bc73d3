"""Converts what an MCP server sends to texts and plain values: tools, prompts, resources, results.

What a server announces by itself: changes of its lists and of subscribed resources, and log
messages.

All of it is untrusted. Valid images are shown to the model; everything else that a model cannot
read (other images, audio, blobs) is replaced by its media type and size.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from typing import Any, cast

from evaluator.errors import ConfigurationError, ToolError
from evaluator.errors.messages import amount, did_you_mean, listed, visible
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.models.attachments import MAX_BYTES_TOGETHER, Attachment
from evaluator.patterns import Pattern
from evaluator.tools.mcp.servers import McpServer, offered_name
from evaluator.tools.tool import ToolAnswer, image_problem

_LISTS = {
    "notifications/tools/list_changed": "tools_changed",
    "notifications/prompts/list_changed": "prompts_changed",
    "notifications/resources/list_changed": "resources_changed",
}


@frozen
class EventWatch:
    """What a session watches: the resources `uris`, and everything else that the server announces.

    `on_event` gets each event as a JSON value: `event` is `resource_updated` (with `uri`),
    `tools_changed`, `prompts_changed`, `resources_changed`, or `log` (with `level`, `logger` and
    `data`).
    """

    uris: tuple[str, ...]
    on_event: Callable[[Mapping[str, Any]], None]


def event_of(message: Any) -> dict[str, Any] | None:
    """The event in a notification of the server; None if it is something else."""
    method: str = getattr(message, "method", "")
    params: Any = getattr(message, "params", None)
    if method == "notifications/message":
        return {"event": "log", "level": params.level, "logger": params.logger, "data": params.data}
    if method == "notifications/resources/updated":
        return {"event": "resource_updated", "uri": str(params.uri)}
    if method in _LISTS:
        return {"event": _LISTS[method]}
    return None


MAX_TOOL_NAME = 64
MAX_SCHEMA_BYTES = 100_000
MAX_DESCRIPTION_CHARS = 8_000
MAX_RESOURCE_CHARS = 1_000_000
MAX_IMAGES = 20
_TAGS = Pattern("[\U000e0000-\U000e007f]")


@dataclass(slots=True)
class ToolListing:
    """A server's tools by the name that the model sees, as JSON values; `skipped` has the reasons
    for the others.
    """

    offered: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    skipped: dict[str, str] = field(default_factory=dict[str, str])


def listing_of(server: McpServer, tools: Iterable[Any]) -> ToolListing:
    """The tools that the server listed. Skips a tool that cannot be offered, and all tools that
    share a name.
    """
    listing = ToolListing()
    origin: dict[str, str] = {}
    for tool in tools:
        name = offered_name(server, tool.name)
        if name in origin:
            listing.offered.pop(name, None)
            listing.skipped[name] = (
                f"the server's tools {origin[name]!r} and {tool.name!r} would both have this name"
            )
            continue
        origin[name] = tool.name
        reason = _unfit(name, tool)
        if reason is not None:
            listing.skipped[name] = reason
            continue
        hints = tool.annotations
        reads_only = bool(hints and hints.read_only_hint)
        listing.offered[name] = {
            "name": name,
            "tool": tool.name,
            "description": _legible(tool.description or tool.title or tool.name)[
                :MAX_DESCRIPTION_CHARS
            ],
            "parameters": _legible({"properties": {}, **tool.input_schema}),
            "reads_only": reads_only,
            "repeatable": reads_only or bool(hints and hints.idempotent_hint),
        }
    return listing


def _legible(value: Any) -> Any:
    """A description or a schema in which a person sees every character that the model gets.

    Control characters and those that change the direction of text are escaped; the characters of
    the Unicode block Tags, which repeat ASCII invisibly, are left out.
    """
    if isinstance(value, str):
        return visible(_TAGS.sub("", value))
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {_legible(name): _legible(inner) for name, inner in items}
    if isinstance(value, list):
        return [_legible(inner) for inner in cast("list[Any]", value)]
    return value


def _unfit(name: str, tool: Any) -> str | None:
    if len(name) > MAX_TOOL_NAME:
        return (
            f"with the server's name, its name has {len(name)} characters; at most "
            f"{MAX_TOOL_NAME} are possible"
        )
    schema = tool.input_schema
    if not isinstance(schema.get("properties", {}), dict):
        return "its schema is not valid: properties is not an object"
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
            return f"its schema has more than {MAX_SCHEMA_BYTES:,} bytes"
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"its schema is not valid: {error.message[:300]}"
    except RecursionError:
        return "its schema is nested too deeply"
    return None


def placeholder_tools(server: McpServer, names: Iterable[str]) -> list[Mapping[str, Any]]:
    """Descriptions of the tools with these names for a dry run, in which the server is not
    started.
    """
    shared = {
        "description": f"A tool of the MCP server {server.name}, which was not started.",
        "parameters": {"type": "object", "properties": {}},
        "reads_only": False,
        "repeatable": False,
    }
    return [{"name": name, "tool": name, **shared} for name in names]


def answer_of_result(result: Any, tool: str) -> ToolAnswer:
    """The result of a call of `tool` for the model: texts, valid images, and the structured content
    unless a text repeats it.

    Raises: ToolError with the text, if the server reports that the call failed.
    """
    images: list[Attachment] = []
    parts: list[str] = []
    for block in result.content:
        image = None
        if block.type == "image" and len(images) < MAX_IMAGES:
            image = _image_of(block, tool, before=images)
        if image is None:
            parts.append(_text_of_block(block))
        else:
            images.append(image)
            parts.append(f"[image, {image.media_type}, {image.size:,} bytes]")
    structured = result.structured_content
    if structured is not None and not any(_is_json_of(part, structured) for part in parts):
        parts.append(json.dumps(structured, ensure_ascii=False))
    text = "\n".join(parts)
    if result.is_error:
        # The server's answer, not a failure of the connection.
        raise ToolError(text or "the tool failed without a message", retryable=False)
    return ToolAnswer(text, tuple(images))


def _image_of(block: Any, tool: str, before: list[Attachment]) -> Attachment | None:
    """The image; None if it is not valid, or too large alone or with the images before it."""
    try:
        data = b64decode(block.data, validate=True)
    except ValueError:
        return None
    image = Attachment(block.mime_type, data, source=f"image {len(before) + 1} of {tool}")
    if image_problem(image) is not None:
        return None
    is_small = sum(each.size for each in (*before, image)) <= MAX_BYTES_TOGETHER
    if is_small:
        return image
    return None


def _is_json_of(text: str, value: Any) -> bool:
    # The official SDK wraps a result that is not an object.
    if value == {"result": text}:
        return True
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False


def _text_of_block(block: Any) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type}, {block.mime_type}, {_size(block.data)}: not shown]"
        case "resource_link":
            return f"[resource {block.uri}: {block.title or block.name}]"
        case "resource":
            return _text_of_resource(block.resource)
        case other:
            return f"[content of the unknown type {other}: not shown]"


def _text_of_resource(resource: Any) -> str:
    text = getattr(resource, "text", None)
    if text is not None:
        return text
    return (
        f"[resource {resource.uri}, {resource.mime_type or 'no media type'}, "
        f"{_size(resource.blob)}: not shown]"
    )


def _size(base64: str) -> str:
    return amount(len(base64.rstrip("=")) * 3 // 4, "byte")


def text_of_contents(result: Any) -> str:
    """The text of a resource, its parts joined by line feeds.

    Raises: ToolError, for a resource that is not text, has no parts, or has more than a million
    characters.
    """
    parts = result.contents
    if not parts:
        raise ToolError("the resource is empty")
    for part in parts:
        if getattr(part, "text", None) is None:
            raise ToolError(f"it is not text: {_text_of_resource(part)[1:-1]}")
    text = "\n".join(part.text for part in parts)
    if len(text) > MAX_RESOURCE_CHARS:
        raise ToolError(f"it has {len(text):,} characters; at most {MAX_RESOURCE_CHARS:,} are read")
    return text


def find_tools(
    listing: ToolListing, server: McpServer, names: Iterable[str]
) -> list[Mapping[str, Any]]:
    """The tools with these names as JSON values.

    Raises: ConfigurationError, for a tool that the server does not have or that cannot be offered.
    """
    found: list[Mapping[str, Any]] = []
    for name in names:
        if name in listing.skipped:
            raise ConfigurationError(
                f"the tool {name!r} cannot be offered: {listing.skipped[name]}"
            )
        if name not in listing.offered:
            hint = did_you_mean(name, sorted(listing.offered))
            more = ""
            if hint:
                more = f"; {hint}"
            raise ConfigurationError(
                f"MCP server {server.name!r} has no tool {name!r}{more} (its tools: "
                f"{listed(listing.offered)})"
            )
        found.append(listing.offered[name])
    return found
