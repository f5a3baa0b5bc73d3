"""Tasks that run in the background: started in one process, seen and ended from any other, also
after a restart.

`manager` runs the tasks that this process started, `store` holds the state of all, `tasks` declares
what a task is.
"""

from evaluator.background.evaluations import EvaluationWork
from evaluator.background.manager import BackgroundTasks
from evaluator.background.nodes import NodeWork
from evaluator.background.scripts import ScriptWork
from evaluator.background.sessions import SessionWork
from evaluator.background.store import BackgroundStore
from evaluator.background.tasks import BackgroundTask, End, TaskType, Work
from evaluator.background.tools import BackgroundTools
from evaluator.background.watches import WatchWork

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
