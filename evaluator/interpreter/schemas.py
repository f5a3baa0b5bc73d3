"""The schemas that templates declare, before they are used: files are read, and a preview imports
no code.
"""

from __future__ import annotations

from dataclasses import replace

from evaluator.errors import Diagnostic, TemplateError
from evaluator.interpreter.frame import Services
from evaluator.library.shapes import SchemaFileError, folder_of, is_file, is_model, read_schema
from evaluator.nodes import Span, Task


def with_schema(services: Services, task: Task) -> Task:
    """`task` with the content of its schema file in place of the path. Raises: TemplateError."""
    output = task.output
    if output is None or output.schema is None:
        return task
    schema = usable_schema(services, output.schema, span=output.span)
    if schema is output.schema:
        return task
    return replace(task, output=replace(output, schema=schema))


def usable_schema(services: Services, declared: str, span: Span) -> str | None:
    """A declared schema without access to files. None in a preview for a `module:Model`, which
    would be imported.

    Raises: TemplateError, for a file that is outside of the template's folder and of the roots, or
    cannot be read.
    """
    if is_file(declared):
        try:
            return read_schema(
                declared.strip(), folder_of(span.file), roots=services.files.roots.folders
            )
        except SchemaFileError as bad:
            raise TemplateError(
                [Diagnostic("error", bad.code, message=bad.message, span=span, hint=bad.hint)]
            ) from bad
    if services.dry_run and is_model(declared):
        services.notice(
            f"the schema {declared.strip()} is not imported; a run also shows its JSON Schema to "
            "the model"
        )
        return None
    return declared
