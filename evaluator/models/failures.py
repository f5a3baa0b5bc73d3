"""HTTP statuses and provider messages as ProviderErrors: one table for every backend."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from evaluator import clock
from evaluator.errors import ProviderError, ProviderErrorKind
from evaluator.errors.messages import cut
from evaluator.lazy_dataclass import frozen
from evaluator.patterns import BytesPattern, Pattern

MAX_MESSAGE = 500
MAX_ERROR_BODY = 64 * 1024
MAX_RESPONSE_BYTES = 16 * 1024 * 1024


@frozen
class StatusRule:
    """How an HTTP status is classified. `maybe_billed`: a model may have worked on the request
    before it came.
    """

    kind: ProviderErrorKind
    retryable: bool
    maybe_billed: bool


_BAD_REQUEST = StatusRule("bad_request", False, maybe_billed=False)
_AUTHENTICATION = StatusRule("authentication", False, maybe_billed=False)
_NOT_FOUND = StatusRule("not_found", False, maybe_billed=False)
_BUSY = StatusRule("server", True, maybe_billed=False)
_BROKEN = StatusRule("server", True, maybe_billed=True)
_STATUS: dict[int, StatusRule] = {
    400: _BAD_REQUEST,
    401: _AUTHENTICATION,
    402: _AUTHENTICATION,
    403: _AUTHENTICATION,
    404: _NOT_FOUND,
    405: _NOT_FOUND,
    408: StatusRule("timeout", True, maybe_billed=True),
    409: _BUSY,
    413: _BAD_REQUEST,
    422: _BAD_REQUEST,
    425: _BUSY,
    429: StatusRule("rate_limit", True, maybe_billed=False),
    500: _BROKEN,
    502: _BROKEN,
    503: _BUSY,
    504: _BROKEN,
    529: _BUSY,
}

# What servers and providers say about a prompt that is too long, in the message or the code:
# OpenAI, vLLM, llama.cpp, SGLang, Anthropic, Bedrock, Gemini, Mistral, xAI, TGI, Cohere, LiteLLM.
_CONTEXT = Pattern(
    r"""
    context[_ ]?(?:length|window|size|limit) | exceed_context | maximum[ ]context
    | maximum[ ](?:model|prompt|input)[ ]length
    | maximum[ ]number[ ]of[ ](?:input[ ])?tokens[ ]allowed
    | (?:prompt|input)[ ]is[ ]too[ ]long | too[ ]many[ ](?:input[ ])?tokens | reduce[ ]the[ ]length
    | inputs?`?[ ](?:must[ ]have[ ]less[ ]than|tokens[ ]\+[ ]`?max_new_tokens)
    """,
    "ix",
)
_FILTER = Pattern(r"content[_ ](?:filter|policy)|content management policy", "i")
_QUOTA = Pattern(r"insufficient_quota|exceeded your current quota|billing_hard_limit", "i")
_PAGE = BytesPattern(rb"\s*<(?:!doctype|html)", "i")


def failure(
    status: int,
    message: str,
    *,
    code: str = "",
    retry_after_s: float | None = None,
    partial: str | None = None,
    secrets: Iterable[str] = (),
) -> ProviderError:
    """The ProviderError for an error status. `code` is the provider's own error code, where it gave
    one.
    """
    if status >= 500:
        unlisted = _BROKEN
    elif status >= 400:
        unlisted = _BAD_REQUEST
    else:
        unlisted = StatusRule("other", False, maybe_billed=False)
    rule = _STATUS.get(status, unlisted)
    kind = rule.kind
    retryable = rule.retryable
    billed = rule.maybe_billed
    text = f"{code} {message}"
    if kind == "bad_request" or (status == 500 and _CONTEXT.search(code)):
        if _CONTEXT.search(text):
            kind = "context_length"
            retryable = False
            billed = False
        elif _FILTER.search(text):
            kind = "content_filter"
            retryable = False
    elif kind == "rate_limit" and _QUOTA.search(text):
        retryable = False
    shown = clean(message, secrets)
    return ProviderError(
        f"HTTP {status}: {shown}" if shown else f"HTTP {status}",
        kind=kind,
        status=status,
        retryable=retryable,
        retry_after_s=retry_after_s,
        maybe_billed=billed or partial is not None,
        partial=partial,
    )


def malformed(message: str, *, retryable: bool = True, partial: str | None = None) -> ProviderError:
    """The error for a response that cannot be used: it may have been billed."""
    return ProviderError(
        message, kind="malformed_response", retryable=retryable, maybe_billed=True, partial=partial
    )


def error_in_body(
    data: Any, *, partial: str | None = None, secrets: Iterable[str] = ()
) -> ProviderError | None:
    """The error that a provider reported inside a 200 response or a stream, or None."""
    if not isinstance(data, dict) or not data.get("error"):
        return None
    message, code = _message_and_code(data)
    error = data["error"]
    if isinstance(error, dict):
        status = error.get("code")
    else:
        status = None
    if isinstance(status, str) and status.isdecimal() and len(status) == 3:
        status = int(status)
    if not isinstance(status, int) or isinstance(status, bool) or not 400 <= status <= 599:
        status = next((status for pattern, status in _CODES if pattern.search(code)), 500)
    return failure(status, message, code=code, partial=partial, secrets=secrets)


# The status that a provider would have sent if its headers had not been sent before the error.
_CODES = (
    (Pattern(r"rate_limit|quota", "i"), 429),
    (Pattern(r"overloaded", "i"), 529),
    (Pattern(r"authentication|permission|api_key", "i"), 401),
    (Pattern(r"not_found", "i"), 404),
    (Pattern(r"invalid|bad_?request|context|content_filter|content_policy", "i"), 400),
)


def message_of(body: bytes) -> tuple[str, str]:
    """The provider's message and code in an error body: JSON of a usual shape, else its text."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        if _PAGE.match(body):
            return "an HTML page, not a model's answer (is the base URL right?)", ""
        return body[: 4 * MAX_MESSAGE].decode("utf-8", "replace"), ""
    return _message_and_code(data)


def _message_and_code(data: Any) -> tuple[str, str]:
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, dict):
        return str(data), ""
    error = data.get("error")
    if isinstance(error, str):
        return error, str(data.get("code") or data.get("type") or "")
    source: Mapping[str, Any]
    if isinstance(error, dict):
        source = error
    else:
        source = data
    message = source.get("message") or source.get("detail") or source.get("msg")
    if not isinstance(message, str):
        message = json.dumps(message if message is not None else source, ensure_ascii=False)
    code = " ".join(
        str(source[key]) for key in ("code", "type", "status") if source.get(key) is not None
    )
    return message, code


def clean(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` on one line, without control characters and secrets, 500 characters at most."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_MESSAGE]).split())
    return cut(text, MAX_MESSAGE)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from `retry-after-ms` or `Retry-After` (seconds or an HTTP date, RFC 9110
    10.2.3).
    """
    value = headers.get("retry-after-ms")
    if value is not None and (seconds := _number(value)) is not None:
        return seconds / 1000
    value = headers.get("Retry-After") or headers.get("retry-after")
    if value is None:
        return None
    if (seconds := _number(value)) is not None:
        return seconds
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - clock.wall())
    except (ValueError, TypeError, OverflowError):
        return None


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    # float() also reads nan and inf.
    if 0 <= number < 1e9:
        return number
    return None
