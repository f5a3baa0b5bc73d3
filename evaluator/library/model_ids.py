"""A model's id names a model, never a host.

Some libraries take the address that they call from the model's id (`oobabooga/http://HOST/…`).
Hosts belong to handler profiles, so an id that is an address, or could be read as one after
decoding or normalisation, is refused.
"""

from __future__ import annotations

import re
import unicodedata

MAX_CHARS = 512
_OTHER_CHARACTER = re.compile(r"[^\w.:@+=,() /-]")
_SCHEME = re.compile(r".*:|(?:https?|wss?|ftp|file|unix|data):.*", re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"[\w-]+(?:\.[\w-]+)+:\d{2,5}|localhost(?::\d*)?", re.IGNORECASE)
_IPV4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}(?::\d*)?")
_USER_AND_HOST = re.compile(r".*@(?:.*\..*|localhost.*)", re.IGNORECASE)


def host_in(model: str) -> str | None:
    """The reason why the id `model` is refused: what in it is an address or could become one. None
    for a usable id.

    Usable are names of letters and digits with `.`, `:`, `@`, `-` and the like, divided by single
    slashes: `openai/gpt-4o`, `qwen3:8b`, `@cf/meta/llama`, `/models/a.gguf`, an AWS ARN.
    """
    if len(model) > MAX_CHARS:
        return f"it is longer than {MAX_CHARS} characters"
    # Addresses are normalised before they are used: a full-width colon becomes a colon.
    plain = unicodedata.normalize("NFKC", model)
    if "//" in plain:
        return "it contains '//', as an address does"
    other = _OTHER_CHARACTER.search(plain)
    if other is not None:
        return f"it contains {other[0]!a}, which names of models do not have and addresses may have"
    for part in plain.strip().split("/"):
        if part in (".", ".."):
            return f"it contains the path {part!r}"
        if _SCHEME.fullmatch(part):
            return f"{part!r} has the scheme of an address"
        if (
            _HOST_AND_PORT.fullmatch(part)
            or _IPV4.fullmatch(part)
            or _USER_AND_HOST.fullmatch(part)
        ):
            return f"{part!r} is a host"
    return None
