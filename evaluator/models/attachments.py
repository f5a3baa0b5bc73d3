"""Images and PDFs that are sent with a text; the first bytes of a file decide its type, never its
name.

The source, type, size and SHA-256 of an attachment are recorded and fingerprinted. The bytes are
sent to the provider; those of a tool's answer are also stored beside the task files, since nobody
can take the same screenshot again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Self, cast

from evaluator.lazy_dataclass import frozen
from evaluator.patterns import BytesPattern

PDF = "application/pdf"
MAX_IMAGE_BYTES = 5_000_000
MAX_PDF_BYTES = 10_000_000
MAX_BYTES_TOGETHER = 20_000_000
IMAGE_TOKENS = 1_600
"""The most that most providers count for one image, which they scale down."""
PAGE_TOKENS = 4_600
"""A dense page of text and its picture: providers that read PDFs count both."""

_PAGE = BytesPattern(rb"/Type\s*/Page(?![a-zA-Z])")
_BYTES_OF_A_PAGE = 50_000


@frozen
class Attachment:
    """One image or PDF. `source` says where it is from, for people and for the record.

    `size` in bytes and `sha256` follow from `data`. An attachment that is not sent (`withheld`, or
    recorded and its bytes lost) has them without `data`: it is recorded and fingerprinted as
    before, and named in the message.
    """

    media_type: str
    data: bytes = field(repr=False)
    source: str
    size: int = -1
    sha256: str = ""

    def __post_init__(self) -> None:
        if not self.sha256:
            object.__setattr__(self, "size", len(self.data))
            object.__setattr__(self, "sha256", hashlib.sha256(self.data).hexdigest())

    @classmethod
    def from_dict(cls, recorded: Mapping[str, Any], data: bytes = b"") -> Self:
        """Reads what `to_dict` gave, with its bytes or without them."""
        return cls(
            recorded["media_type"], data, recorded["source"], recorded["size"], recorded["sha256"]
        )

    def withheld(self) -> Self:
        """The same attachment without its bytes: it is not sent."""
        return replace(self, data=b"")

    @property
    def is_image(self) -> bool:
        return self.media_type != PDF

    @property
    def tokens(self) -> int:
        """About how many tokens a model counts for it.

        An image counts 1,600, whatever its size. A PDF counts 4,600 for each page found in it, or,
        where compression hides the pages, for each 50,000 bytes begun. The first response corrects
        the estimate for models that count more (gpt-4o-mini counts an image up to thirty times).
        """
        if self.is_image:
            return IMAGE_TOKENS
        pages = len(_PAGE.findall(self.data)) or -(-self.size // _BYTES_OF_A_PAGE)
        return PAGE_TOKENS * max(1, pages)

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "media_type": self.media_type,
            "size": self.size,
            "sha256": self.sha256,
        }


def recorded_attachments(extra: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The attachments in the record of a tool's answer, as `Attachment.from_dict` takes them."""
    named = (extra or {}).get("attachments")
    return [
        item
        for item in (cast("list[Any]", named) if isinstance(named, list) else [])
        if isinstance(item, Mapping)
        and all(isinstance(item.get(key), kind) for key, kind in _RECORDED.items())
    ]


def with_unsent(text: str, attachments: Iterable[Attachment]) -> str:
    """`text`, and a line for each of its attachments that is not sent."""
    lines = [
        f"[{a.source}: {a.media_type} of {a.size:,} bytes, not sent]"
        for a in attachments
        if not a.data
    ]
    return "\n".join([text, *lines] if text else lines)


_RECORDED: Mapping[str, type] = {"source": str, "media_type": str, "size": int, "sha256": str}


def media_type_of(data: bytes) -> str | None:
    """The media type of a PNG, JPEG, GIF, WebP or PDF by its first bytes; None for anything
    else.
    """
    for start, media_type in _STARTS:
        if data.startswith(start):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def size_problem(data: bytes, media_type: str) -> str | None:
    """Why a file of this size is not sent; None where it is sent."""
    if media_type == PDF:
        most = MAX_PDF_BYTES
    else:
        most = MAX_IMAGE_BYTES
    if len(data) <= most:
        return None
    return f"{len(data):,} bytes, at most {most:,} are sent of one {media_type} file"


_STARTS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", PDF),
)
