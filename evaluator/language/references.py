"""What the analysis of a text finds."""

from __future__ import annotations

from evaluator.lazy_dataclass import frozen


@frozen
class Reference:
    """A free name that is read, with the constant part of its path. `offset` is where the name
    begins.

    `optional`: the text itself provides for the name being undefined (`is defined`, `default`).
    """

    name: str
    path: tuple[str | int, ...]
    offset: int
    optional: bool


@frozen
class CallReference:
    """A call of a function template. `star`: further arguments come from `*x` or `**x`."""

    name: str
    positional: int
    keywords: tuple[str, ...]
    star: bool
    offset: int


@frozen
class Analysis:
    """The free names and calls of a text, in the order of their offsets.

    `constant`: a text that is its own rendering, or an expression that depends on nothing.
    """

    references: tuple[Reference, ...]
    calls: tuple[CallReference, ...]
    constant: bool
