"""The output file of a task: written by descriptor, read by anybody at any time.

The file is created new, never through a link, readable by its owner only. Its name is the task's
id, so nothing that another program created before is ever written to.

Notices a script that waits for an answer: its output has stopped growing and ends with a
prompt.

The prompt is what the output ends with; a script that has written a line end goes on by itself as a
rule. Where the system tells that the program reads its standard input, an unended last line is a
prompt, whatever it says; elsewhere the words decide.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluator import clock, disk
from evaluator.files.open_below import FILE, open_private_folder
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.patterns import Pattern
from evaluator.record.redact import Redactor

MAX_BYTES = 1 << 30
"""The size of an output at which its task is killed."""
WINDOW_MESSAGES = 50
SUFFIXES = ("log", "jsonl")
"""Of output as a program writes it, and of messages and events in JSON lines."""
_BLOCK_BYTES = 1 << 16
_HELD_BYTES = 1 << 12
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


@frozen
class Output:
    """An open output file."""

    path: Path
    descriptor: int

    @classmethod
    def create(cls, folder: Path, name: str) -> Output:
        """Creates the file. Raises: FileExistsError; OSError; RecordError, if others may change the
        folder.
        """
        parent = open_private_folder(folder, "folder of background tasks")
        try:
            return cls(folder / name, disk.open(name, _FLAGS, 0o600, dir_fd=parent))
        finally:
            os.close(parent)

    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self.descriptor).st_size

    def cut(self, max_bytes: int) -> None:
        """Removes what is past `max_bytes`; nothing may write to the file any more."""
        if self.size() > max_bytes:
            disk.ftruncate(self.descriptor, max_bytes)

    def write(self, data: bytes) -> None:
        """Appends `data`. Raises: OSError."""
        disk.write_all(self.descriptor, data)

    def write_record(self, record: Mapping[str, Any], redactor: Redactor) -> None:
        """Appends a line of JSON: `record` with the time, redacted. Raises: OSError."""
        shown = redactor.redact_value({"time": round(clock.wall(), 3), **record})
        self.write(
            json.dumps(shown, ensure_ascii=False, default=str).encode("utf-8", "backslashreplace")
            + b"\n"
        )

    def tail(self, max_bytes: int) -> bytes:
        """The last bytes, also if another file has taken its name."""
        return os.pread(self.descriptor, max_bytes, max(0, self.size() - max_bytes))

    def close(self) -> None:
        disk.close(self.descriptor)


class RedactedOutput:
    """Writes what a program prints to an output, without secrets.

    The last `_HELD_BYTES` wait for `flush`, because a secret may continue in what the program
    prints next.
    """

    def __init__(self, output: Output, redactor: Redactor) -> None:
        self._output = output
        self._redactor = redactor
        self._held = b""

    def write(self, data: bytes) -> None:
        """Raises: OSError."""
        self._held += data
        if len(self._held) > _BLOCK_BYTES:
            # At the end of a line, if there is one.
            end = self._held.rfind(b"\n", 0, len(self._held) - _HELD_BYTES) + 1
            self._write(end or len(self._held) - _HELD_BYTES)

    def flush(self) -> None:
        """Writes all of it. Raises: OSError."""
        self._write(len(self._held))

    def _write(self, end: int) -> None:
        text = self._held[:end].decode("utf-8", "surrogateescape")
        self._held = self._held[end:]
        self._output.write(self._redactor.redact(text).encode("utf-8", "surrogateescape"))


def _open(path: Path) -> int:
    try:
        return os.open(path, FILE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(
                errno.ELOOP, "the output was replaced by a link, which is not followed", str(path)
            ) from error
        raise


def read_output(path: Path, offset: int, max_bytes: int) -> bytes:
    """At most `max_bytes` of the file from `offset`; empty past its end. Raises: OSError, also for
    a link.
    """
    descriptor = _open(path)
    try:
        return os.pread(descriptor, max_bytes, offset)
    finally:
        os.close(descriptor)


def window_start(path: Path) -> int:
    """The offset of the last `WINDOW_MESSAGES` lines of a transcript. Reads only as much of the
    file as these take.
    """
    with open(_open(path), "rb") as file:
        start = file.seek(0, os.SEEK_END)
        seen = 0
        while start > 0:
            size = min(_BLOCK_BYTES, start)
            start -= size
            block = os.pread(file.fileno(), size, start)
            lines = block.count(b"\n")
            if seen + lines <= WINDOW_MESSAGES:
                seen += lines
                continue
            end = len(block)
            for _ in range(WINDOW_MESSAGES + 1 - seen):
                end = block.rindex(b"\n", 0, end)
            return start + end + 1
    return 0


CHECK_S = 5.0
"""Seconds between two looks at an output."""
STALL_S = 45.0
"""Seconds without growth after which the end of the output is read."""
TAIL_BYTES = 1_024

_YES_OR_NO = r"""
    [\[(]\s*(?:y(?:es)?\s*[/|]\s*n(?:o)?|j(?:a)?\s*/\s*n(?:ein)?|o(?:ui)?\s*/\s*n(?:on)?
      |s(?:[íi]|im)?\s*/\s*n(?:o|ão)?|[дd]\s*/\s*[нn]
      |д(?:а)?\s*/\s*н(?:ет)?)(?:\s*/[^\])]*)?\s*[\])]
    |\[y\]es\b
    |\((?:yes/no|yes/no/\[fingerprint\])\)
    |(?:are\ you\ sure|do\ you\ want\ to|continue|proceed|overwrite|replace|remove|sind\ sie\ sicher
      |fortfahren|voulez-vous|continuer|está\ seguro|continuar|deseja|продолжить
      |继续|繼續|続行|계속)
      [^?？\n]*[?？]
    |(?:shall|should|may|can)\ (?:i|we)\b[^?\n]*\?
    |(?:do|did|would|will|are|have)\ you\b[^?\n]*\?
    |\bis\ (?:this|that|it|everything)\b[^?\n]*\?
    |\bok(?:ay)?\ to\b[^?\n]*\?
"""
_SECRET = r"""
    pass(?:word|phrase|code)|\bPIN\b
    |\b(?:2fa|mfa|otp|totp|verification|security|auth\w*|one[-\ ]time|confirmation)\b[^\n]{0,30}
      \b(?:code|token|password|pin)\b|\botp\b
    |passwort|kennwort|mot\ de\ passe|contrase(?:ñ|n)a|\bsenha\b|wachtwoord|lösenord|hasło
    |parol[ae]?\b|пароль|密码|密碼|口令|パスワード|암호|비밀번호
"""
_KEY = r"""
    (?:press|hit)\ (?:any\ key|the\ any\ key|enter|return|space|\[?enter\]?)|\(END\)|--\s*more\s*--
    |(?:drücken\ sie|taste\ drücken|beliebige\ taste|eingabetaste)|appuyez\ sur
    |pulse\ (?:una|cualquier)\ tecla|presione|pressione|нажмите
    |按任意键|按任意鍵|任意のキー|아무\ 키
"""
_ENTRY = (
    r"(?:enter|input|type|choose|select|choice|user\ ?name|login|e-?mail)\b[^\n]{0,80}[:?>]\s*$"
)
# The prompt of an interpreter stands alone on its line.
_INTERPRETER = r"^(?:>>>|\((?:\w*db)\)|In\ \[\d+\]:|irb[^>\n]{0,30}>|[a-z]\w{0,20}(?:=[#>]|>))\s*$"


def _compiled(pattern: str) -> Pattern:
    return Pattern(pattern, "ix")


# A hint and a kind of prompt. Each is looked for in the last line, whose end looks like a prompt.
_PROMPTS = (
    ("it asks for a password, passphrase or code", _compiled(_SECRET)),
    ("it asks for yes or no", _compiled(_YES_OR_NO)),
    ("it waits for a key", _compiled(_KEY)),
    ("it waits for an entry", _compiled(_ENTRY)),
)
_ENDS_AS_PROMPT = Pattern(
    r"[:：?？>\])）]\s*$|--\s*more\s*--|\.\s?\.\s?\.\s*$|…\s*$|\(END\)\s*$", "i"
)
# These are prompts whatever their line ends with.
_PLAIN_KEY = _compiled(
    r"^\W*(?:press|hit)\ .{0,40}\ to\ (?:continue|proceed|begin|start|exit|go\ on)"
)
_UNENDED_KEY = _compiled(rf"^\W*(?:please\ )?(?:{_KEY})")
_UNENDED = (
    ("it waits at the prompt of an interpreter", _compiled(_INTERPRETER)),
    ("it waits for a key", _UNENDED_KEY),
    ("it asks a question", _compiled(r"\w[^?]*\?\s*(?:[\[(][^\])]*[\])]\s*)?[:>]?\s*$")),
)
_CONTROL = Pattern(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f]")


def prompt_hint(tail: bytes, is_waiting: bool | None = None) -> str | None:
    """What the prompt at the end of this output asks for; None if there is no prompt.

    `is_waiting` says whether the program reads its standard input or a terminal at this moment:
    then any unended last line is a prompt. None: it is unknown.
    """
    lines = tail.decode("utf-8", "replace").replace("\r", "\n").split("\n")
    plain = [_CONTROL.sub("", line) for line in lines]
    text = [line for line in plain if line.strip()]
    if not text:
        return None
    last = text[-1]
    is_unended = bool(plain[-1].strip())
    if _ENDS_AS_PROMPT.search(last):
        for hint, pattern in _PROMPTS:
            if pattern.search(last):
                return hint
    if _PLAIN_KEY.search(last):
        return "it waits for a key"
    if is_unended:
        for hint, pattern in _UNENDED:
            if pattern.search(last):
                return hint
    if is_unended and is_waiting:
        return "it reads its standard input"
    return None


@dataclass(slots=True)
class StallWatch:
    """Watches the size of one output. Each stop is reported once; growth starts a new watch."""

    since: float
    size: int = 0
    was_read: bool = False

    def note(self, now: float, size: int) -> bool:
        """Notes the size of the output. Returns whether it grows again after a stop that was
        read.
        """
        if size == self.size:
            return False
        resumed = self.was_read
        self.since = now
        self.size = size
        self.was_read = False
        return resumed

    def is_due(self, now: float) -> bool:
        """Whether the end of the output has to be read now, because it has not grown for STALL_S
        seconds.
        """
        if self.was_read or now - self.since < STALL_S:
            return False
        self.was_read = True
        return True
