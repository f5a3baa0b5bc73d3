"""HTTP statuses and provider messages → ProviderError: one table for every backend."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from evaluator.errors import ProviderError, ProviderErrorKind

MAX_MESSAGE = 500
MAX_ERROR_BODY = 64 * 1024


class Rule(NamedTuple):
    """`maybe_billed`: a model may have worked on the request before this status came."""

    kind: ProviderErrorKind
    retryable: bool
    maybe_billed: bool


_STATUS: dict[int, Rule] = {
    400: Rule("bad_request", False, False),
    401: Rule("authentication", False, False),
    402: Rule("authentication", False, False),
    403: Rule("authentication", False, False),
    404: Rule("not_found", False, False),
    405: Rule("not_found", False, False),
    408: Rule("timeout", True, True),
    409: Rule("server", True, False),
    413: Rule("bad_request", False, False),
    422: Rule("bad_request", False, False),
    425: Rule("server", True, False),
    429: Rule("rate_limit", True, False),
    500: Rule("server", True, True),
    502: Rule("server", True, True),
    503: Rule("server", True, False),
    504: Rule("server", True, True),
    529: Rule("server", True, False),
}

_CONTEXT = re.compile(
    r"context[_ ](?:length|window|size)|maximum context|prompt is too long|input is too long"
    r"|too many (?:input )?tokens|reduce the length|exceed_context",
    re.IGNORECASE,
)
_FILTER = re.compile(r"content[_ ](?:filter|policy)|content management policy", re.IGNORECASE)
_QUOTA = re.compile(r"insufficient_quota|exceeded your current quota|billing_hard_limit", re.IGNORECASE)
_PAGE = re.compile(rb"\s*<(?:!doctype|html)", re.IGNORECASE)


def rule_for(status: int) -> Rule:
    """The table's rule for an HTTP status other than 2xx, and a sensible one where it has none."""
    rule = _STATUS.get(status)
    if rule is not None:
        return rule
    if status >= 500:
        return Rule("server", True, True)
    return Rule("bad_request" if status >= 400 else "other", False, False)


def failure(
    status: int,
    message: str,
    *,
    code: str = "",
    retry_after_s: float | None = None,
    partial: str | None = None,
    secrets: Iterable[str] = (),
) -> ProviderError:
    """The ProviderError for a provider's refusal. `code` is the provider's own word, where it gave one."""
    kind, retryable, billed = rule_for(status)
    told = f"{code} {message}"
    if kind == "bad_request" or (status == 500 and _CONTEXT.search(code)):
        if _CONTEXT.search(told):
            kind, retryable, billed = "context_length", False, False
        elif _FILTER.search(told):
            kind, retryable = "content_filter", False
    elif kind == "rate_limit" and _QUOTA.search(told):
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
    """A response that came and cannot be used: it may have been billed."""
    return ProviderError(message, kind="malformed_response", retryable=retryable, maybe_billed=True, partial=partial)


def timed_out(timeout_s: float, *, partial: str | None = None, idle: bool = False) -> ProviderError:
    what = "the stream was silent for" if idle else "no complete answer within"
    return ProviderError(f"{what} {timeout_s:g} s", kind="timeout", retryable=True, maybe_billed=True, partial=partial)


def error_in_body(data: Any, *, partial: str | None = None, secrets: Iterable[str] = ()) -> ProviderError | None:
    """The error that a provider reported inside a 200 response or a stream, or None."""
    if not isinstance(data, dict) or not data.get("error"):
        return None
    message, code = _told(data)
    error = data["error"]
    status = error.get("code") if isinstance(error, dict) else None
    if isinstance(status, str) and status.isdecimal() and len(status) == 3:
        status = int(status)
    if not isinstance(status, int) or isinstance(status, bool) or not 400 <= status <= 599:
        status = _status_of(code)
    return failure(status, message, code=code, partial=partial, secrets=secrets)


def _status_of(code: str) -> int:
    """The status that a provider would have sent, had its headers not been on the way already."""
    for pattern, status in _CODES:
        if pattern.search(code):
            return status
    return 500


_CODES = (
    (re.compile(r"rate_limit|quota", re.IGNORECASE), 429),
    (re.compile(r"overloaded", re.IGNORECASE), 529),
    (re.compile(r"authentication|permission|api_key", re.IGNORECASE), 401),
    (re.compile(r"not_found", re.IGNORECASE), 404),
    (re.compile(r"invalid|bad_?request|context|content_filter|content_policy", re.IGNORECASE), 400),
)


def message_of(body: bytes) -> tuple[str, str]:
    """The provider's message and code in an error body: JSON of any usual shape, else its text."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        if _PAGE.match(body):
            return "an HTML page, not a model's answer (is the base URL right?)", ""
        return body[: 4 * MAX_MESSAGE].decode("utf-8", "replace"), ""
    return _told(data)


def _told(data: Any) -> tuple[str, str]:
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, dict):
        return str(data), ""
    error = data.get("error")
    if isinstance(error, str):
        return error, str(data.get("code") or data.get("type") or "")
    source: Mapping[str, Any] = error if isinstance(error, dict) else data
    message = source.get("message") or source.get("detail") or source.get("msg")
    if not isinstance(message, str):
        message = json.dumps(message if message is not None else source, ensure_ascii=False)
    code = " ".join(str(source[key]) for key in ("code", "type", "status") if source.get(key) is not None)
    return message, code


def clean(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` on one line, without control characters and secrets, 500 characters at most."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    text = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MAX_MESSAGE]).split())
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from `retry-after-ms` or `Retry-After` (seconds or an HTTP date, RFC 9110 10.2.3)."""
    value = headers.get("retry-after-ms")
    if value is not None and (seconds := _number(value)) is not None:
        return seconds / 1000
    value = headers.get("Retry-After") or headers.get("retry-after")
    if value is None:
        return None
    if (seconds := _number(value)) is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    # nan and inf are numbers to float() and none to a wait.
    return number if 0 <= number < 1e9 else None
