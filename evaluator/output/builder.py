"""The value that the lenient reader builds: its open containers, and what is put into them."""

from __future__ import annotations

from typing import Any

from evaluator.output import tokens
from evaluator.output.lookahead import OPENING
from evaluator.output.scalars import read_number
from evaluator.output.strict import MAX_DEPTH, StrictScanner, Unreadable
from evaluator.patterns import Pattern

_MAX_DIGITS = 4000
_JSON_NUMBER = Pattern(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", "a")


class ValueBuilder:
    """A block that is being read from `text`, from `start` on: its `value` so far and the
    `repairs`.

    `evidence`: it is JSON, not prose. `bare`: a text in it has no quotes.
    """

    __slots__ = (
        "_comma",
        "_container",
        "_key",
        "_kinds",
        "_stack",
        "bare",
        "evidence",
        "repairs",
        "start",
        "strict",
        "text",
        "value",
    )

    def __init__(self, text: str, start: int, strict: StrictScanner) -> None:
        self.text = text
        self.start = start
        self.strict = strict
        self.repairs: dict[str, None] = {}
        self.evidence = self.bare = False
        self.value: Any = None
        self._stack: list[Any] = []
        self._key: str | None = None
        self._comma = True
        self._container: Any = None
        self._kinds: list[str] = []

    def _take_key(self, key: str) -> None:
        if not self._comma and self._container:
            self.repairs["missing_comma"] = None
        if key in self._container:
            self.repairs["duplicate"] = None
        self._key = key
        self.evidence = True

    def _drop_key(self) -> None:
        self.repairs["no_value"] = None
        self._key = None

    def _in_object(self) -> bool:
        """Whether the container around the current one is an object."""
        return bool(self._stack) and self._stack[-1].__class__ is dict

    def _put_token(self, written: str) -> bool:
        """Puts a literal or a number in one of its notations; False if `written` is neither."""
        if written in tokens.EXACT:
            self._put(tokens.EXACT[written])
            return True
        known = tokens.LITERALS.get(written.lower())
        if known is not None:
            self._put(known[0])
            self.repairs[known[1]] = None
            return True
        if tokens.RADIX.fullmatch(written):
            self._put(int(written, 0))
            self.repairs["number"] = None
            return True
        if not written or (
            written[0] in "$€£¥₹0" and not written.startswith(("0.", "0_")) and written != "0"
        ):
            return False
        number = read_number(written)
        if (
            number is None
            or "," in written
            or "^" in written
            or "**" in written
            or written.count(".") > 1
            or written.endswith(("$", "€", "£", "¥", "₹"))
        ):
            return False
        self._put(number)
        if not _JSON_NUMBER.fullmatch(written):
            self.repairs["number"] = None
        return True

    def _number(self, digits: str, real: str | None) -> Any:
        if real is None:
            if len(digits) <= _MAX_DIGITS:
                return int(digits)
        else:
            number = float(digits)
            if number - number == 0.0:
                return number
        self.repairs["huge_number"] = None
        return digits

    def _put(self, value: Any) -> None:
        container = self._container
        if container.__class__ is list:
            if not self._comma and container:
                self.repairs["missing_comma"] = None
            container.append(value)
        else:
            container[self._key] = value
            self._key = None
        self._comma = False

    def _open(self, char: str, position: int) -> int:
        if char == "{" and self._opens_set(position):
            kind = "set"
        else:
            kind = char
        value: Any = {} if kind == "{" else []
        if self._container is None:
            self.value = value
        else:
            if len(self._stack) + 1 >= MAX_DEPTH:
                end = skip_balanced(self.text, self.start)
                raise Unreadable(
                    f"nested deeper than {MAX_DEPTH}", position, resume=end, committed=True
                )
            parent = self._container
            self._put(value)
            self._stack.append(parent)
        self._kinds.append(kind)
        self._container = value
        self._key = None
        self._comma = True
        return position + 1

    def _opens_set(self, position: int) -> bool:
        match = tokens.SET.match(self.text, position)
        if match is None or not (
            self._stack or self._container is not None or self._is_quoted_set(match[0])
        ):
            return False
        self.repairs["tuple"] = None
        return True

    @staticmethod
    def _is_quoted_set(opening: str) -> bool:
        """Whether the beginning of a set that stands alone is not mathematics: texts in quotes,
        more than one.
        """
        return opening.lstrip("{ \t\r\n")[:1] in OPENING and "," in opening

    def _close(self) -> None:
        if self._kinds.pop() == "(":
            self.repairs["tuple"] = None
        self._container = self._stack.pop() if self._stack else None
        self._key = None
        self._comma = False

    def _close_group(self) -> None:
        """Ends parentheses around one value, which are not a tuple."""
        group = self._container
        parent = self._stack[-1]
        if parent.__class__ is list:
            place = len(parent) - 1
        else:
            place = next(reversed(parent))
        self._kinds[-1] = "["
        self._close()
        if parent[place] is group:
            parent[place] = group[0]
        self.repairs["parentheses"] = None


def skip_balanced(text: str, start: int) -> int:
    """The end of the block that begins at `start`, by its brackets outside quotes; else the end of
    the text.
    """
    depth = 0
    for match in tokens.BRACKET.finditer(text, start):
        char = match[0]
        if char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
            if depth <= 0:
                return match.end()
    return len(text)
