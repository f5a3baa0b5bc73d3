"""Encodes chat completion requests. What the requests of a prepared task have in common is encoded
once.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from evaluator.errors import ProviderError
from evaluator.models.backend import ModelRequest
from evaluator.models.chat_wire import encode_json, fixed_body, message_bodies
from evaluator.nodes.sampling import SAMPLING

_MAX_KNOWN = 64
# These, the tools and the schema are the same objects in all requests of a prepared task.
_OBJECTS = ("stop", "extra_body")
_VALUES = ("model", "max_output_tokens", *[name for name in SAMPLING if name not in _OBJECTS])
_values = attrgetter(*_VALUES)


class RequestEncoder:
    """Encodes requests to one server; `max_tokens_field` is its name for the most output tokens.

    Tools, schemas and further fields must not be changed once they were in a request.
    """

    def __init__(self, max_tokens_field: str) -> None:
        self.max_tokens_field = max_tokens_field
        # The fixed fields by what they are made of, with the objects themselves, so that no others
        # get their addresses.
        self._known: dict[Any, tuple[bytes, tuple[Any, ...]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}}

    def encode(self, request: ModelRequest, *, stream: bool) -> bytes:
        """The body of a request. Raises: ProviderError, for a value that is not JSON."""
        values = _values(request)
        key = (
            stream,
            values,
            # 1, 1.0 and True are equal, and not the same JSON.
            *map(type, values),
            request.tools and id(request.tools),
            request.stop and id(request.stop),
            bool(request.extra_body) and id(request.extra_body),
            request.schema is not None and id(request.schema),
        )
        try:
            known = self._known.get(key)
        except TypeError as exc:
            raise ProviderError(f"the request is not JSON: {exc}", kind="bad_request") from exc
        if known is None:
            known = self._add(key, request, stream=stream)
        has_numbers = False
        for message in request.messages:
            # Nothing else in a message may be NaN, which takes a search.
            if message.thinking:
                has_numbers = True
        messages = encode_json(message_bodies(request.messages), has_numbers)
        return b'%b,"messages":%b}' % (known[0], messages)

    def _add(
        self, key: Any, request: ModelRequest, *, stream: bool
    ) -> tuple[bytes, tuple[Any, ...]]:
        body = fixed_body(request, self.max_tokens_field)
        body.pop("messages", None)
        if stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        objects = (request.tools, request.stop, request.extra_body, request.schema)
        known = self._known[key] = (encode_json(body)[:-1], objects)
        return known
