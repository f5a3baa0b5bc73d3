"""The queue for programs and for the command line: one object with the verbs of `evaluator
queue`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from evaluator import clock
from evaluator.errors import EvaluatorError, RecordError, UsageError
from evaluator.errors.messages import amount, visible
from evaluator.errors.results import Outcome
from evaluator.files.atomic import locked_file
from evaluator.files.open_below import open_private_folder
from evaluator.interpreter.evaluator import Evaluator
from evaluator.interpreter.recovery import ON_UNFINISHED, OnUnfinished
from evaluator.interpreter.sync import sync_form
from evaluator.jobs.deliverables import Verifier
from evaluator.jobs.document import FILE, read_limited
from evaluator.jobs.entries import (
    MAX_INTEGER,
    EntryOptions,
    QueueEntry,
    check_expression,
    entry_id,
    entry_number,
    next_time,
    timestamp,
)
from evaluator.jobs.intake import (
    checked_text,
    classify,
    goal_of,
    read_controls,
    read_message,
    type_named,
)
from evaluator.jobs.queue_files import (
    ARCHIVE,
    CONFLICT,
    LOCK,
    Imported,
    Publisher,
    archive,
    create_store,
    import_document,
)
from evaluator.jobs.queue_store import QueueStore
from evaluator.jobs.queue_view import DATABASE, QueueView, check_not_lost, check_range
from evaluator.jobs.worker import LEASE_S, Dispatcher, QueueWorker, WorkSummary

_ARCHIVE_EVERY_S = 3600.0
_LOOK_S = 0.3
_MAX_NAMED = 10
STUCK_ADVICE = (
    "skip the waiting entry too, retry the blocked one, or add the waiting one again "
    "without --after"
)


class TaskQueue(QueueView):
    """A persistent queue in `folder`: `queue.sqlite`, its published form `task-queue.json`, the
    archive, deliverables.

    Any number of processes and threads may use one folder at once. The folder is `TASK_RUNNER_DIR`,
    or `queue` here, unless it is given; it is created if it is missing. `task-queue.json` is
    written within a second of a change, and by `close`. A file without a database is taken over,
    and one that a person has edited is imported entry by entry, here and while `work` runs; without
    `takes_edits` an edited file stays. `notice` gets lines for the user (default:
    the log).

    Raises: RecordError, from every method too, if the folder or the database cannot be used;
    ConfigurationError, for a database of another program or version.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        notice: Callable[[str], None] | None = None,
        takes_edits: bool = True,
    ) -> None:
        self._notice = notice or _log_notice
        super().__init__(folder)
        # A connection of its own: publishing a large queue does not keep workers waiting.
        try:
            self._published = QueueStore(self.folder / DATABASE)
        except BaseException:
            self._store.close()
            raise
        self._publisher = Publisher(
            self._published, self.folder, notice=self._notice, takes_edits=takes_edits
        )
        self._store.on_change = self._publisher.schedule
        self._store.on_unsigned = self._published.on_unsigned = self._tell_of_unsigned
        if takes_edits:
            self._publisher.take_edit()

    def _open_store(self) -> QueueStore:
        os.close(open_private_folder(self.folder, "folder of the queue", sync=True))
        check_not_lost(self.folder)
        database = self.folder / DATABASE
        try:
            with locked_file(self.folder / LOCK):
                if not os.path.lexists(database):
                    imported = create_store(database)
                    if imported.added:
                        self._notice(
                            f"{self.folder / FILE} had no database beside it; its entries were "
                            f"taken over: {len(imported.added):,}"
                        )
        except OSError as error:
            raise RecordError(
                f"{database}: the queue cannot be created: {error.strerror or error}"
            ) from error
        return QueueStore(database)

    def _tell_of_unsigned(self, id: str) -> None:
        self._notice(
            f"{id}: its template and inputs come from somebody else, so they are not used; it runs "
            "by its words"
        )

    def add(
        self,
        text: str,
        *,
        goal: str | None = None,
        type: str | None = None,
        priority: int = 0,
        not_before: datetime | None = None,
        needs: Iterable[str] = (),
        every: str | None = None,
        template: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        max_retries: int | None = None,
        key: str | None = None,
    ) -> QueueEntry:
        """Adds an entry for a text; goal and type are read from the text unless they are given.

        Entries with a higher `priority` run first. `needs`: ids of entries that must be done
        before. `every`: a cron expression (UTC); the entry runs at its next time, and its end adds
        the next one. `template` and `inputs`, JSON values, are evaluated in place of a template
        that fits the text. A `not_before` without a zone is in local time.
        `key`: if an entry was ever added with this key, that entry is returned, from the archive
        too, and nothing is added; a program that is restarted can add its work again.

        Raises: UsageError, for a value that cannot be used; MissingExtra, for `every` without
        croniter.
        """
        text = checked_text(text)
        check_range("max_retries", max_retries, least=0)
        check_range("priority", priority, least=-MAX_INTEGER)
        if template is not None:
            checked_text(template, "template")
        try:
            json.dumps(inputs)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the inputs of the entry are not JSON values: {error}") from error
        if not_before is None:
            start = 0.0
        else:
            start = _seconds(not_before)
        if every is not None:
            check_expression(every)
            start = next_time(every, max(start, clock.wall()))
        options = EntryOptions(
            priority=priority,
            not_before=start,
            needs=tuple(dict.fromkeys(needs)),
            every=every,
            template=template,
            inputs=dict(inputs or {}),
        )
        if type is None:
            kind = classify(text)
        else:
            kind = type_named(type)
        goal = goal_of(text if goal is None else checked_text(goal, "goal"))
        with self._store.transaction():
            if key is not None:
                known = self._store.number_of_key(checked_text(key, "key"))
                if known is not None:
                    return self.show(entry_id(known)).entry
            entry = self._store.add(text, goal, kind, options, max_retries)
            if key is not None:
                self._store.note_key(key, entry_number(entry.id))
        return entry

    async def add_message(
        self,
        evaluator: Evaluator,
        message: str,
        *,
        check: Callable[[Outcome], None] | None = None,
        **options: Any,
    ) -> Sequence[QueueEntry]:
        """Adds the entries that a model reads out of a message, with the template `read_message`:
        goals, types, priorities, dates, and their order. `options` are those of `add`, for
        each entry; `needs` is added to what the model found. `check` gets the outcome of the
        template before anything is added, and raises where it is not to be used.

        Raises: UsageError, as `add`, or if the model's answer cannot be used; nothing is added
        then.
        """
        message = checked_text(message)
        now = datetime.fromtimestamp(clock.wall()).astimezone()
        read = await read_message(evaluator, message, now=now, check=check)
        needs = tuple(options.pop("needs", ()))
        added: list[QueueEntry] = []
        with self._store.transaction():
            for entry in read:
                added.append(
                    self.add(
                        entry.text,
                        goal=entry.goal,
                        type=entry.type,
                        priority=entry.priority,
                        not_before=entry.not_before,
                        needs=(*needs, *(added[index].id for index in entry.after)),
                        **options,
                    )
                )
        return added

    def tell(self, words: str) -> Sequence[QueueEntry]:
        """Does what a person says: `skip T-02`, `retry T-03 use the channel #research`, one a line.
        Returns the changed entries.

        Raises: UsageError, for other words, and as `skip` and `retry`; nothing is changed then.
        """
        with self._store.transaction():
            return [
                self.skip(control.id)
                if control.verb == "skip"
                else self.retry(control.id, control.guidance)
                for control in read_controls(words)
            ]

    def retry(self, id: str, guidance: str | None = None) -> QueueEntry:
        """Returns a blocked entry to the queue; `guidance` is added to its text for the next
        attempts.

        Raises: UsageError, if there is no such entry or it is not blocked.
        """
        return self._store.retry(
            entry_number(id), None if guidance is None else checked_text(guidance, "guidance")
        )

    def skip(self, id: str) -> QueueEntry:
        """Cancels a pending entry; a recurring one does not return. A notice names the entries that
        wait for it.

        Raises: UsageError, as `retry`.
        """
        entry = self._store.skip(entry_number(id))
        waiting = [each.id for each in self._store.stuck() if each.cause == entry.id]
        if waiting:
            if len(waiting) > _MAX_NAMED:
                more = ", …"
            else:
                more = ""
            names = ", ".join(waiting[:_MAX_NAMED])
            self._notice(f"{names}{more} cannot run without {entry.id}; {STUCK_ADVICE}")
        return entry

    def archive(self, days: float | None = None) -> Mapping[str, Sequence[str]]:
        """Archives the entries that ended more than `days` (default: `archiveDays`) ago; returns
        their ids by month.

        Raises: UsageError, for a number of days that is negative or not a number.
        """
        if days is not None and not days >= 0:
            raise UsageError(f"days is {days}, expected 0 or more")
        return archive(self._store, self.folder, days=days)

    def import_file(self, path: str | Path | None = None) -> Imported:
        """Imports a file in the form of `task-queue.json`: everything in it or nothing. Without
        `path`: says what was taken over of this queue's own file, which somebody has edited, since
        it was opened.

        Raises: UsageError, with the places of the problems.
        """
        own = self.folder / FILE
        try:
            if path is None or (own.exists() and Path(path).samefile(own)):
                self._publisher.take_edit()
                return self._publisher.edited
            data = read_limited(Path(path))
        except OSError as error:
            raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from error
        return import_document(self._store, data, name=str(path))

    def configure(
        self,
        *,
        max_concurrent: int | None = None,
        max_retries: int | None = None,
        archive_days: int | None = None,
    ) -> None:
        """Changes settings of the queue; `max_retries` is for new entries.

        Raises: UsageError, for a value out of range.
        """
        check_range("max_concurrent", max_concurrent, least=1)
        check_range("max_retries", max_retries, least=0)
        check_range("archive_days", archive_days, least=0)
        self._store.configure(
            max_concurrent=max_concurrent, max_retries=max_retries, archive_days=archive_days
        )

    async def work(
        self,
        evaluator: Evaluator,
        *,
        workers: int | None = None,
        until_empty: bool = False,
        verifiers: Sequence[Verifier] = (),
        ask_model: bool = False,
        unfinished: OnUnfinished = "ask",
        lease_s: float = LEASE_S,
        on_start: Callable[[QueueEntry], None] = lambda entry: None,
        on_end: Callable[[QueueEntry], None] = lambda entry: None,
    ) -> WorkSummary:
        """Runs entries with the evaluator, `workers` at once (default: `maxConcurrent`), until it
        is cancelled.

        An entry has the evaluator's authority and no more. `until_empty`: ends when no entry runs
        and none could. `verifiers` check each result. `ask_model`: unknown types are asked of a
        model. Cancelling releases what runs; an entry of a killed process, or one whose lease of
        `lease_s` seconds was not renewed, returns to the queue. The next worker resumes the attempt
        from its task file; `unfinished` is what to do about a side effect without a recorded end,
        see `Evaluator.resume`.

        Raises: UsageError, for more workers than `maxConcurrent`; EvaluatorError, if attempts
        cannot run at all.
        """
        limit = self._store.settings().max_concurrent
        workers = limit if workers is None else workers
        if not 1 <= workers <= limit:
            raise UsageError(
                f"{amount(workers, 'worker')}, but the queue runs at most "
                f"{amount(limit, 'entry')} at once (maxConcurrent); start fewer, or change "
                "maxConcurrent: --max-concurrent, in Python configure(max_concurrent=…)"
            )
        if unfinished not in ON_UNFINISHED:
            raise UsageError(
                f"unfinished is {unfinished!r:.60}, expected one of {', '.join(ON_UNFINISHED)}"
            )
        own = [self.folder / f"{DATABASE}{end}" for end in ("", "-wal", "-shm", "-journal")]
        evaluator = evaluator.without_files(
            [*own, *(self.folder / name for name in (FILE, CONFLICT, LOCK, ARCHIVE))]
        )
        dispatcher = Dispatcher(
            evaluator,
            self.folder,
            entry_of=lambda id: self.show(id).entry,
            verifiers=verifiers,
            ask_model=ask_model,
            unfinished=unfinished,
        )
        worker = QueueWorker(
            self._store,
            dispatcher,
            before_claim=self._hourly_archive(),
            lease_s=lease_s,
            on_start=on_start,
            on_end=on_end,
        )
        watch = asyncio.create_task(self._take_edits())
        try:
            return await worker.run(workers, until_empty=until_empty)
        finally:
            watch.cancel()

    async def _take_edits(self) -> None:
        """Imports the published file whenever somebody has edited it."""
        while True:
            try:
                await asyncio.to_thread(self._publisher.take_edit)
            except EvaluatorError as error:
                self._notice(str(error))
            await clock.sleep(_LOOK_S)

    def _hourly_archive(self) -> Callable[[], None]:
        """A function that archives old entries at most once an hour. What goes wrong is a notice:
        work goes on.
        """
        due = 0.0

        def archive_if_due() -> None:
            nonlocal due
            now = clock.wall()
            if now < due:
                return
            due = now + _ARCHIVE_EVERY_S
            try:
                self.archive()
            except EvaluatorError as error:
                self._notice(f"old entries are not archived: {error}")

        return archive_if_due

    work_sync = sync_form(work, "`work` for code that is not async; Ctrl-C cancels it.")

    def publish(self) -> bool:
        """Writes `task-queue.json` now. False: somebody edited it, so it stays until it is imported
        or removed.
        """
        return self._publisher.publish()

    def close(self) -> None:
        """Publishes what is not published and closes the database."""
        try:
            self._publisher.close()
        finally:
            self._store.close()
            self._published.close()


def _seconds(moment: datetime) -> float:
    """Seconds since the epoch; a time before that is 0. Raises: UsageError, for a time that no
    calendar has in UTC.
    """
    try:
        seconds = max(0.0, moment.timestamp())
        timestamp(seconds)
    except (ValueError, OverflowError, OSError):
        if moment.year > 1970:
            raise UsageError(f"not_before is {moment}, which is too late for a calendar") from None
        return 0.0
    return seconds


def _log_notice(line: str) -> None:
    logging.getLogger("evaluator").warning("%s", visible(line))
