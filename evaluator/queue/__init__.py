"""The persistent queue: entries, their file `task-queue.json`, the store, and the dispatcher."""

from evaluator.queue.deliverables import EvaluateForVerifier as EvaluateForVerifier
from evaluator.queue.deliverables import GraderVerifier as GraderVerifier
from evaluator.queue.deliverables import ResultToVerify as ResultToVerify
from evaluator.queue.deliverables import Verifier as Verifier
from evaluator.queue.entries import EntryOptions as EntryOptions
from evaluator.queue.entries import EntryStatus as EntryStatus
from evaluator.queue.entries import EntryType as EntryType
from evaluator.queue.entries import QueueEntry as QueueEntry
from evaluator.queue.entries import StrategyAttempt as StrategyAttempt
from evaluator.queue.importing import Imported as Imported
from evaluator.queue.queue_view import BoardColumn as BoardColumn
from evaluator.queue.queue_view import QueueBoard as QueueBoard
from evaluator.queue.queue_view import QueueStats as QueueStats
from evaluator.queue.queue_view import QueueView as QueueView
from evaluator.queue.store import StoredEntry as StoredEntry
from evaluator.queue.store import StuckEntry as StuckEntry
from evaluator.queue.tables import EntrySummary as EntrySummary
from evaluator.queue.task_queue import TaskQueue as TaskQueue
from evaluator.queue.worker import WorkSummary as WorkSummary
