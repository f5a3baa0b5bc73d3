"""What the definition of a batch names that needs the user's permission: code, and places outside
of its folder.

A batch's folder records where the batch was started, and what it ran. The manifest is signed, so
that this user's own batches are recognised, also after a move; the folder of somebody else needs a
permission for what it names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from evaluator.batch.definition import BatchDefinition, definition_from, read_definition
from evaluator.batch.folder import MANIFEST, BatchFolder
from evaluator.batch.metrics import make_metrics
from evaluator.batch.rows.hf_rows import is_hub_name
from evaluator.batch.scorers import make_scorers
from evaluator.batch.scorers.unloaded import without_code
from evaluator.errors import EvaluatorError
from evaluator.files.trust import ProjectFile, is_signed, signature


def file_of_definition(path: str | Path, definition: BatchDefinition) -> ProjectFile:
    """A definition's file with what it names: code, and folders outside of its own that tasks may
    read or write.
    """
    folder = Path(path).absolute().parent
    options = definition.options
    places = {
        "lets tasks read": definition.roots,
        "writes into": _texts(options.output, options.cache),
    }
    names = [*_code(definition), *_outside(folder, places)]
    return ProjectFile.of(folder, path, content=Path(path).read_bytes(), names=names)


def file_of_manifest(
    folder: str | Path, manifest: Mapping[str, Any], definition: BatchDefinition
) -> ProjectFile:
    """A batch's manifest with what it names; nothing, if this user's own program wrote it."""
    names: list[str] = []
    if not is_own(manifest):
        start = manifest.get("cwd")
        if not isinstance(start, str):
            base = Path.cwd()
        else:
            base = Path(start)
        if base != Path.cwd():
            names.append(f"the folder {start}, where the batch continues")
        options = definition.options
        places = {
            "lets tasks read": definition.roots,
            "writes into": _texts(options.output, options.cache),
            "reads": (
                *_files(definition.rows, options.fewshot and options.fewshot.rows),
                *definition.library,
            ),
        }
        names += [*_code(definition), *_outside(base, places)]
    return ProjectFile.of(
        folder, Path(folder, MANIFEST), content=_signed_part(manifest), names=names
    )


def files_of_batches(folder: str | Path) -> list[ProjectFile]:
    """The definitions, and the manifest, in a folder that name something; those that cannot be read
    are left out.
    """
    found: list[ProjectFile] = []
    for path in sorted(Path(folder).glob("*.toml")):
        with suppress(EvaluatorError, OSError):
            found.append(file_of_definition(path, read_definition(path)))
    with suppress(EvaluatorError):
        manifest = BatchFolder.reader(folder).manifest()
        found.append(
            file_of_manifest(
                folder, manifest, definition=definition_from(manifest.get("arguments") or {})
            )
        )
    return [file for file in found if file.names]


def sign(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """`manifest` with the mark that this user's programs wrote its `cwd` and `arguments`."""
    return {**manifest, "signature": signature(_signed_part(manifest))}


def is_own(manifest: Mapping[str, Any]) -> bool:
    """Whether this user's own program wrote the `cwd` and `arguments` of the manifest."""
    return is_signed(_signed_part(manifest), manifest.get("signature"))


def _signed_part(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps([manifest.get("cwd"), manifest.get("arguments")], sort_keys=True).encode()


def _code(definition: BatchDefinition) -> Iterator[str]:
    with without_code() as paths:
        make_scorers(definition.options.scorers)
        scorers = len(paths)
        make_metrics(definition.options.metrics, definition.options.group_by)
    for path in dict.fromkeys(paths[:scorers]):
        yield f"the code {path}, which is run as a scorer"
    for path in dict.fromkeys(paths[scorers:]):
        yield f"the code {path}, which is run as a metric"


def _outside(folder: Path, places: Mapping[str, Sequence[str]]) -> Iterator[str]:
    inside = os.path.realpath(folder)
    for what, paths in places.items():
        for path in paths:
            real = os.path.realpath(os.path.join(inside, path))
            if real != inside and not real.startswith(os.path.join(inside, "")):
                yield f"{real}, which is outside of {inside}; the batch {what} it"


def _files(*rows: object) -> tuple[str, ...]:
    return tuple(each for each in _texts(*rows) if not is_hub_name(each))


def _texts(*values: object) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str))
