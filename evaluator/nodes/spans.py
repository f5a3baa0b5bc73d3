"""Places in a source, and template texts that know the place of each of their characters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a source: file (None for a string), line and column, both counted from 1 in characters."""

    file: str | None = None
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file or '<string>'}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Mark:
    """The characters of a `Text` from `offset` on are found at `span` and after it, one to one."""

    offset: int
    span: Span


@dataclass(frozen=True, slots=True)
class Text:
    """Template text as the author wrote it: XML decoded, dedented, `<<x>>` read as `{{x}}`, not rendered.

    `marks` has one entry where the text begins and one after each place where the source and the text
    diverge (line starts after dedenting, entities, CDATA borders), so that `locate` is exact.
    """

    value: str
    span: Span
    marks: tuple[Mark, ...] = ()

    def locate(self, offset: int) -> Span:
        """The place in the author's file of the character at `offset` in `value`."""
        best = Mark(0, self.span)
        for mark in self.marks:
            if mark.offset > offset:
                break
            best = mark
        between = self.value[best.offset : offset]
        newlines = between.count("\n")
        if newlines:
            return Span(best.span.file, best.span.line + newlines, len(between) - between.rfind("\n"))
        return Span(best.span.file, best.span.line, best.span.column + len(between))

    def part(self, start: int, end: int) -> Text:
        """The text from `start` to `end`, whose characters keep their places."""
        if start == 0 and end == len(self.value):
            return self
        span = self.locate(start)
        inner = [Mark(mark.offset - start, mark.span) for mark in self.marks if start < mark.offset < end]
        return Text(self.value[start:end], span, (Mark(0, span), *inner) if inner else ())


@dataclass(frozen=True, slots=True)
class Expression:
    """A sandboxed expression (`test`, `termination_condition`, `from`), as written."""

    source: Text

    @property
    def span(self) -> Span:
        return self.source.span
