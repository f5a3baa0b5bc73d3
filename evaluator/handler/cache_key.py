"""What identifies a request to a model: hashes of its parts, the key made of all of them, and how two differ.

Of what was asked only hashes are kept, but for the model, the endpoint and the settings, which are no content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evaluator.handler.backend import Message, ModelRequest
from evaluator.record.steps import json_encoder

KEY_VERSION = 1
_canonical = json_encoder((",", ":"), ascii_only=True, sort_keys=True)
_NONE = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the cache knows it. `settings` is JSON text; `tools`, `schema`, `system` and `messages` are
    hashes, empty where there is none. `task` is the template, for people only: it is no part of the key."""

    key: str
    epoch: int
    endpoint: str
    model: str
    settings: str
    tools: str
    schema: str
    system: str
    messages: tuple[str, ...]
    task: str | None = None

    @property
    def first(self) -> str:
        return self.messages[0] if self.messages else _NONE


def identify(
    request: ModelRequest, *, endpoint: str, epoch: int, tool_calling: str = "native", task: str | None = None
) -> Asked:
    """Identifies all of `request` that an answer may depend on, and the epoch.

    Left out are the time limit, which decides only whether there is an answer, and the hints, which are never
    sent. An attachment counts with its hash. The key is a SHA-256, as 64 hex digits.
    """
    settings = {
        "temperature": request.temperature,
        "seed": request.seed,
        "max_output_tokens": request.max_output_tokens,
        "cache": request.cache or None,
        "tool_calling": None if tool_calling == "native" or not request.tools else tool_calling,
    }
    told = _canonical({name: value for name, value in settings.items() if value is not None})
    tools = _hash([[t.name, t.description, t.parameters, t.native] for t in request.tools] or None)
    schema = _hash(request.schema)
    system = _hash([message.to_dict() for message in request.messages if message.role == "system"] or None)
    messages = tuple(_hash(_sent(message)) for message in request.messages if message.role != "system")
    key = hashlib.sha256(
        _canonical(
            [KEY_VERSION, epoch, endpoint, request.model, told, tools, schema, system, messages]
        ).encode()
    ).hexdigest()  # fmt: skip
    return Asked(key, epoch, endpoint, request.model, told, tools, schema, system, messages, task)


def _sent(message: Message) -> dict[str, Any]:
    """An attachment whose bytes are withheld is another than the one that is sent."""
    data = message.to_dict()
    withheld = [place for place, attachment in enumerate(message.attachments) if not attachment.data]
    return {**data, "withheld": withheld} if withheld else data


def _hash(value: Any) -> str:
    return _NONE if value is None else hashlib.sha256(_canonical(value).encode()).hexdigest()[:32]


def differences(stored: Asked, asked: Asked) -> tuple[str, ...]:
    """In words, each part in which `asked` is not what is stored; empty if it is."""
    return tuple(_differences(stored, asked))


def _differences(stored: Asked, asked: Asked) -> Iterator[str]:
    if stored.epoch != asked.epoch:
        yield f"the epoch was {stored.epoch} and is {asked.epoch}"
    if stored.endpoint != asked.endpoint:
        yield f"the endpoint was {stored.endpoint} and is {asked.endpoint}"
    if stored.model != asked.model:
        yield f"the model was {stored.model} and is {asked.model}"
    before, now = json.loads(stored.settings), json.loads(asked.settings)
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            yield f"{name} was {_told(before.get(name))} and is {_told(now.get(name))}"
    yield from _part("tools", stored.tools, asked.tools)
    yield from _part("schema", stored.schema, asked.schema)
    yield from _part("system message", stored.system, asked.system)
    for number, (old, new) in enumerate(zip(stored.messages, asked.messages, strict=False), 1):
        if old != new:
            yield f"message {number} is another"
    more = len(asked.messages) - len(stored.messages)
    if more:
        yield f"there {'is' if abs(more) == 1 else 'are'} {abs(more)} {'more' if more > 0 else 'fewer'} messages"


def _part(name: str, old: str, new: str) -> Iterator[str]:
    if old == new:
        return
    if _NONE in (old, new):
        yield f"{name}: none {'before' if old == _NONE else 'now'}"
    else:
        yield f"{name}: changed"


def _told(value: Any) -> str:
    return "not set" if value is None else str(value)
