"""The vocabulary of the task language, read from its schema: elements and attributes, where they
go, their values, what they are for.

`task_vocabulary` is for text from models: it has no includes, because nothing is fetched for such
text. `editor_vocabulary` has everything that an author may write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import lxml.etree as etree

from evaluator.files.locations import schemas_dir
from evaluator.lazy_dataclass import dataclass
from evaluator.patterns import Pattern
from evaluator.xml.lenient import Grammar

if TYPE_CHECKING:
    from lxml.etree import _Element as Node  # pyright: ignore[reportPrivateUsage]

_XS = "{http://www.w3.org/2001/XMLSchema}"
_BOOLEANS = frozenset({"true", "false", "1", "0"})
_HUMP = Pattern(r"(?<=[a-z0-9])(?=[A-Z])")
_OTHER_NAMES = {"step": "task", "subtask": "task"}
_NEAR = 0.8
_LONGEST = 64


@dataclass(slots=True)
class Kind:
    """A type of element in the schema.

    `children` are the names of its child elements and of their kinds, `attributes` its attributes
    and their values (empty: any value), `values` the values of its text. With `has_text` it may
    contain characters. `required` are attributes that it needs, `notes` says what its children and
    its attributes (`@name`) are for.
    """

    children: dict[str, str] = field(default_factory=dict[str, str])
    attributes: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    values: frozenset[str] = frozenset()
    has_text: bool = False
    required: frozenset[str] = frozenset()
    notes: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def is_text(self) -> bool:
        return self.has_text and not self.children


class Vocabulary(Grammar):
    """The kinds of the task language by the names of their types in the schema: a grammar for the
    lenient reader.
    """

    def __init__(self, kinds: dict[str, Kind], roots: dict[str, str]) -> None:
        self.kinds = kinds
        self._of: dict[str, list[Kind]] = {name: [kinds[kind]] for name, kind in roots.items()}
        for kind in kinds.values():
            for name, type_name in kind.children.items():
                if kinds[type_name] not in self._of.setdefault(name, []):
                    self._of[name].append(kinds[type_name])
        self._names = {**_OTHER_NAMES, **{folded(name): name for name in self._of}}

    def known(self, name: str) -> str | None:
        """The element that `name` is another spelling or a synonym of; None if there is none."""
        return self._names.get(folded(name))

    def kinds_of(self, name: str) -> Iterable[Kind]:
        """The kinds of all elements called `name`."""
        return self._of.get(name, ())

    def fold(self, name: str) -> str:
        return folded(name)

    def holds(self, parent: str, child: str) -> bool:
        """Whether some element called `parent` may contain `child`; true for an unknown `child`."""
        name = self.known(child)
        return name is None or any(
            name in kind.children for kind in self._of.get(self.known(parent) or "", ())
        )

    def is_markup(self, parent: str, name: str) -> bool:
        """Whether a tag `name` in an element `parent` is markup; in an element of text an unknown
        one is text.
        """
        kinds = self._of.get(self.known(parent) or "", ())
        return not kinds or not all(kind.is_text for kind in kinds) or self.known(name) is not None


@cache
def task_vocabulary() -> Vocabulary:
    """The vocabulary of task.xsd from a `<task>` downwards, without includes."""
    return _vocabulary({"task": "task"}, has_includes=False)


ROOTS = {"task": "task", "template": "function", "library": "library", "partial": "partial"}
"""The elements that a file of templates begins with, and their types in task.xsd."""


@cache
def editor_vocabulary() -> Vocabulary:
    """The whole vocabulary of task.xsd."""
    return _vocabulary(ROOTS, has_includes=True)


def _vocabulary(roots: dict[str, str], has_includes: bool) -> Vocabulary:
    root = etree.parse(
        str(schemas_dir() / "task.xsd"), etree.XMLParser(resolve_entities=False, no_network=True)
    ).getroot()
    reader = _SchemaReader(root, has_includes)
    kinds: dict[str, Kind] = {}
    waiting = [*roots.values()]
    while waiting:
        name = waiting.pop()
        if name not in kinds:
            kinds[name] = reader.kind(name)
            waiting += kinds[name].children.values()
    return Vocabulary(kinds, roots)


class _SchemaReader:
    """Reads the constructs of XML Schema that task.xsd uses."""

    def __init__(self, root: Node, has_includes: bool) -> None:
        self._has_includes = has_includes
        self._named = {
            (str(child.tag), child.get("name")): child for child in root.iterchildren(f"{_XS}*")
        }

    def kind(self, name: str) -> Kind:
        found = self._named.get((f"{_XS}complexType", name))
        if found is None:
            return Kind(values=self._values(name), has_text=True)
        kind = Kind(has_text=found.get("mixed") == "true")
        for extension in found.iter(f"{_XS}extension"):
            base = self.kind(extension.get("base") or "")
            kind = replace(base, has_text=base.has_text or kind.has_text)
        required: set[str] = set(kind.required)
        for part in self._parts(found):
            name = part.get("name") or ""
            if part.tag == f"{_XS}element":
                if name == "include" and not self._has_includes:
                    continue
                kind.children[name] = part.get("type") or ""
                key = name
            else:
                type_name = part.get("type")
                if type_name is None:
                    kind.attributes[name] = _enumerated(part)
                else:
                    kind.attributes[name] = self._values(type_name)
                key = f"@{name}"
                if part.get("use") == "required":
                    required.add(name)
            note = part.findtext(f"{_XS}annotation/{_XS}documentation")
            if note:
                kind.notes[key] = " ".join(note.split())
        return replace(kind, required=frozenset(required))

    def _parts(self, node: Node) -> Iterator[Node]:
        """The elements and attributes below `node`, including those of the groups that it names."""
        for part in node.iter(
            f"{_XS}element", f"{_XS}attribute", f"{_XS}group", f"{_XS}attributeGroup"
        ):
            named = self._named.get((str(part.tag), part.get("ref")))
            if named is not None:
                yield from self._parts(named)
            elif part.get("type") is not None or (
                # A type that is written in place.
                self._has_includes and part.tag == f"{_XS}attribute"
            ):
                yield part

    def _values(self, name: str) -> frozenset[str]:
        """The values of a simple type, if it has a fixed set of them."""
        if name in ("xs:boolean", "truth"):
            return _BOOLEANS
        found = self._named.get((f"{_XS}simpleType", name))
        if found is None:
            return frozenset()
        return _enumerated(found)


def _enumerated(node: Node) -> frozenset[str]:
    """The values that an element of the schema lists."""
    return frozenset(one.get("value") or "" for one in node.iter(f"{_XS}enumeration"))


def folded(name: str) -> str:
    """`name` without the differences between spellings: prefix, capitals, humps, dashes; a very
    long one unchanged.
    """
    if len(name) <= _LONGEST:
        return _folded(name)
    return name


@lru_cache(maxsize=4096)
def _folded(name: str) -> str:
    return _HUMP.sub("_", name.rpartition(":")[2]).lower().replace("-", "_").strip("_.")


def spelling_of(name: str, known: Iterable[str]) -> str | None:
    """The one of the `known` names that differs from `name` only in spelling."""
    low = folded(name)
    return next((one for one in known if folded(one) == low), None)


def slip_of(name: str, known: Iterable[str]) -> str | None:
    """The `known` name that `name` is a typing error of; None where none is close, or two are."""
    if len(name) <= _LONGEST:
        near = get_close_matches(folded(name), known, n=2, cutoff=_NEAR)
    else:
        near = []
    if len(near) == 1:
        return near[0]
    return None
