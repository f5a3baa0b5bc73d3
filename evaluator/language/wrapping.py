"""Lines wrapped as by textwrap, which Jinja uses, in steps that are charged to the meter.

The slices of textwrap take time by the square of the length of a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import TextWrapper

from evaluator.language.values import Rendering


def wrapped_lines(
    run: Rendering, text: str, *, width: int, break_words: bool, on_hyphens: bool
) -> list[str]:
    """The lines of at most `width` characters that textwrap makes of a line of text. Without
    `break_words` a longer word is a line; with `on_hyphens` a word may end after a hyphen.
    """
    words = _words(run, text, on_hyphens=on_hyphens)
    lines: list[str] = []
    none = "", 0
    word, length = next(words, none)
    start = 0  # of what is left of the word
    while word:
        run.tick()
        line: list[str] = []
        space = width
        if lines and start >= length:
            word, length = next(words, none)
            start = 0
        while word and len(word) - start <= space:
            line.append(word[start:])
            space -= len(word) - start
            word, length = next(words, none)
            start = 0
        if len(word) - start > width and break_words:
            end = start + space
            hyphen = word.rfind("-", start, end)
            if on_hyphens and hyphen > start and word[start:hyphen].strip("-"):
                end = hyphen + 1
            line.append(word[start:end])
            start = end
        elif len(word) - start > width and not line:
            line.append(word[start:])
            word, length = next(words, none)
            start = 0
        if line and not line[-1].strip():
            line.pop()
        if line:
            lines.append("".join(line))
    return lines


def _words(run: Rendering, line: str, on_hyphens: bool) -> Iterator[tuple[str, int]]:
    """The words of a line, or their parts between hyphens, and the spaces between them, each with
    its length without spaces at its end.
    """
    pattern = TextWrapper.wordsep_re if on_hyphens else TextWrapper.wordsep_simple_re
    end = 0
    for found in pattern.finditer(line):
        run.tick()
        for part in (line[end : found.start()], found[0]):
            if part:
                yield part, len(part.rstrip())
        end = found.end()
    if end < len(line):
        yield line[end:], len(line.rstrip()) - end
