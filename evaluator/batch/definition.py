"""A batch as data: read from a TOML file, from the command line, or from the manifest of an earlier
session.

name = "capitals"
template = "answer_question"          # or: templates = [...]
rows = "rows.jsonl"                   # relative to this file
models = ["openai/gpt-4o-mini"]
epochs = 2
thresholds = ["accuracy >= 0.8", "errors <= 0"]

[inputs]
question = "{{ 'What is the capital of ' ~ country ~ '?' }}"

[select]
limit = 100

[[scorers]]
type = "includes"
ignore_case = true

[limits]
max_cost = 2.0
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from evaluator.batch.options import (
    BatchOptions,
    Flag,
    check_names,
    check_options,
    check_table_of_texts,
    check_text,
    check_texts,
    option,
    options_to_dict,
)
from evaluator.batch.rows.hf_rows import place_in
from evaluator.errors import UsageError
from evaluator.errors.messages import json_problem
from evaluator.files.open_below import read_named

DEFAULT_FILE = "evaluator.toml"
MAX_BYTES = 16_000_000
"""A larger definition is not read."""


@dataclass(frozen=True, slots=True)
class BatchDefinition:
    """A batch that can be written down: templates, the path of its rows, options, and what its
    evaluator needs.

    `library` and `roots` are paths; see `Evaluator`.
    """

    templates: tuple[str, ...] = option(
        (),
        check_texts,
        flag=Flag("--template", "Evaluate this template.", metavar="NAME", several=True),
    )
    rows: str = option(
        "",
        check_text,
        flag=Flag(
            "--rows", "JSONL, JSON, CSV, TSV, Parquet, or hf:OWNER/NAME:SPLIT.", metavar="FILE"
        ),
    )
    options: BatchOptions = BatchOptions()
    library: tuple[str, ...] = option((), check_texts)
    roots: tuple[str, ...] = option((), check_texts)
    model_roles: Mapping[str, str] | None = option(None, check_table_of_texts)

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def name(self) -> str:
        """The name of the batch; its templates, if it has none."""
        return self.options.name or ", ".join(self.templates)

    def to_dict(self) -> dict[str, Any]:
        """The table that `definition_from` reads, without empty values."""
        return {**options_to_dict(self), **options_to_dict(self.options)}


def read_definition(path: str | Path) -> BatchDefinition:
    """The definition in a TOML file; paths in it are relative to its folder.

    Raises: UsageError, with the file and, for TOML that cannot be parsed, line and column.
    """
    return read_definition_once(path)[0]


def read_definition_once(path: str | Path) -> tuple[BatchDefinition, bytes]:
    """As `read_definition`; also the content that it was read from."""
    path = Path(path)
    try:
        content = read_named(path, MAX_BYTES)
        values = tomllib.loads(content.decode("utf-8").replace("\r\n", "\n"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: not UTF-8 (byte {error.start}); save it as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: invalid TOML: {json_problem(error)}") from error
    try:
        return definition_from(values, path.parent), content
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def definition_from(data: Mapping[str, Any], folder: Path | None = None) -> BatchDefinition:
    """The definition in a table; relative paths in it are relative to `folder`.

    Raises: UsageError, for an unknown name (with the nearest one) or an invalid value.
    """
    given = dict(data)
    if "template" in given:
        if "templates" in given:
            raise UsageError("give template or templates, not both")
        given["templates"] = given.pop("template")
    own = {each.name for each in fields(BatchDefinition)} - {"options"}
    known = {each.name for each in fields(BatchOptions) if each.metadata["in_file"]}
    check_names(given, own | known)
    for name in ("template", "rows"):
        if not given.get(name if name == "rows" else "templates"):
            raise UsageError(f"{name} is missing")
    options = BatchOptions(**{name: given.pop(name) for name in known & given.keys()})
    definition = BatchDefinition(**given, options=options)
    if folder is None:
        return definition
    return _in_folder(definition, folder)


def _in_folder(definition: BatchDefinition, folder: Path) -> BatchDefinition:
    options = definition.options
    paths: dict[str, Any] = {
        name: str(folder / path) for name in ("output", "cache") if (path := getattr(options, name))
    }
    if options.fewshot is not None and isinstance(options.fewshot.rows, str):
        paths["fewshot"] = replace(options.fewshot, rows=place_in(folder, options.fewshot.rows))
    return replace(
        definition,
        rows=place_in(folder, definition.rows),
        library=tuple(str(folder / path) for path in definition.library),
        roots=tuple(str(folder / path) for path in definition.roots),
        options=replace(options, **paths),
    )
