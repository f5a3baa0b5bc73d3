"""Finds phrases that are not plain English in docs, messages and docstrings: python
docs/check_english.py [PATH ...]

Each phrase has the words to use in its place. Code blocks in Markdown are skipped. In Python files,
docstrings, comments and string literals are checked. Exit code 1 where a phrase is found.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = (
    "README.md",
    "CHANGELOG.md",
    "AGENTS.md",
    "docs/**/*.md",
    "bench/*.md",
    "evaluator/**/*.py",
)

# Pattern (words, ignoring case) and what to write instead.
PHRASES: tuple[tuple[str, str], ...] = (
    (r"(?:go|goes|going|gone|went) on with", "resume, continue"),
    (r"mend(?:s|ed|ing)?|unmended", "fix, repair"),
    (r"anew", "again"),
    (r"but for", "except"),
    (r"what (?:came|comes|became|becomes|has become) of", "the result of"),
    (r"(?:came|comes|come) to (?:no|nothing|something|an error)", "returned no, ended with"),
    (
        r"(?<!there )is no (?:integer|number|text|string|list|object|folder|file|template|name"
        r"|schema|JSON|XML)\b",
        "is not a",
    ),
    (r"(?:that|which) are no(?:ne)?\b", "that are not"),
    (r"that is none", "an invalid"),
    (r"(?<!there )are (?-i:none)\b", "are missing, are not"),
    (r"of which", "whose; or two sentences"),
    (r"whoever", "the person who, the caller"),
    (r"one's own", "your own"),
    (r"no affair of", "not part of"),
    (r"in vain", "without a result"),
    (r"g(?:ave|ives|ive) way", "yields"),
    (r"nor do(?:es)? one", "neither does"),
    (r"nobody (?:knows|says|said|is to|waits)", "it is unknown"),
    (r"says? of (?:it|them|a|an|the)", "describes"),
    (
        r"(?:stand|stands|stood) (?:in|beside|above|below|there|where|at) (?:the|a|an|its|it|them)",
        "is in, is above",
    ),
    (r"as (?:it|they) (?:stands?|lies?)\b", "as it is"),
    (r"be it", "whether"),
    (r"save for|save that", "except"),
    (r"lest", "so that … not"),
    (r"hence(?:forth)?", "so, therefore"),
    (r"thereof|therein|thereby|whereof|wherein|whereby", "of it, in it, by which"),
    (r"hither|thither|whence", "here, there, from where"),
    (r"what there (?:is|was) of", "the part of … that exists, partial"),
    (r"so many as", "as many as"),
    (r"at the most", "at most"),
    (r"is let in", "is admitted, may start"),
    (r"(?:not |was |were |are )let in", "admitted"),
    (r"broken off", "interrupted"),
    (r"told apart", "distinguished"),
    (r"is told (?:of|that|by|as|so)|are told", "receives, is reported"),
    (r"said so", "reported"),
    (r"is spoken (?:of|to)", "is named, is called"),
    (r"a place of (?:its|their) own", "a separate place"),
    (r"all the same", "anyway"),
    (r"of how many", "n of N"),
)
_PATTERN = re.compile(
    "|".join(f"(?P<p{i}>\\b(?:{pattern}))" for i, (pattern, _) in enumerate(PHRASES)), re.IGNORECASE
)


def find_phrases(text: str) -> Iterator[tuple[int, str, str]]:
    """`(line counted from 0, phrase, what to write)` for each phrase of `text`; a phrase may span a
    line break.
    """
    for found in _PATTERN.finditer(re.sub(r"[ \t\n]", " ", text)):
        index = int(str(found.lastgroup)[1:])
        yield text.count("\n", 0, found.start()), found[0], PHRASES[index][1]


def prose_of_markdown(text: str) -> str:
    """The text with code blocks and inline code blanked out, line for line."""
    text = re.sub(
        r"^(`{3,}).*?^\1`*$",
        lambda block: "\n" * block[0].count("\n"),
        text,
        flags=re.MULTILINE | re.DOTALL,
    )
    return re.sub(r"`[^`\n]*`", lambda code: "`" * len(code[0]), text)


def prose_of_python(source: str) -> Iterator[tuple[int, str]]:
    """`(line counted from 1, text)` of each comment block and string literal."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    block: list[str] = []
    start = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != start + len(block):
                yield start, "\n".join(block)
                block = []
            start = start if block else token.start[0]
            block.append(token.string)
    if block:
        yield start, "\n".join(block)


def check_file(path: Path) -> Iterator[str]:
    """A line for each phrase found in the file: place, phrase, what to write."""
    text = path.read_text(encoding="utf-8")
    pieces = [(1, prose_of_markdown(text))] if path.suffix == ".md" else prose_of_python(text)
    for first, piece in pieces:
        for line, phrase, instead in find_phrases(piece):
            yield f"{path.relative_to(ROOT)}:{first + line}: {phrase!r}: write {instead!r}"


def main(arguments: list[str]) -> int:
    """Checks the named files and folders, or all of them. Returns: the exit code."""
    named = [Path(argument).resolve() for argument in arguments]
    files = sorted(
        {file for pattern in FILES for file in ROOT.glob(pattern) if "_build" not in file.parts}
    )
    if named:
        files = [
            file for file in files if any(file == path or path in file.parents for path in named)
        ]
    found = [line for file in files for line in check_file(file)]
    print("\n".join(found) or f"{len(files)} files checked")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
