"""The times of recurring entries, from cron expressions, in UTC. Needs the package `croniter`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from evaluator.errors import MissingExtra, UsageError


def check_expression(expression: str) -> None:
    """Raises: UsageError, for a text that is not a cron expression or that no time fits;
    MissingExtra.
    """
    if not _croniter().is_valid(expression):
        raise UsageError(
            f"{expression!r:.80} is not a cron expression; write five fields, such as '0 7 * * "
            "1-5' for 7:00 UTC "
            "on weekdays"
        )
    next_time(expression, 0.0)


def next_time(expression: str, after: float) -> float:
    """The first time after `after` that fits the expression. Raises: UsageError, if there is none;
    MissingExtra.
    """
    library = _croniter()
    start = datetime.fromtimestamp(after, UTC)
    try:
        return library(expression, start).get_next(datetime).timestamp()
    except (ValueError, KeyError) as error:  # croniter's errors are ValueErrors
        raise UsageError(f"the cron expression {expression!r:.80} fits no time: {error}") from error


def _croniter() -> Any:
    try:
        from croniter import croniter
    except ImportError as error:
        raise MissingExtra("croniter", "queue") from error
    return croniter
