"""Reads a request that is XML.

XML text is the caller's own task, evaluated like a node. The text is read leniently: what can be
repaired is repaired, with a warning in the notes, and a task that has nothing but a description is
matched to a template. With `<manual_xml>true</manual_xml>` it is taken as it is.
"""

from __future__ import annotations

from evaluator.errors import Diagnostic, TemplateError
from evaluator.lazy_dataclass import frozen
from evaluator.nodes import Atomic, Function, Node, Span, TopLevel
from evaluator.patterns import Pattern
from evaluator.xml.build import build
from evaluator.xml.schema import validate
from evaluator.xml.source import read_source

_MANUAL = Pattern(r"<manual_xml>\s*(?:true|1)\s*</manual_xml>")
_FILE = "<request>"


@frozen
class XmlRequest:
    """The task or function in a text. `is_manual`: it is evaluated as it is, and not matched."""

    node: TopLevel
    warnings: tuple[str, ...]
    is_manual: bool


def is_bare(node: Node | Function) -> bool:
    """Whether a task has nothing but a description in plain words: then it is a request."""
    if not isinstance(node, Atomic):
        return False
    from evaluator.library.template_terms import PLACEHOLDER

    return (
        node == Atomic(description=node.description, span=node.span)
        and PLACEHOLDER.search(node.description.value) is None
    )


def read_xml_request(text: str) -> XmlRequest:
    """The task in a request. Raises: TemplateError, with each mistake and its place in `text`."""
    is_manual = _MANUAL.search(text) is not None
    try:
        return _read_strictly(text, is_manual)
    except TemplateError:
        if is_manual:
            raise
        from evaluator.interpreter.generated import describe
        from evaluator.xml.generated import read_generated_task

        generated = read_generated_task(text, _FILE)
        # What may be incomplete is not run.
        if generated.node is None or generated.doubts:
            raise
        return XmlRequest(
            generated.node,
            tuple(f"request, {describe(one)}" for one in generated.warnings),
            is_manual=False,
        )


def _read_strictly(text: str, is_manual: bool) -> XmlRequest:
    from evaluator.interpreter.generated import describe

    source = read_source(text, _FILE)
    errors = list(validate(source, "task"))
    built = None
    if not errors:
        built = build(source)
    if built is not None:
        errors = [one for one in built.diagnostics if one.severity == "error"]
    if built is None or errors:
        raise TemplateError(errors)
    if len(built.templates) != 1:
        if built.templates:
            code = "several-tasks"
        else:
            code = "no-task"
        message = f"a request is one task; this text has {len(built.templates)}"
        raise TemplateError([Diagnostic("error", code, message=message, span=Span(_FILE))])
    warnings = tuple(
        f"request, {describe(one)}" for one in built.diagnostics if one.severity == "warning"
    )
    return XmlRequest(built.templates[0], warnings, is_manual=is_manual)
