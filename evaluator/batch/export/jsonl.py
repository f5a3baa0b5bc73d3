"""JSON Lines: a line a result, as `SampleResult.to_dict` has it, UTF-8."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from evaluator.batch.export.about import About
from evaluator.batch.export.atomic import atomic_file
from evaluator.batch.records import SampleResult


def write_jsonl(results: Iterable[SampleResult], about: About, path: Path) -> None:
    """Numbers that JSON does not know (NaN, infinities) are written as Python writes them."""
    with atomic_file(path) as file:
        for result in results:
            file.write(json.dumps(result.to_dict(), separators=(",", ":")).encode() + b"\n")
