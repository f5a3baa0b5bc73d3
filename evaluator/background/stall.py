"""Notices a script that waits for an answer: its output has stopped growing and ends with a
prompt.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CHECK_S = 5.0
"""Seconds between two looks at an output."""
STALL_S = 45.0
"""Seconds without growth after which the end of the output is read."""
TAIL_BYTES = 1_024

# The prompt is what the output ends with; a script that has written a line end goes on by itself as
# a rule. Each entry is a hint and the patterns of one kind of prompt, tried on the last line.
_PROMPTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "it asks for a password or passphrase",
        (
            r"pass(?:word|phrase|code)|\bPIN\b",
            r"passwort|kennwort|mot de passe|contrase(?:ñ|n)a|\bsenha\b|wachtwoord|lösenord|hasło|parol[ae]?\b|пароль",
            r"密码|密碼|口令|パスワード|암호|비밀번호",
        ),
    ),
    (
        "it asks for yes or no",
        (
            r"[\[(]\s*(?:y(?:es)?\s*/\s*n(?:o)?|j(?:a)?\s*/\s*n(?:ein)?|o(?:ui)?\s*/\s*n(?:on)?"
            r"|s(?:[íi]|im)?\s*/\s*n(?:o|ão)?|[дd]\s*/\s*[нn]|д(?:а)?\s*/\s*н(?:ет)?)(?:\s*/[^\])]*)?\s*[\])]",
            r"\((?:yes/no|yes/no/\[fingerprint\])\)",
            r"(?:are you sure|do you want to|continue|proceed|overwrite|sind sie sicher|fortfahren|voulez-vous"
            r"|continuer|está seguro|continuar|deseja|продолжить|继续|繼續|続行|계속)[^?？\n]*[?？]",
        ),
    ),
    (
        "it waits for a key",
        (
            r"press (?:any key|enter|return|\[?enter\]?)|hit (?:any key|enter)|\(END\)|--\s*more\s*--",
            r"(?:drücken sie|taste drücken|beliebige taste|eingabetaste)|appuyez sur|pulse (?:una|cualquier) tecla"
            r"|presione|pressione|нажмите|按任意键|按任意鍵|任意のキー|아무 키",
        ),
    ),
    (
        "it waits for an entry",
        (r"(?:enter|input|type|choose|select|user ?name|login)\b[^\n]{0,80}[:?>]\s*$",),
    ),
)
_COMPILED = tuple(
    (hint, re.compile("|".join(patterns), re.IGNORECASE)) for hint, patterns in _PROMPTS
)
_ENDS_AS_PROMPT = re.compile(
    r"[:：?？>\])）]\s*$|--\s*more\s*--|\.\s?\.\s?\.\s*$|…\s*$|\(END\)\s*$", re.IGNORECASE
)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07|[\x00-\x08\x0b-\x1f\x7f]")


def prompt_hint(tail: bytes) -> str | None:
    """What the prompt at the end of this output asks for; None if there is no prompt."""
    lines = tail.decode("utf-8", "replace").replace("\r", "\n").split("\n")
    text = [line for line in (_CONTROL.sub("", line) for line in lines) if line.strip()]
    if not text or not _ENDS_AS_PROMPT.search(text[-1]):
        return None
    for hint, pattern in _COMPILED:
        if pattern.search(text[-1]):
            return hint
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
