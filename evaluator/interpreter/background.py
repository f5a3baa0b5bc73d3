"""The tools with which a model uses background tasks, as the interpreter knows them: by name, from
a service.

The service (see `evaluator.background`) is passed to the Evaluator. Without one, no task has these
tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from evaluator.errors import ConfigurationError
from evaluator.tools import Tool

START_SCRIPT = "start_script"
START_SUBTASK = "start_subtask"
START_SESSION = "start_session"
START_WATCH = "start_watch"
BACKGROUND_SAFE = ("list_background", "read_background", "wait_background")
"""Those that may be called twice."""
BACKGROUND_TOOLS = (
    START_SCRIPT,
    START_SUBTASK,
    START_SESSION,
    START_WATCH,
    "send_message",
    *BACKGROUND_SAFE,
    "kill_background",
)


class BackgroundService(Protocol):
    """Makes the tools of a session, and passes on what its background tasks tell it."""

    def tools(self, spawner: Any) -> Mapping[str, Tool]:
        """The tools BACKGROUND_TOOLS of the task of `spawner`, its `spawning.Spawner`.

        When they are closed, everything that the task started is ended.
        """
        ...

    def notifications(self, session: str, *, later: bool) -> str:
        """The notifications that the session has not received yet, as text; empty if there is none.

        `later` includes those that wait for the next message of the user. See `Run.session`.
        """
        ...


class NoBackground:
    """Background tasks where there can be none: a task that wants one fails with `reason`."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def tools(self, spawner: Any) -> Mapping[str, Tool]:
        """Raises: ConfigurationError."""
        raise ConfigurationError(self._reason)

    def notifications(self, session: str, *, later: bool) -> str:
        return ""
