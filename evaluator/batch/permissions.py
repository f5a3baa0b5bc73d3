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

from evaluator.batch.definition import BatchDefinition, definition_from, read_definition_once
from evaluator.batch.folder import MANIFEST, BatchFolder
from evaluator.batch.metrics import make_metrics
from evaluator.batch.rows.hf_rows import is_hub_name
from evaluator.batch.scorers import make_scorers
from evaluator.batch.scorers.function_scorer import without_code
from evaluator.errors import EvaluatorError
from evaluator.files.project_code import code_files
from evaluator.files.trust import ProjectFile, is_signed, signature


def read_with_claims(
    path: str | Path, code_folder: str | Path
) -> tuple[BatchDefinition, list[ProjectFile]]:
    """The definition in a file, which is read once, and what needs a permission: the file itself,
    if it names code or folders outside of its own that tasks may read or write, and the files of
    that code, which is found from `code_folder`.

    Raises: as `read_definition`.
    """
    definition, content = read_definition_once(path)
    folder = Path(path).absolute().parent
    options = definition.options
    places = {
        "lets tasks read": definition.roots,
        "writes into": _texts(options.output, options.cache),
    }
    names = [*_code_lines(definition), *_outside(folder, places)]
    file = ProjectFile.of(folder, path, content=content, names=names)
    return definition, [file, *code_of(definition, code_folder)]


def claims_of_manifest(
    folder: str | Path, manifest: Mapping[str, Any], definition: BatchDefinition
) -> list[ProjectFile]:
    """What needs a permission: a batch's manifest, if this user's own program did not write it, and
    the code that it names, if it is not what it was then.
    """
    names: list[str] = []
    if not is_own(manifest):
        start = manifest.get("cwd")
        if isinstance(start, str):
            base = Path(start)
        else:
            base = Path.cwd()
        if base != Path.cwd():
            names.append(f"the folder {start}, where the batch continues")
        options = definition.options
        places = {
            "lets tasks read": definition.roots,
            "writes into": _texts(options.output, options.cache),
            "reads": (
                *_files(definition.rows, options.fewshot and options.fewshot.rows),
                *_texts(*options.decide.folders),
                *definition.library,
            ),
        }
        names += [*_code_lines(definition), *_outside(base, places)]
    file = ProjectFile.of(
        folder, Path(folder, MANIFEST), content=_signed_part(manifest), names=names
    )
    known = signed_code(manifest, definition)
    code = code_of(definition, _start_folder(manifest))
    return [file, *(each for each in code if each not in known)]


def claims_in(folder: str | Path) -> list[ProjectFile]:
    """What needs a permission in a folder: its definitions, and its manifest; those that cannot be
    read are left out.
    """
    found: list[ProjectFile] = []
    for path in sorted(Path(folder).glob("*.toml")):
        with suppress(EvaluatorError, OSError):
            found += read_with_claims(path, folder)[1]
    with suppress(EvaluatorError):
        manifest = BatchFolder.reader(folder).manifest()
        definition = definition_from(manifest.get("arguments") or {})
        found += claims_of_manifest(folder, manifest, definition)
    return [file for file in dict.fromkeys(found) if file.names]


def code_of(definition: BatchDefinition, folder: str | Path) -> list[ProjectFile]:
    """The files of the code that a definition names, found from `folder`."""
    places = [path.rpartition(":")[0] for path in named_code(definition)]
    files = [file for place in places for file in code_files(place, folder)]
    return list(dict.fromkeys(files))


def sign(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """`manifest` with the content of the code that it names (`code`), and the mark that this user's
    programs wrote its `cwd`, `arguments` and `code`.
    """
    code = manifest.get("code")
    if code is None:
        code = {}
        arguments = manifest.get("arguments")
        if arguments:  # a batch of Python has no definition
            with suppress(EvaluatorError):
                files = code_of(definition_from(arguments), _start_folder(manifest))
                code = {file.file: file.sha256 for file in files}
    signed = {**manifest, "code": code}
    return {**signed, "signature": signature(_signed_part(signed))}


def is_own(manifest: Mapping[str, Any]) -> bool:
    """Whether this user's own program wrote the `cwd`, `arguments` and `code` of the manifest."""
    return is_signed(_signed_part(manifest), manifest.get("signature"))


def signed_code(manifest: Mapping[str, Any], definition: BatchDefinition) -> frozenset[ProjectFile]:
    """The files of code that are as they were when this user's own program wrote the manifest."""
    if not is_own(manifest):
        return frozenset()
    signed = manifest.get("code") or {}
    files = code_of(definition, _start_folder(manifest))
    return frozenset(file for file in files if signed.get(file.file) == file.sha256)


def _signed_part(manifest: Mapping[str, Any]) -> bytes:
    parts = [manifest.get("cwd"), manifest.get("arguments"), manifest.get("code")]
    return json.dumps(parts, sort_keys=True).encode()


def _start_folder(manifest: Mapping[str, Any]) -> Path:
    """Where the batch was started, if that exists; else the current folder."""
    start = manifest.get("cwd")
    if isinstance(start, str) and os.path.isdir(start):
        return Path(start)
    return Path.cwd()


def named_code(definition: BatchDefinition) -> dict[str, str]:
    """The code that a definition names, as `place:name`, and what it is run as."""
    with without_code() as scorers:
        make_scorers(definition.options.scorers)
    with without_code() as metrics:
        make_metrics(definition.options.metrics, definition.options.group_by)
    return {
        **dict.fromkeys(scorers.schemas, "imported as a schema"),
        **dict.fromkeys(metrics.functions, "run as a metric"),
        **dict.fromkeys(scorers.functions, "run as a scorer"),
    }


def _code_lines(definition: BatchDefinition) -> Iterator[str]:
    for path, use in named_code(definition).items():
        yield f"the code {path}, which is {use}"


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
