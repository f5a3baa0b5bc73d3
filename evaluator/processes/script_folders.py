"""The folders that a script in a sandbox may write to, and what is protected in them.

What such a script writes must never be run or trusted afterwards. So it gets a temporary folder,
which is removed at its end. Where it may write to the first root instead, everything there that
this program executes, or believes, is read-only for it (`protected_paths`), and it cannot create
what would be found by its name alone (`ReservedNames`).
"""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from evaluator import disk
from evaluator.errors import ToolError
from evaluator.files.atomic import try_lock
from evaluator.files.open_below import FILE, FOLDER
from evaluator.processes import starting

_PREFIX = "evaluator-script-"
_MAX_ENTRIES = 200_000
_MAX_PROTECTED = 1_000

# Found by their name alone, in the folder from which a command is started.
_RESERVED_FOLDERS = (".evaluator", ".git", "handlers", "schemas", "templates")
_RESERVED_FILES = (".env", "conftest.py", "evaluator.toml")
# A comment in each of their languages.
_PLACEHOLDER = b"# Placeholder: while a script works in this folder it must not create this file.\n"

# Code beside a definition (TOML) is what its scorers are made of.
_OF_DEFINITION = ("handlers", "schemas", "templates")
_STORES = ("background.sqlite", "queue.sqlite", "task-queue.json")
_BATCH_BEGINNING = b'"crc32"'

_swept = False
_sweeping = threading.Lock()


class TemporaryFolder:
    """A new folder that only this user can enter.

    It carries a lock of this process, so that the next process can recognise and remove what a
    killed one has left. Raises: ToolError, if it cannot be created.
    """

    def __init__(self) -> None:
        _sweep_once()
        while True:
            try:
                self.path = Path(disk.make_temporary_folder(_PREFIX))
                self._descriptor = os.open(self.path, FOLDER)
            except FileNotFoundError:
                continue  # removed by a process that took it for a leftover
            except OSError as error:
                import tempfile

                raise ToolError(
                    f"no temporary folder can be created in {tempfile.gettempdir()}: "
                    f"{error.strerror or error}"
                ) from error
            if try_lock(self._descriptor, shared=True) and self.path.is_dir():
                return
            os.close(self._descriptor)

    def remove(self) -> None:
        """Removes the folder, whatever a script did in it. May be called again."""
        if self._descriptor >= 0:
            _remove(self.path)
            os.close(self._descriptor)
            self._descriptor = -1


def _sweep_once() -> None:
    """Removes the folders that killed processes have left, once in each process."""
    global _swept
    with _sweeping:
        if _swept:
            return
        _swept = True
        remove_leftovers()


def remove_leftovers() -> None:
    """Removes the folders of scripts whose process was killed."""
    import tempfile

    try:
        entries = list(os.scandir(tempfile.gettempdir()))
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(_PREFIX):
            continue
        try:
            descriptor = os.open(entry.path, FOLDER)
        except OSError:
            continue  # another user's, or gone
        try:
            if os.fstat(descriptor).st_uid == os.geteuid() and try_lock(descriptor):
                _remove(Path(entry.path))
        finally:
            os.close(descriptor)


def _remove(path: Path) -> None:
    import shutil

    try:
        shutil.rmtree(path)
    except (OSError, RecursionError):
        # Folders without permissions, or too deep for a recursive function.
        quoted = str(path)
        for command in (["chmod", "-R", "u+rwx", quoted], ["rm", "-rf", quoted]):
            if os.path.isdir(path):
                starting.run(command, stdin=subprocess.DEVNULL, capture_output=True)


class ReservedNames:
    """Placeholders for the files and folders that a script must not create in `root`.

    They exist while a script works there: bubblewrap and containers can make a path read-only only
    if it exists. The last script that ends removes them, also those that a killed process has left.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._descriptor = -1
        try:
            self._descriptor = os.open(root, FOLDER)
            try_lock(self._descriptor, shared=True)
        except OSError:
            return  # the folder cannot be entered, which the launcher reports; or has no locks
        for name in _RESERVED_FOLDERS:
            try:
                disk.mkdir(name, 0o755, dir_fd=self._descriptor)
            except OSError:
                pass  # it exists, or the script cannot create it either
        for name in _RESERVED_FILES:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                file = disk.open(name, flags, 0o644, dir_fd=self._descriptor)
            except OSError:
                continue
            disk.write(file, _PLACEHOLDER)
            disk.close(file)

    def release(self) -> None:
        """Removes the placeholders, unless another script works in the folder."""
        if self._descriptor < 0:
            return
        try:
            if try_lock(self._descriptor):
                self._remove_placeholders()
        except OSError:
            pass  # no locks here: the placeholders stay
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def _remove_placeholders(self) -> None:
        for name in _RESERVED_FOLDERS:
            try:
                disk.rmdir(name, dir_fd=self._descriptor)
            except OSError:
                pass  # missing, or not empty
        for name in _RESERVED_FILES:
            path = self.root / name
            if is_placeholder(path):
                disk.remove(path)


def is_placeholder(path: Path) -> bool:
    """Whether the file was put there only to be protected."""
    try:
        is_file = stat.S_ISREG(os.lstat(path).st_mode)
        return (
            is_file
            and path.stat().st_size == len(_PLACEHOLDER)
            and path.read_bytes() == (_PLACEHOLDER)
        )
    except OSError:
        return False


def protected_paths(root: Path) -> list[Path]:
    """The files and folders below `root` that this program, Python or git execute or believe.

    These are definitions (TOML) with the code, profiles, templates and schemas beside them,
    `conftest.py`, `.env` files, repositories, virtual environments, databases, and the folders of
    batches, queues, background tasks and task files. Hidden folders are searched too.

    Raises: ToolError, if one of them is a link, which cannot be protected, or if there are too many
    files.
    """
    found: list[Path] = []
    pending = [str(root)]
    entries = 0
    while pending:
        folder = pending.pop()
        try:
            listed = list(os.scandir(folder))
        except OSError:
            continue  # the script cannot enter it either
        entries += len(listed)
        if folder != str(root) and _is_trusted_whole(listed):
            found.append(Path(folder))
            continue
        has_definition = folder == str(root) or any(
            entry.name.endswith(".toml") for entry in listed
        )
        for entry in listed:
            if _is_trusted(entry.name, has_definition=has_definition):
                if entry.is_symlink():
                    raise ToolError(
                        f"{entry.path} is a link, which a sandbox cannot protect; replace it by "
                        "what it leads to, or let scripts write to a folder of their own"
                    )
                found.append(Path(entry.path))
            elif entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
        if entries > _MAX_ENTRIES or len(found) > _MAX_PROTECTED:
            raise ToolError(
                f"{root} holds too many files to protect its definitions and code from a script "
                f"(more than {_MAX_ENTRIES:,}, or {_MAX_PROTECTED:,} to protect); name a smaller "
                "folder as first root, or let scripts write to a folder of their own"
            )
    return found


def environment_files(folder: Path) -> Iterator[Path]:
    """The files in `folder` that usually hold keys, such as `.env`, `.envrc` and `.env.local`."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.startswith(".env"))
    except OSError:
        return
    for name in names:
        path = folder / name
        if path.is_file() and not path.is_symlink():  # a link leads to a file that is not shown
            yield path


def _is_trusted(name: str, *, has_definition: bool) -> bool:
    if name.endswith((".toml", ".sqlite", ".sqlite-wal", ".sqlite-shm", ".pth")):
        return True
    if name in (".git", ".evaluator", "conftest.py", ".envrc") or name.startswith(".env"):
        return True
    return has_definition and (name.endswith(".py") or name in _OF_DEFINITION)


def _is_trusted_whole(listed: list[os.DirEntry[str]]) -> bool:
    """Whether everything in a folder is believed: a store, a batch, task files, an environment."""
    for entry in listed:
        if entry.name in _STORES or entry.name == "pyvenv.cfg":
            return True
        if entry.name.startswith("TASK-") and entry.name.endswith(".md"):
            return True
        if entry.name == "manifest.json" and _is_batch(entry.path):
            return True
    return False


def _is_batch(manifest: str) -> bool:
    try:
        descriptor = os.open(manifest, FILE)
    except OSError:
        return False
    try:
        # A named pipe gives nothing.
        return _BATCH_BEGINNING in os.read(descriptor, 100)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def folders_between(above: Path, below: Path) -> Iterator[Path]:
    """The folders below `above` that hold `below`, the outermost first."""
    for folder in reversed(below.parents):
        if folder != above and folder.is_relative_to(above):
            yield folder
