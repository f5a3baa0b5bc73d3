"""What an MCP server announces by itself: changes of its lists and of subscribed resources, and log
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_LISTS = {
    "notifications/tools/list_changed": "tools_changed",
    "notifications/prompts/list_changed": "prompts_changed",
    "notifications/resources/list_changed": "resources_changed",
}


@dataclass(frozen=True, slots=True)
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
