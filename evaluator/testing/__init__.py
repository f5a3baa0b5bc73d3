"""For tests: the conformance suite of backends, a loopback server that misbehaves on demand, and a
fake clock.

No other part of the package imports it, and it needs no test framework.
"""

from evaluator.testing.backend_case import (
    KEY,
    MODEL,
    TOOL,
    BackendCase,
    CallOutcome,
    Check,
    a_request,
)
from evaluator.testing.backends import CHECKS, check_backend
from evaluator.testing.clock import FakeClock
from evaluator.testing.loopback import (
    Answer,
    HttpReply,
    LoopbackServer,
    chunk,
    error_reply,
    event,
    json_reply,
    stream_reply,
)

__all__ = [
    "CHECKS",
    "KEY",
    "MODEL",
    "TOOL",
    "Answer",
    "BackendCase",
    "CallOutcome",
    "Check",
    "FakeClock",
    "HttpReply",
    "LoopbackServer",
    "a_request",
    "check_backend",
    "chunk",
    "error_reply",
    "event",
    "json_reply",
    "stream_reply",
]


def __dir__() -> list[str]:
    return __all__
