"""SQLite databases that several processes open at once; the first of them creates the file.

The file is published complete, in WAL mode, readable and writable by its owner only. Its header
identifies it: an application id and a schema version. Only SQLite may open it: POSIX locks belong
to the process, so closing any other descriptor of the file would drop the locks of every connection
in this process. The next process to close the database would then take itself for the last one and
delete the write-ahead log that is still in use.
Source: "How To Corrupt An SQLite Database File", 2.2, sqlite.org/howtocorrupt.html.

Whether a folder is on a network file system.

SQLite's write-ahead log needs memory that all processes share, which only the processes of one
machine do. Source: "Write-Ahead Logging", sqlite.org/wal.html.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import stat
import sys
import weakref
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from evaluator import clock, disk, randomness
from evaluator.errors import ConfigurationError, advice_on
from evaluator.files.atomic import NEW_FILE, NO_LINKS
from evaluator.files.open_below import hole_problem
from evaluator.hints import with_article
from evaluator.lazy_dataclass import frozen

# Source: statfs(2), and <linux/magic.h>. FUSE and 9p are not here: both are also used for folders
# of the same machine.
_NETWORK = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB 2",
    0x5346414F: "AFS",
    0x6B414653: "AFS",
    0x00C36400: "Ceph",
    0x0BD00BD0: "Lustre",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x20030528: "OrangeFS",
    0xAAD7AAEA: "PanFS",
}
_STATFS_BYTES = 512
"""More than `struct statfs` has on any platform."""


def network_file_system(folder: Path) -> str | None:
    """The name of the network file system that `folder` is on; None if it is local or unknown."""
    return _NETWORK.get(file_system_type(folder))


def file_system_type(folder: Path) -> int:
    """The type that statfs(2) gives; 0 where that is unknown."""
    if sys.platform != "linux":
        return 0
    buffer = ctypes.create_string_buffer(_STATFS_BYTES)
    if ctypes.CDLL(None).statfs(os.fsencode(folder), buffer) != 0:
        return 0
    # The first field of the structure; a negative number is one of 32 bits.
    return ctypes.cast(buffer, ctypes.POINTER(ctypes.c_long)).contents.value & 0xFFFFFFFF


_RETRY_S = 0.005
MAX_SNAPSHOT_BYTES = 1 << 30
"""`snapshot` copies no larger database."""
_FILES_OF_ONE = ("", "-wal", "-shm", "-journal")
_SNAPSHOT_TRIES = 20
_DAMAGED = "its tables are damaged; restore it from a backup or an export"
_ADVICE = {
    sqlite3.SQLITE_IOERR: "check that the disk has free space and works, then run it again",
    sqlite3.SQLITE_FULL: "free space, then run it again",
    sqlite3.SQLITE_CANTOPEN: "check that the folder can be written",
    sqlite3.SQLITE_READONLY: "check that the file and its folder can be written",
    sqlite3.SQLITE_BUSY: "another process keeps it locked; run it again",
}
_RESTORE = "restore it from a backup or an export"


@frozen
class Format:
    """A kind of database. `tables`: the SQL statements that create it, divided by `;`.
    `incremental`: free pages can be returned to the file system. `is_checked`: opening one compares
    all indexes with their tables, and rows with the conditions of their columns; a second of time
    per 400 MB. `is_durable`: a transaction that was committed survives a loss of power. `noun` and
    `instead` are for messages: its name, and what to do with a newer one.
    """

    noun: str
    application: int
    schema: int
    tables: str
    instead: str
    incremental: bool = False
    is_checked: bool = False
    is_durable: bool = False


def connect(path: Path, kind: Format, busy_s: float, *, make: bool = True) -> sqlite3.Connection:
    """Opens the database at `path`; with `make`, creates it and its folder if they are missing.

    Waits up to `busy_s` seconds for other processes. The connection is in autocommit mode; several
    threads may use it in turn.

    Raises: ConfigurationError, for a database of a newer version or of another program, for a link,
    a pipe or a device in its place, or on a network file system; OSError or sqlite3.Error, if it
    cannot be opened or is damaged.
    """
    if make and not os.path.lexists(path):
        _make(path, kind)
    _check_files(path, kind)
    path.stat()
    connection = _opened(path, busy_s)
    try:
        _prepare(connection, path, kind=kind, busy_s=busy_s)
        if kind.is_durable:
            connection.execute("PRAGMA synchronous = FULL")
            # SQLite syncs the name of its log only in the connection that makes the file.
            disk.sync_folder(path.parent)
    except BaseException:
        connection.close()
        raise
    return connection


def snapshot(path: Path, kind: Format) -> sqlite3.Connection:
    """A copy of the database in memory, which cannot be changed; an empty one if it is missing.

    Nothing is created, written or locked beside the file.

    Raises: as `connect`.
    """
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        if os.path.lexists(path):
            _check_files(path, kind)
            _copy(path, kind, copy)
        _prepare(copy, path, kind=kind, busy_s=0.0)
        copy.execute("PRAGMA query_only = ON")
    except BaseException:
        copy.close()
        raise
    return copy


def _copy(path: Path, kind: Format, copy: sqlite3.Connection) -> None:
    log = Path(f"{path}-wal")
    for _ in range(_SNAPSHOT_TRIES):
        before = _state(path)
        size = before[1] + _state(log)[1]
        if size > MAX_SNAPSHOT_BYTES:
            raise ConfigurationError(
                f"{path}: {kind.noun} of {size:,} bytes; at most {MAX_SNAPSHOT_BYTES:,} can "
                "be read without changing it"
            )
        try:
            if not _state(log)[1]:
                # All is in the file. SQLite would create files to lock it.
                _read(path, "mode=ro&immutable=1", copy)
                if _state(path) != before or _state(log)[1]:
                    continue  # another process has written
            elif Path(f"{path}-shm").exists():
                _read(path, "mode=ro", copy)
            else:
                # Without its index, no process has the log open; SQLite would create one.
                with disk.temporary_folder("evaluator-") as folder:
                    disk.copy(path, folder / path.name)
                    disk.copy(log, folder / log.name)
                    _read(folder / path.name, "mode=rw", copy)
            return
        except (sqlite3.Error, OSError):
            if _state(path) == before:
                raise
    raise sqlite3.OperationalError("other processes write all the time; try again")


def _state(path: Path) -> tuple[int, int, int]:
    """Changes with the file; the second number is its size."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: Path, how: str, copy: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(_address(path, how), uri=True)) as source:
        source.backup(copy)


def close_with(owner: object, connection: sqlite3.Connection) -> None:
    """Closes the connection when `owner` is gone, at the latest when the process ends."""
    weakref.finalize(owner, connection.close)


@contextmanager
def transaction(connection: sqlite3.Connection, kind: str = "IMMEDIATE") -> Generator[None]:
    """A transaction: committed at the end of the block, rolled back after an exception. Inside of
    another one it is a part of that.

    `DEFERRED` is for reading: all statements see one state of the database.
    """
    if connection.in_transaction:
        yield
        return
    connection.execute(f"BEGIN {kind}")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # a full disk ends the transaction
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def problem_of(error: OSError | sqlite3.Error, damaged: str = _RESTORE) -> str:
    """The text of an error, and what to do about it; `damaged`: what to do about a file that is
    damaged or is not a database.
    """
    if isinstance(error, OSError):
        return f"{error.strerror or error}; {advice_on(error)}"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind of the error
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        advice = damaged
    else:
        advice = _ADVICE.get(code)
    if advice:
        return f"{error}; {advice}"
    return str(error)


def _opened(path: Path, busy_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        _address(path, "mode=rw"),
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=False,
        uri=True,
    )
    try:
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:  # it is not a database
        connection.close()
        raise
    return connection


def _address(path: Path, how: str) -> str:
    return f"file:{quote(os.fsencode(path.absolute()))}?{how}"


def _check_files(path: Path, kind: Format) -> None:
    """Raises: ConfigurationError, where SQLite would lose data, follow a link, or read without an
    end.
    """
    for ending in _FILES_OF_ONE:
        file = f"{path}{ending}"
        try:
            status = os.lstat(file)
        except OSError:
            continue  # SQLite says what is wrong with a file that it needs
        reason = _trap(status)
        if reason is not None:
            raise ConfigurationError(
                f"{file}: {reason}; {with_article(kind.noun)} is in files that SQLite made. Remove "
                "it, or name another file"
            )
    name = network_file_system(path.parent)
    if name is not None:
        raise ConfigurationError(
            f"{path}: the {kind.noun} cannot be on a network file system ({name}), where SQLite "
            "loses data; name a folder on a disk of this machine"
        )


def _trap(status: os.stat_result) -> str | None:
    """Why a file is not opened; None if it may be."""
    if stat.S_ISLNK(status.st_mode):
        return "it is a symbolic link, which is not followed"
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    return hole_problem(status)


def _prepare(connection: sqlite3.Connection, path: Path, kind: Format, busy_s: float) -> None:
    """Creates the tables of an empty file, and checks those of another one."""
    try:
        if _version(connection, path, kind=kind) != kind.schema:
            _fill(connection, path, kind=kind, busy_s=busy_s)
        _check(connection, kind)
    except UnicodeDecodeError as error:  # in a message of SQLite that quotes a damaged name
        raise sqlite3.DatabaseError(_DAMAGED) from error


def _check(connection: sqlite3.Connection, kind: Format) -> None:
    """Raises: sqlite3.DatabaseError, if a table or an index is not as it was made."""
    found = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master")}
    for statement in kind.tables.split(";"):
        if statement.strip().startswith("CREATE ") and statement.strip() not in found:
            raise sqlite3.DatabaseError(_DAMAGED)
    if kind.is_checked:
        problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok":
            reason = " ".join(problem.split())
            raise sqlite3.DatabaseError(
                f"it is damaged ({reason}); restore it from a backup or an export"
            )


def _make(path: Path, kind: Format) -> None:
    """Creates the database under a temporary name, so that no other process sees it incomplete."""
    disk.make_folders(path.parent, sync=True)
    # Mode 0600; the journal files that SQLite creates beside it take its mode.
    name = str(path.parent / f".{path.name}.{randomness.token_hex(8)}")
    disk.close(disk.open(name, NEW_FILE, 0o600))
    try:
        with closing(_opened(Path(name), 0.0)) as connection:
            _fill(connection, path, kind=kind, busy_s=0.0)
        with suppress(FileExistsError):  # another process was faster
            _link(name, path)
    finally:
        disk.unlink(name)


def _link(name: str, path: Path) -> None:
    """Raises: FileExistsError."""
    try:
        disk.link(name, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # An empty file, which every connection can fill.
        disk.close(disk.open(path, NEW_FILE, 0o600))


def _fill(connection: sqlite3.Connection, path: Path, kind: Format, busy_s: float) -> None:
    if kind.incremental:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    _log_ahead(connection, clock.monotonic() + busy_s)
    with transaction(connection):
        if _version(connection, path, kind=kind) == kind.schema:
            return  # another connection was faster
        for statement in kind.tables.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {kind.application}")
        connection.execute(f"PRAGMA user_version = {kind.schema}")


def _log_ahead(connection: sqlite3.Connection, until: float) -> None:
    """Switches to WAL mode. If two connections do this at once, SQLite refuses one of them without
    waiting.
    """
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or clock.monotonic() >= until:
                raise
        clock.pause(_RETRY_S)


def _version(connection: sqlite3.Connection, path: Path, kind: Format) -> int:
    """The schema's version; 0 for an empty database."""
    # In one statement, which sees one state: another process may be filling the file.
    version, application, tables = connection.execute(
        "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)"
        " FROM pragma_user_version, pragma_application_id"
    ).fetchone()
    if application != kind.application and (tables or application or version):
        raise ConfigurationError(
            f"{path}: this database belongs to another program; name another file for the "
            f"{kind.noun}"
        )
    if version > kind.schema:
        raise ConfigurationError(
            f"{path}: {kind.noun} of schema {version}, made by a newer evaluator; this one reads "
            f"up to {kind.schema}. Upgrade, or {kind.instead}"
        )
    if 0 < version < kind.schema:
        raise ConfigurationError(
            f"{path}: {kind.noun} of schema {version}, made by an older evaluator; this one reads "
            f"schema {kind.schema}; {kind.instead}"
        )
    return version
