"""Tasks that run in the background: started in one process, seen and ended from any other, also
after a restart.

The names of `evaluator.jobs` that programs use for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evaluator.lazy_names import lazy_names

if TYPE_CHECKING:
    from evaluator.jobs.background_store import BackgroundStore as BackgroundStore
    from evaluator.jobs.background_tasks import BackgroundTasks as BackgroundTasks
    from evaluator.jobs.background_tools import BackgroundTools as BackgroundTools
    from evaluator.jobs.in_process import EvaluationWork as EvaluationWork
    from evaluator.jobs.in_process import SessionWork as SessionWork
    from evaluator.jobs.in_process import WatchWork as WatchWork
    from evaluator.jobs.scripts import NodeWork as NodeWork
    from evaluator.jobs.scripts import ScriptWork as ScriptWork
    from evaluator.jobs.tasks import BackgroundTask as BackgroundTask
    from evaluator.jobs.tasks import End as End
    from evaluator.jobs.tasks import TaskType as TaskType
    from evaluator.jobs.tasks import Work as Work

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
            "evaluator.jobs.in_process": ("EvaluationWork", "SessionWork", "WatchWork"),
            "evaluator.jobs.background_tasks": ("BackgroundTasks",),
            "evaluator.jobs.scripts": ("NodeWork", "ScriptWork"),
            "evaluator.jobs.background_store": ("BackgroundStore",),
            "evaluator.jobs.tasks": (
                "BackgroundTask",
                "End",
                "TaskType",
                "Work",
            ),
            "evaluator.jobs.background_tools": ("BackgroundTools",),
        },
    )


def __dir__() -> list[str]:
    return __all__
