"""What the task language knows, read from its schema: which elements and attributes stand where, with which values.

Includes are left out: who is told a vocabulary reads text that nobody vouches for, and nothing is fetched for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import lxml.etree as etree

from evaluator.xml.resources import schemas_dir

if TYPE_CHECKING:
    from lxml.etree import _Element as Node  # pyright: ignore[reportPrivateUsage]

_XS = "{http://www.w3.org/2001/XMLSchema}"
_BOOLEANS = frozenset({"true", "false", "1", "0"})
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_OTHER_NAMES = {"step": "task", "subtask": "task"}
_NEAR, _MARGIN, _LONGEST = 0.8, 0.1, 64


@dataclass(slots=True)
class Kind:
    """A type of element: `children` by name, each with its own kind's name; `attributes` with their values, empty where
    any will do; `values` of its text likewise. `has_text`: it may hold characters."""

    children: dict[str, str] = field(default_factory=dict[str, str])
    attributes: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    values: frozenset[str] = frozenset()
    has_text: bool = False

    @property
    def is_text(self) -> bool:
        return self.has_text and not self.children


class Vocabulary:
    """The kinds of the task language by the names of their types in the schema; a grammar for the lenient reader."""

    def __init__(self, kinds: dict[str, Kind]) -> None:
        self.kinds = kinds
        self._of: dict[str, list[Kind]] = {"task": [kinds["task"]]}
        for kind in kinds.values():
            for name, type_name in kind.children.items():
                if kinds[type_name] not in self._of.setdefault(name, []):
                    self._of[name].append(kinds[type_name])
        self._names = {**_OTHER_NAMES, **{folded(name): name for name in self._of}}

    def known(self, name: str) -> str | None:
        """The element that `name` is another spelling or another word for; None if there is none."""
        return self._names.get(folded(name))

    def kinds_of(self, name: str) -> Iterable[Kind]:
        """What an element called `name` can be, wherever it stands."""
        return self._of.get(name, ())

    def fold(self, name: str) -> str:
        """What an opening and a closing tag have in common."""
        return folded(name)

    def holds(self, parent: str, child: str) -> bool:
        """Whether `child` may stand in an element called `parent`, wherever that stands; so may an unknown one."""
        name = self.known(child)
        return name is None or any(name in kind.children for kind in self._of.get(self.known(parent) or "", ()))

    def is_markup(self, parent: str, name: str) -> bool:
        """Whether a tag `name` in an element called `parent` is markup; an unknown one in what holds text is text."""
        kinds = self._of.get(self.known(parent) or "", ())
        return not kinds or not all(kind.is_text for kind in kinds) or self.known(name) is not None


@cache
def task_vocabulary() -> Vocabulary:
    """The vocabulary of task.xsd from a `<task>` downwards."""
    root = etree.parse(
        str(schemas_dir() / "task.xsd"), etree.XMLParser(resolve_entities=False, no_network=True)
    ).getroot()
    reader = _Reader(root)
    kinds: dict[str, Kind] = {}
    waiting = ["task"]
    while waiting:
        name = waiting.pop()
        if name not in kinds:
            kinds[name] = reader.kind(name)
            waiting += kinds[name].children.values()
    return Vocabulary(kinds)


class _Reader:
    """Reads the constructs that task.xsd is written with."""

    def __init__(self, root: Node) -> None:
        self._named = {(str(child.tag), child.get("name")): child for child in root.iterchildren(f"{_XS}*")}

    def kind(self, name: str) -> Kind:
        found = self._named.get((f"{_XS}complexType", name))
        if found is None:
            return Kind(values=self._values(name), has_text=True)
        kind = Kind(has_text=found.get("mixed") == "true")
        for extension in found.iter(f"{_XS}extension"):
            base = self.kind(extension.get("base") or "")
            kind.children |= base.children
            kind.attributes |= base.attributes
            kind.has_text |= base.has_text
        for part in self._parts(found):
            if part.tag == f"{_XS}element" and part.get("name") != "include":
                kind.children[part.get("name") or ""] = part.get("type") or ""
            elif part.tag == f"{_XS}attribute":
                kind.attributes[part.get("name") or ""] = self._values(part.get("type") or "")
        return kind

    def _parts(self, node: Node) -> Iterator[Node]:
        """Elements and attributes below `node`, those of the groups that it names too."""
        for part in node.iter(f"{_XS}element", f"{_XS}attribute", f"{_XS}group", f"{_XS}attributeGroup"):
            named = self._named.get((str(part.tag), part.get("ref")))
            if named is not None:
                yield from self._parts(named)
            elif part.get("type") is not None:
                yield part

    def _values(self, name: str) -> frozenset[str]:
        """The values of a simple type, where it has a fixed set of them."""
        if name in ("xs:boolean", "truth"):
            return _BOOLEANS
        found = self._named.get((f"{_XS}simpleType", name))
        if found is None:
            return frozenset()
        return frozenset(one.get("value") or "" for one in found.iter(f"{_XS}enumeration"))


def folded(name: str) -> str:
    """`name` without what spellings differ in: a prefix, capitals, humps, dashes; a very long one as it is."""
    return _folded(name) if len(name) <= _LONGEST else name


@lru_cache(maxsize=4096)
def _folded(name: str) -> str:
    return _HUMP.sub("_", name.rpartition(":")[2]).lower().replace("-", "_").strip("_.")


def spelling_of(name: str, known: Iterable[str]) -> str | None:
    """The one among `known` that differs from `name` in spelling only: capitals, dashes, humps, a prefix."""
    low = folded(name)
    return next((one for one in known if folded(one) == low), None)


def slip_of(name: str, known: Iterable[str]) -> str | None:
    """The one among `known` that `name` is clearly a slip of; None where none is near, or two are."""
    low = folded(name)
    if len(low) > _LONGEST:
        return None
    scored = sorted(((SequenceMatcher(None, low, one).ratio(), one) for one in known), reverse=True)
    if not scored or scored[0][0] < _NEAR:
        return None
    is_alone = len(scored) == 1 or scored[0][0] - scored[1][0] >= _MARGIN
    return scored[0][1] if is_alone else None
