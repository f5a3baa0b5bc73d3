"""Makes a source that violates the schema readable, so that the later checks find what else is
wrong.

A misspelt name is read as the one that is clearly meant; what else the schema refuses is left out.
No finding follows from what was left out: `Recovered` says what is uncertain.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field, replace
from typing import TYPE_CHECKING

from evaluator.errors import Diagnostic
from evaluator.lazy_dataclass import dataclass
from evaluator.xml.schema import MAX_FINDINGS, Violation, violations
from evaluator.xml.source import Source

if TYPE_CHECKING:
    from lxml.etree import _Element as Element  # pyright: ignore[reportPrivateUsage]

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
