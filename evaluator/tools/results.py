"""What a tool returns, as text and images for the model."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

from evaluator.errors import ToolError, UsageError
from evaluator.errors.messages import type_of
from evaluator.models.attachments import MAX_BYTES_TOGETHER, Attachment, media_type_of, size_problem


def as_text(value: Any) -> str:
    """Text as it is, other values as JSON. Raises: UsageError, for what JSON cannot express."""
    if isinstance(value, str) and not isinstance(value, Enum):
        return value
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)


def checked_images(images: Iterable[Attachment]) -> tuple[Attachment, ...]:
    """Raises: ToolError, for data that is not an image by its first bytes, or too large, alone or
    in total.
    """
    checked = tuple(images)
    for image in checked:
        problem = image_problem(image)
        if problem is not None:
            raise ToolError(f"{image.source} {problem}")
    if sum(image.size for image in checked) > MAX_BYTES_TOGETHER:
        raise ToolError(
            f"the images of one result may have at most {MAX_BYTES_TOGETHER:,} bytes in total"
        )
    return checked


def image_problem(image: Attachment) -> str | None:
    """Why an image cannot be shown to a model; None if it can."""
    if not image.is_image or media_type_of(image.data) != image.media_type:
        return f"is not a valid {image.media_type} image"
    problem = size_problem(image.data, image.media_type)
    if problem is None:
        return None
    return f"cannot be shown: {problem}"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    raise UsageError(f"it returned {type_of(value)}, which is neither text nor a JSON value")


def cut(text: str, max_bytes: int) -> str:
    """The text; of a longer one the beginning, with a last line that says so."""
    if len(text) * 4 <= max_bytes:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= max_bytes:
        return text
    # An incomplete last character is left out.
    shown, size = codecs.utf_8_decode(data[:max_bytes], "surrogatepass", False)
    return f"{shown}\n[cut: the first {size:,} of {len(data):,} bytes]"
