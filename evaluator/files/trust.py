"""What this user has allowed: files of projects that name hosts, keys, code or places outside of
their project.

A permission is for one content of one file in one project, so an edit, a pull or a copy needs
another one. Permissions are in `trust.json` of the user's folder (mode 0600). `signature` marks
data that this user's own programs have written, so that it is recognised after a move.
"""

from __future__ import annotations

import hmac
import json
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from evaluator import clock, disk, randomness
from evaluator.errors import ConfigurationError, UsageError
from evaluator.errors.messages import visible
from evaluator.files.atomic import locked_file, write_atomic
from evaluator.files.locations import user_folder
from evaluator.lazy_dataclass import frozen

ENVIRONMENT = "EVALUATOR_TRUST"
"""Folders, divided by `:`. Every project in them is trusted."""
TRUST_FILE = "trust.json"
KEY_FILE = "batch.key"
_MAX_BYTES = 16_000_000
_keys: dict[Path, bytes] = {}


@frozen
class ProjectFile:
    """One content of a file of a project, and what it names that needs a permission, one line each.

    `project` is an absolute path without links, `file` the path below it.
    """

    project: str
    file: str
    sha256: str
    names: tuple[str, ...]

    @classmethod
    def of(
        cls, project: str | Path, file: str | Path, content: str | bytes, names: Iterable[str]
    ) -> ProjectFile:
        folder = os.path.realpath(project)
        path = os.path.join(
            os.path.realpath(os.path.dirname(os.path.abspath(file))), os.path.basename(file)
        )
        if isinstance(content, bytes):
            data = content
        else:
            data = content.encode("utf-8", "surrogatepass")
        return cls(folder, os.path.relpath(path, folder), sha256(data).hexdigest(), tuple(names))

    @property
    def path(self) -> str:
        """The absolute path of the file."""
        return os.path.normpath(os.path.join(self.project, self.file))

    def describe(self) -> str:
        """What it names, for a person who decides."""
        lines = "".join(f"\n  - {visible(name, one_line=True)}" for name in self.names)
        return f"{visible(self.path, one_line=True)} names:{lines}"

    def refusal(self) -> ConfigurationError:
        """The error for a file that is not allowed."""
        folder = visible(self.project, one_line=True)
        return ConfigurationError(
            f"{self.describe()}\nYou have not allowed this. Read the file; to allow it: evaluator "
            f"trust {folder!r}, or --trust with the command, or Evaluator(trust=True)"
        )


def is_allowed(file: ProjectFile) -> bool:
    """Whether the user has allowed this content of the file, or trusts its project by the
    environment.

    Raises: ConfigurationError, if the permissions cannot be read.
    """
    return not file.names or is_trusted(file.project) or is_allowed_content(file)


def is_allowed_content(file: ProjectFile) -> bool:
    """Whether the user has allowed exactly this content of the file.

    Raises: ConfigurationError, if the permissions cannot be read.
    """
    wanted = (file.path, file.sha256)
    return any((each.path, each.sha256) == wanted for each in allowed_files())


def is_trusted(folder: str | Path) -> bool:
    """Whether the environment says that the projects in `folder` are trusted."""
    real = os.path.realpath(folder)
    trusted = [
        os.path.realpath(each) for each in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if each
    ]
    return any(real == each or real.startswith(os.path.join(each, "")) for each in trusted)


def allowed_files() -> list[ProjectFile]:
    """Everything that the user has allowed. Raises: ConfigurationError, if it cannot be read."""
    path = user_folder() / TRUST_FILE
    data = _read_private(path)
    if data is None:
        return []
    try:
        entries = cast("list[dict[str, Any]]", json.loads(data)["allowed"])
        return [
            ProjectFile(e["project"], e["file"], sha256=e["sha256"], names=tuple(e["names"]))
            for e in entries
        ]
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error}; remove it, and allow projects again"
        ) from error


def allow(files: Iterable[ProjectFile]) -> None:
    """Remembers that the user allows these files; other contents of them are no longer allowed.

    Raises: ConfigurationError, if it cannot be written.
    """
    new = {(file.project, file.file): file for file in files}
    _update(
        lambda before: [
            *(each for each in before if (each.project, each.file) not in new),
            *new.values(),
        ]
    )


def forget(project: str | Path) -> list[ProjectFile]:
    """Removes the permissions of a project. Returns: what was allowed. Raises:
    ConfigurationError.
    """
    folder = os.path.realpath(project)
    gone = [each for each in allowed_files() if each.project == folder]
    if gone:
        _update(lambda before: [each for each in before if each.project != folder])
    return gone


def signature(data: bytes) -> str | None:
    """A mark that only this user's programs can make for `data`; None where the user's folder
    cannot be written.
    """
    key = signing_key(create=True)
    if key is None:
        return None
    return hmac.digest(key, data, "sha256").hex()


def is_signed(data: bytes, mark: object) -> bool:
    """Whether `mark` is the signature of `data`."""
    return signature_check()(data, mark)


def signature_check() -> Callable[[bytes, object], bool]:
    """`is_signed` for many signatures: the key is looked up and prepared once."""
    key = signing_key(create=False)
    if key is None:
        return lambda data, mark: False
    keyed = hmac.new(key, digestmod="sha256")

    def check(data: bytes, mark: object) -> bool:
        if not isinstance(mark, str) or not mark.isascii():
            return False
        expected = keyed.copy()
        expected.update(data)
        return hmac.compare_digest(expected.hexdigest(), mark)

    return check


def _update(change: Callable[[list[ProjectFile]], list[ProjectFile]]) -> None:
    folder = user_folder()
    try:
        disk.make_folders(folder, 0o700)
        with locked_file(folder / f".{TRUST_FILE}.lock"):
            entries = [asdict(each) for each in change(allowed_files())]
            written = {
                "format": 1,
                "written": clock.now().isoformat(timespec="seconds"),
                "allowed": entries,
            }
            text = json.dumps(written, indent=2) + "\n"
            write_atomic(folder / TRUST_FILE, text.encode(), error=ConfigurationError)
    except OSError as error:
        raise ConfigurationError(
            f"{folder}: cannot be written: {error.strerror}; set EVALUATOR_CONFIG_DIR to a folder "
            f"of your own, or {ENVIRONMENT} to the project's folder"
        ) from error


def signing_key(*, create: bool) -> bytes | None:
    """This user's key for signatures; None where there is none, or none can be made."""
    folder = user_folder()
    key = _keys.get(folder)
    if key is not None:
        return key
    path = folder / KEY_FILE
    with suppress(OSError, ConfigurationError):
        key = _read_private(path)
        if key is None and create:
            disk.make_folders(path.parent, 0o700)
            with suppress(FileExistsError):
                write_atomic(
                    path, randomness.token_bytes(32), replace=False, error=ConfigurationError
                )
            key = _read_private(path)
        if key is not None:
            _keys[folder] = key
        return key
    return None


def _read_private(path: Path) -> bytes | None:
    """The bytes of a file that only this user can write; None where there is none. Raises:
    ConfigurationError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_mode & 0o022
        ):
            raise ConfigurationError(
                f"{path}: others can change this file, so it is not used; remove it"
            )
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{path}: larger than {_MAX_BYTES:,} bytes; remove it")
    return data
