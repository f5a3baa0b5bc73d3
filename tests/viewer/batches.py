"""Batch folders with given results, written as a session writes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator.batch import SampleResult
from evaluator.batch.folder import BatchFolder
from tests.batch.export.results import result

IDENTITY = "0" * 32
ONE = {"template": "answer", "variant": "small"}


def write_batch(path: Path, results: Iterable[SampleResult], **manifest: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    given = {
        "name": path.name,
        "state": "complete",
        "cells": [ONE],
        "total": None,
        "epochs": 1,
        "created": "2026-03-04",
    }
    with BatchFolder.create(path) as folder:
        folder.write_manifest(given | manifest)
        for each in results:
            folder.append(replace(each, identity=IDENTITY))
    return path


def append(path: Path, *results: SampleResult) -> None:
    with BatchFolder.open(path) as folder:
        for each in results:
            folder.append(replace(each, identity=IDENTITY))


def numbered(count: int, **changes: Any) -> list[SampleResult]:
    """Results of `count` samples s0, s1, …, the later ones slower; without task files."""
    return [
        result(f"s{n}", place=n, duration_s=float(n), task_id=None, task_file=None, **changes)
        for n in range(count)
    ]
