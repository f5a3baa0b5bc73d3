"""Commands to a batch that runs in another process: the log of a batch's folder that carries them.

`control.jsonl` has a line for each command and for each state that a session gave it:

    sent      written by the commander; no session has read it yet
    accepted  a session has taken it over, and its effect takes time or lasts
    done      the effect is in the session or in the folder
    refused   it has no effect, for the reason in its message

A session carries out every command that is neither done nor refused, in the order of their ids,
also those that an earlier session read and did not finish. A kill between command and effect loses
nothing. Entries are signed for this batch at this place: those of somebody else have no effect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

from evaluator import clock, disk
from evaluator.batch.folder import BatchFolder
from evaluator.batch.identity import is_sealed, seal_line
from evaluator.batch.options import BatchLimits
from evaluator.batch.reading import open_batch
from evaluator.batch.records import COUNTABLE, Verdict
from evaluator.batch.wave_log import submissions_of
from evaluator.errors import (
    ConfigurationError,
    RecordError,
    RecordNotWritten,
    UsageError,
    advice_on,
)
from evaluator.fields import check_names
from evaluator.files.atomic import locked
from evaluator.files.open_below import open_regular
from evaluator.files.trust import signature, signature_check
from evaluator.lazy_dataclass import frozen
from evaluator.record.journal import now
from evaluator.store.owners import is_gone, is_visible, parse_owner

CONTROL = "control.jsonl"
ANSWER_S = 5.0
"""So long a commander waits for the answer of the running session."""
FRESH_S = 5.0
"""The progress of a session on another machine is believed for so long."""
_LOOK_S = 0.1
_MAX_BYTES = 16_000_000
Action = Literal["pause", "continue", "set", "retry", "skip", "stop", "cancel"]
CommandState = Literal["sent", "accepted", "done", "refused"]


@frozen
class Command:
    """A command in a batch's log, with its state now and the session's message about it.

    `arguments`: limits as `name=value` for `set`, types or reasons of errors for `retry` (none: all
    errors), the ids of samples for `skip`.
    """

    id: int
    action: Action
    arguments: tuple[str, ...]
    at: str
    state: CommandState = "sent"
    message: str = ""

    @property
    def is_final(self) -> bool:
        """Whether no session has to do anything about it any more."""
        return self.state in ("done", "refused")

    def __str__(self) -> str:
        return " ".join((self.action, *self.arguments))

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "arguments": list(self.arguments)}


class ControlLog:
    """The log of commands in a batch's folder. `created` is the manifest's.

    `read` looks only at what was appended since. `ignored` counts the lines that are damaged, or
    that this user's programs did not write for this batch.
    """

    def __init__(self, folder: str | Path, created: str) -> None:
        self.path = Path(folder) / CONTROL
        self.ignored = 0
        self._batch = [os.path.realpath(folder), created]
        self._file: tuple[int, int] | None = None
        self._end = 0
        self._commands: dict[int, Command] = {}

    def has_news(self) -> bool:
        """Whether the file has changed since it was read; one call of the system."""
        try:
            status = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return self._file is not None
        return self._file != (status.st_dev, status.st_ino) or self._end != status.st_size

    def read(self) -> list[Command]:
        """The commands of this user, by id. Raises: RecordError, if the file cannot be read."""
        try:
            with open(open_regular(self.path, max_bytes=_MAX_BYTES), "rb") as file:
                status = os.fstat(file.fileno())
                identity = status.st_dev, status.st_ino
                if self._file != identity or status.st_size < self._end:
                    self._file = identity
                    self._end = 0
                    self.ignored = 0
                file.seek(self._end)
                data = file.read(_MAX_BYTES)
        except FileNotFoundError:
            self._file = None
            self._end = 0
            return []
        except OSError as error:
            raise RecordError(f"{self.path}: cannot be read: {error.strerror}") from error
        whole = data[: data.rfind(b"\n") + 1]
        self._end += len(whole)
        is_signed = signature_check()
        for line in whole.splitlines(keepends=True):
            entry = _read_entry(line)
            if entry is not None and is_signed(self._signed_part(entry), entry.get("signature")):
                self._add(entry)
            elif line.strip():
                self.ignored += 1
        return [self._commands[number] for number in sorted(self._commands)]

    def _add(self, entry: Mapping[str, Any]) -> None:
        number = entry["id"]
        command = self._commands.get(number)
        if "action" in entry:
            arguments = tuple(entry["arguments"])
            new = Command(number, entry["action"], arguments, at=entry["at"])
            # A copy of a line changes nothing.
            self._commands.setdefault(number, new)
        elif command is not None and not command.is_final:
            self._commands[number] = replace(
                command, state=entry["state"], message=entry["message"]
            )

    def send(self, action: Action, arguments: Sequence[str] = ()) -> Command:
        """Appends a command; it is on the disk when this returns.

        Raises: RecordError, if the folder cannot be written; ConfigurationError, if the user's
        folder has no key to sign it with.
        """
        try:
            descriptor = self._open()
            try:
                with locked(descriptor):
                    number = max((command.id for command in self.read()), default=0) + 1
                    command = Command(number, action, tuple(arguments), at=now())
                    entry = asdict(command)
                    del entry["state"], entry["message"]
                    self._write(descriptor, entry)
                    disk.fsync(descriptor)
            finally:
                disk.close(descriptor)
            disk.sync_folder(self.path.parent)
        except OSError as error:
            raise self._not_written(error) from error
        return command

    def answer(self, command: Command, state: CommandState, message: str = "") -> None:
        """Appends a state of a command; it is on the disk when this returns, also if the sender of
        the command has not synced the new file yet. Raises: RecordError or ConfigurationError, as
        `send`.
        """
        entry = {"id": command.id, "state": state, "message": message, "at": now()}
        try:
            descriptor = self._open()
            try:
                # Without the lock, which a stopped commander might hold: a line is one write,
                # unless the disk is nearly full.
                self._write(descriptor, entry)
                disk.fsync(descriptor)
            finally:
                disk.close(descriptor)
            disk.sync_folder(self.path.parent)
        except OSError as error:
            raise self._not_written(error) from error

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return open_regular(self.path, max_bytes=_MAX_BYTES, flags=flags)

    def _write(self, descriptor: int, entry: Mapping[str, Any]) -> None:
        mark = signature(self._signed_part(entry))
        if mark is None:
            raise ConfigurationError(
                "commands to a batch are signed with the key in the user's folder, which cannot be "
                "written; make it writable, or set EVALUATOR_CONFIG_DIR to a folder of your own"
            )
        line = seal_line(json.dumps({**entry, "signature": mark}))
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            # A commander was killed while it wrote; its line is not a command.
            line = b"\n" + line
        disk.write_all(descriptor, line)

    def _signed_part(self, entry: Mapping[str, Any]) -> bytes:
        content = {name: value for name, value in entry.items() if name not in _NOT_SIGNED}
        return json.dumps({"batch": self._batch, **content}, sort_keys=True).encode()

    def _not_written(self, error: OSError) -> RecordNotWritten:
        return RecordNotWritten(
            f"{self.path}: a command cannot be written: {error.strerror}; {advice_on(error)}"
        )


_NOT_SIGNED = frozenset({"crc32", "signature", "batch"})


def _read_entry(line: bytes) -> dict[str, Any] | None:
    """The entry in a line; None, if it is damaged."""
    if not is_sealed(line):
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", entry) if isinstance(entry, dict) else None


# -- arguments -------------------------------------------------------------------------------------


def changed_limits(limits: BatchLimits, arguments: Sequence[str]) -> BatchLimits:
    """`limits` with each `name=value` of `arguments`; `none` removes a limit.

    Raises: UsageError, for an unknown name or a value that the limit cannot have.
    """
    values: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals:
            raise UsageError(f"{argument!r}: expected LIMIT=VALUE, as in concurrency=8")
        check_names(
            [name], (each.name for each in fields(BatchLimits)), UsageError, where="the limit "
        )
        values[name] = _number(text)
    if not values:
        raise UsageError("set needs a limit, as in concurrency=8 or max_cost=20")
    return replace(limits, **values)


def _number(text: str) -> Any:
    """The number in `text`, None for `none`; another text as it is."""
    if text == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_command(action: Action, arguments: Sequence[str]) -> None:
    """Raises: UsageError, for arguments that no session could use."""
    if action == "set":
        changed_limits(BatchLimits(), arguments)
    elif action == "retry":
        check_names(arguments, COUNTABLE, UsageError, where="the error ")
    elif action == "skip":
        if not arguments:
            raise UsageError("skip needs the id of a sample")
    elif arguments:
        raise UsageError(f"{action} takes no arguments, found {arguments[0]!r}")


# -- commanding ------------------------------------------------------------------------------------


def control_batch(
    folder: str | Path,
    action: Action,
    arguments: Sequence[str] = (),
    *,
    wait_s: float = ANSWER_S,
) -> Command:
    """Sends a command to the batch in `folder`, and waits at most `wait_s` seconds for the answer
    of the session that runs.

    Without a running session, the command waits in the folder for the next one.

    Returns: the command, with its state then.
    Raises: UsageError, for a command that cannot be carried out: unknown arguments, a complete
    batch, or `stop` and `continue` where nothing runs; RecordError, if there is no batch or its
    folder cannot be written.
    """
    _check_command(action, arguments)
    status = batch_status(folder)
    if not status.is_running:
        _check_idle(status, action)
    reader = BatchFolder.reader(folder)
    log = ControlLog(folder, _created(reader))
    sent = log.send(action, arguments)
    until = clock.monotonic() + wait_s
    while True:
        # Asked before the log is read: a session answers before it ends.
        is_over = clock.monotonic() >= until or not _is_live(reader.progress() or {})
        found = next((command for command in log.read() if command.id == sent.id), None)
        if found is None:
            raise RecordError(
                f"{log.path}: the command is not in this file any more, because the file was "
                "removed; send it again"
            )
        if found.state != "sent" or is_over:
            return found
        clock.pause(_LOOK_S)


def _check_idle(status: BatchStatus, action: Action) -> None:
    """Raises: UsageError, for a command that has no meaning where no session runs."""
    if status.state == "complete":
        raise UsageError(
            f"{status.folder}: the batch is complete; to run samples again that ended with an "
            "error, resume it with --retry-errors"
        )
    if action == "stop" or (action == "continue" and not status.is_paused):
        raise UsageError(f"{status.folder}: no session of the batch runs ({status.state})")


@frozen
class BatchStatus:
    """What a batch does now, or how it ended.

    `state` is "running", "paused", "interrupted" (its session was killed), or the manifest's state.
    `verdicts` count results; `total` is None while it is unknown. `progress` is what the running
    session wrote a moment ago: limits, usage, rate, endpoints; empty if none runs.
    `provider_batches` are those that were submitted, in order.
    """

    folder: Path
    name: str
    state: str
    is_running: bool
    is_paused: bool
    reason: str
    done: int
    total: int | None
    verdicts: Mapping[str, int]
    progress: Mapping[str, Any] = field(default_factory=dict[str, Any])
    commands: tuple[Command, ...] = ()
    ignored: int = 0
    provider_batches: tuple[Mapping[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "folder": str(self.folder),
            "verdicts": dict(self.verdicts),
            "progress": dict(self.progress),
            "commands": [command.to_dict() for command in self.commands],
            "provider_batches": [dict(each) for each in self.provider_batches],
        }


def batch_status(folder: str | Path) -> BatchStatus:
    """The status of the batch in `folder`: that of the running session, else what the folder has.

    Raises: RecordError, if there is no batch or it cannot be read.
    """
    batch = open_batch(folder)
    reader = BatchFolder.reader(folder)
    log = ControlLog(folder, _created(reader))
    commands = log.read()
    progress = reader.progress() or {}
    is_running = _is_live(progress)
    pauses = [command for command in commands if command.action == "pause"]
    is_paused = any(
        command.state == "accepted" or (command.state == "sent" and not is_running)
        for command in pauses
    )
    sessions = batch.manifest.get("sessions") or [{}]
    total = batch.manifest.get("total")
    if is_running:
        state = "paused" if is_paused else "running"
        reason = str(progress.get("stop") or "")
        done = progress["done"]
        total = progress["total"]
        verdicts: dict[str, int] = dict(progress["verdicts"])
    else:
        progress = {}
        state = batch.manifest.get("state") or "interrupted"
        if state == "running":
            state = "interrupted"
        reason = sessions[-1].get("reason") or ""
        left_out = set(batch.manifest.get("left_out", []))
        found = [entry for key, entry in reader.index().items() if key not in left_out]
        verdicts = dict.fromkeys((verdict.value for verdict in Verdict), 0)
        for entry in found:
            verdicts[entry.verdict.value] += 1
        done = len(found)
    return BatchStatus(
        Path(folder),
        batch.name,
        state=state,
        is_running=is_running,
        is_paused=is_paused,
        reason=reason,
        done=done,
        total=total,
        verdicts={name: count for name, count in verdicts.items() if count},
        progress=progress,
        commands=tuple(commands),
        ignored=log.ignored,
        provider_batches=tuple(each.to_dict() for each in submissions_of(folder, _created(reader))),
    )


def _created(folder: BatchFolder) -> str:
    return str(folder.manifest().get("created"))


def _is_live(progress: Mapping[str, Any]) -> bool:
    """Whether the session that wrote `progress` still runs."""
    try:
        at = float(progress["at"])
        owner = parse_owner(progress["owner"])
        is_complete = {"done", "total", "verdicts"} <= progress.keys()
    except (LookupError, TypeError, ValueError):
        return False
    if owner is None or not is_complete or not isinstance(progress["verdicts"], dict):
        return False
    if is_visible(owner):
        return not is_gone(owner)
    return 0 <= clock.wall() - at < FRESH_S
