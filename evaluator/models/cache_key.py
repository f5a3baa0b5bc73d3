"""Identifies a request to a model: hashes of its parts, and a key that combines them.

Only hashes of the contents are stored. The model, the endpoint and the settings are stored as text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from evaluator.models.backend import Message, ModelRequest
from evaluator.nodes.sampling import settings_given
from evaluator.record.steps import json_encoder

KEY_VERSION = 1
_canonical = json_encoder((",", ":"), ascii_only=True, sort_keys=True)
_NONE = ""


@dataclass(frozen=True, slots=True)
class CacheKey:
    """One request as the cache identifies it. `key` is the SHA-256 of all other fields, as 64 hex
    digits.

    `settings` is JSON text; `tools`, `schema`, `system` and `messages` are hashes, empty where
    there is none.
    """

    key: str
    epoch: int
    endpoint: str
    model: str
    settings: str
    tools: str
    schema: str
    system: str
    messages: tuple[str, ...]

    @classmethod
    def of(
        cls, request: ModelRequest, *, endpoint: str, epoch: int, tool_calling: str = "native"
    ) -> CacheKey:
        """Identifies the epoch and all parts of `request` that an answer may depend on.

        Excluded are the time limit, which decides only whether there is an answer, and the hints,
        which are never sent. An attachment counts with its hash.
        """
        settings = {
            **settings_given(request),
            "max_output_tokens": request.max_output_tokens,
            "cache": request.cache or None,
            "tool_calling": None if tool_calling == "native" or not request.tools else tool_calling,
        }
        parts = (
            epoch,
            endpoint,
            request.model,
            _canonical({name: value for name, value in settings.items() if value is not None}),
            _hash([[t.name, t.description, t.parameters, t.native] for t in request.tools] or None),
            _hash(request.schema),
            _hash(
                [message.to_dict() for message in request.messages if message.role == "system"]
                or None
            ),
            tuple(
                _hash(_with_withheld(message))
                for message in request.messages
                if message.role != "system"
            ),
        )
        return cls(hashlib.sha256(_canonical([KEY_VERSION, *parts]).encode()).hexdigest(), *parts)

    @property
    def first(self) -> str:
        if self.messages:
            return self.messages[0]
        return _NONE

    def is_same_turn(self, other: CacheKey) -> bool:
        """Whether both may be the same turn of a conversation, in the same epoch."""
        return (self.epoch, len(self.messages)) == (other.epoch, len(other.messages))

    def differences(self, stored: CacheKey) -> list[str]:
        """Each part in which this request differs from the `stored` one, in words."""
        return list(_differences(stored, self))


def _with_withheld(message: Message) -> dict[str, Any]:
    """An attachment whose bytes are withheld differs from one that is sent."""
    data = message.to_dict()
    withheld = [
        place for place, attachment in enumerate(message.attachments) if not attachment.data
    ]
    if withheld:
        return {**data, "withheld": withheld}
    return data


def _hash(value: Any) -> str:
    if value is None:
        return _NONE
    return hashlib.sha256(_canonical(value).encode()).hexdigest()[:32]


def _differences(stored: CacheKey, now: CacheKey) -> Iterator[str]:
    for name in ("endpoint", "model"):
        if getattr(stored, name) != getattr(now, name):
            yield f"the {name} was {getattr(stored, name)} and is {getattr(now, name)}"
    old = json.loads(stored.settings)
    new = json.loads(now.settings)
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield f"{name} was {old.get(name, 'not set')} and is {new.get(name, 'not set')}"
    for name, before, after in (
        ("tools", stored.tools, now.tools),
        ("schema", stored.schema, now.schema),
        ("system message", stored.system, now.system),
    ):
        if before != after:
            yield f"{name}: " + (
                "none before" if before == _NONE else "none now" if after == _NONE else "changed"
            )
    for number, (before, after) in enumerate(zip(stored.messages, now.messages, strict=False), 1):
        if before != after:
            yield f"message {number} differs"
