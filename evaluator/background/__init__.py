"""Tasks that run in the background: started in one process, seen and ended from any other, also
after a restart.

`manager` runs the tasks that this process started, `store` holds the state of all, `tasks` declares
what a task is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluator.lazy_names import lazy_names

if TYPE_CHECKING:
    from evaluator.background.in_process import EvaluationWork as EvaluationWork
    from evaluator.background.in_process import SessionWork as SessionWork
    from evaluator.background.in_process import WatchWork as WatchWork
    from evaluator.background.manager import BackgroundTasks as BackgroundTasks
    from evaluator.background.scripts import NodeWork as NodeWork
    from evaluator.background.scripts import ScriptWork as ScriptWork
    from evaluator.background.store import BackgroundStore as BackgroundStore
    from evaluator.background.tasks import BackgroundTask as BackgroundTask
    from evaluator.background.tasks import End as End
    from evaluator.background.tasks import TaskType as TaskType
    from evaluator.background.tasks import Work as Work
    from evaluator.background.tools import BackgroundTools as BackgroundTools

__all__ = [
    "BackgroundStore",
    "BackgroundTask",
    "BackgroundTasks",
    "BackgroundTools",
    "End",
    "EvaluationWork",
    "NodeWork",
    "ScriptWork",
    "SessionWork",
    "TaskType",
    "WatchWork",
    "Work",
]

if not TYPE_CHECKING:
    # A command that may start tasks in the background imports little as long as it starts none.
    __getattr__ = lazy_names(
        __name__,
        {
            ".in_process": ("EvaluationWork", "SessionWork", "WatchWork"),
            ".manager": ("BackgroundTasks",),
            ".scripts": ("NodeWork", "ScriptWork"),
            ".store": ("BackgroundStore",),
            ".tasks": (
                "BackgroundTask",
                "End",
                "TaskType",
                "Work",
            ),
            ".tools": ("BackgroundTools",),
        },
    )


def __dir__() -> list[str]:
    return __all__
