"""The schemas: what is invalid in a source and where, and how an invalid source is read.

lxml decides quickly by the shipped XSDs; where it finds a violation, xmlschema explains what is
invalid and where. A source that violates the schema is made readable, so that the later checks find
what else is wrong: a misspelt name is read as the one that is clearly meant; what else the schema
refuses is left out. No finding follows from what was left out: `Recovered` says what is uncertain.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field, replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import lxml.etree as etree

from evaluator.errors import Diagnostic
from evaluator.errors.messages import correction, did_you_mean, shortened
from evaluator.files.locations import schemas_dir
from evaluator.lazy_dataclass import dataclass, frozen
from evaluator.nodes import Span
from evaluator.patterns import Pattern
from evaluator.xml.source import Source

if TYPE_CHECKING:
    from lxml.etree import _Element as Element  # pyright: ignore[reportPrivateUsage]


Kind = Literal["task", "handler"]

MAX_FINDINGS = 100
"""At most this many errors of one file are reported."""

# What a value of each type of the schemas looks like, for messages.
_LOOKS = {
    "wholeNumber": "a whole number, or a placeholder like {{ name }}",
    "number": "a number, or a placeholder like {{ name }}",
    "truth": "true or false, or a placeholder like {{ name }}",
    "boolean": "true or false",
    "integer": "a whole number",
    "positiveInteger": "a whole number, at least 1",
    "nonNegativeInteger": "a whole number, at least 0",
    "decimal": "a number",
    "notNegative": "a number, at least 0",
    "positive": "a number above 0",
    "fraction": "a number above 0 and at most 1",
    "rate": "a number from 0 to 1",
    "backoff": "numbers of seconds, separated by spaces",
    "name": "a name without spaces, quotes, braces and angle brackets",
    "identifier": "a name of letters, digits and _, not beginning with a digit",
    "variable": "the name of an environment variable",
    "filled": "a text that is not empty",
}
_VALUE = Pattern(r"attribute ([^\s=]+)=")
_UNKNOWN_ATTRIBUTE = Pattern(r"'([^']+)' attribute not allowed|attribute '([^']+)' not allowed")
_MISSING_ATTRIBUTE = Pattern(r"missing required attribute '([^']+)'")


@frozen
class Violation:
    """A finding about `element`, or about its attribute `attribute`.

    `meant` is the name that the element's or the attribute's name misspells, or the attribute's
    value if `is_value`; None where no known name is clearly meant.
    """

    diagnostic: Diagnostic
    element: Element
    attribute: str | None = None
    meant: str | None = None
    is_value: bool = False


def validate(source: Source, kind: Kind) -> list[Diagnostic]:
    """One diagnostic for each violation of the schema, in the source's order; empty for a valid
    document.

    Codes: unknown-element, unknown-attribute, missing-attribute, missing-element, invalid-value,
    misplaced-text, schema.
    """
    found = dict.fromkeys(violation.diagnostic for violation in violations(source, kind))
    return sorted(found, key=lambda one: (one.span.line, one.span.column))


def violations(source: Source, kind: Kind) -> list[Violation]:
    """The findings of `validate` with their elements, at most MAX_FINDINGS."""
    if _fast(kind).validate(source.root):
        return []
    schema = _slow(kind)
    if source.root.tag not in schema.elements:
        return [Violation(_unknown_root(source, sorted(schema.elements)), source.root)]
    errors = schema.iter_errors(source.root, use_location_hints=False)
    explained = [_violation(source, kind, error=error) for error in islice(errors, MAX_FINDINGS)]
    return explained or _unexplained(source, kind)


@cache
def _fast(kind: Kind) -> etree.XMLSchema:
    parser = etree.XMLParser(no_network=True, resolve_entities=False)
    return etree.XMLSchema(etree.parse(schemas_dir() / f"{kind}.xsd", parser))


@cache
def _slow(kind: Kind) -> Any:
    import xmlschema

    return xmlschema.XMLSchema10(str(schemas_dir() / f"{kind}.xsd"), allow="local", defuse="always")


@cache
def _declared_types(kind: Kind) -> dict[str, str]:
    """The types of the attributes and elements whose value may be a placeholder."""
    types: dict[str, str] = {}
    for component in _slow(kind).iter_components():
        name = getattr(getattr(component, "type", None), "local_name", None)
        if name in ("wholeNumber", "number", "truth"):
            types[component.local_name] = name
    return types


def _unexplained(source: Source, kind: Kind) -> list[Violation]:
    """The errors in lxml's words, on its lines, for a document that only xmlschema accepts."""
    # A schema of its own: the log of the shared one may be another thread's.
    schema = _fast.__wrapped__(kind)
    schema.validate(source.root)
    entries = list(schema.error_log)[:MAX_FINDINGS]
    return [
        Violation(
            Diagnostic(
                "error", "schema", message=entry.message, span=Span(source.file, entry.line)
            ),
            source.root,
        )
        for entry in entries
    ]


def _unknown_root(source: Source, roots: list[str]) -> Diagnostic:
    name = _name(source.root.tag)
    message = f"<{name}> cannot be the root; expected {_or([f'<{root}>' for root in roots])}"
    if name in roots:
        hint = "remove the xmlns attribute"
    elif name == "handler":
        hint = "a handler profile belongs into handlers/; `evaluator handlers` checks it"
    else:
        hint = did_you_mean(name, roots)
    return Diagnostic(
        "error", "unknown-element", message=message, span=source.locate(source.root), hint=hint
    )


def _violation(source: Source, kind: Kind, error: Any) -> Violation:
    element: Element
    if error.elem is None:
        element = source.root
    else:
        element = error.elem
    reason = str(error.reason or error.message)
    child = getattr(error, "invalid_child", None)
    tag = _name(element.tag)
    if child is not None:
        return _unexpected_child(source, element, child=child, error=error, kind=kind)
    if unknown := _UNKNOWN_ATTRIBUTE.search(reason):
        return _unexpected_attribute(source, element, name=unknown[1] or unknown[2], kind=kind)
    if missing := _MISSING_ATTRIBUTE.search(reason):
        message = f"<{tag}> needs the attribute {missing[1]!r}"
        return Violation(
            Diagnostic("error", "missing-attribute", message=message, span=source.locate(element)),
            element,
            missing[1],
        )
    if value := _VALUE.match(reason):
        span = source.locate_attribute(element, value[1])
        written = element.get(value[1]) or ""
        words = [str(choice) for choice in getattr(error.validator, "enumeration", None) or ()]
        return Violation(
            _bad_value(kind, value[1], shown=value[1], value=written, error=error, span=span),
            element,
            value[1],
            meant=correction(written, words),
            is_value=True,
        )
    if "character data" in reason:
        hint = "if it is meant as a comment, write <!-- … -->"
        diagnostic = Diagnostic(
            "error",
            "misplaced-text",
            message=f"<{tag}> contains elements, not text",
            span=source.text_of(element).span,
            hint=hint,
        )
        return Violation(diagnostic, element)
    if getattr(error, "expected", None):
        names = _expected(error)
        message = f"<{tag}> is incomplete; expected {_or([f'<{name}>' for name in names])}"
        diagnostic = Diagnostic(
            "error", "missing-element", message=message, span=source.locate(element)
        )
        return Violation(diagnostic, element)
    text = source.text_of(element)
    diagnostic = _bad_value(
        kind,
        tag,
        shown=f"<{tag}>",
        value=text.value,
        error=error,
        span=text.span if text.value else source.locate(element),
    )
    return Violation(diagnostic, element)


def _unexpected_child(
    source: Source, element: Element, child: Element, error: Any, kind: Kind
) -> Violation:
    names = _expected(error) or _allowed(error)
    name = _name(child.tag)
    tag = _name(element.tag)
    span = source.locate(child)
    as_attribute = None
    if name in _attributes(element, kind):
        as_attribute = f'{name} is an attribute: <{tag} {name}="…">'
    if name in _allowed(error):
        message = f"<{name}> is allowed in <{tag}> only once"
        return Violation(Diagnostic("error", "unknown-element", message=message, span=span), child)
    if not names:
        message = f"<{tag}> cannot contain elements"
        diagnostic = Diagnostic(
            "error", "unknown-element", message=message, span=span, hint=as_attribute
        )
        return Violation(diagnostic, child)
    is_text = names == ["include"]
    hint = as_attribute or did_you_mean(
        name,
        names,
        otherwise="write markup that is meant as text into <![CDATA[ … ]]>" if is_text else None,
    )
    expected = _or([f"<{one}>" for one in names])
    message = f"<{name}> is not known in <{tag}>; expected {expected}"
    diagnostic = Diagnostic("error", "unknown-element", message=message, span=span, hint=hint)
    return Violation(diagnostic, child, meant=correction(name, names))


def _unexpected_attribute(source: Source, element: Element, name: str, kind: Kind) -> Violation:
    key = name
    name = _name(key)
    names = _attributes(element, kind)
    tag = _name(element.tag)
    expected = _or(names) if names else "none"
    message = f"the attribute {name!r} is not known on <{tag}>; expected {expected}"
    span = source.locate_attribute_name(element, name)
    if name in _elements(element, kind):
        hint = f"{name} is an element: <{name}>…</{name}> in <{tag}>"
    else:
        hint = did_you_mean(name, names)
    diagnostic = Diagnostic("error", "unknown-attribute", message=message, span=span, hint=hint)
    return Violation(diagnostic, element, key, meant=correction(name, names))


def _bad_value(kind: Kind, name: str, shown: str, value: str, error: Any, span: Span) -> Diagnostic:
    validator = error.validator
    choices = getattr(validator, "enumeration", None)
    if choices:
        words = [str(choice) for choice in choices]
        message = f"{shown} must be {_or(words)}, not {shortened(value)}"
        return Diagnostic(
            "error", "invalid-value", message=message, span=span, hint=did_you_mean(value, words)
        )
    parents = (validator, getattr(validator, "parent", None), getattr(validator, "base_type", None))
    types = [getattr(one, "local_name", None) for one in parents]
    if "placeholder" in types or not any(one in _LOOKS for one in types):
        types.insert(0, _declared_types(kind).get(name))
    looks = next((_LOOKS[one] for one in types if one in _LOOKS), None)
    if looks is None:
        rule = f": {str(error.reason).rpartition(': ')[2]}"
    else:
        rule = f" must be {looks}"
    return Diagnostic(
        "error", "invalid-value", message=f"{shown}{rule}, not {shortened(value)}", span=span
    )


def _expected(error: Any) -> list[str]:
    return sorted(
        {
            one.local_name
            for one in getattr(error, "expected", None) or ()
            if getattr(one, "local_name", None)
        }
    )


def _allowed(error: Any) -> list[str]:
    elements = getattr(error.validator, "iter_elements", None)
    if elements:
        return sorted({one.local_name for one in elements() if one.local_name})
    return []


def _attributes(element: Element, kind: Kind) -> list[str]:
    """The attributes that the schema knows on this element."""
    declared = _declaration(element, kind)
    if declared is None:
        return []
    return sorted(str(name) for name in declared.attributes if name)


def _elements(element: Element, kind: Kind) -> list[str]:
    """The elements that the schema knows in this element."""
    content = getattr(getattr(_declaration(element, kind), "type", None), "content", None)
    elements: Any = getattr(content, "iter_elements", None)
    if elements is None:
        return []
    return [str(one.local_name) for one in elements()]


def _declaration(element: Element, kind: Kind) -> Any:
    """The schema's declaration of this element, found by walking down from the root; None for an
    unknown element.
    """
    path = [element, *element.iterancestors()]
    declared: Any = _slow(kind).elements.get(path.pop().tag)
    while declared is not None and path:
        tag = path.pop().tag
        content: Any = declared.type.content
        declared = next((one for one in content.iter_elements() if one.local_name == tag), None)
    return declared


def _name(tag: Any) -> str:
    return str(tag).rpartition("}")[2]


def _or(words: list[str]) -> str:
    if len(words) == 1:
        return words[0]
    if words:
        return ", ".join(words[:-1]) + " or " + words[-1]
    return "nothing"


_ROUNDS = 10
_ABOUT_PARTS = frozenset(
    {"missing-element", "missing-value", "missing-attribute", "misplaced-element", "unknown-input"}
    | {"misplaced-attribute", "no-type", "invalid-value"}
)
"""Codes of findings that may follow from a part that was left out."""
_NAMING = frozenset({"name", "params", "type", "template"})


@dataclass(slots=True)
class Recovered:
    """The violations of a source, which are repaired in its tree.

    `invalid` are the elements with a violation. `complete`: every violation is a misspelt name, so
    nothing was left out. `nameless`: a name that the rest of the file may use is not known.
    `places` are those of the violations, `doubtful` those of elements that lack a part.
    """

    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])
    invalid: list[Element] = field(default_factory=list["Element"])
    complete: bool = True
    nameless: bool = False
    places: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    doubtful: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])

    def follows(self, diagnostic: Diagnostic) -> bool:
        """Whether a finding of the builder repeats a violation or may follow from one."""
        place = (diagnostic.span.line, diagnostic.span.column)
        return place in self.places or (place in self.doubtful and diagnostic.code in _ABOUT_PARTS)


def recover(source: Source) -> Recovered:
    """Repairs the tree of `source`; it does nothing with a valid source."""
    found = violations(source, "task")
    recovered = Recovered()
    for _ in range(_ROUNDS):
        if not found or len(found) >= MAX_FINDINGS:
            break
        repaired = [each for each in found if _rename(source, each, recovered)]
        if not repaired:
            break
        # The others may follow from the misspelt names.
        found = violations(source, "task")
    for each in found:
        _leave_out(source, each, recovered)
    recovered.diagnostics = list(dict.fromkeys(recovered.diagnostics))
    return recovered


def _rename(source: Source, violation: Violation, recovered: Recovered) -> bool:
    element = violation.element
    meant = violation.meant
    if meant is None:
        return False
    name = violation.attribute
    if name is None:
        written = f"<{element.tag}"
        if not source.starts_with(violation.diagnostic.span, written):
            return False
        fix = (written, f"<{meant}")
        element.tag = meant
    elif violation.is_value:
        fix = (element.get(name) or "", meant)
        element.set(name, meant)
    elif name in element.attrib and meant not in element.attrib:
        fix = (name, meant)
        source.rename_attribute(element, name, meant)
    else:
        return False
    recovered.diagnostics.append(replace(violation.diagnostic, fix=fix))
    recovered.invalid.append(element)
    return True


def _leave_out(source: Source, violation: Violation, recovered: Recovered) -> None:
    element = violation.element
    name = violation.attribute
    span = violation.diagnostic.span
    recovered.diagnostics.append(violation.diagnostic)
    recovered.invalid.append(element)
    recovered.complete = False
    recovered.places.add((span.line, span.column))
    around: Collection[Element] = [element]
    if name is not None:
        recovered.nameless = recovered.nameless or name in _NAMING
        if violation.is_value and name == "type":
            around = [element, *element.iterchildren("*")]
        element.attrib.pop(name, None)
    elif violation.diagnostic.code == "unknown-element":
        parent = element.getparent()
        if parent is not None:
            around = [element, parent]
            parent.remove(element)
    for each in around:
        place = source.locate(each)
        recovered.doubtful.add((place.line, place.column))
