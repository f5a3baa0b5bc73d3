"""Sampling settings of profiles and templates: their names, and how `stop` and `extra_body` are
written and checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, cast

from evaluator.patterns import Pattern

SAMPLING = ("temperature", "top_p", "top_k", "seed", "stop", "logprobs", "echo", "extra_body")
"""The names of the settings: fields of a profile, of a model request and of a template's
`<handler>`.
"""

_values = attrgetter(*SAMPLING)
MAX_EXTRA_CHARACTERS = 20_000
_NAME = Pattern(r"[A-Za-z_][A-Za-z0-9_]*")

# What the request says, who is asked, with which key, what the model may cause, how much may be
# spent, and what a server would load, run or contact. Servers written in Go ignore case in names.
_RESERVED_NAMES = """
    model models messages prompt input instructions system developer suffix chat_template stream
    stream_options tools tool_choice functions function_call mcp mcp_servers plugins web_search
    web_search_options documents provider route fallbacks transforms preset base_url api_base
    api_version api_key key authorization organization headers extra_headers extra_query extra_body
    timeout user store metadata conversation previous_response_id background service_tier container
    modalities audio prediction response_format n best_of max_tokens max_completion_tokens
    max_output_tokens max_new_tokens n_predict num_predict lora lora_path kv_transfer_params
    bootstrap_host bootstrap_port bootstrap_room custom_logit_processor logits_processors
"""
_RESERVED = frozenset(_RESERVED_NAMES.split())


def settings_given(owner: Any) -> dict[str, Any]:
    """The sampling settings that `owner` has, as JSON values; those without a value are left
    out.
    """
    found: dict[str, Any] = {}
    for name, value in zip(SAMPLING, _values(owner), strict=True):
        if value is None:
            continue
        if isinstance(value, tuple):
            if value:
                found[name] = list(cast("tuple[str, ...]", value))
        elif value != {}:
            found[name] = value
    return found


def read_stop(text: str) -> tuple[str, ...]:
    """The texts that end an answer: a JSON list of strings, else `text` itself is the only one.

    Raises: ValueError, for a list with something else in it, and for an empty text.
    """
    if not text.strip().startswith("["):
        return check_stop((text,))
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return check_stop((text,))
    return check_stop(tuple(value))


def check_stop(texts: Any) -> tuple[str, ...]:
    """`texts` as they are. Raises: ValueError, if this is not a tuple of strings, or one is empty,
    or there is none.
    """
    if (
        not isinstance(texts, tuple)
        or not texts
        or not all(isinstance(text, str) and text for text in texts)
    ):
        raise ValueError("expected a text, or a JSON list of texts that are not empty")
    return cast("tuple[str, ...]", texts)


def read_extra_body(text: str) -> dict[str, Any]:
    """The fields that a request has in addition, from the text of a JSON object. Raises:
    ValueError, as the check.
    """
    if len(text) > MAX_EXTRA_CHARACTERS:
        raise ValueError(f"{len(text):,} characters, more than {MAX_EXTRA_CHARACTERS:,}")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"expected a JSON object: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(
            "the JSON is nested too deeply or has an integer that is too long"
        ) from error
    return check_extra_body(value)


def check_extra_body(value: Any) -> dict[str, Any]:
    """`value` as a dict.

    Raises: ValueError, if it is not a JSON object, or if it has a field that the evaluator itself
    decides: the model, the messages, tools, keys, hosts, limits, and the settings that have a name
    of their own.
    """
    if not isinstance(value, Mapping):
        raise ValueError("expected a JSON object")
    fields: dict[Any, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
    for name in fields:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{str(name)[:60]!r} is not the name of a field: letters, digits and _"
            )
        lower = name.lower()
        if lower in SAMPLING and lower != "extra_body":
            raise ValueError(f"{name} has a setting of its own; write it there")
        if lower in _RESERVED:
            raise ValueError(
                f"{name} cannot be set here: it changes what is asked, who is asked, or what that "
                "may cost"
            )
    try:
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not a JSON value: {error}") from error
    return fields
