"""For tests of backends: the conformance suite, and a loopback server that misbehaves on demand.

No other part of the package imports it, and it needs no test framework.
"""

from evaluator.testing.backends import (
    CHECKS,
    KEY,
    MODEL,
    TOOL,
    BackendCase,
    CallOutcome,
    Check,
    a_request,
    check_backend,
)  # fmt: skip
from evaluator.testing.loopback import (
    Answer,
    HttpReply,
    LoopbackServer,
    chunk,
    error_reply,
    event,
    json_reply,
    stream_reply,
)  # fmt: skip

__all__ = [
    "CHECKS", "KEY", "MODEL", "TOOL", "Answer", "BackendCase", "CallOutcome", "Check", "HttpReply", "LoopbackServer",
    "a_request", "check_backend", "chunk", "error_reply", "event", "json_reply", "stream_reply",
]  # fmt: skip
