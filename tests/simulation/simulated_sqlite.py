"""SQLite on the simulated disk: a VFS below the module `sqlite3`, through ctypes.

The VFS is the one of Unix (locks, shared memory and reads are real) with another `xWrite`,
`xTruncate`, `xSync` and `xDelete`, which are changes of the simulated disk, and without waiting. So
the code and the library that run are the real ones. The index of the write-ahead log (`-shm`) is
memory that the processes share; a loss of power takes it.

Source: "The SQLite OS Interface or VFS", sqlite.org/vfs.html.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

from evaluator.store import database
from tests.simulation.simulated_disk import Dead, Life, SimulatedDisk, path_in

NAME = "simulated"
# Results of functions of a VFS, from sqlite3.h.
_OK = 0
_FULL = 13
_FAILS = {"xWrite": 778, "xTruncate": 1546, "xSync": 1034, "xDelete": 2570, "xOpen": 14}
_CREATE = 4
_LOG_OR_JOURNAL = 0x00000800 | 0x00080000

_File = ctypes.c_void_p
_Close = ctypes.CFUNCTYPE(ctypes.c_int, _File)
_Write = ctypes.CFUNCTYPE(ctypes.c_int, _File, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_Truncate = ctypes.CFUNCTYPE(ctypes.c_int, _File, ctypes.c_int64)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, _File, ctypes.c_int)
_Open = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    _File,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_int),
)
_Delete = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
_Randomness = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_Sleep = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


def _pointers(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_void_p) for name in names]


class _Methods(ctypes.Structure):
    """`sqlite3_io_methods`."""

    _fields_ = [
        ("iVersion", ctypes.c_int),
        *_pointers(
            *("xClose", "xRead", "xWrite", "xTruncate", "xSync", "xFileSize", "xLock", "xUnlock"),
            *("xCheckReservedLock", "xFileControl", "xSectorSize", "xDeviceCharacteristics"),
            *("xShmMap", "xShmLock", "xShmBarrier", "xShmUnmap", "xFetch", "xUnfetch"),
        ),
    ]


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs`."""

    _fields_ = [
        ("iVersion", ctypes.c_int),
        ("szOsFile", ctypes.c_int),
        ("mxPathname", ctypes.c_int),
        ("pNext", ctypes.c_void_p),
        ("zName", ctypes.c_char_p),
        *_pointers(
            *("pAppData", "xOpen", "xDelete", "xAccess", "xFullPathname", "xDlOpen", "xDlError"),
            *("xDlSym", "xDlClose", "xRandomness", "xSleep", "xCurrentTime", "xGetLastError"),
            *("xCurrentTimeInt64", "xSetSystemCall", "xGetSystemCall", "xNextSystemCall"),
        ),
    ]


@dataclass
class _Table:
    """A table of methods, and what it calls of Unix."""

    ours: _Methods
    callbacks: tuple[Any, ...]
    close: Callable[[int], int]
    write: Callable[[int, int, int, int], int]
    truncate: Callable[[int, int], int]


@dataclass
class _OpenFile:
    """`syncs_name`: its next sync also makes its name certain."""

    path: str
    life: Life
    table: _Table
    syncs_name: bool


def _replace(table: Any, name: str, kind: Any, function: Callable[..., int]) -> Any:
    """Puts a function of ours into a table. Returns: what has to be kept as long as the table."""
    callback = kind(function)
    setattr(table, name, ctypes.cast(callback, ctypes.c_void_p).value)
    return callback


class SimulatedVfs:
    """The VFS, which is registered once and belongs to one disk at a time."""

    def __init__(self) -> None:
        import _sqlite3

        self._library = ctypes.CDLL(_sqlite3.__file__)
        self._library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        self._unix = self._library.sqlite3_vfs_find(b"unix")
        # Those of Unix have several tables: files without locks have one of their own.
        self._tables: dict[int, _Table] = {}
        self.disk: SimulatedDisk | None = None
        self._files: dict[int, _OpenFile] = {}
        self.random = Random(0)
        self._vfs = _Vfs.from_buffer_copy(self._unix.contents)
        self._vfs.pNext = None
        self._vfs.zName = NAME.encode()
        self._callbacks = [
            _replace(self._vfs, "xOpen", _Open, self._open),
            _replace(self._vfs, "xDelete", _Delete, self._delete),
            _replace(self._vfs, "xRandomness", _Randomness, self._randomness),
            _replace(self._vfs, "xSleep", _Sleep, lambda _vfs, microseconds: microseconds),
        ]
        self._real_open = _Open(self._unix.contents.xOpen)
        self._real_delete = _Delete(self._unix.contents.xDelete)
        assert self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 0) == _OK

    def _table_of(self, methods: Any) -> _Table:
        address = ctypes.addressof(methods)
        table = self._tables.get(address)
        if table is None:
            ours = _Methods.from_buffer_copy(methods)
            callbacks = (
                _replace(ours, "xClose", _Close, self._close),
                _replace(ours, "xWrite", _Write, self._write),
                _replace(ours, "xTruncate", _Truncate, self._truncate),
                _replace(ours, "xSync", _Sync, self._sync),
            )
            table = _Table(
                ours,
                callbacks,
                close=_Close(methods.xClose),
                write=_Write(methods.xWrite),
                truncate=_Truncate(methods.xTruncate),
            )
            self._tables[address] = table
        return table

    def _change(
        self,
        name: str,
        life: Life | None,
        do: Callable[[], int],
        half: Callable[[], Any] | None = None,
    ) -> int:
        """A change of the disk, as a result for SQLite."""
        disk = self.disk
        assert disk is not None
        if life is not None and life.is_dead:
            return _FAILS[name]
        try:
            return disk.change(do, half)
        except Dead:
            return _FAILS[name]
        except OSError as error:
            if error.errno == 28:
                return _FULL
            return _FAILS[name]

    def _open(self, _vfs: int, name: int, file: int, flags: int, flags_out: Any) -> int:
        disk = self.disk
        path = None
        if name:
            path = os.fsdecode(ctypes.string_at(name))
        if disk is None or path is None or not path_in(path, disk.root):
            return self._real_open(self._unix_address(), name, file, flags, flags_out)
        is_new = bool(flags & _CREATE) and not os.path.exists(path)

        def opened() -> int:
            result = self._real_open(self._unix_address(), name, file, flags, flags_out)
            if result == _OK and is_new:
                disk.created(path)
            return result

        if is_new:
            result = self._change("xOpen", None, opened)
        else:
            result = opened()
        if result == _OK:
            methods = ctypes.cast(file, ctypes.POINTER(ctypes.POINTER(_Methods)))
            table = self._table_of(methods.contents.contents)
            methods[0] = ctypes.pointer(table.ours)
            syncs_name = is_new and bool(flags & _LOG_OR_JOURNAL)
            self._files[file] = _OpenFile(path, disk.life, table, syncs_name)
        else:
            # SQLite closes a file that has methods.
            ctypes.cast(file, ctypes.POINTER(ctypes.c_void_p))[0] = None
        return result

    def _unix_address(self) -> int:
        return ctypes.addressof(self._unix.contents)

    def _close(self, file: int) -> int:
        return self._files.pop(file).table.close(file)

    def _write(self, file: int, data: int, size: int, offset: int) -> int:
        open_file = self._files[file]
        path = open_file.path
        disk = self.disk
        assert disk is not None

        def write(part: int) -> int:
            result = open_file.table.write(file, data, part, offset)
            disk.inode_of(path).writes.append((offset, ctypes.string_at(data, part)))
            return result

        return self._change("xWrite", open_file.life, lambda: write(size), lambda: write(size // 2))

    def _truncate(self, file: int, size: int) -> int:
        open_file = self._files[file]
        path = open_file.path
        disk = self.disk
        assert disk is not None

        def cut() -> int:
            disk.inode_of(path).writes.append((size, None))
            return open_file.table.truncate(file, size)

        return self._change("xTruncate", open_file.life, cut)

    def _sync(self, file: int, _flags: int) -> int:
        open_file = self._files[file]
        path = open_file.path
        disk = self.disk
        assert disk is not None

        def sync() -> int:
            disk.synced(path)
            if open_file.syncs_name:
                disk.synced(os.path.dirname(path))
                open_file.syncs_name = False
            return _OK

        return self._change("xSync", open_file.life, sync)

    def _delete(self, _vfs: int, name: bytes, syncs_folder: int) -> int:
        path = os.fsdecode(name)
        disk = self.disk
        if disk is None or not path_in(path, disk.root):
            return self._real_delete(self._unix_address(), name, syncs_folder)

        def remove() -> int:
            result = self._real_delete(self._unix_address(), name, 0)
            if result == _OK:
                disk.removed(path)
                if syncs_folder:
                    disk.synced(os.path.dirname(path))
            return result

        return self._change("xDelete", None, remove)

    def _randomness(self, _vfs: int, size: int, target: int) -> int:
        ctypes.memmove(target, self.random.randbytes(size), size)
        return size


_VFS: list[SimulatedVfs] = []


@contextmanager
def on_disk(
    disk: SimulatedDisk, random: Random, opened: Callable[[sqlite3.Connection], None]
) -> Iterator[None]:
    """Databases of `evaluator.store` are on the simulated disk. `opened` gets each connection."""
    if not _VFS:
        _VFS.append(SimulatedVfs())
    (vfs,) = _VFS
    vfs.disk = disk
    vfs.random = random
    address = database._address
    open_database = database._opened

    def keep(path: Any, busy_s: float) -> sqlite3.Connection:
        connection = open_database(path, busy_s)
        opened(connection)
        return connection

    with (
        patch.object(database, "_address", lambda path, how: f"{address(path, how)}&vfs={NAME}"),
        patch.object(database, "_opened", keep),
    ):
        try:
            yield
        finally:
            vfs.disk = None
