"""Delivers the notifications of a task that no session takes: to a command of the user, or to a
callback.
"""

from __future__ import annotations

from collections.abc import Callable

from evaluator.background.notifications import Notice
from evaluator.background.store import BackgroundStore
from evaluator.background.tasks import BackgroundTask
from evaluator.errors import ToolError
from evaluator.processes.scripts import run_script

COMMAND_S = 60.0
NOT_OWN = "the notification command is not run, because it comes from somebody else"
NoticeCallback = Callable[[Notice], None]


async def deliver(
    store: BackgroundStore, task: BackgroundTask, callback: NoticeCallback | None = None
) -> list[str]:
    """Claims the notifications of `task` and passes each to the task's command and to `callback`.

    Without either, they stay for the session that started the task. The command of a task that
    somebody else wrote is not run. Returns: a warning for each failed command; the last one is also
    in the task's state.
    """
    if task.notify_command is None and callback is None:
        return []
    if task.notify_command is not None and not store.is_own(task.id):
        store.note(task.id, notify_error=NOT_OWN)
        return [f"{task.id}: {NOT_OWN}"]
    warnings: list[str] = []
    for notice in store.claim(task_id=task.id):
        if callback is not None:
            callback(notice)
        if task.notify_command is None:
            continue
        try:
            result = await run_script(task.notify_command, stdin=notice.xml, timeout_s=COMMAND_S)
        except ToolError as error:
            warnings.append(f"the notification command cannot be run: {error}")
        else:
            if result.exit_code != 0:
                why = result.stderr.strip()[:500] or f"exit code {result.exit_code}"
                warnings.append(f"the notification command failed: {why}")
    if warnings:
        store.note(task.id, notify_error=warnings[-1])
    return [f"{task.id}: {warning}" for warning in warnings]
