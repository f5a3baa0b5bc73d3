"""Which attachments of messages a request carries: what the model takes, and as many bytes as one request may hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from evaluator.handler import prices
from evaluator.handler.attachments import MAX_BYTES_TOGETHER, Attachment
from evaluator.handler.backend import Message

# Mistral's servers refuse a user's message after a tool's answer, and chat completions have no other place for images.
_NO_USER_AFTER_TOOL = re.compile(r"(?:mi|mini|magi|dev|code)stral|(?:pix|mix)tral", re.I)


def with_what_is_taken(message: Message, label: str, tools_are_text: bool, warn: Callable[[str], None]) -> Message:
    """`message` without the attachments that the model `label` is known not to take, or that are too many bytes.

    Those of a tool's answer stay without their bytes: what the tool gave is recorded whatever the model takes. `warn`
    is told of each that is not sent.
    """
    if not message.attachments:
        return message
    kept: list[Attachment] = []
    room = MAX_BYTES_TOGETHER
    for attachment in message.attachments:
        if not _takes(label, attachment):
            why = f"{label} takes no {'images' if attachment.is_image else 'PDFs'}"
        elif message.role == "tool" and not (tools_are_text or _NO_USER_AFTER_TOOL.search(label) is None):
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


def make_room(messages: list[Message], warn: Callable[[str], None]) -> None:
    """Withholds, in `messages`, the oldest images of tools' answers while the attachments of all are too many bytes."""
    size = sum(len(attachment.data) for message in messages for attachment in message.attachments)
    for place, message in enumerate(messages):
        if size <= MAX_BYTES_TOGETHER:
            return
        freed = sum(len(attachment.data) for attachment in message.attachments)
        if message.role == "tool" and freed:
            warn(
                "the oldest images of tools' answers are not sent any more: the files of one request may hold "
                f"{MAX_BYTES_TOGETHER:,} bytes together"
            )
            withheld = tuple(attachment.withheld() for attachment in message.attachments)
            messages[place] = replace(message, attachments=withheld)
            size -= freed


def _takes(label: str, attachment: Attachment) -> bool:
    """False where the table of models says that the model takes no such attachment; what it does not know is sent."""
    sees = prices.supports(label, "vision")
    if attachment.is_image:
        return sees is not False
    reads = prices.supports(label, "pdf_input")
    return sees is not False if reads is None else reads
