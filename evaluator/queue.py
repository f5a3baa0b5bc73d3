"""The persistent queue: its entries, in a database and in the file `task-queue.json`.

The names of `evaluator.jobs` that programs use for it.
"""

from evaluator.jobs.deliverables import EvaluateForVerifier as EvaluateForVerifier
from evaluator.jobs.deliverables import GraderVerifier as GraderVerifier
from evaluator.jobs.deliverables import ResultToVerify as ResultToVerify
from evaluator.jobs.deliverables import Verifier as Verifier
from evaluator.jobs.entries import EntryOptions as EntryOptions
from evaluator.jobs.entries import EntryStatus as EntryStatus
from evaluator.jobs.entries import EntryType as EntryType
from evaluator.jobs.entries import QueueEntry as QueueEntry
from evaluator.jobs.entries import StrategyAttempt as StrategyAttempt
from evaluator.jobs.queue_files import Imported as Imported
from evaluator.jobs.queue_store import StoredEntry as StoredEntry
from evaluator.jobs.queue_store import StuckEntry as StuckEntry
from evaluator.jobs.queue_view import BoardColumn as BoardColumn
from evaluator.jobs.queue_view import QueueBoard as QueueBoard
from evaluator.jobs.queue_view import QueueStats as QueueStats
from evaluator.jobs.queue_view import QueueView as QueueView
from evaluator.jobs.task_queue import TaskQueue as TaskQueue
from evaluator.jobs.worker import WorkSummary as WorkSummary
