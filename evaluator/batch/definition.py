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
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from evaluator.batch.options import BatchOptions
from evaluator.batch.rows.hf_rows import place_in
from evaluator.errors import UsageError
from evaluator.errors.messages import json_problem
from evaluator.fields import MERGED, Checked, Flag, Name, Names, Place, Section, to_dict
from evaluator.files.open_below import read_named
from evaluator.interpreter.evaluator_flags import LIBRARY, MODEL_ROLE, ROOT, Roles
from evaluator.lazy_dataclass import frozen

DEFAULT_FILE = "evaluator.toml"
MAX_BYTES = 16_000_000
"""A larger definition is not read."""


@frozen
class BatchDefinition(Checked, error=UsageError):
    """A batch that can be written down: templates, the path of its rows, options, and what its
    evaluator needs.

    `library` and `roots` are paths; see `Evaluator`.
    """

    templates: Annotated[
        Names, Section("Templates and rows"), Flag("--template", "Evaluate this template.", "NAME")
    ] = ()
    library: Annotated[
        Names,
        LIBRARY,
    ] = ()
    roots: Annotated[
        Names,
        ROOT,
        Place(file=False, must_exist=True),
    ] = ()
    rows: Annotated[
        Name, Flag("--rows", "JSONL, JSON, CSV, TSV, Parquet, or hf:OWNER/NAME:SPLIT.", "FILE")
    ] = ""
    options: Annotated[BatchOptions, MERGED] = BatchOptions()
    model_roles: Annotated[
        Roles | None,
        Section("Models"),
        MODEL_ROLE,
    ] = None

    @property
    def name(self) -> str:
        """The name of the batch; its templates, if it has none."""
        return self.options.name or ", ".join(self.templates)

    def to_dict(self) -> dict[str, Any]:
        """The table that `definition_from` reads, without defaults."""
        return to_dict(self, only_changed=True)


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
    table = dict(data)
    if "template" in table:
        if "templates" in table:
            raise UsageError("give template or templates, not both")
        table["templates"] = table.pop("template")
    definition = BatchDefinition.from_table(table)
    if not definition.templates:
        raise UsageError("template is missing")
    if not definition.rows:
        raise UsageError("rows is missing")
    if folder is None:
        return definition
    return _in_folder(definition, folder)


def _in_folder(definition: BatchDefinition, folder: Path) -> BatchDefinition:
    options = definition.options
    paths: dict[str, Any] = {
        name: str(folder / path) for name in ("output", "cache") if (path := getattr(options, name))
    }
    decide = options.decide
    if decide.like is not None:
        decide = replace(decide, like=str(folder / decide.like))
    if decide.baseline is not None and decide.number is None:
        decide = replace(decide, baseline=str(folder / decide.baseline))
    paths["decide"] = decide
    if options.fewshot is not None and isinstance(options.fewshot.rows, str):
        paths["fewshot"] = replace(options.fewshot, rows=place_in(folder, options.fewshot.rows))
    return replace(
        definition,
        rows=place_in(folder, definition.rows),
        library=tuple(str(folder / path) for path in definition.library),
        roots=tuple(str(folder / path) for path in definition.roots),
        options=replace(options, **paths),
    )
