"""Exports to JSON Lines: one line for each result with its `to_dict`, in UTF-8."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from evaluator.batch.export.about import About
from evaluator.batch.export.output_path import output_file
from evaluator.batch.records import SampleResult


def write_jsonl(results: Iterable[SampleResult], about: About, path: Path) -> None:
    """Numbers that JSON does not have (NaN, infinities) are written as in Python."""
    with output_file(path) as file:
        for result in results:
            file.write(json.dumps(result.to_dict(), separators=(",", ":")).encode() + b"\n")
