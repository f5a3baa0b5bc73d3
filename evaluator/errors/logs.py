"""The loggers of the package, all below `evaluator`. They are silent until the program configures
logging.

| logger | DEBUG | INFO | WARNING |
|---|---|---|---|
| `evaluator.models` | a model call and its duration | a failed attempt, a retry | what a provider reported wrongly |
| `evaluator.tools` | a tool call and its duration | a failed call, a retry | |
| `evaluator.tasks` | the beginning and end of a task, a sample or a batch | a failed task | |
| `evaluator.output` | | a repair of an answer | |
| `evaluator` | details of connections and processes | a process that was lost | what a user should know |
"""

from __future__ import annotations

import logging
from typing import Literal, Protocol, get_args

from evaluator.errors.messages import visible

LOGGER = logging.getLogger("evaluator")
LOGGER.addHandler(logging.NullHandler())

Subject = Literal["models", "tools", "tasks", "output"]
_LOGGERS = {subject: logging.getLogger(f"evaluator.{subject}") for subject in get_args(Subject)}


class Redacts(Protocol):
    """Removes secrets from a text."""

    def redact(self, text: str) -> str: ...


def is_logged(subject: Subject) -> bool:
    """Whether anything below WARNING is logged about the subject."""
    return _LOGGERS[subject].isEnabledFor(logging.INFO)


def log(subject: Subject, level: int, redactor: Redacts, message: str, *arguments: object) -> None:
    """Logs one line without secrets and control characters. Nothing is formatted if the level is
    not enabled.
    """
    logger = _LOGGERS[subject]
    if logger.isEnabledFor(level):
        text = message % arguments if arguments else message
        logger.log(level, "%s", visible(redactor.redact(text), one_line=True), stacklevel=2)
