"""Selects the attachments of a request: those that the model supports, up to the size limit of one
request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from evaluator.models import prices
from evaluator.models.attachments import MAX_BYTES_TOGETHER, Attachment
from evaluator.models.backend import Message
from evaluator.patterns import Pattern

# Mistral's servers refuse a user's message after a tool's answer, and chat completions have no
# other place for images.
_NO_USER_AFTER_TOOL = Pattern(r"(?:mi|mini|magi|dev|code)stral|(?:pix|mix)tral", "i")


def drop_unsupported(
    message: Message, label: str, tools_are_text: bool, warn: Callable[[str], None]
) -> Message:
    """`message` without the attachments that the model `label` is known not to support, or that are
    too many bytes.

    Those of a tool's answer stay without their bytes: the record has what the tool returned. `warn`
    is called for each attachment that is not sent.
    """
    kept: list[Attachment] = []
    room = MAX_BYTES_TOGETHER
    for attachment in message.attachments:
        if not _takes(label, attachment):
            why = f"{label} takes no {'images' if attachment.is_image else 'PDFs'}"
        elif message.role == "tool" and not (
            tools_are_text or _NO_USER_AFTER_TOOL.search(label) is None
        ):
            why = f"{label} takes no images after a tool's answer"
        elif len(attachment.data) > room:
            why = f"the files of one message may hold {MAX_BYTES_TOGETHER:,} bytes together"
        else:
            kept.append(attachment)
            room -= len(attachment.data)
            continue
        warn(f"{attachment.source} was not sent: {why}")
        if message.role == "tool":
            kept.append(attachment.withheld())
    return replace(message, attachments=tuple(kept))


def withhold_oldest(messages: list[Message], warn: Callable[[str], None]) -> None:
    """Removes the bytes of the oldest images of tools' answers while all attachments of `messages`
    are too large.
    """
    size = sum(len(attachment.data) for message in messages for attachment in message.attachments)
    for place, message in enumerate(messages):
        if size <= MAX_BYTES_TOGETHER:
            return
        freed = sum(len(attachment.data) for attachment in message.attachments)
        if message.role == "tool" and freed:
            warn(
                "the oldest images of tools' answers are not sent any more: the files of one "
                f"request may hold {MAX_BYTES_TOGETHER:,} bytes together"
            )
            withheld = tuple(attachment.withheld() for attachment in message.attachments)
            messages[place] = replace(message, attachments=withheld)
            size -= freed


def _takes(label: str, attachment: Attachment) -> bool:
    """False where the table of models says that the model does not support it; an unknown model
    gets everything.
    """
    sees = prices.supports(label, "vision")
    if attachment.is_image:
        return sees is not False
    reads = prices.supports(label, "pdf_input")
    if reads is None:
        return sees is not False
    return reads
