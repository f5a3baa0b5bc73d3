"""The reasoning at the beginning of an answer. An answer that is not parsed needs nothing else of
this package.
"""

from __future__ import annotations

from evaluator.patterns import Pattern

_LEADING = Pattern(
    r"\s*(?:<(think(?:ing)?)\s{0,8}>(.*?)</\1\s{0,8}>|◁think▷(.*?)◁/think▷"
    r"|\[THINK\](.*?)\[/THINK\])",
    "is",
)


def split_thinking(text: str) -> tuple[str, str]:
    """The reasoning at the beginning of a text ("" if there is none, or it has no end) and the text
    after it.
    """
    if not text.lstrip().startswith(("<", "◁", "[")):
        return "", text
    match = _LEADING.match(text)
    if match is None:
        return "", text
    return (match[2] or match[3] or match[4] or "").strip(), text[match.end() :].lstrip()
