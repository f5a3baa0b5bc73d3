"""Rows of data sets on the Hugging Face Hub: `hf:OWNER/NAME[/CONFIGURATION]:SPLIT[@REVISION]`.

A split is downloaded once through `datasets`, and stored as JSONL in the user's cache folder under
the commit that the revision names. Later runs read that file, without `datasets` and without a
network if the commit is named.

Only the Hub is read: `datasets` takes a name without an owner for one of its own readers, such as
`pandas`, and reads the folder `OWNER/NAME` here instead, if there is one. Only formats that hold
data and no code are read.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, cast

from evaluator import disk
from evaluator.batch.rows.object_rows import RowError, read_objects
from evaluator.errors import EvaluatorError, UsageError
from evaluator.files.atomic import atomic_file
from evaluator.files.locations import cache_folder
from evaluator.files.project_code import import_extra
from evaluator.lazy_dataclass import frozen

PREFIX = "hf:"
_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_NAME = re.compile(
    rf"hf:(?P<name>{_WORD}/{_WORD})(?:/(?P<config>{_WORD}))?:(?P<split>[A-Za-z0-9_.-]+(?:\[[0-9:%"
    rf"]+\])?)"
    rf"(?:@(?P<revision>{_WORD}(?:/{_WORD})*))?"
)
# What a name on the Hub starts with, for `datasets`.
_ON_THE_HUB = "hf://datasets/"
# The readers of `datasets` that are used, as the names of their modules and classes.
_READERS = ("parquet.parquet.Parquet", "json.json.Json", "csv.csv.Csv")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_is_offline: ContextVar[bool] = ContextVar("evaluator_without_downloads", default=False)


@frozen
class HubRows:
    """A split of a data set. `revision` is a commit, a branch or a tag; None: the newest commit."""

    name: str
    config: str | None
    split: str
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> HubRows:
        """Raises: UsageError, for a text of another form."""
        found = _NAME.fullmatch(text)
        if found is None:
            raise UsageError(
                f"{text!r}: expected hf:OWNER/NAME/CONFIGURATION:SPLIT@REVISION, such as "
                "hf:cais/mmlu/astronomy:test@main"
            )
        return cls(found["name"], found["config"], found["split"], found["revision"])

    def __str__(self) -> str:
        config = f"/{self.config}" if self.config else ""
        if self.revision:
            revision = f"@{self.revision}"
        else:
            revision = ""
        return f"{PREFIX}{self.name}{config}:{self.split}{revision}"

    @property
    def is_pinned(self) -> bool:
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None

    @property
    def file(self) -> Path:
        """Where the rows are stored, if the revision is a commit."""
        digest = blake2b(str(self).encode(), digest_size=8).hexdigest()
        return (
            cache_folder()
            / "hf"
            / f"{re.sub(r'[^A-Za-z0-9]+', '-', f'{self.name}-{self.split}')}-{digest}.jsonl"
        )


def is_hub_name(rows: object) -> bool:
    """Whether `rows` names a data set on the Hub and not a file."""
    return isinstance(rows, str) and rows.startswith(PREFIX)


def place_in(folder: str | os.PathLike[str], rows: str) -> str:
    """`rows` relative to `folder`, if it is a file."""
    if is_hub_name(rows):
        return rows
    return os.path.join(folder, rows)


@contextmanager
def without_downloads() -> Generator[None]:
    """Inside, only rows are read that were downloaded before, and no server is contacted."""
    token = _is_offline.set(True)
    try:
        yield
    finally:
        _is_offline.reset(token)


def stored_rows(text: str) -> tuple[HubRows, Path]:
    """The rows that `text` names, with the commit as revision, and the file that has them,
    downloaded if needed.

    Raises: UsageError, for another form, and without a download where one is needed; MissingExtra,
    without `datasets`; RowError, if the rows cannot be loaded.
    """
    wanted = HubRows.parse(text)
    if not wanted.is_pinned:
        if _is_offline.get():
            raise UsageError(
                f"{text}: which commit this is, only the Hub knows, and a dry run contacts no "
                "server; name the commit"
            )
        wanted = replace(wanted, revision=_commit(wanted))
    path = wanted.file
    if not path.exists():
        if _is_offline.get():
            raise UsageError(
                f"{text}: not downloaded yet, and a dry run contacts no server; run the batch"
            )
        _store(wanted, path)
    return wanted, path


def _commit(wanted: HubRows) -> str:
    """The commit that the revision names now. Raises: RowError, if the Hub does not say."""
    hub = _import("huggingface_hub")
    try:
        return hub.HfApi().dataset_info(wanted.name, revision=wanted.revision).sha
    except Exception as error:
        raise RowError(
            f"the Hub does not say which commit this is ({_reason(error)}); name a commit that "
            "was downloaded before",
            source=str(wanted),
        ) from error


def _store(wanted: HubRows, path: Path) -> None:
    datasets = _import("datasets")
    try:
        builder = datasets.load_dataset_builder(
            f"{_ON_THE_HUB}{wanted.name}", wanted.config, revision=wanted.revision
        )
        if not isinstance(builder, _readers()):
            raise RowError(
                "its files are neither Parquet nor JSON nor CSV; convert them", source=str(wanted)
            )
        builder.download_and_prepare()
        rows = builder.as_dataset(split=wanted.split)
        disk.make_folders(path.parent, 0o700)
        with atomic_file(path, sync=False) as file:
            for _, row in read_objects(rows, str(wanted)):
                file.write(json.dumps(row).encode() + b"\n")
    except EvaluatorError:
        raise
    except Exception as error:
        raise RowError(f"cannot be loaded: {_reason(error)}", source=str(wanted)) from error


def _readers() -> tuple[type, ...]:
    found: list[type] = []
    for name in _READERS:
        module, _, reader = name.rpartition(".")
        found.append(getattr(_import(f"datasets.packaged_modules.{module}"), reader))
    return tuple(found)


def _import(module: str) -> Any:
    """The module, without reports of its use, and with bars of progress on a terminal only."""
    stream = cast("IO[str] | None", sys.stderr)
    if stream is not None and stream.isatty():
        return import_extra(module, "hf")
    bars = ("HF_HUB_DISABLE_PROGRESS_BARS", "HF_DATASETS_DISABLE_PROGRESS_BARS")
    return import_extra(module, "hf", {name: os.environ.get(name, "1") for name in bars})


def _reason(error: Exception) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:500]
