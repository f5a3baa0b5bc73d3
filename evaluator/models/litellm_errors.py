"""Maps the exceptions of LiteLLM, of the OpenAI SDK and of what these call to errors of the backend
protocol.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from evaluator.errors import ProviderError, ProviderErrorKind
from evaluator.models.failures import clean, failure, malformed, message_of, retry_after

# Classes by name: they come from four packages that are not imported for this. The first row that
# names one of an exception's causes decides: kind, retryable, maybe billed.
_KINDS: tuple[tuple[ProviderErrorKind, bool, bool, frozenset[str]], ...] = (
    ("context_length", False, False, frozenset({"ContextWindowExceededError"})),
    ("content_filter", False, False, frozenset({"ContentPolicyViolationError"})),
    ("timeout", True, True, frozenset({"Timeout", "APITimeoutError"})),
    (
        "connection",
        True,
        False,
        frozenset({"ClientConnectorError", "ConnectionRefusedError", "gaierror"}),
    ),
    (
        "connection",
        True,
        True,
        frozenset(
            {
                "ReadError",
                "WriteError",
                "RemoteProtocolError",
                "ConnectError",
                "ServerDisconnectedError",
                "ClientOSError",
                "ClientPayloadError",
                "ConnectionResetError",
            }
        ),
    ),
    (
        "malformed_response",
        True,
        True,
        frozenset(
            {
                "JSONDecodeError",
                "UnicodeDecodeError",
                "APIResponseValidationError",
                "JSONSchemaValidationError",
            }
        ),
    ),
    ("other", False, False, frozenset({"ImportError"})),
)
# One of these causes carries the provider's own answer with an error status.
_ANSWERED = frozenset({"HTTPStatusError", "MaskedHTTPStatusError"})
_ON_THE_WAY = frozenset({"connection", "malformed_response"})
# An error of these kinds although an answer came without an error status: LiteLLM failed to read
# the answer.
READ_FAILURES = frozenset({"bad_request", "server", "other", "malformed_response"})


def provider_error(exc: Exception, secrets: Collection[str]) -> ProviderError:
    """The error for an exception of LiteLLM, of the OpenAI SDK or of what these call.

    Their classes say little (a refused connection, broken JSON and a missing module all become a
    500), so the chain of causes decides, outermost first.
    """
    message = clean(getattr(exc, "message", None) or str(exc), secrets) or type(exc).__name__
    for cause in causes(exc):
        # aiohttp has a subclass, which has no `verify_message`; its cause has one.
        reason = getattr(cause, "verify_message", None)
        if isinstance(cause, ssl.SSLCertVerificationError) and reason:
            message = f"the server's certificate is refused: {clean(reason, secrets)}"
            return ProviderError(message, kind="connection")
    # Of the exception and its causes, with their bases.
    names = {kind.__name__ for cause in causes(exc) for kind in type(cause).__mro__}
    status = getattr(exc, "status_code", None)
    # An answer with an error status is never a broken connection, even if the exception says so.
    answered = isinstance(status, int) and not names.isdisjoint(_ANSWERED)
    for kind, retryable, billed, classes in _KINDS:
        if not names.isdisjoint(classes) and not (answered and kind in _ON_THE_WAY):
            return ProviderError(message, kind=kind, retryable=retryable, maybe_billed=billed)
    if "invalid response from LLM endpoint" in message and not answered:
        return malformed(message, retryable=False)
    if not isinstance(status, int) or status < 400:
        return ProviderError(message, kind="other", maybe_billed=True)
    headers = getattr(exc, "litellm_response_headers", None)
    headers = headers or getattr(getattr(exc, "response", None), "headers", None)
    provider_message, code = _provider_message(exc)
    return failure(
        status,
        provider_message or message,
        code=code or str(getattr(exc, "code", None) or ""),
        retry_after_s=retry_after(headers) if headers else None,
        secrets=secrets,
    )


def causes(exc: BaseException) -> Iterator[BaseException]:
    """An exception and what caused it, outermost first."""
    cause: BaseException | None = exc
    for _ in range(10):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _provider_message(exc: BaseException) -> tuple[str, str]:
    """The provider's own message and code, from the answer that an exception carries; ("", "")
    without one.
    """
    for cause in causes(exc):
        # The content of a response that was not read to its end raises.
        with suppress(Exception):
            body: Any = cause.response.content  # type: ignore[attr-defined]
            if isinstance(body, bytes) and body:
                return message_of(body)
    return "", ""
