"""Places in a source, and template texts that know the place of each of their characters."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a source: file (None for a string), line and column, both counted from 1 in
    characters.
    """

    file: str | None = None
    line: int = 1
    column: int = 1

    @classmethod
    def at(cls, text: str, offset: int, file: str | None) -> Span:
        """The place of the character at `offset` of a file's text."""
        return cls(file, text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))

    def __str__(self) -> str:
        return f"{self.file or '<string>'}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Mark:
    """The characters of a `Text` from `offset` on are found at `span` and after it, one to one."""

    offset: int
    span: Span


_OFFSET = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class Text:
    """Template text as the author wrote it: XML decoded, dedented, `<<x>>` read as `{{x}}`, not
    rendered.

    `marks` has one entry where the text begins and one after each place where the source and the
    text diverge (line starts after dedenting, entities, CDATA borders), so that `locate` is exact.
    """

    value: str
    span: Span
    marks: tuple[Mark, ...] = ()

    def locate(self, offset: int) -> Span:
        """The place in the author's file of the character at `offset` in `value`."""
        offset = max(0, min(offset, len(self.value)))
        at = bisect_right(self.marks, offset, key=_OFFSET)
        best = self.marks[at - 1] if at else Mark(0, self.span)
        newlines = self.value.count("\n", best.offset, offset)
        if newlines:
            last = self.value.rfind("\n", best.offset, offset)
            return Span(best.span.file, best.span.line + newlines, column=offset - last)
        return Span(best.span.file, best.span.line, column=best.span.column + offset - best.offset)

    def part(self, start: int, end: int) -> Text:
        """The text from `start` to `end`, whose characters keep their places."""
        if start == 0 and end == len(self.value):
            return self
        span = self.locate(start)
        first, last = (bisect_right(self.marks, offset, key=_OFFSET) for offset in (start, end - 1))
        inner = [Mark(mark.offset - start, mark.span) for mark in self.marks[first:last]]
        return Text(self.value[start:end], span, marks=(Mark(0, span), *inner) if inner else ())


@dataclass(frozen=True, slots=True)
class Expression:
    """A sandboxed expression (`test`, `termination_condition`, `from`), as written."""

    source: Text

    @property
    def span(self) -> Span:
        return self.source.span
